"""What estimates from a whole view take, and those that are too large, before anything is spent."""

from collections.abc import Collection, Sequence

import torch

from dpaudit.defense.footprint import Footprint
from dpaudit.errors import ConfigError
from dpaudit.files.threat import ThreatModel
from dpaudit.game.estimating import unmixing, window
from dpaudit.game.estimating.window import WIDTH, ProbedWindow, WindowShape, trials_of
from dpaudit.training.costs import seconds_of

from .contract import AttackContext
from .victims import VIEW, window_of

MOVES = 4  # of unknowns that are timed
SQUARE = 400  # rows and columns of a matrix whose decomposition is timed


def view_bytes(
    context: AttackContext,
    threat_model: ThreatModel,
    rounds: Sequence[int],
    others: Collection[str] = (),
) -> int:
    """Of the estimate of that attacked round whose window has the most links.

    Args:
        others: messages of which the attack needs no such estimate.

    Raises:
        ConfigError: the window has too many unknowns; the line says how many agents would do.
    """
    defense, network, n = context.defense, context.setting.network, context.setting.n_agents
    windows = {k: window_of(VIEW, k, defense.n_rounds, False) for k in rounds}
    k = max(windows, key=lambda k: sum(network.at(j).n_edges for j in windows[k]))
    shape = WindowShape.of(defense, context.setting, threat_model, windows[k])
    unknowns, most = shape.unknowns, window.MOST_UNKNOWNS
    if unknowns <= most:
        step = Footprint.of(defense, context.setting)
        return shape.bytes + step.round(WIDTH, 2 * shape.at_once, 8)
    named = ", ".join(f'"{name}"' for name in sorted(others))
    instead = f", or message = {named}" if named else ""
    raise ConfigError(
        "DPA022",
        f"attack {context.name}: the estimate of gradients of round {k} from the whole view "
        f"has {unknowns:,} unknowns with n_agents = {n}; expected {most:,} at most, about "
        f"n_agents = {max(2, n * most // unknowns)} with as many links each{instead}",
    )


def view_seconds(
    context: AttackContext, threat_model: ThreatModel, rounds: Sequence[int], n_estimates: int
) -> float:
    """About how long estimates of so many gradients in each round take, on one thread."""
    n = max(len(window_of(VIEW, k, context.defense.n_rounds, False)) for k in rounds)
    played = ProbedWindow(context.defense, context.setting, threat_model, range(1, 1 + n), 1.0)
    moves = torch.zeros(MOVES, played.shape.unknowns, dtype=torch.float64)
    move = seconds_of(lambda: played.moved(moves)) / MOVES
    shape = played.shape
    square = torch.rand(SQUARE, SQUARE, generator=torch.Generator().manual_seed(0)).double()
    each = seconds_of(lambda: torch.linalg.svd(square)) / SQUARE**3
    n_o, columns = shape.observed, shape.states + shape.inputs
    free = max(0, n_o - columns)  # combinations of what is read that hold no unknown, at least
    factorising = n_o * columns * min(n_o, columns)
    estimating = 2 * n_estimates * free**2 * (shape.draws + n_o)
    return len(rounds) * (trials_of(played) * move + (factorising + estimating) * each)


def refuse_many_noises(context: AttackContext, rounds: Sequence[int]) -> None:
    """Raises ConfigError: so many rounds draw more noise than un-mixing takes."""
    last, most = max(rounds), unmixing.MOST_DRAWS
    draws = len(unmixing.draws_of(context.defense, context.setting, last))
    if draws > most:
        raise ConfigError(
            "DPA022",
            f"attack {context.name}: rounds: the first {last} rounds draw {draws:,} noises with "
            f"n_agents = {context.setting.n_agents}; expected {most:,} at most, of about "
            f"{last * most // draws} rounds",
        )
