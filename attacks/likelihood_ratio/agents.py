"""The games of a claim on agents: an agent is as it is, or as another.

Of one query: a defense that claims this states how far apart the messages of two agents are before
noise. In one round the victim's message lies that far away, or does not; its noise is what the
defense draws. All else is the same in both worlds, as the claim has it: the history, and what
agents reveal of their data beside. Where two agents of the run that was played, of whom one has a
gradient and the others none, lie further apart than is stated, the message does too.

Of a whole run: all of the victim's data are another agent's in every round. The agents have no
gradient, and in one world the victim has: that of a batch whose records are all alike.

Whoever reads the message knows those of all other agents too, which say nothing of the victim's
query.

Source: Zhou, Xue and Chen (DPPS), Definition 4.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from dpaudit.attack import Finding, Metric, Name, Streams, ThreatModel
from dpaudit.defense import Bracket, Defense, Gradient, Graph, Message, Noise, Round, Setting
from dpaudit.game.game import LENGTH, CanaryGradient, Game
from dpaudit.game.step_inputs import ChosenNoise, flat_state, state_of

ROUNDING = 1e-9  # relative to a stated distance, so that rounding does not break a tight claim


class Query(NamedTuple):
    """One message of an agent, and how far from it another agent's may lie."""

    round: int
    victim: int
    holder: int  # the only agent whose gradient is not zero, in both worlds
    message: str
    distance: float  # before noise: as the defense states it, or as two agents really lie
    stated: float
    std: float  # standard deviation of the noise
    state: Any  # state of the defense before the round, of one trial

    @property
    def loss(self) -> float:
        """The distance in standard deviations of the noise."""
        if self.distance == 0:
            return 0.0
        return self.distance / self.std if self.std else float("inf")


class OneQuery(Defense):
    """One message of one round of another defense, moved by what the gradient oracle gives."""

    asked: Defense
    query: Any  # a Query

    def start(self, X: Tensor, setting: Setting) -> Any:
        state = self.query.state
        return state_of(state, flat_state(state).to(X).expand(len(X), -1))

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        query = self.query
        data = _data(self.asked, query.holder, state)
        after, sent, *_ = self.asked.step(state, query.round, graph, data, noise)
        message = sent[query.message]
        payload = message.payload.clone()
        moved = gradient(payload.new_zeros(*payload.shape[:-2], graph.n_agents, 1))
        rows = message.rows[message.senders == query.victim].unique()
        payload[..., rows, :] += moved[..., [query.victim], :]
        return Round(after, {query.message: replace(message, payload=payload)})

    def models(self, state: Any) -> Tensor:
        return self.asked.models(state)

    def without_noise(self) -> Self:
        return self.model_copy(update={"asked": self.asked.without_noise()})

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        return Bracket((), (), ())


def game_on_agents(
    defense: Defense, setting: Setting, threat_model: ThreatModel, n_rounds: int, streams: Streams
) -> Game | None:
    """The game of the query that reveals most to the adversary, of the first rounds of one run.

    None: the defense states no distance between agents for a message that the adversary sees.
    """
    alone = setting.stand_in(1)
    found = queries(defense, alone, threat_model, n_rounds, streams)
    query = max(found, key=lambda query: query.loss, default=None)
    if query is None:
        return None
    one = replace(alone, network=alone.network.only(query.round))
    asked = OneQuery(n_rounds=1, asked=defense, query=query)
    return Game(asked, one, query.victim, "agent-identity", query.distance, 1.0, "none")


def _apart(message: Message, rows: Tensor) -> float:
    """How far in L1 the farthest other agent's payload is from these rows."""
    others = message.rows[~torch.isin(message.rows, rows)].unique()
    if not len(others):
        return 0.0
    payload = message.payload[0]
    return float(torch.cdist(payload[rows], payload[others], p=1).max())


def as_asked(finding: Finding, game: Game) -> Finding:
    """The finding, which says of what query it is, if it is of one."""
    if not isinstance(game.defense, OneQuery):
        return finding
    query = game.defense.query
    far = "as far as the defense says that another agent's may lie"
    if query.distance > query.stated:
        far = f"as far as another agent's lay, though the defense says {query.stated:.4g} at most"
    note = (
        f'agent {query.victim}\'s "{query.message}" of round {query.round} is moved by '
        f"{query.distance:.4g}, {far}; all else is the same in both worlds"
    )
    metrics = dict(finding.metrics)
    if Name.ROUNDS in metrics:  # a game of one round is one round of a run
        metrics[Name.ROUNDS] = Metric(value=1, n=game.defense.asked.n_rounds)
    changed = {"rounds": (query.round,), "notes": (note, *finding.notes), "metrics": metrics}
    return finding.model_copy(update=changed)


def _data(defense: Defense, holder: int, state: Any) -> Gradient:
    drawn = torch.ones(len(flat_state(state)), dtype=torch.float64)
    return CanaryGradient(holder, LENGTH, drawn, defense.batch_size)


def queries(
    defense: Defense,
    setting: Setting,
    threat_model: ThreatModel,
    n_rounds: int,
    streams: Streams,
) -> Iterator[Query]:
    """Every message of an agent that the adversary reads and a distance is stated for."""
    holder = next(i for i in setting.holders if i not in threat_model.agents)
    state = defense.start(torch.zeros(1, setting.n_agents, 1, dtype=torch.float64), setting)
    for k in range(1, n_rounds + 1):
        graph, tape, data = setting.network.at(k), ChosenNoise(), _data(defense, holder, state)
        silent = defense.step(state, k, graph, data, tape).sent
        ones = {name: torch.ones(asked.shape).double() for name, asked in tape.draws.items()}
        loud = defense.step(state, k, graph, data, ChosenNoise(ones)).sent
        for victim in range(setting.n_agents):
            bounds = defense.sensitivity(k, setting, "agent-identity", victim, silent)
            for name, bound in bounds.items():
                message = silent[name]
                mine = message.senders == victim
                receivers = message.receivers[mine].tolist()
                if victim in threat_model.agents or not any(
                    threat_model.sees(victim, j) for j in receivers
                ):
                    continue
                rows = message.rows[mine].unique()
                std = (loud[name].payload - message.payload)[..., rows, :].abs().min().item()
                stated = (1 - ROUNDING) * bound.value
                apart = max(stated, (1 - ROUNDING) * _apart(message, rows))
                yield Query(k, victim, holder, name, apart, stated, std, state)
        state = defense.step(state, k, graph, data, Noise(streams, k)).state
