"""The example notebook runs, with its progress, and progress needs no ipywidgets."""

import json
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from dpaudit.commands import api, running
from dpaudit.commands.running import in_notebook, notebook_progress

EXAMPLE = Path(__file__).parents[2] / "examples" / "audit-in-a-notebook.ipynb"
HOSTILE = "<script>alert(1)</script>\n"


def test_the_example_is_small_and_has_no_outputs() -> None:
    cells = json.loads(EXAMPLE.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert EXAMPLE.stat().st_size < 10_000


@pytest.mark.slow
def test_the_cells_of_the_example_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_report
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for cell in nbformat.read(EXAMPLE, 4).cells:
        if cell.cell_type == "code":
            exec(compile(cell.source, EXAMPLE.name, "exec"), names)
    assert names["result"].verdict == "unsupported"
    assert "false positive rate" in names["curve"].frame
    assert (tmp_path / "trade-off.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.slow
def test_the_example_runs_without_ipywidgets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    book = nbformat.read(EXAMPLE, 4)
    [code, *_] = [cell for cell in book.cells if cell.cell_type == "code"]
    code.source = f"import sys\nsys.modules['ipywidgets'] = None\n{code.source}"
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(book, timeout=300, kernel_name="python3", resources=where).execute()
    outputs = [out for cell in book.cells for out in cell.get("outputs", [])]
    assert {out.output_type for out in outputs} == {"display_data", "execute_result"}  # no stderr
    progress, shown, claims, _, names, curve, frame = [out.data for out in outputs]
    assert progress["text/plain"].endswith(": done")
    assert "<b>unsupported</b>" in shown["text/html"]
    assert "<svg" in shown["text/html"]
    assert "what the noise is for" in claims["text/html"]
    assert "'trade-off'" in names["text/plain"]
    assert curve["image/svg+xml"].startswith("<?xml")
    assert "false positive rate" in frame["text/html"]
    assert (tmp_path / "trade-off.pdf").read_bytes().startswith(b"%PDF")


class Place:
    """Where a notebook would show a line."""

    def __init__(self) -> None:
        self.lines: list[dict[str, str]] = []

    def update(self, data: dict[str, str], raw: bool) -> None:
        assert raw
        self.lines.append(data)


def test_progress_is_a_line_in_its_place_at_most_twice_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place, now = Place(), [0.0]
    monkeypatch.setattr("IPython.display.display", lambda data, raw, display_id: place)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with notebook_progress(lambda: now[0]) as on_progress:
        for step in range(10):
            now[0] += 0.125
            on_progress("training", step, 100)
    began = [line["text/plain"].split(":")[0] for line in place.lines]
    assert began == ["after 0 s", "after 1 s", "after 1 s"]
    assert place.lines[-1]["text/plain"] == "after 1 s: done"


def test_what_is_running_stays_text(monkeypatch: pytest.MonkeyPatch) -> None:
    place, now = Place(), [0.0]
    monkeypatch.setattr("IPython.display.display", lambda data, raw, display_id: place)
    with notebook_progress(lambda: now[0]) as on_progress:
        now[0] = 1.0
        on_progress(HOSTILE, 0, 1)
    assert "<script" not in place.lines[0]["text/html"]
    assert "\n" not in place.lines[0]["text/plain"]


def test_a_script_is_no_notebook_and_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert not in_notebook()
    with api._reporting(None) as on_progress:
        on_progress("training", 1, 2)
    assert capsys.readouterr() == ("", "")


def test_a_callers_own_progress_takes_the_place_of_the_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(api, "in_notebook", lambda: True)
    monkeypatch.setattr(running, "notebook_progress", None)
    told: list[tuple[str, int, int]] = []
    with api._reporting(lambda *said: told.append(said)) as on_progress:
        on_progress("training", 1, 2)
    assert told == [("training", 1, 2)]
