"""Whatever text a file holds, every output keeps its lines, its markup and its commands.

A hostile string is planted in each text of an audit file, a claims file and an audit.json, alone
and in all of them together, and everything that audit, check and report leave is read.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

from dpaudit.commands.catalogue import Catalogue
from dpaudit.commands.cli import app
from dpaudit.errors import DpauditError
from dpaudit.files.result import AuditResult
from tests.said import without_help
from tests.some_fast import fast_if

ROOT = Path(__file__).parents[2]
STUB = ROOT / "tests" / "material" / "stub_check.py"
GOLDEN = json.loads(AuditResult.read(ROOT / "tests" / "golden" / "audit.json").to_json())
HOSTILE = (
    "x\x1b[2J\x1b]0;t\x07\x9b31m\x7f\r\n::error file=a::forged\nverdict: not refuted\n##[error]y "
    "##vso[z]\u202e\u2066\u200f\u061c\u200b\u2028::warning::b\u2029\u2800\ufeff"
    "</p><script>alert(1)</script><b>\"']]>&amp;|`[a](https://example.org) $\\frac{ %0A"
)
REFUSED = ("a\x00b", "a\ud800b")  # no reader of a file takes them
Place = tuple[str | int, ...]


def texts(content: Any, place: Place = ()) -> Iterator[Place]:
    """Where text is; of a list all entries, of a table of names the first."""
    if isinstance(content, dict):
        for key, value in content.items():
            yield from texts(value, (*place, key))
    elif isinstance(content, list):
        for i, value in enumerate(content):
            yield from texts(value, (*place, i))
    elif isinstance(content, str):
        yield place


def planted(content: Any, place: Place, text: str) -> Any:
    """A copy with another text in one place."""
    if not place:
        return text
    copy = dict(content) if isinstance(content, dict) else list(content)
    copy[place[0]] = planted(content[place[0]], place[1:], text)
    return copy


def is_read(content: Any, path: Path) -> bool:
    path.write_text(json.dumps(content))
    try:
        AuditResult.read(path)
    except DpauditError:
        return False
    return True


def kinds_of_place(content: Any) -> list[list[Place]]:
    """The places of each kind: entries of a list are alike."""
    kinds = defaultdict[tuple[Any, ...], list[Place]](list)
    for at in texts(content):
        kinds[tuple("*" if isinstance(part, int) else part for part in at)].append(at)
    return list(kinds.values())


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory whose audit.json has the string in every text that may be any text."""
    folder = tmp_path_factory.mktemp("hostile")
    content = GOLDEN
    for places in kinds_of_place(GOLDEN):
        changed = content
        for place in places:
            changed = planted(changed, place, HOSTILE)
        content = changed if is_read(changed, folder / "audit.json") else content
    for finding in content["findings"]:
        finding["metrics"] = {**finding["metrics"], HOSTILE: {"value": 1.0}}
        finding["artifacts"] = {"images": "missing.png", HOSTILE: "missing.png"}
    content["calibrated"] = {HOSTILE: HOSTILE}
    content["config"][HOSTILE] = HOSTILE
    content["timing"] = {HOSTILE: 1.0}
    assert is_read(content, folder / "audit.json")
    assert (folder / "audit.json").read_text().count("alert(1)") > 50
    return folder


def assert_lines_of_ours(text: str) -> None:
    for line in text.split("\n"):
        assert line.isprintable(), line
        assert not line.lstrip().startswith("::"), line
        assert not re.search(r"##\w*\[", line), line
        assert not line.startswith("verdict: not refuted"), line


class Page(HTMLParser):
    """The elements of a page; text is what stands between them."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not [name for name, _ in attrs if name.startswith("on")]


def assert_page_of_ours(text: str, scripts: int) -> None:
    assert all(line.isprintable() for line in text.split("\n"))
    page = Page()
    page.feed(text)
    assert page.tags.count("script") == scripts
    assert "alert(1)" in text


def invoke(*arguments: str) -> Result:
    found = CliRunner().invoke(app, list(arguments))
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exc_info
    return found


def test_report_of_a_hostile_audit_json_is_a_page_of_ours(hostile: Path, tmp_path: Path) -> None:
    one, several = tmp_path / "one.html", tmp_path / "several.html"
    other = shutil.copytree(hostile, tmp_path / "other")
    for out, runs in ((one, [hostile]), (several, [hostile, other])):
        found = invoke("report", *map(str, runs), "--out", str(out))
        assert found.exit_code == 0, found.output
        assert_lines_of_ours(found.output)
        assert_page_of_ours(out.read_text(), scripts=1)


@pytest.mark.parametrize(
    "place", [at[-1] for at in kinds_of_place(GOLDEN)], ids=lambda at: ".".join(map(str, at))
)
@pytest.mark.parametrize("text", [HOSTILE, *REFUSED], ids=["hostile", "NUL", "surrogate"])
def test_an_audit_json_that_is_refused_is_so_in_lines_of_ours(
    place: Place, text: str, tmp_path: Path
) -> None:
    if is_read(planted(GOLDEN, place, text), tmp_path / "audit.json"):
        assert text == HOSTILE
        return
    found = invoke("report", str(tmp_path))
    assert found.exit_code == 2
    assert without_help(found.stderr).startswith("error: ")
    assert_lines_of_ours(found.output)


@pytest.mark.parametrize("as_json", [False, True])
def test_audit_prints_a_hostile_result_in_lines_of_ours(
    hostile: Path, as_json: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    result = AuditResult.read(hostile / "audit.json")
    monkeypatch.setattr("dpaudit.capture.audit.run_audit_of", lambda *_, **__: result)
    monkeypatch.chdir(tmp_path)
    assert invoke("init").exit_code == 0
    found = invoke("audit", "audit.toml", *(["--json"] if as_json else []))
    assert found.exit_code == 1
    assert "alert(1)" in found.stdout
    assert_lines_of_ours(found.output)
    if as_json:
        assert json.loads(found.stdout) == json.loads(result.to_json())
    else:
        assert sum(line.startswith("verdict: ") for line in found.stdout.split("\n")) == 1
    assert_page_of_ours(result._repr_html_(), scripts=0)


def quoted(text: str) -> str:
    """A basic string of TOML."""
    return json.dumps(text).replace("\x7f", "\\u007f")


AUDIT_TEXTS = re.findall(
    r'^(?:\w+ = )?.*?(".*?")', (ROOT / "tests/example_project/audit.toml").read_text(), re.MULTILINE
)


@pytest.mark.parametrize(
    "text",
    [HOSTILE, *(pytest.param(text, marks=pytest.mark.slow) for text in REFUSED)],
    ids=["hostile", "NUL", "surrogate"],
)
@pytest.mark.parametrize("old", AUDIT_TEXTS)
def test_a_hostile_audit_file_is_refused_or_accepted(
    old: str, text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    result = AuditResult.model_validate(GOLDEN)
    monkeypatch.setattr("dpaudit.capture.audit.run_audit_of", lambda *_, **__: result)
    monkeypatch.syspath_prepend(ROOT / "tests" / "example_project")
    path = tmp_path / "audit.toml"
    path.write_text(
        (ROOT / "tests/example_project/audit.toml").read_text().replace(old, quoted(text))
    )
    found = invoke("audit", str(path), "--out", str(tmp_path / "run"))
    assert found.exit_code == (1 if not without_help(found.stderr) else 2), found.output
    assert_lines_of_ours(found.output)


CLAIMS = """\
[[check]]
name = NAME
audit = { defense = { name = DEFENSE }, seed = 1 }

[[check.threshold]]
metric = METRIC
at_most = 0.1
attack = ATTACK
"""
ORDINARY = {"NAME": "first", "DEFENSE": "dpdl", "METRIC": "ssim", "ATTACK": "attack[1]"}


def check(folder: Path, leaves: Path, **texts: str) -> subprocess.CompletedProcess[str]:
    content = CLAIMS
    for name, text in {**ORDINARY, **texts}.items():
        content = content.replace(name, quoted(text))
    (folder / "claims.toml").write_text(content)
    outputs = ["--junit", "j.xml", "--sarif", "s.sarif", "--markdown", "m.md"]
    return subprocess.run(
        [sys.executable, str(STUB), "check", "claims.toml", *outputs],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "GITHUB_ACTIONS": "true", "STUB_LEAVES": str(leaves / "audit.json")},
    )


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ordinary")
    (folder / "audit.json").write_text(json.dumps(GOLDEN))
    return folder


def assert_outputs_of_ours(folder: Path, done: subprocess.CompletedProcess[str]) -> None:
    commands = [line for line in done.stdout.split("\n") if line.startswith("::")]
    claims = re.compile(r"::(error|warning) file=claims\.toml,line=\d+,title=[^:,]*::")
    assert all(claims.match(line) and line.isprintable() for line in commands)
    others = (line for line in done.stdout.split("\n") if line not in commands)
    assert_lines_of_ours("\n".join(others))
    assert_lines_of_ours(done.stderr)
    root = ElementTree.parse(folder / "j.xml").getroot()
    values = [v for e in root.iter() for v in (*e.attrib.values(), (e.text or "").strip())]
    assert all(value.isprintable() for value in values)
    if done.returncode == 2:
        return
    for result in json.loads((folder / "s.sarif").read_text())["runs"][0]["results"]:
        said = [result["message"]["text"], *result["properties"].values()]
        assert all(value.isprintable() for value in said)
        assert "](" not in result["message"]["text"]
    summary = (folder / "m.md").read_text()
    assert all(line.isprintable() for line in summary.split("\n"))
    assert "<" not in summary
    assert not re.search(r"(?<!\\)\]\(http", summary)


def test_check_of_a_hostile_audit_json_leaves_outputs_of_ours(
    hostile: Path, tmp_path: Path
) -> None:
    done = check(tmp_path, hostile, NAME=HOSTILE, ATTACK=HOSTILE)
    assert done.returncode == 1, done.stderr
    assert "::error file=claims.toml" in done.stdout
    assert (tmp_path / "j.xml").read_text().count("alert(1)") > 5
    assert_outputs_of_ours(tmp_path, done)


@pytest.mark.parametrize("field", fast_if("NAME".__eq__, ORDINARY))
def test_check_of_a_hostile_claims_file_leaves_outputs_of_ours(
    field: str, ordinary: Path, tmp_path: Path
) -> None:
    done = check(tmp_path, ordinary, **{field: HOSTILE})
    assert done.returncode in (1, 2)
    assert field == "DEFENSE" or "x\\x1b[2J" in done.stdout + without_help(done.stderr)
    assert_outputs_of_ours(tmp_path, done)


def test_what_is_listed_is_in_lines_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names, docstrings and errors of plug-ins of other packages."""
    found = Catalogue([{"name": HOSTILE, "does": HOSTILE}], [HOSTILE])
    monkeypatch.setattr("dpaudit.commands.catalogue.catalogue", lambda kind: found)
    for arguments in (["list", "attacks"], ["list", "attacks", "--json"]):
        done = invoke(*arguments)
        assert done.exit_code == 0
        assert "alert(1)" in done.stdout
        assert "alert(1)" in done.stderr
        assert_lines_of_ours(done.output)
    assert json.loads(done.stdout)[0]["name"] == HOSTILE


@pytest.mark.slow
def test_a_bug_keeps_its_trace_in_a_file_and_refutes_nothing() -> None:
    code = (
        "import sys, warnings\n"
        "import dpaudit.commands.catalogue as there\n"
        "from dpaudit.commands.cli import main\n"
        "text = sys.argv[1]\n"
        "def catalogue(kind):\n"
        "    warnings.warn(text)\n"
        "    raise ValueError(text)\n"
        "there.catalogue = catalogue\n"
        "sys.argv[1:] = ['list', 'attacks']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code, HOSTILE], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "warning: " in done.stderr
    assert "; traceback: " in done.stderr
    assert "ValueError: x\\x1b[2J" in done.stderr
    assert all(line.isprintable() for line in without_help(done.stderr).split("\n"))
    assert not any(line.lstrip().startswith("::") for line in without_help(done.stderr).split("\n"))


def test_a_terminal_that_lacks_a_character_gets_its_escape() -> None:
    code = "from dpaudit.commands.cli import main; from dpaudit.commands.terminal import say\n"
    code += "try:\n    main()\nfinally:\n    say('\\u03b5')\n"
    done = subprocess.run(
        [sys.executable, "-c", code, "--version"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\\u03b5\n")
