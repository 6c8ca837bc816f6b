"""What a call gives, by the function that is called: read in its place, or known by its name."""

import ast
import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from . import operations
from .call import CalledFunction, change, is_operand
from .clipping import clip_coordinates, clip_gradient, clip_helper, norm
from .drawing import cast, draw, mechanism, noise_helper
from .values import NOTHING, Loop, Norm, Value, few, path_of, scaled, union
from .vocabulary import (
    ADDING,
    EMPTY,
    FACTORS,
    LOGS,
    LOWEST,
    REDUCTIONS,
    SAME,
    SEEDS,
    SENDS,
)

if TYPE_CHECKING:
    from .flow import Flow


def called(flow: "Flow", node: ast.Call) -> Value:
    """What a call gives, and the events that it is."""

    func = node.func
    name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
    receiver = flow.value(func.value) if isinstance(func, ast.Attribute) else NOTHING
    if isinstance(func, ast.Call):
        receiver = flow.value(func)
    if path_of(func).partition(".")[0] in flow.module.imported:
        receiver = NOTHING
    values = [flow.value(argument) for argument in node.args]
    named = {keyword.arg or "**": flow.value(keyword.value) for keyword in node.keywords}
    call = CalledFunction(flow, node, name, path_of(func), receiver, values, named)
    if f"{call.path}()" in flow.env:
        return flow.env[f"{call.path}()"]
    found = _read_in_place(call)
    if found is not None:
        return found
    for rule in _RULES:
        known = rule(call)
        if known is not None:
            return known
    return _unknown(call)


def _read_in_place(call: CalledFunction) -> Value | None:
    """A function, a method or a lambda of the same file."""
    flow, module = call.flow, call.flow.module
    of_self = call.receiver_path in ("self", "cls") or (call.path == "" and _is_super(call.node))
    if of_self:
        function = module.method(flow.owner, call.name)
    elif not call.is_method:
        function = (
            flow.local.get(call.name) or flow.named(call.name).function or call.receiver.function
        )
    else:
        function = None
    if function is None:
        return _mapped(call)
    static = any(
        getattr(d, "id", "") == "staticmethod" for d in getattr(function, "decorator_list", ())
    )
    read = flow.read_in_place(function, call.values, dict(call.named), of_self and not static)
    if read is None:
        return None
    found, after = read
    for argument, value in zip(call.node.args, after, strict=False):
        change(call, argument, value)
    return found


def _mapped(call: CalledFunction) -> Value | None:
    """``tree_map(function, values)``: the function of each part of the values."""
    if call.name not in ("tree_map", "map") or len(call.values) < 2 or not call.values[0].function:
        return None

    flow, outer = call.flow, call.flow.loops
    flow.loops = (*outer, Loop(call.node.lineno, "layers", frozenset()))
    read = flow.read_in_place(call.values[0].function, call.values[1:], {}, False)
    flow.loops = outer
    return None if read is None else read[0]


def _is_super(node: ast.Call) -> bool:
    inner = node.func.value if isinstance(node.func, ast.Attribute) else None
    return isinstance(inner, ast.Call) and getattr(inner.func, "id", "") == "super"


def _lowest(call: CalledFunction) -> Value | None:
    """Value of ``min`` and ``max``: a factor stays a factor; of data they are statistics."""
    if call.name not in LOWEST:
        return None
    found = replace(call.receiver | call.all(), number=None, parts=(), function=None)
    if "absolute" in found.tags and call.name == "max" and not found.norms:
        norm = Norm(math.inf, found.names, False, call.flow.loops)
        return replace(found, norms=frozenset({norm})).tagged("statistic")
    is_statistic = call.name in REDUCTIONS and "data" in found.tags and found.bound is None
    return found.tagged("statistic") if is_statistic else found


def _factor(call: CalledFunction) -> Value | None:
    """``mul``, ``div``, ``einsum`` and the like, as a function or a method."""
    if call.name not in FACTORS:
        return None
    operands = [*([call.receiver] if is_operand(call) else []), *call.values]
    if len(operands) < 2:
        return None
    operator = ast.Div if call.name.startswith(("div", "true_div")) else ast.Mult
    found = operations.binary(call.flow, call.node, operator, operands[-2], operands[-1])
    return _in_place(call, found)


def _adding(call: CalledFunction) -> Value | None:
    if call.name not in ADDING:
        return None
    operands = [*([call.receiver] if is_operand(call) else []), *call.values]
    if len(operands) < 2:
        return None
    right = operands[1]
    alpha = call.named.get("alpha", NOTHING)
    right = scaled(right, alpha) if right.is_noise else right
    return _in_place(call, operations.added(call.flow, call.node, operands[0], right))


def _in_place(call: CalledFunction, found: Value) -> Value:
    if call.name.endswith("_") and isinstance(call.node.func, ast.Attribute):
        path = path_of(call.node.func.value)
        if path in call.flow.containers:
            call.flow.change(path, found)
        elif path:
            call.flow.env[path] = found
    return found


def _log(call: CalledFunction) -> Value | None:
    """A logarithm, of which one is the mark of the classical formula; or a line of a log."""
    is_function = (
        call.root in ("np", "numpy", "torch", "jnp", "math", "tf", "jax") or not call.is_method
    )
    if call.name == "log" and is_function and len(call.values) <= 1:
        found = replace(call.all(), number=None)
        return found.tagged("classical") if any(map(_is_classical, call.node.args)) else found
    if call.name in LOGS:
        call.flow.event("log", call.node, *call.values, *call.named.values(), name=call.name)
        return NOTHING
    return None


def _is_classical(node: ast.expr) -> bool:
    """It contains 1.25 / delta."""
    return any(
        isinstance(part, ast.BinOp)
        and isinstance(part.op, ast.Div)
        and getattr(part.left, "value", None) == 1.25
        for part in ast.walk(node)
    )


def _send(call: CalledFunction) -> Value | None:
    if not SENDS.match(call.name) or (not call.values and not call.named):
        return None
    call.flow.event("send", call.node, *call.values, *call.named.values(), name=call.name)
    return _unknown(call)


def _seed(call: CalledFunction) -> Value | None:
    if call.name not in SEEDS:
        return None
    arguments = [ast.unparse(argument) for argument in call.node.args[:1]]
    name = " ".join([call.path or call.name, *arguments])
    call.flow.event("seed", call.node, *call.values[:1], name=name)
    return Value(call.all().names, tags=frozenset({f"seed:{call.node.lineno}"}))


def _same(call: CalledFunction) -> Value | None:
    """What gives its argument, or its receiver, in another shape or place."""
    if call.name == "len":
        own = {path_of(argument) for argument in call.node.args}
        return Value(call.all().names | own - {""}, tags=frozenset({"length"}))
    if call.name == "size" and call.is_method:
        names = call.receiver.names | {call.receiver_path} - {""}
        return Value(names, tags=frozenset({"length" if call.values else "shape"}))
    if EMPTY.search(call.name):
        return NOTHING
    if call.name in ("numel", "nelement", "ndimension"):
        names = call.receiver.names | {call.path}
        return Value(names, tags=frozenset({"shape"}))
    if call.name not in SAME:
        return None
    if call.name in ("pow", "square"):
        power = call.values[0].number if call.name == "pow" and call.values else 2
        found = (call.receiver | call.all()).tagged(*(["square"] if power == 2 else []))
    elif call.name == "abs":
        found = (call.receiver | call.all()).tagged("absolute")
    else:
        found = call.receiver if is_operand(call) else call.all()
    if call.name == "sqrt":
        return operations.rooted(call.flow, found)
    if call.name == "sum" and "square" in found.tags:
        found = found.tagged("summed")
    if call.name == "sum" and "absolute" in found.tags and not found.norms:
        each = "axis" in call.named or "dim" in call.named
        norm = Norm(1, found.names, each, call.flow.loops)
        return replace(found, norms=frozenset({norm})).without("data", "absolute")
    is_statistic = call.name in REDUCTIONS and "data" in found.tags
    found = replace(found, number=None)
    if call.name not in ("zip", "enumerate", "list", "tuple", "dict"):
        found = replace(found, parts=())
    return found.tagged("statistic") if is_statistic and not found.draws else found


def _unknown(call: CalledFunction) -> Value:
    """Value of an unknown function: whatever went in may come out, but no norm or factor."""
    given = call.receiver | call.all() if is_operand(call) else call.all()
    path = frozenset({call.path}) if call.path and not given.names else frozenset()
    plain = bool(call.values or call.named) and "data" not in given.tags
    handed_on = {tag for tag in given.tags if tag in ("statistic", "grad") or tag[:5] == "seed:"}
    tags = handed_on | ({"derived"} if given.draws else set()) | (set() if plain else {"data"})
    if given.norms:
        tags = tags | {"statistic"}
    found = Value(few(given.names | path), given.draws, given.clips, tags=frozenset(tags))
    mechanisms = [value for value in call.values if "mechanism" in value.tags and value.draws]
    if mechanisms and "data" in given.tags:
        settings = union(v for v in call.named.values() if "data" not in v.tags)
        noise = scaled(replace(union(mechanisms), tags=frozenset()), settings)
        call.flow.event("add", call.node, given, noise)
    if call.name in ("append", "extend", "insert", "update") and call.is_method:
        assert isinstance(call.node.func, ast.Attribute)
        call.flow.change(path_of(call.node.func.value), replace(call.all(), parts=()))
    if call.name in ("vmap", "jit", "partial", "grad", "checkpoint") and call.values:
        return replace(found, function=call.values[0].function)
    return found


_RULES: tuple[Callable[[CalledFunction], Value | None], ...] = (
    cast,
    draw,
    mechanism,
    clip_gradient,
    clip_coordinates,
    noise_helper,
    clip_helper,
    norm,
    _lowest,
    _factor,
    _adding,
    _log,
    _send,
    _seed,
    _same,
)
