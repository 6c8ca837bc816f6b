"""What arithmetic makes of values: sums with noise, factors that clip, divisions by a length."""

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from .values import Clip, Norm, Value, few, scaled

if TYPE_CHECKING:
    from .flow import Flow


def binary(flow: "Flow", node: ast.AST, operator: type, left: Value, right: Value) -> Value:
    """An operation of two values, and the events that it is."""
    if operator in (ast.Add, ast.Sub):
        return added(flow, node, left, right)
    if operator in (ast.Mult, ast.MatMult):
        return multiplied(flow, node, operator, left, right)
    if operator in (ast.Div, ast.FloorDiv):
        return divided(flow, node, left, right)
    if operator is ast.Pow:
        if right.number == 0.5:
            return rooted(flow, left)
        is_square = right.number == 2
        return replace(left, number=None).tagged("square") if is_square else left | right
    return replace(left | right, number=None)


def added(flow: "Flow", node: ast.AST, left: Value, right: Value) -> Value:
    for data, noise in ((left, right), (right, left)):
        if noise.is_noise and not data.is_noise and "data" in data.tags:
            flow.event("add", node, data, noise)
            break
    return replace(left | right, number=None, bound=None)


def multiplied(flow: "Flow", node: ast.AST, operator: type, left: Value, right: Value) -> Value:
    for data, factor in ((left, right), (right, left)):
        if factor.bound is not None and data.bound is None and "data" in data.tags:
            return clipped(flow, node, data, factor)
    for noise, by in ((left, right), (right, left)):
        is_projected = operator is ast.MatMult and "data" in by.tags
        if noise.is_noise and not by.draws and not is_projected:
            return scaled(noise, by)
    for dividend, inverse in ((left, right), (right, left)):
        if "inverse" in inverse.tags:
            flow.event("divide", node, dividend, inverse)
    same = left.names and left.names == right.names
    found = replace(left | right, number=None).without("length", "inverse")
    return found.tagged("square") if same else found


def divided(flow: "Flow", node: ast.AST, left: Value, right: Value) -> Value:
    if right.bound is not None and "data" in left.tags and left.bound is None and not left.norms:
        return clipped(flow, node, left, right)
    if "classical" in left.tags and right.names and (right.number is None or right.number >= 1):
        flow.event("formula", node, left, right)
    if "length" in right.tags:
        flow.event("divide", node, left, right)
        if left.number is not None:
            return right.tagged("inverse")
    both = replace(left | right, number=None, parts=())
    if right.bound is not None and "data" not in left.tags:
        return replace(right, number=None)
    of = frozenset().union(*(norm.of for norm in right.norms))
    if right.norms and not left.norms:
        if "data" in left.tags and left.names & of:
            factor = replace(right, bound=few(left.names - of), names=few(left.names - of))
            return clipped(flow, node, left, factor)
        return replace(both, bound=few(left.names - of)).without("data", "length")
    if left.norms and not right.norms:
        return replace(both, bound=right.names).without("data", "length")
    return scaled(left, right) if left.is_noise and not right.draws else both.without("length")


def clipped(flow: "Flow", node: ast.AST, data: Value, factor: Value, name: str = "") -> Value:
    """What is left of data that was multiplied with a factor made of a bound and a norm."""
    orders = {norm.order for norm in factor.norms}
    clip = Clip(
        getattr(node, "lineno", 1),
        getattr(node, "col_offset", 0) + 1,
        orders.pop() if len(orders) == 1 else None,
        factor.bound or frozenset(),
        any(norm.each for norm in factor.norms),
        flow.loops,
        name,
        factor.norms,
    )
    flow.event("clip", node, data, clip=clip)
    return replace(data, clips=data.clips | {clip}, parts=(), number=None)


def rooted(flow: "Flow", value: Value) -> Value:
    """A square root: of a sum of squares, the L2 norm."""
    if "summed" not in value.tags or value.norms:
        return replace(value, number=None)
    norm = Norm(2, value.names, "each" in value.tags, flow.loops)
    return replace(value, norms=frozenset({norm}), number=None).without("data", "square", "summed")
