"""Noise beyond what is declared: does a defense hide enough without some of its draws?

A step that is affine in its noise and the record sends S + A z + B w of independent draws z and w.
Whoever knows w learns no less than whoever does not, and what is sent is then S + A z up to a shift
that does not depend on the data. So S + A z + B w tells of a record no more than S + A z does,
whatever w is: the same in all rounds, in all agents, or in all coordinates. A test of independent
noise accuses w all the same. Here are the defenses that leave draws out, each drawn as 0, and hide
a record as well as it is declared. Where such noise is independent, the further draws take nothing
from it.

Draws are told apart by name, because different names have independent streams in all rounds.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import combinations, zip_longest
from math import hypot
from typing import Any

import torch
from torch import Tensor

from dpaudit.accounting.releases import Mechanism, Release
from dpaudit.defense.contract import Defense, Gradient, Round, Setting
from dpaudit.defense.noise import Noise, Scale
from dpaudit.errors import is_out_of_memory
from dpaudit.files.claim import Adjacency
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.adversary import SPARSE_FROM, Adversary
from dpaudit.game.filtering.gradient_reaction import with_every_link
from dpaudit.game.game import Game
from dpaudit.game.probing.chosen_noise import ChosenNoise
from dpaudit.game.probing.linearity import nonlinearity
from dpaudit.game.probing.wrapped_defense import WrappedDefense
from dpaudit.game.worst_case.layers import in_layers
from dpaudit.graphs.graph import Graph

from .noise_law import has_randomness_of_its_own

ROUNDING = 1e-6  # relative: a leak this much above the declared one is no larger
ROUNDS = 200  # that are followed at most of one agent's record
ROUNDS_OF_ALL = 300  # that are followed about of the records of all others together
FIRST = 10  # that are followed at least of each of these
FEW = 4  # names, of which every set is left out; of more, single ones
MANY = 16  # of which single ones are


class _Silenced(Noise):
    """Mixed into another source of noise: draws of some names are 0."""

    silenced: frozenset[str] = frozenset()

    def gaussian(self, message: str, std: Scale, like: Tensor) -> Tensor:
        if message in self.silenced:
            return torch.zeros_like(like)
        return super().gaussian(message, std, like)

    def laplace(self, message: str, scale: Scale, like: Tensor) -> Tensor:
        if message in self.silenced:
            return torch.zeros_like(like)
        return super().laplace(message, scale, like)


def silenced(noise: Noise, names: frozenset[str]) -> Noise:
    """The same source of noise without draws of these names.

    It is of the class of ``noise`` and shares its attributes, so that a step may copy it and seed
    the copy for another round, and what it notes is noted in ``noise``.
    """
    kind = type(noise)
    made: type[Noise] = type(kind.__name__, (_Silenced, kind), {"silenced": names})
    other = object.__new__(made)
    other.__dict__ = noise.__dict__
    return other


class WithoutDraws(WrappedDefense):
    """Another defense whose draws of these names are 0."""

    names: frozenset[str]

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        return self.of.step(state, k, graph, gradient, silenced(noise, self.names))

    @property
    def note(self) -> str:
        """Why a test of the noise is of this defense, for people."""
        draws = ", ".join(f'"{name}"' for name in sorted(self.names))
        return (
            f"without the draws {draws} the noise is as it should be and hides what is declared; "
            "further independent noise hides no less"
        )


def hiding_without(
    defense: Defense, setting: Setting, adversaries: Iterable[ThreatModel], n_rounds: int
) -> Iterator[WithoutDraws]:
    """The defense without some of its draws, wherever it hides a record as well as is declared.

    Nothing where a step is not affine in its noise and the record, or has other randomness.

    Args:
        defense: calibrated.
        setting: of the real model.
        adversaries: the adversaries from whom a record is hidden.
        n_rounds: how many of the first rounds are followed, up to ``ROUNDS``.
    """
    adversaries, n_rounds = tuple(adversaries), min(n_rounds, ROUNDS, defense.n_rounds)
    try:
        games = list(_games(defense, setting))
        asked = _asked(games[0], n_rounds)
        if len(asked) < 2 or has_randomness_of_its_own(games[0]):
            return
        if any(
            nonlinearity(games[0], threat_model, n_rounds) is not None
            for threat_model in adversaries
        ):
            return
        others = min(n_rounds, max(FIRST, ROUNDS_OF_ALL // len(games)))
        followed = [(game, others if i else n_rounds) for i, game in enumerate(games)]
        for names in _sets(asked):
            fewer = WithoutDraws.playing(defense, names=names)
            if all(
                _hides(*each, fewer, threat_model)
                for threat_model in adversaries
                for each in followed
            ):
                yield fewer
    except Exception as error:  # whatever a step raises without these draws
        if is_out_of_memory(error):
            raise


def _games(defense: Defense, setting: Setting) -> Iterator[Game]:
    """About a record of every agent that holds some; of many agents, of ``SPARSE_FROM`` of them."""
    adjacency: Adjacency = "user" if defense.protects == "user" else "add-remove"
    if defense.function_distance() is not None:
        adjacency = "function"
    holders = setting.holders[:: -(-len(setting.holders) // SPARSE_FROM)]
    first = in_layers(Game.of(defense, setting, holders[0], adjacency))
    for victim in holders:
        yield replace(Game.of(defense, setting, victim, adjacency), filled=first.filled)


def _asked(game: Game, n_rounds: int) -> frozenset[str]:
    """Names of the draws that the first rounds ask for."""
    names = set[str]()
    state: Any = game.start(1)
    for k in range(1, n_rounds + 1):
        noise = ChosenNoise()
        state = game.step(state, k, game.silent(), noise).state
        names |= noise.draws.keys()
    return frozenset(names)


def _sets(names: frozenset[str]) -> Iterator[frozenset[str]]:
    """Sets of names, but all of them; names that differ in a number alone also as one."""
    stems: dict[str, set[str]] = {}
    for name in sorted(names):
        stems.setdefault(re.sub(r"\d+", "", name), set()).add(name)
    found: dict[frozenset[str], None] = {}
    for parts in ([{name} for name in sorted(names)], list(stems.values())):
        most = len(parts) - 1 if len(parts) <= FEW else int(len(parts) <= MANY)
        for n in range(1, most + 1):
            found |= dict.fromkeys(frozenset().union(*some) for some in combinations(parts, n))
    yield from sorted(found, key=len)


def _hides(game: Game, n_rounds: int, fewer: WithoutDraws, threat_model: ThreatModel) -> bool:
    """Whether it leaks in each use of a record no more than the defense declares."""
    if game.victim in threat_model.agents:
        return True
    declared = game.defense.mechanism(game.setting, threat_model, game.victim).most
    if game.held is not None or any(release.noise_multiplier == 0 for release in declared):
        return False
    silent = replace(game, defense=fewer)
    adversary = Adversary(silent, threat_model, n_rounds)
    if adversary.reacts is not None:  # reading every link reveals no less
        adversary = Adversary(silent, with_every_link(threat_model), n_rounds)
    leak = adversary.leak
    if leak.noiseless or not leak.is_proven or adversary.reacts is not None:
        return False
    leaked = leak.mechanism(game, None, high=True)
    if not leaked:
        return True  # nothing of the record reaches this view
    if {_kind(r) for r in leaked} != {_kind(r) for r in declared}:
        return False
    ours, theirs = _losses(leaked), _losses(declared)
    if not game.is_lasting:
        return all(x <= y * (1 + ROUNDING) for x, y in zip_longest(ours, theirs, fillvalue=0.0))
    share = n_rounds / game.defense.n_rounds
    if leaked[0].family == "laplace":
        one = sum(ours) / game.displacement  # a loss of Laplace noise is of all that a draw moves
        return one <= share * sum(theirs) * (1 + ROUNDING)
    return hypot(*ours) <= share**0.5 * hypot(*theirs) * (1 + ROUNDING)


def _kind(release: Release) -> tuple[str, float]:
    return release.family, round(release.sampling_rate, 12)


def _losses(mechanism: Mechanism) -> list[float]:
    """By how much of its noise one record moves each release, from the largest on.

    Any change of data moves what is clipped as a whole by twice as much at most.
    """
    each = [
        ((0.5 if r.clipped == "whole" else 1.0) / r.noise_multiplier, r.count) for r in mechanism
    ]
    return sorted((loss for loss, count in each for _ in range(count)), reverse=True)
