"""Clipped per-record gradients of small convolutional networks as machine code, through numba.

``LANES`` records go through the network in lockstep. All numbers of a layer lie as [channel,
position, record], so that each multiply-add is one instruction for all of them, and none adds up
within a register. A layer is a list of links (output position, tap of the kernel, input position),
which has none for the zeros around an image. Links sorted by output give the forward pass, by input
the gradient of the input, by tap the gradient of the weights.

The compiler makes no such code of loops over numbers. So the type `Vectors` is a few registers of
``LANES`` numbers each, and the functions on it write LLVM's vector instructions.
"""

# mypy: allow-untyped-defs, disable-error-code="misc, no-untyped-call"
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

LANES = 16 if binding.get_host_cpu_features().get("avx512f", False) else 8
WIDTHS = (8, 6)  # sums at once: enough to hide their latency, and they fit 16 registers

LAYER = np.dtype(
    [
        (name, np.int64)
        for name in (
            *("pools", "rectifies"),  # whether it takes maxima, and whether ReLU follows
            "is_linear",  # whether its window is the whole input
            *("c_x", "c_y", "n_x", "n_y", "taps"),  # channels and positions of input and output
            *("by_x", "by_y", "by_tap"),  # first rows in ``starts``
            *("weight", "bias", "end"),  # coordinates in a model's vector; bias = end: it has none
            *("width_x", "width_y"),  # widths of the blocks of channels summed at once
            *("x", "y", "dx", "dy", "taken"),  # offsets: numbers, slopes, taps of maxima
            *("forward", "backward", "offsets", "zeros"),  # weights in blocks, biases, and none
            *("gradient", "total"),  # weights of LANES records; their sums and biases
        )
    ]
)

_FLOAT, _INDEX = ir.FloatType(), ir.IntType(32)
_VECTOR = ir.VectorType(_FLOAT, LANES)

kernel: Any = njit(nogil=True, cache=True, error_model="numpy")
instructions: Any = intrinsic(prefer_literal=True)


class Vectors(types.Type):
    """So many registers."""

    def __init__(self, n: int) -> None:
        self.n = n
        super().__init__(f"Vectors({n})")


@register_model(Vectors)
class _VectorsModel(models.PrimitiveModel):
    def __init__(self, manager, vectors) -> None:
        super().__init__(manager, vectors, ir.ArrayType(_VECTOR, vectors.n))


def _address(context, builder, array_type, array, index, offset, kind):
    """Address of number ``index`` + ``offset`` of an array, as a pointer to number or vector."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [builder.add(index, offset)]), kind.as_pointer())


def _splat(builder, number):
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(undefined, number, ir.Constant(_INDEX, 0))
    zeros = ir.Constant(ir.VectorType(_INDEX, LANES), None)
    return builder.shuffle_vector(first, undefined, zeros)


def _multiply_add(builder, a, b, c):
    """a b + c, rounded once where the processor can."""
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    name = f"llvm.fmuladd.v{LANES}f32"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [a, b, c])


@instructions
def filled(_, n, number):
    """n vectors of this number; n is a literal."""

    def generate(context, builder, signature, arguments):
        vectors = ir.Constant(ir.ArrayType(_VECTOR, n.literal_value), ir.Undefined)
        for i in range(n.literal_value):
            vectors = builder.insert_value(vectors, _splat(builder, arguments[1]), i)
        return vectors

    return Vectors(n.literal_value)(n, types.float32), generate


@instructions
def load(_, like, array, index, step):
    """Load as many vectors as ``like`` has, from ``index`` on, ``step`` numbers apart."""

    def generate(context, builder, signature, arguments):
        vectors, array, index, step = arguments
        for i in range(like.n):
            offset = builder.mul(step, ir.Constant(step.type, i))
            at = _address(context, builder, signature.args[1], array, index, offset, _VECTOR)
            vectors = builder.insert_value(vectors, builder.load(at, align=4 * LANES), i)
        return vectors

    return like(like, array, types.int64, types.int64), generate


@instructions
def store(_, vectors, array, index, step):
    """The opposite of ``load``."""

    def generate(context, builder, signature, arguments):
        values, array, index, step = arguments
        for i in range(vectors.n):
            offset = builder.mul(step, ir.Constant(step.type, i))
            at = _address(context, builder, signature.args[1], array, index, offset, _VECTOR)
            builder.store(builder.extract_value(values, i), at, align=4 * LANES)
        return context.get_dummy_value()

    return types.none(vectors, array, types.int64, types.int64), generate


@instructions
def add_scaled(_, sums, array, index, vector):
    """sums[i] + array[index + i] vector."""

    def generate(context, builder, signature, arguments):
        values, array, index, vector = arguments
        vector = builder.extract_value(vector, 0)
        for i in range(sums.n):
            offset = ir.Constant(index.type, i)
            at = _address(context, builder, signature.args[1], array, index, offset, _FLOAT)
            scale = _splat(builder, builder.load(at))
            added = _multiply_add(builder, scale, vector, builder.extract_value(values, i))
            values = builder.insert_value(values, added, i)
        return values

    return sums(sums, array, types.int64, vector), generate


@instructions
def add_products(_, sums, a, b):
    """sums[i] + a[i] b[i], where one vector of sums, or of b, serves all i."""

    def generate(context, builder, signature, arguments):
        values, a_values, b_values = arguments
        for i in range(a.n):
            x = builder.extract_value(a_values, i)
            y = builder.extract_value(b_values, i % b.n)
            to = i % sums.n
            added = _multiply_add(builder, x, y, builder.extract_value(values, to))
            values = builder.insert_value(values, added, to)
        return values

    return sums(sums, a, b), generate


@instructions
def sum_of_lanes(_, vector):
    """The sum of the numbers of one vector."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(_FLOAT, [_FLOAT, _VECTOR])
        name = f"llvm.vector.reduce.fadd.v{LANES}f32"
        reduce = cgutils.get_or_insert_function(builder.module, kind, name)
        values = [ir.Constant(_FLOAT, 0.0), builder.extract_value(arguments[0], 0)]
        return builder.call(reduce, values, fastmath=("reassoc",))

    return types.float32(vector), generate


@instructions
def keep_larger(_, best, vector, tap):
    """``best``, two vectors, has the largest numbers so far and whose tap each one is."""

    def generate(context, builder, signature, arguments):
        values, vector, tap = arguments
        number, largest = builder.extract_value(vector, 0), builder.extract_value(values, 0)
        larger = builder.fcmp_ordered(">", number, largest)
        larger = builder.or_(larger, builder.fcmp_unordered("uno", number, number))  # NaN stays
        taps = builder.select(larger, _splat(builder, tap), builder.extract_value(values, 1))
        largest = builder.select(larger, number, largest)
        return builder.insert_value(builder.insert_value(values, largest, 0), taps, 1)

    return best(best, vector, types.float32), generate


@instructions
def add_where(_, sums, vector, taps, tap):
    """sums + vector, where ``taps`` is this one."""

    def generate(context, builder, signature, arguments):
        sums, vector, taps = (builder.extract_value(a, 0) for a in arguments[:3])
        chosen = builder.fcmp_ordered("==", taps, _splat(builder, arguments[3]))
        vector = builder.select(chosen, vector, ir.Constant(_VECTOR, None))
        return builder.insert_value(arguments[0], builder.fadd(sums, vector), 0)

    return sums(sums, vector, taps, types.float32), generate


@kernel
def _pack(weights, n_y, n_x, taps, step_y, step_x, width, packed):
    """Weights in blocks [blocks, taps, n_x, width]: what is multiplied at once lies in a row."""
    for y in range(n_y):
        for x in range(n_x):
            for t in range(taps):
                at = ((y // width * taps + t) * n_x + x) * width + y % width
                packed[at] = weights[y * step_y + x * step_x + t]


@kernel
def _combine_block(none, width, starts, links, space, weights, bias, x, c_x, n_x, y, n_y):
    """``_combine`` for as many outputs as ``none`` has vectors, which are zeros."""
    start = add_scaled(none, space, bias, filled(1, 1.0))
    for p in range(n_y):
        sums = start
        for e in range(starts[p], starts[p + 1]):
            w, at = weights + links[e, 0] * c_x * width, x + links[e, 1] * LANES
            for _ in range(c_x):
                sums = add_scaled(sums, space, w, load(filled(1, 0.0), space, at, 0))
                w += width
                at += n_x * LANES
        store(sums, space, y + p * LANES, n_y * LANES)


@kernel
def _combine(width, taps, starts, links, space, weights, bias, x, c_x, n_x, y, c_y, n_y):
    """y [c_y, n_y] = bias + the sums over links (tap, position of x) and channels of x."""
    for first in range(0, c_y, width):
        w, b, to = weights + first * taps * c_x, bias + first, y + first * n_y * LANES
        if width == 8:
            _combine_block(filled(8, 0.0), 8, starts, links, space, w, b, x, c_x, n_x, to, n_y)
        else:
            _combine_block(filled(6, 0.0), 6, starts, links, space, w, b, x, c_x, n_x, to, n_y)


@kernel
def _correlate_block(none, layer, starts, links, space, dy, gradient):
    """``_correlate`` for as many outputs as ``none`` has vectors, which are zeros."""
    one = squares = filled(1, 0.0)
    for t in range(layer.taps):
        for c in range(layer.c_x):
            sums = none
            for e in range(starts[t], starts[t + 1]):
                slopes = load(none, space, dy + links[e, 0] * LANES, layer.n_y * LANES)
                at = layer.x + (c * layer.n_x + links[e, 1]) * LANES
                sums = add_products(sums, slopes, load(one, space, at, 0))
            squares = add_products(squares, sums, sums)
            at = gradient + (c * layer.taps + t) * LANES
            store(sums, space, at, layer.c_x * layer.taps * LANES)
    return squares


@kernel
def _correlate(layer, starts, links, space):
    """The gradient of the weights, sums over links (position of dy, of x); its squared norm."""
    rows, squares, one = starts[layer.by_tap :], filled(1, 0.0), filled(1, 1.0)
    for first in range(0, layer.c_y, layer.width_y):
        dy = layer.dy + first * layer.n_y * LANES
        to = layer.gradient + first * layer.c_x * layer.taps * LANES
        if layer.width_y == 8:
            more = _correlate_block(filled(8, 0.0), layer, rows, links, space, dy, to)
        else:
            more = _correlate_block(filled(6, 0.0), layer, rows, links, space, dy, to)
        squares = add_products(squares, more, one)
    return squares


@kernel
def _pool(layer, starts, links, space):
    """The largest number of each window, and at which tap it is."""
    rows, one = starts[layer.by_y :], filled(1, 0.0)
    for c in range(layer.c_x):
        for p in range(layer.n_y):
            best = filled(2, -np.inf)
            for e in range(rows[p], rows[p + 1]):
                at = layer.x + (c * layer.n_x + links[e, 1]) * LANES
                best = keep_larger(best, load(one, space, at, 0), np.float32(links[e, 0]))
            at = layer.y + (c * layer.n_y + p) * LANES
            store(best, space, at, layer.taken - layer.y)


@kernel
def _unpool(layer, starts, links, space):
    """The gradient of the input of ``_pool``: where the largest numbers are."""
    rows, one = starts[layer.by_x :], filled(1, 0.0)
    for c in range(layer.c_x):
        for p in range(layer.n_x):
            sums = one
            for e in range(rows[p], rows[p + 1]):
                at = (c * layer.n_y + links[e, 1]) * LANES
                slopes = load(one, space, layer.dy + at, 0)
                taken = load(one, space, layer.taken + at, 0)
                sums = add_where(sums, slopes, taken, np.float32(links[e, 0]))
            store(sums, space, layer.dx + (c * layer.n_x + p) * LANES, 0)


@kernel
def _forward(layer, starts, links, space):
    if layer.pools:
        _pool(layer, starts, links, space)
    else:
        _combine(
            layer.width_y, layer.taps, starts[layer.by_y :], links, space, layer.forward,
            layer.offsets, layer.x, layer.c_x, layer.n_x, layer.y, layer.c_y, layer.n_y,
        )  # fmt: skip
    if layer.rectifies:
        y = space[layer.y :][: layer.c_y * layer.n_y * LANES]
        for i in range(y.size):
            y[i] = np.float32(0) if y[i] < 0 else y[i]  # NaN stays


@kernel
def _backward(layer, is_first, starts, links, space):
    """The gradients of one layer; the squared norm of its parameters'."""
    squares = filled(1, 0.0)
    n = layer.c_y * layer.n_y
    if layer.rectifies:
        y, dy = space[layer.y :][: n * LANES], space[layer.dy :][: n * LANES]
        for i in range(y.size):
            dy[i] = np.float32(0) if y[i] <= 0 else dy[i]
    if layer.pools:
        if not is_first:
            _unpool(layer, starts, links, space)
        return squares
    if not is_first:
        _combine(
            layer.width_x, layer.taps, starts[layer.by_x :], links, space, layer.backward,
            layer.zeros, layer.dy, layer.c_y, layer.n_y, layer.dx, layer.c_x, layer.n_x,
        )  # fmt: skip
    if layer.is_linear:  # an outer product, whose norm is the product of norms
        inputs = _squares(space, layer.x, layer.c_x * layer.n_x)
        squares = add_products(squares, inputs, _squares(space, layer.dy, layer.c_y))
    else:
        squares = _correlate(layer, starts, links, space)
    if layer.bias < layer.end:
        for c in range(layer.c_y):
            slopes = _bias_gradient(layer, c, space)
            squares = add_products(squares, slopes, slopes)
    return squares


@kernel
def _squares(space, at, n):
    """The sum of the squares of n vectors that follow each other."""
    squares = filled(1, 0.0)
    for i in range(n):
        number = load(squares, space, at + i * LANES, 0)
        squares = add_products(squares, number, number)
    return squares


@kernel
def _bias_gradient(layer, channel, space):
    sums = filled(1, 0.0)
    for p in range(layer.n_y):
        at = layer.dy + (channel * layer.n_y + p) * LANES
        sums = add_products(sums, load(sums, space, at, 0), filled(1, 1.0))
    return sums


@kernel
def _accumulate(layer, factors, space):
    """Add each record's gradient, times its factor, to the sums."""
    one, n_x = filled(1, 0.0), layer.c_x * layer.taps
    factor = load(one, factors, 0, 0)
    for c in range(layer.c_y):
        if layer.is_linear:
            g, slopes = layer.x, load(one, space, layer.dy + c * LANES, 0)
            scale = add_products(one, slopes, factor)
        else:
            g, scale = layer.gradient + c * n_x * LANES, factor
        to = layer.total + c * n_x * LANES
        for i in range(n_x):
            sums = load(one, space, to + i * LANES, 0)
            sums = add_products(sums, load(one, space, g + i * LANES, 0), scale)
            store(sums, space, to + i * LANES, 0)
        if layer.bias < layer.end:
            to = layer.total + (layer.bias - layer.weight + c) * LANES
            sums = add_products(load(one, space, to, 0), _bias_gradient(layer, c, space), factor)
            store(sums, space, to, 0)


@kernel
def _take(inputs, start, space):
    """Write LANES records from ``start`` on side by side; the last one stands for those missing."""
    for lane in range(LANES):
        record = inputs[min(start + lane, inputs.shape[0] - 1)]
        for i in range(record.size):
            space[i * LANES + lane] = record[i]


@kernel
def _slopes(layer, labels, start, space):
    """Derivatives of the cross-entropy in the logits: softmax - truth."""
    y, dy = space[layer.y :], space[layer.dy :]
    for lane in range(LANES):
        stop = layer.c_y * LANES
        largest, total = y[lane], np.float32(0)
        for i in range(lane, stop, LANES):
            largest = max(largest, y[i])
        for i in range(lane, stop, LANES):
            dy[i] = np.exp(y[i] - largest)
            total += dy[i]
        for i in range(lane, stop, LANES):
            dy[i] /= total
        dy[labels[min(start + lane, labels.size - 1)] * LANES + lane] -= np.float32(1)


@kernel
def _prepare(layer, x, space):
    """Write a model's weights in the order in which they are read, and zero the sums."""
    n = layer.c_x * layer.taps
    _pack(x[layer.weight :], layer.c_y, layer.c_x, layer.taps, n, layer.taps, layer.width_y,
          space[layer.forward :])  # fmt: skip
    _pack(x[layer.weight :], layer.c_x, layer.c_y, layer.taps, layer.taps, n, layer.width_x,
          space[layer.backward :])  # fmt: skip
    for i in range(layer.end - layer.bias):
        space[layer.offsets + i] = x[layer.bias + i]
    for i in range((layer.end - layer.weight) * LANES):
        space[layer.total + i] = 0


@kernel
def clipped_sums(
    X, inputs, labels, holders, weights, C, layers, starts, links, parts, first, last, space, total
):
    """Sums of clipped gradients of the parts ``first`` to ``last`` of models' batches.

    Args:
        X: [m, d], models.
        inputs: [n, b, numbers of a record].
        labels: [n, b], class indices.
        holders: [m], on whose batch each model is evaluated.
        weights: [n, b], factors after clipping.
        C: clip norm, or infinity.
        layers, starts, links: of the network.
        parts: into how many parts batches are divided.
        space: workspace, zeros at first.
        total: [m, parts, d], what is written.
    """
    n_records, one = inputs.shape[1], filled(1, 0.0)
    size = -(-n_records // (parts * LANES)) * LANES
    factors = space[space.size - LANES :]
    for task in range(first, last):
        model, part = task // parts, task % parts
        row = holders[model]
        for layer in layers:
            if not layer.pools:
                _prepare(layer, X[model], space)
        for start in range(part * size, min((part + 1) * size, n_records), LANES):
            _take(inputs[row], start, space)
            for layer in layers:
                _forward(layer, starts, links, space)
            _slopes(layers[-1], labels[row], start, space)
            squares = one
            for i in range(len(layers) - 1, -1, -1):
                more = _backward(layers[i], i == 0, starts, links, space)
                squares = add_products(squares, more, filled(1, 1.0))
            store(squares, factors, 0, 0)
            for lane in range(LANES):
                record = start + lane
                weight = weights[row, record] if record < n_records else np.float32(0)
                norm = np.sqrt(factors[lane])
                factors[lane] = weight * (C / norm if norm > C else np.float32(1))
            for layer in layers:
                if not layer.pools:
                    _accumulate(layer, factors, space)
        for layer in layers:
            if not layer.pools:
                for i in range(layer.end - layer.weight):
                    sums = load(one, space, layer.total + i * LANES, 0)
                    total[model, part, layer.weight + i] = sum_of_lanes(sums)
