"""Programs that close, leave or lose what a recorder relies on: one line, and nothing is lost."""

import sys
from pathlib import Path

import pytest

from dpaudit.capture.recording import CaptureFolder
from dpaudit.capture.run import Options, capture
from dpaudit.errors import RunError

BEGINS = """
import os, signal, subprocess, sys, time
from dpaudit_recorder import tap
tap.send(0, 1, "w", 1.0)
"""
ENDS = """
tap.send(0, 1, "w", 2.0)
"""
WELL = {
    "closes its output": "sys.stdout.close(); os.close(2)",
    "closes all files": """
os.closerange(3, 200)
own = [open(os.path.join(sys.argv[1], name), "w") for name in "abcd"]  # of the same numbers
""",
    "forks": """
if os.fork() == 0:
    tap.send(1, 0, "v", 5.0)
    os._exit(0)
os.wait()
""",
    "changes its folder": "os.chdir('/')",
    "drops its environment": "os.environ.clear()",
}


def values(recording: CaptureFolder) -> list[float]:
    return [float(recording.content(event.tensors[0])) for event in recording.events]


@pytest.mark.parametrize("what", WELL)
def test_a_program_is_recorded_whatever_it_does(what: str, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    command = [sys.executable, "-c", BEGINS + WELL[what] + ENDS, str(tmp_path / "own")]
    recording = capture(command, tmp_path / "out", Options(seconds=60))
    assert sorted(values(recording)) == ([1, 2, 5] if what == "forks" else [1, 2])
    assert recording.unseen == ()
    assert [path.read_text() for path in (tmp_path / "own").iterdir() if path.stat().st_size] == []


DAEMON = """
pipe = os.pipe()
if os.fork():
    os.read(pipe[0], 1)
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
os.chdir("/")
os.closerange(3, pipe[0])
tap.send(0, 1, "w", 2.0)
os.write(pipe[1], b"x")
time.sleep(60)
"""
ELSEWHERE = """
subprocess.Popen(["sleep", "600"], env={}, process_group=0)
"""
ALONE = """
subprocess.run([sys.executable, "-I", "-c", "pass"])
subprocess.run([sys.executable, "-c", "pass"], env={})
"""
FULL = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
tap.send(0, 1, "w", list(map(float, range(1000))))
"""


@pytest.mark.parametrize(
    ("code", "expected", "said"),
    [
        (
            DAEMON,
            [1, 2],
            ["what passes by os.pipe", "1 process still ran when the command ended, and had to be"],
        ),
        (
            ELSEWHERE + ENDS,
            [1, 2],
            ["sleep is started with another environment", "1 process still ran"],
        ),
        (ALONE + ENDS, [1, 2], ["is started with -I, and is not", "with another environment"]),
        (FULL + ENDS, [1], ["File too large: what a process sent and drew after that is not"]),
    ],
    ids=["daemon", "elsewhere", "alone", "full"],
)
def test_what_is_not_recorded_is_named(
    code: str, expected: list[float], said: list[str], tmp_path: Path
) -> None:
    command = [sys.executable, "-c", BEGINS + code]
    recording = capture(command, tmp_path / "out", Options(seconds=60))
    assert values(recording) == expected
    assert len(recording.unseen) == len(said)
    for line, text in zip(recording.unseen, said, strict=True):
        assert text in line


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("os.kill(os.getpid(), 9)", "was ended by signal 9; its own output says why"),
        pytest.param(
            "time.sleep(60)",
            "still running after 2 seconds, and was ended",
            marks=pytest.mark.slow,
        ),
        (
            "raise ValueError('no such record')",
            "ended with exit code 1: ValueError: no such record",
        ),
    ],
    ids=["killed", "late", "failed"],
)
def test_what_was_recorded_before_the_end_is_kept(code: str, said: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(RunError) as error:
        capture([sys.executable, "-c", BEGINS + code], out, Options(seconds=2))
    assert str(error.value).endswith(f"{said}; what was recorded is kept: 1 messages in {out}")
    assert values(CaptureFolder(out)) == [1]
