"""The mechanisms of pfl, for any two values of one user: they are twice the bound apart."""

from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.laplace_mechanism import LaplaceMechanism
from pfl.stats import MappedVectorStatistics

ONE = GaussianMechanism.construct_single_iteration(1.0, epsilon=3.0, delta=1e-5)
GAUSSIAN = GaussianMechanism(1.0, 2 * ONE.relative_noise_stddev)
LAPLACE = LaplaceMechanism(1.0, epsilon=3.0 / 2)


def noised(mechanism, value):
    """As ``privatize`` of a mechanism does, with one generator in the place of 32-bit seeds."""
    bounded, _ = mechanism.constrain_sensitivity(MappedVectorStatistics({"value": value}))
    return mechanism.add_noise(bounded, cohort_size=1)[0]["value"]


def gaussian(value):
    return noised(GAUSSIAN, value)


def laplace(value):
    return noised(LAPLACE, value)
