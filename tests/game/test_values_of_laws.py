"""Rounds that are played many times, draws that are left out, and the shapes of games, by hand."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dpaudit.defense.contract import Bracket, Gradient, Round, Setting
from dpaudit.defense.noise import Noise
from dpaudit.defense.transcript import broadcast
from dpaudit.errors import DpauditError, NotObservable
from dpaudit.files.threat import ThreatModel
from dpaudit.game.game import Game
from dpaudit.game.probing import linearity
from dpaudit.game.probing.linearity import Nonlinear
from dpaudit.game.runs import noise_law
from dpaudit.game.runs.noise_law import (
    LATEST,
    NoisyRow,
    RepeatedRound,
    declared_of_a_round,
    has_randomness_of_its_own,
    hiding_without,
    silenced,
    wide_game,
)
from dpaudit.game.step_inputs import ChosenNoise
from dpaudit.graphs.graph import Graph, build_graph
from dpaudit.release import Release
from dpaudit.rng import Streams
from tests.game.test_adversary import EAVESDROPPER, Gossip, State, curious

NOTHING: Any = None


class Toy(Gossip):
    """Each agent sends x + g + z, and in the next round what it kept of noise w, if it keeps some.

    The noise z has the deviation 1, or none at all in some rounds.
    """

    n_rounds: int = 6
    batch_size: int = 8
    quiet: tuple[int, ...] = ()
    family: str = "gaussian"
    multiplier: float = 2.0

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        own = noise.laplace if self.family == "laplace" else noise.gaussian
        Z = own("y", float(k not in self.quiet), state.X)
        W = noise.gaussian("w", 0.5, state.X)
        Y = state.X + gradient(state.X) + Z
        return Round(State(W), {"y": broadcast(graph, Y)})

    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        one = Release(family=self.family, noise_multiplier=self.multiplier, count=self.n_rounds)  # type: ignore[arg-type]
        return Bracket((one,), (one,), ())


def toy(n_agents: int = 4, d: int = 1, **options: Any) -> Game:
    setting = Setting(build_graph("ring", n_agents), (40,) * n_agents, d)
    return Game.of(Toy(**options), setting, 1, "add-remove", "poisson")


def releases(*given: tuple[float, int], family: str = "gaussian") -> tuple[Release, ...]:
    return tuple(
        Release(family=family, noise_multiplier=z, count=n, sampling="poisson", sampling_rate=0.5)  # type: ignore[arg-type]
        for z, n in given
    )


@pytest.mark.parametrize(
    ("declared", "found"),
    [
        ([(4.0, 10)], [(4.0, 1)]),
        ([(4.0, 11)], [(4.0, 2)]),  # two for each of ten rounds
        ([(4.0, 10), (2.0, 5)], [(2.0, 2)]),
        ([(4.0, 19), (2.0, 1)], [(2.0, 1), (4.0, 1)]),
        ([(4.0, 30), (2.0, 1), (3.0, 1)], [(2.0, 1), (3.0, 1), (4.0, 2)]),
        ([(0.0, 10)], None),
        ([], None),
        ([(float(z), 1) for z in range(1, 6)], [(1.0, 1)]),
        ([(float(z), 10) for z in range(1, 5)], [(1.0, 4)]),
        ([(float(z), 1) for z in range(1, 51)], None),  # five that differ in each round
    ],
)
def test_a_round_has_its_part_of_the_releases(declared: Any, found: Any) -> None:
    """With the record in the batch for certain, in units of what its draw displaces."""
    game: Any = SimpleNamespace(
        adjacency="add-remove", setting=None, victim=3, displacement=1.0,
        defense=SimpleNamespace(
            n_rounds=10, mechanism=lambda *_: SimpleNamespace(most=releases(*declared))
        ),
    )  # fmt: skip
    shown = declared_of_a_round(game, EAVESDROPPER)
    assert (None if shown is None else [(r.noise_multiplier, r.count) for r in shown]) == found
    for release in shown or ():
        assert (release.sampling, release.sampling_rate) == ("none", 1.0)
    game.displacement = 2.0
    twice = declared_of_a_round(game, EAVESDROPPER)
    if found is not None:
        assert twice is not None
        assert [r.noise_multiplier for r in twice] == [
            r.noise_over(2.0) for r in sorted(releases(*declared), key=lambda r: r.noise_multiplier)
        ][: len(found)]
    game.adjacency = "function"
    assert declared_of_a_round(game, EAVESDROPPER) is None
    game.adjacency = "replace-one"

    def silent(*_: Any) -> Any:
        raise DpauditError("DPA043", "of no such view")

    game.defense.mechanism = silent
    assert declared_of_a_round(game, EAVESDROPPER) is None


def test_a_round_that_draws_by_itself_differs_from_itself() -> None:
    class Own(Toy):
        def step(self, state: Any, k: int, graph: Any, gradient: Any, noise: Any) -> Round:
            played = super().step(state, k, graph, gradient, noise)
            return played._replace(sent={"y": broadcast(graph, torch.rand_like(state.X))})

    class Undefined(Toy):
        def step(self, state: Any, k: int, graph: Any, gradient: Any, noise: Any) -> Round:
            return Round(state, {"y": broadcast(graph, state.X / 0 * 0)})

    assert not has_randomness_of_its_own(toy())
    assert not has_randomness_of_its_own(replace(toy(), defense=Undefined()))
    assert has_randomness_of_its_own(replace(toy(), defense=Own()))


def test_the_law_is_looked_at_on_many_coordinates() -> None:
    assert wide_game(toy()).width == 1
    for d, width in ((5, 5), (linearity.PLAYED, linearity.PLAYED), (300, linearity.PLAYED)):
        found = wide_game(replace(toy(), coordinates=d, sampling_rate=0.2, spread=3))
        assert (found.width, found.spread, found.sampling_rate) == (width, 1, 1.0)


def repeated(
    game: Game, k: int, monkeypatch: pytest.MonkeyPatch, *views: ThreatModel, **of: Any
) -> Any:
    for name, value in {"LEAST": 4, "MOST": 9, **of.pop("limits", {})}.items():
        monkeypatch.setattr(noise_law, name, value)
    return RepeatedRound(
        wide_game(game), k, of.get("nonlinear"), views or [EAVESDROPPER], Streams(3)
    )


def test_noise_is_looked_at_where_it_shows_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the first row of each of four senders; noise that is kept shows in the round after."""
    found = repeated(toy(9), 1, monkeypatch)
    senders = [p.sender for p in found.places]
    assert senders == [0, 3, 5, 8]
    assert found.places[1] == NoisyRow("y", 3, 3, 1)
    assert (found.round, found._shown_in, found._numbers) == (1, 1, 9 + 2 * 9)
    kept = repeated(toy(4, quiet=(2, 3)), 2, monkeypatch)
    assert (kept._shown_in, [p.sender for p in kept.places]) == (3, [0, 1, 2, 3])
    later = repeated(toy(4, quiet=tuple(range(1, 9))), 1, monkeypatch)
    assert later._shown_in == 2
    assert later._numbers == 2 * (4 + 8)
    own = repeated(toy(4), 1, monkeypatch, curious(1))
    assert [p.sender for p in own.places] == [0, 1, 2]  # it reads what it sends, too
    two = repeated(toy(4), 1, monkeypatch, curious(1), ThreatModel(name="link", links=((3, 0),)))
    assert [p.sender for p in two.places] == [0, 1, 2, 3]
    linear = Nonlinear(1, "state", frozenset({"y"}), False, True, None)
    affine = repeated(toy(4), 1, monkeypatch, nonlinear=linear)
    assert (affine.places, affine._shown_in) == ([], 1)
    assert found.families == {"gaussian"}
    assert repeated(toy(4, family="laplace"), 1, monkeypatch).families == {"gaussian", "laplace"}


def test_noise_that_shows_too_late_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(Toy):
        def step(self, state: Any, k: int, graph: Any, gradient: Any, noise: Any) -> Round:
            W = noise.gaussian("w", 1.0, state.X) if k == 1 else state.X
            sent = state.X if k == self.shows else 0 * state.X
            return Round(State(W), {"y": broadcast(graph, sent)})

        shows: int = 4

    for shows, n_rounds, until in ((2, 6, 2), (4, 6, 4), (5, 6, 1), (4, 3, 1)):
        found = repeated(
            replace(toy(), defense=Late(shows=shows, n_rounds=n_rounds)), 1, monkeypatch
        )
        assert found._shown_in == until
        assert bool(found.places) == (until > 1)


def test_a_round_is_played_as_often_as_is_soon_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of four numbers, and eight draws: 12 numbers of a play, of which four are held."""
    found = repeated(toy(), 1, monkeypatch)
    assert found._numbers == 12
    for limits, plays in (
        ({}, 9),
        ({"MOST": 10**6, "ENTRIES": 70}, 17),
        ({"MOST": 10**6, "WORK": 200}, 16),
        ({"MOST": 10**6, "WORK": 30}, 4),
    ):
        monkeypatch.undo()
        assert repeated(toy(), 1, monkeypatch, limits=limits).plays == plays
    monkeypatch.undo()
    repeated(toy(), 1, monkeypatch, limits={"WORK": 4.8})
    monkeypatch.undo()
    with pytest.raises(NotObservable, match="a round has 12 numbers, and is to be played 4 times"):
        repeated(toy(), 1, monkeypatch, limits={"WORK": 4.7})


def test_samples_are_of_one_round_and_one_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """The record moves its agent's own message alone, by as much as it is in the batch."""
    game = toy(4)
    found = repeated(game, 2, monkeypatch, limits={"BLOCK": 24})
    places = found.places
    without, again = (found.sample(7, "name", places) for _ in range(2))
    assert [part.shape for part in without] == [(7, 1)] * 4
    for one, other in zip(without, again, strict=True):
        assert np.array_equal(one, other)
        assert len(np.unique(one)) == 7
    assert not np.array_equal(without[0], found.sample(7, "other", places)[0])
    for drawn in (1.0, -1.0, 3.0):
        there = found.sample(7, "name", places, victim=2, drawn=drawn)
        moved = [other - one for one, other in zip(without, there, strict=True)]
        assert [bool(m.any()) for m in moved] == [False, False, True, False]
        assert moved[2] == pytest.approx(drawn * game.length / 8)
    [alone] = found.sample(7, "name", places[1:2])
    assert np.array_equal(alone, without[1])
    other = repeated(toy(4), 1, monkeypatch, limits={"BLOCK": 24})
    assert not np.array_equal(other.sample(7, "name", other.places)[0], without[0])


def test_silenced_draws_are_zero_and_others_as_they_were() -> None:
    like = torch.zeros(3, 2).double()
    streams = Streams(5)
    plain, quiet = Noise(streams, 1), silenced(Noise(streams, 1), frozenset({"a", "b"}))
    assert not quiet.gaussian("a", 1.0, like).any()
    assert not quiet.laplace("b", 1.0, like).any()
    assert torch.equal(quiet.gaussian("c", 2.0, like), plain.gaussian("c", 2.0, like))
    assert torch.equal(quiet.laplace("d", 2.0, like), plain.laplace("d", 2.0, like))
    chosen = ChosenNoise()
    of_chosen = silenced(chosen, frozenset({"a"}))
    of_chosen.gaussian("a", 1.0, like)
    of_chosen.gaussian("c", 1.0, like)
    assert [*chosen.draws] == ["c"]
    assert type(of_chosen).__name__ == "ChosenNoise"


@pytest.mark.parametrize(
    ("part", "multiplier", "hiding"),
    [(1.0, 0.99, ["w", "y"]), (0.9, 0.99, ["y"]), (3.0, 1.01, ["w"]), (0.9, 1.01, [])],
)
def test_the_rest_hides_what_is_declared(part: float, multiplier: float, hiding: list[str]) -> None:
    """Without z the message has the noise w of deviation 1, and without w that of z."""
    game = toy(3)
    unit = game.length / 8  # by which a record moves a message

    class Units(Toy):
        def step(self, state: Any, k: int, graph: Any, gradient: Any, noise: Any) -> Round:
            Z = noise.gaussian("y", part * unit, state.X)
            W = noise.gaussian("w", unit, state.X)
            return Round(State(0 * W), {"y": broadcast(graph, state.X + gradient(state.X) + Z + W)})

    defense = Units(multiplier=multiplier, n_rounds=2, batch_size=8)
    setting = Setting(build_graph("ring", 3), (8,) * 3, 1)
    found = [sorted(f.names) for f in hiding_without(defense, setting, [EAVESDROPPER], 2)]
    assert found == [[name] for name in hiding]
    noted = [f.note for f in hiding_without(defense, setting, [EAVESDROPPER], 2)]
    for name, note in zip(hiding, noted, strict=True):
        assert note.startswith(f'without the draws "{name}" the noise is as it should be')
    assert list(hiding_without(Toy(n_rounds=1, quiet=(1,)), setting, [EAVESDROPPER], 0)) == []


def hides(monkeypatch: pytest.MonkeyPatch, **of: Any) -> bool:
    """Whether a leak of these sizes is hidden by declared ones."""
    leak = SimpleNamespace(
        noiseless=of.get("noiseless", {}), is_proven=of.get("proven", True),
        mechanism=lambda game, in_round, high: of.get("leaked", releases((2.0, 4))),
    )  # fmt: skip
    made: list[ThreatModel] = []

    def adversary(game: Any, threat_model: ThreatModel, n_rounds: int) -> Any:
        made.append(threat_model)
        return SimpleNamespace(
            reacts=of.get("reacts") if len(made) == 1 else of.get("still"), leak=leak
        )

    monkeypatch.setattr(noise_law, "Adversary", adversary)
    monkeypatch.setattr(noise_law, "replace", lambda game, defense: game)
    declared = SimpleNamespace(most=of.get("declared", releases((2.0, 8))))
    game: Any = SimpleNamespace(
        victim=1, setting=None, held=of.get("held"), is_lasting=of.get("lasting", False),
        displacement=of.get("displacement", 1.0),
        defense=SimpleNamespace(mechanism=lambda *_: declared, n_rounds=8),
    )  # fmt: skip
    found = noise_law._hides(game, 4, NOTHING, of.get("view", EAVESDROPPER))
    assert len(made) == (0 if of.get("asks_nothing") else 2 if of.get("reacts") else 1)
    if of.get("reacts"):
        assert made[1].links is None
    return found


LINK = ThreatModel(name="link", links=((0, 1),))


@pytest.mark.parametrize(
    ("of", "hidden"),
    [
        ({}, True),
        ({"view": curious(1), "asks_nothing": True}, True),
        ({"held": 3, "asks_nothing": True}, False),
        ({"declared": releases((2.0, 7), (0.0, 1)), "asks_nothing": True}, False),
        ({"noiseless": {1: "y"}}, False),
        ({"proven": False}, False),
        ({"view": LINK, "reacts": "it", "still": None}, True),
        ({"view": LINK, "reacts": "it", "still": "it"}, False),
        ({"leaked": ()}, True),
        ({"leaked": releases((2.0, 4), family="laplace")}, False),
        ({"leaked": releases((2.0 / (1 + 0.9e-6), 4))}, True),
        ({"leaked": releases((2.0 / (1 + 1.1e-6), 4))}, False),
        ({"leaked": releases((2.0, 9))}, False),  # one that is not declared
        ({"leaked": releases((9.0, 3), (1.0, 1))}, False),
        ({"declared": releases((9.0, 7), (1.0, 1)), "leaked": releases((1.0, 1), (9.0, 3))}, True),
        # Four of eight rounds of a lasting record: half of what is declared in squares, or in sums.
        ({"lasting": True, "leaked": releases((1.0, 1))}, True),
        ({"lasting": True, "leaked": releases((1.0 - 1e-5, 1))}, False),
        ({"lasting": True, "declared": releases((2.0, 8), family="laplace"),
          "leaked": releases((0.5, 1), family="laplace")}, True),
        ({"lasting": True, "declared": releases((2.0, 8), family="laplace"),
          "leaked": releases((0.5 - 1e-5, 1), family="laplace")}, False),
        ({"lasting": True, "declared": releases((2.0, 8), family="laplace"), "displacement": 2.0,
          "leaked": releases((0.25, 1), family="laplace")}, True),
    ],
)  # fmt: skip
def test_a_leak_is_hidden_by_what_is_declared(monkeypatch, of: Any, hidden: bool) -> None:
    assert hides(monkeypatch, **of) is hidden


def test_games_are_of_every_agent_with_records(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(build_graph("ring", 5), (40, 0, 40, 40, 40), 1)
    games = list(noise_law._games(Toy(), setting))
    assert [game.victim for game in games] == [0, 2, 3, 4]
    assert {game.adjacency for game in games} == {"add-remove"}
    monkeypatch.setattr(noise_law, "SPARSE_FROM", 2)
    assert [game.victim for game in noise_law._games(Toy(), setting)] == [0, 3]
    monkeypatch.setattr(noise_law, "SPARSE_FROM", 3)
    assert [game.victim for game in noise_law._games(Toy(), setting)] == [0, 3]
    monkeypatch.setattr(noise_law, "in_layers", lambda game: replace(game, filled=2))
    assert {game.filled for game in noise_law._games(Toy(), setting)} == {2}
    assert noise_law._asked(games[0], 2) == {"y", "w"}
    assert LATEST == 100
