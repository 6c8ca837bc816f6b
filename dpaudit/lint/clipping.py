"""Calls that clip, and calls that compute norms."""

import ast
import math
from dataclasses import replace

from .call import CalledFunction, change
from .values import NOTHING, Clip, Norm, Value, path_of, union
from .vocabulary import (
    BOUND,
    CLIP_COORDINATES,
    CLIP_GRADIENT,
    CLIP_HELPER,
    NO_NORM,
    NORM_HELPER,
    NORMS,
)


def clip_gradient(call: CalledFunction) -> Value | None:
    if call.name not in CLIP_GRADIENT:
        return None
    bound = call.argument(1, "max_norm", "clip_norm", "max_grad_norm")
    if not call.node.args or bound is None:
        return NOTHING
    order = _order(call.argument(2, "norm_type"))
    data = call.values[0]
    clip = _clip(call, order, bound.names, call.name)
    call.flow.event("clip", call.node, data, clip=clip)
    after = replace(data, clips=data.clips | {clip}, parts=())
    first = call.node.args[0]
    if call.name.endswith("_") and isinstance(first, ast.Call):  # model.parameters()
        call.flow.env[f"{path_of(first.func)}()"] = after
    elif call.name.endswith("_"):
        change(call, first, after)
    return after


def _clip(
    call: CalledFunction, order: float | None, bound: frozenset[str], name: str, each: bool = False
) -> Clip:
    place = (call.node.lineno, call.node.col_offset + 1)
    return Clip(*place, order, bound, each, call.flow.loops, name)


def clip_coordinates(call: CalledFunction) -> Value | None:
    """``np.clip(x, -c, c)``; of a factor, or with one bound alone, it is a minimum."""
    if call.name not in CLIP_COORDINATES:
        return None
    of_library = (call.path.count(".") == 1 and not call.receiver.names & {call.receiver_path}) or (
        call.root in ("np", "numpy", "torch", "jnp", "tf", "jax")
    )
    data = call.values[0] if of_library and call.values else call.receiver
    limits = list(call.values[1:] if of_library else call.values) + list(call.named.values())
    if len(limits) < 2 or data.bound is not None or data.norms:
        return data
    clip = _clip(call, math.inf, union(limits).names, call.name)
    return replace(data, clips=data.clips | {clip}, parts=())


def clip_helper(call: CalledFunction) -> Value | None:
    if not CLIP_HELPER.match(call.name):
        return None
    arguments = [*call.values, *call.named.values()]
    limits = [v for v in arguments if any(BOUND.search(name) for name in v.names)]
    limits = [v for v in limits if not v.draws and not v.clips and "data" not in v.tags]
    data = union(value for value in arguments if "data" in value.tags and value not in limits)
    lower = call.name.lower()
    order = 1.0 if "l1" in lower else 2.0 if "l2" in lower or "norm" in lower else None
    rows = call.argument(2, "axes", "axis", "dim") is not None
    clip = _clip(call, order, union(limits).names, call.name, rows)
    call.flow.event("clip", call.node, data, clip=clip)
    after = replace(data, clips=data.clips | {clip}, parts=(), number=None)
    for argument, value in zip(call.node.args, call.values, strict=False):
        if "data" in value.tags:
            change(call, argument, value | after)
    return after


def norm(call: CalledFunction) -> Value | None:
    is_norm = call.name in NORMS or NORM_HELPER.match(call.name)
    if not is_norm or NO_NORM.search(call.name):
        return None
    by_function = not call.is_method or call.root in (
        "np", "numpy", "torch", "jnp", "tf", "jax", "optax", "linalg", "LA", "math",
    ) or "data" not in call.receiver.tags  # fmt: skip
    data = call.values[0] if by_function and call.values else call.receiver
    position = 1 if by_function else 0
    order = _order(call.argument(position, "ord", "p", "norm_type", "order"))
    if "l1" in call.name.lower():
        order = 1.0
    axis = call.named.get("axis", call.named.get("dim"))
    axis = axis if axis is not None else call.argument(position + 1)
    norm = Norm(order, data.names, axis is not None, call.flow.loops)
    return Value(data.names, norms=frozenset({norm}), draws=data.draws)


def _order(value: Value | None) -> float | None:
    """2 if none is given, None if it is not known."""
    return 2.0 if value is None else value.number
