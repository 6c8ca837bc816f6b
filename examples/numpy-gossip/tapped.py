"""gossip.py with the four lines that make it auditable.

Without an audit they change nothing: each call hands back what it was given.
"""

import numpy as np
from dpaudit_recorder import tap

AGENTS, ROUNDS, RECORDS, FEATURES = 5, 4, 8, 10
CLIP, SIGMA, RATE = 1.0, 1.0, 0.1


def records_of(rng):
    x = rng.normal(size=(RECORDS, FEATURES))
    return x, (x.sum(axis=1) > 0).astype(np.int64)


def gradient(w, x, y):
    total = x.T @ (1 / (1 + np.exp(-x @ w)) - y)
    norm = np.linalg.norm(total)
    return total * min(1.0, len(x) * CLIP / norm)


def main():
    rng = np.random.default_rng(1)
    data = [records_of(rng) for _ in range(AGENTS)]
    secret = np.random.default_rng()  # without a seed that others know
    models = [np.zeros(FEATURES) for _ in range(AGENTS)]
    for _ in range(ROUNDS):
        sent = []
        for agent in range(AGENTS):
            x, y = data[agent]
            x, y = tap.batch(agent, (x, y))
            noise = secret.normal(0, SIGMA * CLIP, FEATURES)
            noise = tap.noise(agent, "noise", noise, SIGMA * CLIP)
            message = models[agent] - RATE * (gradient(models[agent], x, y) + noise)
            tap.send(agent, [(agent - 1) % AGENTS, (agent + 1) % AGENTS], "model", message)
            sent.append(message)
        models = [(sent[i - 1] + sent[i] + sent[(i + 1) % AGENTS]) / 3 for i in range(AGENTS)]
    print("accuracy", np.mean([(x @ models[0] > 0) == y for x, y in data]))


if __name__ == "__main__":
    main()
