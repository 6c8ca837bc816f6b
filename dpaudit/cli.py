"""The commands: each parses, calls the library, prints, exits. Torch is imported inside them."""

import json
import os
import shutil
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape
from typer import Argument, Option

from dpaudit import __version__
from dpaudit.config import AuditConfig
from dpaudit.errors import ConfigError, DpauditError
from dpaudit.result import MEANING, AuditResult, Verdict

if TYPE_CHECKING:
    from dpaudit.audit_processes import Waiting
    from dpaudit.cached_audit import Job
    from dpaudit.check_result import CheckReport
    from dpaudit.pipeline import Runtime
    from dpaudit.workers import OnProgress

app = typer.Typer(
    help="Audit the privacy claims of private decentralized learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
stdout = Console(highlight=False, soft_wrap=True)
stderr = Console(stderr=True, highlight=False, soft_wrap=True)

Device = Literal["cpu", "cuda"]
DataRoot = Annotated[
    Path | None,
    Option(envvar="DPAUDIT_DATA", help="Folder of mnist, fashion-mnist and cifar10."),
]
Download = Annotated[bool, Option("--download", help="Fetch a data set that is not there.")]
Quiet = Annotated[bool, Option("--quiet", "-q", help="No progress.")]
Workers = Annotated[int | None, Option(min=1, help="Processes; default: one for each core.")]

KINDS = ("defenses", "attacks", "graphs", "datasets", "models", "experiments")
Kind = Literal["defenses", "attacks", "graphs", "datasets", "models", "experiments"]


@app.command()
def audit(
    config_file: Annotated[Path, Argument(metavar="CONFIG", help="An audit.toml.")],
    out: Annotated[Path | None, Option(help="Run directory; default: runs/NAME.")] = None,
    seed: Annotated[int | None, Option(min=0, help="In the place of the config's seed.")] = None,
    device: Annotated[Device, Option(help="Where to compute.")] = "cpu",
    resume: Annotated[bool, Option("--resume", help="Finish an interrupted run.")] = False,
    strict: Annotated[bool, Option("--strict", help="Underpowered is an error too.")] = False,
    data_root: DataRoot = None,
    download: Download = False,
    workers: Workers = None,
    quiet: Quiet = False,
    as_json: Annotated[bool, Option("--json", help="Print audit.json.")] = False,
) -> None:
    """Run one audit. Exits 1 if a claim is refuted or unsupported, 2 if it cannot run, else 0."""
    out = out or Path("runs") / config_file.stem
    with _errors_as_exit_codes(f"dpaudit audit {config_file} --out {out} --resume"):
        config = AuditConfig.from_toml(config_file, seed)
        runtime = _runtime(device, data_root, download, workers)
        from dpaudit.pipeline import run_audit

        with _progress(quiet) as on_progress:
            result = run_audit(
                config, out, runtime, config_file.read_text("utf-8"), resume, on_progress
            )
    _print(result, out, as_json)
    _exit(result, strict)


@app.command()
def attack(
    run_directory: Annotated[Path, Argument(metavar="DIR", help="A run directory.")],
    attacks: Annotated[
        list[str] | None, Option("--attack", help="Only attacks of this name; repeatable.")
    ] = None,
    device: Annotated[Device, Option(help="Where to compute.")] = "cpu",
    data_root: DataRoot = None,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """Attack again on a recorded transcript, without training, and judge anew.

    The attacks are those of config.toml in the run directory, which may have been edited: any
    option may change as long as the messages it needs were recorded.
    """
    with _errors_as_exit_codes(f"dpaudit attack {run_directory}"):
        runtime = _runtime(device, data_root, False, workers)
        from dpaudit.pipeline import attack_again

        with _progress(quiet) as on_progress:
            result = attack_again(run_directory, runtime, tuple(attacks or ()), on_progress)
    _print(result, run_directory, as_json=False)
    _exit(result, strict=False)


@app.command()
def check(
    claims: Annotated[Path, Argument(metavar="CLAIMS", help="A claims.toml.")],
    baseline: Annotated[
        Path | None, Option(help="What leaked before; default: baseline.json beside CLAIMS.")
    ] = None,
    update_baseline: Annotated[
        bool, Option("--update-baseline", help="Write the baseline, do not compare with it.")
    ] = False,
    junit: Annotated[Path | None, Option(help="Write JUnit XML.")] = None,
    sarif: Annotated[Path | None, Option(help="Write SARIF 2.1.0.")] = None,
    markdown: Annotated[Path | None, Option(help="Write a job summary.")] = None,
    cache: Annotated[
        Path | None, Option(help="Finished audits; default: .dpaudit-cache beside CLAIMS.")
    ] = None,
    fresh: Annotated[bool, Option("--fresh", help="Run what is in the cache again.")] = False,
    strict: Annotated[bool, Option("--strict", help="Warnings are errors too.")] = False,
    device: Annotated[Device, Option(help="Where to compute.")] = "cpu",
    data_root: DataRoot = None,
    workers: Workers = None,
    quiet: Quiet = False,
) -> None:
    """Every claim of a claims file, for CI; unchanged audits are not run again.

    Exits 1 if a claim is refuted or unsupported, a limit is broken or more leaks than in the
    baseline, 2 if it cannot run, else 0.
    """
    with _errors_as_exit_codes(f"dpaudit check {claims}"):
        from dpaudit.claims_check import Options, run_check
        from dpaudit.claims_file import ClaimsFile

        beside = claims.parent / "baseline.json"
        if baseline is None and (update_baseline or beside.exists()):
            baseline = beside
        chosen = {} if workers is None else {"cores": workers}
        options = Options(
            cache=cache or claims.parent / ".dpaudit-cache",
            baseline=baseline,
            update_baseline=update_baseline,
            fresh=fresh,
            device=device,
            data_root=data_root,
            **chosen,
        )
        try:
            file = ClaimsFile.read(claims)
            with _progress(quiet) as on_progress:
                found = run_check(file, options, _passing_on(on_progress))
        except DpauditError as error:
            _write_problems(junit, claims, error)
            raise
        _write_outputs(found, strict, junit, sarif, markdown)
    _print_check(found, quiet)
    raise typer.Exit(found.exit_code(strict))


@app.command()
def report(
    run_directories: Annotated[list[Path], Argument(metavar="DIR...", help="Run directories.")],
    out: Annotated[Path | None, Option(help="The HTML file; default: report.html in DIR.")] = None,
) -> None:
    """Render one run, or several side by side, from their audit.json."""
    with _errors_as_exit_codes():
        from dpaudit.reports.html import render, render_comparison
        from dpaudit.run_directory import RunDirectory

        results = [
            (path.name, AuditResult.read(path / "audit.json"), path) for path in run_directories
        ]
        if len(results) == 1:
            _, result, path = results[0]
            target, page = out or path / "report.html", render(result, path)
        else:
            target, page = out or Path("comparison.html"), render_comparison(results)
        RunDirectory(target.parent).write_text(target.name, page)
    stdout.print(f"report: {target}", markup=False)


@app.command()
def reproduce(
    name: Annotated[str, Argument(metavar="NAME", help="See: dpaudit list experiments.")],
    scale: Annotated[Literal["quick", "paper"], Option(help="How much of it.")] = "quick",
    seed: Annotated[int, Option(min=0)] = 0,
) -> None:
    """A table or figure of a paper, published numbers beside ours."""
    with _errors_as_exit_codes(), _warnings_as_lines():
        from dpaudit.reproductions import reproduction

        for line in reproduction(name).lines(scale, seed):
            print(line, flush=True)


@app.command()
def selftest(
    seed: Annotated[int, Option(min=0)] = 0,
    markdown: Annotated[Path | None, Option(help="Write a page like docs/selftest.md.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Audit the auditor: planted privacy bugs, each beside the correct defense that it spoils.

    Exits 1 if a bug is missed or a correct defense is called wrong, else 0. Takes a minute.
    """
    with _errors_as_exit_codes(), _warnings_as_lines():
        from dpaudit import selftest as core

        outcomes = []
        for outcome in core.selftest(seed):
            outcomes.append(outcome)
            if not as_json:
                print(core.text(outcome), flush=True)
        if markdown is not None:
            markdown.write_text(core.markdown(outcomes, seed), "utf-8")
    print(core.to_json(outcomes, seed) if as_json else core.summary(outcomes))
    raise typer.Exit(0 if all(outcome.passed for outcome in outcomes) else 1)


@app.command("list")
def list_(
    kind: Annotated[Kind, Argument(help="What to list.")],
    as_json: Annotated[bool, Option("--json", help="As JSON.")] = False,
) -> None:
    """What is installed, built in or from other packages."""
    with _errors_as_exit_codes():
        from dpaudit.catalogue import catalogue

        entries = catalogue(kind)
    if as_json:
        print(json.dumps(entries, indent=2))
        return
    width = max((len(entry["name"]) for entry in entries), default=0)
    for entry in entries:
        facts = "  ".join(value for key, value in entry.items() if key != "name" and value)
        stdout.print(f"{entry['name']:{width}}  {facts}", markup=False)


@app.command()
def init(
    defense: Annotated[str, Option(help="The defense to start from.")] = "dpdl",
    out: Annotated[Path, Option(help="The file to write.")] = Path("audit.toml"),
    force: Annotated[bool, Option("--force", help="Overwrite it.")] = False,
) -> None:
    """Write a commented audit.toml to start from."""
    with _errors_as_exit_codes():
        from dpaudit.run_directory import RunDirectory
        from dpaudit.starter import starter

        text = starter(defense)
        if out.exists() and not force:
            raise ConfigError(f"{out} exists; give --force to overwrite it, or another --out")
        RunDirectory(out.parent).write_text(out.name, text)
    stdout.print(f"wrote {out}; next: dpaudit audit {out}", markup=False)


@app.callback(invoke_without_command=True)
def version(
    context: typer.Context,
    show: Annotated[bool, Option("--version", help="Print the version.")] = False,
) -> None:
    if show:
        stdout.print(f"dpaudit {__version__}")
        raise typer.Exit(0)


def main() -> None:
    """The console script."""
    app()


def _runtime(
    device: Device, data_root: Path | None, download: bool, workers: int | None
) -> "Runtime":
    import torch

    from dpaudit.pipeline import Runtime

    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: this torch sees no CUDA device")
    chosen = {} if workers is None else {"cores": workers}
    return Runtime(torch.device(device), data_root, download, **chosen)


@contextmanager
def _errors_as_exit_codes(resume: str = "") -> Iterator[None]:
    """A DpauditError is a line for each problem and exit 2; Ctrl-C is exit 130."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except DpauditError as error:
        for line in str(error).splitlines():
            stderr.print(f"[red]error:[/red] {escape(line)}")
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        stderr.print("interrupted; what was done is kept.", markup=False)
        if resume:
            stderr.print(f"To finish: {resume}", markup=False)
        raise typer.Exit(130) from None


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Each different Python warning is one line on stderr, at the end."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for text in dict.fromkeys(str(warning.message) for warning in caught):
        stderr.print(f"warning: {' '.join(text.split())}", markup=False)


@contextmanager
def _progress(quiet: bool) -> "Iterator[OnProgress]":
    """Bars with the time left on a terminal, nothing elsewhere."""
    if quiet or not sys.stderr.isatty():
        yield lambda what, done, total: None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=stderr, transient=True) as progress:
        bars: dict[str, TaskID] = {}

        def on_progress(what: str, done: int, total: int) -> None:
            if what not in bars:
                bars[what] = progress.add_task(what, total=total)
            progress.update(bars[what], completed=done, visible=done < total)

        yield on_progress


def _passing_on(on_progress: "OnProgress") -> "Waiting":
    """What audits in processes of their own leave in progress.json, reported here."""

    def waiting(running: "Mapping[str, Job]") -> None:
        for name, job in running.items():
            path = job.cache / f"{job.key}.partial" / "progress.json"
            try:
                progress = json.loads(path.read_text("utf-8"))
            except (OSError, ValueError):
                continue  # not begun
            for what, (done, total) in progress.items():
                on_progress(f"{name}: {what}", done, total)

    return waiting


def _write_outputs(
    found: "CheckReport",
    strict: bool,
    junit: Path | None,
    sarif: Path | None,
    markdown: Path | None,
) -> None:
    """The picture of a summary goes beside it, because GitHub shows no embedded ones."""
    from dpaudit.baseline import write_whole
    from dpaudit.reports import ci

    if junit is not None:
        write_whole(junit, ci.junit(found, strict))
    if sarif is not None:
        write_whole(sarif, ci.sarif(found))
    if markdown is not None:
        pictures = {}
        for i, check in enumerate(found.checks):
            if check.picture is not None and Path(check.picture).exists():
                pictures[check.name] = f"{markdown.stem}-{i + 1}.png"
                markdown.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(check.picture, markdown.parent / pictures[check.name])
        write_whole(markdown, ci.markdown(found, pictures))


def _write_problems(junit: Path | None, claims: Path, error: DpauditError) -> None:
    """CI systems that find no report call a run that could not start a success."""
    from dpaudit.baseline import write_whole
    from dpaudit.reports import ci

    if junit is not None:
        write_whole(junit, ci.junit_of_problems(str(claims), str(error).splitlines()))


def _print_check(found: "CheckReport", quiet: bool) -> None:
    from dpaudit.reports import ci

    for line, statement in zip(ci.plain(found), found.statements, strict=True):
        if not quiet or statement.outcome != "holds":
            colour = {"fails": "red", "warning": "yellow", "holds": "green"}[statement.outcome]
            stdout.print(line, style=colour, markup=False)
    for note in found.notes:
        stdout.print(note, markup=False)
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in ci.annotations(found):
            print(line)


def _print(result: AuditResult, out: Path, as_json: bool) -> None:
    if as_json:
        print(result.to_json(), end="")
        return
    for note in result.notes:
        stdout.print(f"note: {note}", markup=False)
    for claim in result.claims:
        stdout.print(f"{claim.verdict.upper()}  {claim.sentence}", markup=False)
        stdout.print(f"  against {claim.threat_model}: {claim.reason}", markup=False)
    if result.verdict is None:
        stdout.print("no claim was made, so there is no verdict", markup=False)
    else:
        stdout.print(f"verdict: {result.verdict}. {MEANING[result.verdict]}", markup=False)
    stdout.print(f"report: {out / 'report.html'}", markup=False)


def _exit(result: AuditResult, strict: bool) -> None:
    if result.verdict is Verdict.UNDERPOWERED:
        kind = "error" if strict else "warning"
        stderr.print(f"{kind}: a claim could not be tested: underpowered", markup=False)
    raise typer.Exit(1 if strict and result.verdict is Verdict.UNDERPOWERED else result.exit_code)


if __name__ == "__main__":
    main()
