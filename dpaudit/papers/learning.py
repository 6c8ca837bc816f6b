"""What experiments measure of training: accuracy and loss, sensitivities and gradients of rounds.

Settings are those of an audit file, with two more: which world is trained, and how many records an
agent has.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, ClassVar

import torch
from torch import Tensor

from dpaudit.defense.contract import Gradient, Round
from dpaudit.defense.noise import Noise
from dpaudit.errors import ConfigError
from dpaudit.files.config import AuditConfig
from dpaudit.files.result import Curve
from dpaudit.memory import available, size_text
from dpaudit.pipeline.caller_objects import NOTHING
from dpaudit.pipeline.jobs import Prepared, faults_in_a_line
from dpaudit.pipeline.run import Runtime, prepare
from dpaudit.pipeline.workers import one_thread
from dpaudit.rng import Streams
from dpaudit.training.classification import Classification, n_evaluated
from dpaudit.training.costs import pace_of, training_bytes
from dpaudit.training.loaded_problem import Problem
from dpaudit.training.partial_inputs import global_randomness
from dpaudit.training.train import NOTHING_RECORDED, Learning, train

from .experiment import CellContext, MeasuredNumber, Settings

ACCURACY = "test accuracy, %"
CURVE = "test accuracy by round, %"
LOSS = "training loss by round"
LEAST = "training loss, least of these rounds"
POINTS = 7  # of a curve, even in rounds: one takes as long as some rounds do
WORLD = "world"  # the setting that turns the noise off: "no-defense"
RECORDS = "records of an agent"  # the setting for how many each has; without it they share all
PROCESS_BYTES = 600 * 10**6  # of libraries and data, beside what training counts
SENSITIVITY = "sensitivity"
MEAN = "sensitivity, mean over rounds"
EXCEEDED = "rounds in which the real one exceeds the estimate, %"
RAS = "real average sensitivity"
NORM = "norm of the stochastic gradient, mean over agents"
TENTH = "norm of the stochastic gradient, mean over a tenth of the rounds"
WINDOWS = 20  # points of its curve, each the mean of the rounds since the one before
BORROWED_NOISE = ("pp-doagt", "diff-tv-ab")  # given the noise of Xie's Algorithm 1, as in the paper


def accuracy(settings: Settings, seed: int, context: CellContext) -> Iterator[MeasuredNumber]:
    """After the last round, the mean over agents, on the first 2,000 test records at most.

    Raises:
        DpauditError: it cannot be trained, does not fit in memory, or a number stops being one.
    """
    yield MeasuredNumber(ACCURACY, _percent(_trained(settings, seed, context, 1).accuracy[-1]))


def curve(settings: Settings, seed: int, context: CellContext) -> Iterator[MeasuredNumber]:
    """The same at each of some rounds. Raises as ``accuracy``."""
    found = _trained(settings, seed, context, POINTS)
    for k, agents in zip(found.rounds, found.accuracy, strict=True):
        yield MeasuredNumber(CURVE, _percent(agents), at=k)


def convergence(settings: Settings, seed: int, context: CellContext) -> Iterator[MeasuredNumber]:
    """Test accuracy and training loss at some rounds, the last accuracy, and the least loss.

    Means over agents. Raises as ``accuracy``.
    """
    found = _trained(settings, seed, context, POINTS, _by_training_loss)
    losses = [fmean(agents) for agents in found.loss]
    for k, agents, loss in zip(found.rounds, found.accuracy, losses, strict=True):
        yield MeasuredNumber(CURVE, _percent(agents), at=k)
        yield MeasuredNumber(LOSS, loss, at=k)
    yield MeasuredNumber(ACCURACY, _percent(found.accuracy[-1]))
    yield MeasuredNumber(LEAST, min(losses))


def _percent(agents: Sequence[float]) -> float:
    return 100 * fmean(agents)


@dataclass(frozen=True)
class TrainingLoss:
    """A learning problem that is evaluated by the loss on its first training records.

    Accuracy is that on test records. 2,000 records at most, as many as test records.
    """

    problem: Classification
    loss_is: ClassVar[str] = "training loss"

    @property
    def differentiates(self) -> bool:
        return self.problem.differentiates

    def initial(self, streams: Streams) -> Tensor:
        return self.problem.initial(streams)

    def gradient(self, streams: Streams, k: int, batch_size: int, sampling: str) -> Gradient:
        return self.problem.gradient(streams, k, batch_size, sampling)

    def evaluate(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Training loss and test accuracy of each model of X [n_agents, d], both [n_agents]."""
        data, n = self.problem.dataset, n_evaluated(len(X))
        holders = torch.zeros(len(X), dtype=torch.long, device=X.device)
        x, y = data.x[None, :n].to(X.device), data.y[None, :n].to(X.device)
        loss, _ = self.problem.gradients.evaluate(X, x, y, holders)
        return loss, self.problem.evaluate(X)[1]


def _by_training_loss(problem: Problem) -> TrainingLoss:
    assert isinstance(problem, Classification)  # accuracy is that of classifiers
    return TrainingLoss(problem)


def _trained(
    settings: Settings,
    seed: int,
    context: CellContext,
    evaluations: int,
    evaluated: Callable[[Problem], Learning] = lambda problem: problem,
) -> Curve:
    """What training measures of the agents' models, by the problem as ``evaluated`` has it."""
    prepared, world = prepared_of(settings, seed, context)
    defense = prepared.defenses[world]
    need, free = _bytes(prepared, world), available()
    if free is not None and need > free:
        raise ConfigError(
            "DPA021",
            f"training takes about {size_text(need)} of memory, and {size_text(free)} is free",
        )
    with faults_in_a_line(f"training, {context.stage}", defense):
        found = train(
            defense,
            evaluated(prepared.learned.problem),
            prepared.setting,
            prepared.streams,
            NOTHING_RECORDED,
            context.run,
            context.stage,
            context.on_step,
            evaluations,
        )
    context.run.forget(f"checkpoints/{context.stage}/*")
    return found


def estimate_cost(settings: Settings, seed: int, context: CellContext) -> tuple[float, int]:
    """Seconds of training on one thread, by one round in CPU time; and bytes of its process."""
    prepared, world = prepared_of(settings, seed, context)
    defense, problem = prepared.defenses[world], prepared.learned.problem
    with one_thread(), global_randomness(0):
        pace = pace_of(defense, problem, prepared.setting, prepared.streams, time.process_time)
    seconds = defense.n_rounds * pace.round + (POINTS + 1) * pace.evaluation
    return seconds, _bytes(prepared, world) + PROCESS_BYTES


def _bytes(prepared: Prepared, world: str) -> int:
    defense, problem = prepared.defenses[world], prepared.learned.problem
    return training_bytes(defense, problem, prepared.setting, NOTHING_RECORDED)


def prepared_of(settings: Settings, seed: int, context: CellContext) -> tuple[Prepared, str]:
    """The audit of these settings, up to its first round, and which world is trained."""
    own = {k: v for k, v in settings.items() if not k.startswith(("attack.", "images."))}
    table = nested(with_noise(own))
    world, records = table.pop(WORLD, "defense"), table.pop(RECORDS, None)
    config = AuditConfig.from_dict({**table, "seed": seed})
    dataset = context.dataset
    if dataset is not None and records is not None:
        n = records * config.data.n_agents
        dataset = replace(dataset, x=dataset.x[:n], y=dataset.y[:n])
    if dataset is not None and config.data.scale == "unit":
        dataset = dataset.in_units()  # prepare takes a caller's data as they are
    return prepare(config, Runtime(), replace(NOTHING, data=dataset)), world


def with_noise(settings: Settings) -> Settings:
    """Methods without a formula from budget to noise have that of Xie's Algorithm 1, (5)."""
    if settings["defense.name"] not in BORROWED_NOISE:
        return settings
    own = {key: value for key, value in settings.items() if key != "defense.epsilon"}
    options = {key.removeprefix("defense."): value for key, value in settings.items()}
    return {**own, "defense.noise_scale": noise_of_algorithm_1(options)}


def noise_of_algorithm_1(options: Settings) -> float:
    """nu_1 of Xie, Liu and Chai, (5), by the options of a defense."""
    names = ("step_size", "gradient_distance", "step_decay", "noise_decay")
    step, distance, q1, q2 = (options[name] for name in names)
    scale: float = step * distance * q2 / (options["epsilon"] * (q2 - q1))
    return scale


def nested(settings: Settings) -> dict[str, Any]:
    """Settings by dotted keys as the tables of an audit file."""
    table: dict[str, Any] = {}
    for key, value in settings.items():
        *path, name = key.split(".")
        inner = table
        for part in path:
            inner = inner.setdefault(part, {})
        inner[name] = value
    return table


def sensitivity_by_round(
    settings: Settings, seed: int, context: CellContext
) -> Iterator[MeasuredNumber]:
    """The real and the estimated sensitivity of each round of DPPS (Zhou, Xue and Chen).

    The real one is the largest L1 distance between the shared parameters of two agents before
    noise; the estimate is the largest S_i that an agent sends.
    """
    real, estimated = _sensitivities(settings, seed, context)
    for which, found in (("real", real), ("estimated", estimated)):
        for k, value in enumerate(found, start=1):
            yield MeasuredNumber(SENSITIVITY, value, k, {"which": which})
        yield MeasuredNumber(MEAN, fmean(found), labels={"which": which})
    yield MeasuredNumber(EXCEEDED, _exceeded(real, estimated), labels={"which": "real"})


def mean_sensitivity(
    settings: Settings, seed: int, context: CellContext
) -> Iterator[MeasuredNumber]:
    """The mean of the real one over rounds (RAS), and how often the estimate falls short."""
    real, estimated = _sensitivities(settings, seed, context)
    yield MeasuredNumber(RAS, fmean(real))
    yield MeasuredNumber(EXCEEDED, _exceeded(real, estimated))


def _sensitivities(
    settings: Settings, seed: int, context: CellContext
) -> tuple[list[float], list[float]]:
    real, estimated = [], []
    for round in played(settings, seed, context):
        H = round.private["h"]
        real.append(torch.cdist(H, H, p=1).max().item())
        estimated.append(round.sent["sens"].payload.max().item())
    return real, estimated


def _exceeded(real: list[float], estimated: list[float]) -> float:
    above = sum(one > other for one, other in zip(real, estimated, strict=True))
    return 100 * above / len(real)


def gradient_norms(settings: Settings, seed: int, context: CellContext) -> Iterator[MeasuredNumber]:
    """How long the gradients are that agents step by, as training goes on."""
    norms = [
        round.private["gradient"].norm(dim=-1).mean().item()
        for round in played(settings, seed, context)
    ]
    width, tenth = max(1, len(norms) // WINDOWS), max(1, len(norms) // 10)
    for end in range(width, len(norms) + 1, width):
        yield MeasuredNumber(NORM, fmean(norms[end - width : end]), at=end)
    yield MeasuredNumber(TENTH, fmean(norms[:tenth]), labels={"rounds": "first tenth"})
    yield MeasuredNumber(TENTH, fmean(norms[-tenth:]), labels={"rounds": "last tenth"})


def played(settings: Settings, seed: int, context: CellContext) -> Iterator[Round]:
    """Every round in turn, with what agents keep to themselves. Nothing of it is kept on disk."""
    prepared, world = prepared_of(settings, seed, context)
    defense, setting = prepared.defenses[world], prepared.setting
    problem, streams = prepared.learned.problem, prepared.streams
    with torch.no_grad():
        state = defense.start(problem.initial(streams), setting)
        for k in range(1, defense.n_rounds + 1):
            gradient = problem.gradient(streams, k, defense.batch_size, defense.drawing)
            round = defense.step(state, k, setting.network.at(k), gradient, Noise(streams, k))
            yield round
            state = round.state
            context.on_step(k, defense.n_rounds)
