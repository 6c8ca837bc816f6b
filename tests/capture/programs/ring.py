"""Two processes send each other noised sums of clipped records, with noise of NumPy or random.

    python ring.py normal|laplace|gauss|forked [untapped]

Untapped, what they send is seen on their pipe alone.
The draw of `forked` is of NumPy's global state, which forks have in common: both add one noise.
"""

import multiprocessing
import os
import random
import sys

import numpy as np
from dpaudit_recorder import tap

DRAWS = {
    "normal": lambda rng: rng.normal(0.0, 1.0, 3),
    "laplace": lambda rng: rng.laplace(scale=1.0, size=3),
    "gauss": lambda rng: np.array([random.gauss(0.0, 1.0) for _ in range(3)]),
    "forked": lambda rng: np.random.randn(3),
}


def records_of(rank):
    x = np.random.default_rng(50 + rank).normal(size=(4, 3))
    return x / np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True))


def gossip(rank, link):
    if "untapped" not in sys.argv:  # it is the number of the process otherwise
        os.environ["RANK"] = str(rank)
    rng, w = np.random.default_rng(rank), np.zeros(3)
    for _ in range(2):
        x = tap.batch(rank, records_of(rank))
        message = w + x.sum(axis=0) + DRAWS[sys.argv[1]](rng)
        if "untapped" not in sys.argv:
            tap.send(rank, 1 - rank, "w", message)
        link.send(message)
        w = (message + link.recv()) / 8


if __name__ == "__main__":
    np.random.random()  # NumPy 2 makes its global state when it is first used: before the forks
    context = multiprocessing.get_context("fork")
    links = context.Pipe()
    agents = [context.Process(target=gossip, args=one) for one in enumerate(links)]
    for agent in agents:
        agent.start()
    for agent in agents:
        agent.join()
    sys.exit(any(agent.exitcode for agent in agents))
