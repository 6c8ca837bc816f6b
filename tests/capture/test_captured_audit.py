"""Programs in one process, audited whole: a right one and planted faults."""

from math import inf
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dpaudit.accounting.families import gaussian_epsilon
from dpaudit.capture import short_runs
from dpaudit.capture.audit import run_captured
from dpaudit.commands.cli import app
from dpaudit.errors import DpauditError
from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.finding import Name, Role
from dpaudit.files.result import AuditResult
from dpaudit.files.verdict import Verdict
from dpaudit.progress import OnProgress
from dpaudit.training import checkpoints

PROGRAMS = Path(__file__).parent / "programs"
CLAIM = {"text": "a round", "mu": 1.0, "scope": "round"}


def audited(
    out: Path,
    fault: str,
    runs: int = 0,
    claim: dict[str, Any] = CLAIM,
    resume: bool = False,
    on_progress: OnProgress = lambda what, done, total: None,
    ignore: tuple[str, ...] = (),
    **record: Any,
) -> AuditResult:
    config = CapturedConfig.model_validate(
        {
            "program": {"command": ("python", "gossip.py", fault), "folder": PROGRAMS},
            "record": {"victims": (0, 1), "candidates": ("present", "negated"), **record},
            "messages": {"ignore": ignore},
            "certify": {"runs": runs},
            "claim": (claim,),
        }
    )
    return run_captured(config, out / fault, cores=1, resume=resume, on_progress=on_progress)


def mu_of(result: AuditResult) -> float | None:
    [measured] = [f for f in result.findings if f.role is Role.MEASURED]
    return measured.value(Name.LARGEST_MU_OF_A_ROUND)


def test_a_right_program_is_measured_at_its_claim(tmp_path: Path) -> None:
    result = audited(tmp_path, "none", runs=8, rounds=(1, 3))
    assert mu_of(result) == pytest.approx(1.0, abs=1e-3)
    assert result.verdict is Verdict.UNDERPOWERED
    assert "does not contradict it" in result.claims[0].reason
    assert (tmp_path / "none" / "report.html").exists()
    assert not (tmp_path / "none" / "worlds").exists()
    assert AuditResult.read(tmp_path / "none" / "audit.json").to_json() == result.to_json()


@pytest.mark.slow
def test_the_same_seed_gives_the_same_audit(tmp_path: Path) -> None:
    results = [audited(tmp_path / name, "none", runs=8, rounds=(1, 3)) for name in "ab"]
    timeless = [one.model_copy(update={"timing": {}}).to_json() for one in results]
    assert timeless[0] == timeless[1]


@pytest.mark.slow
def test_rounds_before_a_missed_message_count(tmp_path: Path) -> None:
    """Before round 1 nothing was sent; one link of a broadcast shows the whole of it."""
    config = CapturedConfig.model_validate(
        {
            "program": {"command": ("python", "gossip.py", "none"), "folder": PROGRAMS},
            "record": {
                "victims": (0,),
                "rounds": (1, 2),
                "candidates": ("present",),
                "sampling": "none",
            },
            "certify": {"runs": 0},
            "claim": ({"text": "the run", "mu": 0.5},),
            "threat_model": ({"name": "one link", "links": ((0, 1),)},),
        }
    )
    result = run_captured(config, tmp_path / "out", cores=1)
    [measured] = [f for f in result.findings if f.role is Role.MEASURED]
    assert result.verdict is Verdict.UNSUPPORTED
    low = measured.metrics[Name.EPSILON].low
    assert low == pytest.approx(gaussian_epsilon(1e-5, 1 / 1.001), rel=1e-6)
    assert any(note.startswith("rounds 2 count nothing") for note in measured.notes)


FAULTS = [
    ("halved", "what was measured of a record and the noise gives epsilon at least", 1.999, 2.001),
    (
        "one-link",
        '"bare" of round 1 from agent 0 to 2 moves with the record, and no noise',
        inf,
        inf,
    ),
    ("same-noise", "draws repeat an earlier one", 0.999, 1.001),
    ("clip-of-the-batch", "what was measured of a record and the noise gives", 5, 20),
    ("no-clip", "what was measured of a record and the noise gives", 8, 100),
    ("difference", '"twice" of round 1 from agent 0 to 2 moves with the record', inf, inf),
    ("reveals-too-much", "its size", 0.999, 1.001),
]


@pytest.mark.parametrize(
    ("fault", "said", "least", "most"),
    [
        fault if i < 1 else pytest.param(*fault, marks=pytest.mark.slow)
        for i, fault in enumerate(FAULTS)
    ],
    ids=[fault[0] for fault in FAULTS],
)
def test_a_fault_is_measured_and_named(
    tmp_path: Path, fault: str, said: str, least: float, most: float
) -> None:
    result = audited(tmp_path, fault)
    assert result.verdict is Verdict.UNSUPPORTED
    assert said in result.claims[0].reason
    assert least <= (mu_of(result) or 0) <= most


THREADS = """
import threading
import numpy as np
from dpaudit import tap

def agent(i):
    rng = np.random.default_rng(i)
    for _ in range(3):
        begin.wait()
        tap.batch(i, np.ones((4, 2)))
        tap.send(i, (i + 1) % 8, "x", tap.noise(i, "z", rng.normal(size=2), 1.0))

begin = threading.Barrier(8)
for one in [threading.Thread(target=agent, args=(i,)) for i in range(8)]:
    one.start()
"""


@pytest.mark.slow
def test_agents_may_be_threads(tmp_path: Path) -> None:
    """All that they send is one world's; the first to call have made a world each."""
    (tmp_path / "program.py").write_text(THREADS)
    config = CapturedConfig.model_validate(
        {
            "program": {"command": ("python", "program.py"), "folder": tmp_path},
            "record": {"candidates": ("present",), "rounds": (1, 3)},
            "certify": {"runs": 0},
            "claim": (CLAIM,),
        }
    )
    result = run_captured(config, tmp_path / "out", cores=1)
    assert mu_of(result) == 0
    assert result.graph.n_agents == 8


def test_a_diagnostic_message_is_left_out_and_named(tmp_path: Path, report) -> None:
    """The one that is bare: what it shows is not judged, and the report says so."""
    result = audited(tmp_path, "one-link", ignore=("bare",))
    assert mu_of(result) == pytest.approx(1.0, abs=1e-3)
    assert "Messages of bare were left out as diagnostics" in result.notes[1]
    assert "left out as diagnostics" in (tmp_path / "one-link" / "report.html").read_text()


@pytest.mark.slow
def test_replacing_a_record_moves_twice_as_far(tmp_path: Path) -> None:
    result = audited(tmp_path, "none", claim={**CLAIM, "adjacency": "replace-one"})
    assert mu_of(result) == pytest.approx(2.0, abs=1e-3)
    assert result.verdict is Verdict.UNSUPPORTED


@pytest.mark.slow
def test_a_program_that_seeds_nothing_is_seeded(tmp_path: Path) -> None:
    assert mu_of(audited(tmp_path, "unseeded")) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.slow
def test_an_interrupted_audit_goes_on_with_its_short_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "SECONDS", 0.0)
    monkeypatch.setattr(short_runs, "BLOCK", 5)
    whole = audited(tmp_path / "whole", "none", runs=20)

    def interrupt(what: str, done: int, total: int) -> None:
        if (what, done) == ("short runs", 12):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audited(tmp_path, "none", runs=20, on_progress=interrupt)
    said: list[tuple[str, int]] = []
    resumed = audited(
        tmp_path, "none", runs=20, resume=True, on_progress=lambda w, d, t: said.append((w, d))
    )
    assert said.index(("short runs", 11)) == said.index(("short runs", 2)) + 9  # at once
    timeless = [one.model_copy(update={"timing": {}}).to_json() for one in (whole, resumed)]
    assert timeless[0] == timeless[1]


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "refuted"), [("none", False), ("halved", True)])
def test_short_runs_refute_halved_noise_alone(tmp_path: Path, fault: str, refuted: bool) -> None:
    """Both seeds are fixed; a tight claim is refuted with probability 5% at most by another."""
    result = audited(tmp_path, fault, runs=250)
    [test] = [f for f in result.findings if f.role is Role.TEST]
    assert (result.verdict is Verdict.REFUTED) == refuted
    assert (test.metrics[Name.P_VALUE].value < 0.01) == refuted


@pytest.mark.parametrize(
    ("record", "said"),
    [
        pytest.param(
            {"victims": (7,)}, "record.victims: agent 7 sends nothing", marks=pytest.mark.slow
        ),
        ({"rounds": (9,)}, "record.rounds: 9; the program has 3 rounds"),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    tmp_path: Path, record: dict[str, Any], said: str
) -> None:
    with pytest.raises(DpauditError) as error:
        audited(tmp_path, "none", **record)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "import sys; print('no luck'); sys.exit(3)",
            "ended with status 3; it said last:\nno luck",
        ),
        pytest.param("x = 1", "no message seen", marks=pytest.mark.slow),
        ("import time; time.sleep(60)", "not done after 1 s (program.seconds)"),
        (
            "import os, torch\nfrom dpaudit import tap\n"
            "x = tap.batch(0, torch.ones(2, 2))\n"
            "tap.send(0, 1, 'x', x.sum() + int.from_bytes(os.urandom(2)))",
            '"x" of round 1 from agent 0 to 1 differs between runs that share every draw',
        ),
        pytest.param(
            "import torch\nfrom dpaudit import tap\ntap.send(0, 1, 'x', torch.ones(2))",
            "agent 0 takes no batch in round 1",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "from dpaudit import tap\ntap.batch(0, 'words')",
            "tap.batch: expected a tensor",
            marks=pytest.mark.slow,
        ),
        (
            "import os, torch\nfrom dpaudit import tap\n"
            "tap.batch(0, torch.ones(2, 2))\n"
            "tap.send(1, 0, 'x', torch.ones(2))\n"
            "if not os.fork():\n    tap.send(0, 1, 'x', torch.ones(2))\n    os._exit(0)\n"
            "os.wait()",
            "dpaudit.tap is called in a process that the program starts; expected a simulation in",
        ),
    ],
)
def test_a_program_that_fails_says_why(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "program.py").write_text(text)
    config = CapturedConfig.model_validate(
        {
            "program": {
                "command": ("python", "program.py"),
                "folder": tmp_path,
                "seconds": 1 if "sleep" in text else 60,
            },
            "claim": (CLAIM,),
        }
    )
    with pytest.raises(DpauditError) as error:
        run_captured(config, tmp_path / "out", cores=1)
    assert said in str(error.value)


@pytest.mark.slow
def test_a_check_runs_a_program_again_when_its_code_changes(
    tmp_path: Path,
) -> None:
    """Exit code 1 for halved noise; from the cache as long as no file of the program changes."""
    (tmp_path / "gossip.py").write_text((PROGRAMS / "gossip.py").read_text())
    (tmp_path / "captured.toml").write_text(
        '[program]\ncommand = ["python", "gossip.py", "halved"]\n'
        '[record]\ncandidates = ["present"]\n[certify]\nruns = 0\n'
        '[[claim]]\ntext = "a round"\nmu = 1.0\nscope = "round"\n'
    )
    (tmp_path / "claims.toml").write_text('[[check]]\nname = "gossip"\naudit = "captured.toml"\n')

    def checked() -> tuple[int, str]:
        summary = tmp_path / "summary.md"
        command = ["check", str(tmp_path / "claims.toml"), "--quiet", "--markdown", str(summary)]
        return CliRunner().invoke(app, command).exit_code, summary.read_text()

    code, said = checked()
    assert code == 1
    assert "what was measured of a record and the noise gives" in said
    assert "from the cache" not in said
    assert "from the cache" in checked()[1]
    (tmp_path / "gossip.py").write_text((PROGRAMS / "gossip.py").read_text() + "\n")
    assert "from the cache" not in checked()[1]


@pytest.mark.slow
def test_an_interrupted_audit_keeps_its_worlds(tmp_path: Path) -> None:
    """The program writes down that a run goes on: a resumed audit makes those that are left."""
    program = tmp_path / "program"
    program.mkdir()
    text, drawn = (PROGRAMS / "gossip.py").read_text(), "        drawn = sigma"
    assert drawn in text
    written = "        if (k, i) == (0, 0): open(__file__ + '.starts', 'a').write('1')\n"
    (program / "gossip.py").write_text(text.replace(drawn, written + drawn))
    config = CapturedConfig.model_validate(
        {
            "program": {"command": ("python", "gossip.py", "none"), "folder": program},
            "record": {"candidates": ("present", "negated")},
            "certify": {"runs": 0},
            "claim": (CLAIM,),
        }
    )

    def starts() -> int:
        return len((program / "gossip.py.starts").read_text())

    def interrupt(what: str, done: int, total: int) -> None:
        if (what, done) == ("worlds", 5):
            raise KeyboardInterrupt

    whole = run_captured(config, tmp_path / "whole", cores=1)
    all_runs = starts()
    with pytest.raises(KeyboardInterrupt):
        run_captured(config, tmp_path / "out", cores=1, on_progress=interrupt)
    resumed = run_captured(config, tmp_path / "out", cores=1, resume=True)
    assert starts() - all_runs <= all_runs + 1  # one may have been under way
    timeless = [one.model_copy(update={"timing": {}}).to_json() for one in (whole, resumed)]
    assert timeless[0] == timeless[1]
    assert not list((tmp_path / "out" / "checkpoints" / "worlds").glob("*"))
