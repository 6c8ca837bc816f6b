"""Follows values through one function: assignments, branches, loops, and calls within the file.

It is an interpretation of ``ast`` in one pass. Branches are joined, loops are read once, and a call
of a function of the same file is read again in its place, with what is known of its arguments.
"""

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from . import calls, operations
from .drawing import helper_of_noise
from .module import DEEPEST, Env, Module, number_of
from .values import (
    MOST,
    NOTHING,
    Clip,
    Function,
    FunctionEvent,
    Loop,
    Value,
    either,
    few,
    path_of,
    union,
)
from .vocabulary import ABOUT, LOOPS, NOISE_HELPER, LoopKind, is_setting

MOST_INLINED = 3_000  # statements of them, in one file


@dataclass
class Flow:
    """The reading of one function."""

    module: Module
    owner: ast.ClassDef | None  # the class of a method
    name: str
    env: Env
    events: list[FunctionEvent] = field(default_factory=list)
    loops: tuple[Loop, ...] = ()
    stack: tuple[Function, ...] = ()
    returned: Value = NOTHING
    containers: dict[str, str] = field(default_factory=dict)  # a loop's variable: what it runs over
    local: dict[str, Function] = field(default_factory=dict)

    # what happens

    def event(
        self, kind: str, node: ast.AST, *values: Value, name: str = "", clip: Clip | None = None
    ) -> None:
        place = (getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1)
        self.events.append(FunctionEvent(kind, *place, values, self.loops, name, clip, self.name))

    def change(self, path: str, value: Value) -> None:
        """Something is done to what a name holds, in its place."""
        for _ in range(DEEPEST):
            if not path:
                return
            self.env[path] = (
                self.env.get(path, Value(few({path}), tags=frozenset({"data"}))) | value
            )
            path = self.containers.get(path, "")

    # expressions

    def value(self, node: ast.AST | None) -> Value:
        read = _EXPRESSIONS.get(type(node))
        if read is not None:
            return read(self, node)
        if node is None or isinstance(node, ast.Slice | ast.Compare):
            return NOTHING
        return union(self.value(child) for child in ast.iter_child_nodes(node))

    def named(self, path: str) -> Value:
        """What a dotted name holds."""
        if path in self.env:
            return self.env[path]
        if path in self.module.constants:
            return self.module.constants[path]
        imported = path.partition(".")[0] in self.module.imported
        if imported and "." not in path:
            return NOTHING
        tags = set() if imported or is_setting(path) else {"data"}
        if path.rpartition(".")[2].lower().startswith("grad"):
            tags = {"data", "grad"}
        function = self.local.get(path) or self.module.functions.get(path)
        return Value(frozenset({path}), tags=frozenset(tags), function=function)

    def _name(self, node: ast.Name) -> Value:
        return self.named(node.id)

    def _constant(self, node: ast.Constant) -> Value:
        number = number_of(node)
        return NOTHING if number is None else Value(number=number)

    def _attribute(self, node: ast.Attribute) -> Value:
        path = path_of(node)
        if path and path in self.env:
            return self.env[path]
        if node.attr in ABOUT or node.attr == "dtype":
            own = {path_of(node.value), path_of(node)} - {""}
            names = self.value(node.value).names | own
            return Value(names, tags=frozenset({node.attr}))
        if NOISE_HELPER.match(node.attr):
            return helper_of_noise(self, node, node.attr, NOTHING).tagged("mechanism")
        base = self.value(node.value)
        if node.attr.startswith("grad") and path:
            return replace(base, names=few(base.names | {path})).tagged("grad", "data")
        if base.draws or base.clips or base.norms:
            return base
        return self.named(path) if path else base

    def _subscript(self, node: ast.Subscript) -> Value:
        path = path_of(node)
        if path and path in self.env:
            return self.env[path]
        if path and isinstance(node.slice, ast.Constant):
            base = self.value(node.value)
            return base if base.draws or base.clips or base.norms else self.named(path)
        base, key = self.value(node.value), self.value(node.slice)
        if "shape" in base.tags:
            return Value(base.names, tags=frozenset({"length"}))
        at = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if isinstance(at, int) and 0 <= at < len(base.parts) and isinstance(node.value, ast.Name):
            return base.parts[at][2]
        return replace(base, names=few(base.names | key.names), parts=())

    def _display(self, node: ast.AST) -> Value:
        """A tuple, list or dict, of which each part is remembered."""
        if isinstance(node, ast.Dict):
            nodes: Sequence[ast.expr] = node.values
        else:
            nodes = getattr(node, "elts", ())
        values = [(part, self.value(part)) for part in nodes]
        parts: list[tuple[int, int, Value]] = []
        for part, value in values:
            inner = tuple((at, by, replace(one, parts=())) for at, by, one in value.parts)
            parts.append((part.lineno, part.col_offset + 1, replace(value, parts=inner)))
        return replace(union(value for _, value in values), parts=tuple(parts[:MOST]))

    def _lambda(self, node: ast.Lambda) -> Value:
        return Value(function=node)

    def _comprehension(self, node: Any) -> Value:
        outer = self.loops
        for generator in node.generators:
            self.enter(generator.target, generator.iter, node)
        key = self.value(node.key) if isinstance(node, ast.DictComp) else NOTHING
        found = self.value(node.value if isinstance(node, ast.DictComp) else node.elt)
        sent_to = self.loops[-1].names if self.loops else frozenset()
        if key.names & sent_to or self.loops[-1].kind == "recipients":
            self.event("send", node, found)
        self.loops = outer
        return found

    def _if_expression(self, node: ast.IfExp) -> Value:
        return self.value(node.body) | self.value(node.orelse)

    def _binary(self, node: ast.BinOp) -> Value:
        left, right = self.value(node.left), self.value(node.right)
        return operations.binary(self, node, type(node.op), left, right)

    def _unary(self, node: ast.UnaryOp) -> Value:
        value = self.value(node.operand)
        return replace(value, number=-value.number) if value.number is not None else value

    def _call(self, node: ast.Call) -> Value:
        return calls.called(self, node)

    def _named_expression(self, node: ast.NamedExpr) -> Value:
        found = self.value(node.value)
        self.bind(node.target, found)
        return found

    def _yield(self, node: ast.Yield) -> Value:
        found = self.value(node.value)
        self.event("return", node, found)
        self.returned = self.returned | found
        return NOTHING

    # statements

    def run(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            if self.stack:
                self.module.inlined += 1
            execute = _STATEMENTS.get(type(statement))
            if execute is not None:
                execute(self, statement)

    def bind(self, target: ast.expr, value: Value) -> None:
        """Assign to a name, an attribute, an element, or several of them."""
        if isinstance(target, ast.Tuple | ast.List):
            alone = len(value.parts) == len(target.elts)
            for i, part in enumerate(target.elts):
                own = value.parts[i][2] if alone else replace(value, parts=())
                self.bind(part.value if isinstance(part, ast.Starred) else part, own)
        elif isinstance(target, ast.Subscript) and not path_of(target):
            path, key = path_of(target.value), self.value(target.slice)
            if path and not isinstance(target.slice, ast.Slice):
                self.change(path, replace(value, names=value.names))
            elif path:
                self.change(path, value)
            loop = self.loops[-1] if self.loops else None
            if loop is not None and loop.kind == "recipients" and key.names & loop.names:
                self.event("send", target, value)
        elif path := path_of(target):
            self.env[path] = self._rooted(path, value)
            stale = [known for known in self.env if known.startswith((f"{path}.", f"{path}["))]
            for known in stale:
                del self.env[known]
            if value.function is not None and isinstance(target, ast.Name):
                self.local[path] = value.function

    def _rooted(self, path: str, value: Value) -> Value:
        """A value that was computed of nothing that has a name has its own."""
        if path.rpartition(".")[2].startswith("grad") and "data" in value.tags:
            value = value.tagged("grad")
        bare = not value.names and not value.draws and not value.function
        return replace(value, names=frozenset({path})) if bare else value

    def _assign(self, node: ast.Assign) -> None:
        value = self.value(node.value)
        for target in node.targets:
            self.bind(target, value)

    def _annotated(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.bind(node.target, self.value(node.value))

    def _augmented(self, node: ast.AugAssign) -> None:
        before, by = self.value(node.target), self.value(node.value)
        found = operations.binary(self, node, type(node.op), before, by)
        if isinstance(node.target, ast.Name) and node.target.id in self.containers:
            self.change(node.target.id, found)
        else:
            self.bind(node.target, found)

    def _expression(self, node: ast.Expr) -> None:
        self.value(node.value)

    def _return(self, node: ast.Return) -> None:
        found = self.value(node.value)
        self.event("return", node, found)
        self.returned = self.returned | found

    def enter(self, target: ast.expr, over: ast.expr, node: ast.AST) -> None:
        """Begin a loop; the caller ends it."""
        value = self.value(over)
        names = frozenset(part.id for part in ast.walk(target) if isinstance(part, ast.Name))
        loop = Loop(getattr(node, "lineno", 1), kind_of(over, names), names)
        self.loops = (*self.loops, loop)
        for part, source, element in _elements(target, over, value):
            for name in (p for p in ast.walk(part) if isinstance(p, ast.Name)):
                own = replace(element, names=few(element.names | {name.id}), parts=(), number=None)
                self.env[name.id] = own
                self.containers[name.id] = source

    def _for(self, node: ast.For) -> None:
        outer = self.loops
        self.enter(node.target, node.iter, node)
        self.run(node.body)
        self.loops = outer
        self.run(node.orelse)

    def _while(self, node: ast.While) -> None:
        self.loops = (*self.loops, Loop(node.lineno, kind_of(node.test, frozenset()), frozenset()))
        self.run(node.body)
        self.loops = self.loops[:-1]

    def branches(self, bodies: Sequence[Sequence[ast.stmt]]) -> None:
        """Either of them may run."""
        before, ends = self.env, []
        for body in bodies:
            self.env = dict(before)
            self.run(body)
            ends.append(self.env)
        joined = ends[0]
        for path in {path for end in ends for path in end}:
            values = [end.get(path, before.get(path)) for end in ends]
            known = [value for value in values if value is not None]
            value = reduce(either, known)
            joined[path] = value if len(known) == len(values) else value.without("length")
        self.env = joined

    def _if(self, node: ast.If) -> None:
        self.value(node.test)
        self.branches([node.body, node.orelse])

    def _try(self, node: ast.Try) -> None:
        self.run(node.body)
        if node.handlers:
            self.branches([*(handler.body for handler in node.handlers), []])
        self.run([*node.orelse, *node.finalbody])

    def _match(self, node: ast.Match) -> None:
        self.branches([*(case.body for case in node.cases), []])

    def _with(self, node: ast.With) -> None:
        for item in node.items:
            value = self.value(item.context_expr)
            if item.optional_vars is not None:
                self.bind(item.optional_vars, value)
        self.run(node.body)

    def _define(self, node: ast.FunctionDef) -> None:
        self.local[node.name] = node

    # calls within the file

    def read_in_place(
        self, function: Function, values: Sequence[Value], named: Env, bound: bool
    ) -> tuple[Value, tuple[Value, ...]] | None:
        """What a call of a function of this file gives; None if it was not read.

        Of a function that returns nothing, also what its arguments hold afterwards.

        Args:
            values: of the positional arguments.
            named: of the keyword arguments.
            bound: it is a method, whose first parameter is not among the arguments.
        """
        too_deep = len(self.stack) >= DEEPEST or self.module.inlined > MOST_INLINED
        if too_deep or function in self.stack:
            return None
        env = {
            path: value for path, value in self.env.items() if bound and path.startswith("self.")
        }
        if isinstance(function, ast.Lambda) or getattr(function, "name", "") in self.local:
            env = dict(self.env)
        parameters = parameters_of(function)[1 if bound else 0 :]
        given = dict(zip(parameters, values, strict=False)) | named
        env |= given
        for parameter, default in defaults(function):
            if parameter not in given:
                env[parameter] = self._rooted(parameter, self.value(default))
        name, stack = getattr(function, "name", self.name), (*self.stack, function)
        inner = Flow(self.module, self.owner, name, env, self.events, self.loops, stack)
        inner.local = dict(self.local)
        if isinstance(function, ast.Lambda):
            return inner.value(function.body), ()
        inner.run(function.body)
        if bound:
            self.env |= {path: v for path, v in inner.env.items() if path.startswith("self.")}
        gives = any(isinstance(n, ast.Return) and n.value is not None for n in ast.walk(function))
        after = (
            () if gives else tuple(inner.env.get(parameter, NOTHING) for parameter in parameters)
        )
        return inner.returned, after


def parameters_of(function: Function) -> list[str]:
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [argument.arg for argument in every]


def kind_of(over: ast.AST, targets: frozenset[str]) -> LoopKind:
    """What a loop runs over, by the names in it, or else by those of its variables."""
    inside = [part for part in ast.walk(over) if isinstance(part, ast.Name | ast.Attribute)]
    words = [part.attr if isinstance(part, ast.Attribute) else part.id for part in inside]
    for found in (words, sorted(targets)):
        for kind, pattern in LOOPS:
            if any(pattern.search(word) for word in found):
                return kind
    return "other"


def defaults(function: Function) -> Iterator[tuple[str, ast.expr]]:
    """The parameters that have a default, with it."""
    positional = [*function.args.posonlyargs, *function.args.args]
    n = len(function.args.defaults)
    for parameter, default in zip(
        positional[len(positional) - n :], function.args.defaults, strict=True
    ):
        yield parameter.arg, default
    for parameter, maybe in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        if maybe is not None:
            yield parameter.arg, maybe


def _elements(
    target: ast.expr, over: ast.expr, value: Value
) -> Iterator[tuple[ast.expr, str, Value]]:
    """The variables of a loop, with what each runs over and one element of that."""
    parts = target.elts if isinstance(target, ast.Tuple) else []
    called = path_of(over.func).rpartition(".")[2] if isinstance(over, ast.Call) else ""
    arguments = over.args if isinstance(over, ast.Call) else []
    if called == "zip" and len(parts) == len(arguments) == len(value.parts):
        for part, argument, own in zip(parts, arguments, value.parts, strict=True):
            yield part, path_of(argument), own[2]
    elif called == "enumerate" and len(parts) == 2 and arguments:
        yield parts[0], "", NOTHING
        yield from _elements(parts[1], arguments[0], value)
    elif called in ("items", "named_parameters") and len(parts) == 2 and isinstance(over, ast.Call):
        yield parts[0], "", NOTHING
        yield parts[1], path_of(over.func).rpartition(".")[0], value
    elif called == "range":
        yield target, "", NOTHING
    else:
        yield target, path_of(over), value


_EXPRESSIONS: dict[type, Callable[[Flow, Any], Value]] = {
    ast.Name: Flow._name,
    ast.Constant: Flow._constant,
    ast.Attribute: Flow._attribute,
    ast.Subscript: Flow._subscript,
    ast.Tuple: Flow._display,
    ast.List: Flow._display,
    ast.Dict: Flow._display,
    ast.Lambda: Flow._lambda,
    ast.ListComp: Flow._comprehension,
    ast.SetComp: Flow._comprehension,
    ast.GeneratorExp: Flow._comprehension,
    ast.DictComp: Flow._comprehension,
    ast.IfExp: Flow._if_expression,
    ast.BinOp: Flow._binary,
    ast.UnaryOp: Flow._unary,
    ast.Call: Flow._call,
    ast.NamedExpr: Flow._named_expression,
    ast.Yield: Flow._yield,
}
_STATEMENTS: dict[type, Callable[[Flow, Any], None]] = {
    ast.Assign: Flow._assign,
    ast.AnnAssign: Flow._annotated,
    ast.AugAssign: Flow._augmented,
    ast.Expr: Flow._expression,
    ast.Return: Flow._return,
    ast.For: Flow._for,
    ast.AsyncFor: Flow._for,
    ast.While: Flow._while,
    ast.If: Flow._if,
    ast.Try: Flow._try,
    ast.Match: Flow._match,
    ast.With: Flow._with,
    ast.AsyncWith: Flow._with,
    ast.FunctionDef: Flow._define,
    ast.AsyncFunctionDef: Flow._define,
}
