"""A clipped and noised value of JAX Privacy 2.0: clip norm 1, standard deviation 1."""

import jax
import numpy as np
from jax_privacy import clipping, noise_addition


@jax.jit
def _noised(value, key):
    privatizer = noise_addition.gaussian_privatizer(stddev=1.0, prng_key=key)
    clipped, _ = clipping.clip_pytree(value, 1.0)
    return privatizer.update(clipped, privatizer.init(clipped))[0]


def gaussian(value, rng):
    return np.asarray(_noised(value, jax.random.key(rng.integers(2**63))))
