"""From samples to bits: how much does one quantity reveal about another?"""

from .best_estimate import best_estimate
from .estimators import ksg, npeet, self_information
from .mnmi import MaximumInformation, maximum_information
from .reduction import Reduction

__all__ = [
    "MaximumInformation",
    "Reduction",
    "best_estimate",
    "ksg",
    "maximum_information",
    "npeet",
    "self_information",
]
