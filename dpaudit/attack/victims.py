"""Whom an adversary attacks, and what it derives about them from its view alone.

Either by an observable, algebra that the defense writes down as its paper's attackers do; or by the
best linear estimate from all messages of the rounds around the attacked one (``view``); or from all
rounds so far, if gradients hardly change in them (``unmixed``), which reaches agents far away.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from dpaudit.defense.contract import Defense, Observable, ObservedGradient, Setting, Target
from dpaudit.defense.transcript import Transcript
from dpaudit.defense.view import View
from dpaudit.errors import NotObservable
from dpaudit.files.threat import ThreatModel
from dpaudit.game.estimating.estimate import GradientEstimate, Window
from dpaudit.game.estimating.unmixing import Mixture
from dpaudit.rng import Streams
from dpaudit.training.run_directory import RunDirectory

from .observed import Reconstruct

Join = Literal["nothing", "links", "rounds"]  # over which gradients of a batch are joined
VIEW, UNMIXED = "view", "unmixed"  # in the place of an observable's name
BEFORE, AFTER = 1, 1  # rounds of the window beside the attacked one
TOLD = 0.5  # of a gradient's variance: a victim of which the view tells less is out of reach


@dataclass(frozen=True)
class Scenario:
    """One attack by one adversary on one world at one batch size.

    One batched optimisation of all rounds whose clip norm is the same.
    """

    attack_index: int
    attack_name: str
    reconstruct: Reconstruct
    message: str
    rounds: tuple[int, ...]  # in order
    n_targets: int  # in each round
    threat_model: ThreatModel
    world: str  # "defense" or "no-defense"
    batch_size: int
    is_probe: bool  # whether the batch size is another than the one of training
    join: Join = "nothing"  # over which gradients of a victim are known to be of one batch

    @property
    def name(self) -> str:
        what = f"{self.attack_index:02d}-{self.message}-{self.threat_model.slug}"
        return f"{what}-batch-{self.batch_size}-{self.world}"


class ObservedTargets(NamedTuple):
    """The targets that a view sufficed for, and what the adversary derived about them."""

    targets: list[Target]
    derived: list[ObservedGradient]
    stds: list[float | None]  # of the noise in each coordinate of a gradient; None: not known
    refusals: list[str]  # why a target was out of reach


def window_of(message: str, k: int, n_rounds: int, is_probe: bool) -> range:
    """The rounds that an estimate of round k reads.

    A round that is played once more for another batch size is followed by none.
    """
    if message == UNMIXED:
        return range(1, k + 1)
    return range(max(1, k - BEFORE), min(n_rounds, k + AFTER * (not is_probe)) + 1)


def told_of(
    defense: Defense,
    setting: Setting,
    view: View,
    rounds: range,
    k: int,
    victims: Iterable[int],
    most: int,
) -> tuple[dict[int, list[GradientEstimate]], list[str]]:
    """By victim, its gradients of round k that a window tells, the most certain first.

    Of the first victims of which it tells any, at most so many. And of each victim before that it
    tells none of: why.
    """
    told: dict[int, list[GradientEstimate]] = {}
    refusals = []
    try:
        window = Window(defense, setting, view.threat_model, rounds)
    except NotObservable as reason:
        return told, [str(reason)]
    for victim in victims:
        try:
            estimates = window.estimates(view, k, victim)
            _refuse_part(len(estimates[0].gradient), setting.d)
            told[victim] = estimates
            if len(told) == most:
                break
        except NotObservable as reason:
            refusals.append(str(reason))
    return told, refusals


def _refuse_part(known: int, d: int) -> None:
    """Raises NotObservable unless a gradient has all coordinates, at a model with all of its."""
    if known < d:
        raise NotObservable(
            "DPA054",
            f"only {known} of {d} parameters are sent: what stays with the agent is part of the "
            "model at which the gradient was taken",
        )


def derived_targets(
    scenario: Scenario,
    defense: Defense,
    setting: Setting,
    streams: Streams,
    run: RunDirectory,
    initial: Tensor,
) -> ObservedTargets:
    """Everything derived from views alone: no truth is reachable from here.

    Args:
        initial: the model [d] that all agents start from, which is public.
    """
    if scenario.message in (VIEW, UNMIXED):
        return _estimated(scenario, defense, setting, streams, run, initial)
    observable = defense.observables[scenario.message]
    transcript = run.transcript(scenario.world, streams.device)
    targets, derived, refusals = [], [], []
    for k in scenario.rounds:
        rounds = {k + offset for offsets in observable.needs.values() for offset in offsets}
        view = _view(scenario, transcript, run, k, rounds, streams.device)
        for target in _targets(scenario, observable, view, setting, streams, k):
            try:
                derived.append(observable.derive(defense, view, setting, target))
                targets.append(target)
            except NotObservable as reason:
                refusals.append(str(reason))
        if not view.edges(observable.links, k):
            refusals.append(f'{scenario.threat_model.name} reads no link with "{observable.links}"')
    return ObservedTargets(targets, derived, [None] * len(targets), refusals)


def _estimated(
    scenario: Scenario,
    defense: Defense,
    setting: Setting,
    streams: Streams,
    run: RunDirectory,
    initial: Tensor,
) -> ObservedTargets:
    """From all messages around each round: different victims first, then their other gradients."""
    transcript, reader = run.transcript(scenario.world, streams.device), scenario.threat_model
    victims = [
        j
        for j in _order(scenario, setting, streams)
        if j not in reader.agents
        and (scenario.join != "rounds" or setting.sizes[j] == scenario.batch_size)
    ]
    found: list[_Estimated] = []
    refusals: list[str] = []
    for k in scenario.rounds:
        rounds = window_of(scenario.message, k, defense.n_rounds, scenario.is_probe)
        view = _view(scenario, transcript, run, k, set(rounds), streams.device)
        try:
            if scenario.message == VIEW:
                asked = victims, scenario.n_targets
                told, refused = _of_window(defense, setting, view, rounds, k, *asked)
            else:
                told, refused = _of_mixture(defense, setting, view, rounds, initial, victims)
        except NotObservable as reason:
            told, refused = [], [str(reason)]
        found += _attacked(scenario, told)
        refusals += refused
    return ObservedTargets(
        [one.target for one in found],
        [one.derived for one in found],
        [one.std for one in found],
        refusals,
    )


class _Estimated(NamedTuple):
    target: Target
    derived: ObservedGradient
    std: float | None


def _attacked(scenario: Scenario, told: list[_Estimated]) -> list[_Estimated]:
    """The first gradients; if joined, all gradients of the first victims."""
    if scenario.join == "nothing":
        return told[: scenario.n_targets]
    victims = list(dict.fromkeys(one.target.victim for one in told))[: scenario.n_targets]
    return [one for one in told if one.target.victim in victims]


def _of_window(
    defense: Defense,
    setting: Setting,
    view: View,
    rounds: range,
    k: int,
    victims: list[int],
    most: int,
) -> tuple[list[_Estimated], list[str]]:
    told, refusals = told_of(defense, setting, view, rounds, k, victims, most)
    turns: dict[int, list[_Estimated]] = defaultdict(list)
    for victim, estimates in told.items():
        for turn, one in enumerate(estimates):
            target = Target(k, victim, one.input.point)
            turns[turn].append(
                _Estimated(target, ObservedGradient(one.gradient, one.model), one.std)
            )
    return [one for turn in sorted(turns) for one in turns[turn]], refusals


def _of_mixture(
    defense: Defense,
    setting: Setting,
    view: View,
    rounds: range,
    initial: Tensor,
    victims: list[int],
) -> tuple[list[_Estimated], list[str]]:
    told = Mixture(defense, setting, view.threat_model, len(rounds)).unmixed(view, initial)
    found, refusals = [], []
    for victim in victims:
        share = float(told.shares[victim])
        if share < TOLD:
            refusals.append(f"{share:.0%} of the gradient of agent {victim} is told")
            continue
        derived = ObservedGradient(told.gradients[victim].to(initial), initial)
        target = Target(len(rounds), victim, victim)
        found.append(_Estimated(target, derived, float(told.stds[victim])))
    return found, refusals


def _order(scenario: Scenario, setting: Setting, streams: Streams) -> list[int]:
    """Of victims, the same for every attack of a threat model, so that scores compare."""
    rng = streams.numpy("targets", scenario.threat_model.name)
    order = [int(agent) for agent in rng.permutation(setting.n_agents).argsort()]
    return [agent for agent in order if agent in setting.holders]


def _view(
    scenario: Scenario,
    transcript: Transcript,
    run: RunDirectory,
    k: int,
    rounds: set[int],
    device: torch.device,
) -> View:
    """What the adversary holds of these rounds, and of no other round."""
    if scenario.is_probe:
        probe = run.read_messages(scenario.world, k, scenario.batch_size, device)
        transcript = transcript.with_round(k, probe)
    return View.of(scenario.threat_model, transcript, rounds)


def _targets(
    scenario: Scenario,
    observable: Observable,
    view: View,
    setting: Setting,
    streams: Streams,
    k: int,
) -> list[Target]:
    """Different victims first; then further links of the same victims, where those tell more."""
    rank = {agent: place for place, agent in enumerate(_order(scenario, setting, streams))}
    links = [
        (victim, receiver)
        for victim, receiver in view.edges(observable.links, k)
        if victim in rank and victim not in scenario.threat_model.agents
    ]
    links.sort(key=lambda link: (rank[link[0]], rank[link[1]]))
    chosen: list[tuple[int, int, int]] = []  # how many of this victim before, victim, receiver
    for victim, receiver in links:
        chosen.append((sum(v == victim for _, v, _ in chosen), victim, receiver))
    if not observable.differs_by_link:
        chosen = [link for link in chosen if link[0] == 0]
    chosen.sort(key=lambda link: (link[0], rank[link[1]]))
    return [Target(k, victim, receiver) for _, victim, receiver in chosen[: scenario.n_targets]]
