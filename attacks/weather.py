"""The exact leak as a distribution: over draws of the weather and of who colludes.

A run has one weather, and another run of the same configuration has another. So the leak of a
record is computed under many draws: the median, 95% and the worst of them. The worst of some draws
is no bound, as another draw may reveal more.

A bound over all weathers is stated where ``dpaudit.game.filtering.every_release`` proves one.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import ceil, inf
from typing import Literal, NamedTuple

import torch
from pydantic import NonNegativeInt, PositiveInt

import dpaudit.attack as da
import dpaudit.defense as dp
from dpaudit.game.filtering.adversary import (
    Adversary,
    Reaction,
    leak_by_agent,
    reacting_note,
)
from dpaudit.game.filtering.every_release import every_release
from dpaudit.game.game import Game
from dpaudit.game.network.accounting import mu_of
from dpaudit.game.network.gossip import Participation
from dpaudit.game.probing.linearity import nonlinearity
from dpaudit.game.worst_case.layers import in_layers

ATTEMPTS = 10  # draws for each one that is asked for: some weathers disconnect the graph

_FINDING = partial(
    da.Finding,
    role=da.Role.WEATHER,
    kind="accounting",
    title="leak over weathers",
    attack="weather",
)


class WeatherAttack(da.Attack):
    """mu of a record under many draws of the weather, by the protocol's own algebra.

    With a threat model whose agents are drawn (``drawn``), each draw has other colluders.
    """

    draws: PositiveInt = 100
    n_rounds: PositiveInt | None = None  # the first ones, that are read; None: 2 n_agents, or all
    victim: NonNegativeInt | None = None  # None: in each draw the agent about which most is learned
    # rounds that use the record: the worst one, all that are read, or [times, every how many]
    participation: Literal["once", "every-round"] | tuple[PositiveInt, PositiveInt] = "once"

    def validate_options(self, n_rounds: int, n_agents: int) -> Iterator[da.InvalidOption]:
        yield from da.too_long(self.n_rounds, n_rounds)
        yield from da.missing_agent(self.victim, n_agents)
        try:
            Participation.of(self.participation, self._rounds(n_rounds, n_agents))
        except da.ConfigError as error:
            yield "participation", str(error).removeprefix("participation: ")

    def _rounds(self, n_rounds: int, n_agents: int) -> int:
        """How many are read."""
        return min(n_rounds, self.n_rounds or 2 * n_agents)

    def refuse_too_large(self, context: da.AttackContext, threat_model: da.ThreatModel) -> None:
        if context.setting.network.weather is None and threat_model.drawn is None:
            raise da.ConfigError(
                "DPA052",
                f'weather: nothing differs between draws: [graph] has no weather, and "'
                f'{threat_model.name}" has agents of its own',
                "set loss, delay, churn or stragglers in [graph], or drawn in [[threat_model]]",
            )
        if threat_model.drawn is None and self.victim in threat_model.agents:
            raise da.ConfigError(
                "DPA051",
                f'weather: victim {self.victim} is an agent of "{threat_model.name}"; expected '
                "another agent",
            )

    def measure(
        self, context: da.AttackContext, threat_model: da.ThreatModel, on_step: da.OnStep
    ) -> list[da.Finding]:
        defense, setting = context.defense, context.setting
        n_rounds = self._rounds(defense.n_rounds, setting.n_agents)
        finding = partial(_FINDING, threat_model=threat_model.name)
        game = Game.of(defense, setting, setting.holders[0], "add-remove", "poisson")
        nonlinear = nonlinearity(game, da.ThreatModel(name="every link"), n_rounds)
        if nonlinear is not None and not (nonlinear.defined and nonlinear.quiet):
            return [finding(notes=(nonlinear.note,))]
        schema = Participation.of(self.participation, n_rounds)
        learned: list[WeatherLeak] = []
        left_out = own = 0  # draws that disconnect the graph, and that leave no honest victim
        for setting_i, view in _drawn(context, threat_model):
            if setting_i is None:
                left_out += 1
                if left_out + own > ATTEMPTS * self.draws:
                    break
                continue
            victims = [self.victim] if self.victim is not None else list(setting.holders)
            if honest := [v for v in victims if v not in view.agents]:
                learned.append(learned_by(view, defense, setting_i, n_rounds, schema, honest))
                on_step(len(learned), self.draws)
            else:
                own += 1
            if len(learned) == self.draws or left_out + own > ATTEMPTS * self.draws:
                break
        dropped = []
        if left_out:
            dropped.append(f"{left_out} draws disconnect the graph and are left out")
        if own:
            dropped.append(f"{own} draws in which the victim itself colludes are left out")
        if not learned:
            return [finding(notes=("no draw has a leak", *dropped))]
        bound = bound_of(threat_model, defense, setting, n_rounds, schema, self.victim)
        return [self._finding(finding, learned, bound, n_rounds, schema, dropped)]

    def _finding(
        self,
        finding: "partial[da.Finding]",
        learned: "list[WeatherLeak]",
        bound: "Bound",
        n_rounds: int,
        schema: Participation,
        dropped: list[str],
    ) -> da.Finding:
        mus = sorted(one.mu for one in learned)
        n = len(mus)
        reacts = next((one.reacts for one in learned if one.reacts is not None), None)
        whose = (
            "the agent about which most is learned"
            if self.victim is None
            else f"agent {self.victim}"
        )
        how = (
            "in the worst round"
            if schema.times == 1
            else f"{schema.times} times, every {schema.every} rounds"
        )
        notes = [
            f"mu of one record of {whose}, used {how}, from {n_rounds} rounds, under {n} draws",
            "the worst of the draws is no bound: another weather may reveal more",
            bound.why,
            *([reacting_note(reacts)] if reacts is not None else []),
            *dropped,
        ]
        metrics = {
            da.Name.MEDIAN_MU: da.Metric(value=mus[(n - 1) // 2], n=n),
            da.Name.MU_OF_95: da.Metric(value=mus[ceil(0.95 * n) - 1], n=n),
            da.Name.WORST_MU: da.Metric(value=mus[-1], n=n),
        }
        if bound.mu is not None:
            metrics[da.Name.MU_OF_ANY_WEATHER] = da.Metric(value=bound.mu)
        return finding(
            metrics=metrics,
            notes=tuple(notes),
            series={da.Column.MU: tuple(one.mu for one in learned)},
        )


def _drawn(
    context: da.AttackContext, threat_model: da.ThreatModel
) -> Iterator[tuple[dp.Setting | None, da.ThreatModel]]:
    """Other weathers and other colluders of the same configuration; None: it disconnects."""
    setting, weather = context.setting, context.setting.network.weather
    i = 0
    while True:
        rng = context.streams.numpy("weather", i)
        view = threat_model.with_agents(int(rng.integers(2**62)), setting.n_agents)
        try:
            network = setting.network if weather is None else weather.draw(rng)
            yield replace(setting, network=network), view
        except da.ConfigError as error:
            if error.code != "DPA038":
                raise
            yield None, view
        i += 1


class WeatherLeak(NamedTuple):
    """What one adversary learns under one weather."""

    mu: float  # the largest of the victims; infinite: a message shows it without noise
    reacts: Reaction | None  # a gradient that may relay more than that; None: mu is exact


def learned_by(
    threat_model: da.ThreatModel,
    defense: dp.Defense,
    setting: dp.Setting,
    n_rounds: int,
    schema: Participation,
    victims: list[int],
) -> WeatherLeak:
    """mu of a record of the victim about which most is learned, from the first rounds."""
    adversary = Adversary(_game(defense, setting, victims[0]), threat_model, n_rounds)
    return _learned(adversary, schema, victims)


def _learned(
    adversary: Adversary, schema: Participation, victims: list[int], end: int = 0
) -> WeatherLeak:
    """By the lower end of mu (0), or the upper one (1), which differ in their last digits."""
    rounds = torch.arange(adversary.n_rounds)
    classes = schema.classes(adversary.n_rounds) if schema.times > 1 else [rounds]
    H, noiseless = leak_by_agent(adversary, victims, torch.cat(classes) + 1)
    if noiseless:
        return WeatherLeak(inf, adversary.reacts)
    sizes = [len(rounds) for rounds in classes]
    rows = (H * adversary.game.filled).split(sizes, dim=1)
    blocks = [part.split(sizes, dim=2)[i] for i, part in enumerate(rows)]
    return WeatherLeak(float(mu_of(blocks, schema.times)[end].max()), adversary.reacts)


def _game(defense: dp.Defense, setting: dp.Setting, victim: int) -> Game:
    """About a record that is there for certain, in whichever round it is used."""
    game = in_layers(Game.of(defense, setting, victim, "add-remove", "poisson"))
    return replace(game, sampling_rate=1.0, in_one_round=True)


class Bound(NamedTuple):
    """What no weather exceeds, and why; None: no bound is proven."""

    mu: float | None
    why: str


def bound_of(
    threat_model: da.ThreatModel,
    defense: dp.Defense,
    setting: dp.Setting,
    n_rounds: int,
    schema: Participation,
    victim: int | None = None,
) -> Bound:
    """mu over all weathers, of whichever agent it is largest if no victim is given.

    It is what every release of the run reveals by itself. Where colluders are drawn, any agent may
    be honest in some draw. Who colludes with whom changes nothing then: draws of noise are shared
    by nobody, and each release shows by itself.
    """
    largest = 0.0
    for v in (v for v in setting.holders if victim in (None, v)):
        view = threat_model
        if threat_model.drawn is not None:
            others = [agent for agent in range(setting.n_agents) if agent != v]
            view = view.model_copy(update={"agents": tuple(others[: threat_model.drawn])})
        elif v in threat_model.agents:
            continue
        game = _game(defense, setting, v)
        whole = every_release(game, view, n_rounds, setting.network.calm)
        if isinstance(whole, str):
            return Bound(None, f"no bound over all weathers is proven: {whole}")
        largest = max(largest, _learned(whole, schema, [v], 1).mu)
    return Bound(
        largest,
        "no weather reveals more than the bound: every release by itself, as all links without "
        "weather show it",
    )
