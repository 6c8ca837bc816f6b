"""Who learns what: how much each agent learns of each other agent's record.

Mixing spreads a record's effect over the network, and noise with it: an agent far away learns less
than a neighbour. For each ordered pair of a curious agent and a victim this is the mu of one record
of the victim that is used in round 1 alone, read over many rounds from all that the curious agent
receives and sends, its own noise known. It is exact where gradients do not react to what the
curious agent is not told, as in averaging; in training it is a lower end, and the mu of who reads
every link the upper one (``dpaudit.game.reacting``).
"""

from collections.abc import Iterator
from dataclasses import replace
from math import inf, isinf
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from dpaudit.attack.contract import Attack, Bench
from dpaudit.defense.contract import Defense, Setting
from dpaudit.errors import ConfigError
from dpaudit.files.finding import Column, Finding, Metric, Name, Role
from dpaudit.files.threat import ThreatModel
from dpaudit.game.adversary import Adversary
from dpaudit.game.follow import Follower, Innovation
from dpaudit.game.game import CanaryGradient, Game
from dpaudit.game.linearity import nonlinearity
from dpaudit.game.needs import GameShape
from dpaudit.game.probe import NOISELESS
from dpaudit.game.reacting import Reaction, reacting_note, with_every_link
from dpaudit.game.states import flat_state
from dpaudit.game.tape import Tape
from dpaudit.progress import OnStep
from dpaudit.training.loaded_problem import LoadedProblem

MOST = 40  # agents, every pair of which is computed


class WhoLearnsWhat(Attack):
    """mu of a record of each agent to each other agent, by the protocol's own algebra.

    Read over 2 n_agents rounds, or all of a shorter run: what a view tells about a record of
    round 1 comes almost all within the time that a message needs to cross the network and back.
    """

    per_threat_model: ClassVar[bool] = False  # each agent is the adversary in turn

    def refuse(self, learned: LoadedProblem, setting: Setting) -> None:
        if not 2 <= setting.n_agents <= MOST:
            raise ConfigError(
                f"who-learns-what: {setting.n_agents} agents; expected 2 to {MOST}, every pair of "
                "which is computed"
            )

    def memory(self, bench: Bench, threat_model: ThreatModel) -> int:
        """One adversary at a time, the agent with the most links at most."""
        game = Game.of(bench.defense, bench.setting, 0, "add-remove", "poisson")
        n_rounds = min(2 * bench.setting.n_agents, bench.defense.n_rounds)
        return GameShape.of(game, ThreatModel(name="every link")).adversary(n_rounds)

    def measure(self, bench: Bench, threat_model: ThreatModel, on_step: OnStep) -> list[Finding]:
        defense, n_agents = bench.defense, bench.setting.n_agents
        n_rounds = min(2 * n_agents, defense.n_rounds)
        first = bench.setting.holders[0]
        game = Game.of(defense, bench.setting, first, "add-remove", "poisson")
        nonlinear = nonlinearity(game, ThreatModel(name="every link"), n_rounds)
        if nonlinear is not None and not (nonlinear.defined and nonlinear.quiet):
            return [_no_figures(nonlinear.note)]
        cells: list[tuple[int, int, float, float]] = []
        unhidden: dict[str, None] = {}  # messages that show a record without noise
        reacts: Reaction | None = None
        for agent in bench.setting.holders:
            learned = learned_by(agent, defense, bench.setting, n_rounds)
            most = learned.mu
            if learned.reacts is not None:
                reacts = reacts or learned.reacts
                most = at_most(agent, defense, bench.setting, n_rounds)
            cells += [(agent, victim, mu, most[victim]) for victim, mu in learned.mu.items()]
            unhidden |= dict.fromkeys(learned.unhidden.values())
            on_step(agent + 1, n_agents)
        return [_finding(cells, tuple(unhidden), n_rounds, reacts)]


class Learned(NamedTuple):
    """What one curious agent learns in the rounds it reads."""

    mu: dict[int, float]  # by victim: of its record of round 1; infinite: seen without noise
    unhidden: dict[int, str]  # victim -> the message that shows its record without noise
    reacts: Reaction | None  # a gradient that may relay more than that; None: mu is exact


def at_most(agent: int, defense: Defense, setting: Setting, n_rounds: int) -> dict[int, float]:
    """mu by victim to the agent if it read every link: no agent relays more than that."""
    learned = learned_by(agent, defense, setting, n_rounds, every_link=True)
    return dict.fromkeys(learned.mu, inf) if learned.reacts else learned.mu


def learned_by(
    agent: int, defense: Defense, setting: Setting, n_rounds: int, every_link: bool = False
) -> Learned:
    """What an agent learns of every other agent's record of round 1, all victims at once.

    How the adversary filters the messages depends on the noise alone. So the filter is found once,
    and what each victim's record changes is sent through it.
    """
    victims = [i for i in setting.holders if i != agent]
    game = Game.of(defense, setting, victims[0], "add-remove", "poisson")
    curious = ThreatModel(name=f"agent {agent}", kind="curious", agents=(agent,))
    view = with_every_link(curious) if every_link else curious
    adversary = Adversary(replace(game, sampling_rate=1.0), view, n_rounds)
    squares = torch.zeros(len(victims), dtype=torch.float64)
    unhidden: dict[int, str] = {}
    for innovation, bare in _innovations(adversary, torch.tensor(victims)):
        squares += innovation.whitened.square().sum(dim=1)
        for i in bare.any(dim=1).nonzero().flatten().tolist():
            squares[i] = torch.inf
            shown = innovation.reading.messages[int(bare[i].int().argmax())][0]
            unhidden.setdefault(victims[i], shown)
    mu = dict(zip(victims, squares.sqrt().tolist(), strict=True))
    return Learned(mu, unhidden, adversary.reacts)


def _innovations(adversary: Adversary, victims: Tensor) -> Iterator[tuple[Innovation, Tensor]]:
    """Of each round without any noise, and what was seen bare [n_victims, n_observations].

    Trial i has victim i's record in round 1. Nothing else is random, so what the adversary cannot
    foretell is that record alone.
    """
    game, n = adversary.game, len(victims)
    state = game.start(n, torch.float64, torch.device("cpu"))
    follower = Follower(adversary, state)
    batch_size = game.gradient(torch.zeros(1)).batch_size
    scale = torch.zeros(n, 1, dtype=torch.float64)  # of each record's effect
    for k in range(1, adversary.n_rounds + 1):
        drawn = torch.full((n,), float(k == 1), dtype=torch.float64)
        gradient, tape = CanaryGradient(victims, game.length, drawn, batch_size), Tape()
        state, sent, *_ = game.defense.step(state, k, game.setting.network.at(k), gradient, tape)
        own = {m: torch.zeros(d.shape, dtype=torch.float64) for m, d in tape.draws.items()}
        innovation = follower.hear(k, sent, own)
        if k == 1:
            hidden = flat_state(state) - follower.believed
            moved = torch.cat([innovation.raw, hidden], dim=1)
            scale = moved.abs().amax(dim=1, keepdim=True)
        U = innovation.reading.whiten
        U = U / torch.linalg.vector_norm(U, dim=0)
        bare = innovation.raw - innovation.raw @ U @ U.mT
        yield innovation, bare.abs() > NOISELESS * scale


def _no_figures(note: str) -> Finding:
    return Finding(
        role=Role.WHO_LEARNS_WHAT,
        kind="accounting",
        title="who learns what",
        attack="who-learns-what",
        notes=(note,),
    )


def _finding(
    cells: list[tuple[int, int, float, float]],
    unhidden: tuple[str, ...],
    n_rounds: int,
    reacts: Reaction | None,
) -> Finding:
    adversaries, victims, mus, most = zip(*cells, strict=True)
    notes = [
        "mu of one record in one batch of round 1, in standard deviations of the noise that hides "
        f"it, from {n_rounds} rounds of all that a curious agent receives and sends",
        "from the defense's own step, probed with unit noise around a run without records",
        "exact: every agent is told all models that gradients are taken at"
        if reacts is None
        else f"{reacting_note(reacts)}: largest {max(most):.3g}",
        *(f'"{message}" shows a record without noise to some agent' for message in unhidden),
    ]
    return Finding(
        role=Role.WHO_LEARNS_WHAT,
        kind="accounting",
        title="who learns what",
        attack="who-learns-what",
        metrics={
            Name.LARGEST_MU: Metric(value=max(mus), low=max(mus), high=max(most)),
            Name.SMALLEST_MU: Metric(value=min(mus)),
            Name.PAIRS_WITHOUT_NOISE: Metric(value=sum(map(isinf, mus)), n=len(mus)),
        },
        notes=tuple(notes),
        series={
            Column.ADVERSARY: adversaries,
            Column.VICTIM: victims,
            Column.MU: mus,
            Column.HIGH: most,
        },
    )
