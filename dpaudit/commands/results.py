"""Results on a terminal and in files: what was found, what a dry run foretells, a report."""

import webbrowser
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from dpaudit.errors import ConfigError, RunError
from dpaudit.files.config import AuditConfig
from dpaudit.files.finding import Name
from dpaudit.files.result import AuditResult
from dpaudit.memory import size_text
from dpaudit.text import duration

from .exports import write_figures, write_tables
from .terminal import errors_as_exit_codes, print_result, say

if TYPE_CHECKING:
    from dpaudit.pipeline.dry_run import Ahead, Outlook, Power


def show(
    run_directory: Annotated[Path, Argument(metavar="DIR", help="A run directory.")],
    open_: Annotated[bool, Option("--open", help="Open the report in a browser.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print audit.json.")] = False,
) -> None:
    """Print the result of a run again, as after its audit. Exits 0 whatever the verdict is."""
    with errors_as_exit_codes():
        result = AuditResult.read(run_directory / "audit.json")
        print_result(result, run_directory, as_json)
        if open_:
            _open(run_directory / "report.html")


def _open(page: Path) -> None:
    if not page.is_file():
        raise RunError(f"{page}: there is no report; make it with dpaudit report {page.parent}")
    if not webbrowser.open(page.resolve().as_uri()):
        raise RunError(f"{page}: no browser could be started; open the file by hand")


def report(
    run_directories: Annotated[list[Path], Argument(metavar="DIR...", help="Run directories.")],
    out: Annotated[Path | None, Option(help="The HTML file; default: report.html in DIR.")] = None,
    figures: Annotated[
        Path | None, Option(metavar="DIR", help="Its figures too, as SVG, PDF and PNG.")
    ] = None,
    tables: Annotated[Path | None, Option(metavar="DIR", help="Its numbers too, as CSV.")] = None,
) -> None:
    """Render one run, or several side by side, from their audit.json."""
    with errors_as_exit_codes():
        from dpaudit.reports.html import render, render_comparison
        from dpaudit.training.run_directory import RunDirectory

        exported = [("--figures", figures), ("--tables", tables)]
        for option, folder in exported if len(run_directories) > 1 else []:
            if folder is not None:
                raise ConfigError(f"{option}: expected one run directory, got several")
        results = [
            (path.name, AuditResult.read(path / "audit.json"), path) for path in run_directories
        ]
        if len(results) == 1:
            _, result, path = results[0]
            target, page = out or path / "report.html", render(result, path)
        else:
            target, page = out or Path("comparison.html"), render_comparison(results)
        directory = RunDirectory(target.parent)
        with directory.held() if directory.has("run.json") else nullcontext(directory) as run:
            run.write_text(target.name, page)
        if figures is not None:
            n = len(write_figures(results[0][1], run_directories[0], figures))
            say(f"figures: {n} files in {figures}")
        if tables is not None:
            n = len(write_tables(results[0][1], tables))
            say(f"tables: {n} files in {tables}")
    say(f"report: {target}")


def print_outlook(config: AuditConfig, found: "Outlook") -> None:
    """Time, memory and power of an audit that was not begun."""
    say(f"{'time':>8}  {'memory':>8}  part")
    for ahead in found.parts:
        say(_of_part(ahead))
    on = f"{found.cores} core{'s' * (found.cores > 1)}"
    least = "at least " if any(ahead.seconds is None for ahead in found.parts) else ""
    whole = "unknown" if found.seconds is None else f"{least}about {duration(found.seconds)}"
    say(f"all of it on {on}: {whole}; times of parts are of one core")
    for line in _of_claims(config, found):
        say(line)


def _of_part(ahead: "Ahead") -> str:
    time = "unknown" if ahead.seconds is None else duration(ahead.seconds)
    size = "unknown" if ahead.size is None else size_text(ahead.size)
    jobs = f" ({ahead.n_jobs} jobs)" if ahead.n_jobs > 1 else ""
    return f"{time:>8}  {size:>8}  {ahead.part}{jobs}"


def _of_claims(config: AuditConfig, found: "Outlook") -> Iterator[str]:
    """Each claim against each threat model, with what attacks can be expected to certify."""
    for i, claim in enumerate(config.claim):
        for model in config.threat_model:
            if claim.threat_model in (None, model.name):
                yield f"{claim.sentence()}, against {model.name}:"
                told = [p for p in found.powers if (p.claim, p.threat_model) == (i, model.name)]
                yield from map(_of_power, told)
                if not told:
                    yield "  no attack of this audit foretells what it can certify"


def _of_power(power: "Power") -> str:
    metrics = power.metrics
    expected, ceiling = metrics.get(Name.EXPECTED_BOUND), metrics.get(Name.CEILING)
    needed = metrics.get(Name.TRIALS_NEEDED)
    bound = "not known before its runs" if expected is None else f"{expected.value:.3g}"
    said = f"  {power.attack}: the epsilon expected to be certified is {bound}"
    if ceiling is not None:
        said += f", at most {ceiling.value:.3g} by {ceiling.n} trials"
    if needed is not None:
        said += f"; a perfect attack refutes the claim with {needed.value:.0f} trials"
    return said
