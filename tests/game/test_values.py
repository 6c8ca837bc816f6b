"""Values of the game and of its linear algebra, dense and sparse, one by one."""

from dataclasses import replace
from math import inf, sqrt
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

from dpaudit.defense.contract import Setting
from dpaudit.files.threat import ThreatModel
from dpaudit.game import matrices
from dpaudit.game.filtering.adversary import with_every_link
from dpaudit.game.game import Game
from dpaudit.game.matrices import NotLocal, blocks, column_norms, compressed, factor_with, factors
from dpaudit.game.probing.probed_round import NOISELESS, Effects, ProbedRound, _moves
from dpaudit.game.step_inputs import CanaryGradient, ChosenNoise
from dpaudit.graphs.graph import build_graph
from tests.game.test_adversary import curious, game_of

PARTS = np.zeros((6, 7))
PARTS[:2, :3] = [[1.0, 2.0, 0.0], [0.0, 3.0, -1.0]]
PARTS[2:4, 3:6] = [[2.0, 0.0, 1.0], [1.0, 1.0, 0.0]]
PARTS[4, 6] = -5.0


def dense(A: Any) -> np.ndarray:
    return A if isinstance(A, np.ndarray) else A.toarray()


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
def test_factors_are_of_the_whole_without_rounding(kind) -> None:
    A = PARTS.copy()
    A[5, 6] = 1e-12
    V, S, U, part = factors(kind(A))
    np.testing.assert_allclose(dense(V).T * S @ dense(U).T, A, atol=1e-10)
    np.testing.assert_allclose(np.sort(S), np.sort(np.linalg.svd(A)[1])[1:], rtol=1e-10)
    np.testing.assert_allclose(dense(V) @ dense(V).T, np.eye(5), atol=1e-10)
    assert len(S) == len(part) == 5
    assert len(set(part.tolist())) == (1 if kind is np.asarray else 3)
    assert len(factors(kind(A), 0.5).S) == int((np.linalg.svd(A)[1] > 2.5 * (1 + 1e-9)).sum())
    assert len(factors(kind(0 * A)).S) == 0


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
def test_compressed_rows_have_the_same_gram_matrix(kind) -> None:
    A = np.concatenate([PARTS, 2 * PARTS, np.full((1, 7), 1e-13)])
    found = dense(compressed(kind(A), 1e-12))
    expected = 5 * PARTS.T @ PARTS
    np.testing.assert_allclose(found.T @ found, expected, atol=1e-9)
    assert len(found) <= 7
    wide = dense(compressed(kind(PARTS), 1e-12))
    np.testing.assert_allclose(wide.T @ wide, PARTS.T @ PARTS, atol=1e-9)
    assert len(wide) == 5
    assert len(dense(compressed(kind(PARTS), 100.0))) == 0


def test_an_entry_at_the_limit_is_rounding() -> None:
    A = sparse.csr_array(np.array([[3.0, 0.5, 0.0], [0.0, 0.0, 2.0]]))
    assert compressed(A, 0.4).toarray().tolist() == [[3.0, 0.5, 0.0], [0.0, 0.0, 2.0]]
    assert compressed(A, 0.5).toarray().tolist() == [[3.0, 0.0, 0.0], [0.0, 0.0, 2.0]]


def test_parts_of_one_shape_are_taken_together() -> None:
    found = {block.dense.shape: block for block in blocks(sparse.csr_array(PARTS))}
    assert set(found) == {(2, 2, 3), (1, 1, 1)}
    both = found[2, 2, 3]
    assert [rows.tolist() for rows in both.rows] == [[0, 1], [2, 3]]
    assert [columns.tolist() for columns in both.columns] == [[0, 1, 2], [3, 4, 5]]
    np.testing.assert_array_equal(both.dense, [PARTS[:2, :3], PARTS[2:4, 3:6]])
    assert found[1, 1, 1].dense.tolist() == [[[-5.0]]]
    assert list(blocks(sparse.csr_array(np.zeros((2, 3))))) == []


@pytest.mark.parametrize(
    "most, entries, refused", [(2, 6, False), (1, 6, True), (2, 5, True), (2, 100, False)]
)
def test_a_part_that_is_too_large_is_refused(most, entries, refused, monkeypatch) -> None:
    monkeypatch.setattr(matrices, "MOST", most)
    monkeypatch.setattr(matrices, "ENTRIES", entries)
    if not refused:
        assert len(list(blocks(sparse.csr_array(PARTS)))) == 2
        return
    with pytest.raises(NotLocal, match="2 noises and 3 numbers hang together"):
        list(blocks(sparse.csr_array(PARTS)))


def test_norms_sizes_and_products_are_the_same_dense_and_sparse() -> None:
    A, by = PARTS, np.arange(7.0)
    values = torch.arange(12.0).view(2, 6)
    for kind in (np.asarray, sparse.csr_array):
        np.testing.assert_allclose(column_norms(kind(A)), np.linalg.norm(A, axis=0))
        assert matrices.largest(kind(A)) == 5.0
        np.testing.assert_allclose(dense(matrices.scaled(kind(A), by)), A * by)
        product = matrices.times(values, kind(A))
        assert product.dtype == torch.float32
        np.testing.assert_allclose(product.numpy(), values.numpy() @ A)
    assert matrices.largest(np.zeros((0, 3))) == 0.0
    first, R = PARTS[:, :4], np.linalg.qr(PARTS[:, :4], mode="r")
    grown = factor_with(R, np.ones((2, 6)))
    whole = np.pad(first, ((0, 0), (0, 2)))
    np.testing.assert_allclose(grown.T @ grown, whole.T @ whole + 2, atol=1e-12)


def probed(noise: list[list[float]], record: list[list[float]], earlier: list[list[float]]) -> Any:
    def effects(seen: list[list[float]]) -> Effects:
        array = np.array(seen).reshape(len(seen), 3)
        return Effects(array, np.arange(len(seen) * 2.0).reshape(-1, 2), np.zeros((len(seen), 0)))

    messages = [("a", 0), ("b", 1), ("c", 2)]
    return ProbedRound(
        1, messages, effects(noise), 0, torch.zeros(len(noise), dtype=torch.bool),
        effects(record), list(range(len(record))), effects(earlier), [], 100.0, 9.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    "noise, record, earlier, column",
    [
        ([[1.0, 2.0, 4.0]], [[1.0, 3.0, 5.0]], [], 1),
        ([[1.0, 2.0, 4.0]], [[1.0, -3.0, 5.0]], [], 1),
        ([[1.0, 2.0, 0.0]], [[1.0, 3.0, 0.5]], [], 2),  # without noise
        ([[1.0, 2.0, 0.0]], [[1.0, 3.0, 1e-12]], [], 1),  # which is rounding
        ([[1.0, 2.0, 0.0]], [[1.0, 3.0, 20 * NOISELESS]], [], 1),  # of a scale of 100, too
        ([[1.0, 2.0, 4.0]], [[0.0, 0.0, 0.0]], [[0.0, 1.0, 9.0]], 2),
        ([[1.0, 2.0, 4.0]], [[0.0, 1.0, 0.0]], [[0.0, 1.0, 9.0]], 1),
        ([[1.0, 1.0, 1.0], [0.0, 5.0, 0.0]], [[1.0, 3.0, 0.0]], [], 0),
        ([[1.0, 1.0, 1.0]], [[1.0, 3.0, 2.5], [0.0, -3.0, 0.0]], [], 2),  # the sum counts
    ],
)
def test_the_message_of_most_effect_over_noise_is_read_alone(
    noise, record, earlier, column
) -> None:
    whole = probed(noise, record, earlier)
    found, alone = whole.of_one_message()
    assert (found, alone.messages) == (column, [whole.messages[column]])
    assert alone.records_seen.tolist() == [[row[column]] for row in (*earlier, *record)]
    assert alone.noise.seen.tolist() == [[row[column]] for row in noise]


def test_of_some_uses_the_effects_and_steps_are_kept() -> None:
    whole = probed([[1.0, 1.0, 1.0]], [[1.0, 0, 0], [2.0, 0, 0]], [[3.0, 0, 0], [4.0, 0, 0]])
    some = whole.of_uses(np.array([False, True, True, False]))
    assert some.records_seen[:, 0].tolist() == [4.0, 1.0]
    assert some.steps == [0]
    assert some.earlier.state.tolist() == [[2.0, 3.0]]
    assert some.record.state.tolist() == [[0.0, 1.0]]
    assert whole.of_uses(np.array([True] * 4)).steps == [0, 1]


def game(**changed: Any) -> Game:
    defense: Any = SimpleNamespace(batch_size=4, batches_per_round=2)
    fields: dict[str, Any] = {
        "defense": defense,
        "setting": None,
        "victim": 0,
        "adjacency": "add-remove",
        "length": 10.0,
        "sampling_rate": 0.5,
        "sampling": "poisson",
    }
    return Game(**fields | changed)


def test_what_a_draw_of_a_record_displaces_and_reveals() -> None:
    fixed, replaced = game(sampling="fixed"), game(sampling="fixed", adjacency="replace-one")
    kinds = [game(), fixed, replaced, game(adjacency="replace-one")]
    assert [g.displacement for g in kinds] == [1.0, 2.0, 1.0, 1.0]
    assert [g.effect for g in (fixed, game(records=3))] == [2.0, 3.0]
    found = fixed.releases([0.5, inf, 4.0])
    assert [r.noise_multiplier for r in found] == [0.0, 0.5, 4.0]
    assert {(r.sampling, r.sampling_rate, r.family) for r in found} == {("fixed", 0.5, "gaussian")}
    (whole,) = game(sampling_rate=1.0).releases([2.0], "laplace")
    assert (whole.sampling, whole.sampling_rate, whole.family) == ("none", 1.0, "laplace")
    assert [g.is_lasting for g in (game(), game(sampling_rate=1.0))] == [False, True]
    assert not game(sampling_rate=1.0, in_one_round=True).is_lasting
    assert [k for k in range(1, 12) if game(first=3, cycle=4).uses(k)] == [3, 7, 11]
    assert [k for k in range(1, 4) if game().uses(k)] == [1, 2, 3]
    layers = (("a", 5), ("b", 3))
    assert [game(coordinates=8, layers=layers, filled=n).directions for n in (1, 2)] == [8, 3]
    assert [game(spread=2, filled=3).played, game(spread=2, width=9).played] == [6, 9]
    assert game().batches == 2


def test_the_part_of_values_along_the_record_and_its_draws() -> None:
    values = torch.tensor([[1.0, 2.0, 6.0]])
    assert game().along_record(values).tolist() == [[1.0]]
    assert game(spread=3).along_record(values).tolist() == [[3.0]]
    generator = torch.Generator().manual_seed(1)
    drawn = game(sampling_rate=1.0).draw(50, generator, torch.device("cpu"))
    assert drawn.tolist() == [1.0] * 50
    all_held = game(held=3, records=4).draw(5, generator, torch.device("cpu"))
    assert all_held.tolist() == [0.75] * 5
    some = game(held=8, records=4).draw(4_000, generator, torch.device("cpu"))
    assert some.mean().item() == pytest.approx(1.0, abs=6 * sqrt(8 / 4 / 16 / 4_000))


def test_a_game_is_about_a_record_drawn_as_batches_are() -> None:
    poisson = game_of("dp-dpsgd", "ring", n_agents=4, noise_multiplier=1.0)
    assert (poisson.sampling_rate, poisson.sampling) == (8 / 40, "poisson")
    assert (poisson.cycle, poisson.records, poisson.held) == (1, 1, None)
    user = Game.of(poisson.defense, poisson.setting, 1, "user")
    assert (user.records, user.sampling_rate) == (8, 1.0)
    assert user.gradient(torch.ones(1)).batch_size == 8
    assert poisson.gradient(torch.ones(1)).batch_size == 8


def test_an_adversary_of_every_link_knows_what_it_knew() -> None:
    some = ThreatModel(name="some", links=((0, 1),))
    assert with_every_link(some) == ThreatModel(name="some")
    found = with_every_link(curious(2))
    assert (found.kind, found.links, found.agents) == ("external", None, (2,))


def test_a_round_is_played_on_the_layers_that_are_asked() -> None:
    started: list[Any] = []
    defense: Any = SimpleNamespace(start=lambda X, setting: started.append((X, setting)))
    one = Setting(build_graph("ring", 3), (5,) * 3, 1)
    layers = (("a", 5), ("b", 3))
    own = game(defense=defense, setting=one, coordinates=8, layers=layers)
    kinds = (
        (own, 1),
        (own, 8),
        (own, 2),
        (replace(own, filled=2), 2),
        (replace(own, layers=()), 8),
    )
    for played, coordinates in kinds:
        played.start(4, coordinates=coordinates)
    assert [tuple(X.shape) for X, _ in started] == [(4, 3, d) for d in (1, 8, 2, 2, 8)]
    assert [setting.d for _, setting in started] == [1, 8, 2, 2, 8]
    assert [setting.layers for _, setting in started] == [
        one.stand_in(1).layers,
        layers,
        one.stand_in(2).layers,
        (("a", 1), ("b", 1)),
        one.stand_in(8).layers,
    ]
    wide = game(spread=2, filled=3).gradient(torch.ones(1))
    assert wide.spread == 6
    plain = game_of("dp-dpsgd", "ring", n_agents=4, noise_multiplier=1.0)
    sent = plain.first_sent(ChosenNoise(), 2.0, 3)
    (payload,) = (message.payload for message in sent.values())
    assert payload.shape[0] == 3
    moved = plain.first_sent(ChosenNoise(), 1.0, 1)
    (alone,) = (message.payload for message in moved.values())
    torch.testing.assert_close(payload[0], 2 * alone[0])


def test_noise_for_each_record_is_noted_and_played_by_no_matrix() -> None:
    like = torch.zeros(2, 4, 3, 1)
    asked = ChosenNoise()
    assert torch.equal(asked.gaussian("keep", 1.0, like), like)
    with pytest.raises(ValueError, match='the noise "keep" has numbers for each record'):
        ChosenNoise({"keep": torch.ones(2, 3, 1)}).gaussian("keep", 1.0, like)


def test_a_canary_is_in_a_batch_as_often_as_it_is_drawn() -> None:
    """Of length 6 over 4 coordinates, 3 in each; a clip to 2 leaves 1 of L2 norm, 1/2 of L1."""
    drawn, X = torch.tensor([0.0, 2.0, -1.0]), torch.zeros(3, 2, 4)
    canary = CanaryGradient(1, 6.0, drawn, batch_size=5, spread=4)

    def at_victim(gradients: torch.Tensor) -> list[float]:
        assert not gradients[:, 0].any()
        assert torch.equal(gradients[:, 1].amin(-1), gradients[:, 1].amax(-1))
        return gradients[:, 1, ..., 0].tolist()

    assert at_victim(canary(X)) == pytest.approx([0.0, 6 / 5, -3 / 5])
    assert at_victim(canary.clipped_sum(X, 2.0)) == [0.0, 2.0, -1.0]
    assert at_victim(canary.clipped_sum(X, 2.0, norm=1)) == [0.0, 1.0, -0.5]
    assert at_victim(canary.clipped_sum(X, 100.0)) == [0.0, 12.0, -6.0]  # the length in each, here
    assert at_victim(canary.per_record(X)) == [[0.0, 0.0], [3.0, 3.0], [-3.0, 0.0]]
    own = torch.zeros(3, 2, 4, 4)  # a model for each of four records
    assert at_victim(canary.per_record(own, own=True))[1] == [3.0, 3.0, 0.0, 0.0]
    none = replace(canary, drawn=torch.zeros(0))
    assert none.per_record(torch.zeros(0, 2, 4)).shape == (0, 2, 1, 4)
    every = replace(canary, victim=None)(X)[1]
    assert every.flatten().tolist() == pytest.approx([6 / 5] * 8)
    held = replace(canary, victim=torch.tensor([0, 1, 0]))(X)[..., 0].tolist()
    assert held == [pytest.approx(row) for row in ([0.0, 0.0], [0.0, 6 / 5], [-3 / 5, 0.0])]
    assert canary(X[:, :1], torch.tensor([1]))[..., 0].tolist()[1] == pytest.approx([6 / 5])
    later = replace(canary, later=(torch.ones(3), torch.zeros(3)))
    assert [later.at_step(s).drawn.tolist() for s in (0, 1, 2)] == [
        *(drawn.tolist(), [1.0] * 3, [0.0] * 3),
    ]
    assert canary.at_step(3) is canary


def test_what_cancels_in_a_step_has_not_moved() -> None:
    start = torch.tensor([[1e6], [1e6]], dtype=torch.float64)
    observed = torch.tensor([[1.0, 2.0], [1.0 + 1e-10, 3.0]], dtype=torch.float64)
    seen, left = _moves(start, observed, observed[:, :1] - 0.5)
    assert seen.tolist() == [[0.0, 0.0], [0.0, 1.0]]
    assert left.tolist() == [[0.0], [0.0]]
    seen, _ = _moves(start * 0, observed, observed[:, :1])
    assert seen[1, 0].item() == pytest.approx(1e-10, rel=1e-5)
