"""dpaudit: are the privacy claims of a private decentralized learning algorithm true?"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpaudit.api import audit
    from dpaudit.result import AuditResult

__version__ = "0.1.0"
__all__ = ["AuditResult", "__version__", "audit"]


def __getattr__(name: str) -> Any:
    """The public names, imported when they are first asked for: torch takes seconds."""
    if name == "audit":
        from dpaudit.api import audit

        return audit
    if name == "AuditResult":
        from dpaudit.result import AuditResult

        return AuditResult
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
