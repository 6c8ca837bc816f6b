"""What the command of a program is: a script, torchrun, or something else that starts ranks."""

from pathlib import Path

from dpaudit.errors import ConfigError
from dpaudit.files.captured_file import ProgramOptions

LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch")
PROCESSES = ("--nproc-per-node", "--nproc_per_node")
WITH_VALUE = (*PROCESSES, "--master-port", "--master_port", "--nnodes")
ALONE = ("--standalone",)
MODULE = ("-m", "--module")


def refuse_missing_script(options: ProgramOptions) -> None:
    """Raises ConfigError for a command that names no program, or a file that is not there."""
    program, *rest = options.command
    said = " ".join(options.command)
    if not options.ranks and not (_is_python(program) and rest and rest[0].endswith(".py")):
        raise ConfigError(
            "DPA057",
            f"program.command: {said}: expected python SCRIPT.py ... for a simulation in one "
            "process; a torch.distributed program needs program.ranks",
        )
    named = next((part for part in options.command if part.endswith(".py")), None)
    if named is None and not {*MODULE} & {*rest}:
        raise ConfigError(
            "DPA057",
            f"program.command: {said}: names no program; expected SCRIPT.py or -m MODULE in it",
        )
    if named is not None and not (script := options.folder / named).is_file():
        raise ConfigError("DPA057", f"program.command: {script}: no such file")


def torchrun(options: ProgramOptions) -> list[str] | None:
    """The script and its arguments where a command is torchrun with options that are known.

    None: it is another command, which starts its ranks by itself. Raises ConfigError where it
    starts other ranks than those of the file.
    """
    program, *rest = options.command
    if _is_python(program) and rest[:1] == ["-m"] and rest[1:2] and rest[1] in LAUNCHERS:
        rest = rest[2:]
    elif Path(program).name != "torchrun":
        return None
    ranks = "1"
    while rest and rest[0].startswith("-"):
        option, equals, value = rest.pop(0).partition("=")
        if option in ALONE:
            continue
        if option not in WITH_VALUE or not (equals or rest):
            return None
        value = value if equals else rest.pop(0)
        if option in PROCESSES:
            ranks = value
        elif option == "--nnodes" and value != "1":
            return None
    if not rest or not rest[0].endswith(".py"):
        return None
    if ranks != str(options.ranks):
        raise ConfigError("DPA057", f"program.ranks: {options.ranks}; the command starts {ranks}")
    return rest


def _is_python(program: str) -> bool:
    return Path(program).name.startswith("python")
