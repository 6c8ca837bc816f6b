"""Audits one function from a value to a noised value, alone: ``mechanism.audit`` (public)."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .source import audit

__all__ = ["audit"]


def __getattr__(name: str) -> Any:
    """``audit``, imported when it is first asked for: torch takes seconds."""
    if name == "audit":
        from .source import audit

        return audit
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
