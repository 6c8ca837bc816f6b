"""The memory and time that runs of a defense on a learning problem take.

Memory follows from shapes, before any of it is allocated. Time is measured, of one real round.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from dpaudit.defense.contract import Defense, Gradient, Setting
from dpaudit.defense.footprint import Footprint
from dpaudit.defense.noise import Noise
from dpaudit.memory import size_text
from dpaudit.rng import Streams

from .classification import Classification
from .loaded_problem import Problem
from .noise_rounds import FRESH, PLAYED_WAYS, kept_rows, left_out, streams_of
from .partial_inputs import RepeatedGradients
from .train import EVALUATIONS, Recording

WRITTEN = 3  # copies of what goes into a file: off the device, as bytes, and both in one
Clock = Callable[[], float]  # seconds from some moment
MOST_EXAMINED = 8 * 10**9  # bytes of the examination of noise, beyond which it is left out
SOON = 1.0  # seconds after which something is not timed again


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
    shape, n, b = problem.dataset.x.shape[1:], setting.n_agents, defense.batch_size
    if defense.sampling != "fixed":
        b += int(5 * b**0.5) + 5  # a Poisson sample is larger than its mean
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


def too_large_to_examine(
    defense: Defense, problem: Problem, setting: Setting, n_rounds: int
) -> str | None:
    """Why so many rounds are not played under several streams of noise; None: they are."""
    if (reason := left_out(setting, n_rounds)) is not None:
        return reason
    try:
        size = examination_bytes(defense, problem, setting, n_rounds)
    except Exception:  # it cannot be played on a small model, which tells nothing of this one
        return None
    if size <= MOST_EXAMINED:
        return None
    return f"it takes {size_text(size)} of memory, more than {size_text(MOST_EXAMINED)}"


def examination_bytes(defense: Defense, problem: Problem, setting: Setting, n_rounds: int) -> int:
    """Memory of ``RealRounds``, which plays a round in many ways under several streams."""
    step, d = Footprint.of(defense, setting), setting.d
    streams = streams_of(setting, n_rounds)
    heard = sum(min(rows, kept_rows(streams, d, n_rounds)) for rows in step.messages.values())
    kept = 2 * PLAYED_WAYS * int(4 * d * heard * streams)  # in this round and the next
    fresh = min(4 * FRESH, 2 * PLAYED_WAYS * int(4 * d * (heard + step.state) * streams))
    playing = step.round(d, streams) + gradient_bytes(problem, defense, setting, step.gradients)
    return kept + fresh + playing + int(4 * d * step.state * streams)


def distances_bytes(defense: Defense, problem: Problem, setting: Setting) -> int:
    """Memory of the neighbouring worlds of one round, by which distances are examined."""
    step, d, dtype = Footprint.of(defense, setting), setting.d, torch.float64
    ways = 2 if defense.sampling == "poisson" else 1  # with the rest of the batch, and alone
    worlds = 8 * ways  # four, each with noise and without
    kept = 5 * worlds // 2  # measured: noise is moved, and draws and sums are kept
    held = int(dtype.itemsize * d * kept * (step.state + step.sent))
    held += 2 * dtype.itemsize * d * kept * step.gradients  # models, and what they were answered
    playing = step.round(d, 1, dtype.itemsize)
    playing += gradient_bytes(problem, defense, setting, step.gradients, 1, dtype)
    if not isinstance(problem, Classification):
        return held + playing
    records = 2 * worlds * setting.n_agents * defense.batch_size + max(setting.sizes)
    return held + playing + dtype.itemsize * records * problem.dataset.x.shape[1:].numel()


class Pace(NamedTuple):
    """Seconds of what an audit is made of, on one thread."""

    round: float
    step: float  # seconds of a round without gradients, under ``copies`` streams of noise
    evaluation: float  # seconds to evaluate all agents' models

    def training(
        self, n_rounds: int, recording: Recording, evaluations: int = EVALUATIONS
    ) -> float:
        """Seconds of ``train`` in one world, without writing what is recorded."""
        probes = sum(map(len, recording.probes.values()))
        return (n_rounds + probes) * self.round + min(n_rounds, evaluations) * self.evaluation


def seconds_of(compute: Callable[[], object], clock: Clock = time.perf_counter) -> float:
    """Seconds that ``compute`` takes; if short, those of a second call, as a first loads code."""
    took = _once(compute, clock)
    return min(took, _once(compute, clock)) if took < SOON else took


def pace_of(
    defense: Defense,
    problem: Problem,
    setting: Setting,
    streams: Streams,
    clock: Clock = time.perf_counter,
    copies: int = 1,
) -> Pace:
    """Pace of a calibrated defense, measured in one real round and one evaluation.

    Args:
        copies: streams of noise under which a round without its gradients is played at once.

    They are played on streams of their own: nothing that is drawn here is drawn in the audit.

    Raises:
        DpauditError: the defense cannot be played.
    """
    own = streams.child("pace")
    X = problem.initial(own)
    if isinstance(problem, Classification):
        x, y = (t[None, :1].to(X.device) for t in (problem.dataset.x, problem.dataset.y))
        problem.gradients.mean(X[:1], x, y)  # load code before time is taken

    def play(oracle: Gradient, start: torch.Tensor = X) -> object:
        with torch.no_grad():
            state = defense.start(start, setting)
            return defense.step(state, 1, setting.network.at(1), oracle, Noise(own, 1))

    def drawn() -> Gradient:
        return problem.gradient(own, 1, defense.batch_size, defense.drawing)

    answers = RepeatedGradients(drawn())
    first = _once(lambda: play(answers), clock)
    whole = first if first >= SOON else min(first, _once(lambda: play(drawn()), clock))
    several = X.expand(copies, *X.shape).clone() if copies > 1 else X
    step = seconds_of(lambda: play(answers.again(), several), clock)
    return Pace(whole, step, seconds_of(lambda: problem.evaluate(X), clock))


def _once(compute: Callable[[], object], clock: Clock) -> float:
    began = clock()
    compute()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return clock() - began
