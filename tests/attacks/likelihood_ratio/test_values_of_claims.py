"""What claims, runs and queries come to, figure by figure and note by note."""

from math import inf
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor

from dpaudit.accounting.families import GAUSSIAN
from dpaudit.accounting.releases import Release
from dpaudit.attacks.likelihood_ratio import agents, attack, bound, exact
from dpaudit.attacks.likelihood_ratio.attack import LikelihoodRatio
from dpaudit.attacks.likelihood_ratio.exact import LeakEnds
from dpaudit.attacks.likelihood_ratio.runs import CountedScores, RunScore
from dpaudit.defense.contract import Round, Stated
from dpaudit.defense.transcript import Message
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Column, Evidence, Name
from dpaudit.files.threat import ThreatModel
from dpaudit.graphs.graph import build_graph
from dpaudit.rng import Streams
from dpaudit.statistics.bounds import (
    ceiling,
    epsilon_lower_bound,
    family_from_scores,
    family_lower_bound,
)
from dpaudit.statistics.successes import Successes

NOTHING: Any = None
VIEW = ThreatModel(name="view")
CLAIM = Claim(text="ours", epsilon=1.0, delta=1e-5)


class State(NamedTuple):
    X: Tensor


class Path:
    """Agents 0 - 1 - 2, whose queries are 0, 10 k and 30 k, or 5 more with a gradient."""

    batch_size = 4

    def start(self, X: Tensor, setting: Any) -> State:
        return State(X)

    def step(self, state: State, k: int, graph: Any, data: Any, noise: Any) -> Any:
        z = noise.gaussian("z", 2.0, torch.zeros(1, 3, 2, dtype=torch.float64))
        far = torch.tensor([0.0, 10.0, 30.0]).double()[:, None].expand(1, 3, 2) * k
        g = data(torch.zeros(1, 3, 1, dtype=torch.float64))
        held.append(g.flatten().tolist())
        Y = far + 5 * (g != 0) + z * torch.tensor([1.0, -0.5])
        ends = torch.tensor([0, 1, 1, 2]), torch.tensor([1, 0, 2, 1])
        sent = {"q": Message(Y, *ends, ends[0]), "other": Message(Y, *ends, ends[0])}
        return SimpleNamespace(state=State(state.X + 1), sent=sent)

    def sensitivity(self, k: int, setting: Any, change: str, victim: int, sent: Any) -> Any:
        assert change == "agent-identity"
        return {"q": Stated(1, [1.0, 50.0, 50.0][victim])}


held: list[list[float]] = []


def test_queries_are_of_agents_that_are_read_and_hidden() -> None:
    """Agent 0 has the gradient; in L1, and the quieter of two numbers has half the noise."""
    setting: Any = SimpleNamespace(
        holders=(0, 1, 2), n_agents=3, network=SimpleNamespace(at=lambda k: None)
    )
    defense: Any = Path()
    held.clear()
    found = list(agents.queries(defense, setting, VIEW, 2, Streams(1)))
    assert [q[:4] for q in found] == [(k, v, 0, "q") for k in (1, 2) for v in (0, 1, 2)]
    far = [50.0, 50.0, 50.0, 110.0, 80.0, 110.0]  # the middle one at first as is stated
    assert [q.distance for q in found] == pytest.approx(far, rel=1e-8)
    assert all(q.distance < distance for q, distance in zip(found, far, strict=True))
    assert [q.stated for q in found] == pytest.approx([1.0, 50.0, 50.0] * 2, rel=1e-8)
    assert [q.std for q in found] == [1.0] * 6
    assert [float(q.state.X[0, 0, 0]) for q in found] == [0.0] * 3 + [1.0] * 3
    assert all(row[0] != 0 and row[1:] == [0.0, 0.0] for row in held)
    own = ThreatModel(name="own", kind="curious", agents=(0,))
    some = list(agents.queries(defense, setting, own, 1, Streams(1)))
    assert [(q.victim, q.holder) for q in some] == [(1, 1)]  # agent 2 sends nothing to agent 0
    last = ThreatModel(name="own", kind="curious", agents=(2,))
    assert [q.victim for q in agents.queries(defense, setting, last, 1, Streams(1))] == [1]
    tap = ThreatModel(name="tap", links=((1, 2),))
    assert [q.victim for q in agents.queries(defense, setting, tap, 1, Streams(1))] == [1]


def test_a_query_is_moved_by_the_gradient_of_one_number() -> None:
    """At the victim's row alone; the game is of the round and the distance of the query."""
    payload = torch.zeros(2, 3, 2).double()
    ends = torch.tensor([0, 1, 1, 2]), torch.tensor([1, 0, 2, 1])
    rounds: list[int] = []

    def step(state: State, k: int, graph: Any, data: Any, noise: Any) -> Round:
        rounds.append(k)
        return Round(state, {"q": Message(payload, *ends, ends[0])})

    asked = SimpleNamespace(batch_size=4, step=step)
    query = agents.Query(3, 1, 0, "q", 5.0, 5.0, 1.0, State(torch.zeros(1, 3, 1)))
    one = agents.OneQuery.model_construct(n_rounds=1, asked=asked, query=query)
    gradient = lambda X: torch.arange(6.0).view(2, 3, 1).double() + X  # noqa: E731
    state = State(torch.zeros(2, 3, 1))
    graph: Any = build_graph("path", 3).at(1)
    _, sent, *_ = one.step(state, 1, graph, gradient, NOTHING)
    assert rounds == [3]
    assert sent["q"].payload[:, 1].tolist() == [[1.0, 1.0], [4.0, 4.0]]
    assert not sent["q"].payload[:, [0, 2]].any()
    assert not payload.any()
    assert list(sent) == ["q"]


def test_the_query_that_reveals_most_is_played(monkeypatch: pytest.MonkeyPatch) -> None:
    def query(distance: float, k: int) -> agents.Query:
        return agents.Query(k, 2, 0, "q", distance, 5.0, 2.0, None)

    some = [query(1.0, 1), query(6.0, 4), query(3.0, 2)]
    monkeypatch.setattr(agents, "queries", lambda *_: iter(some))
    monkeypatch.setattr(agents, "OneQuery", lambda **of: of)
    monkeypatch.setattr(agents, "Game", lambda *of: of)
    monkeypatch.setattr(agents, "replace", lambda one, **of: of)
    network = SimpleNamespace(only=lambda k: f"only {k}")
    setting: Any = SimpleNamespace(stand_in=lambda d: SimpleNamespace(network=network))
    defense: Any = "defense"
    found: Any = agents.game_on_agents(defense, setting, VIEW, 9, NOTHING)
    asked = {"n_rounds": 1, "asked": "defense", "query": some[1]}
    assert found == (asked, {"network": "only 4"}, 2, "agent-identity", 6.0, 1.0, "none")
    some.clear()
    assert agents.game_on_agents(defense, setting, VIEW, 9, NOTHING) is None


def test_findings_are_in_the_order_of_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims 0 and 2 share their runs; claim 1 has its own; of claim 3 nothing is asked."""
    other = CLAIM.model_copy(update={"delta": 1e-4})
    claims = {0: CLAIM, 1: other, 2: CLAIM.model_copy(update={"epsilon": 2.0}), 3: None}
    steps: list[Any] = []

    class Player:
        def __init__(self, first: Any, streams: Any, on_round: Any, stage: Any, *of: int) -> None:
            self.of = of
            stages.append((first.index, stage))
            for done in (1, 4):
                on_round(done, 4)

    class Question(NamedTuple):
        claim: Any
        index: int = 9
        game: Any = None

    def question(self: Any, asking: Any, claim: Any) -> Any:
        asked.append(claim)
        return asking, None if claim is None else Question(claim)

    stages: list[Any] = []
    asked: list[Any] = []
    monkeypatch.setattr(attack, "GamePlayer", Player)
    monkeypatch.setattr(attack, "_claimed", lambda asking: claims)
    monkeypatch.setattr(
        attack, "claimed_delta", lambda claim: 0.5 if claim is None else claim.delta
    )
    claims[3] = SimpleNamespace(scope="run", adjacency="add-remove", delta=0.5)  # type: ignore[assignment]
    monkeypatch.setattr(attack, "as_asked", lambda finding, game: finding)
    monkeypatch.setattr(attack, "replace", lambda one, **of: one._replace(**of))
    monkeypatch.setattr(
        LikelihoodRatio, "_asking", lambda *_: SimpleNamespace(trials=7000, streams=None)
    )
    monkeypatch.setattr(
        LikelihoodRatio, "_question",
        lambda self, asking, claim: question(self, asking, claim if claim.delta < 0.1 else None),
    )  # fmt: skip
    monkeypatch.setattr(
        LikelihoodRatio, "_runs", lambda self, asked, own, player: [q.index for q in asked]
    )
    monkeypatch.setattr(
        LikelihoodRatio, "_findings",
        lambda self, q, runs, player, run: [
            SimpleNamespace(claim=q.index, of=(q.claim, runs, player.of, n)) for n in (0, 1)
        ],
    )  # fmt: skip
    context: Any = SimpleNamespace(checkpoint=SimpleNamespace(stage=lambda i: f"{i}"), run=None)
    found: Any = LikelihoodRatio().measure(context, VIEW, lambda *of: steps.append(of))
    assert [(f.claim, f.of[3]) for f in found] == [(i, n) for i in (0, 1, 2) for n in (0, 1)]
    assert [f.of[1] for f in found[::2]] == [[0, 2], [1], [0, 2]]
    assert all(f.of[0] is claims[f.claim] and f.of[2] == (7000, 1400) for f in found)
    assert steps == [(1, 12), (4, 12), (5, 12), (8, 12)]
    assert stages == [(9, "0"), (9, "1")]
    assert [one for one in asked if one is not None] == [CLAIM, other]


@pytest.mark.parametrize(
    ("counts", "candidates", "said"),
    [
        (True, None, ["exact", "certified", "noise", "controls"]),
        (True, 4, ["exact", "certified", "matched", "noise", "controls"]),
        (False, 4, ["exact", "noise"]),
    ],
)
def test_a_claim_has_a_test_where_runs_are_counted(monkeypatch, counts, candidates, said) -> None:
    monkeypatch.setattr(attack, "exact_leak", lambda question: "exact")
    monkeypatch.setattr(attack, "with_matrices", lambda finding, question, run: finding)
    monkeypatch.setattr(attack, "noise_findings", lambda *_: iter(["noise"]))
    for name in ("certified_bound", "matched_bound", "untested"):
        monkeypatch.setattr(bound, name, lambda *_, name=name: name.split("_")[0])
    monkeypatch.setattr(bound, "controls", lambda *_: iter(["controls"]))
    monkeypatch.setattr(attack, "no_noise_test", lambda question, why: f"no noise: {why}")
    own = LikelihoodRatio(candidates=candidates)
    played: Any = SimpleNamespace(counted="counted" if counts else None)
    player: Any = SimpleNamespace(trials=7, streams=None)
    assert list(own._findings(NOTHING, played, player, NOTHING)) == said
    assert list(own._findings(NOTHING, "why", player, NOTHING)) == ["exact", "untested"]
    player.trials = 0
    assert list(own._findings(NOTHING, "why", player, NOTHING)) == ["exact", "no noise: why"]


@pytest.mark.parametrize(
    ("trials", "patience", "derived", "expected"),
    [
        (0, inf, True, []),
        (40, inf, False, [(0, "of 40"), (2, "of 40")]),
        (40, 1.0, True, [(0, "of 40"), (2, "of 40")]),
        (40, 1.0, False, [(0, "best of 40")]),  # claim 2 is not tested by runs
    ],
)
def test_power_is_of_what_is_soon_derived(monkeypatch, trials, patience, derived, expected) -> None:
    """Of claims with a question whose draws are known: of claim 1 they are guessed."""
    claims = {i: f"claim {i}" for i in range(4)}
    monkeypatch.setattr(attack, "_claimed", lambda asking: claims)
    monkeypatch.setattr(attack, "_is_tested", lambda asking, claim: claim == "claim 0")
    monkeypatch.setattr(LikelihoodRatio, "_is_derived", lambda *_: derived)
    monkeypatch.setattr(LikelihoodRatio, "_asking", lambda *_: SimpleNamespace(trials=40))
    questions = {
        claim: None if claim == "claim 3" else SimpleNamespace(guesses=claim == "claim 1")
        for claim in claims.values()
    }
    monkeypatch.setattr(
        LikelihoodRatio, "_question", lambda self, asking, claim: (asking, questions[claim])
    )
    monkeypatch.setattr(bound, "power_of", lambda question, n: f"of {n}")
    monkeypatch.setattr(bound, "best_of", lambda claim, n, alpha, stops: f"best of {n}")
    found: Any = list(LikelihoodRatio(trials=trials).power(NOTHING, VIEW, patience))
    assert found == expected


def question(**of: Any) -> Any:
    """About a claim on epsilon 1, of 3 of 8 rounds."""
    game = SimpleNamespace(
        filled=1, width=None, spread=1, coordinates=9, sampling_rate=0.25, held=None,
        defense=SimpleNamespace(n_rounds=8),
    )  # fmt: skip
    for name in ("filled", "width", "spread", "held"):
        if name in of:
            setattr(game, name, of.pop(name))
    about = {
        "game": game, "n_rounds": 3, "claim": CLAIM, "claimed": 1.0, "delta": 1e-5, "alpha": 0.05,
        "stop_early": False, "nonlinear": None, "adjacency": "add-remove", "meet": False,
        "mechanism": (), "finding": lambda role, title, **known: SimpleNamespace(**known),
    }  # fmt: skip
    return SimpleNamespace(**{**about, **of})


def test_notes_say_what_was_played_and_how_it_was_read() -> None:
    def notes(learned: Any = None, metrics: Any = (), **of: Any) -> list[str]:
        score: Any = SimpleNamespace(choosing=(np.zeros(11), np.ones(11)), learned=learned)
        return list(bound._notes(question(**of), score, 40, dict.fromkeys(metrics)))

    plain = notes()
    assert plain == [
        "40 runs of each world over 3 of 8 rounds, the canary in the batch with probability 0.25 "
        "a round; 11 other runs of each chose the threshold",
        "scores are likelihood ratios under the noise that the defense asks for",
    ]
    for of, starts in (
        ({"learned": "learned"}, ["scores learned from other runs"]),
        ({"stop_early": True}, [plain[1], "bets on each pair of runs"]),
        ({"filled": 2}, [plain[1], "the record moves all 2 layers"]),
        ({"width": 5}, [plain[1], "5 coordinates are played together"]),
        (
            {"width": 5, "spread": 2},
            [plain[1], "5 coordinates are", "the record has the same size in each of 2"],
        ),
        ({"spread": 2, "nonlinear": object()}, [plain[1], "the record has the same size"]),
        ({"metrics": [Name.NOISE_FACTOR]}, [plain[1], "the bound of the declared shape"]),
        ({"claim": SimpleNamespace(mu=1.0)}, [plain[1], "mu is of the Gaussian family"]),
    ):
        found = notes(**of)  # type: ignore[arg-type]
        assert len(found) == 1 + len(starts)
        assert all(n.startswith(s) for n, s in zip(found[1:], starts, strict=True))
    assert notes(width=5)[2].endswith("which moves the first")
    assert notes(width=5, spread=2)[2].endswith("which moves all alike")
    assert "the worst behind a clip in L2" in notes(spread=2)[2]
    assert "more of this step than one coordinate" in notes(spread=2, nonlinear=object())[2]


def apart(n: int, m: int, shift: float) -> tuple[Any, Any]:
    """Quantiles of two normal laws, of n runs without the record and m with it."""
    one, other = (norm.ppf((np.arange(size) + 0.5) / size) for size in (n, m))
    return one, other + shift


def test_a_control_is_held_against_the_fewer_of_its_runs() -> None:
    """Of an odd number of runs the smaller half comes first."""
    scores = CountedScores(
        RunScore(apart(9, 9, 1.0), None), apart(603, 9, 1.0), apart(400, 200, 9.0)
    )
    null, positive = bound.controls(question(), scores, Streams(0))
    counts = [null.metrics[n].n for n in (Name.FALSE_POSITIVES, Name.FALSE_NEGATIVES)]
    assert counts == [271, 272]  # and a tenth of 301 and of 302 choose the threshold
    sizes = [positive.metrics[n].n for n in (Name.FALSE_POSITIVES, Name.FALSE_NEGATIVES)]
    assert sizes[0] > sizes[1]
    assert positive.metrics[Name.CEILING].value == pytest.approx(ceiling(sizes[1], 1e-5, 0.05))
    assert (null.world, positive.world) == ("defense", "no-defense")


def test_a_curve_of_mu_allows_gaussian_errors() -> None:
    asked = question(claim=SimpleNamespace(mu=0.5))
    found = bound._tradeoff(asked, apart(60, 60, 1.0))
    f = np.array(found[Column.FALSE_POSITIVE_RATE])
    expected = norm.cdf(norm.isf(f) - 0.5)
    assert found[Column.LEAST_ALLOWED] == pytest.approx(expected.tolist(), abs=1e-6)
    assert bound.untested(asked, "why").rounds == (1, 3)


def test_an_error_of_a_mu_is_that_of_its_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bound, "bound_error", lambda *_: 0.25)
    monkeypatch.setattr(bound, "power_of", lambda question, n: {Name.CEILING: n})
    monkeypatch.setattr(bound, "_shape", lambda question: ())
    claim = Claim(text="ours", mu=0.5)
    asked = question(claim=claim)
    scores = apart(600, 400, 1.0)
    runs_: Any = SimpleNamespace(scores=scores, score=SimpleNamespace(choosing=scores))
    found = bound._by_counts(asked, runs_)
    value = family_from_scores(*scores, 0.05, scores).value
    one, more = (GAUSSIAN.epsilon(x, 1e-5) for x in (value, value + 0.25))
    assert found[Name.EPSILON_LOWER_BOUND].standard_error == pytest.approx(more - one)
    assert found[Name.CEILING] == 400
    plain = bound._by_counts(question(), runs_)
    assert plain[Name.EPSILON_LOWER_BOUND].standard_error == 0.25


def test_errors_of_bounds_are_of_their_own_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """By epsilon at the claim's delta, or by mu."""
    asked: list[Any] = []
    monkeypatch.setattr(
        bound, "bound_error", lambda fp, fn, n0, n1, of: asked.append((n0, n1, of(9, 20))) or 0.0
    )
    monkeypatch.setattr(bound, "power_of", lambda question, n: {})
    monkeypatch.setattr(bound, "_shape", lambda question: ())
    scores = apart(600, 400, 1.0)
    runs_: Any = SimpleNamespace(scores=scores, score=SimpleNamespace(choosing=scores))
    bound._by_counts(question(), runs_)
    expected = float(epsilon_lower_bound(9, 20, 600, 400, 1e-5, 0.05))
    assert asked[0][:2] == (600, 400)
    assert asked[0][2] == pytest.approx(expected)
    bound._by_counts(question(claim=Claim(text="ours", mu=0.5)), runs_)
    of_mu = float(family_lower_bound(9, 20, 600, 400, 0.05))
    assert asked[1][2] == pytest.approx(of_mu)


@pytest.mark.parametrize(("certified", "groups"), [(0.0, 1), (0.4, 2)])
def test_evidence_is_of_the_claim_and_of_what_is_certified(certified: float, groups: int) -> None:
    counted: Any = CountedScores(RunScore(apart(60, 60, 2.0), None), apart(40, 40, 2.0), NOTHING)
    found = bound._evidence(question(), counted, certified)
    assert set(found[Evidence.BET_EPSILON]) == {1.0, *([certified] if certified else [])}
    assert set(found[Evidence.BET_DELTA]) == {1e-5}
    assert len(set(found[Evidence.BET_GROUP])) == groups
    assert len(found[Evidence.N_PLACES]) == 1


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        ({}, True),
        ({"mechanism": ()}, False),
        ({"nonlinear": object()}, False),
        ({"held": 2}, False),
        ({"meet": True}, False),
    ],
)
def test_matching_is_expected_by_the_view_s_own_algebra(of: Any, expected: bool) -> None:
    """Of 8 of 20 matched among 4, by a record under Gaussian noise twice as large as it."""
    gaussian = Release(family="gaussian", noise_multiplier=2.0, sampling="none", sampling_rate=1.0)
    asked = question(**{"mechanism": (gaussian,), **of})
    found = bound._of_matching(asked, Successes(8, 20, 0.25, apart=True))
    assert (Name.ACCOUNTING_ALLOWS in found) is (Name.EXPECTED_BOUND in found) is expected
    assert found[Name.EPSILON_LOWER_BOUND].n == 80
    assert (found[Name.MATCHED].value, found[Name.MATCHED_BLINDLY].value) == (0.4, 0.25)
    if expected:  # 1 - Phi(Phi^-1(3/4) - 1/2)
        allowed = norm.sf(norm.isf(0.25) - 0.5)
        assert found[Name.ACCOUNTING_ALLOWS].value == pytest.approx(allowed, abs=1e-4)
    needed = found[Name.TRIALS_NEEDED].value
    assert needed % 3 == 0  # runs of three others for each trial
    assert needed > 0


def test_an_end_of_uses_that_meet_says_whose_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "_at", lambda question: 1e-5)
    monkeypatch.setattr(exact, "_of_one_direction", lambda question, at: 0.5)
    monkeypatch.setattr(exact, "_of_part", lambda question, at: 3.0)

    def said(low: float, high: float, reacts: Any = None, batches: int = 1) -> str:
        own: Any = SimpleNamespace(leak=SimpleNamespace(batches=batches), reacts=reacts)
        return exact._of_which_record(own, LeakEnds(low, high))

    lasting = "a record's effect outlasts its round in this view: the lower end is that of a record"
    assert said(0.6, 3.0) == (
        f"{lasting} whose direction is another in each batch; the upper end is that of "
        "independent releases of which the view is a part"
    )
    assert "direction is one wherever they meet" in said(0.5, 3.0)
    assert said(0.6, inf).endswith("; no upper end is proven")
    assert said(0.6, 2.9).endswith("that knows the same and reads every link")
    assert said(0.6, 2.9, object()) == f"{lasting} whose direction is another in each batch"
    assert said(0.6, inf, object()).endswith("in each batch")
    assert said(0.6, 3.0, batches=2).startswith("several batches meet in one message: the lower")


def test_notes_of_a_leak_name_what_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "record_note", lambda game: getattr(game, "note", None))
    monkeypatch.setattr(exact, "reacting_note", lambda reacts: f"reacting {reacts}")
    monkeypatch.setattr(exact, "replace", lambda game, spread: SimpleNamespace(note="one number"))
    monkeypatch.setattr(exact, "_of_which_record", lambda *_: "which record")

    def notes(**of: Any) -> list[str]:
        leak = SimpleNamespace(is_proven=of.pop("proven", True), shown=of.pop("shown", None))
        game = SimpleNamespace(
            victim=4, held=of.pop("held", None), defense=SimpleNamespace(n_rounds=8)
        )
        about = {
            "leak": leak, "game": game, "n_rounds": 8, "reacts": None, "nonlinear": None,
            "wider": None, "guesses": False, "in_round": None, "revealed": None, "meet": False,
        }  # fmt: skip
        own: Any = SimpleNamespace(**{**about, **of})
        return list(exact._notes(own, NOTHING))

    plain = notes()
    assert plain[0] == "the record is agent 4's"
    assert plain[2].startswith("exact for steps linear in noise")
    assert len(plain) == 3
    for of, starts in (
        ({"reacts": "x"}, None),
        ({"nonlinear": SimpleNamespace(note="bent")}, ["one number", "bent"]),
        ({"wider": SimpleNamespace(note="wide")}, ["wide"]),
        ({"guesses": True}, ["an adversary that knows the graphs drawn"]),
        ({"n_rounds": 7}, ["the first 7 of 8 rounds"]),
        ({"n_rounds": 7, "in_round": 2}, []),
        (
            {"in_round": 2, "revealed": SimpleNamespace(alone=False)},
            ["of a record used in round 2"],
        ),
        ({"in_round": 2, "revealed": SimpleNamespace(alone=True)}, []),
        ({"held": 2, "proven": False}, ["a Poisson batch has a random number"]),
        ({"proven": False, "meet": True}, ["this view does not recover every Laplace draw"]),
        ({"meet": True}, ["which record"]),
        ({"shown": (3, "x")}, ['round 3: "x" shows the record without noise']),
    ):
        found = notes(**of)  # type: ignore[arg-type]
        if starts is None:
            assert found == [*plain[:2], "reacting x"]
            continue
        assert len(found) == 3 + len(starts)
        assert all(n.startswith(s) for n, s in zip(found[3:], starts, strict=True))
