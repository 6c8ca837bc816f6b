"""What canaries are, how many, and what is bounded by them, by hand."""

from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dpaudit.attack as da
from dpaudit.attacks.canaries import attack, bound
from dpaudit.attacks.canaries.attack import Canaries
from dpaudit.attacks.canaries.bound import GuessPlan, SumStatistic
from dpaudit.attacks.canaries.channels import CanaryEvidence
from dpaudit.files.finding import Name
from dpaudit.files.threat import ThreatModel
from dpaudit.statistics.sums import CanarySum

NOTHING: Any = None
VIEW = ThreatModel(name="eavesdropper", kind="external")
CLAIM = da.Claim(text="t", epsilon=1.0, delta=1e-5)


def test_options_have_the_usual_values_and_their_ends() -> None:
    own = Canaries()
    assert (own.canaries, own.references, own.alpha) == (1000, 16, 0.05)
    assert own._guessing == (1000, 100, 0.05)
    assert Canaries(canaries=25)._guessing == (25, 2, 0.05)
    assert Canaries(canaries=25, guesses=7, alpha=0.01)._guessing == (25, 7, 0.01)
    assert Canaries(canaries=25, guesses=99)._guessing == (25, 25, 0.05)
    invalid = [
        [option for option, _ in Canaries(canaries=25, guesses=g).validate_options(9, 4)]
        for g in (25, 26)
    ]
    assert invalid == [[], ["guesses"]]
    context: Any = SimpleNamespace(defense=SimpleNamespace(n_rounds=9))
    assert [Canaries(n_rounds=n)._trained(context) for n in (None, 3, 9, 20)] == [9, 3, 9, 9]


@pytest.mark.parametrize(
    ("kind", "classifies", "quiet", "patience", "why", "delta", "expected"),
    [
        ("gradient", True, None, inf, None, 1e-5, "by the sum at rate 0.25 of 25"),
        ("gradient", True, True, inf, None, 1e-5, "by the sum at rate 0.25 of 25"),
        ("gradient", True, False, inf, None, 1e-5, "by guesses"),
        ("gradient", True, None, inf, "lasting", 1e-5, "by guesses"),
        ("gradient", True, None, inf, None, 0.0, "by guesses"),
        ("gradient", True, None, 12.0, None, 1e-5, "by the sum at rate 0.25 of 25"),
        ("gradient", True, None, 11.9, None, 1e-5, None),  # of six rounds of two seconds
        ("gradient", False, None, inf, None, 1e-5, None),
        ("mislabelled", True, None, inf, None, 1e-5, None),
    ],
)
def test_power_is_of_sums_where_channels_are_gaussian(
    monkeypatch, kind, classifies, quiet, patience, why, delta, expected
) -> None:
    game = SimpleNamespace(sampling_rate=0.25)
    nonlinear = None if quiet is None else SimpleNamespace(quiet=quiet)
    monkeypatch.setattr(attack, "replace", lambda one, **_: one)
    monkeypatch.setattr(attack, "as_seen_by", lambda *_: None)
    monkeypatch.setattr(Canaries, "_game", lambda *_: game)
    monkeypatch.setattr(Canaries, "_nonlinear", lambda *_: nonlinear)
    rounds: list[int] = []
    monkeypatch.setattr(attack, "Adversary", lambda game, view, n: rounds.append(n))
    monkeypatch.setattr(attack, "seconds_of", lambda work: work() or 2.0)
    monkeypatch.setattr(attack, "not_gaussian", lambda adversary: why)
    monkeypatch.setattr(attack, "not_separate", lambda adversary: None)
    monkeypatch.setattr(attack, "channel_sizes", lambda adversary: "sizes")
    monkeypatch.setattr(
        attack, "power_metrics",
        lambda sizes, rate, n, delta, alpha: f"by the sum at rate {rate} of {n}",
    )  # fmt: skip
    monkeypatch.setattr(GuessPlan, "power", lambda self, claim: "by guesses")
    problem = object.__new__(da.Classification) if classifies else None
    claim = CLAIM.model_copy(update={"delta": delta})
    context: Any = SimpleNamespace(
        claims=(claim,), problem=problem, defense=SimpleNamespace(n_rounds=6)
    )
    found: Any = list(Canaries(kind=kind, canaries=25).power(context, VIEW, patience))
    assert found == ([] if expected is None else [(0, expected)])
    if expected and expected.startswith("by the sum"):
        assert rounds == ([6] if patience == inf else [1, 6])
    context.claims = ()
    assert not list(Canaries(kind=kind).power(context, VIEW, patience))


@pytest.mark.parametrize(("fewest", "expected"), [(1, "most moved"), (2, "game of 3")])
def test_canaries_are_at_the_agent_that_is_worst_off(monkeypatch, fewest, expected) -> None:
    monkeypatch.setattr(attack, "worst_off", lambda claim, *_: claim)
    monkeypatch.setattr(
        attack, "Game", SimpleNamespace(of=lambda d, s, victim, *of: f"game of {victim}")
    )
    monkeypatch.setattr(attack, "fewest_coordinates", lambda game: fewest)
    monkeypatch.setattr(attack, "of_most_moved_agent", lambda *_: "most moved")
    context: Any = SimpleNamespace(
        defense=None, setting=None, streams=SimpleNamespace(child=lambda name: None)
    )
    assert Canaries()._game(context, VIEW, {5: 3, 7: 4}) == expected  # type: ignore[dict-item]
    asked: list[int] = []
    monkeypatch.setattr(attack, "nonlinearity", lambda game, view, n: asked.append(n))
    for n_rounds in (1, 9):
        Canaries()._nonlinear(
            SimpleNamespace(defense=SimpleNamespace(n_rounds=n_rounds)),
            VIEW,  # type: ignore[arg-type]
        )
    assert asked == [1, 2]


def test_two_sets_of_canaries_are_read_in_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first at the sampling rate, for claims; the second in every batch, for the noise."""
    monkeypatch.setattr(
        attack, "replace", lambda game, sampling_rate: f"{game.victim} at {sampling_rate}"
    )
    monkeypatch.setattr(attack, "Adversary", lambda game, view, n: (game, n))
    monkeypatch.setattr(
        attack, "train_with_canaries", lambda c, one, other, n, step: ((one, n), (other, n))
    )
    monkeypatch.setattr(attack, "not_gaussian", lambda adversary: why)
    monkeypatch.setattr(attack, "not_separate", lambda adversary: "not separate")
    monkeypatch.setattr(attack, "sum_test", lambda *of: of)
    monkeypatch.setattr(attack, "noise_bound", lambda *of: of)
    game: Any = SimpleNamespace(victim=4)
    context: Any = SimpleNamespace(defense=SimpleNamespace(n_rounds=9))
    why: str | None = None
    found: Any = Canaries(canaries=25, n_rounds=6)._by_gradients(
        context,
        game,
        {3: "claim"},
        VIEW,
        NOTHING,  # type: ignore[dict-item]
    )
    one, other = (game, 6), ("4 at 1.0", 6)
    guessing = (25, 2, 0.05)
    assert found[0][:6] == (3, "claim", one, (one, 25), "not separate", guessing)
    assert found[0][6].startswith(
        "one run of 6 of 9 rounds with 25 canaries of each kind at agent 4"
    )
    assert found[1][:4] == (other, (other, 25), None, guessing)
    why = "bent"
    found = Canaries(canaries=25)._by_gradients(
        context,
        game,
        {3: "claim"},
        VIEW,
        NOTHING,  # type: ignore[dict-item]
    )
    assert (found[0][4], found[1][2]) == ("bent", "bent")


@pytest.mark.parametrize("final", [False, True])
def test_records_are_judged_by_guesses(monkeypatch, final: bool) -> None:
    asked: list[Any] = []

    def train(*of: Any) -> str:
        asked.append(of[1:-1])
        if final is None:
            raise da.NotObservable("DPA054", "nothing is seen")
        return "evidence"

    monkeypatch.setattr(attack, "train_with_records", train)
    monkeypatch.setattr(attack, "guess_test", lambda *of: of)
    monkeypatch.setattr(attack, "claim_finding", lambda *of: of)
    context: Any = SimpleNamespace(defense=SimpleNamespace(n_rounds=9))
    view: Any = SimpleNamespace(has_final_model=final)
    own = Canaries(kind="crafted", canaries=25, references=9)
    [found] = own._by_records(context, 4, {3: "claim"}, view, NOTHING)  # type: ignore[dict-item]
    assert asked == [(view, 4, "crafted", 25, 9, 9)]
    assert found[:6] == (3, "claim", view, 9, "evidence", (25, 2, 0.05))  # type: ignore[index]
    [note] = found[6]  # type: ignore[index]
    assert note.startswith("one run of 9 of 9 rounds with 25 crafted records at agent 4")
    assert ("in 9 runs of the adversary" in note) is final


def test_a_sampled_sum_is_of_poisson_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two uses of sizes 1 and 0.5, twice as loud as declared; mu of a sampled one is unknown."""
    sizes, asked = np.array([1.0, 0.5]), list[Any]()

    def cost(mechanism: Any, delta: float) -> Any:
        """So that it is read off: one over the noise of each release."""
        asked.append(({r.sampling for r in mechanism}, delta))
        return SimpleNamespace(low=sum(r.count / r.noise_multiplier for r in mechanism))

    monkeypatch.setattr(bound, "epsilon", cost)
    monkeypatch.setattr(SumStatistic, "factor", lambda self, alpha: 2.0 if alpha == 0.05 else 0.0)
    monkeypatch.setattr(SumStatistic, "factor_error", 0.5)
    monkeypatch.setattr(SumStatistic, "p_value", lambda *_: 0.25)
    for rate, how in ((0.25, "poisson"), (1.0, "none")):
        one = SumStatistic(CanarySum(sizes, rate, 50, 50), sizes, 9.0, 1.0, "")
        assert one.epsilon(2.0, 1e-5) == pytest.approx(2 + 1)
        assert asked[-1] == ({how}, 1e-5)
        assert one.epsilon(0.0, 1e-5) == 0.0
        metrics = one.metrics(0.5, 1e-5, 0.05)
        assert (Name.MU_LOWER_BOUND in metrics) is (rate == 1.0)
        lower = metrics[Name.EPSILON_LOWER_BOUND]
        assert (lower.value, lower.standard_error, lower.n) == (3.0, 0.75, 100)
        assert metrics[Name.CANARIES].value == 100
        assert metrics[Name.NOISE_FACTOR].value == 0.5
    assert metrics[Name.MU_LOWER_BOUND].value == pytest.approx(2 * one.law.mu)


@pytest.mark.parametrize(("epsilon_", "enough"), [(0.1, True), (3.7, True), (99.0, False)])
def test_canaries_are_doubled_until_they_would_do(monkeypatch, epsilon_: float, enough) -> None:
    """r right guesses prove epsilon where (1 + e^-epsilon)^-r is 0.05: ln(1 / (20^(1/r) - 1))."""
    claim = CLAIM.model_copy(update={"epsilon": epsilon_, "delta": 0.0})
    monkeypatch.setattr(bound, "MOST_CANARIES", 1280)
    own = GuessPlan(1000, 100, 0.05).power(claim)

    def proven(n: float) -> float:
        r = max(1, int(n) // 10)
        return float(-np.log(20 ** (1 / r) - 1))

    assert own[Name.CEILING].value == pytest.approx(proven(1000), abs=1e-3)
    found = own[Name.TRIALS_NEEDED].value
    assert proven(found) > epsilon_ >= proven(found / 2) if enough else found == inf


def test_guesses_are_counted_beside_what_they_prove() -> None:
    """Of 40 canaries eight are guessed, of which six are right."""
    truth = np.arange(40) % 2 == 0
    ratios = np.where(truth, 1.0, -1.0) * np.where(np.arange(40) < 6, 9.0, 0.1)
    ratios[[6, 7]] = -5.0, 5.0
    evidence = CanaryEvidence(ratios, truth)
    guessing = GuessPlan(40, 8, 0.05)
    assert guessing.right(evidence) == 6
    found = bound.guess_test(2, CLAIM, VIEW, 7, evidence, guessing, ("a note",))
    assert (found.claim, found.rounds, found.world) == (2, (1, 7), "defense")
    assert (found.metrics[Name.GUESSES].value, found.metrics[Name.RIGHT_GUESSES].value) == (8, 6)
    assert found.metrics[Name.RIGHT_GUESSES].n == 8
    lower = found.metrics[Name.EPSILON_LOWER_BOUND]
    assert (lower.value, lower.n) == (guessing.bound(6, 1e-5, 0.05), 40)
    p = found.metrics[Name.P_VALUE].value
    assert guessing.bound(6, 1e-5, min(1.0, p * 1.01)) > 1.0 or p == 1.0
    assert guessing.bound(6, 1e-5, p * 0.98) <= 1.0
    assert found.notes == ("a note", "bound of Steinke, Nasr and Jagielski: any mechanism")


@pytest.mark.parametrize("why", [None, "bent"])
def test_noise_is_bounded_by_the_sum_or_by_ranks(monkeypatch, why: Any) -> None:
    law = SimpleNamespace(mu=3.0)
    summed = SimpleNamespace(factor=lambda alpha: 2.0 if alpha == 0.05 else 0.0, law=law, note="n")
    rates: list[float] = []
    monkeypatch.setattr(
        bound,
        "SumStatistic",
        SimpleNamespace(of=lambda evidence, rate: rates.append(rate) or summed),
    )
    monkeypatch.setattr(bound, "mu_from_ranked_guesses", lambda m, r, right, alpha: m + r + right)
    monkeypatch.setattr(bound, "shift_from_guesses", lambda m, r, right, alpha: 100 + right)
    metric = da.Metric(value=0.5)
    monkeypatch.setattr(bound, "_by_algebra", lambda adversary: (metric, ("reacting",)))
    evidence = CanaryEvidence(np.array([1.0, -1.0] * 10), np.array([True, False] * 10))
    adversary: Any = SimpleNamespace(threat_model=VIEW, n_rounds=7)
    found = bound.noise_bound(adversary, evidence, why, GuessPlan(20, 4, 0.05), "common")
    assert found.metrics[Name.MU_LOWER_BOUND].value == (6.0 if why is None else 28.0)
    assert found.metrics[Name.MU_LOWER_BOUND].n == 20
    assert found.metrics[Name.MU_OF_WHOLE_CURVE].value == 104.0
    assert found.metrics[Name.CONFIDENCE].value == 0.95
    assert (found.rounds, found.notes[0], found.notes[2]) == ((1, 7), "common", "reacting")
    assert (found.notes[1] == "n") is (why is None)
    assert rates == ([1.0] if why is None else [])


@pytest.mark.parametrize(
    ("reacts", "most", "everything", "high"),
    [(None, 9.0, None, None), ("x", 9.0, None, 9.0), ("x", 1.0, None, 2.0), ("x", 9.0, "y", inf)],
)
def test_mu_of_the_protocol_has_an_upper_end(monkeypatch, reacts, most, everything, high) -> None:
    def adversary(mu: float, reacts: Any) -> Any:
        leak = SimpleNamespace(by_round=np.array([0.5, mu]))
        return SimpleNamespace(leak=leak, reacts=reacts, threat_model="view", game=None, n_rounds=2)

    monkeypatch.setattr(bound, "with_every_link", lambda view: view)
    monkeypatch.setattr(bound, "Adversary", lambda *_: adversary(most, everything))
    monkeypatch.setattr(bound, "reacting_note", lambda reacts: f"reacting {reacts}")
    metric, notes = bound._by_algebra(adversary(2.0, reacts))
    assert metric.value == 2.0
    if reacts is None:
        assert (metric.low, metric.high, notes) == (None, None, ())
    else:
        assert (metric.low, metric.high, notes[0]) == (2.0, high, "reacting x")
