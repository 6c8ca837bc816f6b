"""The faults of one line that ``mutants.py`` plants: what each makes of an expression.

A factor or a term is dropped, an operator or a comparison is another one, min stands for max and a
lower end for an upper one, a condition is narrowed or decides nothing, a correction around a value
is missing, a number or the end of a slice is off by one.
"""

import ast
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

COMPARISONS: dict[type[ast.cmpop], tuple[str, tuple[str, ...]]] = {
    ast.Lt: ("<", ("<=", ">")),
    ast.LtE: ("<=", ("<", ">=")),
    ast.Gt: (">", (">=", "<")),
    ast.GtE: (">=", (">", "<=")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: ("is not", ("is",)),
}
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.Pow: ("**", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.BitOr: ("|", "&"),
    ast.BitAnd: ("&", "|"),
}
TURNED = [
    *(("min", "max"), ("minimum", "maximum"), ("amin", "amax"), ("argmin", "argmax")),
    *(("low", "high"), ("lower", "upper"), ("floor", "ceil"), ("sf", "cdf"), ("any", "all")),
]
SWAPPED = dict(TURNED) | {other: one for one, other in TURNED}
SWAPPED |= {"cumsum": "sum", "log1p": "log", "expm1": "exp"}
CORRECTIONS = {"max", "min", "abs", "sqrt", "exp", "log", "clamp", "clip", "ceil", "floor", "round"}
CORRECTIONS |= {"maximum", "minimum", "sorted", "set", "frozenset", "holm"}


class Fault(NamedTuple):
    """One change of one expression of a file."""

    file: Path
    line: int
    start: int  # in bytes of the file
    end: int
    new: str
    kind: str

    def planted(self) -> bytes:
        """The file with the fault."""
        text = self.file.read_bytes()
        return text[: self.start] + self.new.encode() + text[self.end :]

    @property
    def old(self) -> str:
        return self.file.read_bytes()[self.start : self.end].decode()

    def is_one(self) -> bool:
        """Whether it is Python, and says something else."""
        try:
            return ast.dump(ast.parse(self.planted())) != ast.dump(ast.parse(self.file.read_text()))
        except SyntaxError:
            return False


class _File:
    """The expressions of a file and their places."""

    def __init__(self, path: Path) -> None:
        self.path, self.raw = path, path.read_bytes()
        self.lines = [0]
        for line in self.raw.splitlines(keepends=True):
            self.lines.append(self.lines[-1] + len(line))
        self.tree = ast.parse(self.raw)
        self.left_out = {id(child) for node in ast.walk(self.tree) for child in _no_code(node)}

    def span(self, node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        end = self.lines[node.end_lineno - 1] + node.end_col_offset
        return self.lines[node.lineno - 1] + node.col_offset, end

    def text(self, node: ast.expr) -> str:
        return self.raw[slice(*self.span(node))].decode()

    def instead(self, node: ast.expr, kind: str, *texts: str) -> Iterator[Fault]:
        """Each text in the place of an expression."""
        for text in texts:
            yield Fault(self.path, node.lineno, *self.span(node), text, kind)

    def between(
        self, left: ast.expr, right: ast.expr, old: str, kind: str, *new: str
    ) -> Iterator[Fault]:
        """Another operator between two expressions."""
        start, end = self.span(left)[1], self.span(right)[0]
        gap = self.raw[start:end].decode()
        for operator in new:
            yield Fault(self.path, left.lineno, start, end, gap.replace(old, operator, 1), kind)


def _no_code(node: ast.AST) -> Iterator[ast.AST]:
    """What of a node decides nothing: annotations, messages of errors, texts."""
    for name in ("annotation", "returns"):
        if (found := getattr(node, name, None)) is not None:
            yield from ast.walk(found)
    if isinstance(node, ast.Raise | ast.JoinedStr):
        yield from ast.walk(node)


def faults_in(path: Path) -> dict[str, list[Fault]]:
    """All faults of a file by their kind."""
    file, kinds = _File(path), dict[str, list[Fault]]()
    for node in ast.walk(file.tree):
        if id(node) in file.left_out or not isinstance(node, ast.AST):
            continue
        for fault in (
            *_of_operators(file, node),
            *_of_conditions(file, node),
            *_of_values(file, node),
        ):
            kinds.setdefault(fault.kind, []).append(fault)
    return kinds


def _of_operators(file: _File, node: ast.AST) -> Iterator[Fault]:
    if isinstance(node, ast.Compare):
        for left, operator, right in zip(
            [node.left, *node.comparators], node.ops, node.comparators, strict=False
        ):
            old, new = COMPARISONS[type(operator)]
            yield from file.between(left, right, old, "comparison", *new)
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        old, other = ARITHMETIC[type(node.op)]
        yield from file.between(node.left, node.right, old, "arithmetic", other)
        if not isinstance(node.op, ast.BitOr | ast.BitAnd):
            yield from file.instead(node, "dropped", f"({file.text(node.left)})")
        if isinstance(node.op, ast.Add | ast.Mult):
            yield from file.instead(node, "dropped", f"({file.text(node.right)})")
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
        yield from file.instead(node, "sign", f"({file.text(node.operand)})")


def _of_conditions(file: _File, node: ast.AST) -> Iterator[Fault]:
    if isinstance(node, ast.BoolOp):
        one, other = (" or ", " and ")[:: 1 if isinstance(node.op, ast.Or) else -1]
        values = [f"({file.text(value)})" for value in node.values]
        yield from file.instead(node, "and-or", f"({other.join(values)})")
        for i in range(len(values)):
            rest = one.join(values[:i] + values[i + 1 :])
            yield from file.instead(node, "narrowed", f"({rest})")
    elif isinstance(node, ast.If | ast.IfExp):
        yield from file.instead(node.test, "decided", "True", "False")
    elif isinstance(node, ast.comprehension):
        for test in node.ifs:
            yield from file.instead(test, "decided", "True")


def _of_values(file: _File, node: ast.AST) -> Iterator[Fault]:
    if isinstance(node, ast.Call) and (inside := _corrected(node)) is not None:
        yield from file.instead(node, "correction", f"({file.text(inside)})")
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield from file.instead(node, "bool", repr(not node.value))
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield from file.instead(node, "number", f"({node.value + 1})", f"({node.value - 1})")
    elif isinstance(node, ast.Constant) and type(node.value) is float:
        yield from file.instead(node, "number", *_other(node.value))
    elif isinstance(node, ast.Slice):
        if node.lower is not None:
            yield from file.instead(node.lower, "slice", f"({file.text(node.lower)}) + 1")
        if node.upper is not None:
            yield from file.instead(node.upper, "slice", f"({file.text(node.upper)}) - 1")
    elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
        name = node.id if isinstance(node, ast.Name) else node.attr
        if name in SWAPPED:
            end = file.span(node)[1]
            line = node.end_lineno or node.lineno
            yield Fault(file.path, line, end - len(name.encode()), end, SWAPPED[name], "swapped")


def _other(value: float) -> Iterable[str]:
    return (repr(2 * value), repr(value / 3)) if value else ("0.5", "0.1")


def _corrected(node: ast.Call) -> ast.expr | None:
    """What a call corrects: its first argument, or the tensor whose method it is."""
    function = node.func
    name = getattr(function, "id", getattr(function, "attr", ""))
    if name not in CORRECTIONS:
        return None
    if isinstance(function, ast.Attribute) and getattr(function.value, "id", "") not in (
        *("np", "torch", "math"),
    ):
        return function.value
    first = node.args[0] if node.args else None
    return None if isinstance(first, ast.Starred | ast.GeneratorExp) else first


def chosen(files: Iterable[Path], n: int, seed: int) -> list[Fault]:
    """A file by its number of statements, then a kind by chance, and a fault of it."""
    rng, faults = random.Random(seed), dict[Path, dict[str, list[Fault]]]()
    sizes = {
        file: sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(file.read_text())))
        for file in files
    }
    found: list[Fault] = []
    while len(found) < n and sizes:
        [file] = rng.choices([*sizes], [*sizes.values()])
        if file not in faults:
            faults[file] = faults_in(file)
        kinds = [kind for kind, some in faults[file].items() if some]
        if not kinds:
            del sizes[file]
            continue
        some = faults[file][rng.choice(kinds)]
        fault = some.pop(rng.randrange(len(some)))
        if fault.is_one():
            found.append(fault)
    return found
