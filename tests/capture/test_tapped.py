"""dpaudit capture of programs that call the tap, and of programs that end badly."""

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpaudit.capture.run import Options, capture
from dpaudit.commands.cli import app
from dpaudit.errors import RunError
from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.recorded import DRAFT

PREMISES = Path(__file__).parent / "programs" / "premises.py"
TAPPED = """
import os, sys
import numpy as np
from dpaudit import tap
for k in range(3):
    for agent in range(2):
        tap.batch(agent, np.ones((2, 2)))
        noise = tap.noise(agent, "z", np.random.normal(size=2), 1.0)
        tap.send(agent, 1 - agent, "x", noise)
"""


def test_capture_records_a_program_that_calls_the_tap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its draft is one that the audit takes: of a simulation, whose noise tap.noise names."""
    monkeypatch.chdir(PREMISES.parent)
    out = tmp_path / "out"
    ended = CliRunner().invoke(
        app, ["capture", "--out", str(out), "--", sys.executable, PREMISES.name]
    )
    assert ended.exit_code == 0, ended.output
    assert "recorded 4 messages of 2 ranks, 2 rounds" in ended.output
    config = CapturedConfig.from_toml(out / DRAFT)
    assert (config.program.ranks, config.noise.sites) == (None, ())
    assert config.record.rounds == (1, 2)


WHOLE = """
rng = np.random.default_rng(1)
rng.integers(2**40), rng.integers(3, 9), np.random.randint(0, high=5)
import random
random.randrange(7), random.randint(2, 4), random.getrandbits(128)
"""


def test_the_ends_of_whole_numbers_are_recorded(tmp_path: Path) -> None:
    """They tell a peer that is chosen from a seed."""
    found = capture([sys.executable, "-c", TAPPED + WHOLE], tmp_path / "out", Options(seconds=60))
    ends = [d.parameters for d in found.draws if d.operator.endswith(("integers", "bits"))]
    assert ends == [
        (2.0**40, None), (3.0, 9.0), (0.0, 5.0), (7.0, None), (2.0, 4.0), (128.0,),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("tap.send('alice', 1, 'x', 1.0)", "tap.send: expected an agent's number, 0, 1, ...; got"),
        ("tap.noise(0, 'z', np.ones(2), [1, 1])", "tap.noise: expected one scale, 0 or more; got"),
    ],
)
def test_a_wrong_call_of_the_tap_has_its_own_code(tmp_path: Path, call: str, said: str) -> None:
    """Alone the program ends well, so that running it alone is no advice."""
    with pytest.raises(RunError, match=said) as error:
        recorded(tmp_path, call)
    assert error.value.code == "DPA061"


def recorded(tmp_path: Path, end: str) -> tuple[int, str | None]:
    """How many messages are kept of a program that ends so, and what is said about it."""
    command = [sys.executable, "-c", TAPPED + end]
    found = capture(command, tmp_path / "out", Options(seconds=60))
    return len(found.events), found.warning


@pytest.mark.parametrize(
    "end",
    [
        pytest.param("import atexit; atexit.register(os.abort)", marks=pytest.mark.slow),
        "class End:\n    def __del__(self, os=os): os.abort()\nend = End()",
    ],
    ids=["atexit", "destructor"],
)
def test_a_crash_at_exit_keeps_what_was_sent(tmp_path: Path, end: str) -> None:
    n, warning = recorded(tmp_path, end)
    assert n == 6
    assert warning is not None
    assert warning.endswith("was ended by signal 6 when all was sent; the recording is kept")


@pytest.mark.parametrize(
    "end",
    [
        "os.abort()",
        *(
            pytest.param(end, marks=pytest.mark.slow)
            for end in ("sys.exit(3)", "1 / 0", "os._exit(4)")
        ),
    ],
)
def test_what_a_program_sent_before_it_failed_is_kept(tmp_path: Path, end: str) -> None:
    with pytest.raises(RunError, match="ended"):
        recorded(tmp_path, end)
    assert (tmp_path / "out" / "events.jsonl").read_text().count("\n") > 0
    assert not (tmp_path / "out" / "captured.toml").exists()


@pytest.mark.parametrize(
    ("command", "transport", "why"),
    [
        (["-m", "gossip"], False, "expected python SCRIPT.py"),
        pytest.param(
            ["gossip.py"], True, "messages that a --transport adapter shows", marks=pytest.mark.slow
        ),
    ],
)
def test_a_draft_that_no_audit_can_run_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], transport: bool, why: str
) -> None:
    (tmp_path / "gossip.py").write_text(TAPPED)
    (tmp_path / "adapter.py").write_text("MODULE = 'none'\ndef hook(module, sent): pass\n")
    monkeypatch.chdir(tmp_path)
    given = ["--transport", "adapter.py"] if transport else []
    ended = CliRunner().invoke(
        app, ["capture", "--out", "out", *given, "--", sys.executable, *command]
    )
    assert ended.exit_code == 0, ended.output
    assert "draft of an audit, not written: " in ended.output
    assert why in ended.output
    assert not (tmp_path / "out" / DRAFT).exists()
