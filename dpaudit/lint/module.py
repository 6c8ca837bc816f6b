"""A file that is read: its functions, its classes, and the numbers at its top."""

import ast
from dataclasses import dataclass, field

from .values import Function, Value

DEEPEST = 4  # calls within calls that are read in their place, and bases of bases

Env = dict[str, Value]


@dataclass
class Module:
    """A file, with its functions and classes by name."""

    tree: ast.Module
    functions: dict[str, Function] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    constants: Env = field(default_factory=dict)
    imported: set[str] = field(default_factory=set)
    inlined: int = 0  # statements so far

    @classmethod
    def of(cls, tree: ast.Module, elsewhere: Env) -> "Module":
        """Args: elsewhere: numbers that it imports by name."""
        module = cls(tree, constants={**elsewhere, **numbers_at_top(tree)})
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.asname or alias.name.partition(".")[0] for alias in node.names]
                module.imported.update(names)
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                module.functions[node.name] = node
            elif isinstance(node, ast.ClassDef):
                module.classes[node.name] = node
        return module

    def method(self, owner: ast.ClassDef | None, name: str, depth: int = 0) -> Function | None:
        """The method of a class, or of a base of it in the same file."""
        if owner is None or depth > DEEPEST:
            return None
        for node in owner.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
                return node
        bases = [base.id for base in owner.bases if isinstance(base, ast.Name)]
        known = [self.classes[base] for base in bases if base in self.classes]
        found = (self.method(base, name, depth + 1) for base in known)
        return next((method for method in found if method is not None), None)


def numbers_at_top(tree: ast.Module) -> Env:
    """Names that a file gives a number, and nothing else, outside of functions."""
    found: Env = {}
    several = set[str]()
    for node in tree.body:
        targets, given = list[ast.expr](), None
        if isinstance(node, ast.Assign):
            targets, given = node.targets, node.value
        elif isinstance(node, ast.AnnAssign):
            targets, given = [node.target], node.value
        elif isinstance(node, ast.AugAssign):
            targets = [node.target]
        number = number_of(given) if isinstance(given, ast.Constant) else None
        for name in (target.id for target in targets if isinstance(target, ast.Name)):
            if number is None or name in found:
                several.add(name)
            else:
                found[name] = Value(frozenset({name}), number=number)
    return {name: value for name, value in found.items() if name not in several}


def number_of(node: ast.Constant) -> float | None:
    """The number that is written, if it is one that a float can hold."""
    value = node.value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e300 else None
