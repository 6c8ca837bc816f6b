"""What experiments measure of single rounds: sensitivities of messages, lengths of gradients."""

from collections.abc import Iterator
from statistics import fmean

import torch

from dpaudit.defense.contract import Round
from dpaudit.defense.noise import Noise

from .experiment import CellContext, MeasuredNumber, Settings
from .learning import prepared_of

SENSITIVITY = "sensitivity"
MEAN = "sensitivity, mean over rounds"
EXCEEDED = "rounds in which the real one exceeds the estimate, %"
RAS = "real average sensitivity"
NORM = "norm of the stochastic gradient, mean over agents"
TENTH = "norm of the stochastic gradient, mean over a tenth of the rounds"
WINDOWS = 20  # points of its curve, each the mean of the rounds since the one before


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
