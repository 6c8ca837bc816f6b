"""Rounds of defenses that take each record's gradient: agent by agent, and of all agents at once.

    python benchmarks/each_record.py [--repeats N] [--only NAME ...]

Eight agents on a ring with batches of 64 images of 28x28 and the CNN of ADP-VRSGP, as in Table 2 of
its paper, in CPU time of one thread, medians over rounds. Each way has processes of its own, since
memory that one of them gave back would be the other's; they take turns, and must agree up to
float32 rounding, or the run fails.
"""

import argparse
import multiprocessing
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dpaudit.data.datasets import Dataset
from dpaudit.defense.noise import Noise
from dpaudit.files.config import AuditConfig
from dpaudit.pipeline.caller_objects import NOTHING
from dpaudit.pipeline.jobs import Prepared
from dpaudit.pipeline.run import Runtime, prepare
from dpaudit.training import classification

COMMON: dict[str, Any] = {"n_rounds": 1000, "batch_size": 64, "noise_multiplier": 1.0}
DEFENSES: dict[str, dict[str, Any]] = {
    "dp-dfedsam": {"clip_norm": 0.1},
    "fed-cdp": {"clip_norm": 0.1},
    "fedan": {"clip_norm": 0.1},
    "feddpa": {"clip_norm": 0.1, "learning_rate": 0.01},
}
ROUNDING = 1e-4  # of a model's largest entry, after a round in float32


def images() -> Dataset:
    """2,000 of noise, in the shape of MNIST's: 250 for each of eight agents."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(2000, 1, 28, 28, generator=generator) * 2 - 1
    y = torch.arange(2000) % 10
    return Dataset("noise", x, y, x[:10], y[:10], tuple("0123456789"))


def prepared(name: str) -> Prepared:
    table: dict[str, Any] = {
        "defense": {"name": name, **COMMON, **DEFENSES[name]},
        "graph": {"name": "ring"},
        "data": {"name": "mnist", "n_agents": 8},  # in whose place images() are
        "model": {"name": "cnn-adp-vrsgp"},
    }
    return prepare(AuditConfig.from_dict(table), Runtime(), replace(NOTHING, data=images()))


def rounds(name: str, held: int, repeats: int) -> tuple[list[float], Tensor]:
    """CPU seconds of round 1, and the models after it, with so many bytes of gradients at once."""
    torch.set_num_threads(1)
    classification.HELD = held
    given, seconds = prepared(name), list[float]()
    defense, setting, problem = given.defenses["defense"], given.setting, given.learned.problem
    for _ in range(repeats + 1):
        state = defense.start(problem.initial(given.streams), setting)
        began = time.process_time()
        gradient = problem.gradient(given.streams, 1, defense.batch_size, defense.drawing)
        noise = Noise(given.streams, 1)
        state = defense.step(state, 1, setting.network.at(1), gradient, noise).state
        seconds.append(time.process_time() - began)
    return seconds[1:], defense.models(state)


def apart(name: str, held: int, repeats: int) -> tuple[list[float], Tensor]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(rounds, name, held, repeats).result()


def compare(name: str, repeats: int) -> None:
    parts, whole = list[float](), list[float]()
    for _ in range(2):
        seconds, ours = apart(name, classification.HELD, repeats)
        parts += seconds
        seconds, models = apart(name, sys.maxsize, repeats)
        whole += seconds
        if (ours - models).abs().max() > ROUNDING * models.abs().max():
            sys.exit(f"{name}: the two ways disagree")
    ours, theirs = statistics.median(parts), statistics.median(whole)
    print(f"{name:12} {ours:6.2f} s a round, all at once {theirs / ours:4.1f} times as long")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=DEFENSES, default=list(DEFENSES))
    arguments = parser.parse_args()
    for name in arguments.only:
        compare(name, arguments.repeats)


if __name__ == "__main__":
    main()
