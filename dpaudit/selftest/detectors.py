"""The checks that must find planted privacy bugs, each applied to any defense of the zoo.

A check returns what it found, in a few words, or None. Those of ``EXACT`` raise no false alarm;
those of ``SAMPLED`` raise one on a correct defense with probability ``alpha`` at most.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from dpaudit.accounting.privacy_loss import Array
from dpaudit.accounting.releases import Mechanism, epsilon, false_negative_rate
from dpaudit.attacks.sensitivity.examination import RoundExamination
from dpaudit.attacks.sensitivity.worlds import CoupledWorlds
from dpaudit.conformance.case import N_AGENTS, BrokenPromise, small_problem
from dpaudit.conformance.promises import PROMISES, check_defense
from dpaudit.defense import Graph, Network, Noise, Setting, ThreatModel, releases
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.game import Game
from dpaudit.game.runs.play import LearnedScore, Worlds, play
from dpaudit.game.step_inputs import ChosenNoise
from dpaudit.rng import Streams
from dpaudit.statistics.bounds import clopper_pearson, from_scores
from dpaudit.statistics.noise_tests import white_noise_test
from dpaudit.training.classification import Classification

from .bugs import Specimen
from .correct import PrivateGossip

DELTA = 1e-5  # of claims on Gaussian noise
VICTIM = 1
TRIALS = 4000  # runs of each world
TRAINING = 1000  # further runs of each, from which a score is learned
RELEASED = 100_000  # float32 messages of each world
LARGEST = 10.0  # deviations that a leak counts as, lest accounting cannot resolve its epsilon
ALLOWED = 1 + 1e-6  # times the claim: what is computed exactly may exceed it by rounding
EAVESDROPPER = ThreatModel(name="eavesdropper")


@dataclass(frozen=True)
class ExaminedSpecimen:
    """A specimen on a small problem: 8 agents on a ring with unequal weights."""

    specimen: Specimen
    streams: Streams

    @property
    def defense(self) -> PrivateGossip:
        return self.specimen.defense

    @cached_property
    def problem(self) -> Classification:
        return small_problem(self.defense, self.streams, torch.float64)[0]

    @cached_property
    def setting(self) -> Setting:
        """Agents hold two batches, or one where each number that is sent counts."""
        size = self.defense.batch_size * (1 if self.specimen.sends_floats else 2)
        return Setting(uneven_ring(N_AGENTS), (size,) * N_AGENTS, self.problem.gradients.d)

    @cached_property
    def game(self) -> Game:
        defense, adjacency = self.defense, self.specimen.claimed
        return Game.of(defense, self.setting, VICTIM, adjacency, "poisson")

    @cached_property
    def declared(self) -> Mechanism:
        return self.defense.mechanism(self.setting, EAVESDROPPER, VICTIM).most

    @property
    def delta(self) -> float:
        return DELTA if self.defense.family == "gaussian" else 0.0

    @cached_property
    def claim(self) -> float:
        """The epsilon that is claimed."""
        return epsilon(self.declared, self.delta, self.specimen.accounted).high

    @cached_property
    def adversary(self) -> Adversary:
        return Adversary(self.game, EAVESDROPPER, self.defense.n_rounds)

    @cached_property
    def worlds(self) -> Worlds:
        return self.play("counted", TRIALS)

    def play(self, name: str, trials: int, in_round: int | None = None) -> Worlds:
        return play(self.adversary, trials, self.own(name), in_round)

    def own(self, name: str) -> Streams:
        """The streams of one use."""
        return Streams(self.streams.numpy(name).integers(2**62).item())


def uneven_ring(n_agents: int) -> Network:
    """Weights 1/2 and 1/4 in turn along the ring of an even number of agents, 1/4 for oneself."""
    W, i = torch.eye(n_agents, dtype=torch.float64) / 4, torch.arange(n_agents)
    weights = 0.5 - (i % 2).to(W) / 4
    W[i, (i + 1) % n_agents] = W[(i + 1) % n_agents, i] = weights
    return Network((Graph(W),))


def accounting(examined: ExaminedSpecimen) -> str | None:
    """The claim against the accountant, for the claim's adjacency."""
    spent = epsilon(examined.declared, examined.delta, examined.specimen.claimed).low
    return _above(spent, examined.claim)


def exact_leak(examined: ExaminedSpecimen) -> str | None:
    """The claim against what the messages tell by the protocol's own algebra."""
    leak, game = examined.adversary.leak, examined.game
    if leak.noiseless:
        k, message = next(iter(leak.noiseless.items()))
        return f'"{message}" shows a record of round {k} without noise'
    shifts = leak.by_round if examined.defense.family == "gaussian" else leak.pure
    noise = [game.effect / min(shift, LARGEST) for shift in shifts.tolist() if shift > 0]
    leaked = releases(noise, "poisson", game.sampling_rate, examined.defense.family)
    return _above(epsilon(leaked, examined.delta, examined.specimen.claimed).low, examined.claim)


def sensitivity(examined: ExaminedSpecimen) -> str | None:
    """How far messages move between neighbouring worlds, against the stated bounds."""
    defense, setting = examined.defense, examined.setting
    coupled = CoupledWorlds(defense, examined.problem, setting, examined.streams, VICTIM)
    examination = RoundExamination(coupled, restarts=0, steps=0)
    rows = list(examination.record(coupled.start(), 1, examined.specimen.claimed))
    for row in rows:
        if row.noiseless and row.counts:
            return f'"{row.message}" moves, and no noise makes a difference to it'
        if row.exceeds and row.counts:
            return f'"{row.message}" moves {row.measured / (row.stated or inf):.3g} x its bound'
    return next(iter(examination.found), None)


def contract(examined: ExaminedSpecimen) -> str | None:
    """What every defense must keep to."""
    defense = examined.defense
    for promise in PROMISES:
        if promise != "mechanism":  # other checks hold it against more
            try:
                check_defense(type(defense).model_validate(defense.model_dump()), promise)
            except BrokenPromise as broken:
                return str(broken).partition(": ")[2]
    return None


def likelihood_ratio(examined: ExaminedSpecimen, alpha: float) -> str | None:
    """Runs with and without the record, against the claim and the declared mechanism."""
    worlds = examined.worlds
    scores = worlds.without.scores, worlds.with_record.scores
    return _refuted(examined, scores, alpha, examined.claim, examined.declared)


def learned_score(examined: ExaminedSpecimen, alpha: float) -> str | None:
    """The same for a record of round 1 alone, by a score that is learned from other runs."""
    if not examined.worlds.without.features.shape[1]:
        return None
    score = LearnedScore(examined.play("training", TRAINING, in_round=1))
    counted = examined.play("round 1", TRIALS, in_round=1)
    scores = score(counted.without), score(counted.with_record)
    first = (examined.declared[0].model_copy(update={"count": 1}),)
    claim = epsilon(first, examined.delta, examined.specimen.accounted).high
    return _refuted(examined, scores, alpha, claim, first)


def noise_statistics(examined: ExaminedSpecimen, alpha: float) -> str | None:
    """Innovations of runs, and the noise of messages in units of the stated one, are N(0, I)."""
    samples = list(_noise_of_messages(examined))
    features = examined.worlds.without.features
    bare = examined.defense.family == "gaussian" and not examined.game.is_replacement
    if bare and features.shape[1]:
        samples.append(("innovations of runs", features))
    for what, sample in samples:
        test, p = white_noise_test(sample)
        if p < alpha / len(samples):
            return f"{what}: {test}, p {'below 1e-300' if p < 1e-300 else f'= {p:.1g}'}"
    return None


def floating_point(examined: ExaminedSpecimen, alpha: float) -> str | None:
    """Likelihood ratios of the float32 numbers that are sent, as they are, against the claim."""
    game, trials = examined.game, RELEASED
    present = torch.arange(2 * trials) >= trials

    def sent(noise: Noise, drawn: Tensor) -> Tensor:
        state = game.start(len(drawn), torch.float32, torch.device("cpu"))
        graph = game.setting.network.at(1)
        round = game.defense.step(state, 1, graph, game.gradient(drawn.float()), noise)
        return round.sent["x"].payload[:, VICTIM, 0]

    message = sent(Noise(examined.own("floats"), 1), present)
    without, with_record = sent(ChosenNoise(), torch.tensor([0, 1]))
    ratio = ((message - without).abs() - (message - with_record).abs()).double().numpy()
    rng = examined.streams.numpy("floats, halves")
    bound = from_scores(ratio[:trials], ratio[trials:], 0.0, alpha, rng, decimals=None)
    return _above(bound.value, examined.claim)


def _noise_of_messages(examined: ExaminedSpecimen) -> Iterator[tuple[str, Array]]:
    """By message: its noise made normal, columns for agents and rounds, then for coordinates."""
    defense, setting = examined.defense, examined.setting
    coupled = CoupledWorlds(defense, examined.problem, setting, examined.own("noise"), VICTIM)
    state = coupled.start()
    noises: dict[str, list[Array]] = {name: [] for name in defense.noise_scales()}
    for k in range(1, defense.n_rounds + 1):
        oracle = coupled.oracle(k)
        noisy, silent = (coupled.play(state, k, oracle, silent=s) for s in (False, True))
        for name, scale in defense.noise_scales().items():
            difference = noisy.sent[name].payload - silent.sent[name].payload
            noises[name].append(_normal(difference.numpy() / scale, defense.family))
        state = noisy.state
    for name, rounds in noises.items():
        Z = np.concatenate(rounds)  # [rounds * rows, d]
        yield f'noise of "{name}" by round and sender', Z.T
        yield f'noise of "{name}" by coordinate', Z


def _normal(noise: Array, family: str) -> Array:
    """Noise of scale 1 of this family to N(0, 1)."""
    if family == "gaussian":
        return noise
    return -np.sign(noise) * ndtri(np.exp(-np.abs(noise)) / 2)


def _refuted(
    examined: ExaminedSpecimen,
    scores: tuple[Array, Array],
    alpha: float,
    claim: float,
    declared: Mechanism,
) -> str | None:
    """One pair of bounds on error rates, held against the claim and the declared mechanism."""
    bound = from_scores(*scores, examined.delta, alpha, examined.streams.numpy("halves"))
    fpr, fnr = (
        float(clopper_pearson(count, n, alpha / 2))
        for count, n in ((bound.fp, bound.n0), (bound.fn, bound.n1))
    )
    least = float(false_negative_rate(declared, fpr, examined.specimen.accounted))
    if fnr < least:
        return f"{fnr:.1%} missed with {fpr:.1%} false alarms; at least {least:.1%} claimed"
    return _above(bound.value, claim)


def _above(found: float, claim: float) -> str | None:
    return f"epsilon at least {found:.3g}, claimed {claim:.3g}" if found > claim * ALLOWED else None


EXACT: Mapping[str, Callable[[ExaminedSpecimen], str | None]] = {
    "accounting": accounting,
    "exact leak": exact_leak,
    "sensitivity": sensitivity,
    "contract": contract,
}
SAMPLED: Mapping[str, Callable[[ExaminedSpecimen, float], str | None]] = {
    "likelihood ratio": likelihood_ratio,
    "learned score": learned_score,
    "noise statistics": noise_statistics,
    "floating point": floating_point,
}
