"""Four actors of Ray, and the process that makes them; each prints what it got, and from whom.

    python actors.py

Each of three sends to the next one the object that it returned, which the process passes on by its
name. The fourth yields asynchronously.
"""

import os

import numpy as np
import ray

N, ROUNDS = 3, 2
ME = N + 1  # the process that makes them comes last


def got(to, source, value):
    with open(os.environ["SHEET"], "a") as sheet:
        sheet.write(f"{source}->{to} {np.asarray(value, float).ravel().tolist()}\n")


@ray.remote(num_cpus=0)
class Agent:
    def __init__(self, number, start):
        self.number, self.w = number, start
        got(number, ME, start)

    def model(self):
        return self.w + self.number

    def parts(self, source, start):
        got(self.number, source, start)
        for i in range(2):
            yield start + i + self.number

    def mix(self, source, other):
        got(self.number, source, other)
        self.w = (self.w + other) / 2
        return {"w": 10 * self.w}  # which the one who asked prints


@ray.remote(num_cpus=0)
class Later:
    async def parts(self, start):
        got(N, ME, start)
        for i in range(2):
            yield start + i


def main():
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    agents = [Agent.remote(number, np.full(2, 7.0 + number)) for number in range(N)]
    later = Later.remote()
    for _ in range(ROUNDS):
        models = [agent.model.remote() for agent in agents]
        found = [agents[i].mix.remote((i - 1) % N, models[(i - 1) % N]) for i in range(N)]
        for source, value in enumerate(ray.get(found)):
            got(ME, source, value["w"])
    shared = ray.put(np.array([1.5, 2.5]))
    for source, value in enumerate(ray.get([agent.mix.remote(ME, shared) for agent in agents])):
        got(ME, source, value["w"])
    for number, agent in enumerate(agents):
        for part in agent.parts.options(num_returns="streaming").remote(ME, np.full(2, 4.5)):
            got(ME, number, ray.get(part))
    for part in later.parts.options(num_returns="streaming").remote(np.full(2, 5.5)):
        got(ME, N, ray.get(part))
    ray.shutdown()


if __name__ == "__main__":
    main()
