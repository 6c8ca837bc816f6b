"""One user's statistics through the local mechanisms of pfl 0.6: bound 1, epsilon 3, delta 1e-5."""

from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.laplace_mechanism import LaplaceMechanism
from pfl.stats import MappedVectorStatistics

GAUSSIAN = GaussianMechanism.construct_single_iteration(1.0, epsilon=3.0, delta=1e-5)
LAPLACE = LaplaceMechanism(1.0, epsilon=3.0)


def noised(mechanism, value):
    """As ``privatize`` of a mechanism does, with one generator in the place of 32-bit seeds."""
    bounded, _ = mechanism.constrain_sensitivity(MappedVectorStatistics({"value": value}))
    return mechanism.add_noise(bounded, cohort_size=1)[0]["value"]


def gaussian(value):
    return noised(GAUSSIAN, value)


def laplace(value):
    return noised(LAPLACE, value)
