"""What commands leave on a terminal and in files: lines, bars, exit codes. Nothing loads torch.

Whatever a command prints, it prints with ``say``, ``complain`` or ``say_json``.
"""

import os
import shlex
import shutil
import signal
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from functools import wraps
from itertools import zip_longest
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, TextIO

import typer
from rich.console import Console
from rich.text import Text

from dpaudit.codes import help_for
from dpaudit.errors import Problem, nearest
from dpaudit.files.atomic_files import refuse_links, write_whole
from dpaudit.files.verdict import Verdict
from dpaudit.text import json_lines, whole_line
from dpaudit.unexpected_errors import problems_of

if TYPE_CHECKING:
    from dpaudit.files.claims_file import CheckReport
    from dpaudit.files.result import AuditResult

_UsageError: Any = typer.BadParameter.__base__  # typer does not say its name
_NoSuchOption: Any = next(
    kind for kind in _UsageError.__subclasses__() if kind.__name__ == "NoSuchOption"
)

# Of this machine or call alone, and in no published command; the first four have a value.
_NOT_PUBLISHED = ("--out", "--results", "--data-root", "--workers", "--quiet", "-q", "--resume")


# What papers and other programs call an option.
_OTHER_WORDS = {
    "--noise-multiplier": "--sigma --noise --noise-scale --std",
    "--rate": "--q --sample-rate --sampling-rate --sampling-probability",
    "--rounds": "--steps --iterations",
    "--out": "--output --output-dir",
    "--workers": "--jobs --cores --processes",
    "--max-memory": "--memory",
    "--dry-run": "--dry",
}
_STYLES = {
    Verdict.REFUTED: "red",
    Verdict.UNSUPPORTED: "red",
    Verdict.UNDERPOWERED: "yellow",
    Verdict.NOT_REFUTED: "",  # no colour of something that is safe
    Verdict.SUPPORTED: "",
}


class _Console(Console):
    """Goes on in silence when nobody reads on, so that the exit code is that of the command.

    Rich's own leaves with exit code 1, which is a verdict here.
    """

    def on_broken_pipe(self) -> None:
        self.quiet = True
        _write_nowhere(self.file)


_stdout = _Console(highlight=False, soft_wrap=True)
stderr = _Console(stderr=True, highlight=False, soft_wrap=True)


def say(line: str, style: str = "") -> None:
    """A line on stdout, whatever is in it; on a terminal no word of it is broken."""
    for part in _fitting(line, _stdout):
        _stdout.print(Text(part, style))


def say_json(document: str) -> None:
    """A JSON document on stdout, with the same content and nothing that a terminal obeys."""
    say_as_it_is(json_lines(document).rstrip("\n"))


def say_as_it_is(text: str) -> None:
    """Nothing if nobody reads on."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        _write_nowhere(sys.stdout)


def _write_nowhere(stream: IO[str]) -> None:
    """What is still to be written to a stream that nobody reads disappears."""
    with suppress(OSError, ValueError):  # a stream without a file of the system
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def prints_on_stderr() -> Iterator[None]:
    """What audited code prints, in this process or in one that it starts, is no answer."""
    try:
        sys.stdout.flush()
        kept = os.dup(1)
        os.dup2(2, 1)
    except (OSError, AttributeError):  # closed by whoever started this
        yield
        return
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        with suppress(OSError):
            sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def complain(line: str, kind: str = "") -> None:
    """A line on stderr, whatever is in it; on a terminal no word of it is broken.

    Args:
        kind: what it begins with: "error", with its code and in red, "warning", "help" or nothing.
    """
    for i, part in enumerate(_fitting(f"{kind}: {line}" if kind else line, stderr)):
        shown = Text(part)
        if kind.startswith("error") and i == 0:
            shown.stylize("red", 0, len(kind) + 1)
        stderr.print(shown)


def _fitting(line: str, console: Console) -> list[str]:
    """The parts of a line that fit a terminal, under its own indent; elsewhere all of it."""
    line = whole_line(line)
    if not console.is_terminal or len(line) <= console.width:
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    parts = textwrap.wrap(
        line.strip(),
        console.width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return parts or [line]


def same_command(*added: str) -> str:
    """What was typed to start this, with more options, for a shell.

    The program is named by its path where its name alone finds another one, or none.
    """
    started = Path(sys.argv[0])
    found = shutil.which(started.name)
    own = Path(found or "").resolve() == started.resolve()
    by_name = own or started.name != "dpaudit"
    given = [*sys.argv[1:], *(option for option in added if option not in sys.argv)]
    return shlex.join(["dpaudit" if by_name else str(started), *given])


def published_command() -> str:
    """What another would type to have the same: no folder, nor option, of this machine alone."""
    kept, skip = [], False
    for word in shlex.split(same_command()):
        if not skip and word not in _NOT_PUBLISHED:
            kept.append(Path(word).name if Path(word).is_absolute() else word)
        skip = not skip and word in _NOT_PUBLISHED[:4]
    return shlex.join(["dpaudit", *kept[1:]])


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning on one line, with control characters escaped."""
    complain(" ".join(f"{filename}:{lineno}: {message}".split()), "warning")


@contextmanager
def errors_as_exit_codes(resume: str = "") -> Iterator[None]:
    """A DpauditError is a line for each problem and exit 2; Ctrl-C is exit 130.

    Whatever else is raised is one line and exit 2, for 0 and 1 are verdicts: SystemExit of an
    imported module, and KeyboardInterrupt without a signal, too. Native code that a signal meets
    may turn KeyboardInterrupt into an error of its own, so that whatever is raised after a signal
    counts as the interruption.
    """
    interrupted = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    try:
        yield
    except BaseException as error:
        if interrupted:
            complain("interrupted; what was done is kept.")
            if resume:
                stderr.print(Text(whole_line(f"To finish: {resume}")))  # on one line, to be pasted
            raise typer.Exit(130) from None
        print_problems(problems_of(error))
        raise typer.Exit(2) from None


def with_exit_code(
    command: Callable[..., int | None], again: Callable[[], str]
) -> Callable[..., None]:
    """A command that leaves with the code it returns, or with that of what it raises.

    Args:
        again: what is typed to finish it after an interruption; "": nothing is said.
    """

    @wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        with errors_as_exit_codes(again()):
            code = command(*arguments, **options)
        raise typer.Exit(code or 0)

    return run


def print_problems(problems: Sequence[Problem]) -> None:
    """A line on stderr for each problem, and below those that are alike one of what to do."""
    for i, problem in enumerate(problems):
        complain(problem.text, f"error[{problem.code}]")
        following = problems[i + 1].code if i + 1 < len(problems) else ""
        if problem.help or problem.code != following:
            complain(help_for(problem.code, problem.help), "help")


def answer(app: Callable[..., int | None]) -> int:
    """The exit code of a command, with all that it prints written; 2 for whatever goes wrong."""
    code = 0
    try:
        code = app(prog_name="dpaudit", standalone_mode=False) or 0
        if sys.stdout is not None:  # closed by whoever started this
            sys.stdout.flush()
    except KeyboardInterrupt:  # before or after what a command does
        return 130
    except _UsageError as error:
        if line := _usage_problem(error):  # none where all of the help is asked for by no argument
            where = f"{error.ctx.command_path} --help lists what there is" if error.ctx else ""
            print_problems([Problem("DPA012", line, where)])
        return 2
    except BaseException as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # unwritten output must not fail again
        if isinstance(error, SystemExit):  # typer's own answer to a broken pipe
            error = error.__context__ or error
        if isinstance(error, BrokenPipeError):  # whoever read the help, say, has read enough
            return code
        print_problems(problems_of(error))
        return 2
    return code


def _usage_problem(error: Any) -> str:
    """What is wrong with a command line, and of an unknown option which one may be meant."""
    if not isinstance(error, _NoSuchOption) or error.ctx is None:
        text = error.format_message().replace("Value error, ", "")  # typer's or pydantic's
        meant = getattr(getattr(error, "param", None), "help", None)
        if type(error).__name__ == "MissingParameter" and meant:
            text = f"{text.strip().rstrip('.')}: {meant[0].lower()}{meant[1:]}"
        return " ".join(text.split()).rstrip(".")
    option: str = error.option_name
    known = [name for parameter in error.ctx.command.params for name in parameter.opts]
    meant = [own for own, others in _OTHER_WORDS.items() if option in others.split()]
    hint = f' (did you mean "{meant[0]}"?)' if {*meant} & {*known} else nearest(option, known)
    return f"No such option: {option}{hint}"


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Each different Python warning is one line on stderr, at the end."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for text in dict.fromkeys(str(warning.message) for warning in caught):
        complain(" ".join(text.split()), "warning")


def print_result(result: "AuditResult", out: Path, as_json: bool) -> None:
    """Verdicts of an audit and where its report is, or audit.json as it is."""
    if as_json:
        say_json(result.to_json())
        return
    for note, code in zip_longest(result.notes, result.note_codes):
        say(f"note: {note}{_linked(code)}")
    if result.verdict is None:
        say("no claim was made, so there is no verdict")
    else:
        say(f"verdict: {result.verdict}. {result.meaning}")
    for claim in result.claims:
        say(f"{claim.verdict.upper()}  {claim.sentence}", _STYLES[claim.verdict])
        say(f"  against {claim.threat_model}: {claim.reason}{_linked(*claim.codes)}")
        if claim.range is not None:
            say(f"  {claim.range.sentence}")
        if claim.premises:
            say(f"  premises: {claim.examination}")
        if claim.remedy:
            say(f"  help: {claim.remedy}")
    say(f"report: {out / 'report.html'}")


def _linked(*codes: str | None) -> str:
    """Codes at the end of a line, if there are any."""
    known = [code for code in codes if code is not None]
    return f" [{', '.join(known)}]" if known else ""


def remove_outputs(*files: Path | None) -> None:
    """What lies there is of another check, and must not pass for the answer of one that fails.

    Raises:
        RunError: the path of one leads through a link.
    """
    given = [file for file in files if file is not None]
    for file in given:
        refuse_links(file)
    for file in given:
        with suppress(OSError):
            file.unlink()


def write_outputs(
    found: "CheckReport",
    strict: bool,
    junit: Path | None,
    sarif: Path | None,
    markdown: Path | None,
) -> None:
    """The picture of a summary goes beside it, because GitHub shows no embedded ones."""
    from dpaudit.reports import ci

    if junit is not None:
        write_whole(junit, ci.junit(found, strict).encode())
    if sarif is not None:
        write_whole(sarif, ci.sarif(found, strict).encode())
    if markdown is not None:
        pictures = {}
        for i, check in enumerate(found.checks):
            if check.picture is not None and Path(check.picture).exists():
                pictures[check.name] = f"{markdown.stem}-{i + 1}.png"
                picture = Path(check.picture).read_bytes()
                write_whole(markdown.parent / pictures[check.name], picture)
        write_whole(markdown, ci.markdown(found, pictures, strict).encode())


def write_problems(junit: Path | None, claims: Path, error: BaseException, seconds: float) -> None:
    """CI systems that find no report call a run that could not start a success."""
    from dpaudit.reports import ci

    if junit is not None:
        xml = ci.junit_of_problems(str(claims), problems_of(error), seconds)
        write_whole(junit, xml.encode())


def print_check(found: "CheckReport", quiet: bool, strict: bool = False) -> None:
    """A line for each statement of a check, and annotations where GitHub runs it.

    What could not be checked is on stderr, behind all outcomes.
    """
    from dpaudit.reports import ci

    made = [s for s in found.statements if s.outcome != "error"]
    for line, statement in zip(ci.plain(found), made, strict=True):
        if not quiet or statement.outcome != "holds":
            colour = {"fails": "red", "warning": "yellow", "holds": "green"}[statement.outcome]
            say(line, colour)
    for note in found.notes:
        say(note)
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for command in ci.annotations(found, strict):  # the only lines that may be commands
            say_as_it_is(command)
    errors = [s for s in found.statements if s.outcome == "error"]
    print_problems([Problem(s.code, s.message, s.remedy) for s in errors])
