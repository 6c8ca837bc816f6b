"""Every round of a run on a small model and random records, where the real one takes too long.

A step is the same code in every round, and may still do something else in one of them: leave out
noise or clipping, or draw from a stream of an earlier round. So rounds that are not examined on the
real problem are examined on softmax regression on five features, of which every agent holds as many
records as it really does.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch

from dpaudit.attack import Classification
from dpaudit.data.datasets import Dataset
from dpaudit.data.partition import Partition
from dpaudit.defense import CHANGED_RECORDS, Adjacency

from .examination import RoundExamination
from .message_move import Row
from .other_agents import OtherAgents
from .worlds import CoupledWorlds

FEATURES, CLASSES = 5, 3
MOST_NUMBERS = 10**8  # limit for the gradients of records in all rounds
MOST_ROUNDS = 1000
CLEAR = 1 + 1e-6  # times the bound
FAR = (10, 1000)  # standard deviation of models that no run is said to reach


def examine_every_round(
    real: RoundExamination, adjacency: Adjacency, on_round: Callable[[], None] = lambda: None
) -> tuple[RoundExamination, list[Row]]:
    """What is found in all rounds of a run on a small model; no rows if one cannot be played.

    Args:
        real: what was found on the real problem.
    """
    small = small_problem(real.coupled)
    examination = RoundExamination(small or real.coupled, 0, 0, briefly=True, aligns=real.aligns)
    if small is None or adjacency not in CHANGED_RECORDS:
        return examination, []
    try:
        return examination, list(_rows(examination, adjacency, on_round))
    except Exception:  # whatever a step raises that takes the real model alone
        return examination, []  # with what it has found so far


def _rows(
    examination: RoundExamination, adjacency: Adjacency, on_round: Callable[[], None]
) -> Iterator[Row]:
    coupled, others = examination.coupled, OtherAgents(examination)
    state = coupled.start()
    for k in range(1, coupled.defense.n_rounds + 1):
        yield from examination.record(state, k, adjacency)
        yield from others.record(state, k, adjacency)
        state = examination.next_state(state, k)
        on_round()


def far_from_the_run(
    real: RoundExamination, adjacency: Adjacency
) -> tuple[str | None, tuple[str, ...]]:
    """A message that a record moves too far where models are far from those of the run, and notes.

    A step may clip, or add noise, as long as models are small alone. It accuses nobody, as no run
    may come there, and leaves open what a record does in all runs. The notes say what was not
    played.
    """
    small = small_problem(real.coupled)
    if small is None or adjacency not in CHANGED_RECORDS:
        return None, ("no round was played from models far from those of the run",)
    examination = RoundExamination(small, 0, 0, aligns=False)
    normal = torch.randn(
        small.problem.initial(small.streams).shape, generator=torch.Generator().manual_seed(1)
    )
    notes: list[str] = []
    for size in FAR:
        try:
            state = small.defense.start((size * normal).double(), small.setting)
            rows = list(examination.record(state, 1, adjacency))
        except Exception as error:  # whatever a step raises that far away
            notes.append(f"from models of size {size} a step raises {type(error).__name__}")
            continue
        clearly = (r for r in rows if r.counts and (r.noiseless or _is_clear(r)))
        if row := next(clearly, None):
            where = "where models are far from those of the run"
            return f'how far a record moves "{row.message}" {where}', tuple(notes)
    return None, tuple(notes)


def _is_clear(row: Row) -> bool:
    """Whether it is no rounding of numbers as large as the models, which a message may not show."""
    return row.stated is not None and row.measured > CLEAR * row.stated


def small_problem(coupled: CoupledWorlds) -> CoupledWorlds | None:
    """The same defense on few coordinates; None where its rounds would take too long."""
    defense, setting = coupled.defense, coupled.setting
    if not isinstance(coupled.problem, Classification):
        return None
    d = (FEATURES + 1) * CLASSES
    numbers = defense.n_rounds * setting.n_agents * d * defense.batch_size
    if defense.n_rounds > MOST_ROUNDS or numbers > MOST_NUMBERS:
        return None
    n = sum(setting.sizes)
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n + CLASSES, FEATURES, generator=generator) * 2 - 1
    y = torch.arange(n + CLASSES) % CLASSES
    ends = np.cumsum(setting.sizes)
    parts = tuple(np.arange(end - size, end) for size, end in zip(setting.sizes, ends, strict=True))
    names = tuple("abc")
    dataset = Dataset("random", x[:n], y[:n], x[n:], y[n:], names)
    device = coupled.streams.device
    problem = Classification(dataset, Partition(parts, y[:n].numpy()), "logistic", device)
    layers = tuple((name, p.numel()) for name, p in problem.gradients.module.named_parameters())
    small = replace(setting, d=d, layers=layers)
    return replace(coupled, problem=problem, setting=small)
