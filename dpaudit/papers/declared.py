"""All experiments that are declared as settings and published numbers."""

from .experiment import Experiment
from .xie_figures import XIE

DECLARED: dict[str, Experiment] = {**XIE}
