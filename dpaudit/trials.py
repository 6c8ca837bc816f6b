"""Many independent runs of a small problem as one tensor program."""

from collections.abc import Callable
from typing import Any

import torch

from dpaudit.defense import Defense, Round, Setting
from dpaudit.noise import Noise
from dpaudit.rng import Streams
from dpaudit.sensor_fusion import SensorFusion

Watch = Callable[[int, Round], None]  # round, what it left behind


def run_trials(
    defense: Defense,
    problem: SensorFusion,
    setting: Setting,
    streams: Streams,
    trials: int,
    watch: Watch,
) -> Any:
    """Play all rounds of all trials at once, showing each round to ``watch``; the last state."""
    with torch.no_grad():
        state = defense.start(problem.initial(streams, trials), setting)
        for k in range(1, defense.n_rounds + 1):
            gradient = problem.gradient(streams, k)
            round = defense.step(state, k, setting.network.at(k), gradient, Noise(streams, k))
            state = round.state
            watch(k, round)
    return state
