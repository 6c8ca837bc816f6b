"""From scores to certified bounds and p-values: what do these runs prove, and how surely?

The names are imported when they are first asked for: checks of a claims file need the p-values of
this room alone, and do not wait for SciPy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bounds import (
        ScoreBound,
        ceiling,
        clopper_pearson,
        epsilon_lower_bound,
        expected_bound,
        family_from_scores,
        family_lower_bound,
        from_scores,
        noise_factor_bound,
        p_value,
        trials_needed,
    )
    from .guesses import epsilon_from_guesses, mu_from_ranked_guesses, shift_from_guesses
    from .noise_tests import white_noise_test
    from .p_values import holm, p_beyond, p_worse
    from .sums import CanarySum, mu_from_sums, noise_scale

__all__ = [
    "CanarySum",
    "ScoreBound",
    "ceiling",
    "clopper_pearson",
    "epsilon_from_guesses",
    "epsilon_lower_bound",
    "expected_bound",
    "family_from_scores",
    "family_lower_bound",
    "from_scores",
    "holm",
    "mu_from_ranked_guesses",
    "mu_from_sums",
    "noise_factor_bound",
    "noise_scale",
    "p_beyond",
    "p_value",
    "p_worse",
    "shift_from_guesses",
    "trials_needed",
    "white_noise_test",
]
_MODULES = ("bounds", "guesses", "p_values", "sums", "noise_tests")


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in _MODULES:
            found = import_module(f"{__name__}.{module}")
            if hasattr(found, name) and getattr(found, name).__module__ == found.__name__:
                return getattr(found, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
