"""What a program draws by ``jax.random``, outside of functions that JAX compiles."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ..values import library

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from ..log import Log, Sites
    from ..player import Player

FAMILIES = {"normal": "gaussian", "laplace": "laplace"}
OTHERS = ("uniform", "bernoulli", "categorical", "choice", "exponential", "gamma", "permutation")
COMPILED = "draws inside of functions that JAX compiles are not recorded, and cannot be replayed"


def hook_jax(jax_random: ModuleType, log: Log, sites: Sites, player: Player | None) -> None:
    """Record the functions that draw by a key, and replay those at lines of noise."""

    def drawing(own: Any, name: str) -> Callable[..., Any]:
        @functools.wraps(own)
        def drawn(*given: Any, **named: Any) -> Any:
            result = own(*given, **named)
            if isinstance(result, library("jax").core.Tracer):
                log.unseen(COMPILED)
                return result
            site = sites.here()
            with log.lock:
                about = log.begun("drawn", f"jax.{name}", site, ("drawn", site))
                about["shape"] = tuple(int(n) for n in result.shape)
                about["dtype"] = str(result.dtype.name)
                about["parameters"] = [0.0, 1.0] if name in FAMILIES else []
                about["purpose"] = sites.purpose(player is not None)
                if player is None or not player.is_noise(site):
                    log.write(about)
                    return result
                if name not in FAMILIES:
                    player.refuse(
                        f"{site} draws by jax.random.{name}; expected of a line of noise "
                        "jax.random.normal or jax.random.laplace"
                    )
                return player.at_line(about, result, 1.0, FAMILIES[name])

        return drawn

    for name in (*FAMILIES, *OTHERS):
        if hasattr(jax_random, name):
            setattr(jax_random, name, drawing(getattr(jax_random, name), name))
