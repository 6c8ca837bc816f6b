"""Two functions of the gallery: each clips an update to norm 1 and adds noise to it."""

import numpy as np


def laplace(update):
    """Clips the L2 norm, but Laplace noise of this scale hides an L1 norm of 1."""
    clipped = update / max(1.0, np.linalg.norm(update))
    return clipped + np.random.laplace(0, 1 / 3.0, update.shape)  # noqa: NPY002


def gaussian(update):
    """The classical formula for epsilon = 3, for one update and none."""
    clipped = update / max(1.0, np.linalg.norm(update))
    scale = np.sqrt(2 * np.log(1.25 / 1e-5)) / 3.0
    return clipped + np.random.normal(0, scale, update.shape)  # noqa: NPY002
