"""What a defense declares about itself: options, noise, mechanism, sensitivities, observables."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, get_args

import torch

from dpaudit.accounting.releases import Mechanism, epsilon
from dpaudit.defense.contract import Round, Target
from dpaudit.defense.transcript import Transcript, kind_of
from dpaudit.defense.view import View
from dpaudit.files.claim import Adjacency
from dpaudit.files.threat import ThreatModel

from .case import N_AGENTS, ROUNDS, Case, CheckedGradient, listed, require, same_rounds, shape

DELTA = 1e-5  # at which mechanisms are compared

EAVESDROPPER = ThreatModel(name="eavesdropper")
ADVERSARIES = (
    EAVESDROPPER,
    ThreatModel(name="neighbour", kind="curious", agents=(1,)),
    ThreatModel(name="stranger", kind="curious", agents=(4,)),
    ThreatModel(name="neighbours", kind="colluding", agents=(1, N_AGENTS - 1)),
)


def options(case: Case) -> None:
    """Its options survive a file, and its class says what it is."""
    kind = type(case.given)
    again = kind.model_validate(case.given.model_dump(mode="json"))
    require(again == case.given, f"options written and read again differ: {again!r}")
    for name in ("paper", "claims"):
        require(bool(getattr(kind, name, "")), f"the class variable {name} is missing or empty")
    require(bool(kind.messages), "the class variable messages names no message")


def calibration(case: Case) -> None:
    """Calibrating what is calibrated changes nothing."""
    again = case.defense.calibrate(case.setting)
    require(again == case.defense, f"a second calibrate gives {again!r}, not {case.defense!r}")


def mechanism(case: Case) -> None:
    """Its lower end is below its upper one; who reads nothing learns nothing."""
    known: dict[Mechanism, Any] = {}
    for adversary in ADVERSARIES:
        bracket = case.defense.mechanism(case.setting, adversary, case.victim)
        for end in (tuple(bracket.least), tuple(bracket.most)):
            known.setdefault(end, epsilon(end, DELTA))
        least, most = known[tuple(bracket.least)].low, known[tuple(bracket.most)].high
        require(
            least <= most * (1 + 1e-9),
            f"{adversary.name}: least has epsilon {least:.6g}, most only {most:.6g}",
        )
    beyond = case.setting.n_agents  # no agent has this number
    deaf = ThreatModel(name="deaf", links=((beyond, beyond + 1),))
    least = case.defense.mechanism(case.setting, deaf, case.victim).least
    require(not least, f"least counts {len(least)} releases to an adversary who reads no link")


def twin(case: Case) -> None:
    """Its twin without noise is the same whatever the noise, and declares none."""
    twin = case.defense.without_noise()
    require(twin.without_noise() == twin, "a second without_noise changes the options")
    one, two = (case.play(twin, noise_seed=seed) for seed in range(2))
    same_rounds(twin, one, two, "depends on noise after without_noise")
    for release in twin.mechanism(case.setting, EAVESDROPPER, case.victim).most:
        declared = release.noise_multiplier
        require(declared == 0, f"without_noise declares a noise multiplier of {declared:g}, not 0")


def observables(case: Case) -> None:
    """Every observable can be derived from a view of just the messages it needs."""
    rounds = case.play()
    for name, observable in case.defense.observables.items():
        k = min(ROUNDS[-1], 1 - min(o for needs in observable.needs.values() for o in needs) + 1)
        needs = observable.needs.items()
        view = _view(rounds, {r: {kind for kind, at in needs if r - k in at} for r in ROUNDS})
        found = [
            observable.derive(case.defense, view, case.setting, Target(k, case.victim, receiver))
            for sender, receiver in view.edges(observable.links, k)
            if sender == case.victim
        ]
        require(bool(found), f'{name}: no link of agent {case.victim} carries "{observable.links}"')
        for value in (value for derived in found for value in derived):
            right = value.shape == (case.setting.d,) and bool(value.isfinite().all())
            require(right, f"{name}: derived {shape(value)}, expected finite [{case.setting.d}]")
        differ = any(not torch.equal(found[0].gradient, other.gradient) for other in found)
        require(
            differ == observable.differs_by_link or len(found) < 2,
            f"{name}: differs_by_link is {observable.differs_by_link}, but gradients on the links "
            f"of one victim {'differ' if differ else 'are equal'}",
        )


def _view(rounds: Sequence[Round], kinds: Mapping[int, Collection[str]]) -> View:
    """All links, with the messages of some kinds in each round."""
    seen = {
        k: {name: sent for name, sent in rounds[k - 1].sent.items() if kind_of(name) in of_round}
        for k, of_round in kinds.items()
    }
    return View.of(EAVESDROPPER, Transcript(seen), set(seen))


def combinations(case: Case) -> None:
    """Every combination can be derived from a view of all rounds of its messages."""
    rounds, k = case.play(), 2
    for name, combination in case.defense.combinations.items():
        kinds = frozenset(combination.messages)
        view = _view(rounds, dict.fromkeys(range(1, k + combination.delay + 1), kinds))
        receiver = next(i for j, i in view.edges(combination.messages[0], k) if j == case.victim)
        value = combination.derive(
            case.defense, view, case.setting, Target(k, case.victim, receiver)
        )
        right = value.ndim == 2 and value.shape[-1] == case.setting.d
        require(right, f"{name}: derived {shape(value)}, expected [rows, {case.setting.d}]")
        require(bool(value.isfinite().all()), f"{name}: derived values are not finite")


def private(case: Case) -> None:
    """The private quantities it names are those of its rounds, [n_agents, ...]."""
    named = set(type(case.defense).private)
    for round in case.play():
        found = set(round.private)
        require(found <= named, f"its rounds hold {listed(found - named)}, which private names not")
        require(named <= found, f"private names {listed(named - found)}, which no round holds")
        for name, value in round.private.items():
            right = value.ndim == 2 and len(value) == N_AGENTS
            require(right, f"{name} is {shape(value)}, expected [{N_AGENTS}, ...]")


def sensitivity(case: Case) -> None:
    """The sensitivities it states are of messages that it sends, and not negative."""
    for k, round in enumerate(case.play(), start=1):
        for adjacency in get_args(Adjacency):
            stated = case.defense.sensitivity(k, case.setting, adjacency, case.victim, round.sent)
            unsent = set(stated) - set(round.sent)
            require(not unsent, f"it states one of {listed(unsent)}, never sent in round {k}")
            for name, bound in stated.items():
                fine = bound.norm in (1, 2) and bound.value >= 0
                require(fine, f"{name} in round {k}, {adjacency}: {bound} bounds nothing")


def clip_norms(case: Case) -> None:
    """The clip norm that it states of a round is the one it clips to."""
    gradients = {k: CheckedGradient(case.gradient(k)) for k in ROUNDS}
    for k, _, _ in case.rounds(gradient=gradients.__getitem__):
        stated = case.defense.clip_norm_in(k)
        for asked in gradients[k].norms:
            require(asked == stated, f"round {k} clips to {asked:g}, clip_norm_in says {stated}")
