"""A call, and what is known of what takes part in it."""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .values import Value, path_of, union
from .vocabulary import ABOUT

if TYPE_CHECKING:
    from .flow import Flow


@dataclass(frozen=True)
class CalledFunction:
    """A call, and what is known of what takes part in it."""

    flow: "Flow"
    node: ast.Call
    name: str  # the last part
    path: str  # the dotted name; "" if it has none
    receiver: Value
    values: Sequence[Value]
    named: Mapping[str, Value]

    @property
    def is_method(self) -> bool:
        return isinstance(self.node.func, ast.Attribute)

    @property
    def root(self) -> str:
        return self.path.partition(".")[0]

    @property
    def receiver_path(self) -> str:
        return self.path.rpartition(".")[0]

    def argument(self, position: int, *names: str) -> Value | None:
        """The argument given by keyword, or else by position."""
        for name in names:
            if name in self.named:
                return self.named[name]
        return self.values[position] if position < len(self.values) else None

    def all(self) -> Value:
        """What goes in, but for what says where and in which shape."""
        named = [value for key, value in self.named.items() if key not in ABOUT | {"dtype"}]
        return union([*self.values, *named])


def change(call: CalledFunction, argument: ast.AST, after: Value) -> None:
    """What a call does to an argument in its place."""

    if after.draws or after.clips:
        call.flow.change(path_of(argument), replace(after, parts=()))


def is_operand(call: CalledFunction) -> bool:
    return call.is_method and call.root not in call.flow.module.imported
