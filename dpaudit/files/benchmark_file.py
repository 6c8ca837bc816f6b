"""benchmark.toml: a base audit, axes over its keys, and which of their combinations are audits.

A key is written as its path, "defense.epsilon"; tables of an array are counted from 1 in brackets,
as in "claim[1].epsilon" and in all errors, or from 0 behind a dot, as in "claim.0.epsilon".
"""

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_origin

from pydantic import AfterValidator, Field, PositiveFloat

from dpaudit.errors import ConfigError, Problem, nearest
from dpaudit.strict import Strict, Text

from .config import AuditConfig, Plugin, kind_of, read_checked, read_toml, refuse_other_kind
from .file_problems import FileKey, FileProblem, located, models_in, refusal

_IN_BRACKETS = re.compile(r"\[([1-9][0-9]{0,3})\]")
_BEHIND_A_DOT = re.compile(r"\.([0-9]+)(?=\.|$)")

PluginOptions = Mapping[str, Iterable[str]]  # by "defense" and "attack"; none: any


def path_of(key: str) -> str:
    """The path of a key, in which tables count from 0: "claim.0.epsilon" of "claim[1].epsilon"."""
    return _IN_BRACKETS.sub(lambda table: f".{int(table[1]) - 1}", key)


def called(path: str) -> str:
    """How errors call the key of a path; the inverse of ``path_of``."""
    return _BEHIND_A_DOT.sub(lambda table: f"[{int(table[1]) + 1}]", path)


def _by_paths(setting: dict[str, Any]) -> dict[str, Any]:
    return {path_of(key): value for key, value in setting.items()}


# Values by the path of the key at which each is set.
Setting = Annotated[dict[str, Any], AfterValidator(_by_paths)]
Seed = Annotated[int, Field(ge=0, lt=2**63, strict=True)]


class Axis(Strict):
    """A list of values of which every cell of the grid has one.

    With ``key`` a value is set there, or at each of several keys. Without it every value is a table
    of what is set where.
    """

    key: str | tuple[str, ...] = ()
    values: Annotated[tuple[Any, ...], Field(min_length=1)]

    @property
    def settings(self) -> list[Setting]:
        """What each value sets."""
        keys = (self.key,) if isinstance(self.key, str) else self.key
        settings = [dict.fromkeys(keys, value) if keys else value for value in self.values]
        return [_by_paths(setting) for setting in settings]

    @property
    def always(self) -> list[str]:
        """The keys that each of its values sets."""
        first, *others = self.settings
        return [key for key in first if all(key in other for other in others)]


class Factor(Strict):
    """What is tried at some keys: the value that is set there times each of these."""

    keys: Annotated[tuple[str, ...], Field(min_length=1)]  # to try, for defenses that have them
    values: Annotated[tuple[PositiveFloat, ...], Field(min_length=1)]  # 1: as it is set


class Tuning(Strict):
    """What is chosen for each defense on validation data before it is audited.

    Every combination trains a candidate for each combination of factors, and keeps the best.
    """

    seed: Seed  # for the compared runs, not the audited ones
    validation: Annotated[float, Field(gt=0, lt=1)] = (
        0.2  # share of the training records on which candidates are compared
    )
    factor: Annotated[tuple[Factor, ...], Field(min_length=1)]
    shared: tuple[str, ...] = ()  # keys whose values share the choice of the first of them


class Benchmark(Strict):
    """The content of a benchmark file.

    Its cells are the combinations of all values of all axes but those that are excluded, and those
    that are listed beside them; each is an audit for every seed.
    """

    name: Text | None = None  # default: the name of the file
    audit: str | dict[str, Any]  # a path relative to this file, or an audit's content
    seeds: tuple[Seed, ...] = ()  # default: the seed of the audit
    axis: tuple[Axis, ...] = ()
    cell: tuple[
        Annotated[Setting, Field(min_length=1)], ...
    ] = ()  # cells beside the grid, each with the keys that it sets
    exclude: tuple[
        Annotated[Setting, Field(min_length=1)], ...
    ] = ()  # combinations to leave out: values, or lists of values
    tuning: Tuning | None = None  # None: every value is as it is set


@dataclass(frozen=True)
class BenchmarkFile:
    """A benchmark with the text it comes from, and its base audit with its own."""

    path: Path
    text: str
    benchmark: Benchmark
    base: dict[str, Any]  # the content of the audit, in which the path of data is absolute
    base_path: Path
    base_text: str
    base_at: FileKey  # place of the audit in that file

    @classmethod
    def read(cls, path: Path) -> "BenchmarkFile":
        """Read a benchmark file and its base; whether its cells are audits is not checked.

        Raises:
            ConfigError: one line for each problem, with file, line and key.
        """
        benchmark, text = read_checked(path, "benchmark", Benchmark, _cross_checks)
        at: FileKey = ()
        if isinstance(benchmark.audit, str):
            base_path = path.parent / benchmark.audit
            base, base_text = read_toml(base_path)
            refuse_other_kind(base_path, base, "audit", "program")
        else:
            base_path, at = path, ("audit",)
            base, base_text = benchmark.audit, text
        if kind_of(base) == "program":
            said = "a benchmark compares defenses; audit a program by itself: dpaudit audit"
            raise refusal(base_path, base_text, [(("program",), Problem("DPA009", said))], at)
        base = {key: with_absolute_data(key, part, base_path.parent) for key, part in base.items()}
        return cls(path, text, benchmark, base, base_path, base_text, at)

    @property
    def name(self) -> str:
        return self.benchmark.name or self.path.stem

    def located(self, key: FileKey, problem: Problem) -> Problem:
        """A problem at a key of this file, with its line."""
        return located(self.path, self.text, key, problem)

    def located_in_base(self, key: FileKey, problem: Problem) -> Problem:
        """A problem at a key of the base audit, with its line."""
        return located(self.base_path, self.base_text, (*self.base_at, *key), problem)

    def refusal(self, key: FileKey, message: str) -> ConfigError:
        """What is to be raised for a problem at a key of this file."""
        return ConfigError.of([self.located(key, Problem("DPA005", message))])


def with_absolute_data(key: str, value: Any, folder: Path) -> Any:
    """What is set at a key of an audit; a path of data is relative to the file that names it."""
    if key == "data.path" and isinstance(value, str):
        return str((folder / value).resolve())
    if key == "data" and isinstance(value, Mapping) and isinstance(value.get("path"), str):
        return {**value, "path": str((folder / value["path"]).resolve())}
    return value


def _cross_checks(benchmark: Benchmark, folder: Path) -> Iterator[FileProblem]:
    if isinstance(benchmark.audit, str) and not (folder / benchmark.audit).is_file():
        yield ("audit",), Problem("DPA007", f'there is no file "{benchmark.audit}"')
    if len(set(benchmark.seeds)) < len(benchmark.seeds):
        yield (
            ("seeds",),
            Problem("DPA005", "a seed is there twice; each gives the same audit again"),
        )
    tuning = benchmark.tuning
    if tuning is not None and tuning.seed in benchmark.seeds:
        said = "the runs that choose would be among those that are audited; expected another seed"
        yield ("tuning", "seed"), Problem("DPA005", said)
    tried = [key for factor in (tuning.factor if tuning else ()) for key in factor.keys]
    if len(set(tried)) < len(tried):
        yield ("tuning", "factor"), Problem("DPA005", "a key is there twice; expected it once")
    set_by: dict[str, str] = {}  # keys of the axes before
    for i, axis in enumerate(benchmark.axis):
        if not axis.key and not all(isinstance(value, dict) and value for value in axis.values):
            said = "expected a key, or values that are tables of what is set where, like "
            yield ("axis", i), Problem("DPA005", said + '{ "graph.name" = "ring" }')
            continue
        seen = set[str]()
        for value in map(repr, axis.values):  # repr distinguishes 1 and True
            if value in seen:
                yield ("axis", i, "values"), Problem("DPA005", f"{value} is there twice")
            seen.add(value)
        for key in axis.always:
            if key in set_by:
                said = f'sets "{called(key)}" in all its values, as {set_by[key]} does; '
                yield ("axis", i), Problem("DPA005", f"{said}expected one axis for each key")
        set_by |= dict.fromkeys(axis.always, f"axis[{i + 1}]")
    yield from _repeated(benchmark.cell, "cell")
    yield from _repeated(benchmark.exclude, "exclude")


def _repeated(tables: tuple[Setting, ...], name: str) -> Iterator[FileProblem]:
    first: dict[Hashable, int] = {}
    for i, table in enumerate(tables):
        j = first.setdefault(hashable(table), i)
        if j < i:
            yield (name, i), Problem("DPA005", f"is {name}[{j + 1}] again")


def hashable(value: Any) -> Hashable:
    """Equal for equal values of a file, whatever tables and arrays are in them."""
    if isinstance(value, Mapping):
        return frozenset((key, hashable(part)) for key, part in value.items())
    return tuple(map(hashable, value)) if isinstance(value, list | tuple) else value


def unknown_key(path: str, options: PluginOptions, suggest: bool = True) -> str | None:
    """Why no audit has a key of this path; None if one can have it.

    Args:
        path: such as "defense.epsilon" or "claim.0.epsilon".
        options: the names of the options that the plug-ins at hand have.
        suggest: whether the nearest key is looked for, which takes long for many paths.
    """
    annotation: Any = AuditConfig
    parts = path.split(".")
    for i, part in enumerate(parts):
        before = ".".join(parts[:i])
        if get_origin(annotation) is tuple and models_in(annotation):
            if not (part.isascii() and part.isdigit()):
                return f'"{called(path)}": expected {before}[1], {before}[2], ... for its tables'
            annotation = models_in(annotation)[0]
            continue
        known = _inside(annotation, options.get(parts[0], ()))
        if known is None:
            return None
        if part not in known:
            paths = [called(f"{before}.{name}".lstrip(".")) for name in known]
            own = called(".".join(parts[: i + 1]))
            said = f'an audit has no key "{own}"{nearest(own, paths) if suggest else ""}'
            return f"{said}; known here: {', '.join(known)}" if known else said
        annotation = known[part]
    return None


def _inside(annotation: Any, options: Iterable[str]) -> dict[str, Any] | None:
    """The keys of a table and what each holds; None where any is possible."""
    models = models_in(annotation)
    if Plugin in models:
        named = dict.fromkeys(options, Any)
        return {"name": str, **named} if named else None
    if annotation is Any:
        return None
    return {name: field.annotation for m in models for name, field in m.model_fields.items()}
