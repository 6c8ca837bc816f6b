"""What a record weighs at several coordinates, in layers and in runs, by hand-made defenses."""

from dataclasses import replace
from math import inf, sqrt
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from dpaudit.defense.contract import Gradient, Round, Setting
from dpaudit.defense.noise import Noise
from dpaudit.defense.transcript import broadcast, unicast
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.filtering.leak import leak_of
from dpaudit.game.game import Game
from dpaudit.game.probing import observer
from dpaudit.game.probing.observer import Observer
from dpaudit.game.runs import noise_law, play
from dpaudit.game.runs.noise_law import hiding_without
from dpaudit.game.step_inputs import ChosenNoise, state_of, varying
from dpaudit.game.worst_case import layers, record
from dpaudit.game.worst_case.layers import wider
from dpaudit.graphs.graph import Graph, build_graph
from dpaudit.rng import Streams
from tests.game.test_adversary import EAVESDROPPER, Gossip, State, curious
from tests.game.three_agents import BEGIN, ONE, ROOT2, Trio, trio, weights

W = weights()


def close(found: Tensor, expected: Tensor, rtol: float = 1e-9) -> None:
    np.testing.assert_allclose(found, expected, rtol=rtol)


class Shaped(Gossip):
    """x + g + s z is sent, of s that depends on how many coordinates there are."""

    n_rounds: int = 1
    batch_size: int = 8
    shape: str = "alike"
    laplace: bool = False

    def size(self, d: int, like: Tensor) -> Tensor:
        one, place = torch.ones(d).to(like), torch.arange(d)
        second = torch.where(2 * place < d, 1.0, 1 / 3).to(like)  # the second half
        return {"thin": one / sqrt(d), "uneven": one / (1 + place), "halves": second}.get(
            self.shape, one
        )

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        own, size = noise.laplace if self.laplace else noise.gaussian, None
        size = self.size(state.X.shape[-1], state.X)
        Y = state.X + gradient(state.X) + size * own("y", 1.0, state.X)
        if self.shape == "twice":
            Y = Y + size * own("further", 2.0, state.X)
        if self.shape == "centred":
            Y = Y - Y.mean(-1, keepdim=True)
        return Round(State(Y), {"y": broadcast(graph, Y)})


def shaped(shape: str, d: int = 4, sampling: Any = "poisson", **options: Any) -> Game:
    of_layers = (("a", d // 2), ("b", d // 2)) if shape == "halves" else ()
    setting = Setting(build_graph("ring", 3), (40,) * 3, d, of_layers)
    return Game.of(Shaped(shape=shape, **options), setting, 1, "add-remove", sampling)


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
@pytest.mark.parametrize(
    ("shape", "times", "of", "mixes"),
    [
        ("alike", None, "", False),
        ("thin", 2.0, "at the model's 4 coordinates", False),
        ("uneven", 4.0, "at other coordinates", False),
        ("halves", sqrt(1 / 2 + 9 / 2), "in 2 layers together", False),
        ("centred", inf, "at 4 coordinates", True),
        ("twice", None, "", False),
    ],
)
def test_a_wider_model_reveals_as_its_noise_says(shape, times, of, mixes, sampling) -> None:
    """One coordinate has noise of 1; without the mean, sqrt(3/4) of a record is left of four."""
    found = wider(shaped(shape, sampling=sampling), EAVESDROPPER)
    if times is None:
        assert found is None
        return
    assert found is not None
    assert (found.message, found.where, found.mixes) == ("y", of, mixes)
    assert found.times == pytest.approx(times, rel=1e-6)
    assert found.d == (2 if shape == "halves" else 4)
    size = {"thin": 2.0, "halves": times, "centred": sqrt(3 / 4)}.get(shape)
    if size is None:
        assert found.release is None
        return
    assert found.release is not None
    displacement = 2.0 if sampling == "fixed" else 1.0
    moves = ONE * displacement * size
    assert found.release.noise_multiplier == pytest.approx(displacement / moves, rel=1e-6)
    assert (found.release.family, found.release.sampling) == ("gaussian", sampling)


def test_a_wider_model_is_played_up_to_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six links and three agents of four coordinates have 36 numbers, and noise on each 36^2."""
    thin, uneven, centred = shaped("thin"), shaped("uneven"), shaped("centred")
    for entries, is_played in ((36, True), (35, False)):
        monkeypatch.setattr(layers, "ENTRIES", entries)
        assert (layers._by_dimension(thin, EAVESDROPPER) is not None) is is_played
        assert (layers._by_coordinate(uneven, EAVESDROPPER) is not None) is is_played
    for entries, is_played in ((36**2, True), (36**2 - 1, False)):
        monkeypatch.setattr(layers, "ENTRIES", entries)
        assert (layers._by_mixing(centred, EAVESDROPPER) is not None) is is_played
    monkeypatch.undo()
    held = {"held": 3}
    for one, way in (
        (thin, layers._by_dimension),
        (uneven, layers._by_coordinate),
        (centred, layers._by_mixing),
        (shaped("halves"), layers._by_layers),
    ):
        assert way(one, EAVESDROPPER) is not None
        assert way(replace(one, **held), EAVESDROPPER) is None  # type: ignore[arg-type]
        assert way(replace(one, coordinates=1, layers=()), EAVESDROPPER) is None
        nothing_read = ThreatModel(name="links", links=((7, 8),))
        assert way(one, nothing_read) is None
    assert layers._by_layers(replace(shaped("halves"), filled=2), EAVESDROPPER) is None


@pytest.mark.parametrize(
    ("options", "multiplier"),
    [
        ({"shape": "alike"}, 1.0),
        ({"shape": "twice"}, sqrt(5)),
        ({"shape": "alike", "laplace": True}, 1.0),
        ({"shape": "twice", "laplace": True}, None),  # two draws of Laplace noise are of no family
    ],
)
def test_one_message_is_a_release_of_its_draws(options: Any, multiplier: float | None) -> None:
    game = shaped(**options)
    found = layers._release(game, EAVESDROPPER, 4, ("y", 1))
    if multiplier is None:
        assert found is None
        return
    assert found is not None
    assert found.family == ("laplace" if options.get("laplace") else "gaussian")
    assert found.noise_multiplier == pytest.approx(multiplier / ONE)
    assert layers._release(shaped("centred"), EAVESDROPPER, 4, ("y", 1)) is None  # it mixes


def test_weights_are_of_the_first_coordinate_of_each_row() -> None:
    """A draw each, in a size of its own where all are played at once."""
    game, rows = shaped("twice", laplace=True), range(3)
    each = layers._weights(game, EAVESDROPPER, 4, layers._one_by_one)
    assert each is not None
    assert each.record == {("y", i): (ONE if i == 1 else 0.0) for i in rows}
    for i in rows:
        one = [ROOT2 * (row == i) for row in rows]
        assert each.draws["y", i].tolist() == pytest.approx([*one, *(2 * size for size in one)])
    assert each.laplace.tolist() == [True] * 6
    together = layers._weights(shaped("alike"), EAVESDROPPER, 4, layers._at_once)
    assert together is not None
    sizes = torch.rand(3, generator=torch.Generator().manual_seed(0)) + 0.5
    assert [float(together.draws["y", i]) for i in rows] == pytest.approx(sizes.tolist())
    assert together.laplace.tolist() == [False]
    assert layers._weights(shaped("centred"), EAVESDROPPER, 4, layers._at_once) is None
    some = layers._weights(game, curious(0), 4, layers._one_by_one)
    assert some is not None
    assert set(some.record) == {("y", i) for i in rows}  # a ring of three: all are neighbours


class Mixed(NamedTuple):
    """A state of tensors of several kinds."""

    X: Tensor
    plain: Tensor
    counts: Tensor
    nothing: None
    each: Tensor


def sizes_of_rows() -> Tensor:
    """Of the noise that is played on one coordinate of three agents."""
    generator = torch.Generator().manual_seed(0)
    return torch.rand(3, 1, generator=generator, dtype=torch.float64)[:, 0] + 0.5


def test_record_and_noise_move_each_coordinate_by_itself() -> None:
    """Of a defense that begins elsewhere than at zero; the record, of two layers, is in both."""
    sizes = sizes_of_rows()
    two = replace(trio(), layers=(("a", 2), ("b", 2)), filled=2)
    found = layers._moved_in_layers(two, 2)
    assert list(found) == [(1, "y"), (1, "v")]
    y, v = found.values()
    expected = torch.zeros(3, 2).double()
    expected[1] = ONE / ROOT2
    close(y.by_record, expected)
    assert not v.by_record.any()
    close(y.by_noise, 3 * sizes[:, None].expand(3, 2))
    close(v.by_noise, ROOT2 * sizes[:, None].expand(3, 2))


class Late(Trio):
    """It takes no gradient in the first round."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        def none(X: Tensor) -> Tensor:
            return torch.zeros_like(X)

        return super().step(state, k, graph, none if k == 1 else gradient, noise)  # type: ignore[arg-type]


def test_rounds_are_played_until_a_message_shows_the_record() -> None:
    """In round 2; by then noise of round 1 is in what neighbours send."""
    game, sizes = replace(trio(), defense=Late(n_rounds=3)), sizes_of_rows()
    found = layers._moved_in_layers(game, 1)
    assert list(found) == [(k, m) for k in (1, 2) for m in "yv"]
    first, second = found[1, "y"], found[2, "y"]
    assert not first.by_record.any()
    assert second.by_record[:, 0].tolist() == [0.0, ONE, 0.0]
    close(first.by_noise[:, 0], 3 * sizes)
    carried = 3 * sizes + 2 * torch.from_numpy(W) @ (3 * sizes)
    close(second.by_noise[:, 0], carried)
    close(found[2, "v"].by_noise[:, 0], ROOT2 * sizes)


def test_models_are_those_that_gradients_are_asked_at() -> None:
    """First without noise and record, then with the record in round 1, then with noise alone."""
    game, begin = trio(), torch.tensor(BEGIN).double()
    (k1, askers, first), (k2, _, second) = play._models(game, 2)
    assert (k1, k2, askers) == (1, 2, [0, 1, 2] * 2)
    assert first.shape == (2 + play.PILOT, 6)
    generator = torch.Generator().manual_seed(0)
    z, w = (torch.zeros(2 + play.PILOT, 3).double() for _ in range(2))
    for draws in (z, w):
        draws[2:, :, None].normal_(generator=generator)
    record = torch.zeros_like(z)
    record[1, 1] = ONE
    Y = 2 * begin + 3 * z + record
    close(first, torch.cat([begin.expand_as(z), 7 * Y], dim=1))
    X = Y @ torch.from_numpy(W).T + record
    z2 = torch.zeros_like(z)
    z2[2:, :, None].normal_(generator=generator)
    close(second, torch.cat([X, 7 * (2 * X + 3 * z2)], dim=1))
    late = list(play._models(replace(game, defense=Late(n_rounds=3)), 2))
    assert [k for k, *_ in late] == [2]  # of rounds in which gradients are asked for


def test_messages_move_by_their_shift_over_the_spread_of_runs() -> None:
    """In one round, of noise that is drawn here as there; in two coordinates as in one."""
    game, runs = shaped("twice", d=1), 40
    found = record._moved(game, EAVESDROPPER, runs, Streams(5))
    noise = Noise(Streams(5), 1)
    like = torch.zeros(runs, 3, 1).double()
    drawn = noise.gaussian("y", 1.0, like) + noise.gaussian("further", 2.0, like)
    expected = (ONE / drawn.std(0)[:, 0]).square().double()
    close(found, expected, rtol=1e-4)
    some = record._moved(game, ThreatModel(name="link", links=((2, 0),)), runs, Streams(5))
    close(some, torch.tensor([0.0, 0.0, 1.0]).double() * expected, rtol=1e-4)
    wide = replace(shaped("twice", d=2), spread=2)
    like = torch.zeros(runs, 3, 2).double()
    noise = Noise(Streams(5), 1)
    drawn = noise.gaussian("y", 1.0, like) + noise.gaussian("further", 2.0, like)
    every = (ONE / drawn.std(0)).square().double().mean(1)  # |g|^2 is split in two, and summed
    found = record._moved(wide, EAVESDROPPER, runs, Streams(5))
    close(found, every, rtol=1e-4)


class Centred(Gossip):
    """Every link carries its sender's gradient under noise, less its mean over coordinates."""

    batch_size: int = 8

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        own = gradient(state.X)[..., graph.senders, :]
        Y = own + noise.gaussian("mask", 1.0, own)
        return Round(state, {"y": unicast(graph, Y - Y.mean(-1, keepdim=True))})


def test_whose_a_draw_is_shows_at_the_coordinates_of_runs() -> None:
    """At one coordinate nothing is left of a message without its mean, and draws are of agents."""
    setting = Setting(build_graph("directed-ring", 4), (40,) * 4, 3)
    game = Game.of(Centred(), setting, 1, "add-remove")
    asked = ChosenNoise()
    sent = game.first_sent(asked)
    assert not observer.is_of_links(game, 1, "mask", sent)
    assert observer.is_of_links(replace(game, width=3), 1, "mask", sent)
    assert observer.is_of_links(game, 1, "y", sent)  # named after a message of links
    graph, own = setting.network.at(1), Observer(replace(game, width=3), curious(0))
    [row] = own._own(1, sent, asked.draws)["mask"].tolist()
    assert int(graph.senders[row]) == 0


class Summed(Gossip):
    """Two draws of Laplace noise hide a message together, so that neither is recovered."""

    batch_size: int = 8
    single: bool = False

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        Y = gradient(state.X) + noise.laplace("one", 1.0, state.X)
        if not self.single:
            Y = Y + noise.laplace("other", 1.0, state.X)
        return Round(State(0 * Y), {"y": broadcast(graph, Y)})


def test_laplace_draws_that_add_up_are_not_recovered() -> None:
    setting = Setting(build_graph("ring", 3), (40,) * 3, 1)
    for single in (True, False):
        game = Game.of(Summed(single=single), setting, 1, "add-remove", "poisson")
        adversary = Adversary(game, EAVESDROPPER, 1)
        [reading] = adversary.rounds
        assert (reading.exact, reading.has_laplace) == (single, True)
        leak = adversary.leak
        assert leak.is_pure is single
        noise = 2.0 if single else 4.0  # variance of the message
        assert leak.by_use[0].low == pytest.approx(ONE**2 / noise)
        if single:
            assert float(leak.pure[0]) == pytest.approx(ONE)


def test_a_round_without_the_record_leaks_nothing() -> None:
    game = replace(trio(n_rounds=3), cycle=2)
    leak = leak_of(Adversary(game, curious(0), 3).rounds, game)
    assert [h.low > 0 for h in leak.by_use] == [True, False, True]
    assert (leak.by_use[1].low, leak.by_use[1].high) == (0.0, 0.0)


def test_tensors_with_trials_vary() -> None:
    """Floating ones, with trials and agents in front; others of a state stay as they are."""
    like: Any = Mixed(
        torch.ones(2, 3, 4), torch.ones(2, 3), torch.ones(2, 3, 4).long(), None,
        torch.ones(2, 3, 1, 2, dtype=torch.float32),
    )  # fmt: skip
    assert list(varying(like)) == ["X", "each"]
    flat = torch.arange(18.0).expand(5, -1).double()
    found = state_of(like, flat)
    assert found.X.tolist() == [[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]] * 5
    assert found.each.flatten(1).tolist() == [[12, 13, 14, 15, 16, 17]] * 5
    assert found.each.dtype == torch.float32
    assert (found.each.shape, found.plain) == ((5, 3, 1, 2), like.plain)


@pytest.mark.parametrize("which", [[], ["agent 0"], ["agent 2"], ["agent 0", "agent 2"]])
def test_draws_are_left_out_of_steps_that_are_linear_to_all(monkeypatch, which: list[str]) -> None:
    monkeypatch.setattr(
        noise_law, "nonlinearity",
        lambda game, threat_model, n: "steep" if threat_model.name in which else None,
    )  # fmt: skip
    monkeypatch.setattr(noise_law, "_hides", lambda *_: True)
    monkeypatch.setattr(noise_law, "_sets", lambda names: iter([names]))
    found = list(hiding_without(Trio(), trio().setting, [curious(0), curious(2)], 2))
    assert len(found) == (not which)
