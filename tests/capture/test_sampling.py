"""How records come into batches, and in which rounds one record counts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit.accounting.families import gaussian_epsilon
from dpaudit.accounting.releases import Release, epsilon
from dpaudit.capture.audit import run_captured
from dpaudit.capture.runs import TakenBatch
from dpaudit.capture.sampling import Sampling, pattern_of
from dpaudit.errors import RunError
from dpaudit.files.captured_file import CapturedConfig, RecordOptions
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Name, Role
from dpaudit.files.result import AuditResult
from dpaudit.files.verdict import Verdict
from dpaudit.verify.verdict import check

PROGRAM = """
import sys
import numpy as np
from dpaudit import tap

HOW, SIGMA, ROUNDS, N, B = sys.argv[1], float(sys.argv[2]), 6, 40, 10
data = np.random.default_rng(1).standard_normal((N, 3)) * 9
rng = np.random.default_rng(7)
order = rng.permutation(N)
for k in range(ROUNDS):
    if HOW == "poisson":
        which = np.flatnonzero(rng.random(N) < B / N)
    elif HOW == "fixed":
        which = rng.choice(N, B, replace=False)
    elif HOW == "whole":
        which = np.arange(N)
    else:  # shuffled passes over the data, or the first of them alone
        if HOW == "passes" and k % (N // B) == 0:
            order = rng.permutation(N)
        which = order[k * B % N :][:B]
        if HOW == "one pass" and k == N // B:
            break
    x = tap.batch(0, data[which])
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    total = (x * np.minimum(1, 1 / norms)).sum(0)
    z = tap.noise(0, "z", SIGMA * rng.standard_normal(3), SIGMA)
    tap.send(0, 1, "x", total + z)
    tap.send(1, 0, "x", total * 0)
"""


DRAWN = """
import sys
import numpy as np
from dpaudit import tap

HOW, ROUNDS, N, RATE = sys.argv[1], 4, 80, 0.25
X = np.random.default_rng(1).standard_normal((2, N, 20))
rng = np.random.default_rng()
models = np.zeros((2, 20))
for k in range(ROUNDS):
    both = rng.random(N) < RATE
    for i in range(2):
        which = rng.random(N) < RATE
        if HOW == "fixed":
            which = rng.choice(N, 20, replace=False)
        if HOW == "shared":  # who knows the batch of one agent knows that of the other
            which = both
        x = tap.batch(i, X[i][which])
        each = (x @ models[i] - 1)[:, None] * x
        norms = np.linalg.norm(each, axis=1, keepdims=True)
        total = (each * np.minimum(1, 1 / np.maximum(norms, 1e-12))).sum(axis=0)
        total += tap.noise(i, "z", rng.normal(0, 1.0, 20), 1.0)
        models[i] = models[i] - 0.1 * total
        tap.send(i, 1 - i, "x", models[i])
    models[:] = models.mean(axis=0)
"""


WHOLE = (2.0, "run"), (1.9, "run"), (1.0, "round")  # mu of four rounds, of less, and of one


def audited(
    tmp_path: Path, how: str, sigma: float, *epsilons: float, runs: int = 0, **more: Any
) -> AuditResult:
    (tmp_path / "program.py").write_text(PROGRAM)
    claims = [
        {"text": "c", "epsilon": epsilon, "delta": 1e-5, "scope": scope}
        for scope in more.pop("scopes", ("run",))
        for epsilon in epsilons
    ]
    record = {"candidates": ("present",), "rounds": (1, 2, 3), **more}
    config = CapturedConfig.model_validate(
        {
            "program": {"command": ("python", "program.py", how, str(sigma)), "folder": tmp_path},
            "record": record,
            "certify": {"runs": runs},
            "claim": claims,
        }
    )
    return run_captured(config, tmp_path / f"out-{how}", cores=1)


def low_of(result: AuditResult) -> float:
    measured = [f for f in result.findings if f.role is Role.MEASURED]
    return float(measured[0].metrics[Name.EPSILON].low or 0)


@pytest.mark.parametrize("how", ["poisson", pytest.param("fixed", marks=pytest.mark.slow)])
def test_random_batches_give_no_verdict_unless_stated(tmp_path: Path, how: str) -> None:
    """A claim that holds by amplification, and not for a record that is in a batch for sure."""
    result = audited(tmp_path, how, 2.0, 1.0, runs=8, scopes=("run", "round"))
    for claim in result.claims:
        assert claim.verdict is Verdict.UNDERPOWERED
        assert "state record.sampling" in claim.reason
    assert not [f for f in result.findings if f.role is Role.TEST]


@pytest.mark.slow
def test_stated_poisson_batches_count_by_their_rate(tmp_path: Path) -> None:
    """A claim that is 20 times too small."""
    stated = {"sampling": "poisson", "sampling_rate": 0.25, "rounds": (1,)}
    result = audited(tmp_path, "poisson", 2.0, 0.05, **stated)
    [claim] = result.claims
    assert claim.verdict is Verdict.UNSUPPORTED
    assert "in a batch with probability 0.25, by itself" in claim.reason
    assert 0.3 < low_of(result) < 1.0 < gaussian_epsilon(1e-5, 1 / 2.0)


@pytest.mark.slow
def test_batches_of_one_seed_support_no_claim(tmp_path: Path) -> None:
    """Right for the noise; who reads the script knows which records a batch holds."""
    stated = {"sampling": "poisson", "sampling_rate": 0.25, "rounds": (1,)}
    [claim] = audited(tmp_path, "poisson", 2.0, 1.0, **stated).claims
    assert claim.verdict is Verdict.UNDERPOWERED
    assert "batches are the same in runs with other seeds" in claim.reason


@pytest.mark.slow
@pytest.mark.parametrize("how", ["poisson", "fixed", "shared"])
def test_poisson_batches_support_a_claim_at_their_rate(tmp_path: Path, how: str) -> None:
    """Others that are stated to be so do not. A right program fails with probability 1e-3."""
    (tmp_path / "drawn.py").write_text(DRAWN)
    multiplier, rate, rounds = 1.0, 0.25, 4
    release = Release(
        family="gaussian",
        noise_multiplier=multiplier,
        sampling="poisson",
        sampling_rate=rate,
        count=rounds,
    )
    exact = epsilon([release], 1e-5, "add-remove").high
    claims = [
        {"text": "c", "epsilon": factor * exact, "delta": 1e-5, "scope": "run"}
        for factor in (1.001, 0.99)
    ]
    config = CapturedConfig.model_validate(
        {
            "program": {"command": ("python", "drawn.py", how), "folder": tmp_path},
            "record": {"victims": (0, 1), "sampling": "poisson", "sampling_rate": rate},
            "certify": {"runs": 0},
            "claim": claims,
        }
    )
    result = run_captured(config, tmp_path / "out", cores=1)
    at, below = result.claims
    assert below.verdict is not Verdict.SUPPORTED
    if how != "poisson":
        assert at.verdict is not Verdict.SUPPORTED
        assert "records" in [one.name for one in at.missing]
        return
    assert at.verdict is Verdict.SUPPORTED
    assert "the numbers by which batches are drawn decide nothing else" in at.reason
    assert at.range is not None
    assert at.range.accounted == pytest.approx(exact, rel=1e-4)
    assert exact < at.range.measured < 1.2 * exact
    content = result.model_dump(mode="json")
    assert {one.answer for one in check(content, tmp_path)} == {"confirmed"}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["poisson", "fixed"])
def test_drawn_batches_count_in_each_round_where_they_are_known(tmp_path: Path, how: str) -> None:
    """An adversary that knows the batches: a record may be in all four. Chance: as above."""
    (tmp_path / "drawn.py").write_text(DRAWN)
    claims = [{"text": "c", "mu": mu, "scope": scope} for mu, scope in WHOLE]
    config = CapturedConfig.model_validate(
        {
            "program": {"command": ("python", "drawn.py", how), "folder": tmp_path},
            "record": {"victims": (0, 1), "sampling": "none"},
            "certify": {"runs": 0},
            "claim": claims,
        }
    )
    result = run_captured(config, tmp_path / "out", cores=1)
    found = [claim.verdict for claim in result.claims]
    assert found == [Verdict.SUPPORTED, Verdict.UNDERPOWERED, Verdict.SUPPORTED]
    assert "the numbers by which batches are drawn decide nothing else" in result.claims[0].reason
    content = result.model_dump(mode="json")
    assert {one.answer for one in check(content, tmp_path)} == {"confirmed"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "mu", "said"),
    [
        pytest.param(
            *("passes", 1.0, "every record is in one batch of each pass"), marks=pytest.mark.slow
        ),
        ("whole", 3**0.5, "every batch has the same records"),
    ],
)
def test_a_record_counts_in_the_batches_that_hold_it(
    how: str, mu: float, said: str, tmp_path: Path
) -> None:
    """In passes over the data in one of four; where every batch has all, in all that are measured.

    Slack: measured in double precision, counted as 0.1% less.
    """
    exact = gaussian_epsilon(1e-5, mu / 1.001)
    result = audited(tmp_path, how, 1.0, exact * 0.99)
    assert low_of(result) == pytest.approx(exact, rel=1e-6)
    assert result.verdict is Verdict.UNSUPPORTED
    assert said in result.claims[0].reason


@pytest.mark.slow
def test_in_passes_a_claim_of_one_batch_is_not_contradicted(tmp_path: Path) -> None:
    result = audited(tmp_path, "passes", 1.0, gaussian_epsilon(1e-5, 1.0) * 1.01)
    assert result.verdict is not Verdict.UNSUPPORTED
    assert "every record is in one batch of each pass" in result.claims[0].reason


@pytest.mark.slow
def test_one_pass_needs_its_sampling_stated(tmp_path: Path) -> None:
    result = audited(tmp_path, "one pass", 1.0, 1.0)
    assert result.verdict is Verdict.UNDERPOWERED
    assert "the recording does not show it; state record.sampling" in result.claims[0].reason
    stated = audited(tmp_path, "one pass", 1.0, 4.5, sampling="none")
    assert low_of(stated) == pytest.approx(gaussian_epsilon(1e-5, 1 / 1.001), rel=1e-6)
    assert stated.verdict is Verdict.UNDERPOWERED
    assert 'knows which batches hold the record (record.sampling = "none")' in (
        stated.claims[0].reason
    )


@pytest.mark.parametrize(
    ("how", "said"),
    [("whole", "every batch has the same"), ("fixed", "all 12 batches of agent 0 have 12 records")],
)
def test_stated_sampling_that_the_recording_contradicts(how: str, said: str) -> None:
    found = batches(how, np.random.default_rng(3))
    taken = [TakenBatch(0, i, len(batch), tuple(batch)) for i, batch in enumerate(found)]
    stated = RecordOptions(sampling="poisson", sampling_rate=0.2)
    with pytest.raises(RunError, match=f'"poisson" is stated, and in the recording .*{said}'):
        Sampling.of(stated, taken)


@pytest.mark.parametrize(
    ("pattern", "of_run", "of_round"),
    [("random", True, True), ("unknown", True, False), ("epochs", False, False)],
)
def test_claims_have_no_verdict_while_sampling_is_unknown(
    pattern: Any, of_run: bool, of_round: bool
) -> None:
    run, round = (Claim(text="c", epsilon=1.0, delta=0, scope=scope) for scope in ("run", "round"))
    shown = Sampling(None, 1.0, pattern)
    assert (shown.unknown(run) is not None, shown.unknown(round) is not None) == (of_run, of_round)
    stated = Sampling("none", 1.0, pattern)
    assert stated.unknown(run) is stated.unknown(round) is None
    assert [Sampling("poisson", rate, pattern).amplifies for rate in (0.5, 1.0)] == [True, False]


def batches(how: str, rng: np.random.Generator, n: int = 60, b: int = 12, t: int = 12) -> Any:
    found, order = [], rng.permutation(n)
    for k in range(t):
        if how == "passes" and k * b % n == 0:
            order = rng.permutation(n)
        which = {
            "passes": order[k * b % n :][:b],
            "poisson": np.flatnonzero(rng.random(n) < b / n),
            "fixed": rng.choice(n, b, replace=False),
            "whole": np.arange(n),
        }[how]
        found.append([str(i) for i in which])
    return found


@pytest.mark.parametrize(
    ("how", "pattern"),
    [("passes", "epochs"), ("poisson", "random"), ("fixed", "random"), ("whole", "whole")],
)
def test_patterns_of_batches_are_distinguished(how: str, pattern: str) -> None:
    """Of 50 seeds each; random ones look like passes with probability below 1e-4 by its limit."""
    found = [pattern_of(batches(how, np.random.default_rng(seed))) for seed in range(50)]
    assert found == [pattern] * 50


def test_short_and_equal_records_tell_nothing() -> None:
    assert pattern_of([["a", "b"]]) == "unknown"
    assert pattern_of([["a", "a"], ["a", "a"]]) == "unknown"
    assert pattern_of([["a"], ["b"], ["a"]]) == "unknown"  # by chance, or by passes of two
    assert pattern_of([["a", "b"], ["c", "d"], ["e"]]) == "unknown"  # one pass, or a large set
    assert pattern_of([["a", "b"], ["c"], ["d", "e", "f"]]) == "random"
