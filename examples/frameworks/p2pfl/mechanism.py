"""What p2pfl 0.4.4 makes of an update with its defaults: clip norm 1, epsilon 3, delta 1e-5.

p2pfl draws its noise by OpenDP, which has a source of randomness of its own. ``of_numpy`` has the
clip and the scale of p2pfl, and the noise of NumPy, which an audit recognises and accounts.
"""

import pickle

import numpy as np
from p2pfl.learning.compression.dp_strategy import DifferentialPrivacyCompressor
from p2pfl.learning.compression.manager import CompressionManager


def gaussian(update):
    return DifferentialPrivacyCompressor().apply_strategy([update])[0][0]


def laplace(update):
    return DifferentialPrivacyCompressor().apply_strategy([update], noise_type="laplace")[0][0]


def message(update):
    """All numbers that a peer reads: the noised update, and what is written down beside it."""
    sent = pickle.loads(CompressionManager.apply([update], {}, {"dp": {}}))
    data = pickle.loads(sent["bytes"])
    ((_, about),) = data["additional_info"]["applied_techniques"]
    return np.append(data["params"][0], about["original_norm"])


class WithNumpy(DifferentialPrivacyCompressor):
    def _get_noise_mechanism(self, noise_type, *given):
        scale = super()._get_noise_mechanism(noise_type, *given)[1]
        draw = np.random.normal if noise_type == "gaussian" else np.random.laplace
        return lambda numbers: numbers + draw(0, scale, len(numbers)), scale


def of_numpy(update):
    return WithNumpy().apply_strategy([update])[0][0]


def laplace_of_numpy(update):
    return WithNumpy().apply_strategy([update], noise_type="laplace")[0][0]
