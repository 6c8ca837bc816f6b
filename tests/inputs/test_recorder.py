"""What a run directory knows of the files that its run read, and when nothing is recorded."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dpaudit.errors import RunError
from dpaudit.inputs.inputs import LOG, Inputs
from dpaudit.inputs.recorder import VARIABLE, recording
from dpaudit.training.run_directory import RunDirectory


def read_in_a_run(out: Path, *files: Path, resume: bool = False) -> None:
    with recording(), RunDirectory(out).begun("", {"seed": 1}, resume):
        for file in files:
            file.read_text()


def test_a_run_whose_input_changed_is_not_resumed(tmp_path: Path) -> None:
    out, file = tmp_path / "run", tmp_path / "settings.json"
    file.write_text("1")
    read_in_a_run(out, file)
    read_in_a_run(out, resume=True)
    file.write_text("2")
    with pytest.raises(RunError, match=r"cannot resume: .*settings\.json changed"):
        read_in_a_run(out, resume=True)
    read_in_a_run(out)  # anew
    file.write_text("3")
    read_in_a_run(out, resume=True)


@pytest.mark.slow
def test_what_a_resumed_run_reads_is_added(tmp_path: Path) -> None:
    out, files = tmp_path / "run", [tmp_path / "a", tmp_path / "b"]
    for file in files:
        file.write_text("1")
    read_in_a_run(out, files[0])
    read_in_a_run(out, files[1], resume=True)
    for file in files:
        file.write_text("2")
        assert Inputs.of_log(out).doubt() == f"{file} changed"
        file.write_text("1")
    assert Inputs.of_log(out).doubt() is None


def test_a_damaged_log_is_no_list_of_inputs(tmp_path: Path) -> None:
    read_in_a_run(tmp_path / "run")
    with (tmp_path / "run" / LOG).open("a") as log:
        log.write('["read", "half')
    with pytest.raises(RunError, match=r"cannot resume: its inputs\.log is damaged"):
        read_in_a_run(tmp_path / "run", resume=True)


def test_nothing_is_recorded_outside_a_run(tmp_path: Path) -> None:
    before = dict(os.environ)
    with recording(), RunDirectory(tmp_path / "run").begun("", {}, resume=False):
        assert VARIABLE in os.environ
    assert dict(os.environ) == before
    (tmp_path / "file").write_text("1")
    (tmp_path / "file").read_text()
    assert str(tmp_path / "file") not in (tmp_path / "run" / LOG).read_text()


def test_children_keep_their_own_start_and_module_path(tmp_path: Path) -> None:
    """Also those whose environment has a sitecustomize, which runs as well."""
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.here = True\n")
    code = "import sys; print(hasattr(sys, 'here'), [p for p in sys.path if 'inside' in p])"
    environment = {"PYTHONPATH": str(tmp_path)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", environment["PYTHONPATH"])
        with recording(), RunDirectory(tmp_path / "run").begun("", {}, resume=False):
            said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert said.stdout == "True []\n", said.stderr
    found = Inputs.of_log(tmp_path / "run")
    assert str(tmp_path / "sitecustomize.py") in {one.path for one in found.inputs}
