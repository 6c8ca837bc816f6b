"""What one run with canaries plays, reads and proves, by hand."""

from math import inf
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import dpaudit.attack as da
import dpaudit.defense as dp
from dpaudit.attacks.canaries import attack, bound, channels, records
from dpaudit.attacks.canaries.attack import Canaries
from dpaudit.attacks.canaries.bound import Guessing, Summed
from dpaudit.attacks.canaries.channels import CanaryEvidence, Channels
from dpaudit.attacks.shadow_models.scores import References
from dpaudit.defense.transcript import Message
from dpaudit.files.finding import Name
from dpaudit.files.threat import ThreatModel
from dpaudit.rng import Streams
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
    monkeypatch.setattr(Guessing, "power", lambda self, claim: "by guesses")
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
    monkeypatch.setattr(Summed, "factor", lambda self, alpha: 2.0 if alpha == 0.05 else 0.0)
    monkeypatch.setattr(Summed, "factor_error", 0.5)
    monkeypatch.setattr(Summed, "p_value", lambda *_: 0.25)
    for rate, how in ((0.25, "poisson"), (1.0, "none")):
        one = Summed(CanarySum(sizes, rate, 50, 50), sizes, 9.0, 1.0, "")
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
    own = Guessing(1000, 100, 0.05).power(claim)

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
    guessing = Guessing(40, 8, 0.05)
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
        bound, "Summed", SimpleNamespace(of=lambda evidence, rate: rates.append(rate) or summed)
    )
    monkeypatch.setattr(bound, "mu_from_ranked_guesses", lambda m, r, right, alpha: m + r + right)
    monkeypatch.setattr(bound, "shift_from_guesses", lambda m, r, right, alpha: 100 + right)
    metric = da.Metric(value=0.5)
    monkeypatch.setattr(bound, "_by_algebra", lambda adversary: (metric, ("reacting",)))
    evidence = CanaryEvidence(np.array([1.0, -1.0] * 10), np.array([True, False] * 10))
    adversary: Any = SimpleNamespace(threat_model=VIEW, n_rounds=7)
    found = bound.noise_bound(adversary, evidence, why, Guessing(20, 4, 0.05), "common")
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


class State(NamedTuple):
    X: Tensor


def a_problem() -> Any:
    problem = object.__new__(da.Classification)
    problem.gradients = NOTHING
    return problem


class Reader:
    """Notes what it is given."""

    def __init__(self, adversary: Any, canaries: slice, d: int, device: Any) -> None:
        self.of, self.canaries = (adversary, canaries, d), canaries
        self.seen: list[Any] = []
        made.append(self)

    def read(self, k: int, sent: Any, units: Any) -> None:
        self.seen.append((k, sent, units))

    def progress(self) -> Any:
        return ["progress"]

    def log_ratios(self) -> str:
        return f"ratios of {self.canaries}"

    def channels(self) -> str:
        return "channels"


made: list[Reader] = []


def test_canaries_are_drawn_by_coins_and_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty of each set beside a model of two numbers, at agent 1, with two batches a round."""
    made.clear()
    asked: list[Any] = []
    monkeypatch.setattr(channels, "_CanaryReader", Reader)
    monkeypatch.setattr(
        channels, "RecordedNoise", lambda streams, k: SimpleNamespace(units=f"units {k}")
    )
    monkeypatch.setattr(channels, "replace", lambda one, **of: SimpleNamespace(**{**vars(one), **of}))  # fmt: skip
    coins = torch.arange(40) % 3 == 0

    def sampled(game: Any, k: int, n: int, streams: Any, s: int) -> Tensor:
        assert (game, n) == (own, 20)
        return torch.arange(40) % (2 + s) == 0

    monkeypatch.setattr(channels, "_sampled", sampled)

    class Defense:
        batch_size, drawing, batches_per_round = 4, "drawing", 2

        def start(self, X: Tensor, setting: Any) -> State:
            asked.append((tuple(X.shape), setting.d, setting.layers))
            assert not X[:, 2:].any()
            return State(X)

        def step(self, state: State, k: int, graph: Any, oracle: Any, noise: Any) -> Any:
            asked.append((k, graph, oracle))
            return State(state.X + 1), f"sent {k}", "more"

    own = SimpleNamespace(victim=1, length=8.0, effect=0.5)
    sampled_: Any = SimpleNamespace(game=own, n_rounds=3)
    problem = a_problem()
    monkeypatch.setattr(
        da.Classification, "initial", lambda self, streams: torch.ones(3, 2), raising=False
    )
    monkeypatch.setattr(
        da.Classification, "gradient", lambda self, s, k, size, drawing: (k, size, drawing),
        raising=False,
    )  # fmt: skip
    setting = SimpleNamespace(
        d=2, layers=(("w", 2),), network=SimpleNamespace(at=lambda k: f"graph {k}")
    )
    streams = SimpleNamespace(
        device="cpu",
        numpy=lambda name: SimpleNamespace(random=lambda n: np.where(coins[:n], 0.4, 0.6)),
    )
    context: Any = SimpleNamespace(
        defense=Defense(), setting=setting, streams=streams, problem=problem,
        checkpoint=SimpleNamespace(last=lambda: None, keep=lambda now: None),
    )  # fmt: skip
    steps: list[Any] = []
    one, other = channels.train_with_canaries(
        context,
        sampled_,
        "always",
        20,
        lambda *of: steps.append(of),  # type: ignore[arg-type]
    )
    assert asked[0] == ((3, 42), 42, (("w", 2), ("canaries", 40)))
    assert [(k, graph) for k, graph, _ in asked[1:]] == [(k, f"graph {k}") for k in (1, 2, 3)]
    oracle = asked[1][2]
    assert (oracle.real, oracle.d, oracle.victim, oracle.length, oracle.batch_size) == (
        (1, 4, "drawing"), 2, 1, 8.0, 4,
    )  # fmt: skip
    expected = 0.5 * (coins & (torch.arange(40) % 2 == 0))
    assert torch.equal(oracle.drawn, expected.to(oracle.drawn))
    [later] = oracle.later
    assert torch.equal(later, (0.5 * coins).to(later))
    assert [reader.of for reader in made] == [
        (sampled_, slice(0, 20), 2), ("always", slice(20, 40), 2),
    ]  # fmt: skip
    assert made[0].seen == [(k, f"sent {k}", f"units {k}") for k in (1, 2, 3)]
    assert steps == [(1, 3), (2, 3), (3, 3)]
    assert (one.log_ratios, one.channels) == ("ratios of slice(0, 20, None)", "channels")
    assert one.included.tolist() == coins[:20].tolist()
    assert other.included.tolist() == coins[20:].tolist()


def test_each_canary_is_read_on_its_own_coordinate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses of lengths 5 and 0: what is whitened along a shift, by its length."""
    innovation = SimpleNamespace(
        reading=SimpleNamespace(
            shifts={1: torch.tensor([3.0, 4.0]), 2: torch.tensor([1e-12, 0.0])}
        ),
        whitened=torch.tensor([[1.0, 2.0], [0.0, -5.0]]),
    )
    heard: list[Any] = []

    class Kalman:
        def __init__(self, adversary: Any, start: Any) -> None:
            pass

        def update(self, k: int, sent: Any, units: Any) -> Any:
            heard.append((k, sent["x"].payload.tolist(), units))
            return innovation

    class Tally:
        def __init__(self, game: Any, n: int) -> None:
            assert n == 2

        def add(self, one: Any) -> None:
            assert one is innovation

        def scores(self, losses: Any) -> Tensor:
            return torch.tensor([0.5, -0.5])

    monkeypatch.setattr(channels, "KalmanFilter", Kalman)
    monkeypatch.setattr(channels, "LogRatios", Tally)
    game = SimpleNamespace(start=lambda n, dtype, device: n)
    reader = channels._CanaryReader(SimpleNamespace(game=game), slice(1, 3), 2, "cpu")  # type: ignore[arg-type]
    none = reader.channels()
    assert (none.seen.shape, none.sizes.tolist()) == ((2, 0), [])
    payload = torch.arange(10.0).view(2, 5)
    ends = torch.tensor([0, 1])
    units = {"z": torch.arange(5.0)[None], "one": torch.tensor([[7.0], [8.0]])}
    reader.read(4, {"x": Message(payload, ends, ends.flip(0), ends)}, units)
    k, seen, own = heard[0]
    assert (k, seen) == (4, [[[3.0], [8.0]], [[4.0], [9.0]]])
    assert own["z"].tolist() == [[[3.0]], [[4.0]]]
    assert own["one"].tolist() == [[[7.0], [8.0]]] * 2
    found = reader.channels()
    assert found.seen.tolist() == [[pytest.approx(11 / 5)], [pytest.approx(-4.0)]]
    assert found.sizes.tolist() == [5.0]
    assert reader.log_ratios().tolist() == [0.5, -0.5]
    shifts = {1: torch.tensor([3.0, 4.0]), 2: torch.tensor([0.0])}
    adversary: Any = SimpleNamespace(
        rounds=[SimpleNamespace(shifts=shifts), SimpleNamespace(shifts={3: torch.ones(4)})]
    )
    assert channels.channel_sizes(adversary).tolist() == [5.0, 2.0]
    assert Channels._fields == ("seen", "sizes")


def test_canaries_are_in_every_trial() -> None:
    """Of models [trials, agents, d] as of models [agents, d]."""

    class Real(dp.Gradient):
        batch_size = 4

        def __call__(self, X: Tensor, holders: Any = None) -> Tensor:
            return 2 * X

        def clipped_sum(
            self, X: Tensor, clip_norm: float, holders: Any = None, norm: int = 2
        ) -> Tensor:
            return 3 * X

        def per_record(self, X: Tensor, holders: Any = None, own: bool = False) -> Tensor:
            return X.unsqueeze(-2).expand(*X.shape[:-1], 2, X.shape[-1])

    drawn = torch.tensor([1.0, 0.0])
    X = torch.arange(24.0).view(2, 3, 4)
    oracle = channels.WithCanaries(Real(), 2, 1, 8.0, drawn, 4)
    for one, many in (
        (oracle(X[1]), oracle(X)), (oracle.clipped_sum(X[1], 5.0), oracle.clipped_sum(X, 5.0)),
        (oracle.per_record(X[1]), oracle.per_record(X)),
    ):  # fmt: skip
        assert torch.equal(many[1], one)


class Random:
    """Coins of three canaries, then draws of batches."""

    def __init__(self, *rows: Any) -> None:
        self.rows, self.shapes = list(rows), list[Any]()

    def random(self, shape: Any) -> Any:
        self.shapes.append(shape)
        return np.array(self.rows.pop(0)) if 0 not in np.atleast_1d(shape) else np.zeros(shape)


@pytest.mark.parametrize(("size", "rate"), [(8, 0.5), (2, 1.0)])
def test_scores_of_records_add_up_over_rounds(monkeypatch, size: int, rate: float) -> None:
    """Agent 1 draws four of its records; two of three canaries are there."""
    asked: list[Any] = []
    read: list[Any] = []

    class Defense:
        batch_size, drawing, batches_per_round = 4, "drawing", 2

        def start(self, X: Tensor, setting: Any) -> State:
            return State(X)

        def step(self, state: State, k: int, graph: str, oracle: Any, noise: Any) -> Any:
            asked.append((k, graph, oracle.real, oracle.drawn.tolist(), [d.tolist() for d in oracle.later]))  # fmt: skip
            return State(state.X + 1), f"sent {k}", "more"

    def reads(k: int, before: Any, sent: Any, state: State) -> Any:
        read.append((k, before, sent, float(state.X[0, 0])))
        return iter([torch.tensor([1.0, 2.0, 3.0]).double()] * (k if sees else 0))

    monkeypatch.setattr(
        da.Classification, "gradient", lambda self, s, k, *of: (k, *of), raising=False
    )
    monkeypatch.setattr(records, "tensors_of", lambda sent: sent)
    setting = SimpleNamespace(sizes=(99, size), network=SimpleNamespace(at=lambda k: f"graph {k}"))
    context: Any = SimpleNamespace(defense=Defense(), setting=setting, problem=a_problem())
    saved: Any = SimpleNamespace(
        last=lambda: None,
        keep=lambda now: kept.append("keep"),
        done=lambda now: kept.append("done"),
    )
    monkeypatch.setattr(da.Progress, "of", lambda *of: of)
    inputs, labels = torch.arange(3.0)[:, None], torch.arange(3)

    def scored() -> Any:
        asked.clear()
        rng: Any = Random(
            [0.4, 0.6, 0.49],
            [[0.49, 0.1, 0.6], [0.51, 0.1, 0.2]], [[0.9, 0.1, 0.9], [0.1, 0.1, 0.1]],
        )  # fmt: skip
        played = records._Played(context, 1, inputs, labels, torch.zeros(3, 2), 2, reads)
        found = played.scored(Streams(1), rng, saved, lambda *of: None)
        assert rng.shapes == [3, (0, 2, 3), (2, 3), (2, 3)]
        return found

    kept: list[str] = []
    sees = True
    scores, included = scored()
    assert included.tolist() == [True, False, True]
    assert scores.tolist() == [3.0, 6.0, 9.0]
    assert read == [(1, {}, "sent 1", 1.0), (2, "sent 1", "sent 2", 2.0)]
    assert asked[0][:3] == (1, "graph 1", (1, 4, "drawing"))
    every = rate == 1.0
    assert asked[0][3:] == ([True, False, every], [[every, False, True]])
    assert asked[1][3:] == ([every, False, every], [[True, False, True]])
    assert kept == ["keep", "done"]
    sees = False
    assert scored() is None


def test_a_final_score_is_held_against_those_of_references(monkeypatch: Any) -> None:
    """The first run is attacked; canaries that two others have, and two have not, are scored."""
    coins = torch.tensor([[1, 0, 1], [1, 1, 1], [1, 0, 1], [0, 1, 1], [0, 0, 1]]).bool()
    asked: list[Any] = []

    class Played:
        context: Any = SimpleNamespace(
            streams=SimpleNamespace(child=lambda *of: SimpleNamespace(numpy=lambda name: of)),
            checkpoint=SimpleNamespace(stage=lambda i: f"stage {i}"),
        )

        def scored(self, streams: Any, rng: Any, saved: Any, on_round: Any) -> Any:
            i = len(asked)
            on_round(3, 6)
            asked.append((rng, saved))
            return torch.tensor([1.0, 2.0, 3.0]).double() * (i + 1), coins[i]

    def lira(statistics: Any, references: References) -> Any:
        assert statistics.tolist() == [[[1.0], [2.0]]]
        assert references.statistics[..., 0].tolist() == [[n, 2.0 * n] for n in (2, 3, 4, 5)]
        assert references.included.tolist() == coins[1:, :2].tolist()
        return np.array([[7.0, 8.0]])

    monkeypatch.setattr(records, "lira_online", lira)
    steps: list[Any] = []
    played: Any = Played()
    rng: Any = "rng"
    found = records._calibrated(played, rng, 4, lambda *of: steps.append(of))
    assert found.log_ratios.tolist() == [7.0, 8.0, 0.0]
    assert found.included.tolist() == [True, False, True]
    assert asked == [("rng", "stage 0"), *((("reference", i), f"stage {i}") for i in (1, 2, 3, 4))]
    assert steps[1][0] / steps[1][1] == pytest.approx((1 + 0.5) / 5)


def test_messages_are_read_beside_those_of_the_round_before(monkeypatch: Any) -> None:
    """Each link that reveals a gradient of its own gives one."""
    asked: list[Any] = []

    def derive(defense: Any, view: Any, setting: Any, target: Any) -> Any:
        asked.append((sorted(view), target.round, target.agent if hasattr(target, "agent") else target[1], target.receiver))  # fmt: skip
        if target.receiver == 3:
            raise da.NotObservable("DPA054", "nothing")
        return f"of {target.receiver}"

    observable = SimpleNamespace(derive=derive, links="x", differs_by_link=True)
    defense = SimpleNamespace(
        observables={"g": observable, "h": None}, n_rounds=9, clip_norm_in=lambda k: 2.0 * k
    )

    class View(dict):  # type: ignore[type-arg]
        @classmethod
        def of(cls, threat_model: Any, transcript: Any, rounds: set[int]) -> "View":
            assert set(transcript) <= rounds
            return cls(transcript)

        def edges(self, name: str, k: int) -> list[tuple[int, int]]:
            return [(1, 0), (2, 1), (1, 3), (1, 2)]

    monkeypatch.setattr(records.dp, "View", View)
    monkeypatch.setattr(records.dp, "Transcript", dict)
    monkeypatch.setattr(
        records, "_presence", lambda inputs, labels, derived, gradients, C: (derived, C)
    )
    monkeypatch.setattr(
        records, "ReleasedModel", SimpleNamespace(playing=lambda defense, model_of: None)
    )
    context: Any = SimpleNamespace(defense=defense, problem=a_problem(), setting=None)
    read = records._reader(context, VIEW, 1, NOTHING, NOTHING, NOTHING)
    assert list(read(1, {}, {"x": 1}, None)) == [("of 0", 2.0), ("of 2", 2.0)]  # type: ignore[dict-item,comparison-overlap]
    assert [one[0] for one in asked] == [[1]] * 3
    asked.clear()
    observable.differs_by_link = False
    assert list(read(2, {"x": 0}, {"x": 1}, None)) == [("of 0", 4.0)]  # type: ignore[dict-item,comparison-overlap]
    assert [one[0] for one in asked] == [[1, 2]]
    defense.observables = {}
    with pytest.raises(da.ConfigError, match="no gradient can be derived"):
        records._reader(context, VIEW, 1, NOTHING, NOTHING, NOTHING)


def test_records_for_canaries_are_wrong_or_extreme() -> None:
    """Of two public records five are drawn with some twice; crafted ones fill the range."""
    data: Any = SimpleNamespace(
        x=torch.zeros(3, 2), x_test=torch.tensor([[1.0, 2.0], [3.0, 4.0]]), n_classes=3,
        y_test=torch.tensor([0, 2]), value_range=(-1.0, 5.0),
    )  # fmt: skip
    inputs, labels = records.records("mislabelled", data, 2, np.random.default_rng(0))
    assert sorted(inputs.tolist()) == data.x_test.tolist()
    for n in (2, 40):
        inputs, labels = records.records("mislabelled", data, n, np.random.default_rng(0))
        true = torch.where(inputs[:, 0] == 1, 0, 2)
        assert len(inputs) == n
        assert not (labels == true).any()
    assert set((labels - true).remainder(3).tolist()) == {1, 2}
    inputs, labels = records.records("crafted", data, 40, np.random.default_rng(0))
    assert (inputs.shape, inputs.dtype) == ((40, 2), torch.float32)
    assert set(inputs.flatten().tolist()) == {-1.0, 5.0}
    assert set(labels.tolist()) == {0, 1, 2}
    coins = np.random.default_rng(0).random((40, 2)) < 0.5
    assert ((inputs == 5.0).numpy() == coins).all()
