"""A command with every one of its processes recorded, and what came of it."""

import ast
import json
import os
import re
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import dpaudit.recorder
from dpaudit.codes import entries
from dpaudit.errors import RunError, shortened
from dpaudit.files.atomic_files import write_whole, writing
from dpaudit.files.documents import reason, text_of
from dpaudit.files.interpreter import in_environment, with_python
from dpaudit.files.recorded import (
    BATCHES,
    DRAFT,
    DRAWS,
    EVENTS,
    PAGE,
    TRANSCRIPT,
    UNSEEN,
    write_lines,
)
from dpaudit.inputs.recorder import INSIDE
from dpaudit.memory import size_text
from dpaudit.recorder.player import RAW
from dpaudit.recorder.start import OPTIONS
from dpaudit.recorder.transports.ray_objects import WORKER
from dpaudit.text import one_line

from .channels import routed
from .process_logs import (
    Process,
    all_over,
    batches_of,
    draws_of,
    first_failure,
    in_threads,
    processes_in,
    unseen_by,
)
from .process_tree import guarded, left_running
from .recording import CaptureFolder, write_transcript
from .rounds import numbered, rounds_of
from .simulation import Counting, is_simulation, with_counted_rounds

RECORDER = Path(dpaudit.recorder.__file__).resolve().parent  # the package that every process loads
SECONDS, MOST_BYTES = 600.0, 2 * 10**9
LONGEST_COMMAND = 160  # characters of it that an error shows
_CODED = re.compile(r"(DPA\d{3}) (.*)", re.DOTALL)  # refusals of the recorder that have a page
LOST = "what a process sent and drew after that is not recorded"
LEFT_RUNNING = (
    "{} still ran when the command ended, and had to be ended: start the program so that it waits "
    "for what it starts"
)
_PAUSE = 0.1  # seconds


@dataclass(frozen=True)
class Options:
    """How a command is recorded."""

    seconds: float = SECONDS  # time limit
    most_bytes: int = MOST_BYTES  # limit for the contents of all messages of all processes
    cpu: bool = False  # answer for CUDA with the CPU, and for nccl with gloo
    round_starts_at: str | None = None  # a call site
    transport: Path | None = None  # the adapter of another transport: docs/own-script.md
    python: Path | None = None  # interpreter of the program's environment; None: dpaudit's own


def capture(command: Sequence[str], out: Path, options: Options = Options()) -> CaptureFolder:
    """Run a command to its end, and keep what its processes sent and drew.

    It has this process's input, output and working folder. What it leaves running is ended.

    Raises:
        RunError: it cannot be started, ends with an error or not in time, sends nothing or too
            much, or uses a torch that is not supported; or ``out`` cannot be written, or holds
            something else than a capture. All its processes have ended then. What was recorded
            until then is kept, and the error says so.
        KeyboardInterrupt: what was recorded is kept then, too.
    """
    if options.transport is not None:
        _refuse_unfit_adapter(options.transport)
    with _raw_folder(out) as raw:
        most_bytes, transport = options.most_bytes, options.transport
        hooks = hooked(raw, os.getcwd(), options.cpu, most_bytes, transport)
        started = with_python(options.python, command)
        ended = _run(started, in_environment(options.python, hooks), raw, options)
        processes, left_out = _read(raw, ended.failure)
        failure = ended.failure or _failure(command, ended, processes, most_bytes)
        if failure is not None and not any(process.of_kind("sent") for process in processes):
            raise failure
        sent, drawn = write_transcript(processes, out), draws_of(processes)
        taken = batches_of(processes)
        children = _children(processes)
        if is_simulation(sent, children) and options.round_starts_at is None:
            counting = Counting.of(sent, taken, in_threads(processes))
            sent, drawn = with_counted_rounds(sent, drawn, taken, counting)
        else:
            rounds = rounds_of(sent, drawn, options.round_starts_at)
            sent, drawn = numbered(sent, rounds), numbered(drawn, rounds)
    write_lines(out / EVENTS, sent)
    write_lines(out / DRAWS, drawn)
    write_lines(out / BATCHES, taken)
    if unseen := [*unseen_by(processes), *left_out, *ended.unseen]:
        write_whole(out / UNSEEN, "".join(f"{line}\n" for line in unseen).encode())
    if isinstance(failure, RunError):
        code, kept = failure.code, f"; what was recorded is kept: {len(sent)} messages in {out}"
        raise RunError(code, f"{failure}{kept}", failure.problems[0].help)
    if failure is not None:
        raise failure
    warning = f"{_ended(command, ended.code)} when all was sent; the recording is kept"
    return CaptureFolder(out, warning if ended.code else None, children)


def _children(processes: Sequence[Process]) -> tuple[int, ...]:
    """The processes that others of the program have started."""

    def started(about: Mapping[str, Any]) -> bool:
        ray = Path(next(iter(about.get("command", ())), "")).name == WORKER  # which has no place
        return ray or bool(about.get("place") or about.get("identity"))

    return tuple(
        number
        for number, process in enumerate(processes)
        if any(map(started, process.of_kind("process")))
    )


class CommandEnd(NamedTuple):
    """How a command ended."""

    code: int  # negative: by that signal
    failure: BaseException | None = None  # why it was ended
    unseen: tuple[str, ...] = ()  # what could not be recorded


def _read(raw: Path, failure: BaseException | None) -> tuple[list[Process], list[str]]:
    """What processes wrote; of a command that was ended, an error about it is the first one."""
    try:
        return routed(processes_in(raw))
    except RunError as error:
        raise failure or error from None


def _refuse_unfit_adapter(path: Path) -> None:
    """It is run inside the program, where it is too late to say what is wrong with it."""
    try:
        body = ast.parse(text_of(path), str(path)).body
    except (OSError, ValueError, SyntaxError) as error:
        said = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else None
        why = said or reason(error)  # type: ignore[arg-type]
        raise RunError("DPA042", f"--transport {path}: {why}") from None
    names = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    names |= {
        ast.unparse(to) for node in body if isinstance(node, ast.Assign) for to in node.targets
    }
    if missing := sorted({"MODULE", "hook"} - names):
        raise RunError(
            "DPA042",
            f"--transport {path}: has no {missing[0]}; expected MODULE, the name of the module "
            "that sends, and a function hook(module, sent)",
        )


def hooked(
    folder: Path | None,
    origin: str,
    cpu: bool,
    most_bytes: int,
    transport: Path | None = None,
    world: bool = False,
) -> dict[str, str]:
    """This process's environment, in which Python starts the hooks, with what these need to know.

    Args:
        folder: for what processes write; None: a server names it and starts the hooks.
    """
    given = {
        "package": str(RECORDER),
        "start": INSIDE,
        "folder": None if folder is None else str(folder.resolve()),
        "origin": origin,
        "most_bytes": most_bytes,
        "cpu": cpu,
        "transport": None if transport is None else str(transport.resolve()),
        "world": world,
    }
    before = [path] if (path := os.environ.get("PYTHONPATH")) else []
    path = os.pathsep.join([INSIDE, *before])
    return {**os.environ, OPTIONS: json.dumps(given), "PYTHONPATH": path}


@contextmanager
def _raw_folder(out: Path) -> Iterator[Path]:
    """An empty folder for what processes write, in that of the capture, and gone afterwards."""
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        known = {EVENTS, DRAWS, BATCHES, TRANSCRIPT, DRAFT, PAGE, UNSEEN, RAW}
        other = sorted(path.name for path in out.iterdir() if path.name not in known)
        if other:
            raise RunError(
                "DPA015", f"{out}: holds {other[0]}; expected a new folder or an earlier capture"
            )
        for name in (EVENTS, DRAWS, BATCHES, PAGE, UNSEEN):
            (out / name).unlink(missing_ok=True)
        for name in (TRANSCRIPT, RAW):
            shutil.rmtree(out / name, ignore_errors=True)
        (out / RAW).mkdir()
    try:
        yield out / RAW
    finally:
        shutil.rmtree(out / RAW, ignore_errors=True)


def _run(
    command: Sequence[str], environment: Mapping[str, str], raw: Path, options: Options
) -> CommandEnd:
    """How a command ended, and with it all that it started."""
    too_much, left = [], list[int]()

    def is_too_much() -> bool:
        if sum(path.stat().st_size for path in raw.glob("*.bin")) > options.most_bytes:
            too_much.append(too_large(options.most_bytes, ", or give a larger --max-bytes"))
        return bool(too_much)

    try:
        code = status_of(
            command, environment, options.seconds, is_too_much, _PAUSE, on_end=left.extend
        )
    except KeyboardInterrupt as interrupted:
        return CommandEnd(0, interrupted)
    if code is None:
        late = RunError(
            "DPA058",
            f"{command[0]}: still running after {options.seconds:g} seconds, and was ended",
            "give --seconds if it needs longer",
        )
        return CommandEnd(0, too_much[0] if too_much else late)
    lost = [f"{one_line(path.read_text())}: {LOST}" for path in sorted(raw.glob("*.lost"))]
    if left:
        n = "1 process" if len(left) == 1 else f"{len(left)} processes"
        lost.append(LEFT_RUNNING.format(n))
    return CommandEnd(code, None, tuple(lost))


def status_of(
    command: Sequence[str],
    environment: Mapping[str, str],
    seconds: float,
    is_over: Callable[[], bool],
    pause: float,
    on_end: Callable[[list[int]], None] | None = None,
    **how: Any,
) -> int | None:
    """The exit status of a command; None if it was ended, in time or not, with all that it started.

    Args:
        seconds: after which it is ended.
        is_over: asked between pauses whether to end it before.
        on_end: called with the processes that it leaves running.
        how: what ``subprocess.Popen`` takes beside these.

    Raises RunError if it cannot be started.
    """
    deadline, mark = time.monotonic() + seconds, f"{OPTIONS}={environment[OPTIONS]}"
    try:
        with guarded(mark, command, env=environment, **how) as started:
            while (status := started.poll()) is None and time.monotonic() < deadline:
                if is_over():
                    break
                time.sleep(pause)
            if status is not None and on_end is not None:
                on_end(left_running(started.pid, mark))
            return status
    except (OSError, ValueError) as error:
        raise RunError(
            "DPA057",
            f"{command[0]}: cannot be started: {reason(error)}",
            "activate the environment that has it, or name its Python by --python or "
            "program.python",
        ) from None


def too_large(most_bytes: int, remedy: str = "") -> RunError:
    """The error that a transcript is too large; ``remedy`` is added to the help."""
    return RunError(
        "DPA066",
        f"the transcript is larger than {size_text(most_bytes)}",
        f"run fewer rounds or a smaller model{remedy}",
    )


def _failure(
    command: Sequence[str], ended: CommandEnd, processes: Sequence[Process], most_bytes: int
) -> RunError | None:
    """Why a command gave no recording, or not all of one."""
    noted = {
        kind: [one_line(r.get("text", "")) for p in processes for r in p.of_kind(kind)]
        for kind in ("refused", "full")
    }
    if noted["refused"]:
        code, why = coded(noted["refused"][0], "DPA060")
        return RunError(code, f"{_said(command)}: {why}")
    if noted["full"]:
        return too_large(most_bytes, ", or give a larger --max-bytes")
    if ended.code and not all_over(processes):
        first = first_failure(processes)
        why = f": {first}" if first else "; its own output says why"
        return RunError("DPA058", f"{_ended(command, ended.code)}{why}{port_hint(why)}")
    if any(process.of_kind("sent") for process in processes):
        return None
    return RunError(
        "DPA059",
        f"{_said(command)}: no message was seen; expected a program that sends by one of the "
        "transports that dpaudit knows, or calls dpaudit.tap.send, and whose Python is not started "
        "with -E, -I or -S"
        + "".join(f"; {text}" for text in (*unseen_by(processes), *ended.unseen)),
    )


def _said(command: Sequence[str]) -> str:
    return shortened(one_line(shlex.join(command)), LONGEST_COMMAND)


def _ended(command: Sequence[str], code: int) -> str:
    how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return f"{_said(command)}: {how}"


def coded(why: str, code: str) -> tuple[str, str]:
    """What the recorder refuses: the code of its page, or this one, and the line without it."""
    found = _CODED.fullmatch(why)
    return (found[1], found[2]) if found and found[1] in entries() else (code, why)


def port_hint(why: str) -> str:
    """What to do about a port in use, if that is what an error says."""
    in_use = any(text in why for text in ("EADDRINUSE", "Address already in use"))
    return "; the port is in use: end what holds it, or give another one" if in_use else ""
