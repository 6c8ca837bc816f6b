"""What measured leaks of a program add up to, by closed forms of Gaussian and Laplace noise."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, sqrt
from types import SimpleNamespace
from typing import Any

import pytest

from dpaudit.accounting import gaussian_epsilon
from dpaudit.accounting.releases import epsilon
from dpaudit.capture.composition import (
    NOISELESS,
    SLACK,
    Ends,
    Least,
    VictimLeaks,
    _high,
    _size,
    least,
    measured_accounting,
    released,
)
from dpaudit.capture.record_shift import RoundLeak
from dpaudit.capture.runs import MessageId
from dpaudit.capture.sampling import Sampling
from dpaudit.capture.unnamed_noise import UnnamedNoise
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Finding, Name
from dpaudit.files.threat import ThreatModel
from dpaudit.files.verdict import Verdict

DELTA = 1e-5
SPY = ThreatModel(name="spy")
KNOWN = Sampling("none", 1.0, "unknown")
PAIRS, TWO = (("absent", "present"), ("absent", "scaled")), ("present", "scaled")
SHOWN = MessageId(0, (1,), "x", 1)


@dataclass
class Round:
    """What stands for the worlds of a round: the record of each victim, and what each pair leaks."""

    records: Mapping[int, str]
    leaks: Mapping[int, tuple[RoundLeak, RoundLeak]]
    apart: RoundLeak = RoundLeak(0.0, 0.0)  # what two records in one place leak

    @property
    def places(self) -> dict[int, Any]:
        return {v: SimpleNamespace(digest=digest) for v, digest in self.records.items()}

    def pairs(self, adjacency: str) -> list[tuple[str, str]]:
        return [TWO] if self.apart.mu and adjacency == "replace-one" else list(PAIRS)

    def leak(self, victim: int, model: ThreatModel, pair: tuple[str, str]) -> RoundLeak:
        if pair == TWO:
            return self.apart
        return self.leaks.get(victim, (RoundLeak(0.0, 0.0),) * 2)[PAIRS.index(pair)]

    def worst(self, victim: int, model: ThreatModel, adjacency: str) -> Any:
        return max(
            ((p, self.leak(victim, model, p)) for p in self.pairs(adjacency)),
            key=lambda one: one[1].size,
        )


def of_record(digest: str, mu: float, other: float = 0.0, victim: int = 0, **more: Any) -> Round:
    leaks = RoundLeak(other, 0.0), RoundLeak(mu, 0.0, **more)
    return Round({victim: digest}, {victim: leaks})


def accounted(*rounds: Round, **more: Any) -> Finding:
    """The finding of what rounds leak."""
    finding, figure = both_of(*rounds, **more)
    assert finding.metrics[Name.EPSILON].low == figure.epsilon.low or more.get("ends")
    return finding


def figure_of(*rounds: Round, **more: Any) -> Any:
    return both_of(*rounds, **more)[1]


def both_of(
    *rounds: Round,
    sampling: Sampling = KNOWN,
    model: ThreatModel = SPY,
    ends: Any = None,
    drawn: int = 0,
    left_behind: bool = False,
    otherwise: str = "",
    **claim: Any,
) -> tuple[Finding, Any]:
    """What rounds leak; so many numbers are drawn before ``SHOWN`` that nobody named as noise."""
    hows = ("absent", "present", "scaled")
    victims = tuple(v for v in (0, 1) if any(v in one.records for one in rounds))
    record = SimpleNamespace(victims=victims, hows=lambda: hows)
    draw = SimpleNamespace(
        operator="rand",
        shape=(drawn,),
        call_site="a.py:1",
        process=0,
        sequence=5,
        purpose=None,
        parameters=(),
    )
    plain = SimpleNamespace(
        span=lambda agent, k: (-1, 9),
        taken=[SimpleNamespace(agent=SHOWN.source, process=0, sequence=1)],
        all_draws=[draw],
        messages={SHOWN: [0.0] * 3},
        as_bytes=frozenset(),
    )
    worlds: Any = SimpleNamespace(
        unmeasured={},
        otherwise=otherwise,
        config=SimpleNamespace(record=record, noise=SimpleNamespace(sites=())),
        plain=plain,
        sampling=sampling,
        rounds=dict(enumerate(rounds, start=2)),
        left_behind={SHOWN: "left"} if left_behind else {},
    )
    worlds.unnamed = UnnamedNoise(plain, (), worlds.left_behind)  # type: ignore[arg-type]
    given = Claim.model_validate({"text": "c", "epsilon": 50.0, "delta": DELTA, **claim})
    return measured_accounting(worlds, 0, given, model, ends or Ends())


def test_half_counts_of_two_records_where_dropout_changes() -> None:
    """Where one record less changes the dropout of all others, the runs without it say nothing."""
    one = Round({0: "a"}, {0: (RoundLeak(9.0, 0.0),) * 2}, RoundLeak(3.0, 0.0))
    line = {"otherwise": "train.py:5 draws other numbers"}
    found = accounted(one, one, **line)
    assert found.metrics[Name.EPSILON].low == low_of(1.5 * sqrt(2))
    assert accounted(one, scope="round", **line).metrics[Name.EPSILON].low == low_of(1.5)
    [note] = [note for note in found.notes if "train.py:5 draws other numbers" in note]
    assert note.endswith(
        "two records in one place were compared, and half of what they differ by counts"
    )
    replaced = accounted(one, scope="round", adjacency="replace-one", **line)
    assert replaced.metrics[Name.EPSILON].low == pytest.approx(
        epsilon([released("gaussian", 3.0)], DELTA, "replace-one").low
    )
    assert accounted(one, scope="round").metrics[Name.EPSILON].low == low_of(9.0)


def low_of(mu: float) -> Any:
    return pytest.approx(gaussian_epsilon(DELTA, mu / (1 + SLACK)), rel=1e-9) if mu else 0.0


@pytest.mark.parametrize(
    "rounds, claim, mu, of_rounds",
    [
        ((of_record("r", 3.0), of_record("r", 4.0)), {}, 5.0, 5.0),
        ((of_record("r", 3.0), of_record("s", 4.0)), {}, 4.0, 4.0),
        ((of_record("", 3.0), of_record("", 4.0)), {}, 4.0, 4.0),  # of records that are not known
        ((of_record("r", 3.0), of_record("r", 4.0)), {"scope": "round"}, 4.0, 5.0),
        ((of_record("r", 3.0, 4.5), of_record("r", 4.0)), {"scope": "round"}, 4.5, 5.0),
        ((of_record("r", 3.0, 4.5), of_record("r", 4.0)), {}, 5.0, 5.0),  # one pair in all rounds
        ((of_record("r", 3.0), of_record("r", 4.0, upper=True)), {}, 3.0, 3.0),
        ((of_record("r", 3.0), of_record("r", 4.0, victim=1)), {}, 4.0, 4.0),
        ((of_record("r", 0.0), of_record("r", 0.0)), {}, 0.0, 0.0),
    ],
)
def test_rounds_of_one_record_add_up(rounds, claim, mu: float, of_rounds: float) -> None:
    found = accounted(*rounds, **claim)
    assert found.metrics[Name.EPSILON].low == low_of(mu)
    assert found.metrics[Name.EPSILON].high == inf
    assert found.metrics[Name.MU_OF_MEASURED_ROUNDS].value == pytest.approx(of_rounds)
    assert (found.verdict, found.rounds) == (None, (2, 3))


def test_the_finding_is_of_the_victim_that_leaks_most() -> None:
    rounds = of_record("r", 3.0), of_record("s", 4.0, victim=1)
    found = accounted(*rounds, epsilon=20.0)
    assert found.notes[0].startswith(
        "agent 1; in round 3 the record absent and scaled differ most, of 3"
    )
    assert found.notes[1] == "1 rounds were measured, and others are not counted"
    assert found.notes[2].startswith("agent 1 takes no batch or sends nothing in rounds 2, which")
    assert found.series["mu"] == (0.0, 4.0)
    assert found.metrics[Name.LARGEST_MU_OF_A_ROUND].value == 4.0
    held = ThreatModel(name="agent 1", kind="curious", agents=(1,))
    other = accounted(*rounds, model=held)
    assert other.notes[0].startswith("agent 0; in round 2 ")
    assert other.metrics[Name.EPSILON].low == low_of(3.0)


@pytest.mark.parametrize("above", [False, True])
def test_what_exceeds_the_claim_is_unsupported(above: bool) -> None:
    epsilon = gaussian_epsilon(DELTA, 3 / (1 + SLACK))
    found = accounted(of_record("r", 3.0), epsilon=epsilon * (0.999 if above else 1.001))
    assert found.verdict is (Verdict.UNSUPPORTED if above else None)


def test_a_record_that_no_noise_hides_has_no_end() -> None:
    found = accounted(of_record("r", 3.0), of_record("r", inf, noiseless=SHOWN))
    assert (found.metrics[Name.EPSILON].low, found.message) == (inf, str(SHOWN))
    assert f"{SHOWN} moves with the record, and no noise that was named hides it" in found.notes
    upper = accounted(of_record("r", 3.0), of_record("r", inf, noiseless=SHOWN, upper=True))
    assert (upper.metrics[Name.EPSILON].low, upper.message) == (low_of(3.0), None)
    assert any(note.startswith("rounds 3 count nothing: ") for note in upper.notes)


def test_as_many_unnamed_numbers_may_hide_a_message() -> None:
    rounds = of_record("r", 3.0), of_record("r", inf, noiseless=SHOWN)
    fewer, enough = (accounted(*rounds, drawn=n) for n in (2, 3))
    assert (fewer.metrics[Name.EPSILON].low, fewer.message) == (inf, str(SHOWN))
    assert (enough.metrics[Name.EPSILON].low, enough.message) == (low_of(3.0), None)
    assert any("may be hidden by noise that was not named: a.py:1" in n for n in enough.notes)
    left = accounted(*rounds, left_behind=True)
    assert (left.metrics[Name.EPSILON].low, left.message) == (low_of(3.0), None)
    assert any("may be hidden by noise that was not named: left" in n for n in left.notes)


def test_batches_that_are_drawn_count_by_their_rate() -> None:
    """By chance no record is in both; the best of each is one Poisson sample."""
    drawn, unknown = Sampling("poisson", 0.25, "random"), Sampling(None, 1.0, "random")
    rounds = of_record("r", 3.0), of_record("s", 4.0)
    sampled = [released("gaussian", mu, rate=0.25) for mu in (3.0, 4.0)]
    found = accounted(*rounds, sampling=drawn)
    assert found.metrics[Name.EPSILON].low == max(
        least([one], DELTA, "add-remove").epsilon for one in sampled
    )
    assert accounted(*rounds, sampling=unknown).metrics[Name.EPSILON].low == 0.0


def test_an_alignment_gives_an_upper_end() -> None:
    most = (released("gaussian", 3.5, slack=0.0),)
    found = accounted(of_record("r", 3.0), ends=Ends(most, most, notes=("aligned",)))
    assert found.metrics[Name.EPSILON].high == pytest.approx(gaussian_epsilon(DELTA, 3.5))
    assert found.metrics[Name.EPSILON].low == low_of(3.0)
    assert (found.releases["most"], found.notes[0]) == (most, "aligned")
    less = accounted(of_record("r", 4.0), ends=Ends(most, most))
    assert less.metrics[Name.EPSILON].low == less.metrics[Name.EPSILON].high  # no more than that
    more = accounted(of_record("r", 3.0), ends=Ends(least=Least(20.0, most), message="y"))
    assert (more.metrics[Name.EPSILON].low, more.message) == (20.0, "y")
    assert more.releases["least"] == most


def test_gaussian_noise_has_no_epsilon_at_delta_0() -> None:
    most = (released("gaussian", 3.5),)
    found = accounted(of_record("r", 3.0), ends=Ends(most, most), delta=0.0)
    assert (found.metrics[Name.EPSILON].low, found.metrics[Name.EPSILON].high) == (inf, inf)
    laplace = Round({0: "r"}, {0: (RoundLeak(0.0, 2.0, laplace=(1.0, 0.5)), RoundLeak(0.0, 1.0))})
    pure = accounted(laplace, delta=0.0)
    assert pure.metrics[Name.EPSILON].low == pytest.approx(2.0 / (1 + SLACK))


def test_a_release_is_a_thousandth_in_favour_of_a_program() -> None:
    one = released("gaussian", 2.0)
    assert one.noise_multiplier == pytest.approx(1.001 / 2)
    assert (one.sampling, one.sampling_rate, one.clipped) == ("none", 1.0, "whole")
    other = released("laplace", 4.0, 0.5, "records", slack=0.0)
    assert (other.noise_multiplier, other.family, other.clipped) == (0.25, "laplace", "records")
    assert (other.sampling, other.sampling_rate) == ("poisson", 0.5)
    [silent] = NOISELESS.releases or ()
    assert (NOISELESS.epsilon, silent.noise_multiplier, silent.family) == (inf, 0.0, "gaussian")
    assert Ends() == (None, None, Least(0.0, ()), None, ())


def test_a_size_is_of_all_leaks_together() -> None:
    assert _size([]) == 0.0
    assert _size([RoundLeak(3.0, 0.5), RoundLeak(4.0, 1.0)]) == pytest.approx(6.5)


def test_an_upper_end_is_that_of_the_accountant() -> None:
    sampled, gaussian = released("laplace", 1.0, rate=0.25), released("gaussian", 1.0)
    both = epsilon([sampled] * 3, DELTA, "add-remove")
    assert both.low < both.high == _high([sampled] * 3, DELTA, "add-remove")
    assert _high([released("laplace", 1.0, slack=0.0)], 0.0, "add-remove") == pytest.approx(1.0)
    assert _high([sampled, gaussian], 0.0, "add-remove") == inf
    assert least([sampled, gaussian], 0.0, "add-remove") == (inf, (sampled, gaussian))
    assert least([sampled] * 3, DELTA, "add-remove") == (both.low, (sampled,) * 3)


def composed(adjacency: str, sampling: Sampling, *leaks: RoundLeak) -> Least:
    victim = object.__new__(VictimLeaks)
    victim._adjacency, victim._sampling = adjacency, sampling  # type: ignore[assignment]
    return victim._composed(leaks, DELTA)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_a_rate_counts_where_records_come_by_chance(adjacency: str) -> None:
    for known in (Sampling("none", 0.25, "unknown"), Sampling("poisson", 1.0, "random")):
        found = composed(adjacency, known, RoundLeak(1.0, 0.0), RoundLeak(0.0, 0.0))
        assert found == least([released("gaussian", 1.0)], DELTA, adjacency)  # type: ignore[arg-type]


def test_a_record_in_place_of_another_has_no_releases() -> None:
    """Where one side alone gives less than what lies between both, and where it does not."""
    drawn = Sampling("poisson", 0.25, "random")
    for leak in (RoundLeak(1.0, 0.0), RoundLeak(6.0, 0.0)):
        side = least([released("gaussian", leak.mu, 0.25)], DELTA, "add-remove")
        halves = [released("gaussian", leak.mu / 2, 0.25, "records")]
        between = least(halves, DELTA, "replace-one")
        found = composed("replace-one", drawn, leak)
        assert found.epsilon == min(side.epsilon, between.epsilon)
        assert found.releases == (between.releases if found == between else None)
        assert composed("add-remove", drawn, leak) == side


def test_the_notes_of_a_claim_are_those_that_apply() -> None:
    rounds = of_record("r", 3.0), of_record("s", 4.0), of_record("s", 1.0)
    found = accounted(*rounds)
    assert len(found.notes) == 4
    assert found.notes[1] == "3 rounds were measured, and others are not counted"
    assert found.notes[2].endswith("one record counts in the batches that hold it: of the measured "
                                   "rounds, in 3, 4")  # fmt: skip
    assert found.notes[3].startswith("This assumes that the adversary knows which batches")
    assert len(accounted(*rounds, scope="round").notes) == 3
    first = accounted(of_record("r", 5.0), of_record("s", 4.0))
    assert first.notes[2].endswith("rounds, in 2")


def test_a_run_has_the_end_of_the_whole_run() -> None:
    """The finding has that of the claim, which may be of one round."""
    most, whole = ((released("gaussian", mu, slack=0.0),) for mu in (3.5, 2.0))
    metric = accounted(of_record("r", 3.0), ends=Ends(most, whole)).metrics[Name.EPSILON]
    assert (metric.value, metric.low) == (metric.high, low_of(3.0))
    assert metric.high == pytest.approx(gaussian_epsilon(DELTA, 3.5))
    figure = figure_of(of_record("r", 3.0), ends=Ends(most, whole))
    assert tuple(figure.epsilon) == pytest.approx((gaussian_epsilon(DELTA, 2.0),) * 2)
    assert tuple(figure_of(of_record("r", 3.0)).epsilon) == (low_of(3.0), inf)
    assert (figure.delta, figure.victim) == (DELTA, 0)


def test_a_claim_of_what_is_measured_is_not_contradicted() -> None:
    low = accounted(of_record("r", 3.0)).metrics[Name.EPSILON].low
    assert low is not None
    for claimed, verdict in ((low, None), (low * (1 - 1e-9), Verdict.UNSUPPORTED)):
        assert accounted(of_record("r", 3.0), epsilon=claimed).verdict is verdict
