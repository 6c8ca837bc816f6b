"""The tap of ``dpaudit_recorder``, which an environment without dpaudit has too."""

import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpaudit.recorder.tap import batch, noise, send
else:  # a process that dpaudit has started holds the recorder under the name of its distribution
    _recorder = "dpaudit_recorder" if "dpaudit_recorder" in sys.modules else "dpaudit.recorder"
    _tap = importlib.import_module(f"{_recorder}.tap")
    batch, noise, send = _tap.batch, _tap.noise, _tap.send

__all__ = ["batch", "noise", "send"]
