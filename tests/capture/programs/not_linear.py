"""Two agents whose messages are not linear in their noise, or differ in size: mu = 1 in a round.

    python not_linear.py [VARIANT]

VARIANT makes the message of a noised sum of clipped gradients, and some are faulty.
"""

import sys

import numpy as np

from dpaudit import tap

AGENTS, INPUTS, RECORDS, ROUNDS = 2, 40, 6, 2
RATE, CLIP, SIGMA, KEPT = 0.1, 1.0, 1.0, 10
VARIANT = sys.argv[1] if len(sys.argv) > 1 else "signs"

data = np.random.default_rng(1)
X = data.normal(size=(AGENTS, RECORDS, INPUTS))
Y = np.where(X.sum(axis=2) > 0, 1, 0)
source = np.random.default_rng()
models = [np.zeros(INPUTS) for _ in range(AGENTS)]


def clipped_sum(model: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    gradients = (1 / (1 + np.exp(-x @ model)) - y)[:, None] * x
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    clip = np.inf if VARIANT == "signs-unclipped" else CLIP
    return (gradients * np.minimum(1, clip / norms)).sum(axis=0)


def noised_sum(i: int, model: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    noise = tap.noise(i, "noise", source.normal(0, SIGMA, INPUTS), SIGMA)
    return clipped_sum(model, x, y) + noise


def message_of(i: int, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if VARIANT.startswith("shown"):  # each noised sum is sent, too, and each step takes a batch
        first = noised_sum(i, models[i], x, y)
        tap.send(i, 1 - i, "noised", first)
        half = models[i] - RATE * first
        x, y = tap.batch(i, (X[i], Y[i]))
        if VARIANT == "shown-clean-step":
            half = half - RATE * clipped_sum(half, x, y)
        second = noised_sum(i, half, x, y)
        tap.send(i, 1 - i, "noised", second)
        return half - RATE * second
    if VARIANT == "local-steps":
        half = models[i] - RATE * noised_sum(i, models[i], x, y)
        return half - RATE * noised_sum(i, half, x, y)
    noised = noised_sum(i, models[i], x, y)
    largest = np.argsort(-np.abs(noised))[:KEPT]
    if VARIANT == "largest":
        return np.where(np.isin(np.arange(INPUTS), largest), noised, 0)
    if VARIANT == "above":  # as many as are above a threshold, each after its place
        places = np.flatnonzero(np.abs(noised) > 1.5)
        return np.column_stack([places, noised[places]]).ravel()
    return np.sign(noised)


for _ in range(ROUNDS):
    sent = []
    for i in range(AGENTS):
        message = message_of(i, *tap.batch(i, (X[i], Y[i])))
        tap.send(i, 1 - i, "update", message)
        sent.append(message[:INPUTS])
    if VARIANT.startswith("signs"):
        models = [model - RATE * np.mean(sent, axis=0) for model in models]
    if VARIANT.startswith("shown"):
        models = [np.mean(sent, axis=0) for _ in models]
