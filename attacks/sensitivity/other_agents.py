"""Records of agents beside the victim, which a step may treat otherwise.

One agent may forget to clip, or to add its noise, in one round alone. Where noise is moved until
two runs are the same, a record of every agent is left out at once, and the moves say whose record
needs more noise than is declared. Such a move proves nothing by itself: of a sum of several draws
one is moved for all of them. So that agent's longest record is then added, and what it sends is
held against its own bound. Where no move makes the runs the same, a long gradient is added at every
agent at once, in each round. The agents whose messages move most beside their noise, or further
than is stated, are then looked at alone.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import torch
from torch import Tensor

from dpaudit.defense import Adjacency, Messages

from .alignment import over_declared
from .examination import RoundExamination, RoundPair
from .message_move import Row
from .synthetic_records import AtSeveralAgents, VacantPlace
from .worlds import CoupledWorlds, PlayedWorld, WorldPair

MOST = 8  # agents of a round that are looked at alone; as many in the first and in the last
CLEARLY = 1 + 1e-6  # times the declared move
LONG = 100.0  # times the clip norm: the gradient that is added at every agent
UNLIKE = 2.0  # times the median agent's move, beside its noise
STATED_OF = 256  # agents whose stated bounds are asked for in each round
TOGETHER = (
    "whether every other agent hides its records in each round: a step raises {} when a gradient "
    "is added at all agents"
)


@dataclass
class OtherAgents:
    """Looks at other agents beside the victim of an examination."""

    examination: RoundExamination
    _of: dict[int, RoundExamination] = field(default_factory=dict)

    def record(self, state: Any, k: int, adjacency: Adjacency) -> Iterator[Row]:
        """What speaks against the bounds on their messages, once round k is examined."""
        for agent in self._suspected(state, k, adjacency):
            own = self._of.setdefault(agent, self._at(agent))
            own.silent = self.examination.silent
            for row in _added(own, state, k, adjacency):
                if row.counts:
                    yield row._replace(agent=agent)
            self.examination.found |= own.found
            self.examination.unclear |= own.unclear

    def _suspected(self, state: Any, k: int, adjacency: Adjacency) -> list[int]:
        """Agents whose noise moves further than declared, or some for which that is unknown."""
        coupled = self.examination.coupled
        others = [i for i in coupled.setting.holders if i != coupled.victim]
        moved = self.examination.aligned.get((adjacency, k))
        if moved is None or isinstance(moved, str):
            most = list[int]()
            try:
                worlds = _worlds(coupled, state, k)
            except Exception as error:  # whatever a step raises that needs records
                self.examination.unclear[TOGETHER.format(type(error).__name__)] = None
            else:
                most = _most_moved(coupled, k, adjacency, worlds) if others else []
            at_ends = MOST if k in (1, coupled.defense.n_rounds) else 1
            first = (k - 1) * at_ends % max(1, len(others))
            in_turn = [i for i in others[first:] + others[:first] if i not in most]
            return [*most, *in_turn[: max(0, at_ends - len(most))]]

        def ratio(agent: int) -> float:
            own = {key: size for key, size in moved.items() if key[0] == agent}
            return over_declared(coupled, {k: own}, adjacency)

        return [agent for agent in others if ratio(agent) > CLEARLY]

    def _at(self, agent: int) -> RoundExamination:
        return RoundExamination(self.examination.coupled.looking_at(agent), 0, 0, aligns=False)


def _most_moved(
    coupled: CoupledWorlds, k: int, adjacency: Adjacency, worlds: WorldPair
) -> list[int]:
    """Other agents, of which a gradient at every agent moves messages most in round k.

    The first one, those whose messages move twice as far beside their noise as those of the median
    agent, and those whose messages move further than is stated; ``MOST`` of them.
    """
    (here, there), holders = worlds, list(coupled.setting.holders)
    moves = _by_sender(coupled, there.noisy.sent, here.noisy.sent)
    noises = _by_sender(coupled, here.noisy.sent, here.quiet.sent)
    score = torch.zeros(coupled.setting.n_agents, dtype=torch.float64)
    for name, move in moves.items():
        beside = torch.where(move > 0, move / noises[name], 0.0)
        own = beside[holders]
        median = own[own > 0].median() if bool((own > 0).any()) else score.new_ones(())
        score = score.maximum((beside / median).nan_to_num(1.0, inf))
    clips = coupled.defense.clip_norm_in(k) is not None
    if clips and len(holders) <= STATED_OF and not here.lag:
        score = score.maximum(UNLIKE * _over_stated(coupled, k, adjacency, here, moves) / CLEARLY)
    others = sorted((i for i in holders if i != coupled.victim), key=lambda i: -score[i].item())
    return [i for n, i in enumerate(others) if n == 0 or score[i] > UNLIKE][:MOST]


def _worlds(coupled: CoupledWorlds, state: Any, k: int) -> WorldPair:
    """Round k without and with a long gradient at every agent; the next one if no message moves."""
    oracle = coupled.kept_batches(k)
    gradient = torch.randn(coupled.setting.d, generator=torch.Generator().manual_seed(0)).double()
    clip_norm = coupled.defense.clip_norm_in(k)
    gradient *= LONG * (1.0 if clip_norm is None else clip_norm) / gradient.norm()
    here = PlayedWorld(coupled, state, k, VacantPlace(oracle, coupled.victim))
    added = AtSeveralAgents(oracle, coupled.victim, gradient, tuple(coupled.setting.holders))
    there = replace(here, oracle=added)
    _ = here.quiet
    moves = _by_sender(coupled, there.noisy.sent, here.noisy.sent)
    if k == coupled.defense.n_rounds or any(bool(move.any()) for move in moves.values()):
        return here, there
    later = here.later(), there.later()
    _ = later[0].noisy, later[1].noisy, later[0].quiet
    return later


def _by_sender(coupled: CoupledWorlds, one: Messages, other: Messages) -> dict[str, Tensor]:
    """The largest L2 norm of the difference of an agent's messages [n_agents], by name."""
    found = {}
    for name, sent in one.items():
        rows = torch.linalg.vector_norm(sent.payload - other[name].payload, dim=-1)
        rows = rows.double().nan_to_num(inf)
        none = rows.new_zeros(coupled.setting.n_agents)
        found[name] = none.scatter_reduce(0, sent.senders, rows[sent.rows], "amax").cpu()
    return found


def _over_stated(
    coupled: CoupledWorlds,
    k: int,
    adjacency: Adjacency,
    here: PlayedWorld,
    moves: Mapping[str, Tensor],
) -> Tensor:
    """How far agents' messages move over what is stated of them in L2 [n_agents], 0 if nothing."""
    over = torch.zeros(coupled.setting.n_agents, dtype=torch.float64)
    for agent in coupled.setting.holders:
        stated = coupled.defense.sensitivity(k, coupled.setting, adjacency, agent, here.noisy.sent)
        for name, (norm, value) in stated.items():
            if norm == 2 and value > 0:
                over[agent] = max(over[agent], moves[name][agent] / value)
    return over


def _added(own: RoundExamination, state: Any, k: int, adjacency: Adjacency) -> list[Row]:
    """The agent's longest record is added in round k, or takes the place of another."""
    oracle = own.coupled.kept_batches(k)
    pair = RoundPair(own, state, k, oracle, adjacency, *own.asked(state, k, oracle))
    natural = pair.natural()
    if adjacency == "replace-one":
        pair.present, natural = natural, pair.natural(unlike=natural)
    found = {"natural": natural}
    rows = pair.rows(found)
    if any(row.measured for row in rows) or k == own.coupled.defense.n_rounds:
        return rows
    pair.lag = 1
    return pair.rows(found)
