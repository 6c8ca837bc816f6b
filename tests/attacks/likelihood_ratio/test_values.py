"""Which adversary a question is read by, and what rounds it is tried on, by hand."""

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from dpaudit.attacks.likelihood_ratio import question
from dpaudit.attacks.likelihood_ratio.question import QuestionContext
from dpaudit.errors import DpauditError
from dpaudit.files.threat import ThreatModel


@dataclass(frozen=True)
class Played:
    """A game, of which the worst batch is that of round 3."""

    width: int | None = None
    sampling_rate: float = 0.2
    first: int = 1
    in_one_round: bool = False
    noise: bool = True
    held: None = None
    played: int = 1

    def without_noise(self) -> "Played":
        return replace(self, noise=False)


def asking() -> QuestionContext:
    streams = SimpleNamespace(child=lambda name: SimpleNamespace(child=lambda name: name))
    context: Any = SimpleNamespace(streams=streams)
    return QuestionContext(context, ThreatModel(name="view"), 10, None, 0.05, False)


@pytest.mark.parametrize("raises", [False, True])
def test_a_step_is_tried_with_the_record_in_every_batch(monkeypatch, raises: bool) -> None:
    tried: list[Any] = []

    def play(adversary: Any, runs: int, streams: Any, game: Played) -> None:
        tried.append((adversary, runs, streams, game))
        if raises and not game.noise:
            raise DpauditError("DPA046", "no root")

    monkeypatch.setattr(question, "Adversary", lambda *given: given)
    monkeypatch.setattr(question, "play", play)
    own: Any = asking()
    found = own._follows(Played(width=3), 7)
    adversary = (Played(), own.threat_model, 7)
    drawn = Played(sampling_rate=1.0)
    assert tried == [
        (adversary, 50, "followed", game) for game in (drawn, replace(drawn, noise=False))
    ]
    assert found == (None if raises else adversary)


@pytest.mark.parametrize(
    ("linear", "fewest", "follows", "first", "width", "read_by"),
    [
        (True, 1, None, 1, None, "another"),
        (False, 1, "same", 1, None, "tried"),
        (False, 1, "same", 3, None, "another"),  # it was tried on another batch
        (False, 1, "same", 1, 5, "projection"),
        (False, 1, None, 1, None, "projected"),
        (False, 2, "same", 1, None, "projected"),
    ],
)
def test_a_step_is_read_by_an_adversary_that_follows_it(
    monkeypatch, linear, fewest, follows, first, width, read_by
) -> None:
    game, tries = Played(width=width), list[Any]()
    nonlinear = None if linear else SimpleNamespace(fewest=fewest, defined=True)

    def tried(self: Any, of: Played, n_rounds: int) -> Any:
        tries.append((of, n_rounds))
        return SimpleNamespace(game=of, n_rounds=n_rounds, read_by="tried") if follows else None

    def another(of: Played, view: Any, n_rounds: int) -> Any:
        return SimpleNamespace(game=of, n_rounds=n_rounds, read_by="another")

    monkeypatch.setattr(QuestionContext, "_follows", tried)
    monkeypatch.setattr(QuestionContext, "_game_of", lambda *_: game)
    monkeypatch.setattr(QuestionContext, "_played", lambda *_: (game, 1, None))
    monkeypatch.setattr(
        QuestionContext, "_projected", lambda *_: SimpleNamespace(read_by="projected")
    )
    monkeypatch.setattr(
        QuestionContext, "_about", lambda self, claim, of, reads, **known: (reads, known)
    )
    monkeypatch.setattr(QuestionContext, "rounds", lambda self, coordinates=1: 7)
    monkeypatch.setattr(question, "nonlinearity", lambda *_: nonlinear)
    monkeypatch.setattr(question, "Adversary", another)
    monkeypatch.setattr(
        question, "ProjectionAdversary", lambda *_: SimpleNamespace(read_by="projection")
    )
    monkeypatch.setattr(question, "_algebra", lambda *_: None)
    batch = replace(game, first=first)
    monkeypatch.setattr(question.record, "in_worst_batch", lambda *_: batch)
    claim: Any = SimpleNamespace(adjacency="add-remove", scope="run")
    found: Any = asking().question(claim)
    assert tries == ([] if linear or fewest > 1 else [(game, 7)])
    reads = found if read_by == "projected" else found[0]
    assert reads.read_by == read_by
    if read_by in ("tried", "another"):
        assert (reads.game, reads.n_rounds) == (batch, 7)
        assert (found[1]["nonlinear"], found[1]["mechanism"]) == (nonlinear, ())
