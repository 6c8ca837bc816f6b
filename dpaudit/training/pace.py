"""How fast this machine plays rounds of a defense, measured in well under a second."""

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from dpaudit.defense.contract import Defense, Setting
from dpaudit.defense.footprint import Footprint
from dpaudit.defense.noise import Noise
from dpaudit.rng import Streams

from .classification import Classification, n_evaluated
from .loaded_problem import Problem
from .train import EVALUATIONS, Recording
from .woven import Repeated

Clock = Callable[[], float]  # seconds from some moment

PATIENCE = 0.2  # seconds that are expected, at most, of what is timed
SOON = 1.0  # seconds after which something is not timed again
RECORDS = 4  # whose gradients are timed first; more where that is too short to tell
DERIVED = 8  # records whose gradients are differentiated at once
FORWARD = 5.0  # evaluations of a record, of many at once, in the time of a gradient
NUMBER = 1e-8  # seconds for a number that a step makes, where it is too large to be played
DIFFERENTIATED = 4.0  # times a gradient: with its derivative, where that is too long to be timed


class Pace(NamedTuple):
    """Seconds of what an audit is made of, on one thread."""

    gradient: float  # of one record at one model; of sensors, of one agent
    n_gradients: int  # in a round
    step: float  # of a round, its gradients left out
    evaluation: float  # of all agents' models
    derivatives: tuple[float, float]  # of gradients by their records: of any number, of each

    @property
    def round(self) -> float:
        return self.step + self.n_gradients * self.gradient

    def training(self, n_rounds: int, recording: Recording) -> float:
        """Of ``train`` in one world; writing what is recorded is left out."""
        probes = sum(map(len, recording.probes.values()))
        return (n_rounds + probes) * self.round + min(n_rounds, EVALUATIONS) * self.evaluation

    def derived(self, n: int) -> float:
        """Of n records' gradients at models of their own, differentiated."""
        base, each = self.derivatives
        return base + n * each


def seconds_of(compute: Callable[[], object], clock: Clock = time.perf_counter) -> float:
    """Of computing this; of the second time if that is soon, for the first one loads code."""
    took = _once(compute, clock)
    return min(took, _once(compute, clock)) if took < SOON else took


def measured(
    defense: Defense,
    problem: Problem,
    setting: Setting,
    streams: Streams,
    clock: Clock = time.perf_counter,
) -> Pace:
    """Of a calibrated defense, by one real round where a few gradients foretell a short one.

    The round is played on streams of its own: nothing that is drawn here is drawn in the audit.

    Raises:
        DpauditError: the defense cannot be played.
    """
    own = Streams(streams.numpy("pace").integers(2**62).item(), streams.device)
    footprint, X = Footprint.of(defense, setting), problem.initial(own)
    step = NUMBER * footprint.step * setting.d
    pace = Pace(0.0, footprint.gradients, step, 0.0, (0.0, 0.0))
    if isinstance(problem, Classification):
        pace = _of_records(problem, X, clock)._replace(
            n_gradients=footprint.gradients * defense.batch_size, step=step
        )
    if pace.round > PATIENCE:
        return pace

    def play(again: Repeated | None = None) -> object:
        oracle = problem.gradient(own, 1, defense.batch_size, defense.drawing)
        with torch.no_grad():
            state = defense.start(X, setting)
            noise = Noise(own, 1)
            return defense.step(state, 1, setting.network.at(1), again or oracle, noise)

    drawn = Repeated(problem.gradient(own, 1, defense.batch_size, defense.drawing))
    whole = seconds_of(play, clock)
    step = min(whole, seconds_of(lambda: play(drawn.again()), clock))
    gradient = (whole - step) / max(1, pace.n_gradients)
    return pace._replace(gradient=gradient, step=step)


def _of_records(problem: Classification, X: Tensor, clock: Clock) -> Pace:
    """Of gradients at models X [n_agents, d], their derivatives, and the evaluation of all."""
    data, gradients = problem.dataset, problem.gradients
    x, y = data.x[:DERIVED].to(X.device), data.y[:DERIVED].to(X.device)
    gradient = _of_a_gradient(problem, X[:1], clock)

    def derived(n: int) -> Tensor:
        points = x[:n, None].clone().requires_grad_()
        models = X[:1].expand(n, -1)
        found = gradients.mean(models, points, y[:n, None], create_graph=True)
        return torch.autograd.grad(found.square().sum(), points)[0]

    derivatives, n = (0.0, DIFFERENTIATED * gradient), len(x)
    if n > 1 and n * derivatives[1] < PATIENCE:
        one, several = (seconds_of(partial(derived, m), clock) for m in (1, n))
        each = max(0.0, several - one) / (n - 1)
        derivatives = max(0.0, one - each), each
    evaluation = len(X) * min(len(data.x_test), n_evaluated(len(X))) * gradient / FORWARD
    if evaluation < PATIENCE:
        evaluation = seconds_of(lambda: problem.evaluate(X), clock)
    return Pace(gradient, 0, 0.0, evaluation, derivatives)


def _of_a_gradient(problem: Classification, X: Tensor, clock: Clock) -> float:
    """Of one record among so many that a pass of them takes long enough to be timed."""
    data, n = problem.dataset, RECORDS
    x, y = data.x[None, :1].to(X.device), data.y[None, :1].to(X.device)
    problem.gradients.mean(X, x, y)  # which loads code
    while True:
        x, y = data.x[None, :n].to(X.device), data.y[None, :n].to(X.device)
        took = seconds_of(partial(problem.gradients.mean, X, x, y), clock)
        if took > PATIENCE / 4 or n >= len(data.x):
            return took / x.shape[1]
        n *= 4


def _once(compute: Callable[[], object], clock: Clock) -> float:
    began = clock()
    compute()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return clock() - began
