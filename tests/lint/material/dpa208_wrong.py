"""Numbers without noise that leave the function which adds noise."""

import logging

import numpy as np
import torch

logger = logging.getLogger(__name__)


def returned(update, clip_norm, sigma):
    norm = np.linalg.norm(update)
    noised = update / max(1.0, norm / clip_norm) + np.random.normal(0, sigma, update.shape)
    info = {
        "sigma": sigma,
        "norm": float(norm),  # hint: DPA208
    }
    return noised, info


def logged(update, clip_norm, sigma):
    noised = update / max(1.0, np.linalg.norm(update) / clip_norm)
    noised = noised + np.random.normal(0, sigma, update.shape)
    logger.info("largest number: %s", np.max(update))  # hint: DPA208
    return noised


def sent(update, clip_norm, sigma, sock):
    noised = update / max(1.0, update.norm() / clip_norm) + sigma * torch.randn_like(update)
    sock.send(noised)
    sock.send(update.mean())  # hint: DPA208
