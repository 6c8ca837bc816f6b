"""Which game a claim asks for, and of how many rounds, case by case."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from dpaudit.accounting.releases import Release
from dpaudit.attacks.likelihood_ratio import attack, plan, question
from dpaudit.attacks.likelihood_ratio.attack import LikelihoodRatio
from dpaudit.attacks.likelihood_ratio.question import Question, QuestionContext
from dpaudit.errors import ConfigError
from dpaudit.files.claim import Claim
from dpaudit.files.threat import ThreatModel

NUMBERS = 2 * 1000 * (10 + 2 * 5)  # of a round: two worlds, 1,000 runs, 10 links, 5 agents
GAUSSIAN = Release(family="gaussian", noise_multiplier=2.0, sampling="none", sampling_rate=1.0)


def context_of(n_rounds: int = 10, **of: Any) -> Any:
    graph = SimpleNamespace(n_edges=10, n_agents=5)
    setting = SimpleNamespace(network=SimpleNamespace(at=lambda k: graph, drawn=False))
    return SimpleNamespace(defense=SimpleNamespace(n_rounds=n_rounds), setting=setting, **of)


def asking(first: int | None = None, final: bool = False, trials: int = 1000) -> QuestionContext:
    view: Any = SimpleNamespace(has_final_model=final, knows_draws=False)
    return QuestionContext(context_of(), view, trials, first, 0.05, False)


@pytest.mark.parametrize(
    ("first", "final", "work", "coordinates", "rounds"),
    [
        (None, False, 10**12, 1, 10),
        (None, False, 8 * NUMBERS - 1, 1, 7),
        (None, False, 8 * NUMBERS, 1, 8),
        (None, False, 8 * NUMBERS, 4, 2),
        (None, False, 8 * NUMBERS, 9, 1),
        (4, False, NUMBERS, 1, 4),
        (40, False, NUMBERS, 1, 10),
        (4, True, NUMBERS, 1, 10),
    ],
)
def test_as_many_rounds_are_played_as_work_allows(
    monkeypatch, first, final, work, coordinates, rounds
) -> None:
    monkeypatch.setattr(question, "WORK", work)
    assert asking().numbers(3) == 3 * NUMBERS
    assert asking(first, final).rounds(coordinates) == rounds


def asked(**of: Any) -> Any:
    """What a question is read of."""
    about = {"algebra": SimpleNamespace(), "in_round": None, "meet": False, "mechanism": ()}
    return SimpleNamespace(**{**about, "adjacency": "add-remove", **of})


def value_of(name: str, of: Any) -> Any:
    return getattr(Question, name).fget(of)


@pytest.mark.parametrize(
    ("separate", "in_round", "batches", "meet"),
    [
        (True, None, 2, False),
        (False, None, 1, True),
        (False, 3, 1, False),
        (False, 3, 2, True),
        (True, 3, 2, False),
    ],
)
def test_uses_meet_where_a_view_does_not_separate_them(separate, in_round, batches, meet) -> None:
    leak = SimpleNamespace(separate=separate, batches=batches)
    assert value_of("meet", asked(leak=leak, in_round=in_round)) is meet
    assert not value_of("meet", asked(algebra=None, in_round=in_round))


@pytest.mark.parametrize(
    ("drawn", "knows", "guesses"),
    [(True, False, True), (True, True, False), (False, False, False)],
)
def test_graphs_are_guessed_where_draws_are_not_known(drawn, knows, guesses) -> None:
    setting = SimpleNamespace(network=SimpleNamespace(drawn=drawn))
    view = SimpleNamespace(knows_draws=knows)
    found = value_of("guesses", asked(game=SimpleNamespace(setting=setting), threat_model=view))
    assert found is guesses


@pytest.mark.parametrize(
    ("nonlinear", "followed"),
    [(None, True), (SimpleNamespace(quiet=True), True), (SimpleNamespace(quiet=False), False)],
)
def test_a_quiet_step_is_followed(nonlinear: Any, followed: bool) -> None:
    assert value_of("is_followed", asked(nonlinear=nonlinear)) is followed


def test_a_best_test_misses_by_the_gaussian_curve() -> None:
    rates, game = np.array([0.0, 0.1, 0.5, 1.0]), SimpleNamespace(spread=1)
    leak = SimpleNamespace(meetings=lambda *_: ["way"])
    of = {"algebra": SimpleNamespace(leak=leak), "game": game}
    (curve,) = Question.tradeoffs(asked(**of, mechanism=(GAUSSIAN,)))
    assert curve(rates) == pytest.approx(norm.cdf(norm.isf(rates) - 0.5), abs=1e-4)
    (blind,) = Question.tradeoffs(asked(**of))
    assert blind(rates).tolist() == [1.0, 0.9, 0.5, 0.0]
    assert len(Question.tradeoffs(asked(**of, meet=True))) == 2
    leak.meetings = lambda *_: []
    assert len(Question.tradeoffs(asked(**of, meet=True))) == 1
    of["algebra"] = None
    assert len(Question.tradeoffs(asked(**of, meet=True))) == 1


def test_power_of_batches_that_meet_is_one_less_the_misses(monkeypatch) -> None:
    monkeypatch.setattr(question, "power_where_batches_meet", lambda way, rates, _: way * rates)
    leak = SimpleNamespace(meetings=lambda *_: [0.25, 9.0])
    of = asked(algebra=SimpleNamespace(leak=leak), game=SimpleNamespace(spread=1), meet=True)
    _, meetings = Question.tradeoffs(of)
    assert meetings(np.array([0.0, 1.0])).tolist() == [1.0, 0.75]


@dataclass(frozen=True)
class _Game:
    spread: int = 1
    width: int | None = None
    coordinates: int = 9
    setting: Any = None


@pytest.mark.parametrize(
    ("spread", "noiseless", "leaks", "affine", "expected"),
    [
        (1, None, {}, None, "itself"),
        (2, None, {}, None, None),
        (2, (1, "x"), {0: "x"}, ("a",), None),
        (1, (1, "x"), {0: "x"}, ("a",), "itself"),
        (1, (1, "x"), {}, ("a",), ("a",)),
        (1, None, {0: "x"}, ("a",), ("a",)),
        (1, None, {}, (), "none"),
    ],
)
def test_the_algebra_is_of_one_coordinate(
    monkeypatch, spread, noiseless, leaks, affine, expected
) -> None:
    monkeypatch.setattr(question, "Adversary", lambda *given: given)
    own: Any = SimpleNamespace(
        game=_Game(spread), threat_model="view", n_rounds=7, leak=SimpleNamespace(noiseless=leaks)
    )
    known = affine is None
    nonlinear: Any = None if known else SimpleNamespace(noiseless=noiseless, affine=affine)
    found = question._algebra(own, nonlinear, True)
    if expected == "itself":
        assert found is own
    elif expected == "none":
        assert found is None
    else:
        assert found == (_Game(1), "view", 7, True, expected)


CLAIM = Claim(text="ours", epsilon=1.0, delta=0.0)


@pytest.mark.parametrize(
    ("change", "nonlinear", "n_agents", "whose"),
    [
        ("agent-identity", None, 4, "itself"),
        ("add-remove", None, question.SPARSE_FROM - 1, "worst at 1e-05"),
        ("add-remove", None, question.SPARSE_FROM, "most moved"),
        ("add-remove", object(), 4, "most moved"),
    ],
)
def test_the_victim_is_whose_record_leaks_most(
    monkeypatch, change, nonlinear, n_agents, whose
) -> None:
    monkeypatch.setattr(question.record, "of_most_moved_agent", lambda *_: "most moved")
    monkeypatch.setattr(
        question.record, "of_worst_agent", lambda game, view, at, adjacency: f"worst at {at}"
    )
    context = context_of(streams=SimpleNamespace(child=lambda name: None))
    own = QuestionContext(context, ThreatModel(name="view"), 10, None, 0.05, False)
    game: Any = _Game(setting=SimpleNamespace(n_agents=n_agents))
    claim = CLAIM.model_copy(update={"adjacency": change})
    found: Any = own._of_victim(game, claim, nonlinear)
    assert found == (game if whose == "itself" else whose)


@pytest.mark.parametrize(
    ("worst", "wider", "scope", "coordinates", "spread", "width"),
    [
        (1, None, "run", 9, 1, None),
        (3, None, "run", 9, 2, None),
        (1, False, "run", 9, 1, None),
        (1, True, "run", 9, 1, 2),
        (1, True, "run", 1, 1, 1),
        (1, True, "message", 9, 1, None),
        (3, True, "run", 9, 2, None),
    ],
)
def test_coordinates_that_a_step_mixes_are_played(
    monkeypatch, worst, wider, scope, coordinates, spread, width
) -> None:
    monkeypatch.setattr(question, "PLAYED", 2)
    monkeypatch.setattr(QuestionContext, "_of_victim", lambda self, game, *_: game)
    more: Any = None if wider is None else SimpleNamespace(mixes=wider)
    monkeypatch.setattr(question.record, "coordinates", lambda game: worst)
    monkeypatch.setattr(question.layers, "wider", lambda *_: more)
    claim: Any = SimpleNamespace(scope=scope)
    own: Any = _Game(coordinates=coordinates)
    expected = _Game(spread, width, coordinates)
    assert asking()._played(own, claim, None) == (expected, worst, more)


@pytest.mark.parametrize(("scope", "width"), [("message", None), ("run", 5)])
def test_a_step_that_is_not_linear_is_read_by_rounds(monkeypatch, scope, width) -> None:
    monkeypatch.setattr(QuestionContext, "_of_victim", lambda self, game, *_: game)
    monkeypatch.setattr(question.record, "most_moving", lambda game, *_: game)
    context = context_of(streams=SimpleNamespace(child=lambda name: None))
    own = QuestionContext(context, ThreatModel(name="view"), 10, None, 0.05, False)
    claim: Any = SimpleNamespace(scope=scope)
    nonlinear: Any = object()
    found = own._played(_Game(width=5), claim, nonlinear)  # type: ignore[arg-type]
    assert found == (_Game(width=width), 1, None)


def test_work_of_a_run_is_that_of_its_rounds() -> None:
    of: Any = SimpleNamespace(game=SimpleNamespace(played=3), n_rounds=7)
    assert plan._work_of_a_run(asking(), of) == 3 * NUMBERS // 1000 * 7


@pytest.mark.parametrize(
    ("first", "final", "affordable", "numbers"),
    [
        (None, False, 1, [5, 3, 2, 1]),
        (None, False, 9, [9, 5, 3, 2, 1]),
        (None, False, 90, [10, 5, 3, 2, 1]),
        (6, False, 1, [6]),
        (20, False, 90, [10]),
        (6, True, 1, [10]),
    ],
)
def test_numbers_of_rounds_are_halved(monkeypatch, first, final, affordable, numbers) -> None:
    monkeypatch.setattr(question, "WORK", 5 * NUMBERS)
    shape = SimpleNamespace(of=lambda *_: SimpleNamespace(affordable=affordable))
    monkeypatch.setattr(plan, "GameShape", shape)
    of: Any = SimpleNamespace(game=SimpleNamespace(played=1), threat_model=None)
    assert list(plan._numbers_of_rounds(asking(first, final), of)) == numbers


def test_candidates_are_matched_twenty_times_at_least() -> None:
    assert LikelihoodRatio()._least == 0
    assert LikelihoodRatio(candidates=5)._least == 80
    assert LikelihoodRatio(candidates=5, trials=80).trials == 80
    for options in ({"candidates": 5, "trials": 79}, {"candidates": 2, "stop_early": True}):
        with pytest.raises(ValueError, match="candidates"):
            LikelihoodRatio(**options)
    for trials in (0, 40, None):
        assert LikelihoodRatio(trials=trials).trials == trials
    for trials in (1, 39):
        with pytest.raises(ValueError, match="certify nothing"):
            LikelihoodRatio(trials=trials)


@pytest.mark.parametrize(
    ("n_rounds", "final", "refused"),
    [(None, True, False), (10, True, False), (9, True, True), (9, False, False)],
)
def test_a_final_model_is_of_all_rounds(n_rounds, final, refused) -> None:
    view: Any = SimpleNamespace(has_final_model=final, name="view")
    own = LikelihoodRatio(n_rounds=n_rounds)
    if refused:
        with pytest.raises(ConfigError, match="all 10 rounds"):
            own.refuse_too_large(context_of(), view)
    else:
        own.refuse_too_large(context_of(), view)


def claims(*of: tuple[str | None, str]) -> list[Claim]:
    return [Claim(text=text, epsilon=1.0, delta=1e-5, threat_model=against) for against, text in of]


def test_claims_are_held_against_their_own_adversary() -> None:
    given = claims((None, "all"), ("view", "own"), ("other", "not"))
    own = SimpleNamespace(
        context=SimpleNamespace(claims=given), threat_model=SimpleNamespace(name="view")
    )
    assert [*attack._claimed(own)] == [0, 1]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("adjacency", "scope", "drawn", "knows", "messages", "tested"),
    [
        ("add-remove", "run", False, False, 0, True),
        ("add-remove", "run", True, False, 0, False),
        ("add-remove", "run", True, True, 0, True),
        ("agent-identity", "run", False, False, 0, True),
        ("agent-identity", "message", False, False, 0, False),
        ("agent-identity", "message", False, False, 1, True),
        ("add-remove", "message", False, False, 0, True),
    ],
)
def test_runs_test_what_messages_are_said_to_hide(
    monkeypatch, adjacency, scope, drawn, knows, messages, tested
) -> None:
    monkeypatch.setattr(attack, "queries", lambda *_: iter(range(messages)))
    context = context_of()
    context.setting.network.drawn, context.setting.stand_in = drawn, lambda d: None
    own: Any = SimpleNamespace(
        context=context, threat_model=SimpleNamespace(knows_draws=knows), streams=None
    )
    claim: Any = SimpleNamespace(adjacency=adjacency, scope=scope)
    assert attack._is_tested(own, claim) is tested


@pytest.mark.parametrize(
    ("honest", "n_claims", "fewest", "expected"),
    [
        ([0], 0, 1, None),
        ([], 1, 1, None),
        ([1], 1, 3, _Game(width=3)),
        ([1], 1, 1, _Game(spread=2)),
    ],
)
def test_the_largest_game_needs_an_honest_agent(
    monkeypatch, honest, n_claims, fewest, expected
) -> None:
    victims: list[int] = []

    def game_of(defense: Any, setting: Any, victim: int, *_: Any) -> _Game:
        victims.append(victim)
        return _Game()

    monkeypatch.setattr(attack, "Game", SimpleNamespace(of=game_of))
    monkeypatch.setattr(attack, "in_layers", lambda game: game)
    monkeypatch.setattr(attack, "fewest_coordinates", lambda game: fewest)
    monkeypatch.setattr(attack, "coordinates", lambda game: 7)
    monkeypatch.setattr(attack, "PLAYED", 2)
    context = context_of(claims=(CLAIM,) * n_claims)
    context.setting.holders = (0, *honest) if 0 not in honest else honest
    own: Any = SimpleNamespace(context=context, threat_model=SimpleNamespace(agents=(0,)))
    if honest == [0]:
        own.threat_model.agents = ()
    assert attack._largest_game(own) == expected
    assert victims == ([1] if expected else [])


def test_too_large_a_step_is_not_played(monkeypatch) -> None:
    monkeypatch.setattr(attack, "ProjectionAdversary", SimpleNamespace)
    limit = attack.LONG * attack.WORK
    player: Any = SimpleNamespace(runs=lambda decided: decided)
    for numbers, scope, said in (
        (limit, "run", None),
        (limit + 1, "run", "no runs: the step needs 4"),
        (1, "message", "no runs: they are read by rounds"),
    ):
        of: Any = SimpleNamespace(
            guesses=False,
            adversary=SimpleNamespace(),
            claim=SimpleNamespace(scope=scope),
            game=SimpleNamespace(played=4),
        )
        own: Any = SimpleNamespace(numbers=lambda c, numbers=numbers: numbers, trials=1000)
        found: Any = LikelihoodRatio()._runs([of], own, player)
        assert found is None if said is None else found.startswith(said)
        of.guesses = True
        assert LikelihoodRatio()._runs([of], own, player) == attack.UNKNOWN_DRAWS
        of.guesses, of.adversary = False, object()  # an algebra, which reads each message
        assert LikelihoodRatio()._runs([of], own, player) is None


@pytest.mark.parametrize(
    ("trials", "stop_early", "counted", "choosing"),
    [(0, False, 0, 1000), (6000, False, 6000, 1200), (6000, True, 6000, 1000)],
)
def test_a_player_counts_as_many_runs_as_were_asked_for(
    monkeypatch, trials, stop_early, counted, choosing
) -> None:
    seen: list[tuple[int, int]] = []

    def player(first: Any, streams: Any, on_round: Any, stage: Any, trials: int, n: int) -> Any:
        seen.append((trials, n))
        return SimpleNamespace(trials=trials)

    own = SimpleNamespace(context=None, trials=trials or 100, streams=None)
    monkeypatch.setattr(attack, "GamePlayer", player)
    monkeypatch.setattr(attack, "replace", lambda first, **_: first)
    monkeypatch.setattr(attack, "_claimed", lambda own: {0: CLAIM})
    monkeypatch.setattr(LikelihoodRatio, "_asking", lambda *_: own)
    monkeypatch.setattr(LikelihoodRatio, "_question", lambda *_: (own, "question"))
    monkeypatch.setattr(LikelihoodRatio, "_runs", lambda *_: "none")
    monkeypatch.setattr(LikelihoodRatio, "_findings", lambda *_: iter(()))
    context: Any = SimpleNamespace(checkpoint=SimpleNamespace(stage=lambda i: None), run=None)
    attack_ = LikelihoodRatio(trials=trials, stop_early=stop_early)
    assert attack_.measure(context, ThreatModel(name="view"), lambda *_: None) == []
    assert seen == [(counted, choosing)]


@pytest.mark.parametrize(
    ("observed", "entries", "width", "patience", "derived"),
    [
        (400, None, None, 5.0, True),
        (400, None, None, 4.9, False),
        (401, None, None, 1e9, False),
        (401, 7, None, 5.0, True),
        (401, None, 2, 1e9, False),
        (400, None, 2, 0.0, True),
    ],
)
def test_rounds_that_take_too_long_are_not_derived(
    monkeypatch, observed, entries, width, patience, derived
) -> None:
    """Two rounds take a second, so that ten of them take five."""
    shape = SimpleNamespace(of=lambda *_: SimpleNamespace(observed=observed, entries=entries))
    monkeypatch.setattr(attack, "GameShape", shape)
    followed: list[int] = []
    monkeypatch.setattr(attack, "Adversary", lambda game, view, first: followed.append(first))
    monkeypatch.setattr(attack, "seconds_of", lambda work: work() or 1.0)
    defense = SimpleNamespace(n_rounds=10)
    game = SimpleNamespace(width=width, defense=defense, played=1)
    monkeypatch.setattr(attack, "_largest_game", lambda own: game)
    assert LikelihoodRatio()._is_derived(asking(), patience) is derived
    defense.n_rounds = 1
    LikelihoodRatio()._is_derived(asking(), patience)
    assert followed in ([], [2, 1])
    monkeypatch.setattr(attack, "_largest_game", lambda own: None)
    assert LikelihoodRatio()._is_derived(asking(), 0.0)


def test_another_number_of_rounds_is_taken_for_any_gain(monkeypatch) -> None:
    """Where the usual runs can certify nothing, the least that others can is more."""
    monkeypatch.setattr(plan, "_expected", lambda of, runs: 0.01 * (of.n_rounds == 3))
    monkeypatch.setattr(plan, "_numbers_of_rounds", lambda *_: iter([6, 3, 2]))
    monkeypatch.setattr(plan, "WORK", 6 * NUMBERS)

    def asked_of(self: QuestionContext, claim: Any) -> Any:
        game = SimpleNamespace(played=1)
        return SimpleNamespace(guesses=False, game=game, n_rounds=self.first_rounds or 10)

    monkeypatch.setattr(QuestionContext, "question", asked_of)
    own, found = plan.planned(asking(), CLAIM, 0)
    assert found is not None
    assert (own.first_rounds, found.n_rounds) == (3, 3)
    assert own.trials == 2000
    monkeypatch.setattr(plan, "_expected", lambda of, runs: 0.0)
    own, found = plan.planned(asking(), CLAIM, 4000)
    assert (own.first_rounds, own.trials) == (None, 4000)
