"""Functions with one mistake each, and the claim that it breaks; as ``further_functions.py``."""

from math import exp
from typing import Any

import numpy as np

from tests.mechanism.further_functions import (
    BIT,
    LAYERS,
    NUMBER,
    ROWS,
    SCORES,
    SIGMA,
    Case,
    clip,
    clip_rows,
    laplace,
    noised,
    normal,
    truncated_laplace,
    two_geometrics,
    uniform,
)


def noise_cut_to_integers(x):
    return clip(x) + normal(0, SIGMA, x.shape).astype(int)


def noise_of_six_decimals(x):
    return clip(x) + np.round(normal(0, SIGMA, x.shape), 6)


def rounded_before_an_integer_noise(x):
    return x + two_geometrics(np.zeros(x.shape))


def response_of_eight(x):
    """Tells the truth as two answers would allow, of 8."""
    truth = uniform() < exp(1) / (1 + exp(1))
    return np.asarray(int(x) if truth else np.random.randint(8))


def clipped_by_the_mean(x):
    return x / max(1.0, np.abs(x).mean()) + normal(0, SIGMA, x.shape)


def noise_of_short_tails(x):
    return clip(x) + np.clip(normal(0, SIGMA, x.shape), -2 * SIGMA, 2 * SIGMA)


def for_positive_ones_alone(x):
    y = clip(x)
    return np.where(y > 0, y + normal(0, SIGMA, x.shape), y)


def positive_input_alone(x):
    return noised(x) if x.sum() > 0 else clip(x)


def permute_and_flip_of_twice(x):
    best = x.max()
    for i in np.random.permutation(len(x)):
        if uniform() <= exp(x[i] - best):
            return np.asarray(i)


def zero_returned_at_once(x):
    return noised(x) if x.any() else x


def steps_of_the_value(x):
    y = clip(x)
    step = max(np.abs(y).max(), 1e-12) / 127
    return np.round((y + normal(0, SIGMA, x.shape)) / step) * step


def last_one_bare(x):
    y = noised(x)
    y[-1] = clip(x)[-1]
    return y


def noise_in_pairs(x):
    return clip(x) + np.repeat(normal(0, SIGMA, x.size // 2), 2)


def noise_of_low_rank(x):
    z = np.outer(normal(size=4), normal(size=5)).ravel()
    return clip(x) + SIGMA * z


def smoothed_noise(x):
    z = normal(0, SIGMA, x.size + 4)
    return clip(x) + np.convolve(z, np.ones(5) / 5, "valid")


def gumbel_shown(x):
    return x + np.random.gumbel(0, 1.0, x.shape)


def scaled_up_too(x):
    return x * max(1.0, 1 / max(np.linalg.norm(x), 1e-300)) + normal(0, SIGMA, x.shape)


def clipped_far_out(x):
    return (clip(x) if np.linalg.norm(x) > 1e3 else x) + normal(0, SIGMA, x.shape)


def scores_by_the_largest(x):
    """The temperature is of the data."""
    return np.asarray(
        np.argmax(x / max(np.abs(x - x.mean()).max(), 1e-9) * 3 + np.random.gumbel(size=x.shape))
    )


def of_norm_1_for_one(x):
    """Two values are two apart, and the noise is for one."""
    return x / max(np.linalg.norm(x), 1e-300) + normal(0, SIGMA, x.shape)


class _Every:
    calls = 0


def noise_in_every_other_call(x):
    _Every.calls += 1
    return noised(x) if _Every.calls % 2 else clip(x)


class _Kept:
    noise: Any = None


def noise_kept(x):
    if _Kept.noise is None:
        _Kept.noise = normal(0, SIGMA, x.shape)
    return clip(x) + _Kept.noise


class _Fewer:
    calls = 0


def noise_that_fades(x):
    _Fewer.calls += 1
    return clip(x) + normal(0, SIGMA / (1 + _Fewer.calls / 500), x.shape)


def noise_of_the_sign(x):
    return clip(x) + np.sign(x) * np.abs(normal(0, SIGMA, x.shape))


def multiplied(x):
    return clip(x) * (1 + normal(0, SIGMA, x.shape))


def noise_of_the_rows_scaled(rows):
    return clip_rows(rows).sum(axis=0) + normal(0, SIGMA / len(rows), rows.shape[1])


def layers_of_the_whole_bound(xs):
    return [clip(x) + normal(0, SIGMA, x.shape) for x in xs]


def of_the_largest_coordinate(x):
    """Noise for one coordinate alone."""
    y = clip(x)
    y[np.abs(y).argmax()] += normal(0, SIGMA)
    return y


def sparse_vector_that_goes_on(x):
    """Every answer above counts, with the noise of one."""
    rho = laplace(0, 2.0)
    return (x + laplace(0, 4.0, x.shape) >= rho).astype(float)


def sparse_vector_of_one_noise(x):
    rho, nu = laplace(0, 2.0), laplace(0, 4.0)
    found = np.flatnonzero(x + nu >= rho)
    return np.asarray(found[0] if len(found) else -1)


def far_numbers_are_bare(x):
    y = noised(x)
    return np.where(np.abs(x) > 1e9, x, y)


def wrapped_around(x):
    """One more than 127 is -128."""
    return (x + np.int8(1)).astype(float) + normal(0, SIGMA, x.shape)


def overflowing_in_double_precision(x):
    """The norm is infinite from 1e155 on, and the clip is left out then."""
    size = np.sqrt(np.square(x).sum())
    y = x / max(1.0, size) if np.isfinite(size) else x
    return y + normal(0, SIGMA, x.shape)


def overflowing(x):
    """Of float32 the norm is infinite from 1e20 on, and the clip is left out then."""
    size = np.sqrt(np.square(x.astype(np.float32)).sum())
    y = x / max(1.0, size) if np.isfinite(size) else x
    return y + normal(0, SIGMA, x.shape)


def response_with_a_typo(x):
    """1 - p where p is meant, for one of the two."""
    p = exp(1) / (1 + exp(1))
    return np.asarray(int(uniform() < (p if x else (1 - p) / 2)))


def half_precision_before(x):
    """Noise smaller than the steps of what it is added to."""
    return (
        (np.float16(2048) * np.sign(x) + normal(0, 0.1, x.shape)).astype(np.float16).astype(float)
    )


def uniform_dither(x):
    return np.floor(clip(x) * 4 + uniform(size=x.shape)) / 4


def median_of_the_scores(x):
    """A clip at the median of the value itself."""
    return x / max(1e-12, np.median(np.abs(x))) + normal(0, SIGMA, x.shape)


def seeded_by_what_is_rounded(x):
    rng = np.random.RandomState(int(np.round(np.abs(clip(x)).sum() * 10)))
    return clip(x) + rng.normal(0, SIGMA, x.shape) + normal(0, 1e-3, x.shape)


WRONG = {
    **{
        f.__name__: Case(f)
        for f in (
            noise_cut_to_integers,
            noise_of_six_decimals,
            clipped_by_the_mean,
            noise_of_short_tails,
            for_positive_ones_alone,
            positive_input_alone,
            zero_returned_at_once,
            steps_of_the_value,
            last_one_bare,
            noise_in_pairs,
            noise_of_low_rank,
            smoothed_noise,
            scaled_up_too,
            clipped_far_out,
            noise_in_every_other_call,
            noise_kept,
            noise_that_fades,
            noise_of_the_sign,
            multiplied,
            of_the_largest_coordinate,
            far_numbers_are_bare,
            overflowing,
            overflowing_in_double_precision,
            half_precision_before,
            uniform_dither,
            median_of_the_scores,
            seeded_by_what_is_rounded,
        )
    },
    "of_norm_1_for_one": Case(of_norm_1_for_one, adjacency="replace-one"),
    "rounded_before_an_integer_noise": Case(
        rounded_before_an_integer_noise, 1.0, 0.0, "replace-one", NUMBER
    ),
    "response_of_eight": Case(
        response_of_eight,
        1.0,
        0.0,
        "replace-one",
        {"shape": (), "low": 0, "high": 7, "dtype": "int64", "output_dtype": "int64"},
    ),
    "permute_and_flip_of_twice": Case(permute_and_flip_of_twice, 1.0, 0.0, "replace-one", SCORES),
    "gumbel_shown": Case(gumbel_shown, 1.0, 0.0, "replace-one", NUMBER),
    "scores_by_the_largest": Case(scores_by_the_largest, 1.0, 0.0, "replace-one", SCORES),
    "noise_of_the_rows_scaled": Case(noise_of_the_rows_scaled, options=ROWS),
    "layers_of_the_whole_bound": Case(layers_of_the_whole_bound, options=LAYERS),
    "truncated_laplace_pure": Case(truncated_laplace, 1.0, 0.0, "replace-one", NUMBER, 20_000),
    "sparse_vector_that_goes_on": Case(
        sparse_vector_that_goes_on,
        1.0,
        0.0,
        "replace-one",
        {"shape": (8,), "sensitivity": 1.0, "norm": "linf"},
        20_000,
    ),
    "sparse_vector_of_one_noise": Case(sparse_vector_of_one_noise, 1.0, 0.0, "replace-one", SCORES),
    "wrapped_around": Case(
        wrapped_around,
        options={"shape": (3,), "sensitivity": 1, "dtype": "int8", "output_dtype": "float64"},
    ),
    "response_with_a_typo": Case(response_with_a_typo, 1.0, 0.0, "replace-one", BIT),
}
