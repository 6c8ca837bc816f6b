"""Functions of JAX that are audited: right ones, and with mistakes of keys."""

import jax
import jax.numpy as jnp
import numpy as np


@jax.jit
def clipped(x):
    return x / jnp.maximum(1.0, jnp.linalg.norm(x))


@jax.jit
def right(x, key):
    return clipped(x) + jax.random.normal(key, x.shape)


def with_laplace(x, key):
    _, own = jax.random.split(key)
    return x / jnp.maximum(1.0, jnp.abs(x).sum()) + jax.random.laplace(own, x.shape)


def with_old_key(x):
    return clipped(x) + jax.random.normal(jax.random.PRNGKey(np.random.randint(2**31)), x.shape)


def half_of_the_noise(x, key):
    return clipped(x) + 0.5 * jax.random.normal(key, x.shape)


def two_tensors(xs, key):
    norm = jnp.sqrt(sum((x**2).sum() for x in xs))
    keys = jax.random.split(key)
    noise = [jax.random.normal(own, x.shape) for own, x in zip(keys, xs, strict=True)]
    return [x / jnp.maximum(1.0, norm) + z for x, z in zip(xs, noise, strict=True)]


def one_key_for_two_tensors(xs, key):
    norm = jnp.sqrt(sum((x**2).sum() for x in xs))
    return [x / jnp.maximum(1.0, norm) + jax.random.normal(key, x.shape) for x in xs]


def key_that_was_split(x, key):
    jax.random.split(key)
    return clipped(x) + jax.random.normal(key, x.shape)


def few_keys(x, rng):
    return clipped(x) + jax.random.normal(jax.random.key(int(rng.integers(4096))), x.shape)


def key_from_the_value(x, key):
    own = jax.random.fold_in(key, (1000 * jnp.abs(x).sum()).astype(int))
    return clipped(x) + jax.random.normal(own, x.shape)


def coin_beside(x, key):
    own, other = jax.random.split(key)
    noise = jax.random.normal(own, x.shape)
    return clipped(x) + jnp.where(jax.random.bernoulli(other, 1e-5), 0.0, noise)


def coin_of_numpy(x, key):
    return clipped(x) + (np.random.random() > 1e-5) * jax.random.normal(key, x.shape)
