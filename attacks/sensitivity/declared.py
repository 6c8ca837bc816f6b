"""How far a message may move, by the noise on it and the releases declared.

A release of multiplier z says that one record moves what it hides by a z-th of its noise. That is a
bound for a message, whether or not the defense states another: the noise on it over z. It holds in
the first round, whose start is public, so that nothing but the noise of the round hides the record.
In a later round, noise from before may hide more than what is added there. So a later message is
held to its own noise only where that is no less than in the first round.

Measured is the noise itself. Each draw is played in one coordinate of its own, which says what
reaches the victim's messages of each; all draws together, at random in all coordinates, say whether
it is the same in every coordinate and adds up. Where it is not, nothing is said. Where it is and
the two worlds differ in it, as in a sum under noise that is divided by how many records were drawn,
the noise reveals the record.

Some draws move nothing where there is no data, as a coin that leaves out a record, or counts it
twice. They hide nothing by themselves. So where they are in the way, they are what they are in the
run, and the record is held to the noise beside them under several such draws.
"""

from collections.abc import Mapping, Set
from itertools import islice
from math import ceil, hypot
from typing import NamedTuple

import torch
from torch import Tensor

from dpaudit.defense import (
    CHANGED_RECORDS,
    Adjacency,
    Gradient,
    Mechanism,
    Messages,
    Noise,
    Scale,
    Stated,
    steps_of,
)
from dpaudit.game.step_inputs import STD, ChosenNoise, Family

from .laws import redrawn
from .opposed import Scaled
from .replay import EVERY_LINK
from .worlds import Coupled, PlayedWorld, WorldPair

SAME = 1e-9  # relative: two ways to play the same noise differ by less
REDRAWN = 8  # further draws of what moves data alone: a coin is the same in all with p = 2^-8
ROUNDING = 1 + 1e-7  # times the bound, whose noise is a difference of messages


class Declared(NamedTuple):
    """What the noise of the first round says of the victim's messages."""

    bounds: Mapping[str, Stated]  # by message
    unlike: tuple[str, ...]  # messages that carry more noise in one world than in the other
    beside: frozenset[str] = frozenset()  # messages with draws that move data alone


class Reach(NamedTuple):
    """What of the noise of a round reaches one message of the victim."""

    scales: Tensor  # [rows, draws], of every draw's noise there, by the scale of its family
    families: tuple[str, ...]  # [draws]
    beside: bool = False  # whether there are draws beside these, which move data alone


class _SomeChosen(ChosenNoise):
    """Plays the chosen units, and of some draws what they really are.

    Args:
        real: the noise of the round.
        drawn: the names of the draws that are real.
    """

    def __init__(
        self, real: Noise, drawn: Set[str], units: Mapping[str, Tensor] | None = None
    ) -> None:
        super().__init__(units)
        self._real, self._drawn = real, drawn

    def _played(self, family: Family, message: str, scale: Scale, like: Tensor) -> Tensor:
        if message not in self._drawn:
            return super()._played(family, message, scale, like)
        draw = self._real.gaussian if family == "gaussian" else self._real.laplace
        return draw(message, 1.0, like.detach()) * scale


def declared_of_pairs(
    pairs: Mapping[str, list[WorldPair]], adjacency: Adjacency, first: Mapping[str, Reach]
) -> tuple[Declared, Mapping[str, list[WorldPair]]]:
    """What the noise of the first pair says; and all pairs, of which the record is to be measured.

    Where draws move data alone, each pair is there under several of them. Noise that is not the
    same under all of these gives no bound.

    Args:
        first: the noise that reaches the messages of round 1.
    """
    (here, there), *_ = (pair for several in pairs.values() for pair in several)
    declared = declared_bounds(here, there, adjacency, first)
    if not declared.beside:
        return declared, pairs
    reached = reaching(here)
    again = [reaching(one) for one, _ in redrawn(here, there, "beside", REDRAWN)]
    bounds = {
        name: bound
        for name, bound in declared.bounds.items()
        if not reached[name].beside
        or all(name in some and _is_as_much(reached[name], some[name]) for some in again)
    }
    every = {
        kind: [one for pair in several for one in (pair, *redrawn(*pair, "beside", REDRAWN))]
        for kind, several in pairs.items()
    }
    return declared._replace(bounds=bounds), every


def declared_bounds(
    here: PlayedWorld, there: PlayedWorld, adjacency: Adjacency, first: Mapping[str, Reach]
) -> Declared:
    """Of messages whose noise adds up; a bound where it is the same in both worlds.

    Args:
        first: the noise that reaches the messages of round 1.
    """
    coupled = here.coupled
    defense = coupled.defense
    of_functions = defense.function_distance() is not None  # as releases are then, not of records
    if here.lag or adjacency not in CHANGED_RECORDS or of_functions:
        return Declared({}, ())
    records = 2 if defense.protects == "user" else CHANGED_RECORDS[adjacency]
    releases = defense.mechanism(coupled.setting, EVERY_LINK, coupled.victim).most
    one, other = reaching(here), reaching(there)
    beside = frozenset(name for name, reach in one.items() if reach.beside)
    bounds, unlike = dict[str, Stated](), list[str]()
    for name in one.keys() & other.keys():
        if not _is_as_much(one[name], other[name]):
            unlike.append(name)
            continue
        bound = _bound(one[name], releases, batches_of(coupled, coupled.victim), records)
        if bound is not None and (here.k == 1 or _is_no_less(one[name], first.get(name))):
            bounds[name] = Stated(bound.norm, ROUNDING * bound.value)
    return Declared(bounds, tuple(sorted(unlike)), beside)


def _is_as_much(one: Reach, other: Reach) -> bool:
    """Whether two worlds' noise has one law: of each draw, or of sums of other Gaussian draws."""
    ours, theirs = one.scales, other.scales
    if one.families != other.families:
        if {*one.families, *other.families} != {"gaussian"}:
            return False
        ours, theirs = (scales.norm(dim=1, keepdim=True) for scales in (ours, theirs))
    same = ours.shape == theirs.shape
    return same and torch.allclose(ours, theirs, SAME, SAME * ours.max().item())


def _is_no_less(now: Reach, first: Reach | None) -> bool:
    """Whether as much noise of the same draws reaches a message as in the first round."""
    if first is None or now.families != first.families or now.scales.shape != first.scales.shape:
        return False
    return bool((now.scales >= first.scales * (1 - SAME)).all())


def _bound(reach: Reach, releases: Mechanism, batches: int, records: int) -> Stated | None:
    """How far so many records may move a message, by its noise and what is declared of a batch."""
    used = {f for f, there in zip(reach.families, reach.scales.any(0), strict=True) if there}
    if len(used) != 1 or {release.family for release in releases} != used:
        return None
    if any(release.noise_multiplier == 0 for release in releases):
        return None
    # what the largest releases of a batch reveal, as many as there are of a batch
    n = ceil(sum(release.count for release in releases) / batches)
    by_noise = sorted(releases, key=lambda release: release.noise_multiplier)
    every = (1 / release.noise_over(records) for release in by_noise for _ in range(release.count))
    losses = list(islice(every, n))
    if used == {"gaussian"}:
        noise = torch.linalg.vector_norm(reach.scales, dim=1)  # [rows]
        bound = Stated(2, noise[0].item() * hypot(*losses))
    elif int((reach.scales != 0).sum(1).max()) > 1:
        return None  # a sum of Laplace draws is no Laplace noise
    else:
        noise = reach.scales.sum(1)
        bound = Stated(1, noise[0].item() * sum(losses))
    return bound if torch.allclose(noise, noise[:1].expand_as(noise), SAME, 0.0) else None


def batches_of(coupled: Coupled, agent: int) -> int:
    """How many batches of the run may hold one record of an agent."""
    defense, setting = coupled.defense, coupled.setting
    rounds = int(steps_of(setting.network.at, defense.n_rounds, agent).sum())
    if defense.cyclic:
        rounds = ceil(rounds / max(1, setting.sizes[agent] // defense.batch_size))
    return max(1, rounds * defense.batches_per_round)


def reaching(world: PlayedWorld) -> dict[str, Reach]:
    """The noise that reaches the victim's messages, where it is alike in all coordinates."""
    round = _Round(world)
    found = round.reaching(frozenset())
    if len(found) < len(round.silent) and len(round.draws) > 1:
        beside = frozenset(name for name in round.draws if not round.moves_alone(name))
        if 0 < len(beside) < len(round.draws):
            found = round.reaching(beside) | found
    return found


class _Round:
    """A round that is played with chosen noise."""

    def __init__(self, world: PlayedWorld) -> None:
        self._world, self._nothing = world, Scaled(world.oracle, 0.0)
        self._noise = Noise(world.streams or world.coupled.streams, world.k)
        asked = ChosenNoise()
        self.silent = self._sent(world.oracle, asked)
        self.draws = asked.draws

    def _sent(self, oracle: Gradient, noise: ChosenNoise) -> Messages:
        world = self._world
        graph = world.coupled.setting.network.at(world.k)
        sent = world.coupled.defense.step(world.state, world.k, graph, oracle, noise).sent
        return {name: message for name, message in sent.items() if message.readers is None}

    def moves_alone(self, draw: str) -> bool:
        """Whether a draw moves the victim's messages where nothing else is drawn, nor any data."""
        none, alone = (
            self._sent(self._nothing, _SomeChosen(self._noise, names)) for names in (set(), {draw})
        )
        return any(bool(by.any()) for by in self._world.coupled.differences(none, alone).values())

    def reaching(self, beside: frozenset[str]) -> dict[str, Reach]:
        """By message of the victim; ``beside``: draws that are what they are in the run."""
        coupled = self._world.coupled
        draws = {name: draw for name, draw in self.draws.items() if name not in beside}
        rows = [draw.shape[-2] for draw in draws.values() if len(draw.shape) > 1]
        widths = {draw.shape[-1] for draw in draws.values()}
        n = sum(rows)
        if len(widths) != 1 or n > min(widths) or len(rows) < len(draws):
            return {}

        def sent(units: Mapping[str, Tensor]) -> Messages:
            return self._sent(self._world.oracle, _SomeChosen(self._noise, beside, units))

        silent = sent({}) if beside else self.silent

        def moved(units: Tensor) -> dict[str, Tensor]:
            """What these units of noise [n, d] do to the victim's messages, [rows, d] by name."""
            loud = sent(dict(zip(draws, units.split(rows), strict=True)))
            return coupled.differences(silent, loud)

        d, device = min(widths), coupled.streams.device
        generator = torch.Generator().manual_seed(0)
        everything = torch.empty(n, d, dtype=torch.float64).normal_(generator=generator).to(device)
        alone = moved(torch.eye(n, d, dtype=torch.float64).to(device))
        together = moved(everything)
        families = tuple(draw.family for draw in draws.values() for _ in range(draw.shape[-2]))
        scale = everything.new_tensor([STD[family] for family in families])
        return {
            name: Reach((by[:, :n] / scale).abs(), families, bool(beside))
            for name, by in alone.items()
            if by.shape[-1] == d
            and len(by)
            and bool(by[:, :n].any(1).all())
            and _is_sum(by, everything, together[name])
        }


def _is_sum(alone: Tensor, everything: Tensor, together: Tensor) -> bool:
    """Whether all draws at once do what each does in a coordinate of its own."""
    n = len(everything)
    predicted = alone[:, :n] @ everything
    size = predicted.abs().max()
    spilt = alone[:, n:].abs().max() if alone.shape[1] > n else size * 0
    return bool((together - predicted).abs().max() <= SAME * size and spilt <= SAME * size)
