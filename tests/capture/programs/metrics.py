"""Two agents that send a metric of each round beside noised weights: python metrics.py VARIANT.

The weights keep mu = 1 in a round. VARIANT is what the metric is, and which weights are sent.
"""

import sys

import numpy as np

from dpaudit import tap

AGENTS, INPUTS, RECORDS, ROUNDS = 2, 12, 6, 2
VARIANT = sys.argv[1]

data = np.random.default_rng(1)
X = data.normal(size=(AGENTS, RECORDS, INPUTS))
Y = np.where(X.sum(axis=2) > 0, 1, 0)
HELD_OUT = data.normal(size=(RECORDS, INPUTS))
source = np.random.default_rng()


def loss_of(weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    margin = (2 * y - 1) * (x @ weights)
    return float(np.log1p(np.exp(-margin)).sum())


def metric_of(agent: int, weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> object:
    if VARIANT == "held-out":
        return loss_of(weights, HELD_OUT, np.ones(RECORDS))
    if VARIANT == "signs":
        return np.sign(weights)
    if VARIANT == "largest":
        return np.sort(np.abs(weights))[-3:]
    if VARIANT == "noised":
        noise = tap.noise(agent, "of the loss", source.normal(0, 5.0, 1), 5.0)
        return loss_of(weights, x, y) + noise
    if VARIANT == "unnamed":
        return loss_of(weights, x, y) + source.normal(0, 5.0, 1)
    return loss_of(weights, x, y)


models = [np.zeros(INPUTS) for _ in range(AGENTS)]
for _ in range(ROUNDS):
    for agent in range(AGENTS):
        x, y = tap.batch(agent, (X[agent], Y[agent]))
        each = (1 / (1 + np.exp(-x @ models[agent])) - y)[:, None] * x
        norms = np.linalg.norm(each, axis=1, keepdims=True)
        step = (each * np.minimum(1, 1 / norms)).sum(axis=0)
        noise = tap.noise(agent, "noise", source.normal(0, 1.0, INPUTS), 1.0)
        models[agent] = models[agent] - 0.1 * (step + noise)
        sent = {"alone": [], "half": models[agent][::2]}.get(VARIANT, models[agent])
        if len(sent):
            tap.send(agent, 1 - agent, "weights", sent)
        tap.send(agent, 1 - agent, "metric", metric_of(agent, models[agent], x, y))
    models = [sum(models) / AGENTS for _ in models]
