"""A privacy budget for training loops: stops before a release that would exceed it (public)."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .budget import BudgetExceeded, BudgetWarning, Ledger, event, gaussian, laplace
    from .budget import open_ledger as open

__all__ = ["BudgetExceeded", "BudgetWarning", "Ledger", "event", "gaussian", "laplace", "open"]


def __getattr__(name: str) -> Any:
    """The public names, imported when they are first asked for: scipy takes a second."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import budget

    return budget.open_ledger if name == "open" else getattr(budget, name)
