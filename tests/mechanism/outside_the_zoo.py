"""Functions that are not in the zoo, for a claim of (1, 1e-5)-DP between a value and none.

``WRONG`` has one mistake each. All clip to norm 1 and add noise of ``SIGMA`` where not said.
"""

import numpy as np

SIGMA = 3.7302  # of (1, 1e-5)-DP at distance 1: Balle and Wang 2018, algorithm 1


def clip(x, bound=1.0):
    return x / max(1.0, np.linalg.norm(x) / bound)


def clip_rows(rows):
    return rows / np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True))


def gaussian(x, rng):
    return clip(x) + SIGMA * rng.standard_normal(x.shape)


def coordinates_with_their_noise(x):
    return np.clip(x, -1, 1) + np.random.normal(0, SIGMA * x.size**0.5, x.shape)


def projected_afterwards(x):
    return clip(clip(x) + np.random.normal(0, SIGMA, x.shape), 5.0)


def mean_of_rows(rows):
    return (clip_rows(rows).sum(axis=0) + np.random.normal(0, SIGMA, rows.shape[1])) / 8


def coordinates_clipped(x):
    return np.clip(x, -1, 1) + np.random.normal(0, SIGMA, x.shape)


def seeded_inside(x):
    np.random.seed(3)
    return gaussian(x, np.random)


def seeded_by_the_value(x):
    np.random.seed(int(np.abs(x).sum() * 1000) % 2**31)
    return gaussian(x, np.random)


def uniform(x):
    width = SIGMA * np.sqrt(12)
    return clip(x) + np.random.uniform(-width / 2, width / 2, x.shape)


def root_of_the_deviation(x):
    return clip(x) + np.random.normal(0, SIGMA**0.5, x.shape)


def one_number_noised(x):
    found = clip(x).copy()
    found.flat[0] += np.random.normal(0, SIGMA)
    return found


def one_noise_for_all(x):
    return clip(x) + np.random.normal(0, SIGMA)


def clipped_after(x):
    return clip(x + np.random.normal(0, SIGMA, x.shape))


def clipped_by_the_largest(x):
    return x / max(1.0, np.abs(x).max()) + np.random.normal(0, SIGMA, x.shape)


def noise_that_sums_to_zero(x):
    noise = np.random.normal(0, SIGMA, x.shape)
    return clip(x) + noise - noise.mean()


def noise_and_its_negative(x):
    noise = np.random.normal(0, SIGMA, x.size // 2)
    return clip(x) + np.concatenate([noise, -noise])


def noise_divided_twice(rows):
    return (clip_rows(rows).sum(axis=0) + np.random.normal(0, SIGMA / 8, rows.shape[1])) / 8


def half_of_the_noise(x):
    return clip(x) + np.random.normal(0, SIGMA / 2, x.shape)


RIGHT = (gaussian, coordinates_with_their_noise, projected_afterwards, mean_of_rows)
WRONG = (
    *(coordinates_clipped, seeded_inside, seeded_by_the_value, uniform, root_of_the_deviation),
    *(one_number_noised, one_noise_for_all, clipped_after, clipped_by_the_largest),
    *(noise_that_sums_to_zero, noise_and_its_negative, noise_divided_twice, half_of_the_noise),
)
