"""Which audit a file asks for: of a defense, of a program, or of a function."""

from collections.abc import Mapping
from typing import Any

from .captured_file import CapturedConfig
from .config import AuditConfig, kind_of
from .mechanism_file import MechanismConfig

AnyConfig = AuditConfig | CapturedConfig | MechanismConfig


def audit_kind(content: Mapping[str, Any]) -> type[AnyConfig]:
    """The config that the content of an audit is of."""
    kind = kind_of(content)
    if kind == "program":
        return CapturedConfig
    return MechanismConfig if kind == "mechanism" else AuditConfig
