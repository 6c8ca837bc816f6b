"""Plug-ins by name, from entry points: ours and those of other installed packages alike."""

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from itertools import groupby
from operator import attrgetter
from typing import Any, Literal

from .errors import ConfigError, nearest
from .strict import Strict

PluginFamily = Literal["defenses", "attacks", "reports"]

MOST_LISTED = 247  # characters of names in an error

EXPECTED: dict[PluginFamily, str] = {
    "defenses": "a class derived from dpaudit.defense.contract.Defense",
    "attacks": "a class derived from dpaudit.attack.contract.Attack",
    "reports": "a function of a result and its run directory",
}


def installed(family: PluginFamily) -> dict[str, EntryPoint]:
    """Every installed plug-in of a family by name, in order; none is imported yet.

    A name that several packages register stands for none of them: see ``contested``.
    """
    return {name: found[0] for name, found in _registered(family) if len(found) == 1}


def contested(family: PluginFamily) -> dict[str, str]:
    """The names of a family that several packages register, each with a line that says so."""
    return {
        name: _contest(family, name, found) for name, found in _registered(family) if len(found) > 1
    }


def _contest(family: PluginFamily, name: str, found: list[EntryPoint]) -> str:
    return (
        f'{family[:-1]} "{name}" is registered by several packages: '
        f"{' and '.join(map(_source, found))}; uninstall all but one"
    )


def _registered(family: PluginFamily) -> tuple[tuple[str, list[EntryPoint]], ...]:
    """Each name of a family, in order, with the entry points of all packages that register it.

    Files of every installed package are read for it, so it is kept until a folder changes in which
    packages are looked for.
    """
    return _grouped(family, entry_points, tuple((place, _changed(place)) for place in sys.path))


@lru_cache(maxsize=12)
def _grouped(
    family: PluginFamily, find: Callable[..., Iterable[EntryPoint]], places: object
) -> tuple[tuple[str, list[EntryPoint]], ...]:
    name = attrgetter("name")
    every = sorted(find(group=f"dpaudit.{family}"), key=name)
    return tuple((shared, list(found)) for shared, found in groupby(every, name))


def _changed(place: str) -> int | None:
    """When a folder changed last; None where there is none."""
    try:
        return os.stat(place or os.curdir).st_mtime_ns
    except (OSError, ValueError):
        return None


def load_plugin(family: PluginFamily, name: str) -> Any:
    """Import one plug-in: an installed one by its name, or a class as "module:Class".

    Raises:
        ConfigError: there is none of this name, or several packages register it; its module cannot
            be imported, or it does not fit its family; in one line which plug-in of which package,
            what was expected and found.
    """
    entry, before = _entry(family, name), _default_dtype()
    try:
        plugin = entry.load()
        problems = list(_problems(plugin, family))
    except (Exception, SystemExit) as error:  # whatever a module of someone else's does
        what, help = " ".join(f"{type(error).__name__}: {error}".split()), ""
        if isinstance(error, ModuleNotFoundError) and error.name == name.partition(":")[0]:
            help = (
                "Correct the name; for a module of the working folder, write PYTHONPATH=. before "
                'the command, or import_from = "." in a claims file'
            )
        where = _where(family, name, entry)
        said = f"{where} cannot be imported: {what}; expected {EXPECTED[family]}"
        raise ConfigError("DPA042", said, help) from error
    finally:
        changed = _default_dtype_since(before)
    if changed is not None:
        problems.append(changed)
    if problems:
        raise ConfigError("DPA042", f"{_where(family, name, entry)}: {'; '.join(problems)}")
    return plugin


def _where(family: PluginFamily, name: str, entry: EntryPoint) -> str:
    """A plug-in, and where it comes from; its package's description is read for that."""
    origin = "" if entry.dist is None else f" ({entry.value}, from {_source(entry)})"
    return f'{family[:-1]} "{name}"{origin}'


def _default_dtype() -> Any:
    """Torch's, as it is now or is when torch is loaded; torch is not loaded for it."""
    torch = sys.modules.get("torch")
    return None if torch is None else torch.get_default_dtype()


def _default_dtype_since(before: Any) -> str | None:
    """What is wrong if it has changed, which is undone; None: nothing."""
    torch, now = sys.modules.get("torch"), _default_dtype()
    if torch is None or now == (expected := before or torch.float32):
        return None
    torch.set_default_dtype(expected)
    return (
        f"its module calls torch.set_default_dtype({now}), which changes all other code; expected "
        "a dtype for each tensor, as torch.zeros_like(X) has it"
    )


def _entry(family: PluginFamily, name: str) -> EntryPoint:
    """The only plug-in of this name. Raises ConfigError."""
    if ":" in name:
        return EntryPoint(name, name, f"dpaudit.{family}")
    registered = dict(_registered(family))
    match registered.get(name, []):
        case [entry]:
            return entry
        case []:
            known = [other for other, found in registered.items() if len(found) == 1]
            every = f"known: {', '.join(known) or 'none'}"
            if len(every) > MOST_LISTED:
                every = f"dpaudit list {family} lists all {len(known)}"
            said = f'no {family[:-1]} is called "{name}"{nearest(name, known)}; {every}'
            raise ConfigError("DPA006", said)
        case several:
            raise ConfigError("DPA042", _contest(family, name, several))


def _source(plugin: EntryPoint) -> str:
    """The package of an installed plug-in, and its version."""
    return "" if plugin.dist is None else f"{plugin.dist.name} {plugin.dist.version}"


def _problems(plugin: Any, family: PluginFamily) -> Iterator[str]:
    """What keeps a plug-in from being one of its family."""
    is_contract = isinstance(plugin, type) and issubclass(plugin, Strict)
    found = getattr(plugin, "plugin_family", None) if is_contract else None
    if found == family:
        yield from _unfit_methods(plugin)
        for name in sorted(plugin.__class_vars__ - {*dir(plugin)}):
            yield f"expected a class variable {name}, found none"
        if "name" in plugin.model_fields:
            yield 'expected options of other names than "name", which names the plug-in itself'
    elif found is not None:
        yield f"expected {EXPECTED[family]}, found one for {found}"
    elif family != "reports" or isinstance(plugin, type) or not callable(plugin):
        what = "a class derived from none" if isinstance(plugin, type) else type(plugin).__name__
        yield f"expected {EXPECTED[family]}, found {what}"


def _unfit_methods(plugin: Any) -> Iterator[str]:
    """Methods that the contract asks for, and that are missing or take other arguments."""
    asked = {
        name: method
        for contract in plugin.__mro__
        for name, method in vars(contract).items()
        if getattr(method, "__isabstractmethod__", False)
    }
    for name, method in sorted(asked.items()):
        own = inspect.getattr_static(plugin, name)
        arguments = inspect.signature(method).parameters
        expected = f"expected a method {name}({', '.join(arguments)})"
        if name in plugin.__abstractmethods__:
            yield f"{expected}, found none"
        elif inspect.isfunction(own):
            try:
                inspect.signature(own).bind(*arguments)
            except TypeError:
                yield f"{expected}, found {name}({', '.join(inspect.signature(own).parameters)})"
