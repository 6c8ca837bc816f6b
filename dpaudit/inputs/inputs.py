"""The inputs of a run as its log has them: whether what was read is still as it was."""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Literal, NamedTuple

from dpaudit.files.documents import read_json
from dpaudit.strict import Strict

from .recorder import FOLDER, content, module_place, names_in

LOG = "inputs.log"  # in a run directory, written by the recorder
Kind = Literal["read", "listed", "sought", "sought with portions"]


class Input(NamedTuple):
    """One thing that a run depended on, and what it was like."""

    kind: Kind
    path: str
    name: str  # sought: of a module; listed: what of the folder does not count, joined by "/"
    value: str

    @property
    def has_changed(self) -> bool:
        return _NOW[self.kind](self.path, self.name) != self.value


_NOW: Mapping[str, Callable[[str, str], str]] = {
    "read": lambda path, name: content(path),
    "listed": lambda path, ignored: _listing(names_in(path), ignored.split("/")),
    "sought": lambda path, name: module_place(path, name, False),
    "sought with portions": lambda path, name: module_place(path, name, True),
}


class Inputs(Strict):
    """What a run read, in order, and why that is perhaps not all of it."""

    inputs: tuple[Input, ...] = ()
    unknown: tuple[str, ...] = ()  # sentences that begin with "it"; empty: all inputs are known

    @classmethod
    def of_log(cls, folder: Path) -> "Inputs":
        """Inputs logged in a run directory; none if no log was kept."""
        try:
            lines = (folder / LOG).read_text("utf-8").splitlines()
            return _of_lines([json.loads(line) for line in lines])
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, TypeError):
            return cls(unknown=(f"its {LOG} is damaged, and what it reads is not known",))

    @classmethod
    def read(cls, path: Path, root: Path) -> "Inputs":
        """What ``text`` made. Raises OSError or ValueError."""
        found = cls.model_validate(read_json(path))
        places = [os.path.normpath(root / one.path) for one in found.inputs]
        inputs = [one._replace(path=at) for one, at in zip(found.inputs, places, strict=True)]
        return found.model_copy(update={"inputs": tuple(inputs)})

    def text(self, root: Path) -> str:
        """JSON with paths below ``root`` relative to it, so that the folder can be moved."""
        inputs = tuple(_relative(one, root) for one in self.inputs)
        return self.model_copy(update={"inputs": inputs}).model_dump_json(indent=1) + "\n"

    def doubt(self) -> str | None:
        """Why what was computed from these may not stand; None if it may."""
        if self.unknown:
            return self.unknown[0]
        changed = next((one for one in self.inputs if one.has_changed), None)
        if changed is None:
            return None
        sought = changed.kind.startswith("sought")
        return f"{os.path.join(changed.path, changed.name) if sought else changed.path} changed"

    def digest(self, root: Path) -> str:
        """The hash of the contents that were read."""
        read = [_relative(one, root) for one in self.inputs if one.kind == "read"]
        return sha256(json.dumps(sorted(read)).encode()).hexdigest()


def _of_lines(lines: list[list[str]]) -> Inputs:
    """Without what the run itself had written before it read it."""
    found: dict[Input, None] = {}
    wrote, unknown = dict[str, None](), dict[str, None]()
    for kind, path, *more in lines:
        if kind == "unknown":
            unknown[path] = None
        elif kind == "wrote":
            wrote[path] = None
        elif kind == "moved":
            to, value = more
            if not _is_made(path, wrote) and value != FOLDER:
                found[Input("read", path, "", value)] = None
            if _is_made(path, wrote) or value != FOLDER:
                wrote[to] = None
        elif not _is_made(path, wrote):
            name, value = more if len(more) == 2 else ("", more[0])
            found[Input(kind, path, name, value)] = None  # type: ignore[arg-type]
    made: dict[str, list[str]] = {}
    for path in wrote:
        made.setdefault(os.path.dirname(path), []).append(os.path.basename(path))
    inputs = tuple(sorted(_without(one, made) for one in found))
    return Inputs(inputs=inputs, unknown=tuple(unknown))


def _is_made(path: str, wrote: Mapping[str, None]) -> bool:
    return path in wrote or any(str(above) in wrote for above in Path(path).parents)


def _without(one: Input, made: Mapping[str, list[str]]) -> Input:
    """A listing, as a hash, without what the run put into the folder."""
    if one.kind != "listed":
        return one
    ignored = sorted(set(made.get(one.path, ())))
    value = _listing(one.value.split("/") if one.value else (), ignored)
    return Input(one.kind, one.path, "/".join(ignored), value)


def _relative(one: Input, root: Path) -> Input:
    below = one.path == str(root) or one.path.startswith(f"{root}{os.sep}")
    return one._replace(path=os.path.relpath(one.path, root)) if below else one


def _listing(names: Iterable[str], ignored: Iterable[str]) -> str:
    """The hash of names, without some."""
    names = set(names) - set(ignored)
    return sha256("\0".join(sorted(names)).encode("utf-8", "surrogateescape")).hexdigest()
