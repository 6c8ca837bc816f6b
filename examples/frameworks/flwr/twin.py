"""What LocalDpMod of Flower sends, corrected: (1, 1e-5)-DP between any two updates.

The scale of the noise follows from the clip norm, the number of rounds, and the exact formula. An
update of norm 0 is like any other, and integers are sent as floats.
"""

import numpy as np

CLIP = 1.0
ONE = 3.7306316348187466  # standard deviation at distance 1: Balle and Wang 2018, algorithm 1


def local_dp(update, rng, rounds=1):
    clipped = update / max(1.0, np.linalg.norm(update) / CLIP)
    return clipped + rng.normal(0, 2 * CLIP * ONE * rounds**0.5, update.shape)


def of_twenty_rounds(update, rng):
    return local_dp(update, rng, rounds=20)
