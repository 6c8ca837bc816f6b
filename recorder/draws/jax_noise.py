"""The noise of one call that draws by ``jax.random``, and whether the keys of it are fresh.

Compiled functions draw where nobody sees it. So the call is made once more without compilation
(``jax.disable_jit``), in which each draw is an array, and the same one. A key is fresh if nothing
else of the call uses it: neither another draw, nor ``split``, nor ``fold_in``.
"""

from __future__ import annotations

import functools
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from ..values import library

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FAMILIES = {"normal": "gaussian", "laplace": "laplace"}  # all of scale 1
MAKING = ("split", "fold_in")  # functions that make keys of keys
KEYED = (
    *MAKING,
    *("bits", "uniform", "bernoulli", "categorical", "choice", "exponential"),
    *("gamma", "permutation", "randint", "truncated_normal", "cauchy", "gumbel", "rademacher"),
)


class JaxNoise(NamedTuple):
    """What one call drew."""

    family: str
    keys: list[str]  # keys of its draws, in hexadecimal digits
    drawn: list[Any]  # an array of each draw


def noise_of(call: Callable[[], Any]) -> JaxNoise | None:
    """What a call draws as noise.

    Returns:
        None if it draws none, of several families or something else too, by keys that are not
        fresh, or where it cannot be seen: under ``vmap``, or by functions that were imported from
        ``jax.random`` by name.
    """
    jax = library("jax")
    if jax is None:
        return None
    uses: list[tuple[str, str, Any]] = []
    try:
        with _watched(jax, uses), jax.disable_jit():
            call()
    except Exception:  # a function that cannot be called without compilation
        return None
    draws = [use for use in uses if use[0] not in MAKING]
    families, keys = {FAMILIES.get(name) for name, _, _ in draws}, [key for _, key, _ in uses]
    fresh = all(key and keys.count(key) == 1 for _, key, _ in draws)
    if len(families) != 1 or not fresh or (family := families.pop()) is None:
        return None
    return JaxNoise(family, [key for _, key, _ in draws], [one for _, _, one in draws])


@contextmanager
def _watched(jax: Any, uses: list[tuple[str, str, Any]]) -> Iterator[None]:
    """Note every use of a key meanwhile: its name, the key, and what came of it."""

    def noting(own: Any, name: str) -> Callable[..., Any]:
        @functools.wraps(own)
        def noted(key: Any, *given: Any, **named: Any) -> Any:
            with jax.disable_jit(False):  # compiled: the same numbers, and faster
                found = own(key, *given, **named)
            if isinstance(found, jax.core.Tracer) or isinstance(key, jax.core.Tracer):
                uses.append((name, "", None))
            else:
                uses.append((name, _digits(jax, key), found))
            return found

        return noted

    with ExitStack() as stack:
        for name in (*FAMILIES, *KEYED):
            own = getattr(jax.random, name, None)
            if own is not None:
                setattr(jax.random, name, noting(own, name))
                stack.callback(setattr, jax.random, name, own)
        yield


def _digits(jax: Any, key: Any) -> str:
    """The bits of a key of either kind."""
    typed = jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key)
    bits = library("numpy").asarray(jax.random.key_data(key) if typed else key)
    return str(bits.tobytes().hex())
