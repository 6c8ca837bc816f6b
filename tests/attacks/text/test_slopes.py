"""An encoder's sequences from slopes of queries, of embeddings that are drawn or made by hand."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dpaudit.attacks.text import sequences, slopes
from dpaudit.attacks.text.slopes import Keys

WIDTH, LENGTH, N_HEADS = 16, 3, 2


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def keys_of(n_tokens: int = 4) -> Keys:
    """Of tokens 10, 11, ...: a row is the sum of both embeddings."""
    tokens, places = drawn(n_tokens, WIDTH), drawn(LENGTH, WIDTH, seed=1)
    rows = tokens[:, None] + places
    weight = drawn(WIDTH, WIDTH, seed=2)
    return Keys(torch.arange(10, 10 + n_tokens), rows, places, weight, N_HEADS)


def slope_of(keys: Keys, *tokens: int) -> Tensor:
    """Of a query of a sequence: a combination of its keys in each head."""
    parts = drawn(N_HEADS, LENGTH, seed=3)
    each = torch.stack([keys.of(keys.rows[t, p]) for p, t in enumerate(tokens)], dim=1)
    return (parts[..., None] * each).sum(1).flatten()


def test_keys_are_split_into_heads() -> None:
    keys = keys_of()
    found, whole = keys.of(keys.rows), keys.rows @ keys.weight
    assert found.shape == (N_HEADS, 4, LENGTH, WIDTH // N_HEADS)
    assert torch.equal(found[0], whole[..., :8])
    assert torch.equal(found[1], whole[..., 8:])


@pytest.mark.parametrize("tokens", [(0, 1, 2), (3, 1, 0), (2, 2, 1), (1, 1, 1)])
def test_a_slope_is_explained_by_the_tokens_of_its_sequence(tokens: tuple[int, ...]) -> None:
    keys = keys_of()
    slope = slope_of(keys, *tokens)
    [chosen] = slopes._tokens_of(keys, slope[None])
    assert sorted(chosen.tolist()) == sorted(set(tokens))
    found = slopes._ordered(keys, slope, chosen)
    assert found is not None
    assert found.tolist() == [10 + t for t in tokens]
    if 3 not in tokens:  # no place is left for another one
        assert slopes._ordered(keys, slope, torch.tensor([*chosen.tolist(), 3])) is None
    few = torch.tensor([t for t in range(4) if t not in tokens])
    assert slopes._ordered(keys, slope, few) is None


def test_a_slope_of_no_sequence_is_explained_by_nothing() -> None:
    """Three positions and three tokens have six of a head's eight directions."""
    keys = keys_of()
    other = drawn(2, WIDTH, seed=9)
    assert [len(chosen) for chosen in slopes._tokens_of(keys, other)] == [0, 0]
    assert slopes._ordered(keys, other[0], torch.tensor([0, 1, 2])) is None
    wide = keys_of(6)  # six tokens and three positions are more than a head's directions
    assert slopes._ordered(wide, slope_of(wide, 0, 1, 2), torch.arange(6)) is None
    both = torch.stack([slope_of(keys, 0, 1, 2), other[0]])
    assert [len(chosen) for chosen in slopes._tokens_of(keys, both)] == [3, 0]


def test_normalised_rows_are_parted_into_token_and_position() -> None:
    """A row is s(t, p) (e_t + e_p), that of a position alone s_p e_p, of any factors."""
    tokens, places = drawn(4, WIDTH), drawn(LENGTH, WIDTH, seed=1)
    s, alone = drawn(4, LENGTH, seed=4).abs() + 0.5, drawn(LENGTH, seed=5).abs() + 0.5
    rows = s[..., None] * (tokens[:, None] + places)
    own, factors = slopes._own(rows, alone[:, None] * places)
    np.testing.assert_allclose(own, s[:, :1] * tokens)
    np.testing.assert_allclose(factors, alone / s[:, :1])


def test_slopes_are_left_by_directions_orthogonal_to_others() -> None:
    """Of two sequences that share no token, each of whose rows has a slope of its own."""
    keys = keys_of()
    batch = [(0, 0), (1, 1), (2, 2), (3, 0)]  # token and position
    dY = drawn(len(batch), WIDTH, seed=6)
    Z = torch.stack([keys.rows[t, p] for t, p in batch])
    every = keys.rows.flatten(0, 1)
    basis = torch.linalg.svd(every, full_matrices=False).Vh[:6].mT  # 4 tokens, 3 positions
    found = slopes._slopes(keys, basis, Z.mT @ dY)
    assert found.shape == dY.shape
    for mine, given in zip(found, dY, strict=True):
        assert abs(float(torch.cosine_similarity(mine, given, dim=0))) == pytest.approx(1.0)
    same = keys._replace(tokens=keys.tokens[:2], rows=keys.rows[:1].expand(2, -1, -1))
    assert slopes._slopes(same, basis, Z.mT @ dY).shape == (0, WIDTH)  # two that are alike


def test_sets_of_positions_are_the_small_ones_first(monkeypatch: pytest.MonkeyPatch) -> None:
    slopes._subsets.cache_clear()
    found = slopes._subsets(3).int().tolist()
    assert found == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 0, 1], [0, 1, 1], [1, 1, 1]]
    for most, n in ((6, 6), (5, 3), (7, 7), (1, 3)):
        slopes._subsets.cache_clear()
        monkeypatch.setattr(slopes, "_SUBSETS", most)
        assert len(slopes._subsets(3)) == n
    slopes._subsets.cache_clear()


class Queries:
    """A front of one attention layer, of which gradients [width, 2 width] are given as vectors."""

    length = LENGTH

    def __init__(self, keys: Keys, heads: int | None = N_HEADS) -> None:
        self.keys, self.heads, self.model = keys, heads, torch.zeros(1)

    def n_heads(self, block: Any) -> int | None:
        return self.heads

    def gradient(self, vector: Tensor, block: Any) -> Tensor:
        if vector is self.model:  # the layer's own weights
            return torch.cat([torch.zeros(WIDTH, WIDTH), self.keys.weight], dim=1)
        return vector.view(WIDTH, -1)

    def candidates(self, block: Any, tokens: Tensor) -> Tensor:
        return self.keys.rows[tokens - 10]

    def mixed_inputs(self, mixtures: Tensor, tokens: Tensor, block: Any) -> Tensor:
        assert mixtures.shape == (1, LENGTH, len(tokens))
        assert not mixtures.any()
        return self.keys.positions[None].float().double()


def test_sequences_follow_from_the_slopes_of_queries() -> None:
    """Two sequences; the slope of each row's query is made of the keys of its own sequence."""
    keys = keys_of(6)
    keys = keys._replace(positions=keys.positions.float().double())
    keys = keys._replace(rows=keys.rows - drawn(LENGTH, WIDTH, seed=1) + keys.positions)
    batch = [(0, 1, 2), (5, 3, 4)]
    G = torch.zeros(WIDTH, 2 * WIDTH).double()
    for ids in batch:
        for p, t in enumerate(ids):
            part = drawn(N_HEADS, LENGTH, seed=20 + t)
            each = torch.stack([keys.of(keys.rows[i, q]) for q, i in enumerate(ids)], dim=1)
            G[:, :WIDTH] += torch.outer(keys.rows[t, p], (part[..., None] * each).sum(1).flatten())
    basis = torch.linalg.svd(keys.rows.flatten(0, 1), full_matrices=False).Vh[:8].mT
    span: Any = SimpleNamespace(basis=basis)
    block: Any = SimpleNamespace(width=WIDTH)

    def found(front: Any, vector: Tensor | None = None) -> list[list[int]]:
        rows: list[list[int]] = slopes.sequences_of_slopes(
            front, block, span, G.flatten() if vector is None else vector, keys.tokens
        ).tolist()
        return rows

    assert found(Queries(keys)) == [[10, 11, 12], [15, 13, 14]]
    assert found(Queries(keys, None)) == []
    assert found(Queries(keys, 3)) == []  # 16 directions are not of 3 heads
    assert found(Queries(keys, 8)) == []  # heads of 2 directions
    assert found(Queries(keys), G[:, :WIDTH].flatten()) == []  # queries without keys
    assert found(Queries(keys), drawn(WIDTH, 2 * WIDTH).flatten()) == []
    nothing = slopes.sequences_of_slopes(
        Queries(keys, None), block, span, G.flatten(), keys.tokens  # type: ignore[arg-type]
    )  # fmt: skip
    assert (nothing.shape, nothing.dtype) == ((0, LENGTH), torch.long)


E1, E2, E3 = torch.eye(3).double()
ROWS = {0: [E1, E1], 1: [E1, E2], 2: [E3, E3], 3: [E2, E3]}


def test_sequences_are_taken_that_cover_most_of_a_span() -> None:
    """One of two directions, then one with the third; where nothing is left, the same again."""
    front: Any = SimpleNamespace(
        inputs=lambda ids, block: torch.stack([torch.stack(ROWS[int(i)]) for i in ids[:, 0]])
    )
    span: Any = SimpleNamespace(basis=torch.eye(3))
    nothing: Any = None

    def covering(ids: list[int], n: int) -> list[int]:
        chosen = sequences._covering(front, nothing, span, torch.tensor(ids)[:, None], n)
        return [ids[i] for i in chosen]

    assert covering([0, 1, 2], 1) == [1]
    assert covering([0, 1, 2], 2) == [1, 2]
    assert covering([0, 1, 2], 3) == [1, 2, 1]
    assert covering([0, 3, 1], 2) == [3, 0]  # of equals the first one
    assert covering([2, 0], 2) == [2, 0]
    tiny: Any = SimpleNamespace(basis=torch.eye(3)[:, :2])  # E3 is not in it
    ids = torch.tensor([[2], [0]])
    assert sequences._covering(front, nothing, tiny, ids, 2).tolist() == [1, 1]
