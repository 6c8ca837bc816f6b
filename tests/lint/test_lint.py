"""Whatever lies in a folder is one line at most, and nothing of it is imported or run."""

import json
import os
from pathlib import Path

import pytest

from dpaudit.codes import entries
from dpaudit.files.hint import LintResult
from dpaudit.lint.lint import hints_of, lint
from dpaudit.lint.sources import MOST_BYTES, SourceFile

WRONG = entries()["DPA213"].example
DEEP = {
    "deep_parentheses.py": "(" * 5000 + ")" * 5000,
    "deep_lists.py": "noise = " + "[" * 90 + "]" * 90,
    "deep_sum.py": "noise = " + "+".join(["x"] * 20_000),
    "deep_attributes.py": "noise = x" + ".y" * 20_000,
    "deep_nots.py": "noise = " + "not " * 20_000 + "x",
}
OTHER = {
    "syntax.py": b"def noise(:\n",
    "python2.py": b"print 'noise'\n",
    "latin1.py": b"noise = '\xe9'\n",
    "nul.py": b"noise = 1\x00\n",
    "long_number.py": b"noise = " + b"9" * 10_000,
    "large.py": b"# noise\n" * (MOST_BYTES // 8 + 1),
    "no_json.ipynb": b"noise",
    "no_cells.ipynb": b'{"noise": 1}',
    "array.ipynb": b"[1]",
}


def of_folder(folder: Path, files: dict[str, bytes]) -> LintResult:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return lint([folder])


def test_what_cannot_be_read_is_one_line_among_the_rest(tmp_path: Path) -> None:
    found = of_folder(tmp_path, OTHER | {"train.py": WRONG.encode()})
    assert [hint.code for hint in found.hints] == ["DPA213"]
    assert {Path(one.path).name for one in found.unread} == {*OTHER}
    assert found.n_files == 1
    for one in found.unread:
        assert one.reason
        assert "\n" not in one.reason
        assert not one.is_asked_for


@pytest.mark.parametrize("name", DEEP)
def test_deep_nesting_ends_in_no_traceback(name: str) -> None:
    found = hints_of(SourceFile(name, DEEP[name], True))
    assert found == [] or found == "nested too deeply" or str(found).startswith("not Python")


def test_many_calls_within_calls_take_no_more_than_their_share() -> None:
    functions = [f"def f{i}(x):\n    return f{i + 1}(x) + f{i + 1}(x)" for i in range(60)]
    text = "\n".join([*functions, "def f60(x):\n    return x + np.random.normal(0, 1)"])
    assert hints_of(SourceFile("a.py", text, True)) == []


def test_a_function_that_calls_itself_is_read_once() -> None:
    assert hints_of(SourceFile("a.py", "def noise(x):\n    return noise(x) + noise(x)", True)) == []


def test_links_below_a_folder_are_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "package"
    folder.mkdir()
    (tmp_path / "outside.py").write_text(WRONG)
    (folder / "itself").symlink_to(folder)
    (folder / "linked.py").symlink_to(tmp_path / "outside.py")
    (folder / "lost.py").symlink_to(tmp_path / "absent.py")
    assert lint([folder]) == LintResult(0, ())


def test_a_link_to_itself_that_is_named_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.py").symlink_to("a.py")
    [one] = lint([tmp_path / "a.py"]).unread
    assert (one.code, one.is_asked_for) == ("DPA007", True)


def test_hidden_and_installed_folders_are_left_out(tmp_path: Path) -> None:
    for name in (".venv", "__pycache__", "site-packages"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(WRONG)
    assert lint([tmp_path]).n_files == 0


def test_a_pipe_that_is_named_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.py")
    [one] = lint([tmp_path / "train.py"]).unread
    assert (one.code, one.reason, one.is_asked_for) == ("DPA085", "not a regular file", True)


def test_nothing_of_a_file_is_run(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "train.py").write_text(f"open({str(ran)!r}, 'w')\nnoise = 1\nraise SystemExit\n")
    lint([tmp_path])
    assert not ran.exists()


def test_a_comment_keeps_a_hint_of_its_code_alone() -> None:
    def codes(comment: str) -> list[str]:
        line = WRONG.strip().split("\n")[-1]
        found = hints_of(SourceFile("a.py", WRONG.replace(line, line + comment), True))
        assert not isinstance(found, str)
        return [hint.code for hint in found]

    assert codes("  # dpaudit: ignore[DPA213] a test") == []
    assert codes("  # dpaudit: ignore[DPA201, DPA213]") == []
    assert codes("  # dpaudit: ignore[DPA201]") == ["DPA213"]
    assert codes("  # dpaudit: ignore") == ["DPA213"]


def test_a_hint_of_a_notebook_names_its_cell_and_line(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "source": "noise"},
        {"cell_type": "code", "source": "%%bash\necho (noise"},
        {
            "cell_type": "code",
            "source": ["!pip install x \\\n", "  noise\n", "%matplotlib\n", "x?\n"],
        },
        {"cell_type": "code", "source": WRONG.strip()},
    ]
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    [hint] = lint([path]).hints
    assert (hint.cell, hint.line) == (4, WRONG.strip().count("\n") + 1)
    assert hint.place == f"{path}:cell 4:6:12"


def test_hints_are_in_order_and_each_file_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "b.py").write_text(WRONG)
    (tmp_path / "a.py").write_text(WRONG)
    found = lint([tmp_path / "b.py", tmp_path, tmp_path / "b.py"])
    assert [Path(hint.path).name for hint in found.hints] == ["a.py", "b.py"]
    assert found.n_files == 2
