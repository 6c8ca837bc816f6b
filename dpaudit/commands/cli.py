"""The commands: each parses, calls the library, prints, exits. Torch is imported inside them."""

import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer
from typer import Argument, Option

from dpaudit.errors import ConfigError
from dpaudit.files.captured_file import CapturedConfig, audit_kind
from dpaudit.files.config import AuditConfig, read_toml
from dpaudit.files.result import AuditResult
from dpaudit.files.verdict import Verdict
from dpaudit.files.whole import refuse_links, write_whole
from dpaudit.inputs.recorder import recording
from dpaudit.version import __version__

from .benchmarking import benchmark
from .calculator import epsilon
from .capturing import capture
from .glossary import explain
from .last_word import leave_with
from .options import (
    DataRoot,
    Device,
    Download,
    DryRun,
    MaxMemory,
    Quiet,
    Results,
    Workers,
    bytes_in,
    runtime_of,
)
from .report import report
from .reproducing import reproduce
from .results import print_outlook, show
from .running import passing_on, progress_bars
from .terminal import (
    answer,
    complain,
    errors_as_exit_codes,
    print_check,
    print_result,
    remove_outputs,
    same_command,
    say,
    say_json,
    show_warning,
    warnings_as_lines,
    write_outputs,
    write_problems,
)

if TYPE_CHECKING:
    from dpaudit.check.run import CheckOptions
    from dpaudit.files.check_report import CheckReport

app = typer.Typer(
    help="Audit the privacy claims of private decentralized learning.",
    pretty_exceptions_enable=False,
)

T = TypeVar("T")
COMPLETION = "_DPAUDIT_COMPLETE"
BLAS_THREADS = "OPENBLAS_NUM_THREADS"  # one: NumPy's matrices are small, and more threads spin
LARGE_PAGES = "THP_MEM_ALLOC_ENABLE"  # of torch: page by page, memory takes longer to fetch
FIRST_STEPS = (
    "dpaudit init               writes audit.toml: a claim, adversaries, attacks",
    "dpaudit audit audit.toml   runs it; --dry-run says what it takes and could prove",
    "dpaudit show runs/audit    prints the result again; see also: dpaudit --help",
)
Listed = Literal["defenses", "attacks", "graphs", "datasets", "models", "experiments"]


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
    max_memory: MaxMemory = None,
    quiet: Quiet = False,
    as_json: Annotated[bool, Option("--json", help="Print audit.json.")] = False,
    dry_run: DryRun = False,
    fix_model: Annotated[
        bool, Option("--fix-model", help="GroupNorm in the place of each BatchNorm.")
    ] = False,
) -> None:
    """Run one audit. Exits 1 if a claim is refuted or unsupported, 2 if it cannot run, else 0."""
    out = out or Path("runs") / config_file.stem
    exempt = str(config_file), str(out)
    with errors_as_exit_codes(same_command("--resume")), recording(exempt):
        kind = audit_kind(read_toml(config_file)[0])
        if kind is CapturedConfig:
            given = {"--device": device != "cpu", "--download": download}
            given |= {"--max-memory": max_memory is not None, "--fix-model": fix_model}
            for option in (option for option, is_given in given.items() if is_given):
                said = f"{option}: {config_file} audits a program, which does as its command says"
                raise ConfigError("DPA013", said)
        config = kind.from_toml(config_file, seed, fix_model)
        if dry_run and isinstance(config, CapturedConfig):
            say(
                f"{config.least_runs} runs of the program, and 3 more in each of "
                f"{len(config.record.rounds)} rounds for each further draw of noise; "
                f"{config.certify.runs} short runs, and {config.attack_runs} for attacks"
            )
            return
        runtime = runtime_of(device, data_root, workers, max_memory, download)
        if dry_run and isinstance(config, AuditConfig):
            print_outlook(config, runtime)
            return
        from dpaudit.capture.audit import run_audit_of

        text = config_file.read_text("utf-8")
        with progress_bars(quiet) as on_progress:
            result = run_audit_of(config, out, runtime, text, resume, on_progress, say=complain)
    print_result(result, out, as_json)
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
    max_memory: MaxMemory = None,
    quiet: Quiet = False,
) -> None:
    """Attack again on a recorded transcript, without training, and judge anew.

    The attacks are those of config.toml in the run directory, which may have been edited: any
    option may change as long as the messages it needs were recorded.
    """
    with errors_as_exit_codes(same_command()):
        runtime = runtime_of(device, data_root, workers, max_memory)
        from dpaudit.pipeline.run import attack_again

        with progress_bars(quiet) as on_progress:
            result = attack_again(run_directory, runtime, tuple(attacks or ()), on_progress)
    print_result(result, run_directory, as_json=False)
    _exit(result, strict=False)


@app.command()
def check(
    context: typer.Context,  # its object: the Auditor, if not dpaudit's own
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
    max_memory: MaxMemory = None,
    quiet: Quiet = False,
) -> None:
    """Every claim of a claims file, for CI; unchanged audits are not run again.

    Exits 1 if a claim is refuted or unsupported, a limit or baseline broken, 2 on errors, else 0.
    """
    with errors_as_exit_codes(same_command()):
        from dpaudit.check.run import Auditor, CheckOptions

        beside = claims.parent / "baseline.json"
        options = CheckOptions(
            cache=cache or claims.parent / ".dpaudit-cache",
            baseline=baseline or (beside if update_baseline or beside.exists() else None),
            update_baseline=update_baseline,
            fresh=fresh,
            device=device,
            data_root=data_root,
            cores=workers or CheckOptions.cores,
            max_memory=bytes_in(max_memory),
            auditor=context.obj or Auditor(),
        )
        if update_baseline and options.baseline is not None:
            refuse_links(options.baseline)  # before the audits, which can take long
        remove_outputs(junit, sarif, markdown)
        found = _checked(claims, options, junit, quiet)
        write_outputs(found, strict, junit, sarif, markdown)
    print_check(found, quiet)
    raise typer.Exit(found.exit_code(strict))


@app.command()
def selftest(
    seed: Annotated[int, Option(min=0)] = 0,
    results: Results = None,
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
    markdown: Annotated[Path | None, Option(hidden=True)] = None,
) -> None:
    """Audit the auditor: planted privacy bugs, each beside the correct defense that it spoils.

    Exits 1 if a bug is missed or a correct defense is called wrong, else 0. Takes five minutes.
    """
    with errors_as_exit_codes(), warnings_as_lines():
        if markdown is not None:
            raise ConfigError(
                "DPA013", "--markdown: results are JSON and CSV now", "give --results"
            )
        from dpaudit.reports.result_tables import write
        from dpaudit.selftest import catalogue
        from dpaudit.selftest import selftest as core

        def shown(found: Iterable[T], text: Callable[[T], str]) -> list[T]:
            """All that is found, each printed as soon as it is."""
            kept = []
            for one in found:
                kept.append(one)
                for line in () if as_json else text(one).split("\n"):
                    say(line)
            return kept

        outcomes = shown(core.selftest(seed), core.text)
        said = shown(catalogue.ordinary_audits(seed), core.said_text)
        quiet = shown(catalogue.audits_without_attacks(seed), core.said_text)
        if results is not None:
            tables = core.tables(outcomes, said, quiet, seed)
            write(results, "selftest", tables)
    if as_json:
        say_json(core.to_json(outcomes, said, quiet, seed))
    else:
        say(core.summary(outcomes, said, quiet))
    raise typer.Exit(0 if core.all_passed(outcomes, said, quiet) else 1)


@app.command("list")
def list_(
    kind: Annotated[Listed, Argument(help="What to list.")],
    as_json: Annotated[bool, Option("--json", help="As JSON.")] = False,
    markdown: Annotated[
        Path | None, Option(help="Write a page like docs/defenses.md; of defenses alone.")
    ] = None,
) -> None:
    """What is installed, built in or from other packages."""
    with errors_as_exit_codes():
        from . import catalogue

        entries, problems = catalogue.catalogue(kind)
        if markdown is not None:
            if kind != "defenses":
                said = f"--markdown: there is a page of defenses alone, not of {kind}"
                raise ConfigError("DPA013", said)
            write_whole(markdown, catalogue.markdown(entries).encode())
    for problem in problems:
        complain(problem, "warning")
    if as_json:
        say_json(json.dumps(entries, indent=2))
        return
    width = max((len(entry["name"]) for entry in entries), default=0)
    for entry in entries:
        facts = "  ".join(value for key, value in entry.items() if key != "name" and value)
        say(f"{entry['name']:{width}}  {facts}")


@app.command()
def init(
    defense: Annotated[str, Option(help="The defense to start from.")] = "dpdl",
    out: Annotated[Path, Option(help="The file to write.")] = Path("audit.toml"),
    force: Annotated[bool, Option("--force", help="Overwrite it.")] = False,
) -> None:
    """Write a commented audit.toml to start from."""
    with errors_as_exit_codes():
        from dpaudit.training.run_directory import RunDirectory

        from .starter import missing_package, starter

        text, missing = starter(defense), missing_package(defense)
        if out.exists() and not force:
            raise ConfigError("DPA015", f"{out} exists", "give --force, or another --out")
        RunDirectory(out.parent).write_text(out.name, text)
    say(f"wrote {out}; next: dpaudit audit {out}")
    if missing is not None:
        complain(f"before that, {missing}", "warning")


for command in (benchmark, show, report, reproduce, explain, epsilon, capture):
    app.command()(command)


@app.callback(invoke_without_command=True)
def alone(
    context: typer.Context,
    version: Annotated[bool, Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        say(f"dpaudit {__version__}")
        raise typer.Exit(0)
    if context.invoked_subcommand is None:
        for line in FIRST_STEPS:
            say(line)
        raise typer.Exit(2)  # a script whose command got lost has audited nothing


def main() -> None:
    """The console script."""
    if COMPLETION in os.environ:
        app(prog_name="dpaudit")  # a shell asks what can be typed next
    os.environ.setdefault(BLAS_THREADS, "1")
    os.environ.setdefault(LARGE_PAGES, "1")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # of what the terminal's encoding lacks
    warnings.showwarning = show_warning
    leave_with(partial(answer, app))


def _checked(
    claims: Path, options: "CheckOptions", junit: Path | None, quiet: bool
) -> "CheckReport":
    """What a check finds; what keeps it from finding anything is left in the JUnit file."""
    from dpaudit.check.run import run_check
    from dpaudit.files.claims_file import ClaimsFile

    began = time.monotonic()
    try:
        file = ClaimsFile.read(claims)
        with progress_bars(quiet) as on_progress:
            return run_check(file, options, passing_on(on_progress))
    except BaseException as error:
        write_problems(junit, claims, error, time.monotonic() - began)
        raise


def _exit(result: AuditResult, strict: bool) -> None:
    if result.verdict is Verdict.UNDERPOWERED:
        kind = "error" if strict else "warning"
        complain("a claim could not be tested: underpowered", kind)
    raise typer.Exit(1 if strict and result.verdict is Verdict.UNDERPOWERED else result.exit_code)


if __name__ == "__main__":
    main()
