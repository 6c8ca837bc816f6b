"""Programs whose code is changed while an audit runs."""

from pathlib import Path

import pytest

from dpaudit.capture.audit import run_captured
from dpaudit.capture.file_times import unedited
from dpaudit.capture.program import KEPT
from dpaudit.errors import RunError
from dpaudit.files.captured_file import CapturedConfig

SCRIPT = """\
import numpy as np
from dpaudit_recorder import tap
for _ in range(2):
    x = tap.batch(0, np.ones((2, 3)) / 3)
    noise = tap.noise(0, "noise", np.random.normal(size=3), 1.0)
    tap.send(0, 1, "x", x.sum(0) + noise)
"""


def test_an_audit_of_code_that_is_changed_is_refused(tmp_path: Path) -> None:
    """Without that, the runs that read the new lines would show a record without noise."""
    script, out = tmp_path / "program" / "script.py", tmp_path / "out"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    config = CapturedConfig.model_validate(
        {
            "program": {"command": ("python", "script.py"), "folder": script.parent},
            "record": {"victims": (0,), "rounds": (1,)},
            "certify": {"runs": 0},
            "claim": ({"text": "a round", "mu": 1.0, "scope": "round"},),
        }
    )

    def edit(what: str, done: int, total: int) -> None:
        if what == "worlds" and done == 1:
            script.write_text(f"# edited\n{SCRIPT}")

    with pytest.raises(RunError, match=r"script\.py was changed while the audit ran") as refused:
        run_captured(config, out, 1, on_progress=edit)
    assert refused.value.code == "DPA062"
    assert not [*(out / KEPT).glob("*")]  # --resume would go on with them


def test_copies_that_a_program_makes_of_its_code_are_no_edits(tmp_path: Path) -> None:
    code, gone = tmp_path / "script.py", tmp_path / "gone.py"
    code.write_text("1")
    gone.write_text("1")
    with unedited(tmp_path, list):
        code.write_text("1")
        gone.unlink()
        (tmp_path / "copy.py").write_text("2")


def test_an_edit_comes_before_an_error_that_follows_from_it(tmp_path: Path) -> None:
    code = tmp_path / "script.py"
    code.write_text("1")
    forgotten: list[int] = []

    def edit_and_fail() -> None:
        with unedited(tmp_path, lambda: forgotten.append(1)):
            code.write_text("2")
            raise KeyError("0/0/script.py:1")

    with pytest.raises(RunError, match="was changed"):
        edit_and_fail()
    assert forgotten == [1]
    with pytest.raises(KeyError), unedited(tmp_path, list):
        raise KeyError("0/0/script.py:1")
