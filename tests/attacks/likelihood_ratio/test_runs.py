"""Which runs are played, which tests of the noise they allow, and what could be expected of them."""

from dataclasses import dataclass
from math import ceil, exp, inf, log, log1p
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dpaudit.accounting.releases import Release
from dpaudit.attacks.likelihood_ratio import agents, bound, runs
from dpaudit.attacks.likelihood_ratio.agents import OneQuery, Query
from dpaudit.attacks.likelihood_ratio.bound import best_of, matched_bound, n_matched, power_of
from dpaudit.attacks.likelihood_ratio.runs import CountedScores, GamePlayer, PlayedRuns, RunScore
from dpaudit.errors import DpauditError, RunError
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Finding, Name
from dpaudit.files.verdict import Verdict
from dpaudit.game.runs.play import ScoredRuns, Worlds
from dpaudit.rng import Streams
from dpaudit.statistics.betting import SHARES

CLAIM = Claim(text="ours", epsilon=1.0, delta=1e-5)


def release(multiplier: float = 1.0, family: Any = "gaussian", rate: float = 1.0) -> Release:
    sampling: Any = "none" if rate == 1 else "poisson"
    return Release(
        family=family, noise_multiplier=multiplier, sampling=sampling, sampling_rate=rate
    )


@pytest.mark.parametrize(
    ("stds", "rounds"),
    [
        ({2: (0.1, 10.0), 3: (0.1, 5.0), 5: (0.08, 10.0)}, [2, 3]),
        ({2: (0.1, 10.0), 3: (0.0992, 10.0), 5: (0.1, 10.0)}, [2, 5]),
        ({2: (0.1, 10.0), 3: (0.0988, 10.0), 5: (0.1, 10.0)}, [2, 3]),
        ({2: (0.1, 10.0), 3: (0.2, 10.0), 5: (0.1, 20.0)}, [2, 5]),
        ({2: (0.1, 10.0), 3: (0.01,), 5: (0.1, 10.0)}, [2, 5]),
    ],
)
def test_a_draw_is_held_against_the_same_of_the_first_round(monkeypatch, stds, rounds) -> None:
    def step(state: Any, k: int, gradient: Any, noise: Any) -> Any:
        noise.stds = {f"d{i}": torch.tensor([s]) for i, s in enumerate(stds.get(k, (1.0,)))}
        return SimpleNamespace(state=k)

    monkeypatch.setattr(runs, "RecordedNoise", lambda streams, k: SimpleNamespace())
    game = SimpleNamespace(
        start=lambda *_: 0, step=step, played_gradient=lambda n: None, played=None,
        uses=lambda k: k in stds, first=2,
    )  # fmt: skip
    adversary = SimpleNamespace(n_rounds=max(stds))
    question: Any = SimpleNamespace(game=game, in_round=None, adversary=adversary)
    assert runs.rounds_of_a_draw(question, Streams(1)) == rounds


@pytest.mark.parametrize(
    ("declared", "drawn", "followed", "width", "test"),
    [
        (True, 1, False, 0, "by runs"),
        (True, 0, False, 0, "none"),
        (False, 1, False, 3, "none"),
        (True, 0, True, 3, "white"),
        (False, 0, True, 3, "white"),
        (False, 0, True, 0, None),
    ],
)
def test_the_noise_is_tested_as_the_step_allows(
    monkeypatch, declared, drawn, followed, width, test
) -> None:
    monkeypatch.setattr(runs, "noise_by_runs", lambda *_: "by runs")
    monkeypatch.setattr(runs, "no_noise_test", lambda *_: "none")
    white = SimpleNamespace(verdict=None)
    monkeypatch.setattr(runs, "_noise_control", lambda *_: white)
    nonlinear = SimpleNamespace(note="not linear")
    question: Any = SimpleNamespace(is_followed=followed, nonlinear=nonlinear)
    played: Any = PlayedRuns(
        np.zeros((5, width)), (release(),) if declared else None, [object()] * drawn  # type: ignore[list-item]
    )  # fmt: skip
    found: list[Any] = list(runs.noise_findings(question, played, None))  # type: ignore[arg-type]
    assert found == ([] if test is None else [white if test == "white" else test])


@pytest.mark.parametrize("without", [None, "fewer draws"])
def test_noise_that_differs_is_tested_without_further_draws(monkeypatch, without) -> None:
    alarm = SimpleNamespace(verdict=Verdict.UNSUPPORTED)
    monkeypatch.setattr(runs, "_noise_control", lambda *_: alarm)
    monkeypatch.setattr(runs, "_without_further_noise", lambda *_: without)
    question: Any = SimpleNamespace(is_followed=True)
    played = PlayedRuns(np.zeros((5, 2)), None, [])
    found: list[Any] = list(runs.noise_findings(question, played, None))  # type: ignore[arg-type]
    assert found == [without or alarm]


@pytest.mark.parametrize(("p", "verdict"), [(1e-6, None), (0.9e-6, Verdict.UNSUPPORTED)])
def test_white_noise_is_accused_below_a_millionth(monkeypatch, p: float, verdict) -> None:
    monkeypatch.setattr(runs, "white_noise_test", lambda innovations: ("sums", p))
    question: Any = SimpleNamespace(finding=lambda role, title, **known: SimpleNamespace(**known))
    found = runs._noise_control(question, np.zeros((7, 2)))
    assert found.verdict is verdict
    assert (found.metrics[Name.P_VALUE].value, found.metrics[Name.P_VALUE].n) == (p, 7)
    assert found.notes[1].startswith("no difference" if verdict is None else "differs")


@dataclass(frozen=True)
class Game:
    is_replacement: bool
    length: float = 3.0


def test_a_replaced_record_gives_way_to_none() -> None:
    assert runs.without_record(Game(True)) == Game(True, 0.0)  # type: ignore[arg-type, comparison-overlap]
    assert runs.without_record(Game(False)) == Game(False)  # type: ignore[arg-type, comparison-overlap]


@pytest.mark.parametrize(
    ("laplace", "follows", "gaussian"),
    [([False, False], True, True), ([False, True], True, False), ([False], False, False)],
)
def test_innovations_are_gaussian_by_the_algebra(monkeypatch, laplace, follows, gaussian) -> None:
    class Follows:
        rounds = tuple(SimpleNamespace(has_laplace=one) for one in laplace)

    monkeypatch.setattr(runs, "Adversary", Follows)
    own = Follows() if follows else SimpleNamespace(rounds=Follows.rounds)
    assert runs._is_gaussian(SimpleNamespace(adversary=own)) is gaussian  # type: ignore[arg-type]


def worlds(n: int, shift: float = 0.0) -> Worlds:
    rng = np.random.default_rng(0)
    return Worlds(
        *(ScoredRuns(rng.normal(m, 1, n), rng.normal(m, 1, (n, 2))) for m in (0.0, shift))
    )


class _Played(GamePlayer):
    """Notes what is asked for, and plays nothing."""

    def play(self, name: str, trials: int, game: Any = None, *of: Any, **how: Any) -> Worlds:
        seen.append((name, trials, game))
        if name == failing[0]:
            raise failing[1]
        return worlds(min(trials, 30) if name == "counted" else trials)

    def _score(self, name: str, game: Any = None, in_round: int | None = None) -> RunScore:
        seen.append((name, self.choosing, game))
        return RunScore((np.zeros(3), np.ones(3)), None)

    def _with_drawn(self, noiseless: Any, counted: Any = None) -> PlayedRuns:
        return PlayedRuns(noiseless, None, [], counted)


seen: list[tuple[str, int, Any]] = []
failing: list[Any] = [None, None]


@pytest.fixture
def player(monkeypatch: pytest.MonkeyPatch) -> Any:
    seen.clear()
    failing[:] = [None, None]
    monkeypatch.setattr(runs, "without_record", lambda game: "none")

    def make(trials: int, replaces: bool = False, followed: bool = True) -> _Played:
        game = SimpleNamespace(is_replacement=replaces)
        own = SimpleNamespace(game=SimpleNamespace(without_noise=lambda: "quiet"))
        question: Any = SimpleNamespace(game=game, is_followed=followed, adversary=own)
        return _Played(question, Streams(1), lambda *_: None, None, trials, 1000)  # type: ignore[arg-type]

    return make


@pytest.mark.parametrize(
    ("trials", "replaces", "further", "rows"),
    [
        (40, False, [("without noise", 20, "quiet")], 30),
        (80, False, [("without noise", 30, "quiet")], 30),  # thirty runs are played at most
        (40, True, [("without noise", 20, "quiet"), ("without a record", 20, "none")], 40),
    ],
)
def test_half_as_many_runs_are_played_without_noise(
    player, trials, replaces, further, rows
) -> None:
    found = player(trials, replaces).runs(None)
    assert seen == [("training", 1000, None), ("counted", trials, None), *further]
    assert found.noiseless.shape == (rows, 2)
    assert len(found.counted.scores[0]) == 30
    not_followed = player(trials, True, followed=False).runs(None)
    assert not_followed.noiseless.shape == (30, 2)


@pytest.mark.parametrize(("gaussian", "followed"), [(True, True), (True, False), (False, True)])
def test_without_trials_the_noise_is_tested_by_a_few(
    monkeypatch, player, gaussian, followed
) -> None:
    monkeypatch.setattr(runs, "_is_gaussian", lambda question: gaussian)
    found = player(0, followed=followed).runs(None)
    few = gaussian and followed
    assert seen == ([("noise", runs.NOISE_RUNS, "none")] if few else [])
    assert found.noiseless.shape == ((runs.NOISE_RUNS, 2) if few else (0, 0))
    assert found.counted is None


@pytest.mark.parametrize(
    ("error", "followed", "raised"),
    [
        (DpauditError("DPA072", "no numbers"), False, False),
        (DpauditError("DPA072", "no numbers"), True, True),
        (RunError("DPA072", "no folder"), False, True),
    ],
)
def test_a_step_without_numbers_has_no_runs(player, error, followed, raised) -> None:
    own = player(40, followed=followed)
    failing[:] = ["counted", error]
    if raised:
        with pytest.raises(DpauditError):
            own.runs(None)
    else:
        assert own.runs(None) == str(error)


@pytest.mark.parametrize(
    ("used", "others", "hits"),
    [
        ([2.0, 1.0, 3.0], [[1.0, 0.0], [2.0, 0.0], [2.9, 2.9]], 2),
        ([], np.zeros((0, 2)), 0),
        ([1.0], [[0.0, 1.1]], 0),
    ],
)
def test_the_record_is_named_where_it_scores_highest(used, others, hits) -> None:
    rng = np.random.default_rng(0)
    assert n_matched(np.array(used), np.array(others), rng) == hits


def test_as_many_are_matched_as_there_are_runs_of_both_worlds(monkeypatch) -> None:
    metrics: list[Any] = []

    def note(question: Any, found: Any) -> dict[Any, Any]:
        metrics.append(found)
        return {}

    monkeypatch.setattr(bound, "_of_matching", note)
    question: Any = SimpleNamespace(n_rounds=4, finding=lambda *_, **known: known)
    for n_with, n_without, n in ((10, 35, 10), (10, 29, 9), (10, 30, 10)):
        scores = np.zeros(n_without), np.ones(n_with)
        counted = CountedScores(RunScore(scores, None), scores, scores)
        found: Any = matched_bound(question, counted, 4, Streams(0))
        assert (metrics[-1].hits, metrics[-1].n, metrics[-1].kappa) == (n, n, 0.25)
        assert found["rounds"] == (1, 4)


class Follows:
    """In the place of an adversary that predicts what noise does."""


def expecting(**of: Any) -> Any:
    about = {
        "claim": CLAIM, "delta": 1e-5, "alpha": 0.05, "stop_early": False, "adversary": Follows(),
        "nonlinear": None, "game": SimpleNamespace(held=None), "tradeoffs": lambda: [0.7, 0.3],
    }  # fmt: skip
    return SimpleNamespace(**{**about, **of})


def test_the_better_of_two_tests_is_expected(monkeypatch) -> None:
    monkeypatch.setattr(bound, "Adversary", Follows)
    monkeypatch.setattr(bound, "expected_value", lambda n, mu, delta, alpha, curve: n * curve)
    assert power_of(expecting(), 10)[Name.EXPECTED_BOUND].value == 7.0
    for of in (
        {"stop_early": True},
        {"adversary": object()},
        {"nonlinear": object()},
        {"game": SimpleNamespace(held=2)},
    ):
        assert Name.EXPECTED_BOUND not in power_of(expecting(**of), 10)


def test_bets_gain_by_the_difference_of_two_worlds() -> None:
    delta = 0.2
    claim = Claim(text="ours", epsilon=1.0, delta=delta)
    small = exp(-1.0)
    gain = log1p(SHARES[0] * small * (1 - delta) / (1 + small * delta))
    needed = best_of(claim, 500, 0.05, True)[Name.TRIALS_NEEDED].value
    assert needed == ceil(log(2 / 0.05) / gain)
    endless = Claim(text="ours", epsilon=800.0, delta=delta)
    assert best_of(endless, 500, 0.05, True)[Name.TRIALS_NEEDED].value == inf


GAUSSIAN, SAMPLED, LAPLACE = release(), release(rate=0.1), release(family="laplace")


@pytest.mark.parametrize(
    ("declared", "delta", "has_shape"),
    [
        ((GAUSSIAN,) * 9, 1e-5, True),
        ((GAUSSIAN,) * 9, 0.0, False),
        ((SAMPLED,) * 4, 1e-5, True),
        ((SAMPLED,) * 5, 1e-5, False),
        ((LAPLACE,) * 4, 0.0, True),
        ((LAPLACE,) * 5, 0.0, False),
        ((LAPLACE, GAUSSIAN), 0.0, False),
        ((GAUSSIAN, release(0.0)), 1e-5, False),
        ((release(0.0),), 1e-5, False),
    ],
)
def test_a_shape_is_of_few_releases_with_noise(monkeypatch, declared, delta, has_shape) -> None:
    monkeypatch.setattr(bound, "_declared_releases", lambda question: declared)
    found = bound._shape(SimpleNamespace(delta=delta))  # type: ignore[arg-type]
    assert found == (declared if has_shape else ())


OWN, OF_DEFENSE = (GAUSSIAN,), (SAMPLED,)


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        ({}, OWN),
        ({"mechanism": ()}, OF_DEFENSE),
        ({"nonlinear": object()}, OF_DEFENSE),
        ({"spread": 2}, OF_DEFENSE),
        ({"width": 3}, OF_DEFENSE),
        ({"meet": True}, ()),
        ({"mechanism": (), "scope": "round"}, ()),
        ({"mechanism": (), "adjacency": "function"}, ()),
        ({"mechanism": (), "fails": True}, ()),
    ],
)
def test_releases_are_those_of_the_view_or_the_defense(of: Any, expected: Any) -> None:
    def declared(*_: Any) -> Any:
        if of.get("fails"):
            raise DpauditError("DPA047", "nothing is said")
        return SimpleNamespace(most=OF_DEFENSE)

    game = SimpleNamespace(
        spread=of.get("spread", 1), width=of.get("width"), victim=0, setting=None,
        defense=SimpleNamespace(mechanism=declared),
    )  # fmt: skip
    claim = SimpleNamespace(
        scope=of.get("scope", "run"), adjacency=of.get("adjacency", "add-remove")
    )
    question: Any = SimpleNamespace(
        game=game, claim=claim, meet=of.get("meet", False), nonlinear=of.get("nonlinear"),
        mechanism=of.get("mechanism", OWN), threat_model=None,
    )  # fmt: skip
    assert bound._declared_releases(question) == expected


def query(distance: float, std: float) -> Query:
    return Query(2, 1, 0, "x", distance, 3.0, std, None)


def test_a_query_costs_its_distance_over_its_noise() -> None:
    assert query(3.0, 1.5).loss == 2.0
    assert query(0.0, 0.0).loss == 0.0
    assert query(3.0, 0.0).loss == inf


def test_the_farthest_other_agent_is_as_far_as_one_may_lie() -> None:
    payload = torch.tensor([[[0.0, 0.0], [1.0, -2.0], [4.0, 4.0]]])
    message: Any = SimpleNamespace(payload=payload, rows=torch.tensor([0, 1, 1, 2]))
    assert agents._apart(message, torch.tensor([0])) == 8.0
    assert agents._apart(message, torch.tensor([1])) == 9.0
    assert agents._apart(message, torch.tensor([0, 1, 2])) == 0.0


@pytest.mark.parametrize(("distance", "said"), [(3.0, "as far as the defense"), (3.1, "though")])
def test_a_finding_says_of_which_query_it_is(distance: float, said: str) -> None:
    finding = Finding(
        role="test", kind="empirical-epsilon", title="t", attack="a", threat_model="v",
        rounds=(1, 9), notes=("before",),
    )  # fmt: skip
    asked = OneQuery.model_construct(asked=None, query=query(distance, 1.0))
    game: Any = SimpleNamespace(defense=asked)
    found = agents.as_asked(finding, game)
    assert found.rounds == (2,)
    assert said in found.notes[0]
    assert found.notes[1:] == ("before",)
    assert agents.as_asked(finding, SimpleNamespace(defense=None)) is finding  # type: ignore[arg-type]
