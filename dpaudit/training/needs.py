"""The memory that runs of a defense on a learning problem take, before any of it is allocated."""

import torch

from dpaudit.defense.contract import Defense, Setting
from dpaudit.defense.footprint import Footprint

from .classification import Classification
from .loaded_problem import Problem
from .noise_rounds import PLAYED_WAYS, kept_rows, left_out, streams_of
from .train import Recording

WRITTEN = 3  # copies of what goes into a file: off the device, as bytes, and both in one


def gradient_bytes(
    problem: Problem,
    defense: Defense,
    setting: Setting,
    models: int,
    trials: int = 1,
    dtype: torch.dtype = torch.float32,
) -> int:
    """Memory of a round's batches, and of one pass for gradients of so many models on them."""
    if not isinstance(problem, Classification):
        return 0
    shape, n, b = problem.dataset.x.shape[1:], setting.n_agents, _drawn(defense)
    drawing = 2 * 4 * n * max(setting.sizes)  # a number for each record of each agent
    batches = 2 * dtype.itemsize * n * b * shape.numel()
    whole = trials * (drawing + batches)
    return whole + problem.gradients.pass_bytes(models * trials, b, shape, dtype)


def training_bytes(
    defense: Defense, problem: Problem, setting: Setting, recording: Recording
) -> int:
    """Memory of ``train`` in one world, with what it writes into the transcript."""
    step, d = Footprint.of(defense, setting), setting.d
    recorded = max((step.recorded(names, d) for names in recording.messages.values()), default=0)
    playing = step.round(d) + gradient_bytes(problem, defense, setting, step.gradients)
    state, sent = int(4 * d * step.state), int(4 * d * step.sent)
    writing = state + sent + WRITTEN * max(recorded, state)
    return max(playing, writing)


def examination_bytes(defense: Defense, problem: Problem, setting: Setting, n_rounds: int) -> int:
    """Memory of ``RealRounds``, which plays a round in many ways under several streams."""
    if left_out(setting, n_rounds) is not None:
        return 0
    step, d = Footprint.of(defense, setting), setting.d
    streams = streams_of(setting, n_rounds)
    heard = sum(min(rows, kept_rows(streams, d, n_rounds)) for rows in step.messages.values())
    kept = 2 * PLAYED_WAYS * int(4 * d * heard * streams)  # of the round, and of the one after it
    playing = step.round(d, streams) + gradient_bytes(problem, defense, setting, step.gradients)
    return kept + playing + int(4 * d * step.state * streams)


def examination_plays(setting: Setting, n_rounds: int) -> int:
    """How many runs of a round ``RealRounds`` plays for each of so many rounds."""
    return PLAYED_WAYS * streams_of(setting, n_rounds)


def _drawn(defense: Defense) -> int:
    """Records of the largest batch: a Poisson sample is larger than its mean."""
    b = defense.batch_size
    return b if defense.sampling == "fixed" else b + int(5 * b**0.5) + 5
