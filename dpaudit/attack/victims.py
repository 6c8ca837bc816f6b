"""Whom an adversary attacks, and what it derives about them from its view alone.

Either by an observable, algebra that the defense writes down as its paper's attackers do; or by the
best linear estimate from all messages of the rounds around the attacked one (``view``); or from all
rounds so far, if gradients hardly change in them (``unmixed``), which reaches agents far away.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor

import dpaudit.defense as dp
from dpaudit.errors import ConfigError, NotObservable
from dpaudit.files.threat import ThreatModel
from dpaudit.game.estimating import estimate, window
from dpaudit.game.estimating.estimate import GradientEstimate, LinearWindow, Mixture
from dpaudit.game.estimating.window import WindowShape
from dpaudit.rng import Streams
from dpaudit.training.run_directory import RunDirectory

from .contract import AttackContext
from .observed import Reconstruct

Join = Literal["nothing", "links", "rounds"]  # over which gradients of a batch are joined
VIEW, UNMIXED = "view", "unmixed"  # instead of an observable's name
BEFORE, AFTER = 1, 1  # rounds of the window beside the attacked one
REVEALED = 0.5  # least share of a gradient's variance that a view must reveal of a victim


@dataclass(frozen=True)
class Scenario:
    """One attack by one adversary on one world at one batch size.

    One batched optimisation of all rounds whose clip norm is the same.
    """

    attack_index: int
    attack_name: str
    reconstruct: Reconstruct
    message: str
    rounds: tuple[int, ...]  # ascending
    n_targets: int  # targets per round
    threat_model: ThreatModel
    world: str  # "defense" or "no-defense"
    batch_size: int  # records of all local steps together
    is_probe: bool  # whether the batch size is another than the one of training
    join: Join = "nothing"  # over which gradients of a victim are known to be of one batch
    n_steps: int = 1  # local steps, each on a part of the batch

    @property
    def step_size(self) -> int:
        """Records of one local step."""
        return self.batch_size // self.n_steps

    @property
    def name(self) -> str:
        message = self.message.replace(", ", "-").replace(" ", "-")
        what = f"{self.attack_index:02d}-{message}-{self.threat_model.slug}"
        return f"{what}-batch-{self.batch_size}-{self.world}"


class TargetGradient(NamedTuple):
    """A target that a view sufficed for, and what the adversary derived about it."""

    target: dp.Target
    derived: dp.ObservedGradient
    std: float | None = None  # standard deviation of the noise per coordinate; None: unknown
    local: dp.LocalSimulation | None = None  # how the gradient was made; None: in one step


def window_of(message: str, k: int, n_rounds: int, is_probe: bool) -> range:
    """The rounds that an estimate of round k reads.

    A round that is played once more for another batch size is followed by none.
    """
    if message == UNMIXED:
        return range(1, k + 1)
    return range(max(1, k - BEFORE), min(n_rounds, k + AFTER * (not is_probe)) + 1)


def gradients_of_window(
    defense: dp.Defense,
    setting: dp.Setting,
    view: dp.View,
    rounds: range,
    k: int,
    victims: Iterable[int],
    most: int,
) -> tuple[dict[int, list[GradientEstimate]], list[str]]:
    """By victim, its gradients of round k that a window reveals, the most certain first.

    Of the first victims of which it reveals any, at most so many. And of each victim before that
    it reveals none of: why.
    """
    found: dict[int, list[GradientEstimate]] = {}
    refusals = []
    try:
        window = LinearWindow(defense, setting, view.threat_model, rounds)
    except NotObservable as reason:
        return found, [str(reason)]
    for victim in victims:
        try:
            estimates = window.estimates(view, k, victim)
            if (known := len(estimates[0].gradient)) < setting.d:
                raise NotObservable(
                    "DPA053",
                    f"only {known} of {setting.d} parameters are sent: what stays with the agent "
                    "is part of the model at which the gradient was taken",
                )
            found[victim] = estimates
            if len(found) == most:
                break
        except NotObservable as reason:
            refusals.append(str(reason))
    return found, refusals


def derived_targets(
    scenario: Scenario,
    defense: dp.Defense,
    setting: dp.Setting,
    streams: Streams,
    run: RunDirectory,
    initial: Tensor,
) -> tuple[list[TargetGradient], list[str]]:
    """Everything derived from views alone, and why targets were out of reach.

    No truth is reachable from here.

    Args:
        initial: the model [d] that all agents start from, which is public.
    """
    adversary, message = scenario.threat_model, scenario.message
    transcript = run.transcript(scenario.world, streams.device)
    rng = streams.numpy("targets", adversary.name)  # alike for all attacks, so that scores compare
    order = [int(j) for j in rng.permutation(setting.n_agents).argsort() if j in setting.holders]
    victims = [
        j
        for j in order
        if j not in adversary.agents
        and (scenario.join != "rounds" or setting.sizes[j] == scenario.batch_size)
    ]
    found: list[TargetGradient] = []
    refusals: list[str] = []
    for k in scenario.rounds:
        if message in (VIEW, UNMIXED):
            window = window_of(message, k, defense.n_rounds, scenario.is_probe)
            rounds = set(window)
        else:
            needs = defense.observables[message].needs.values()
            rounds = {k + offset for offsets in needs for offset in offsets}
        read = transcript
        if scenario.is_probe:
            probe = run.read_messages(scenario.world, k, scenario.step_size, streams.device)
            read = transcript.with_round(k, probe)
        view = dp.View.of(adversary, read, rounds)
        asked = scenario, defense, setting, view, k
        try:
            if message == VIEW:
                here, refused = _of_window(*asked, window, victims)
            elif message == UNMIXED:
                here, refused = _of_mixture(*asked, initial, victims)
        except NotObservable as reason:
            here, refused = [], [str(reason)]
        if message not in (VIEW, UNMIXED):
            here, refused = _of_observable(*asked, order)
        found += here
        refusals += refused
    return found, refusals


def _of_window(
    scenario: Scenario,
    defense: dp.Defense,
    setting: dp.Setting,
    view: dp.View,
    k: int,
    rounds: range,
    victims: list[int],
) -> tuple[list[TargetGradient], list[str]]:
    """Different victims first, then their other gradients; if joined, all of the first victims."""
    most = scenario.n_targets
    revealed, refusals = gradients_of_window(defense, setting, view, rounds, k, victims, most)
    turns: dict[int, list[TargetGradient]] = defaultdict(list)
    for victim, estimates in revealed.items():
        for turn, one in enumerate(estimates):
            target = dp.Target(k, victim, one.input.point)
            derived = dp.ObservedGradient(one.gradient, one.model)
            turns[turn].append(TargetGradient(target, derived, one.std))
    found = [one for turn in sorted(turns) for one in turns[turn]]
    return found if scenario.join != "nothing" else found[:most], refusals


def _of_mixture(
    scenario: Scenario,
    defense: dp.Defense,
    setting: dp.Setting,
    view: dp.View,
    k: int,
    initial: Tensor,
    victims: list[int],
) -> tuple[list[TargetGradient], list[str]]:
    mixture = Mixture(defense, setting, view.threat_model, k).unmixed(view, initial)
    found, refusals = [], []
    for victim in victims:
        share = float(mixture.shares[victim])
        if share < REVEALED:
            refusals.append(f"{share:.0%} of the gradient of agent {victim} is told")
            continue
        derived = dp.ObservedGradient(mixture.gradients[victim].to(initial), initial)
        std = float(mixture.stds[victim])
        found.append(TargetGradient(dp.Target(k, victim, victim), derived, std))
    return found[: scenario.n_targets], refusals


def _of_observable(
    scenario: Scenario,
    defense: dp.Defense,
    setting: dp.Setting,
    view: dp.View,
    k: int,
    order: list[int],
) -> tuple[list[TargetGradient], list[str]]:
    """Different victims first; then further links of the same victims, where those reveal more."""
    observable = defense.observables[scenario.message]
    local, std = None, None
    if observable.local is not None:
        defense = defense.model_copy(update={"batch_size": scenario.step_size})
        local = observable.local(defense, setting, k)
        std = local.std
    found, refusals = list[TargetGradient](), list[str]()
    rank = {agent: place for place, agent in enumerate(order)}
    edges = view.edges(observable.links, k)
    links = [(j, i) for j, i in edges if j in rank and j not in scenario.threat_model.agents]
    idle = {i for _, i in links if i not in rank}  # receivers without records come last
    rank |= {agent: len(order) + place for place, agent in enumerate(sorted(idle))}
    links.sort(key=lambda link: (rank[link[0]], rank[link[1]]))
    chosen: list[tuple[int, int, int]] = []  # how many of this victim before, victim, receiver
    for victim, receiver in links:
        chosen.append((sum(v == victim for _, v, _ in chosen), victim, receiver))
    if not observable.differs_by_link:
        chosen = [link for link in chosen if link[0] == 0]
    chosen.sort(key=lambda link: (link[0], rank[link[1]]))
    for _, victim, receiver in chosen[: scenario.n_targets]:
        target = dp.Target(k, victim, receiver)
        try:
            derived = observable.derive(defense, view, setting, target)
            found.append(TargetGradient(target, derived, std, local))
        except NotObservable as reason:
            refusals.append(str(reason))
    if not edges:
        refusals.append(f'{scenario.threat_model.name} reads no link with "{observable.links}"')
    return found, refusals


def refuse_many_unknowns(
    context: AttackContext,
    threat_model: ThreatModel,
    rounds: Sequence[int],
    others: Collection[str] = (),
) -> None:
    """Refuse an estimate with too many unknowns, for the attacked round with the most links.

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
        return
    named = ", ".join(f'"{name}"' for name in sorted(others))
    instead = f", or message = {named}" if named else ""
    raise ConfigError(
        "DPA022",
        f"attack {context.name}: the estimate of gradients of round {k} from the whole view "
        f"has {unknowns:,} unknowns with n_agents = {n}; expected {most:,} at most, about "
        f"n_agents = {max(2, n * most // unknowns)} with as many links each{instead}",
    )


def refuse_many_noises(context: AttackContext, rounds: Sequence[int]) -> None:
    """Raises ConfigError: so many rounds draw more noise than un-mixing takes."""
    last, most = max(rounds), estimate.MOST_DRAWS
    draws = len(estimate.draws_of(context.defense, context.setting, last))
    if draws > most:
        raise ConfigError(
            "DPA022",
            f"attack {context.name}: rounds: the first {last} rounds draw {draws:,} noises with "
            f"n_agents = {context.setting.n_agents}; expected {most:,} at most, of about "
            f"{last * most // draws} rounds",
        )
