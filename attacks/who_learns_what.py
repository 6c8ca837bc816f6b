"""Who learns what: how much each agent learns of each other agent's record.

Mixing spreads a record's effect over the network, and noise with it: an agent far away learns less
than a neighbour. For each ordered pair of a curious agent and a victim this is the mu of one record
of the victim, read over many rounds from all that the curious agent receives and sends, its own
noise known. The record is used in round 1 alone, or as ``participation`` says: then mu is that of
the worst rounds and of the worst directions of its gradients. It is exact where gradients do not
react to what the curious agent does not observe, as in averaging; in training it is a lower end,
and the mu of who reads every link the upper one (``dpaudit.game.filtering.adversary``).
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import inf, isinf
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import PositiveInt

import dpaudit.attack as da
import dpaudit.defense as dp
from dpaudit.game.filtering.adversary import (
    Adversary,
    Reaction,
    leak_by_agent,
    reacting_note,
    with_every_link,
)
from dpaudit.game.game import Game
from dpaudit.game.network.accounting import mu_of
from dpaudit.game.network.gossip import Participation
from dpaudit.game.probing.linearity import nonlinearity
from dpaudit.game.worst_case.layers import in_layers

MOST = 40  # agents, every pair of which is computed

_FINDING = partial(
    da.Finding,
    role=da.Role.WHO_LEARNS_WHAT,
    kind="accounting",
    title="who learns what",
    attack="who-learns-what",
)


class WhoLearnsWhat(da.Attack):
    """mu of a record of each agent to each other agent, by the protocol's own algebra.

    Read over 2 n_agents rounds, or all of a shorter run: what a view reveals about a record of
    round 1 comes almost all within the time that a message needs to cross the network and back.
    """

    per_threat_model: ClassVar[bool] = False  # each agent is the adversary in turn

    # rounds that use the record: the first, all that are read, or [times, every how many rounds]
    participation: Literal["once", "every-round"] | tuple[PositiveInt, PositiveInt] = "once"

    def validate_options(self, n_rounds: int, n_agents: int) -> Iterator[da.InvalidOption]:
        try:
            Participation.of(self.participation, self._rounds(n_rounds, n_agents))
        except da.ConfigError as error:
            yield "participation", str(error).removeprefix("participation: ")

    def _rounds(self, n_rounds: int, n_agents: int) -> int:
        """How many are read."""
        uses = self.participation
        span = 1 if isinstance(uses, str) else 1 + (uses[0] - 1) * uses[1]
        return min(max(2 * n_agents, span), n_rounds)

    def refuse(self, learned: da.LoadedProblem, setting: dp.Setting) -> None:
        if not 2 <= setting.n_agents <= MOST:
            raise da.ConfigError(
                "DPA022",
                f"who-learns-what: {setting.n_agents} agents; expected 2 to {MOST}, every pair of "
                "which is computed",
            )

    def measure(
        self, context: da.AttackContext, threat_model: da.ThreatModel, on_step: da.OnStep
    ) -> list[da.Finding]:
        defense, setting, n_agents = context.defense, context.setting, context.setting.n_agents
        n_rounds = self._rounds(defense.n_rounds, n_agents)
        schema = None
        if self.participation != "once":
            schema = Participation.of(self.participation, n_rounds)
        game = Game.of(defense, setting, setting.holders[0], "add-remove", "poisson")
        nonlinear = nonlinearity(game, da.ThreatModel(name="every link"), n_rounds)
        if nonlinear is not None and not (nonlinear.defined and nonlinear.quiet):
            return [_FINDING(notes=(nonlinear.note,))]
        cells: list[tuple[int, int, float, float]] = []
        noiseless: dict[str, None] = {}  # messages that show a record without noise
        reacts: Reaction | None = None
        for agent in setting.holders:
            learned = learned_by(agent, defense, setting, n_rounds, schema)
            most = learned.mu  # no agent relays more than one that reads every link learns
            if learned.reacts is not None:
                reacts = reacts or learned.reacts
                every = learned_by(agent, defense, setting, n_rounds, schema, every_link=True)
                most = dict.fromkeys(every.mu, inf) if every.reacts else every.mu
            cells += [(agent, victim, mu, most[victim]) for victim, mu in learned.mu.items()]
            noiseless |= dict.fromkeys(learned.noiseless.values())
            on_step(agent + 1, n_agents)
        return [_finding(cells, tuple(noiseless), n_rounds, schema, reacts)]


class AgentLeak(NamedTuple):
    """What one curious agent learns in the rounds it reads."""

    mu: dict[int, float]  # victim -> mu of its record of round 1; infinite: seen without noise
    noiseless: dict[int, str]  # victim -> the message that shows its record without noise
    reacts: Reaction | None  # a gradient that may relay more than that; None: mu is exact


def learned_by(
    agent: int,
    defense: dp.Defense,
    setting: dp.Setting,
    n_rounds: int,
    schema: Participation | None = None,
    every_link: bool = False,
) -> AgentLeak:
    """What an agent learns of every other agent's record, all victims and uses at once.

    Args:
        schema: in which rounds the record is used; None: in round 1 alone.
        every_link: whether it reads all links; mu is then the upper end of its last digits.
    """
    victims = [i for i in setting.holders if i != agent]
    game = in_layers(Game.of(defense, setting, victims[0], "add-remove", "poisson"))
    curious = da.ThreatModel(name=f"agent {agent}", kind="curious", agents=(agent,))
    view = with_every_link(curious) if every_link else curious
    adversary = Adversary(replace(game, sampling_rate=1.0), view, n_rounds)
    classes = [torch.zeros(1).long()] if schema is None else schema.classes(n_rounds)
    uses = torch.cat(classes)
    H, noiseless = leak_by_agent(adversary, victims, uses + 1)
    sizes = [len(rounds) for rounds in classes]
    rows = (H * game.filled).split(sizes, dim=1)
    blocks = [part.split(sizes, dim=2)[i] for i, part in enumerate(rows)]  # one of each class
    found = mu_of(blocks, 1 if schema is None else schema.times)[every_link]
    mu = dict(zip(victims, found.tolist(), strict=True)) | dict.fromkeys(noiseless, inf)
    return AgentLeak(mu, noiseless, adversary.reacts)


def _finding(
    cells: list[tuple[int, int, float, float]],
    noiseless: tuple[str, ...],
    n_rounds: int,
    schema: Participation | None,
    reacts: Reaction | None,
) -> da.Finding:
    adversaries, victims, mus, most = zip(*cells, strict=True)
    used = "in one batch of round 1"
    if schema is not None:
        how = f"{schema.times} times" + f", every {schema.every} rounds" * (schema.times > 1)
        used = f"used {how} from the worst round on, its gradients in the worst directions"
    notes = [
        f"mu of one record {used}, in standard deviations of the noise that hides it, from "
        f"{n_rounds} rounds of all that a curious agent receives and sends",
        "from the defense's own step, probed with unit noise around a run without records",
        "exact: every agent is told all models that gradients are taken at"
        if reacts is None
        else f"{reacting_note(reacts)}: largest {max(most):.3g}",
        *(f'"{message}" shows a record without noise to some agent' for message in noiseless),
    ]
    return _FINDING(
        metrics={
            da.Name.LARGEST_MU: da.Metric(value=max(mus), low=max(mus), high=max(most)),
            da.Name.SMALLEST_MU: da.Metric(value=min(mus)),
            da.Name.PAIRS_WITHOUT_NOISE: da.Metric(value=sum(map(isinf, mus)), n=len(mus)),
        },
        notes=tuple(notes),
        series={
            da.Column.ADVERSARY: adversaries,
            da.Column.VICTIM: victims,
            da.Column.MU: mus,
            da.Column.HIGH: most,
        },
    )
