"""What is known of a value inside a function: facts that follow it through assignments."""

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from .vocabulary import Family, LoopKind

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Names: TypeAlias = frozenset[str]
NONE: Names = frozenset()
LONGEST = 8  # parts of a dotted name
MOST = 100  # names or parts that are remembered of one value


@dataclass(frozen=True)
class Loop:
    """A loop, by its place, what it runs over, and the names that change with it."""

    line: int
    kind: LoopKind
    names: Names


@dataclass(frozen=True)
class NoiseDraw:
    """One place where noise is drawn."""

    line: int
    column: int
    family: Family
    scale: Names  # names from which its scale was computed, without a generator's default
    loops: tuple[Loop, ...]
    name: str  # name of the called function
    source: str = ""  # the library or generator that is called
    seeds: Names = NONE  # the tags of the seeds of its generator


@dataclass(frozen=True)
class Norm:
    """A norm that was computed."""

    order: float | None  # None: not known
    of: Names
    each: bool  # along an axis: one for each row
    loops: tuple[Loop, ...]


@dataclass(frozen=True)
class Clip:
    """One place where a value is made no longer than a bound."""

    line: int
    column: int
    order: float | None  # None: not known; inf: each coordinate
    bound: Names
    each: bool  # row by row
    loops: tuple[Loop, ...]
    name: str  # name of the called function; "" for a formula
    norms: frozenset[Norm] = frozenset()


@dataclass(frozen=True)
class Value:
    """What an expression may hold: the union over all branches that lead to it.

    Tags are "data" (anything but noise and settings), "statistic", "length", "classical" (it
    contains log(1.25 / delta)), "mechanism" (it draws when it is called), "grad", "dtype",
    "derived" (by a function that is not known), and "seed:LINE" of a generator.
    """

    names: Names = NONE
    draws: frozenset[NoiseDraw] = frozenset()
    clips: frozenset[Clip] = frozenset()
    norms: frozenset[Norm] = frozenset()
    tags: Names = NONE
    bound: Names | None = None  # of the norm, for a factor that clips
    number: float | None = None
    function: Function | None = None
    parts: tuple[tuple[int, int, "Value"], ...] = field(default=(), compare=False)

    def __or__(self, other: "Value") -> "Value":
        if other is NOTHING or other is self:
            return self
        if self is NOTHING:
            return other
        bounds = [bound for bound in (self.bound, other.bound) if bound is not None]
        return Value(
            few(self.names | other.names),
            self.draws | other.draws,
            self.clips | other.clips,
            self.norms | other.norms,
            self.tags | other.tags,
            frozenset().union(*bounds) if bounds else None,
            self.number if self.number == other.number else None,
            self.function or other.function,
            (self.parts + other.parts)[:MOST],
        )

    @property
    def is_noise(self) -> bool:
        """Noise and nothing else."""
        return bool(self.draws) and "data" not in self.tags

    def tagged(self, *tags: str) -> "Value":
        return replace(self, tags=self.tags.union(tags))

    def without(self, *tags: str) -> "Value":
        return replace(self, tags=self.tags.difference(tags))


NOTHING = Value()


def few(names: Iterable[str]) -> Names:
    """The names; none if they are too many to mean anything."""
    kept = names if isinstance(names, frozenset) else frozenset(names)
    return kept if len(kept) <= MOST else NONE


def union(values: Iterable[Value]) -> Value:
    found = NOTHING
    for value in values:
        found = found | value
    return found


def either(one: Value, other: Value) -> Value:
    """What one of two branches gave: a length only if both did."""
    if one == other:
        return one
    lengths = ("length" in one.tags) + ("length" in other.tags)
    return (one | other).without("length") if lengths == 1 else one | other


def scaled(noise: Value, by: Value) -> Value:
    """Noise times a number, or divided by one."""
    draws = frozenset(
        replace(draw, scale=few(draw.scale | by.names)) if by.names else draw
        for draw in noise.draws
    )
    return replace(noise, draws=draws, names=few(noise.names | by.names))


@dataclass(frozen=True)
class FunctionEvent:
    """Something that happens in a function: kind, place, and the values that take part.

    Kinds: add (data, noise), clip (data), divide (dividend, divisor), cast (value), formula
    (dividend, divisor), send and log (arguments), seed (arguments), key (arguments),
    return (value), call (arguments).
    """

    kind: str
    line: int
    column: int
    values: tuple[Value, ...]
    loops: tuple[Loop, ...]
    name: str = ""  # name of the call, or of the dtype
    clip: Clip | None = None
    function: str = ""  # name of the function around it


def path_of(node: ast.AST) -> str:
    """A dotted name, such as "self.sigma"; a key that is a text counts as one. "" of all else."""
    parts: list[str] = []
    while True:
        if isinstance(node, ast.Attribute):
            parts.append(node.attr)
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            if not isinstance(node.slice.value, str) or not node.slice.value.isidentifier():
                return ""
            parts.append(node.slice.value)
        else:
            break
        node = node.value
    if not isinstance(node, ast.Name) or len(parts) > LONGEST:
        return ""
    return ".".join([node.id, *reversed(parts)])
