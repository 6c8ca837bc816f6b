"""Which runs are planned for a claim, of which games, by hand."""

from fractions import Fraction
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from dpaudit.attacks.likelihood_ratio import exact, plan, runs
from dpaudit.attacks.likelihood_ratio import question as question_
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Name
from dpaudit.files.threat import ThreatModel
from dpaudit.files.verdict import Verdict

NOTHING: Any = None
VIEW = ThreatModel(name="view")
CLAIM = Claim(text="ours", epsilon=1.0, delta=1e-5)


def test_matrices_are_asked_for_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 400,000 entries of noise, beyond which it is whitened."""
    asked: list[float] = []
    view = SimpleNamespace(record=SimpleNamespace(size=1), file=lambda *_: ("name", b"content"))
    algebra = SimpleNamespace(linear_view=lambda most: asked.append(most) or view)
    leak = SimpleNamespace(has_laplace=False, noiseless={}, batches=1, mechanism=lambda *_: "least")
    game = SimpleNamespace(displacement=1, filled=1)
    own: Any = SimpleNamespace(algebra=algebra, leak=leak, game=game, in_round=None, meet=False)
    finding: Any = SimpleNamespace(
        releases={"least": "least"}, model_copy=lambda update: update["artifacts"]
    )
    run: Any = SimpleNamespace(write=lambda *_: None)
    assert exact.with_matrices(finding, own, run) == {"linear view": "name"}
    assert asked == [400_000]


@pytest.mark.parametrize(
    ("expected", "rounds", "runs", "chosen"),
    [
        ({(8, 2000): 1.0, (8, 300): 0.5, (4, 600): 2.0}, [8, 4], {8: 300, 4: 600}, (4, 600)),
        ({(8, 2000): 1.0, (8, 300): 0.5, (4, 600): 0.9}, [8, 4], {8: 300, 4: 600}, (None, 2000)),
        ({(8, 2000): 0.1, (8, 199): 9.0, (4, 200): 0.2}, [8, 4], {8: 199, 4: 200}, (4, 200)),
        # so many runs are the most that are played: fewer rounds give no more of them
        ({(8, 2000): 0.1, (8, 50_000): 0.2, (4, 50_000): 9.0}, [8, 4], {8: 70_000, 4: 90_000},
         (8, 50_000)),
        ({(8, 2000): None}, [8], {8: 300}, (None, 2000)),
    ],
)  # fmt: skip
def test_runs_are_planned_by_what_they_may_certify(
    monkeypatch, expected, rounds, runs, chosen
) -> None:
    class Asking(NamedTuple):
        trials: int = 2000
        first_rounds: int | None = None

        def rounds(self, played: int) -> int:
            return 8

        def question(self, claim: Any) -> Any:
            n = self.first_rounds or 8
            return SimpleNamespace(n_rounds=n, guesses=False, game=SimpleNamespace(played=1))

    monkeypatch.setattr(plan, "replace", lambda asking, **of: asking._replace(**of))
    monkeypatch.setattr(plan, "_expected", lambda of, n: expected.get((of.n_rounds, n)))
    monkeypatch.setattr(plan, "_numbers_of_rounds", lambda *_: iter(rounds))
    monkeypatch.setattr(plan, "WORK", 10**6)
    monkeypatch.setattr(
        plan, "_work_of_a_run", lambda asking, of: Fraction(10**6, runs[of.n_rounds])
    )
    asking: Any = Asking()
    own: Any
    own, found = plan.planned(asking, CLAIM, 0)
    assert (own.first_rounds, int(own.trials)) == chosen
    assert found is not None
    assert found.n_rounds == (chosen[0] or 8)
    none: Any = SimpleNamespace(question=lambda claim: None, trials=5, _replace=lambda **_: none)
    assert plan.planned(none, CLAIM, 0) == (none, None)
    guessing: Any = SimpleNamespace(guesses=True)
    blind: Any = SimpleNamespace(
        question=lambda claim: guessing, trials=5, _replace=lambda **_: blind
    )
    assert plan.planned(blind, CLAIM, 0) == (blind, guessing)


def test_noise_on_top_of_enough_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first defense without some draws whose noise is as it should be says so."""
    monkeypatch.setattr(runs, "replace", lambda one, **of: SimpleNamespace(**{**vars(one), **of}))
    monkeypatch.setattr(
        runs, "hiding_without",
        lambda defense, real, views, n: [SimpleNamespace(note=f"without {i}") for i in range(3)],
    )  # fmt: skip
    monkeypatch.setattr(runs, "Adversary", lambda game, view, n: game.defense.note)
    monkeypatch.setattr(runs, "without_record", lambda game: game)
    wide = {"without 0": 2, "without 1": 0, "without 2": 2}
    asked: list[Any] = []

    def play(adversary: str, trials: int, own: Any, in_round: Any, game: Any) -> Any:
        asked.append((adversary, trials, own, in_round))
        without = SimpleNamespace(features=np.zeros((trials, wide[adversary])))
        return SimpleNamespace(without=without)

    def control(question: Any, innovations: Any) -> Any:
        verdict = Verdict.UNSUPPORTED if asked[-1][0] in differing else None
        return SimpleNamespace(
            verdict=verdict, notes=("note",), model_copy=lambda update: update["notes"]
        )

    monkeypatch.setattr(runs, "play", play)
    monkeypatch.setattr(runs, "_noise_control", control)
    game = SimpleNamespace(
        setting=SimpleNamespace(), coordinates=9, layers=(), defense=SimpleNamespace()
    )
    own: Any = SimpleNamespace(game=game, n_rounds=3, threat_model="view", in_round=2)
    player: Any = SimpleNamespace(streams=SimpleNamespace(child=lambda name: name))
    alarm: Any = SimpleNamespace(metrics={Name.P_VALUE: SimpleNamespace(value=1e-8)})
    differing = {"without 0"}
    found = runs._without_further_noise(own, 7, player, alarm)
    assert found == ("note", "without 2", "with these draws p = 1e-08")  # type: ignore[comparison-overlap]
    assert asked == [(f"without {i}", 7, "without draws", 2) for i in range(3)]
    differing |= {"without 2"}
    assert runs._without_further_noise(own, 7, player, alarm) is None


@pytest.mark.parametrize(("in_round", "of", "stage"), [(None, 7, "name"), (3, 3, "name, round 3")])
def test_runs_of_a_kind_have_streams_of_their_own(monkeypatch, in_round, of, stage) -> None:
    """With the record in the round of the question, unless it is another one."""
    asked: list[Any] = []
    monkeypatch.setattr(runs, "play", lambda *of, **how: asked.append((of, how)))
    own: Any = SimpleNamespace(adversary="adversary", in_round=7, game="game")
    streams: Any = SimpleNamespace(child=lambda *of: of)
    saved: Any = SimpleNamespace(stage=lambda name: name)
    player = runs.GamePlayer(own, streams, NOTHING, saved, 40, 1000)
    player.play("name", 9, in_round=in_round)
    child = ("name",) if in_round is None else ("name", 3)
    [(given, how)] = asked
    assert given == ("adversary", 9, child, of, "game", NOTHING)
    assert how == {"checkpoint": stage, "enough": None}


@pytest.mark.parametrize(
    ("adjacency", "scope", "expected"),
    [
        ("add-remove", "run", {}),
        ("agent-identity", "run", {"sampling_rate": 1.0, "sampling": "none", "cycle": 1}),
        ("add-remove", "round", {"in_one_round": True, "cycle": 1}),
    ],
)
def test_a_game_is_about_what_is_claimed(monkeypatch, adjacency, scope, expected) -> None:
    """Of a step that one coordinate does not play, a projection reads one round or all."""
    monkeypatch.setattr(question_, "replace", lambda game, **of: {**game, **of})
    monkeypatch.setattr(question_, "worst_off", lambda *_: 2)
    monkeypatch.setattr(question_, "Game", SimpleNamespace(of=lambda *_: {}))
    monkeypatch.setattr(question_.layers, "in_layers", lambda game: game)
    context: Any = SimpleNamespace(
        defense=None, setting=None, streams=SimpleNamespace(child=lambda name: None)
    )
    own = question_.QuestionContext(context, VIEW, 10, None, 0.05, False)
    claim: Any = SimpleNamespace(adjacency=adjacency, scope=scope)
    assert own._game_of(claim) == expected
    game = SimpleNamespace(in_one_round=scope == "round", played=3)
    monkeypatch.setattr(question_, "replace", lambda game, **of: game)
    monkeypatch.setattr(question_, "ProjectionAdversary", lambda game, view, n: n)
    monkeypatch.setattr(question_, "defined", lambda game: game)
    monkeypatch.setattr(
        question_.QuestionContext, "rounds", lambda self, coordinates: 10 * coordinates
    )
    monkeypatch.setattr(
        question_.QuestionContext,
        "_about",
        lambda self, claim, game, reads, **known: (reads, known),
    )
    nonlinear: Any = SimpleNamespace(fewest=1)
    reads, known = own._projected(claim, game, nonlinear)  # type: ignore[misc,arg-type]
    revealed = known["revealed"]
    assert reads == (1 if scope == "round" else 30)
    assert revealed == ((1, 1, False) if scope == "round" else None)


def test_runs_with_the_record_are_of_rounds_without_an_algebra(monkeypatch: Any) -> None:
    """In each round that is asked for, with a score of its own; 1,000 where none are counted."""
    monkeypatch.setattr(runs, "replace", lambda game, sampling_rate: f"at rate {sampling_rate}")
    monkeypatch.setattr(runs, "with_every_link", lambda view: f"all of {view}")
    monkeypatch.setattr(runs, "declared_of_a_round", lambda game, view: declared and (view,))
    monkeypatch.setattr(runs, "rounds_of_a_draw", lambda question, streams: [1, 4])
    monkeypatch.setattr(runs, "_is_gaussian", lambda question: gaussian)
    asked: list[Any] = []

    class Player(runs.GamePlayer):
        def _score(self, name: str, game: Any = None, in_round: int | None = None) -> Any:
            asked.append((name, game, in_round))
            scored: Any = SimpleNamespace(choosing=f"choosing {in_round}")
            return type("S", (), {"choosing": scored.choosing, "__call__": lambda s, x: x})()

        def play(self, name: str, trials: int, game: Any = None, k: Any = None, *_: Any) -> Any:
            asked.append((name, trials, game, k))
            return f"scores {k}"

    def played(trials: int, followed: bool = False) -> Any:
        own: Any = SimpleNamespace(game="game", threat_model="view", is_followed=followed)
        return Player(own, NOTHING, NOTHING, NOTHING, trials, 1000)._with_drawn(np.ones((5, 2)))

    gaussian, declared = True, True
    found = played(40)
    assert found.declared == ("all of view",)
    assert [tuple(one) for one in found.drawn] == [
        (k, f"scores {k}", f"choosing {k}") for k in (1, 4)
    ]
    assert asked[:2] == [
        ("drawn, training", "at rate 1.0", 1), ("drawn", 40, "at rate 1.0", 1),
    ]  # fmt: skip
    assert found.noiseless.shape == (5, 2)
    played(0)
    assert asked[-1][1] == 1000
    gaussian, declared = False, False
    other = played(40)
    assert (other.declared, other.drawn, other.noiseless.shape) == (False, [], (5, 0))
    assert played(40, followed=True).declared is None
