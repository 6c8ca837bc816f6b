"""What every defense must keep to: does this one do what the contract says?"""

from .case import BrokenPromise
from .promises import PROMISES, check_defense

__all__ = ["PROMISES", "BrokenPromise", "check_defense"]
