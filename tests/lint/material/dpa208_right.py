"""Settings, and numbers of what was noised, may leave."""

import logging

import numpy as np

logger = logging.getLogger(__name__)


def returned(update, clip_norm, sigma):
    norm = np.linalg.norm(update)
    noised = update / max(1.0, norm / clip_norm) + np.random.normal(0, sigma, update.shape)
    return noised, {"sigma": sigma, "clip_norm": clip_norm, "norm": float(np.linalg.norm(noised))}


def logged(update, clip_norm, sigma):
    noised = update / max(1.0, np.linalg.norm(update) / clip_norm)
    noised = noised + np.random.normal(0, sigma, update.shape)
    logger.info("clipped to %s, noise %s, mean %s", clip_norm, sigma, np.mean(noised))
    return noised


def without_noise(update):
    logger.info("mean %s", np.mean(update))
    return update, {"norm": np.linalg.norm(update)}
