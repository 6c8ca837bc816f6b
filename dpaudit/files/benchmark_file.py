"""benchmark.toml: a base audit, axes over its keys, and which of their combinations are audits.

A key is written as its path, "defense.epsilon"; tables of an array are counted from 1 in brackets,
as in "claim[1].epsilon" and in all errors, or from 0 behind a dot, as in "claim.0.epsilon".
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError

from dpaudit.errors import ConfigError, Problem
from dpaudit.strict import Strict, Text

from .audit_keys import called, path_of
from .config import read_toml
from .file_problems import FileKey, FileProblem, located, problems_of, refusal
from .kinds import kind_of, refuse_other_kind


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


class Benchmark(Strict):
    """The content of a benchmark file.

    Its cells are the combinations of all values of all axes but those that are excluded, and those
    that are listed beside them; each is an audit for every seed.
    """

    name: Text | None = None  # default: the file's
    audit: str | dict[str, Any]  # a path relative to this file, or an audit's content
    seeds: tuple[Seed, ...] = ()  # default: that of the audit
    axis: tuple[Axis, ...] = ()
    cell: tuple[Annotated[Setting, Field(min_length=1)], ...] = ()  # beside the grid: what it sets
    exclude: tuple[Annotated[Setting, Field(min_length=1)], ...] = ()  # values, or lists of some


@dataclass(frozen=True)
class BenchmarkFile:
    """A benchmark with the text it comes from, and its base audit with its own."""

    path: Path
    text: str
    benchmark: Benchmark
    base: dict[str, Any]  # the content of the audit, in which the path of data is absolute
    base_path: Path
    base_text: str
    base_at: FileKey  # where in that file the audit is

    @classmethod
    def read(cls, path: Path) -> "BenchmarkFile":
        """Read a benchmark file and its base; whether its cells are audits is not checked.

        Raises:
            ConfigError: one line for each problem, with file, line and key.
        """
        content, text = read_toml(path)
        refuse_other_kind(path, content, "benchmark")
        try:
            benchmark = Benchmark.model_validate(content)
            problems = list(_cross_checks(benchmark, path.parent))
        except ValidationError as error:
            problems = list(problems_of(error, Benchmark, content))
        if problems:
            raise refusal(path, text, problems)
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
    set_by: dict[str, str] = {}  # keys of the axes before
    for i, axis in enumerate(benchmark.axis):
        if not axis.key and not all(isinstance(value, dict) and value for value in axis.values):
            said = "expected a key, or values that are tables of what is set where, like "
            yield ("axis", i), Problem("DPA005", said + '{ "graph.name" = "ring" }')
            continue
        seen = set[str]()
        for value in map(repr, axis.values):  # in which 1 is not True
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
