"""The commands: each parses, calls the library, prints, exits.

Torch, and the models of files, are imported inside them.
"""

import json
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer
from typer import Argument, Option

from dpaudit import codes
from dpaudit.errors import ConfigError, nearest
from dpaudit.files import glossary
from dpaudit.files.atomic_files import refuse_links, write_whole
from dpaudit.files.verdict import Verdict
from dpaudit.inputs.recorder import recording
from dpaudit.progress import counted
from dpaudit.version import __version__

from . import options, terminal
from .benchmarking import benchmark
from .calculator import epsilon
from .capturing import capture
from .certifying import certificate
from .exit_code import leave_with
from .linting import lint
from .mechanisms import mechanism, selftest_of_mechanisms
from .reproducing import reproduce
from .results import print_outlook, report, show
from .running import passing_on, progress_bars, waiting_lines
from .scores import epsilon_from_scores
from .terminal import complain, say
from .verifying import verify

if TYPE_CHECKING:
    from dpaudit.check.run import CheckOptions
    from dpaudit.files.captured_file import CapturedConfig
    from dpaudit.files.claims_file import CheckReport
    from dpaudit.files.result import AuditResult

app = typer.Typer(
    help="Audit the privacy claims of private decentralized learning.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # loading its frames takes a third of the time of --help
    context_settings={"max_content_width": 100},
)

T = TypeVar("T")
COMPLETION = "_DPAUDIT_COMPLETE"
BLAS_THREADS = "OPENBLAS_NUM_THREADS"  # one: NumPy's matrices are small, and more threads spin
LARGE_PAGES = "THP_MEM_ALLOC_ENABLE"  # variable of torch: fetching memory page by page takes longer
MANY_STEPS = 300  # steps of all agents in all rounds; audits with fewer often take seconds
FIRST_STEPS = (
    "dpaudit init               writes audit.toml: a claim, adversaries, attacks",
    "dpaudit audit audit.toml   runs it; --dry-run says what it takes and could prove",
    "dpaudit show runs/audit    prints the result again; see also: dpaudit --help",
)
Listed = Literal["defenses", "attacks", "graphs", "datasets", "models", "experiments"]


def audit(
    config_file: Annotated[Path, Argument(metavar="CONFIG", help="The audit file (audit.toml).")],
    out: Annotated[Path | None, Option(help="The run directory; default: runs/NAME.")] = None,
    seed: Annotated[int | None, Option(min=0, help="Replace the seed of the audit file.")] = None,
    device: options.Device = "cpu",
    resume: Annotated[bool, Option("--resume", help="Finish an interrupted run.")] = False,
    strict: Annotated[
        bool, Option("--strict", help="Demand that each claim is supported or not refuted.")
    ] = False,
    data_root: options.DataRoot = None,
    download: Annotated[
        bool, Option("--download", help="Download a data set that is missing.")
    ] = False,
    workers: options.Workers = None,
    max_memory: options.MaxMemory = None,
    quiet: options.Quiet = False,
    as_json: options.AuditJson = False,
    dry_run: options.DryRun = False,
    fix_model: Annotated[
        bool, Option("--fix-model", help="Replace each BatchNorm by a GroupNorm.")
    ] = False,
) -> int:
    """Run one audit. Exits 1 if a claim is refuted or unsupported, 2 if it cannot run, else 0."""
    from dpaudit.files.captured_file import CapturedConfig
    from dpaudit.files.config import AuditConfig, read_toml
    from dpaudit.files.kinds import audit_kind
    from dpaudit.files.mechanism_file import MechanismConfig
    from dpaudit.pipeline.fork_server import imports

    out = out or Path("runs") / config_file.stem
    with recording((str(config_file), str(out))):
        kind = audit_kind(table := read_toml(config_file)[0])
        if kind is AuditConfig:
            if device == "cpu" and not dry_run:
                _begin_if_long(table, workers or os.cpu_count() or 1)
        else:
            given = {"--device": device != "cpu", "--download": download}
            given |= {"--max-memory": max_memory is not None, "--fix-model": fix_model}
            _refuse_options_of_training(given, config_file, kind is CapturedConfig)
        with terminal.prints_on_stderr(), imports():
            config = kind.from_toml(config_file, seed, fix_model)
        if dry_run and isinstance(config, CapturedConfig):
            say(_runs_of_program(config))
            return 0
        if isinstance(config, MechanismConfig):
            sys.path[:0] = [str(config_file.parent.resolve()), os.getcwd()]
            if dry_run:
                say(f"{2 * config.mechanism.runs:,} runs of the function are counted")
                return 0
        runtime = options.runtime_of(device, data_root, workers, max_memory, download)
        if dry_run and isinstance(config, AuditConfig):
            print_outlook(config, runtime)
            return 0
        text = config_file.read_text("utf-8")
        with terminal.prints_on_stderr(), progress_bars(quiet) as on_progress:
            from dpaudit.capture.audit import run_audit_of

            result = run_audit_of(config, out, runtime, text, resume, on_progress, say=complain)
    terminal.print_result(result, out, as_json)
    return _exit_code(result, strict)


def _refuse_options_of_training(given: Mapping[str, bool], file: Path, is_program: bool) -> None:
    what = "a function, which does as it is written"
    what = "a program, which does as its command says" if is_program else what
    for option in (option for option, is_given in given.items() if is_given):
        raise ConfigError("DPA013", f"{option}: {file} audits {what}")


def _runs_of_program(config: "CapturedConfig") -> str:
    return (
        f"{config.least_runs} runs of the program, and 3 more in each of "
        f"{len(config.record.rounds)} rounds for each further draw of noise; "
        f"{config.certify.runs} short runs, and {config.attack_runs} for attacks; more for "
        "the premises of claims, where all agents with records are victims"
    )


def attack(
    run_directory: options.RunFolder,
    attacks: Annotated[
        list[str] | None, Option("--attack", help="Run only attacks of this name; repeatable.")
    ] = None,
    device: options.Device = "cpu",
    data_root: options.DataRoot = None,
    workers: options.Workers = None,
    max_memory: options.MaxMemory = None,
    quiet: options.Quiet = False,
) -> int:
    """Attack again on a recorded transcript, without training, and judge anew.

    The attacks are those of config.toml in the run directory, which may have been edited: any
    option may change as long as the messages it needs were recorded.
    """
    runtime = options.runtime_of(device, data_root, workers, max_memory)
    from dpaudit.pipeline.run import attack_again

    with terminal.prints_on_stderr(), progress_bars(quiet) as on_progress:
        result = attack_again(run_directory, runtime, tuple(attacks or ()), on_progress)
    terminal.print_result(result, run_directory, as_json=False)
    return _exit_code(result, strict=False)


def check(
    context: typer.Context,  # its object: the Auditor, if not dpaudit's own
    claims: Annotated[Path, Argument(metavar="CLAIMS", help="The claims file (claims.toml).")],
    baseline: Annotated[
        Path | None,
        Option(help="Compare with these earlier leaks; default: baseline.json beside CLAIMS."),
    ] = None,
    update_baseline: Annotated[
        bool, Option("--update-baseline", help="Write the baseline, do not compare with it.")
    ] = False,
    junit: Annotated[Path | None, Option(help="Write JUnit XML to this file.")] = None,
    sarif: Annotated[Path | None, Option(help="Write SARIF 2.1.0 to this file.")] = None,
    markdown: Annotated[Path | None, Option(help="Write a job summary to this file.")] = None,
    cache: Annotated[
        Path | None,
        Option(help="The folder of finished audits; default: .dpaudit-cache beside CLAIMS."),
    ] = None,
    fresh: Annotated[bool, Option("--fresh", help="Repeat audits that are in the cache.")] = False,
    strict: Annotated[
        bool, Option("--strict", help="Treat warnings, as of underpowered claims, as errors.")
    ] = False,
    device: options.Device = "cpu",
    data_root: options.DataRoot = None,
    workers: options.Workers = None,
    max_memory: options.MaxMemory = None,
    quiet: options.Quiet = False,
) -> int:
    """Every claim of a claims file, for CI; unchanged audits are not run again.

    Exits 1 if a claim is refuted or unsupported, a limit or baseline broken, 2 on errors, else 0.
    """
    from dpaudit.check.run import Auditor, CheckOptions

    beside = claims.parent / "baseline.json"
    asked = CheckOptions(
        cache=cache or claims.parent / ".dpaudit-cache",
        baseline=baseline or (beside if update_baseline or beside.exists() else None),
        update_baseline=update_baseline,
        fresh=fresh,
        device=device,
        data_root=data_root,
        cores=workers or CheckOptions.cores,
        max_memory=options.bytes_in(max_memory),
        auditor=context.obj or Auditor(),
    )
    if update_baseline and asked.baseline is not None:
        refuse_links(asked.baseline)  # before the audits, which can take long
    terminal.remove_outputs(junit, sarif, markdown)
    found = _checked(claims, asked, junit, quiet)
    terminal.write_outputs(found, strict, junit, sarif, markdown)
    terminal.print_check(found, quiet, strict)
    return found.exit_code(strict)


def _checked(claims: Path, asked: "CheckOptions", junit: Path | None, quiet: bool) -> "CheckReport":
    """What a check finds; what keeps it from finding anything is left in the JUnit file."""
    from dpaudit.check.run import run_check
    from dpaudit.files.claims_file import ClaimsFile

    began = time.monotonic()
    try:
        file = ClaimsFile.read(claims)
        with progress_bars(quiet) as on_progress:
            return run_check(file, asked, passing_on(on_progress))
    except BaseException as error:
        terminal.write_problems(junit, claims, error, time.monotonic() - began)
        raise


def selftest(
    seed: Annotated[int, Option(min=0, help="The seed of all runs.")] = 0,
    results: options.Results = None,
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
    mechanisms: Annotated[
        bool, Option("--mechanisms", help="Audit the zoo of single functions alone.")
    ] = False,
    markdown: options.Markdown = None,
) -> int:
    """Audit the auditor: planted privacy bugs, each beside the correct defense that it spoils.

    Exits 1 if a bug is missed or a correct defense is called wrong, else 0. Takes five minutes.
    With --mechanisms, exits 1 if a right function is accused or a wrong one supported.
    """
    options.refuse_markdown(markdown)
    if mechanisms:
        return selftest_of_mechanisms(seed, results, as_json)
    from dpaudit.reports.published import write_tables
    from dpaudit.selftest import catalogue
    from dpaudit.selftest import selftest as core

    def shown(what: str, found: Iterable[T], n: int, text: Callable[[T], str]) -> list[T]:
        """All that is found, each printed as soon as it is."""
        kept = []
        for one in counted(on_progress, what, found, n):
            kept.append(one)
            for line in () if as_json else text(one).split("\n"):
                say(line)
        return kept

    asked = catalogue.MECHANISMS, catalogue.WITHOUT_ATTACKS
    with terminal.warnings_as_lines(), progress_bars(quiet=False) as on_progress:
        outcomes = shown("planted bugs", core.selftest(seed), len(core.BUGS), core.text)
        audits = catalogue.ordinary_audits(seed)
        said = shown("audits with attacks", audits, len(asked[0]), core.said_text)
        audits = catalogue.audits_without_attacks(seed)
        quiet = shown("audits without attacks", audits, len(asked[1]), core.said_text)
        if results is not None:
            tables = core.tables(outcomes, said, quiet, seed)
            write_tables(results, "selftest", tables)
    if as_json:
        terminal.say_json(core.to_json(outcomes, said, quiet, seed))
    else:
        say(core.summary(outcomes, said, quiet))
    return 0 if core.all_passed(outcomes, said, quiet) else 1


def list_(
    kind: Annotated[Listed, Argument(help="What to list.")],
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
    markdown: Annotated[
        Path | None, Option(help="Write a page like docs/defenses.md; only for defenses.")
    ] = None,
) -> None:
    """What is installed, built in or from other packages."""
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
        terminal.say_json(json.dumps(entries, indent=2))
        return
    width = max((len(entry["name"]) for entry in entries), default=0)
    for entry in entries:
        facts = "  ".join(value for key, value in entry.items() if key != "name" and value)
        say(f"{entry['name']:{width}}  {facts}")


def init(
    defense: Annotated[str, Option(help="The defense to start from.")] = "dp-dpsgd",
    out: Annotated[Path, Option(help="The file to write.")] = Path("audit.toml"),
    force: Annotated[bool, Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a commented audit.toml to start from."""
    from dpaudit.training.run_directory import RunDirectory

    from .starter import missing_package, starter

    text, missing = starter(defense), missing_package(defense)
    if out.exists() and not force:
        raise ConfigError("DPA015", f"{out} exists", "give --force, or another --out")
    RunDirectory(out.parent).write_text(out.name, text)
    say(f"wrote {out}; next: dpaudit audit {out}")
    if missing is not None:
        complain(f"before that, {missing}", "warning")


def doctor() -> None:
    """What is installed, what is missing for what, and how long `make audit` takes here."""
    from . import doctor as examination

    for line in examination.lines():
        say(line)


def explain(
    term: Annotated[
        list[str] | None,
        Argument(
            metavar="TERM|CODE", help="A verdict, a term or a code; without it, all are listed."
        ),
    ] = None,
) -> None:
    """What a verdict, a word of a report, or the code of an error means."""
    asked = " ".join(term or ())
    if not term:
        say(f"dpaudit explain TERM, one of: {', '.join(glossary.ENTRIES)}")
        say(f"dpaudit explain CODE, one of: {', '.join(codes.entries())}")
    elif (code := asked.upper()) in codes.entries():
        for line in codes.page(code).rstrip().split("\n"):
            say(line)
    elif found := glossary.entry_of(asked):
        say(": ".join(found))
    else:
        is_code = re.match("DPA[0-9]", code)
        close = nearest(code, codes.entries()) if is_code else glossary.nearest_entry(asked)
        said = f'the glossary has no "{asked}"{close}'
        raise ConfigError("DPA006", said, "dpaudit explain alone lists all words and codes")


_RESUMED = partial(terminal.same_command, "--resume")
# In the order of --help; and what finishes one that was interrupted.
COMMANDS: dict[Callable[..., int | None], Callable[[], str]] = {
    **{audit: _RESUMED, attack: terminal.same_command, check: terminal.same_command},
    **dict.fromkeys((selftest, list_, init, doctor), str),
    **{benchmark: _RESUMED},
    **dict.fromkeys((show, report, verify, certificate), str),
    **{reproduce: terminal.same_command},
    **dict.fromkeys((explain, epsilon, epsilon_from_scores, capture, mechanism, lint), str),
}
for command, again in COMMANDS.items():
    said = (command.__doc__ or "").partition("\n\n")[0]
    app.command(command.__name__.rstrip("_").replace("_", "-"), short_help=" ".join(said.split()))(
        terminal.with_exit_code(command, again)
    )


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
            stream.reconfigure(errors="backslashreplace")  # terminals may lack characters
    warnings.showwarning = terminal.show_warning
    leave_with(_answer)


def _begin_if_long(table: Mapping[str, Any], workers: int) -> None:
    """Start what forks the workers, beside the imports of this process, if they will be needed.

    Args:
        table: of an audit file, not yet validated.
        workers: processes at most.
    """
    from dpaudit.pipeline.fork_server import begin

    steps = 1
    for section, key in (("defense", "n_rounds"), ("data", "n_agents")):
        found = table.get(section)
        count = found.get(key) if isinstance(found, dict) else None
        steps *= count if isinstance(count, int) else 0
    if workers > 1 and steps >= MANY_STEPS:
        begin()


def _answer() -> int:
    if {"-q", "--quiet"} & {*sys.argv}:
        return terminal.answer(app)
    with waiting_lines():
        return terminal.answer(app)


def _exit_code(result: "AuditResult", strict: bool) -> int:
    underpowered = result.verdict is Verdict.UNDERPOWERED
    if underpowered:
        complain(
            "a claim is neither settled nor tested: underpowered", "error" if strict else "warning"
        )
    return 1 if strict and underpowered else result.exit_code


if __name__ == "__main__":
    main()
