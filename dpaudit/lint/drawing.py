"""Calls that draw noise, and casts of it."""

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from .call import CalledFunction, change
from .values import NOTHING, NoiseDraw, Value, path_of, union
from .vocabulary import (
    DRAWS,
    HALVES,
    IN_PLACE,
    INTEGERS,
    KEYED,
    MASK,
    NOISE_HELPER,
    SCALES,
    SHIFTED,
    Family,
)

GENERATORS = ("generator", "key", "rng", "random_state")

CASTS = ("astype", "to", "type", "cast")

if TYPE_CHECKING:
    from .flow import Flow


def draw(call: CalledFunction) -> Value | None:
    if call.name not in DRAWS or "init." in call.path or MASK.search(call.flow.name):
        return None
    family, position = DRAWS[call.name]
    if position is not None and call.root in SHIFTED:
        position += 1
    if call.root in KEYED or "key" in call.named:
        position = None
        first = call.argument(0, "key")
        call.flow.event(
            "key", call.node, *([first] if first is not None else []), name=_text(call.node)
        )
    if call.name == "normal" and not call.is_method and not call.values and not call.named:
        return None
    scale = _scale(call, position)
    names = frozenset() if scale is None else scale.names
    draw = _drawn(call, family, names)
    noise = Value(names, frozenset({draw}))
    _cast_of(call, noise)
    location = (
        call.argument(0, "loc", "mean", "mu") if position == 1 and call.name != "normal_" else None
    )
    if location is not None and "data" in location.tags and not location.is_noise:
        call.flow.event("add", call.node, location, noise)
        return noise | replace(location, number=None)
    if call.name == "normal_" and call.receiver_path:
        call.flow.env[call.receiver_path] = noise
    return noise


def _scale(call: CalledFunction, position: int | None) -> Value | None:
    for name in SCALES:
        if name in call.named:
            return call.named[name]
    after = position is not None and position < len(call.values)
    return call.values[position] if after and position is not None else None


def _drawn(call: CalledFunction, family: Family, scale: frozenset[str]) -> NoiseDraw:
    place = (call.node.lineno, call.node.col_offset + 1)
    generators = [
        call.receiver,
        *call.values[:1],
        *(call.named.get(k, NOTHING) for k in GENERATORS),
    ]
    seeds = frozenset(tag for one in generators for tag in one.tags if tag.startswith("seed:"))
    return NoiseDraw(*place, family, scale, call.flow.loops, call.name, call.root, seeds)


def noise_helper(call: CalledFunction) -> Value | None:
    hidden = MASK.search(call.name) or MASK.search(call.flow.name)
    if not NOISE_HELPER.match(call.name) or hidden:
        return None
    return helper_of_noise(call.flow, call.node, call.name, call.all(), call)


def helper_of_noise(
    flow: "Flow", node: ast.AST, name: str, given: Value, call: CalledFunction | None = None
) -> Value:
    """Noise of a function that is known by its name alone: of what the data is not, its scale."""
    lower = name.lower()
    family: Family = "laplace" if "lapl" in lower else "gaussian" if "gauss" in lower else ""
    arguments = [] if call is None else [*call.values, *call.named.values()]
    scale = union(value for value in arguments if "data" not in value.tags)
    place = (getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1)
    draw = NoiseDraw(*place, family, scale.names, flow.loops, name)
    noise = Value(scale.names, frozenset({draw}))
    data = union(value for value in arguments if "data" in value.tags)
    draws_alone = any(
        word in lower for word in ("draw", "sample", "generate", "gen_", "make", "get")
    )
    if "data" not in data.tags and "perturb" in lower and call is not None and call.is_method:
        flow.event("add", node, Value(tags=frozenset({"data"})), noise)  # to what the object holds
    if "data" not in data.tags or draws_alone:
        return noise
    flow.event("add", node, data, noise)
    for argument, value in zip(getattr(node, "args", ()), arguments, strict=False):
        if call is not None and "data" in value.tags and (IN_PLACE.match(name)):
            change(call, argument, noise | value)
    return noise | replace(data, parts=(), number=None)


def mechanism(call: CalledFunction) -> Value | None:
    """A call of something that draws: a distribution's sample, or a measurement of OpenDP."""
    own = call.flow.named(call.name) if not call.is_method else call.receiver
    draws = own.draws and ("mechanism" in own.tags or not call.is_method)
    if not draws or call.is_method:
        return None
    data = call.all()
    noise = Value(own.names, own.draws)
    if "data" not in data.tags:
        return noise
    call.flow.event("add", call.node, data, noise)
    return noise | replace(data, parts=())


def cast(call: CalledFunction) -> Value | None:
    """``astype``, ``half``, ``to(torch.float16)``, ``np.int32(x)`` of noise alone."""
    value = call.receiver if call.is_method and call.receiver.draws else call.all()
    if call.name in INTEGERS | HALVES and (value.draws or call.name not in ("int", "long", "half")):
        if value.is_noise and "mechanism" not in value.tags:
            call.flow.event("cast", call.node, value, name=call.name)
        return replace(value, number=None)
    if call.name in CASTS and value.is_noise:
        _cast_of(call, value)
    return None


def _cast_of(call: CalledFunction, noise: Value) -> None:
    """The event of noise that is given a dtype which cannot hold it."""

    nodes = [keyword.value for keyword in call.node.keywords if keyword.arg == "dtype"]
    nodes += call.node.args if call.name in CASTS else ()
    for node in nodes:
        last = path_of(node).rpartition(".")[2] or str(getattr(node, "value", ""))
        if last in INTEGERS | HALVES:
            call.flow.event("cast", call.node, noise, name=last)
        elif last == "dtype" and call.name == "astype":
            call.flow.event("cast", call.node, noise, name=ast.unparse(node))


def _text(node: ast.Call) -> str:
    first = [k.value for k in node.keywords if k.arg == "key"] or node.args[:1]
    return ast.unparse(first[0]) if first else ""
