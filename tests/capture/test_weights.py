"""Lines that send weights are distinguished from those that send updates.

Each of 20 seeds is decided rightly; the seeds are fixed, so that no test fails by chance.
"""

import sys
from pathlib import Path

import numpy as np
import pytest

from dpaudit.capture.draft import draft
from dpaudit.capture.run import Options, capture
from dpaudit.capture.weights import line_of
from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.recorded import DRAFT

PROGRAMS = Path(__file__).parent / "programs"
RING = ((0, (1, 2)), (1, (0, 2)), (2, (0, 1)))
SIZE, ROUNDS, RATE = 400, 6, 0.1


def rounds(seed: int, sends: str, in_step: float = 0.0, fresh: float = 0.0, start: float = 1.0):
    """What three agents send that average; records are drawn afresh, with a deviation of 1."""
    rng = np.random.default_rng(seed)
    x = [start * np.random.default_rng(99).normal(size=SIZE)] * 3
    optimum = rng.normal(size=(4, SIZE))
    for _ in range(ROUNDS):
        steps = [
            RATE * (x[i] - optimum[i] - optimum[3] + (1 + in_step) * rng.normal(size=SIZE))
            for i in range(3)
        ]
        sent = [x[i] - steps[i] if sends == "weights" else steps[i] for i in range(3)]
        sent = [message + fresh * rng.normal(size=SIZE) for message in sent]
        yield dict(zip(RING, sent, strict=True))
        average = sum(sent) / 3
        x = [average if sends == "weights" else x[i] - average for i in range(3)]


@pytest.mark.parametrize(
    "given",
    [{}, {"in_step": 5.0}, {"in_step": 20.0, "start": 0.0}, {"fresh": 0.3}],
    ids=["no noise", "noise in steps", "from zero", "noise on weights"],
)
def test_weights_continue_what_was_sent_before(given) -> None:
    lines = [line_of(list(rounds(seed, "weights", **given))) for seed in range(20)]
    assert all(line is not None and line.sends_weights for line in lines)


@pytest.mark.parametrize("given", [{}, {"in_step": 5.0}, {"fresh": 0.1}], ids=str)
def test_updates_are_new_in_every_round(given) -> None:
    lines = [line_of(list(rounds(seed, "updates", **given))) for seed in range(20)]
    assert not any(line is None or line.sends_weights for line in lines)


def test_too_little_says_nothing() -> None:
    few = list(rounds(0, "weights"))
    assert line_of(few[:2]) is None
    assert line_of([{key: content[:8] for key, content in one.items()} for one in few]) is None


@pytest.mark.parametrize("sends", ["weights", pytest.param("updates", marks=pytest.mark.slow)])
def test_a_draft_names_the_lines_that_send_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sends: str
) -> None:
    monkeypatch.chdir(PROGRAMS)
    command = [sys.executable, "local_steps.py", sends, "2", "0.5", "steps", "once"]
    recording = capture(command, tmp_path / "out", Options(seconds=60))
    text = draft(command, recording, Options())
    (recording.path / DRAFT).write_text(text)
    found = CapturedConfig.from_toml(recording.path / DRAFT).messages.weights
    assert found == (("weights",) if sends == "weights" else ())
    assert f"# {sends} sends {sends}" in text
