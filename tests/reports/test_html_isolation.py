"""The HTML report loads nothing, runs its own script alone, escapes all text, reads its run only."""

import base64
import hashlib
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dpaudit.errors import DpauditError
from dpaudit.files.finding import Metric, Role
from dpaudit.files.result import AuditResult
from dpaudit.reports.comparison import render_comparison
from dpaudit.reports.html import TEMPLATES, render, script_hash
from dpaudit.reports.reconstructions import embedded
from tests.reports.pages import (
    GOLDEN,
    HOSTILE,
    Page,
    hostile,
    png,
    small_finding,
    visible,
    with_findings,
)


def test_an_artifact_that_is_no_png_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"<svg onload='alert(1)'></svg>" * 9)
    (tmp_path / "b.png").write_bytes(png(0)[:20])
    (tmp_path / "folder").mkdir()
    names = ["a.png", "b.png", "folder", "nul\0byte", "c.png"]
    found = {name: embedded(name, tmp_path) for name in names}
    problems = ["not a PNG image", "not a PNG image", "missing", "missing", "missing"]
    assert [picture.problem for picture in found.values()] == problems
    assert not any(picture.uri for picture in found.values())


def test_an_artifact_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "a.png")
    writer = threading.Thread(target=pipe.write_bytes, args=(png(0),), daemon=True)
    writer.start()
    assert embedded("a.png", tmp_path).problem == "missing"
    pipe.read_bytes()
    writer.join()


@pytest.mark.parametrize(
    "path",
    ["../secret.png", "a/../../secret.png", "/etc/secret.png", "..\\secret.png", "C:\\secret.png"],
)
def test_an_artifact_outside_the_run_directory_is_refused(
    golden: AuditResult, tmp_path: Path, path: str
) -> None:
    (tmp_path / "secret.png").write_bytes(png(0))
    run = tmp_path / "run"
    run.mkdir()
    result = with_findings(golden, small_finding(artifacts={"images": path}))
    with pytest.raises(DpauditError, match=r"outside the run directory"):
        render(result, run)
    with pytest.raises(DpauditError, match=r"outside the run directory"):
        render_comparison([("a", result, run)])


def test_a_link_out_of_the_run_directory_is_refused(golden: AuditResult, tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(png(0))
    run = tmp_path / "run"
    run.mkdir()
    (run / "innocent.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(DpauditError, match=r"innocent\.png"):
        render(with_findings(golden, small_finding(artifacts={"truth": "innocent.png"})), run)


@pytest.mark.slow
def test_the_page_is_the_same_to_the_byte_in_another_process(
    html: str, run_directory: Path
) -> None:
    program = (
        "import sys; from pathlib import Path; from dpaudit.files.result import AuditResult; "
        "from dpaudit.reports.html import render; import matplotlib; "
        "heavy = {'torch', 'scipy', 'pandas', 'seaborn', 'matplotlib.pyplot'} & set(sys.modules); "
        "assert not heavy, heavy; matplotlib.rcParams['axes.linewidth'] = 9; "
        "page = render(AuditResult.read(Path(sys.argv[1])), Path(sys.argv[2])); "
        "sys.stdout.buffer.write(page.encode())"
    )
    command = [sys.executable, "-c", program, str(GOLDEN), str(run_directory)]
    done = subprocess.run(
        command, capture_output=True, check=False, env=os.environ | {"PYTHONHASHSEED": "5"}
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode() == html


def test_nothing_is_loaded_and_no_script_but_ours_can_run(
    html: str, comparison: str, leaderboard: str
) -> None:
    for text in (html, comparison, leaderboard):
        page = Page(text)
        assert "http://" not in text
        assert "https://" not in text
        for element in page.root.every():
            assert element.tag not in {"iframe", "object", "embed", "base", "form"}
            assert not any(name.startswith("on") for name in element.attributes)
            for name in ("src", "href", "xlink:href", "srcset", "data", "poster"):
                target = element.attributes.get(name, "#")
                assert target.startswith(("#", "data:")), (element.tag, target)
        style = "".join(e.text() for e in page.root.every("style"))
        assert "@import" not in style
        assert "url(" not in style
        policy = next(e for e in page.root.every("meta") if "http-equiv" in e.attributes)
        (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert policy.attributes["content"] == (
            f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
            "form-action 'none'"
        )


def test_ids_are_unique_and_what_refers_to_one_finds_it(
    html: str, comparison: str, leaderboard: str
) -> None:
    for text in (html, comparison, leaderboard):
        page = Page(text)
        ids = [e.attributes["id"] for e in page.root.every() if "id" in e.attributes]
        assert len(ids) == len(set(ids))
        used = {
            reference
            for e in page.root.every()
            for name, value in e.attributes.items()
            for reference in (
                [value[1:]] * (name == "href" and value.startswith("#"))
                + value.split() * (name == "aria-labelledby")
                + re.findall(r"url\(#([^)]+)\)", value)
            )
        }
        assert used <= set(ids)


def scripts(text: str) -> list[str]:
    """What a browser would take for a script, however it is written."""
    return [part.partition("</script>")[0].partition(">")[2] for part in text.split("<script")[1:]]


def test_the_script_writes_no_markup_and_asks_for_nothing() -> None:
    script = (TEMPLATES / "audit.js").read_text()
    assert script.isascii()
    for word in (
        "innerHTML", "outerHTML", "insertAdjacentHTML", "eval", "Function(", "document.write",
        "fetch", "XMLHttpRequest", "import", "WebSocket", "sendBeacon", "localStorage", "</",
    ):  # fmt: skip
        assert word not in script, word
    assert script_hash("alert('1')\n") != script_hash("alert('1')")


def test_hostile_text_stays_text(few: AuditResult, tmp_path: Path) -> None:
    result = AuditResult.model_validate(hostile(few.model_dump(mode="json")))
    for text in (render(result, tmp_path), render_comparison([(HOSTILE, result, tmp_path)])):
        page = Page(text)
        assert scripts(text) == [(TEMPLATES / "audit.js").read_text()]
        assert len(list(page.root.every("script"))) == 1
        assert not any(name.startswith("on") for e in page.root.every() for name in e.attributes)
        assert " ".join(HOSTILE.split()) in visible(page)


def test_hostile_keys_and_paths_stay_text(golden: AuditResult, tmp_path: Path) -> None:
    finding = small_finding(
        role=Role.NOISE,
        kind="control",
        metrics={HOSTILE: Metric(value=1.0)},
        artifacts={HOSTILE: "<b>.png"},
    )
    changes = {"config": {HOSTILE: HOSTILE}, "timing": {HOSTILE: 1.0}}
    utility = {"<i>other": golden.utility["defense"]}
    text = render(with_findings(golden, finding, utility=utility, **changes), tmp_path)
    page = Page(text)
    assert scripts(text) == [(TEMPLATES / "audit.js").read_text()]
    assert list(page.root.every("b")) == list(page.root.every("i")) == []
    assert "<b>.png" in visible(page)
