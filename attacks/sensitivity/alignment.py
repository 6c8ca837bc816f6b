"""Whether moving the noise hides a record wholly, and how far it has to be moved.

Two runs that differ in a record are played from one state, the noise of the second moved by a
constant. Where they are then the same in everything, the state that is left included, the move is a
randomness alignment (Zhang and Kifer 2017): the record costs what moving this noise costs, whatever
becomes of the noisy values, and rounds compose. That is the proof of differential privacy for this
round and these records. It asks no step to be linear, so that it covers what the algebra does not;
noise that later rounds take back, or that several draws share, is left to the algebra.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import ceil, hypot, inf

import torch

from dpaudit.accounting.privacy_loss import NoiseFamily
from dpaudit.defense import CHANGED_RECORDS, Adjacency, Mechanism
from dpaudit.files.finding import Metric
from dpaudit.game.game import Game
from dpaudit.game.probing.linearity import nonlinearity
from dpaudit.game.probing.observer import is_of_links
from dpaudit.statistics.noise_tests import size_of_draws

from .declared import batches_of
from .noise_log import DrawSizes
from .replay import Replay, is_same, left, replay
from .side_channels import same_draws
from .synthetic_records import ScaledGradients
from .worlds import EVERY_LINK, CoupledWorlds, Key, PlayedRound, PlayedWorld, WorldPair

Moved = dict[tuple[int, NoiseFamily], float]  # (agent, family) -> move in units of the noise
ROUNDING = 1e-8  # moves that differ by this share of the noise are equal
WHICH_DRAWS = "which noise is drawn"
CARRIES = (
    "what later rounds reveal of a record: a round leaves something of it that no noise hides yet, "
    "and not in proportion to gradients, as the algebra takes it"
)
TINY = 1e-6  # times: gradients of which no sum is clipped
FIRST = 3  # rounds in which a step that is not linear shows it
CARRIED = 1e-3  # tolerated relative difference in what a later round carries of a move
LEVEL = 0.05  # probability that an interval misses the size of the noise


def alignment(here: PlayedWorld, there: PlayedWorld, is_first: bool) -> Moved | str:
    """How far noise is moved, in units of its scale, where that makes the worlds the same.

    By agent and family, the L2 length of all moves of its Gaussian noise together, and the L1
    length of its Laplace noise. Or what is not the same then, or which noise may not be moved.

    Args:
        is_first: whether it is tried that no move depends on the very draw that it moves.
    """
    found, total = replay(here, there, "add-remove"), Moved()
    for one, other in zip(found.here.rounds, found.there.rounds, strict=True):
        if not same_draws(one, other):
            return WHICH_DRAWS
        pairs = [
            (f'the scale of "{a.stream}"', a.scale, b.scale)
            for a, b in zip(one.draws, other.draws, strict=True)
        ]
        pairs += [(what, value, left(other)[what]) for what, value in left(one).items()]
        for what, a, b in pairs:
            if not is_same(a, b):
                return what
    for (k, stream), move in found.moves.items():
        draw = found.there.draws[k, stream]
        if is_first and not _is_constant(here, there, (k, stream), found):
            return f'"{stream}", whose noise must move by what it is,'
        units = (move / draw.scale).nan_to_num(0.0, inf, inf)  # 0/0: no noise on what did not move
        norm, own = 1 if draw.family == "laplace" else 2, units.reshape(len(units), -1)
        by_row = torch.linalg.vector_norm(own, norm, dim=-1)  # all records of an agent together
        owners = _owners(here, found.here.rounds, (k, stream), len(by_row))
        for row in by_row.nonzero().flatten().tolist():
            if owners is None or not draw.is_fresh:
                return f'"{stream}", whose noise is not an agent\'s own'
            size, key = by_row[row].item(), (owners[row], draw.family)
            before = total.get(key, 0.0)
            total[key] = before + size if draw.family == "laplace" else hypot(before, size)
    return total


def is_carried_alike(worlds: Sequence[WorldPair]) -> bool:
    """Whether what a record leaves for the next round grows with gradients.

    It is what noise of the next round has to move by, of all moves. The algebra of a step is of
    tiny gradients: a sum that is clipped leaves a rest for later rounds only where it is long. Of a
    step that is not linear there is no algebra that this could mislead.
    """
    first, coupled = worlds[0][0], worlds[0][0].coupled
    if first.k == coupled.defense.n_rounds or not _is_linear(coupled):
        return True
    for one, other in worlds:
        one, other = replace(one, lag=1), replace(other, lag=1)
        tiny = (
            replace(world, oracle=ScaledGradients(world.oracle, TINY)) for world in (one, other)
        )
        if abs(_carried(one, other) - _carried(*tiny)) > CARRIED:
            return False
    return True


def _is_linear(coupled: CoupledWorlds) -> bool:
    """Whether the first rounds are linear on the game's model, as far as it can play them."""
    try:
        game = Game.of(coupled.defense, coupled.setting, coupled.victim, "add-remove")
        return nonlinearity(game, EVERY_LINK, min(FIRST, coupled.defense.n_rounds)) is None
    except Exception:  # whatever a step raises that takes the real model alone
        return True


def _carried(here: PlayedWorld, there: PlayedWorld) -> float:
    """The share of the moves of noise that are in the second round."""
    sizes = [0.0, 0.0]
    for (k, _), move in replay(here, there, "add-remove").moves.items():
        sizes[k > here.k] = hypot(sizes[k > here.k], move.norm().item())
    return sizes[1] / hypot(*sizes) if any(sizes) else 0.0


def _is_constant(here: PlayedWorld, there: PlayedWorld, key: Key, found: Replay) -> bool:
    """Whether a draw is moved as far when it is another one."""
    draw, move = found.there.draws[key], found.moves[key]
    generator = torch.Generator().manual_seed(0)
    other = torch.randn(move.shape, generator=generator, dtype=torch.float64).to(move) * draw.scale
    again = replay(here, there, "add-remove", {key: other}).moves.get(key)
    if again is None:
        return False
    units = ((again - move) / draw.scale).nan_to_num(0.0, inf, inf)
    return bool(units.abs().max() <= ROUNDING)


def _owners(
    world: PlayedWorld, played: Sequence[PlayedRound], key: Key, rows: int
) -> list[int] | None:
    """The agent of each row of a draw: one for each agent, or the sender of each link.

    On a graph with as many links as agents it is what the rows move that tells. None: nobody's, or
    it is not known whose.
    """
    coupled, (k, stream) = world.coupled, key
    graph = coupled.setting.network.at(k)
    agents, senders = list(range(graph.n_agents)), graph.senders.tolist()
    if rows not in (len(agents), len(senders)):
        return None
    if len(agents) != len(senders) or agents == senders:
        return agents if rows == len(agents) else senders
    try:
        game = Game.of(coupled.defense, coupled.setting, coupled.victim, "add-remove")
        of_links = is_of_links(game, k, stream, played[k - world.k].sent)
    except Exception:  # whatever a step raises that takes the real model alone
        return None
    return {True: senders, False: agents, None: None}[of_links]


def over_declared(
    coupled: CoupledWorlds, moves: Mapping[int, Moved], adjacency: Adjacency
) -> float:
    """The largest move of noise over what the declared releases of as many batches allow.

    Rounds are compared in the order of their moves: the largest with the batch whose releases have
    the least noise, and so on. Where all rounds are examined, none above 1 proves that the declared
    releases are no less than all moves together.
    """
    largest = 0.0
    for agent, family in {key for moved in moves.values() for key in moved}:
        sizes = sorted((moved.get((agent, family), 0.0) for moved in moves.values()), reverse=True)
        if coupled.defense.cyclic:  # batches in turn: the declared number holds a record
            sizes = sizes[: batches_of(coupled, agent)]
        allowed = _allowed(coupled, agent, family, adjacency)
        for i, size in enumerate(size for size in sizes if size > 0):
            most = allowed[i] if i < len(allowed) else 0.0
            largest = max(largest, size / most if most > 0 else inf)
    return largest


def ratio(pair: WorldPair, lag: int, adjacency: Adjacency) -> float | None:
    """How far noise is moved over what is declared; None: no move makes two runs the same."""
    one, other = (replace(world, lag=lag) for world in pair)
    moved = alignment(one, other, is_first=False)
    return None if isinstance(moved, str) else over_declared(one.coupled, {one.k: moved}, adjacency)


def _allowed(
    coupled: CoupledWorlds, agent: int, family: NoiseFamily, adjacency: Adjacency
) -> list[float]:
    """What each batch may move noise of a family by, in units of it, the largest first.

    An agent without records has no batch that may.
    """
    if agent not in coupled.setting.holders:
        return []
    declared, batches = coupled.declared(agent), batches_of(coupled, agent)
    return _by_batch(declared, family, CHANGED_RECORDS[adjacency], batches)


@lru_cache(maxsize=64)
def _by_batch(
    declared: Mechanism, family: NoiseFamily, records: int, n_batches: int
) -> list[float]:
    losses = sorted(
        (
            1 / noise if (noise := release.noise_over(records)) > 0 else inf
            for release in declared
            if release.family == family
            for _ in range(release.count)
        ),
        reverse=True,
    )
    in_a_batch = ceil(len(losses) / n_batches) or 1
    batches = (losses[i : i + in_a_batch] for i in range(0, len(losses), in_a_batch))
    return [sum(some) if family == "laplace" else hypot(*some) for some in batches]


def size_of_noise(drawn: Mapping[NoiseFamily, DrawSizes]) -> Metric:
    """Draws over the scale that was asked, of the family whose interval begins lowest."""
    every = []
    for family, (total, n) in drawn.items():
        value, low, high = size_of_draws(total, n, family, LEVEL / len(drawn))
        every.append(Metric(value=value, low=low, high=high, n=n))
    return min(every, key=lambda metric: metric.ends[0])
