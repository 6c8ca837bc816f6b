"""Programs whose agents share noise, held beside the matrix of all messages of a round."""

from math import inf, sqrt
from pathlib import Path

import numpy as np
import pytest

from dpaudit.capture.audit import run_captured
from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.finding import Name, Role
from dpaudit.files.result import AuditResult
from dpaudit.files.verdict import Verdict
from tests.some_fast import fast_if

OWN, PAIR, CLIP, D = 0.05, 0.2 / 3, 0.1, 4
DECOR = """
import sys
import numpy as np
from dpaudit import tap

HOW = sys.argv[1]
rng, n = np.random.default_rng(), 4
rng = np.random.default_rng(5)
for k in range(2):
    pair, message = {}, {}
    for i in range(n):
        j = (i + 1) % n
        z = (0.2 / 3) * rng.standard_normal(4)
        if HOW == "drawn once":
            pair[i, j] = tap.noise(i, "pair", z, 0.2 / 3)
            pair[j, i] = -pair[i, j]
        else:  # by both agents, from a seed that they share
            pair[i, j] = tap.noise(i, f"pair {j}", z, 0.2 / 3)
            pair[j, i] = tap.noise(j, f"pair {i}", -z, 0.2 / 3)
    common = (0.05 if HOW == "all the same" else 0) * rng.standard_normal(4)
    for i in range(n):
        x = tap.batch(i, np.full((1, 4), 0.1 * (1 + i)))
        if HOW == "all the same":
            noise = tap.noise(i, "own", common, 0.05)
        else:
            noise = tap.noise(i, "own", 0.05 * rng.standard_normal(4), 0.05)
            noise = noise + pair[i, (i + 1) % n] + pair[i, (i - 1) % n]
        norms = np.linalg.norm(x, axis=1, keepdims=True)
        message[i] = (x * np.minimum(1, 0.1 / norms)).sum(0) + noise
    for i in range(n):
        tap.send(i, [(i + 1) % n, (i - 1) % n], "x", message[i])
"""


def audited(tmp_path: Path, how: str) -> AuditResult:
    """Against an eavesdropper, and an agent beside the victim."""
    (tmp_path / "decor.py").write_text(DECOR)
    config = CapturedConfig.model_validate(
        {
            "program": {"command": ("python", "decor.py", how), "folder": tmp_path},
            "record": {"victims": (0,), "candidates": ("present", "negated")},
            "certify": {"runs": 0},
            "claim": ({"text": "r", "mu": 2.6, "scope": "round", "adjacency": "replace-one"},),
            "threat_model": (
                {"name": "a"},
                {"name": "neighbour", "kind": "curious", "agents": (1,)},
            ),
        }
    )
    return run_captured(config, tmp_path / "out", cores=1)


def exact(known: int | None = None, victim: int = 0) -> float:
    """Of the ring: a' (B B')^+ a, with a column for each draw that the adversary does not know.

    A curious agent reads what its two neighbours send, and knows its pairs.
    """
    B = np.zeros((4, 8))
    for i in range(4):
        B[i, i], B[i, 4 + i], B[(i + 1) % 4, 4 + i] = OWN, PAIR, -PAIR
    a = np.zeros(4)
    a[victim] = 2 * CLIP
    if known is not None:
        B[:, [known, 4 + known, 4 + (known - 1) % 4]] = 0
        read = [(known + 1) % 4, (known - 1) % 4]
        B, a = B[read], a[read]
    return sqrt(a @ np.linalg.pinv(B @ B.T) @ a)


def mu_of(result: AuditResult, threat_model: str = "a") -> float | None:
    measured = {f.threat_model: f for f in result.findings if f.role is Role.MEASURED}
    assert not any("count nothing" in note for note in measured[threat_model].notes)
    return measured[threat_model].value(Name.LARGEST_MU_OF_A_ROUND)


@pytest.mark.parametrize("how", fast_if("drawn by both".__eq__, ["drawn once", "drawn by both"]))
def test_pairwise_noise_is_measured_by_its_matrix(tmp_path: Path, how: str) -> None:
    assert exact() == pytest.approx(2.50, abs=5e-3)
    result = audited(tmp_path, how)
    assert mu_of(result) == pytest.approx(exact(), rel=1e-5)
    assert "does not contradict it" in result.claims[0].reason  # shared draws are no repeats
    neighbour = mu_of(result, "neighbour")  # knows its pairs, also those drawn for both
    assert neighbour == pytest.approx(exact(known=1), rel=1e-5)


@pytest.mark.slow
def test_one_noise_for_all_agents_hides_nothing(tmp_path: Path) -> None:
    result = audited(tmp_path, "all the same")
    assert mu_of(result) == inf
    assert "no noise hides it" in result.claims[0].reason


REUSED = """
import sys
import numpy as np
from dpaudit import tap

rng, once = np.random.default_rng(7), {}
for i in range(2):
    once[i] = tap.noise(i, "once", rng.standard_normal(4), 1.0) if sys.argv[1] == "reused" else 0.0
for k in range(2):
    for i in range(2):
        x = tap.batch(i, np.eye(4)[[k, k + 1]])
        fresh = tap.noise(i, "fresh", rng.standard_normal(4), 1.0)
        tap.send(i, 1 - i, "x", x.sum(axis=0) + once[i] + fresh)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", fast_if("reused".__eq__, ["reused", "fresh"]))
def test_noise_that_is_drawn_once_hides_later_rounds_too(tmp_path: Path, how: str) -> None:
    """In round 2 the first message leaves half of the variance of what was drawn once: mu is
    sqrt(2 / 3), which keeps a claim of 0.9, and 1 without it."""
    (tmp_path / "reused.py").write_text(REUSED)
    config = CapturedConfig.model_validate(
        {
            "program": {"command": ("python", "reused.py", how), "folder": tmp_path},
            "record": {"victims": (0,), "rounds": (2,), "candidates": ("present",)},
            "certify": {"runs": 0},
            "claim": ({"text": "r", "mu": 0.9, "scope": "round"},),
        }
    )
    result = run_captured(config, tmp_path / "out", cores=1)
    [measured] = [f for f in result.findings if f.role is Role.MEASURED]
    assert measured.value(Name.LARGEST_MU_OF_A_ROUND) == pytest.approx(1.0, rel=1e-9)
    assert (result.verdict is Verdict.UNSUPPORTED) == (how == "fresh")
    assert any("rounds 2 count nothing" in note for note in measured.notes) == (how == "reused")


SENT_ON = """
import numpy as np
from dpaudit import tap

rng, w = np.random.default_rng(7), np.zeros((2, 4))
for k in range(2):
    for i in range(2):
        x = tap.batch(i, np.eye(4)[:3])
        x = x / np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True))
        w[i] += x.sum(axis=0) + tap.noise(i, "z", rng.standard_normal(4), 1.0)
        tap.send(i, 1 - i, "x", w[i])
        w[1 - i] = (w[0] + w[1]) / 2  # agent 1 sends on, in the same round, what it got
"""


@pytest.mark.slow
def test_what_is_sent_on_within_a_round_is_no_leak(tmp_path: Path) -> None:
    """Both agents are victims: the record of each moves its own message by 1, over noise of 1."""
    (tmp_path / "sent_on.py").write_text(SENT_ON)
    config = CapturedConfig.model_validate(
        {
            "program": {"command": ("python", "sent_on.py"), "folder": tmp_path},
            "record": {"victims": (0, 1), "rounds": (1, 2), "candidates": ("present",)},
            "certify": {"runs": 0},
            "claim": ({"text": "r", "mu": 1.0, "scope": "round"},),
        }
    )
    result = run_captured(config, tmp_path / "out", cores=1)
    [measured] = [f for f in result.findings if f.role is Role.MEASURED]
    assert measured.value(Name.LARGEST_MU_OF_A_ROUND) == pytest.approx(1.0, rel=1e-9)
    assert result.verdict is not Verdict.UNSUPPORTED


DEALT = """
import sys
import numpy as np
from dpaudit import tap

HOW, SCALE = sys.argv[1], 0.5 if sys.argv[1] == "halved" else 1.0
rng, data = np.random.default_rng(7), np.eye(4)
once = [tap.noise(9, "z", rng.standard_normal(4), 1.0) for _ in range(4)]  # by whom nothing sends
for k in range(2):
    for i in range(2):
        x = tap.batch(i, data[[k, k + 1]])
        if HOW.endswith("before"):
            z = once[2 * k + i]
        elif HOW == "asleep":  # agent 1 sends in the second round alone
            z = tap.noise(1, "pair", rng.standard_normal(4), 1.0)
        else:
            z = SCALE * tap.noise(9, "z", rng.standard_normal(4), 1.0)
        if i == 0 or HOW != "asleep" or k == 1:
            tap.send(i, 1 - i, "x", x.sum(axis=0) + z)
"""


IN_ROUND = {"dealt": 1, "halved": 1, "asleep": 1, "drawn before": 1, "drawn long before": 2}
MU = {"halved": 2.0, "drawn long before": inf}  # of others it is 1; the infinite one counts nothing


@pytest.mark.parametrize("how", fast_if({"halved", "drawn long before"}.__contains__, IN_ROUND))
def test_noise_dealt_without_sending_hides_messages(tmp_path: Path, how: str) -> None:
    """It was taken for none: programs whose noise is right were refuted."""
    (tmp_path / "dealt.py").write_text(DEALT)
    config = CapturedConfig.model_validate(
        {
            "program": {"command": ("python", "dealt.py", how), "folder": tmp_path},
            "record": {"victims": (0,), "rounds": (IN_ROUND[how],), "candidates": ("present",)},
            "certify": {"runs": 0},
            "claim": ({"text": "r", "mu": 1.0, "scope": "round"},),
        }
    )
    result = run_captured(config, tmp_path / "out", cores=1)
    [measured] = [f for f in result.findings if f.role is Role.MEASURED]
    assert measured.value(Name.LARGEST_MU_OF_A_ROUND) == pytest.approx(MU.get(how, 1.0), rel=1e-9)
    assert (result.verdict is Verdict.UNSUPPORTED) == (how == "halved")
