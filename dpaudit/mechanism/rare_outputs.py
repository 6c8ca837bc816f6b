"""What a function may do once in thousands of calls, which counted calls do not show.

A coin that leaves the noise out needs a number that is no noise: so it is seen which generators a
call draws from, and that its noise is all that it draws there. Noise that is cut off, or left out
where it is long, needs a draw that is far out: so calls are made after seeds that give such draws.
"""

from collections.abc import Sequence

import numpy as np

from .function import AuditedFunction, Value
from .shifts import OutputNoise

SEED = 21  # seed of the calls whose draws are counted
FIRST = 100_000  # seeds that are searched
MOST_SEEDS, FEWEST_SEEDS, MOST_NUMBERS = 100_000, 200, 2 * 10**6
BLOCK = 10**5  # numbers that are held at once, about
EACH = 4  # seeds with the largest number, with the smallest, of the longest noise, of the shortest
_FOUND: dict[tuple[object, ...], Sequence[int]] = {}  # (what is drawn) -> seeds, for any function


def other_draws(function: AuditedFunction, noise: OutputNoise, value: Value) -> str:
    """What a call draws beside its noise, as a clause; "" if nothing. Raises FunctionError."""
    draw = noise.draw
    of_keys = "rng" if function.takes_generator else "numpy.random"
    others = sorted(function.drawn_from(value, SEED) - {draw.generator or of_keys})
    if others:
        return f"a call also draws from {others[0]}"
    if draw.following is None:
        return ""
    if noise.mix is not None and not noise.mix.any(axis=0).all():
        return f"a call draws numbers from {draw.generator} that are not in its noise"
    outputs = function.in_turn([value], 1, [SEED], times=2)[0, 0].reshape(2, -1)
    function.seed(SEED)
    drawn = np.concatenate([draw.following(function) for _ in range(2)])
    drawn = drawn[: 2 * noise.n_drawn].reshape(2, -1)
    centre = outputs[0] - noise.of(drawn[0])
    if noise.fits(function, outputs, drawn, centre).all():
        return ""
    return f"a call draws more numbers from {draw.generator} than its noise"


def goes_on(
    function: AuditedFunction, noise: OutputNoise, value: Value, seed: int, calls: int
) -> bool:
    """Whether the next call adds what its generator gives after the noise of so many calls.

    It does not where one of them has set the seed, so that noise comes again. Raises FunctionError.

    Args:
        seed: that was set before these calls.
    """
    if noise.draw.following is None:
        return True
    output, at_seed = function.in_turn([value], 1)[:, 0], function.in_turn([value], 1, [SEED])[0, 0]
    function.seed(SEED)
    centre = at_seed - noise.of(noise.draw.following(function))
    function.seed(seed)
    some, left = noise.draw.following(function), calls * noise.n_drawn
    while left + noise.n_drawn > some.size:
        passed = min(left, some.size)
        some, left = np.concatenate([some[passed:], noise.draw.following(function)]), left - passed
    drawn = some[left : left + noise.n_drawn]
    function.seed(SEED)  # the next call is the same in another process
    return bool(noise.fits(function, output, drawn[None], centre)[0])


def known_far_seeds(function: AuditedFunction, noise: OutputNoise, value: Value) -> Sequence[int]:
    """The same as ``far_seeds``, looked for once for all functions that draw alike."""
    if noise.draw.following is None or noise.mix is not None:
        return far_seeds(function, noise, value)
    drawn = noise.draw, function.options.output_shapes, MOST_NUMBERS
    if drawn not in _FOUND:
        _FOUND[drawn] = far_seeds(function, noise, value)
    return _FOUND[drawn]


def far_seeds(function: AuditedFunction, noise: OutputNoise, value: Value) -> Sequence[int]:
    """Seeds after which a number of the noise comes out far from zero, or its length does."""
    if noise.draw.following is None:
        return ()
    size = noise.n_drawn
    n = int(np.clip(MOST_NUMBERS // size, FEWEST_SEEDS, MOST_SEEDS))
    seeds, block, parts = range(FIRST, FIRST + n), max(1, BLOCK // size), []
    for start in range(0, n, block):
        drawn = noise.draw.seeded(function, value, seeds[start : start + block])
        assert drawn is not None
        if noise.mix is not None:
            sums = noise.of(drawn) / np.where(noise.scale > 0, noise.scale, np.inf)
            drawn = np.concatenate([drawn[:, :size], sums], axis=1)
        lengths = np.linalg.norm(drawn, axis=1)
        parts.append(np.stack([drawn.max(axis=1), -drawn.min(axis=1), lengths, -lengths]))
    chosen = np.argsort(np.concatenate(parts, axis=1), axis=1)[:, -EACH:]
    return [seeds[i] for i in np.unique(chosen).tolist()]
