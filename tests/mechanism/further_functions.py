"""Right functions that neither the zoo nor ``outside_the_zoo.py`` has, with a claim each.

Each keeps its claim, by a closed form or as what is made of a noised value alone. Where not said, a function clips to L2 norm 1, the claim is (1, 1e-5)-DP between a value and none,
and ``SIGMA`` is the standard deviation that keeps it.
"""

from math import asinh, exp, log, sqrt
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr

SIGMA = 3.7302  # of (1, 1e-5)-DP at distance 1: Balle and Wang 2018, algorithm 1
DELTA = 1e-5


class Case(NamedTuple):
    function: Any
    epsilon: float = 1.0
    delta: float = DELTA
    adjacency: str = "add-remove"
    options: dict[str, Any] = {}
    runs: int = 1_500


VECTOR = {"shape": (20,)}
NUMBER = {"shape": (1,), "sensitivity": 1.0}
SCORES = {
    "shape": (8,),
    "sensitivity": 1.0,
    "norm": "linf",
    "output_shape": (),
    "output_dtype": "int64",
}
INTEGER = {"shape": (1,), "sensitivity": 1.0, "dtype": "int64", "output_dtype": "int64"}
BIT = {"shape": (), "low": 0, "high": 1, "dtype": "int64", "output_dtype": "int64"}
UNIT = {"shape": (), "low": -1.0, "high": 1.0}
ROWS = {"shape": (8, 5), "records": True, "output_shape": (5,)}
LAYERS = {"shape": ((10,), (4, 5))}
normal, laplace, uniform = np.random.normal, np.random.laplace, np.random.uniform


def clip(x, bound=1.0):
    return x / max(1.0, np.linalg.norm(x) / bound)


def clip_rows(rows):
    return rows / np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True))


def noised(x):
    return clip(x) + normal(0, SIGMA, x.shape)


def permute_and_flip(x):
    """McKenna and Sheldon 2020."""
    best = x.max()
    for i in np.random.permutation(len(x)):
        if uniform() <= exp((x[i] - best) / 2):
            return np.asarray(i)


def exponential_by_inverse(x):
    """The exponential mechanism, by its cumulative probabilities."""
    p = np.exp((x - x.max()) / 2)
    return np.asarray(np.searchsorted(np.cumsum(p / p.sum()), uniform()).clip(0, len(x) - 1))


def staircase(x):
    """Geng and Viswanath 2014, Algorithm 1, of epsilon 1 and gamma 0.3."""
    gamma, b = 0.3, exp(-1.0)
    sign = 1 if uniform() < 0.5 else -1
    steps = np.random.geometric(1 - b) - 1
    second = uniform() < (1 - gamma) * b / (gamma + (1 - gamma) * b)
    u = uniform()
    inside = (steps + gamma + (1 - gamma) * u) if second else (steps + gamma * u)
    return x + sign * inside


def two_geometrics(x):
    p = 1 - exp(-1.0)
    return x + np.random.geometric(p, x.shape) - np.random.geometric(p, x.shape)


def truncated_gaussian(x, sigma=3.0, bound=9.0):
    z = np.inf
    while abs(z) > bound:
        z = normal(0, sigma)
    return x + z


def of_truncated_gaussian(epsilon, sigma=3.0, bound=9.0):
    """Its delta at distance 1: what the first law has more than exp(epsilon) times the second."""
    mass = ndtr(bound / sigma) - ndtr(-bound / sigma)
    edge = max(0.5 - epsilon * sigma**2, 1 - bound)  # below it the ratio is larger
    p = ndtr(edge / sigma) - ndtr(-bound / sigma)
    q = ndtr((edge - 1) / sigma) - ndtr(-bound / sigma)
    return (p - exp(epsilon) * q) / mass


def truncated_laplace(x):
    """Geng, Ding, Guo and Kumar 2020: (1, 1e-3)-DP with support A."""
    a = log(1 + (exp(1.0) - 1) / (2 * 1e-3))
    z = np.inf
    while abs(z) > a:
        z = laplace()
    return x + z


def sign_of_noised(x):
    return np.sign(noised(x))


def half_precision_afterwards(x):
    return noised(x).astype(np.float16).astype(float)


def rescaled(x):
    return 3.0 * noised(x) - 1.0


def sorted_afterwards(x):
    return np.sort(noised(x))


def shuffled_afterwards(x):
    return np.random.permutation(noised(x))


def quantised_afterwards(x):
    return np.round(noised(x) * 2) / 2


def denoised_afterwards(x):
    y = noised(x)
    return np.sign(y) * np.maximum(np.abs(y) - SIGMA, 0)


def cauchy(x):
    """The largest ratio of densities one apart: 2 asinh(1 / (2 scale))."""
    return x + 2.0 * np.random.standard_cauchy(x.shape)


def logistic(x):
    return x + np.random.logistic(0, 1.0, x.shape)


def l2_laplace(x):
    """The K-norm mechanism: Hardt and Talwar 2010, density exp(-epsilon |z|_2)."""
    direction = normal(size=x.shape)
    return clip(x) + np.random.gamma(x.size) * direction / np.linalg.norm(direction)


def sup_laplace(x):
    """The same in the largest norm."""
    return x + np.random.gamma(x.size + 1) * uniform(-1, 1, x.shape)


def unary_encoding(x):
    """Symmetric, of one of 8: Wang et al. 2017."""
    keep = exp(0.5) / (exp(0.5) + 1)
    bits = np.arange(8) == int(x)
    return np.where(uniform(size=8) < keep, bits, ~bits).astype(np.int64)


def piecewise(x):
    """Wang et al. 2019, Algorithm 2, epsilon 1."""
    e = exp(0.5)
    c = (e + 1) / (e - 1)
    left = (c + 1) / 2 * float(x) - (c - 1) / 2
    right = left + c - 1
    if uniform() < e / (e + 1):
        return np.asarray(uniform(left, right))
    u = uniform(0, 2 * c - (right - left))
    return np.asarray(-c + u if u < left + c else right + (u - (left + c)))


def smooth_clip(x):
    size = np.linalg.norm(x)
    return x * (np.tanh(size) / size if size > 0 else 1.0) + normal(0, SIGMA, x.shape)


def always_of_norm_1(x):
    return x / max(np.linalg.norm(x), 1e-300) + normal(0, 2 * SIGMA, x.shape)


def box_muller(x):
    u, v = 1 - np.random.random_sample(x.shape), np.random.random_sample(x.shape)
    return clip(x) + SIGMA * np.sqrt(-2 * np.log(u)) * np.cos(2 * np.pi * v)


def in_two_parts(x):
    return clip(x) + normal(0, SIGMA / sqrt(2), x.shape) + normal(0, SIGMA / sqrt(2), x.shape)


def centred_at_the_value(x):
    return normal(clip(x), SIGMA)


def response_without_bias(x):
    p = exp(1) / (1 + exp(1))
    answer = x if uniform() < p else 1 - x
    return np.asarray((answer - (1 - p)) / (2 * p - 1))


def layers_with_the_root(xs):
    return [clip(x, 1 / sqrt(len(xs))) + normal(0, SIGMA, x.shape) for x in xs]


def sparse_vector(x):
    """The first above 0: Dwork and Roth 2014, Algorithm 1."""
    rho = laplace(0, 2.0)
    for i, one in enumerate(x):
        if one + laplace(0, 4.0) >= rho:
            return np.asarray(i)
    return np.asarray(-1)


def median_of_a_grid(rows):
    """The exponential mechanism with the rank as score, which one record changes by 1."""
    grid = np.linspace(-1, 1, 21)
    score = -np.abs((rows[:, :1] < grid).sum(axis=0) - (rows[:, :1] > grid).sum(axis=0)) / 2
    return np.asarray(np.argmax(score / 2 * 1.0 + np.random.gumbel(size=21)))


def rows_of_laplace(rows):
    kept = np.clip(rows, -1, 1) / rows.shape[1]
    return kept.sum(axis=0) + laplace(0, 1.0, rows.shape[1])


def of_a_mixture(x):
    """Either scale alone keeps the claim, and so does a mixture that does not depend on x."""
    return clip(x) + normal(0, SIGMA * (1 if uniform() < 0.5 else 2), x.shape)


RIGHT = {
    "permute_and_flip": Case(permute_and_flip, 1.0, 0.0, "replace-one", SCORES),
    "exponential_by_inverse": Case(exponential_by_inverse, 1.0, 0.0, "replace-one", SCORES),
    "staircase": Case(staircase, 1.0, 0.0, "replace-one", NUMBER),
    "two_geometrics": Case(two_geometrics, 1.0, 0.0, "replace-one", INTEGER),
    "truncated_gaussian": Case(
        truncated_gaussian, 0.5, of_truncated_gaussian(0.5), "replace-one", NUMBER
    ),
    "truncated_laplace": Case(truncated_laplace, 1.0, 1e-3, "replace-one", NUMBER),
    **{
        f.__name__: Case(f)
        for f in (
            sign_of_noised,
            half_precision_afterwards,
            rescaled,
            sorted_afterwards,
            shuffled_afterwards,
            quantised_afterwards,
            denoised_afterwards,
            smooth_clip,
            box_muller,
            in_two_parts,
            centred_at_the_value,
            of_a_mixture,
        )
    },
    "always_of_norm_1": Case(always_of_norm_1, adjacency="replace-one"),
    "cauchy": Case(cauchy, 2 * asinh(0.25), 0.0, "replace-one", NUMBER),
    "logistic": Case(logistic, 1.0, 0.0, "replace-one", NUMBER),
    "l2_laplace": Case(l2_laplace, 1.0, 0.0),
    "sup_laplace": Case(
        sup_laplace, 1.0, 0.0, "replace-one", {"shape": (5,), "sensitivity": 1.0, "norm": "linf"}
    ),
    "unary_encoding": Case(
        unary_encoding,
        1.0,
        0.0,
        "replace-one",
        {
            "shape": (),
            "low": 0,
            "high": 7,
            "dtype": "int64",
            "output_shape": (8,),
            "output_dtype": "int64",
        },
    ),
    "piecewise": Case(piecewise, 1.0, 0.0, "replace-one", UNIT),
    "response_without_bias": Case(
        response_without_bias,
        1.0,
        0.0,
        "replace-one",
        {"shape": (), "low": 0, "high": 1, "dtype": "int64", "output_dtype": "float64"},
    ),
    "layers_with_the_root": Case(layers_with_the_root, options=LAYERS),
    "sparse_vector": Case(sparse_vector, 1.0, 0.0, "replace-one", SCORES),
    "median_of_a_grid": Case(
        median_of_a_grid,
        1.0,
        0.0,
        "replace-one",
        {
            "shape": (7, 2),
            "records": True,
            "low": -1.0,
            "high": 1.0,
            "output_shape": (),
            "output_dtype": "int64",
        },
    ),
    "rows_of_laplace": Case(rows_of_laplace, 1.0, 0.0, "add-remove", ROWS),
}
