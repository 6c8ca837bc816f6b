"""dpaudit capture: the files that it leaves, what it says, and with what it exits."""

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpaudit.commands.cli import app
from tests.said import without_help

ADAPTER = """
MODULE = "courier"

def hook(courier, sent):
    own = courier.deliver
    def deliver(source, to, parcel):
        sent(source, [to], [parcel])
        return own(source, to, parcel)
    courier.deliver = deliver
"""


def test_a_capture_leaves_its_files_and_the_programs_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "adapter.py").write_text(ADAPTER)
    (tmp_path / "courier.py").write_text("def deliver(source, to, parcel): print('to', to)\n")
    (tmp_path / "play.py").write_text(
        "import courier\nfor k in range(3):\n    courier.deliver(1, 0, bytes([k]))\n"
    )
    options = ("--out", "out", "--transport", "adapter.py", "--", sys.executable, "play.py")
    done = CliRunner().invoke(app, ["capture", *options])
    assert done.exit_code == 0, done.stderr
    assert (done.stdout, capfd.readouterr().out) == ("", "to 0\n" * 3)  # the program's own
    assert "recorded 3 messages of 2 ranks, 3 rounds: out/capture.html" in done.stderr
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"events.jsonl", "draws.jsonl", "batches.jsonl", "transcript", "capture.html"}
    assert "draft of an audit, not written: an audit does not see" in done.stderr
    (tmp_path / "out" / "captured.toml").write_text("# edited\n")
    again = CliRunner().invoke(app, ["capture", *options])
    assert "kept as it was" in again.stderr
    assert (tmp_path / "out" / "captured.toml").read_text() == "# edited\n"


def test_what_cannot_be_is_one_line_and_exit_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for options, said in (
        (["--seconds", "0", "--", "true"], "--seconds: expected more than 0, got 0"),
        (["--max-bytes", "lots", "--", "true"], '--max-bytes: "lots" is no size'),
        (["--", "no-such-program"], "no-such-program: cannot be started"),
    ):
        done = CliRunner().invoke(app, ["capture", "--out", "out", *options])
        assert done.exit_code == 2
        assert done.stdout == ""
        (line,) = without_help(done.stderr).splitlines()
        assert line.startswith(f"error: {said}")
