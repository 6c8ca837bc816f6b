"""Three agents on a ring that send weights, or what local steps changed of them.

    python local_steps.py SENDS STEPS SIGMA NOISE [once]

SENDS is weights or updates. NOISE is steps (on every gradient) or message. The loss of a record r is
sum(CURVATURE (x - r)^2) / 2 at weights x, so that steps have a closed form. An agent has as many
records as it takes steps in a round, all in every batch, or with "once" one in each.
"""

import sys

import numpy as np

from dpaudit import tap

SENDS, STEPS, SIGMA, NOISE = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
ONCE = "once" in sys.argv
AGENTS, SIZE, ROUNDS, RATE = 3, 40, 6, 0.1
CURVATURE = np.linspace(0.5, 1.5, SIZE)


def main() -> None:
    rng = np.random.default_rng(5)
    start = rng.normal(size=SIZE)
    weights = [start.copy() for _ in range(AGENTS)]
    for _ in range(ROUNDS):
        sent = []
        for agent in range(AGENTS):
            fresh = rng.normal(size=(STEPS, SIZE))
            own = [fresh[h : h + 1] for h in range(STEPS)] if ONCE else [fresh] * STEPS
            x = weights[agent].copy()
            for records in own:
                (records,) = tap.batch(agent, (records,))
                step = (CURVATURE * (x - records)).sum(axis=0)
                if NOISE == "steps" and SIGMA:
                    step += tap.noise(agent, "noise", SIGMA * rng.normal(size=SIZE), SIGMA)
                x -= RATE * step
            message = x if SENDS == "weights" else weights[agent] - x
            if NOISE == "message" and SIGMA:
                message = message + tap.noise(agent, "noise", SIGMA * rng.normal(size=SIZE), SIGMA)
            others = [(agent - 1) % AGENTS, (agent + 1) % AGENTS]
            sent.append(tap.send(agent, others, SENDS, message))
        average = sum(sent) / AGENTS
        weights = [average if SENDS == "weights" else w - average for w in weights]


if __name__ == "__main__":
    main()
