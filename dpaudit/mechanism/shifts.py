"""How far inputs move the output, and what the noise is: by calls that share all their draws.

Two calls with the same seeds have the same noise. Where the difference of what they return is the
same for every seed, the function adds noise to a value, g(x) + Z, and the difference is
g(x') - g(x) but for rounding. The noise is recognised where it is a multiple of what a known
generator draws first after the same seed: Z = b z, with z from numpy.random.normal, say. Its law,
scale and independence are then known exactly, not estimated. Where no multiple fits, sums of more
draws are fitted, Z = A z, as of a transform, matrix factorisation or noise in shares. JAX draws by
keys, which a function may derive in any way: there z is what a call is seen to draw, by keys that
nothing else uses.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np
import torch

from dpaudit.accounting.privacy_loss import Array, NoiseFamily
from dpaudit.files.mechanism_file import Shape

from .function import AuditedFunction, Value

SEEDS = (11, 12, 13, 14)  # seeds that calls share
ROUNDING = {"float64": 1e-9, "float32": 1e-4, "float16": 5e-2, "bfloat16": 3e-1}  # of noise
NUMBERS, MOST_CALLS = 10**6, 1_000  # numbers of outputs, and calls, held at once
EXACT = {"float64": 1e-9, "float32": 1e-5}  # relative to the noise: error of a multiple of a draw
COARSE = 1e-4  # the same of other dtypes
ALIKE = 1e-4  # relative: scales that differ by less are one
MOST_REPLAYED = 10**7
MOST_BLOCKS, MOST_MIXED = 16, 400  # outputs whose draws are summed, and numbers in all
FITTED = 300_000  # the first seed of calls to which sums are fitted
SAME = 1e-9  # relative: parts of a move that differ by less are one
RANK = {"float64": 1e-9, "float32": 1e-3}  # relative: a direction with less noise has none
LEFT = {"float64": 1e-12, "float32": 1e-5}  # relative to the noise: rounding in a move
MOST_SLOW = 250  # calls without compilation
LEGACY = np.random  # frameworks draw from it
GIVEN: tuple[tuple[str, NoiseFamily, str, Any], ...] = (  # draws with options
    ("normal", "gaussian", "standard_normal", {}),
    ("normal", "gaussian", "standard_normal", {"dtype": np.float32}),
    ("laplace", "laplace", "laplace", {}),
)
ULP = {"float64": 4e-16, "float32": 4e-7}  # relative to an output that was rounded several times


class DrawFunction(NamedTuple):
    """A function that frameworks draw noise with, after a seed."""

    name: str
    family: NoiseFamily
    generator: str  # recorder's name of its generator; "" for JAX, which has keys
    # What is drawn for a value after each seed, [n_seeds, n_out], of scale 1; None: it is not seen.
    seeded: Callable[[AuditedFunction, Value, Sequence[int]], Array | None]
    # What is drawn next, [n_out]; None: that is not seen without a call.
    following: Callable[[AuditedFunction], Array] | None = None
    most: int = MOST_REPLAYED  # calls with a value that are compared
    several: Callable[[int], "DrawFunction"] | None = None  # the draws for so many outputs in a row


class OutputNoise(NamedTuple):
    """Noise that was recognised: independent draws of a family, each times a scale, or sums."""

    draw: DrawFunction
    scale: Array  # [n_out]: standard deviation, or scale of the Laplace distribution; may be < 0
    # [n_out, n_drawn]: what each Gaussian draw adds; None: each output has one, times its scale
    mix: Array | None = None

    @property
    def n_drawn(self) -> int:
        """Draws of one call."""
        return self.scale.size if self.mix is None else self.mix.shape[1]

    def of(self, drawn: Array) -> Array:
        """The noise [n, n_out] of draws [n, n_drawn or more]."""
        if self.mix is None:
            return np.asarray(self.scale * drawn)
        return np.asarray(drawn[..., : self.n_drawn] @ self.mix.T)

    def hides(self, moved: Array, dtype: str) -> float:
        """The length of the draws that make up for a move of the output; infinite: none do."""
        assert self.mix is not None
        draws = np.linalg.lstsq(self.mix, moved, rcond=RANK[dtype])[0]
        left = np.abs(self.mix @ draws - moved).max()
        rounding = LEFT[dtype] * self.scale.max() + SAME * np.abs(moved).max()
        return inf if left > rounding else float(np.linalg.norm(draws))

    def exceptions(self, function: AuditedFunction, value: Value, seeds: Sequence[int]) -> int:
        """Number of calls whose output is not one centre plus this noise."""
        found, centre = 0, None
        block = max(1, min(MOST_CALLS, NUMBERS // self.n_drawn))
        for some in (seeds[i : i + block] for i in range(0, len(seeds), block)):
            outputs = function.in_turn([value], len(some), some)[:, 0]
            drawn = self.draw.seeded(function, value, some)
            if drawn is None:
                return len(seeds)
            if centre is None:
                centre = outputs[0] - self.of(drawn[0])
            found += len(outputs) - int(self.fits(function, outputs, drawn, centre).sum())
        return found

    def fits(self, function: AuditedFunction, outputs: Array, drawn: Array, centre: Array) -> Array:
        """Whether each output, [n, n_out], is the centre and the noise that was drawn, [n]."""
        allowed = 2 * _allowed(function, drawn, self.scale, np.abs(outputs))
        off = np.abs(outputs - self.of(drawn) - centre)
        return np.asarray((off <= allowed).all(axis=1))


def shift(function: AuditedFunction, start: Array, value: Value) -> Array | None:
    """By how much a value moves the output from ``start``; None if that depends on the draws.

    Args:
        start: [n_seeds, n_out], what another value gives for ``SEEDS``.
    """
    moved = function.in_turn([value], len(SEEDS), SEEDS)[:, 0] - start
    spread = np.abs(moved - moved[0]).max(initial=0.0)
    noise = np.abs(start - start.mean(axis=0)).max(initial=0.0)
    dtype = function.options.output_dtype or function.options.dtype
    size = np.abs(moved).max(initial=0.0)
    allowed = ROUNDING.get(dtype, 0.0) * max(noise, size * 1e-3)
    return None if spread > allowed else np.asarray(moved.mean(axis=0))


def recognised(function: AuditedFunction, value: Value) -> OutputNoise | None:
    """The noise that is added to a value, if it is what a known function draws first, or sums."""
    return _one_by_one(function, value) or _summed(function, value)


def _one_by_one(function: AuditedFunction, value: Value) -> OutputNoise | None:
    """Noise of which each number is one draw, times a scale."""
    returned = function.in_turn([value], len(SEEDS), SEEDS)[:, 0]
    ours = returned - returned.mean(axis=0)
    if not np.abs(ours).max(initial=0.0) > 0:
        return None
    for draw in (*_drawn_here(function), *JAX_DRAWS):
        drawn = draw.seeded(function, value, SEEDS)
        if drawn is None:
            continue
        theirs = drawn - drawn.mean(axis=0)
        scale = (ours * theirs).sum(axis=0) / np.square(theirs).sum(axis=0)
        allowed = _allowed(function, drawn, scale, np.abs(returned).max(axis=0))
        if (np.abs(ours - scale * theirs) <= allowed).all() and (np.abs(scale) > allowed).any():
            return OutputNoise(draw, _alike(np.where(np.abs(scale) > allowed, scale, 0.0)))
    return None


def _summed(function: AuditedFunction, value: Value) -> OutputNoise | None:
    """Noise of which each number is a sum of Gaussian draws, each times a weight."""
    options = function.options
    n_out = sum(map(prod, options.output_shapes))
    blocks = min(MOST_BLOCKS, MOST_MIXED // n_out)
    if not blocks or (options.output_dtype or options.dtype) not in RANK:
        return None
    seeds = range(FITTED, FITTED + 2 * blocks * n_out + 8)
    returned = function.in_turn([value], len(seeds), seeds)[:, 0]
    ours, size = returned - returned.mean(axis=0), np.abs(returned).max(axis=0)
    for one in _drawn_here(function):
        if one.family != "gaussian" or one.several is None:
            continue
        draw = one.several(blocks)
        drawn = draw.seeded(function, value, seeds)
        assert drawn is not None
        theirs = drawn - drawn.mean(axis=0)
        mix = np.linalg.lstsq(theirs, ours, rcond=None)[0].T
        allowed = _allowed(function, drawn, np.linalg.norm(mix, axis=1), size)
        if (np.abs(ours - theirs @ mix.T) <= allowed).all() and (np.abs(ours) > allowed).any():
            mix = np.where(np.abs(mix) > allowed[:, None], mix, 0.0)
            mix = mix[:, : 1 + np.flatnonzero(mix.any(axis=0))[-1]]
            return OutputNoise(draw, np.linalg.norm(mix, axis=1), mix)
    return None


def _drawn_here(function: AuditedFunction) -> Sequence[DrawFunction]:
    """What it may draw with after a seed."""
    given = GIVEN_DRAWS if function.generator is not None else ()
    flat = FLAT_DRAWS if len(function.options.output_shapes) > 1 else ()
    return (*DRAWS, *given, *flat)


def _allowed(function: AuditedFunction, drawn: Array, scale: Array, size: Array) -> Array:
    """How far rounding may move a number of this size that carries noise of this scale.

    Noise that is rounded itself is no multiple of what was drawn: finer digits of the value beside
    it have none. What is drawn in less precision than the output has the rounding of its own.
    """
    dtype = function.options.output_dtype or function.options.dtype
    precision = "float32" if (drawn == drawn.astype(np.float32)).all() else dtype
    exact = max(EXACT.get(dtype, COARSE), EXACT.get(precision, COARSE))
    return np.asarray(exact * np.abs(scale) + ULP.get(dtype, 0.0) * size)


def _alike(scale: Array) -> Array:
    """Scales of all numbers; one of all where they differ by rounding alone."""
    middle = float(np.median(scale))
    same = np.abs(scale - middle) <= ALIKE * abs(middle)
    return np.where(same, middle, scale)


Seed = Callable[[AuditedFunction, int], object]
One = Callable[[AuditedFunction, Shape], Array]


def _after_seed(
    name: str,
    family: NoiseFamily,
    generator: str,
    seed: Seed,
    one: One,
    flat: bool = False,
    outputs: int = 1,
) -> DrawFunction:
    """What a function draws first after each seed, for each tensor of the output in turn.

    Args:
        seed: sets the generator, and no other: that is much faster.
        one: of a tensor.
        flat: whether it draws for all tensors of an output together; torch then draws others.
        outputs: for which it draws, one after the other.
    """

    def shapes(function: AuditedFunction) -> tuple[Shape, ...]:
        found = tuple(function.options.output_shapes)
        return (((sum(map(prod, found)),),) if flat else found) * outputs

    def drawn(function: AuditedFunction, of: Sequence[Shape]) -> Array:
        parts = [np.asarray(one(function, s), float).ravel() for s in of]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def following(function: AuditedFunction) -> Array:
        return drawn(function, shapes(function))

    def seeded(function: AuditedFunction, value: Value, seeds: Sequence[int]) -> Array:
        rows, of = [], shapes(function)
        for number in seeds:
            seed(function, number)
            rows.append(drawn(function, of))
        return np.stack(rows)

    return DrawFunction(
        name,
        family,
        generator,
        seeded,
        following,
        several=lambda n: _after_seed(name, family, generator, seed, one, flat, n),
    )


def _seed_given(function: AuditedFunction, seed: int) -> None:
    function.generator = np.random.default_rng(seed)


def _given(method: str, options: dict[str, Any]) -> One:
    return lambda f, shape: np.asarray(getattr(f.generator, method)(size=shape, **options))


def _torch_normal(dtype: torch.dtype) -> One:
    return lambda _, shape: torch.randn(shape, dtype=dtype).numpy()


def _torch_laplace(_: AuditedFunction, shape: Shape) -> Array:
    return torch.distributions.Laplace(0.0, 1.0).sample(shape).numpy()


def _python(draw: Callable[[float, float], float]) -> One:
    return lambda _, shape: np.array([draw(0.0, 1.0) for _ in range(prod(shape))])


def _by_jax(name: str, family: NoiseFamily) -> DrawFunction:
    def seeded(function: AuditedFunction, value: Value, seeds: Sequence[int]) -> Array | None:
        found = function.drawn_by_jax(value, seeds)
        n_out = sum(map(prod, function.options.output_shapes))
        fits = found is not None and found.family == family and found.numbers.shape[1] == n_out
        return found.numbers if found is not None and fits else None

    return DrawFunction(name, family, "", seeded, most=MOST_SLOW)


def _seed_numpy(_: AuditedFunction, seed: int) -> None:
    LEGACY.seed(seed % 2**32)


def _numpy_normal(_: AuditedFunction, shape: Shape) -> Array:
    return LEGACY.standard_normal(shape)


def _numpy_laplace(_: AuditedFunction, shape: Shape) -> Array:
    return LEGACY.laplace(size=shape)


def _seed_torch(_: AuditedFunction, seed: int) -> None:
    torch.default_generator.manual_seed(seed)


def _seed_python(_: AuditedFunction, seed: int) -> None:
    random.seed(seed)


def _torch_draws(flat: bool) -> Iterator[DrawFunction]:
    for dtype in (torch.float32, torch.float64):
        one = _torch_normal(dtype)
        yield _after_seed("torch.randn", "gaussian", "torch", _seed_torch, one, flat)


def _draws() -> Iterator[DrawFunction]:
    yield _after_seed("numpy.random.normal", "gaussian", "numpy.random", _seed_numpy, _numpy_normal)
    yield from _torch_draws(flat=False)
    for drawn in (random.gauss, random.normalvariate):
        name, one = f"random.{drawn.__name__}", _python(drawn)
        yield _after_seed(name, "gaussian", "random", _seed_python, one)
    yield _after_seed(
        "numpy.random.laplace", "laplace", "numpy.random", _seed_numpy, _numpy_laplace
    )
    yield _after_seed(
        "torch.distributions.Laplace", "laplace", "torch", _seed_torch, _torch_laplace
    )


DRAWS, FLAT_DRAWS = tuple(_draws()), tuple(_torch_draws(flat=True))
JAX_DRAWS = (_by_jax("jax.random.normal", "gaussian"), _by_jax("jax.random.laplace", "laplace"))
GIVEN_DRAWS = tuple(  # draws by a generator that a function is given
    _after_seed(f"numpy.random.Generator.{name}", family, "rng", _seed_given, _given(method, how))
    for name, family, method, how in GIVEN
)
