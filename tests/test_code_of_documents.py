"""What documents show as code: it runs, in order, a page in a folder of its own.

A fence with a title is a file of that folder; Python runs; a console block's commands run, and what
stands below a command is what it prints (`...` stands for any lines, within one for any text,
`# exit code 1` for that one);
TOML without a title is a fragment of an audit file. A comment before a fence says what does not
happen in every run of the tests: `<!-- slow: why -->` or `<!-- not run: why -->`, listed here.
"""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
import yaml
from typer.testing import CliRunner

from dpaudit.commands.cli import app
from dpaudit.files.benchmark_file import Benchmark
from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.claims_file import Claims
from dpaudit.files.config import AuditConfig
from dpaudit.files.kinds import audit_kind
from dpaudit.pipeline.run import Runtime

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(
    r"(?:<!-- (?P<when>slow|not run): (?P<why>[^>]+) -->\n)?"
    r"^```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<code>.*?)^```$",
    re.M | re.S,
)
INDENTED = re.compile(r"^    (?:\S+=\S+ )*(dpaudit .+)$", re.M)
NOT_RUN = {  # page: how many blocks say that they are not run
    "benchmark.md": 2,
    "leaderboard.md": 3,
    "tutorial.md": 1,
}
BASE: dict[str, Any] = {  # what fragments of audit files stand in
    "data": {"name": "digits"},
    "graph": {"name": "ring"},
    "model": {"name": "logistic"},
    "defense": {"name": "dp-dpsgd", "n_rounds": 200, "noise_multiplier": 1.0},
}


class Block(NamedTuple):
    language: str
    code: str
    title: str | None
    when: str | None  # "slow", "not run"; None: always

    @property
    def commands(self) -> list[tuple[str, list[str]]]:
        """Each command of a console block, and the lines that it prints."""
        found: list[tuple[str, list[str]]] = []
        for line in self.code.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
        return found


def blocks(text: str) -> list[Block]:
    return [Block(f["language"], f["code"], f["title"], f["when"]) for f in FENCE.finditer(text)]


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def run_page(page: Path, folder: Path, slow: bool) -> None:
    """All blocks of a page in order; the slow ones only where that is asked for."""
    namespace: dict[str, Any] = {"__name__": "documented"}
    for block in blocks(page.read_text()):
        if block.title is not None:
            with (folder / block.title).open("a") as file:
                file.write(block.code + "\n")
        elif block.when == "not run" or (block.when == "slow" and not slow):
            continue
        elif block.language == "python":
            exec(compile(block.code, named(page), "exec"), namespace)
        elif block.language == "console":
            for command, printed in block.commands:
                run_command(command, printed, folder)
        elif block.language == "toml":
            check_fragment(block.code)
        elif block.language == "yaml":
            assert yaml.safe_load(block.code)


def output_of(command: str, folder: Path) -> tuple[int, str, str]:
    """Exit code, stdout and stderr; of dpaudit alone in this process, which has imported it."""
    program, *arguments = shlex.split(command, comments=True)
    if program == "dpaudit" and not re.search(r"[|&;<>$]", command):
        here = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
        return here.exit_code, here.stdout, here.stderr
    binaries = str(Path(sys.executable).parent)
    done = subprocess.run(
        ["bash", "-ec", command],
        cwd=folder,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PATH": f"{binaries}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "200",
        },
    )
    return done.returncode, done.stdout, done.stderr


def run_command(command: str, printed: list[str], folder: Path) -> None:
    code, output, error = output_of(command, folder)
    stated = re.search(r"# exit code (\d+)$", command)
    assert code == int(stated[1] if stated else 0), f"{command}\n{error}"
    pattern = "".join(
        r"(?:.*\n)*"
        if line == "..."
        else re.escape(line.rstrip()).replace(r"\.\.\.", ".*") + r"\s*\n"
        for line in printed
    )
    assert not printed or re.fullmatch(pattern, output), f"{command}\n{output}"


def check_fragment(code: str) -> None:
    """Raises what a file with these tables would be refused for."""
    content = tomllib.loads(code)
    if content.keys() & {"axis", "tuning"}:
        Benchmark.model_validate({"audit": {}, **content})
        return
    if content.keys() & {"check", "ledger"}:
        Claims.model_validate(content)
        return
    if audit_kind(content) is CapturedConfig:
        CapturedConfig.model_validate(content)
        return
    AuditConfig.from_dict({**BASE, **content})


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_code_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(Runtime, "cores", 1)
    run_page(page, tmp_path, slow=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [p for p in PAGES if any(b.when == "slow" for b in blocks(p.read_text()))], ids=named
)
def test_slow_code_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(Runtime, "cores", 1)
    run_page(page, tmp_path, slow=True)


def test_what_is_not_run_is_listed() -> None:
    found = {
        named(page).removeprefix("docs/"): sum(
            b.when == "not run" for b in blocks(page.read_text())
        )
        for page in PAGES
    }
    assert {page: n for page, n in found.items() if n} == NOT_RUN


def command_lines() -> Iterator[Any]:
    """Every dpaudit command of every page, run or not."""
    for page in PAGES:
        text = page.read_text()
        lines = [c for b in blocks(text) if b.language == "console" for c, _ in b.commands]
        lines += INDENTED.findall(FENCE.sub("", text))
        for line in lines:
            for part in re.split(r"\s*(?:&&|;|#|\|\|)\s*", line):
                words = shlex.split(part.replace("[", "").replace("]", ""))
                if "dpaudit" in words[:2]:
                    yield pytest.param(
                        words[words.index("dpaudit") + 1 :], id=f"{page.name}: {part}"
                    )


@pytest.mark.parametrize("words", list(command_lines()))
def test_commands_that_pages_name_are_understood(words: list[str]) -> None:
    group = typer.main.get_command(app)
    if not words or words[0].startswith("-"):
        return
    command = group.commands[words[0]]  # type: ignore[attr-defined]
    command.make_context(words[0], words[1:])
