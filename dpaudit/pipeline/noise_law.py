"""Whether what a step makes of its noise has the declared law, where it is not linear in it.

A linear step adds what ``Noise`` draws. Any other may choose among draws, clip them or make noise
of another law. Two questions are asked of the messages of a round that is played many times:

1. Do they have the declared law, at any location and scale? Then accounting stands on its premise.
2. Do runs with one record in the batch reveal more of it than the declared releases allow? Any test
   of any step may not, so that this alone refutes the declaration. A law that hides as much or
   more, as noise of a random larger scale, is not accused.

A message that has another law and does not reveal more, as one that is rounded or of which signs
are sent, leaves the premise unconfirmed, which the verdict says.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from dpaudit.accounting.privacy_loss import Array, NoiseFamily
from dpaudit.accounting.releases import Mechanism, RecordAdjacency
from dpaudit.defense.contract import Defense, Setting
from dpaudit.files.claim import Adjacency
from dpaudit.files.finding import Finding, Metric, Name, Role
from dpaudit.files.threat import ThreatModel
from dpaudit.files.verdict import Verdict
from dpaudit.game.game import Game
from dpaudit.game.probing.linearity import nonlinearity
from dpaudit.game.runs.noise_law import (
    SENDERS,
    NoisyRow,
    RepeatedRound,
    declared_of_a_round,
    has_randomness_of_its_own,
    rounds_played,
    wide_game,
)
from dpaudit.rng import Streams
from dpaudit.statistics.bounds import (
    family_from_scores,
    noise_factor_bound,
    noise_p_value,
    with_noise_times,
)
from dpaudit.statistics.noise_tests import law_p_value, score_of_edges, scores_of_a_shift
from dpaudit.training.partial_inputs import global_randomness

from .jobs import Prepared, reason_not_examined

DIFFERENT = 1e-6  # p-value, of all tests of one question together
PROBED = 50  # rounds, at most, in which it is seen whether a step is linear
MOST_RECORDS = 16  # records that are compared with their opposites
DELTA = 1e-5  # delta of an epsilon that is not used
DOUBT = 0.01  # level of the bound by which a score and its threshold are chosen
EVERYBODY = ThreatModel(name="every link")
TITLE = "law of the noise"
NO_NOISE = "any message (none that is read carries noise)"


class LawTest(NamedTuple):
    """One message of one round."""

    place: NoisyRow
    round: int
    p: float  # p-value that its law is the declared one
    what: str  # differs most from it, as a clause


class RecordTest(NamedTuple):
    """What runs with and without a record show in one message."""

    p: float  # p-value that its noise hides as much as declared
    counts: tuple[int, int, int, int]  # false positives and negatives, and of how many
    declared: Mechanism
    records: int  # records compared with their opposites; 0: one with none
    adjacency: RecordAdjacency
    tested: LawTest


def examine_law(prepared: Prepared, adversaries: tuple[ThreatModel, ...]) -> Finding | None:
    """The law of the noise of messages that are not linear in it; None: all are.

    Args:
        adversaries: adversaries; what none of them reads is not looked at.
    """
    defense, setting = prepared.defense, prepared.setting
    seed = prepared.streams.numpy("law of the noise").integers(2**62).item()
    try:
        with global_randomness(0):
            return law_of_the_noise(defense, setting, adversaries, Streams(seed))
    except Exception as error:
        return _finding([], [], (f"any message ({reason_not_examined(error)})",))


def law_of_the_noise(
    defense: Defense, setting: Setting, adversaries: tuple[ThreatModel, ...], streams: Streams
) -> Finding | None:
    """The same of a calibrated defense."""
    adjacency: Adjacency = "add-remove" if defense.function_distance() is None else "function"
    game = Game.of(defense, setting, setting.holders[0], adjacency)
    nonlinear = nonlinearity(game, EVERYBODY, min(defense.n_rounds, PROBED))
    if nonlinear is None and not has_randomness_of_its_own(game):
        return None
    if nonlinear is not None and nonlinear.quiet:  # it is Gaussian where no record is
        return None
    tests, record_tests = list[LawTest](), list[RecordTest]()
    for k in rounds_played(defense.n_rounds, streams):
        round = RepeatedRound(wide_game(game), k, nonlinear, adversaries, streams)
        found = list(_tests(round, game, streams))
        tests += [test for test, _ in found]
        record_tests += [one for _, one in found if one is not None]
    return _finding(tests, record_tests, () if tests else (NO_NOISE,))


def _tests(
    round: RepeatedRound, game: Game, streams: Streams
) -> Iterator[tuple[LawTest, RecordTest | None]]:
    """Tests of the sender, for each message, whose noise differs most from the declared law."""
    declared = declared_of_a_round(game, EVERYBODY)
    families = {r.family for r in declared} if declared else round.families
    family: NoiseFamily = "laplace" if families == {"laplace"} else "gaussian"
    rng = streams.numpy("reference", round.round)
    samples = round.sample(round.plays // 2, "law", round.places)
    every = [
        LawTest(place, round.round, *_law(sample, family, rng))
        for place, sample in zip(round.places, samples, strict=True)
    ]
    for name in dict.fromkeys(place.message for place in round.places):
        own = [i for i, place in enumerate(round.places) if place.message == name]
        worst = min(own, key=lambda i: every[i].p)
        yield every[worst], _record_test(round, game, every[worst], samples[worst])


def _law(sample: Array, family: NoiseFamily, rng: Generator) -> tuple[float, str]:
    if not np.isfinite(sample).all():
        return 0.0, "some numbers are not finite without a record"
    p, what = law_p_value(sample, family, rng)
    return p, f"{what} has another law"


def _record_test(
    round: RepeatedRound, game: Game, tested: LawTest, silent: Array
) -> RecordTest | None:
    """What the best of some scores, fitted and chosen in other runs, reveals of a record."""
    place = tested.place
    declared = declared_of_a_round(replace(game, victim=place.sender), EVERYBODY)
    holds = game.setting.sizes[place.sender] > 0
    if declared is None or not holds or not np.isfinite(silent).all():
        return None
    times = _records(declared, game, place.sender)
    adjacency: RecordAdjacency = "replace-one" if times else "add-remove"
    drawn = (-float(times), float(times)) if times else (0.0, 1.0)
    declared = with_noise_times(declared, 1 / max(1, times))
    n = round.plays if tested.p < DIFFERENT else round.plays // 4

    def worlds(name: str, n: int) -> tuple[Array, Array]:
        one, other = (
            round.sample(n, f"{name} {there:g} of {place.message}", [place], place.sender, there)[0]
            for there in drawn
        )
        return one, other

    fitting, choosing, counted = (
        worlds("fitting", n // 4),
        worlds("choosing", n // 4),
        worlds("counted", n),
    )
    if not all(np.isfinite(some).all() for pair in (fitting, choosing, counted) for some in pair):
        return None
    mean = silent.mean(axis=0)
    shifts = fitting[0].mean(axis=0) - mean, fitting[1].mean(axis=0) - mean
    best, found = -1.0, None
    for score in (*scores_of_a_shift(silent, shifts), score_of_edges(silent, shifts)):
        chosen = score(choosing[0]), score(choosing[1])
        value = family_from_scores(*chosen, DOUBT, chosen).value
        if value > best:
            best = value
            found = family_from_scores(score(counted[0]), score(counted[1]), DOUBT, chosen)
    assert found is not None
    counts = found.fp, found.fn, found.n0, found.n1
    return RecordTest(
        noise_p_value(*counts, declared, adjacency), counts, declared, times, adjacency, tested
    )


def _records(declared: Mechanism, game: Game, victim: int) -> int:
    """How many equal records are held against as many opposite ones; 0: one against none.

    Step by step, one record more or less is what the declaration is about. So by group privacy m
    records and m opposite ones are as far apart as Gaussian releases with 1 / m of the noise, which
    is exact for these; noise that is not as declared shows most where that is about mu = 2.
    """
    if any(release.family != "gaussian" for release in declared):
        return 0
    mu = sqrt(sum(release.count / release.noise_multiplier**2 for release in declared))
    held, fixed = game.setting.sizes[victim], game.sampling == "fixed"
    most = min(MOST_RECORDS, game.defense.batch_size if fixed else held)
    return min(most, max(1, round(1 / mu)))


def _finding(
    tests: list[LawTest], record_tests: list[RecordTest], missed: tuple[str, ...]
) -> Finding:
    """``record_tests`` decide; what differs and decides nothing is left unconfirmed."""
    worst = min(record_tests, key=lambda one: one.p, default=None)
    p = 1.0 if worst is None else min(1.0, len(record_tests) * worst.p)
    differs = worst is not None and p < DIFFERENT
    metrics, notes = {}, list[str]()
    if worst is not None:
        alpha = DIFFERENT / len(record_tests)
        bound = noise_factor_bound(*worst.counts, DELTA, alpha, worst.declared, worst.adjacency)
        n0, n1 = worst.counts[2:]
        without = "with opposite records in the batch" if worst.records else "without a record"
        some = f"{worst.records} equal records" if worst.records > 1 else "a record"
        metrics = {
            Name.P_VALUE: Metric(value=p, n=n0 + n1),
            Name.NOISE_FACTOR: Metric(value=bound.noise_factor),
        }
        notes.append(
            f"{n0} plays of a round {without}, and {n1} with {some} in it; no test tells them "
            "apart better than as many declared releases as there are for each round"
        )
    other = [test for test in tests if SENDERS * len(tests) * test.p < DIFFERENT]
    unconfirmed = (
        *missed,
        *(f'"{test.place.message}" in round {test.round}, where {test.what}' for test in other),
    )
    notes.append(
        f"{len(tests)} messages that are not linear in their noise were held against the declared "
        f"law, at any location and scale; {len(other)} have another one"
    )
    shown = worst.tested if differs and worst is not None else None
    return Finding(
        role=Role.NOISE,
        kind="control",
        title=TITLE,
        message=None if shown is None else shown.place.message,
        rounds=() if shown is None else (shown.round,),
        world="defense",
        metrics=metrics,
        verdict=Verdict.UNSUPPORTED if differs else None,
        notes=tuple(notes),
        unconfirmed=() if differs else unconfirmed,
    )
