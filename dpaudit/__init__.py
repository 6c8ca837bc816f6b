"""dpaudit: are the privacy claims of a private decentralized learning algorithm true?"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpaudit.version import __version__

if TYPE_CHECKING:
    from .commands.api import audit
    from .errors import DpauditError
    from .files.result import AuditResult

__all__ = ["AuditResult", "DpauditError", "__version__", "audit"]

_HERE = Path(__file__).parent
if not (_HERE / "defenses").is_dir():
    # In a clone the families lie beside this folder. Another installation may offer its own under
    # the same names, so that this copy would run with the defenses of another version.
    __path__.append(str(_HERE.parent))


def __getattr__(name: str) -> Any:
    """The public names, imported when they are first asked for: torch takes seconds."""
    if name == "audit":
        from .commands.api import audit

        return audit
    if name == "AuditResult":
        from .files.result import AuditResult

        return AuditResult
    if name == "DpauditError":
        from .errors import DpauditError

        return DpauditError
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
