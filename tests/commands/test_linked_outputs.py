"""No output follows a link of the working folder, as a repository may hold one."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpaudit.commands.cli import app
from dpaudit.errors import RunError
from dpaudit.files.atomic_files import refuse_links, write_whole
from dpaudit.training.run_directory import RunDirectory
from tests.check.stub_audits import CLAIMS
from tests.said import without_help
from tests.small_audits import digits_audit

REPOSITORY = Path(__file__).parents[2]
GOLDEN = REPOSITORY / "tests" / "golden" / "audit.json"
COMMANDS = {
    "junit": "check claims.toml --junit linked/check.xml",
    "junit below": "check claims.toml --junit linked/deep/check.xml",
    "junit by its path": "check claims.toml --junit {here}/linked/check.xml",
    "junit the long way": "check claims.toml --junit real/../linked/check.xml",
    "the file itself": "check claims.toml --junit file.xml",
    "sarif": "check claims.toml --sarif linked/check.sarif",
    "markdown": "check claims.toml --markdown linked/check.md",
    "baseline": "check claims.toml --update-baseline --baseline linked/baseline.json",
    "cache": "check claims.toml --cache linked",
    "audit": "audit audit.toml --out linked/run",
    "the run directory itself": "audit audit.toml --out linked",
    "capture": "capture --out linked/capture -- true",
    "report": "report run --out linked/report.html",
    "figures": "report run --figures linked",
    "tables": "report run --tables linked",
    "init": "init --out linked/audit.toml",
    "list": "list defenses --markdown linked/page.md",
    "benchmark": "benchmark benchmark.toml --out linked/cells",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a link to what no output may touch."""
    secret, here = tmp_path / "secret", tmp_path / "here"
    for folder in (secret / "deep", here / "real", here / "run", here / "code"):
        folder.mkdir(parents=True)
    (here / "linked").symlink_to(secret)
    (secret / "check.xml").write_text("mine")
    (here / "file.xml").symlink_to(secret / "check.xml")
    (here / "code" / "mine.py").write_text("x = 0\n")
    (here / "claims.toml").write_text(CLAIMS)
    (here / "audit.toml").write_text(digits_audit(9.0, 8.0))
    axis = '[[axis]]\nkey = "defense.noise_multiplier"\nvalues = [1.0, 2.0]\n'
    (here / "benchmark.toml").write_text(f'audit = "audit.toml"\n{axis}')
    (here / "run" / "audit.json").write_bytes(GOLDEN.read_bytes())
    monkeypatch.chdir(here)
    return here


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_no_command_writes_through_a_link(here: Path, command: str) -> None:
    done = CliRunner().invoke(app, command.format(here=here).split())
    assert done.exit_code == 2, done.output
    [line] = without_help(done.stderr).splitlines()
    assert "is a link, and no output follows" in " ".join(line.split())
    found = sorted(p.name for p in (here.parent / "secret").rglob("*"))
    assert found == ["check.xml", "deep"]
    assert (here.parent / "secret" / "check.xml").read_text() == "mine"
    assert [path.name for path in (here / "run").iterdir()] == ["audit.json"]


def test_links_above_the_working_folder_are_followed(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_whole(here.parent / "here" / "real" / "out.txt", b"1")
    (here / "real" / "...").mkdir()
    monkeypatch.chdir(here / "real")
    refuse_links(Path("../linked/out.txt"))
    refuse_links(here / "linked" / "out.txt")


def test_a_run_directory_below_a_link_is_refused(here: Path) -> None:
    with (
        pytest.raises(RunError, match="linked is a link"),
        RunDirectory(Path("linked/run")).begun("", {}, resume=False),
    ):
        pass
