"""The messages of p2pfl, corrected: (3, 1e-5)-DP between any two updates.

Two clipped updates are up to twice the clip norm apart. Noise is drawn once for all recipients of a
round, and nothing is sent beside it.
"""

import numpy as np

CLIP, EPSILON = 1.0, 3.0
ONE = 1.3905934566745366  # standard deviation at distance 1: Balle and Wang 2018, algorithm 1


def gaussian(update, rng, rounds=1):
    clipped = update / max(1.0, np.linalg.norm(update) / CLIP)
    return clipped + rng.normal(0, 2 * CLIP * ONE * rounds**0.5, update.shape)


def of_twenty_rounds(update, rng):
    return gaussian(update, rng, rounds=20)


def laplace(update, rng):
    clipped = update / max(1.0, np.abs(update).sum() / CLIP)
    return clipped + rng.laplace(0, 2 * CLIP / EPSILON, update.shape)
