"""How sequences of a batch are found one after another, by hand."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from dpaudit.attacks.text import peeling, sequences, slopes
from dpaudit.attacks.text.front import LayersOfOneInput
from dpaudit.attacks.text.peeling import FoundSequence, PeeledSequences, Peeling
from dpaudit.attacks.text.sequences import Choice

NOTHING: Any = None


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def choice(*tokens: int) -> Choice:
    return Choice(torch.tensor(tokens), torch.zeros(len(tokens)))


def a_peeling(**of: Any) -> Peeling:
    about = {
        "front": NOTHING, "gradients": NOTHING, "clip_norm": None, "first": ("first", "span"),
        "block": "block", "span": "span", "given": [choice(1, 2), choice(3)], "n": 2,
        "vector": vector(0.0),
    }  # fmt: skip
    return Peeling(**{**about, **of})


@pytest.mark.parametrize(
    ("good", "n", "found", "mixed"),
    [
        ([[1, 3], [2, 3]], 2, [[1, 3], [2, 3]], []),  # by slopes alone
        ([[1, 3], [2, 3]], 1, [[1, 3]], []),
        ([[0, 9]], 2, [[0, 9]], [0]),  # from starts at the first position
        ([[0, 9], [7, 7]], 2, [[0, 9], [7, 7]], [0]),
        ([[1, 9]], 2, [[1, 9]], [0, 1]),
        ([], 2, [], [0, 1]),
    ],
)
def test_sequences_are_found_by_slopes_or_from_starts(monkeypatch, good, n, found, mixed) -> None:
    asked: list[Any] = []

    def by_slopes(front: Any, block: str, of: str, vector: Tensor, tokens: Tensor) -> Tensor:
        assert (block, of, tokens.tolist()) == ("first", "span", [1, 2, 3])
        return torch.tensor([[2, 3], [1, 3], [1, 3], [8, 8]])

    monkeypatch.setattr(peeling, "sequences_of_slopes", by_slopes)
    monkeypatch.setattr(
        Peeling, "test", lambda self: lambda ids: ids.tolist() if ids.tolist() in good else None
    )
    monkeypatch.setattr(
        Peeling, "_mixed", lambda self, p: (asked.append(p), torch.tensor([[p, 9], [7, 7]]))[1]
    )
    monkeypatch.setattr(Peeling, "_mended", lambda self, rows, p: rows)
    steps: list[int] = []
    own = a_peeling(n=n)
    assert own.found(steps.append) == found
    assert asked == steps == mixed


def test_mixtures_move_towards_tokens_of_the_span() -> None:
    """The start is pinned at one position; at the other only its own tokens may come out."""
    front: Any = SimpleNamespace(
        mixed_inputs=lambda mixtures, tokens, block: (mixtures * torch.tensor([0.9, 0.5, 0.0])).sum(-1, keepdim=True)
    )  # fmt: skip
    own = a_peeling(
        front=front, given=[choice(1, 2), choice(1, 3)],
        span=SimpleNamespace(outside=lambda rows: rows[..., 0]),
    )  # fmt: skip
    assert own._mixed(0).tolist() == [[1, 3], [2, 3]]
    assert own._mixed(1).tolist() == [[2, 1], [2, 3]]


def test_sequences_are_mended_by_exchanges_of_single_tokens(monkeypatch: Any) -> None:
    """Of distances by hand: only what is near enough is kept, the nearest first."""
    near = {(1, 3, 5): 1e-3, (2, 3, 6): 2e-3, (1, 4, 6): 2.1e-3, (2, 4, 6): 0.5}
    tried: list[int] = []

    def far(self: Peeling, ids: Tensor) -> Tensor:
        tried.append(len(ids))
        return torch.tensor([near.get(tuple(row), 1.0) for row in ids.tolist()])

    monkeypatch.setattr(Peeling, "_far", far)
    own = a_peeling(given=[choice(1, 2), choice(3, 4), choice(5, 6)])
    rows = torch.tensor([[2, 4, 6], [1, 4, 5], [2, 4, 6]])
    assert own._mended(rows, 0).tolist() == [[1, 3, 5], [2, 3, 6]]
    assert tried[0] == 2  # each sequence once
    assert own._mended(torch.tensor([[1, 4, 6]]), 1).tolist() == []
    monkeypatch.setattr(peeling, "_MENDED", 1)
    assert own._mended(rows, 0).tolist() == [[2, 3, 6]]
    near |= {(1, 3, 6): 0.6, (1, 4, 5): 0.4, (1, 4, 6): 0.5}  # 4 becomes 3 after 6 became 5 alone
    assert own._mended(torch.tensor([[1, 4, 6]]), 0).tolist() == [[1, 3, 5]]


def test_a_sequence_is_tested_by_its_slopes_and_label() -> None:
    """G = X' D of two records; without the rows of one, D_s G+ P' is the identity."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(2, 2, 6, generator=generator).double()  # of sequences (0, 0) and (1, 1)
    D = torch.randn(2, 2, 5, generator=generator).double()
    G = (X.mT @ D).sum(0)
    U = torch.linalg.svd(G, full_matrices=False)[0][:, :4]

    class Parts(SimpleNamespace):
        model = vector(0.0)

        def gradient(self, vector: Any, block: str) -> Tensor:
            return G if vector is whole else vector

        def inputs(self, ids: Tensor, block: str) -> Tensor:
            return X[ids[:, 0]]

        def parts(self, vector: Any) -> dict[str, Tensor]:
            return {"first": X, "last": last}

        def n_classes(self) -> int:
            return 3

    asked: list[Any] = []

    def clipped_sum(models: Tensor, ids: Tensor, y: Tensor, C: Any) -> Any:
        asked.append((int(y), C, tuple(ids.shape)))
        i = int(ids[0, 0, 0])
        factor = 1.0 if int(y) == 1 + i else 0.5
        return [factor * X[i].mT @ D[i]]

    whole, last = object(), vector(3.0, 1.0, 2.0)
    gradients = SimpleNamespace(clipped_sum=clipped_sum)
    own = a_peeling(
        front=Parts(), gradients=gradients, clip_norm=7.0, span=SimpleNamespace(basis=U),
        vector=whole, n=1,
    )  # fmt: skip
    assert own._labels().tolist() == [1, 2]  # two of one record, of the least gradients
    test = own.test()
    found = test(torch.tensor([0, 0]))
    assert found is not None
    torch.testing.assert_close(found.gradient, X[0].mT @ D[0])
    assert found.ids.tolist() == [0, 0]
    assert asked == [(1, 7.0, (1, 1, 2))]
    other = test(torch.tensor([1, 1]))
    assert other is not None
    assert [y for y, *_ in asked[1:]] == [1, 2]
    last = vector(1.0, 3.0, 2.0)
    assert own.test()(torch.tensor([0, 0])) is None  # its label is not tried
    last, own = vector(9.0, 1.0, 2.0), own._replace(n=2)
    assert own._labels().tolist() == [1, 2, 0]  # four of two records, of three that there are
    last = vector(1.0, 2.0)
    every = a_peeling(front=Parts(), vector=vector(0.0), n=1)
    assert every._labels().tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("rounds", "exact", "embedded", "ids", "left"),
    [
        ([[1], [2]], True, True, [[1, 1], [2, 2]], []),
        ([[1], []], True, True, [[1, 1]], [2, 1]),
        ([[1, 2]], True, True, [[1, 1], [2, 2]], []),
        ([[1]], "first", True, [], []),
        ([[1]], "second", True, [], []),
        ([[1]], True, False, [], []),
    ],
)
def test_sequences_are_taken_off_one_after_another(
    monkeypatch, rounds, exact, embedded, ids, left
) -> None:
    """A batch of two; of each that is found the gradient of its record is subtracted."""
    vectors: list[list[float]] = []
    counts: list[int] = []

    def spans(front: Any, block: str, vector: Tensor, std: Any) -> Any:
        if block == "first":
            vectors.append(vector.tolist())
        return SimpleNamespace(is_exact=exact in (True, block)), "test"

    def found(self: Peeling, step: Any) -> list[FoundSequence]:
        counts.append(self.n)
        assert self.clip_norm == 7.0
        some = rounds[len(counts) - 1]
        return [FoundSequence(torch.tensor([t, t]), torch.full((2,), 1.0 * t)) for t in some]

    monkeypatch.setattr(peeling, "span_of", spans)
    monkeypatch.setattr(peeling, "members", lambda *_: ("outside", "found"))
    monkeypatch.setattr(peeling, "choices", lambda outside, found, n, is_exact: [f"{n} {is_exact}"])
    monkeypatch.setattr(Peeling, "found", found)
    front: Any = SimpleNamespace(length=2, embedding=embedded)
    seen: Any = SimpleNamespace(
        batch_size=2, gradients=torch.tensor([[9.0, 9.0], [4.0, 5.0]]), clip_norm=7.0
    )
    result = peeling.peeled(front, NOTHING, seen, 1, ("first", "second"), NOTHING)  # type: ignore[arg-type]
    assert isinstance(result, PeeledSequences)
    assert result.found.tolist() == ids
    assert vectors[0] == [8.0, 10.0]
    assert result.given == ["2 True"]  # type: ignore[comparison-overlap]
    if len(rounds) == 2:
        assert vectors == [[8.0, 10.0], [7.0, 9.0]]
        assert counts == [2, 1]


def test_more_tokens_than_directions_explain_nothing() -> None:
    """A head needs a direction for each token and position, and one head at least."""
    for n_heads, width, outputs, length in (
        (None, 8, 16, 2), (3, 8, 16, 2), (2, 8, 15, 2), (2, 8, 16, 4),
    ):  # fmt: skip
        front: Any = SimpleNamespace(
            length=length, n_heads=lambda block, n=n_heads: n,
            gradient=lambda vector, block, m=outputs, w=width: torch.zeros(w, m),
        )  # fmt: skip
        found = slopes.sequences_of_slopes(
            front, LayersOfOneInput(("a",), width), NOTHING, NOTHING, NOTHING
        )
        assert found.shape == (0, length)


def test_choices_are_those_found_the_nearest_first() -> None:
    outside = torch.tensor([[0.5, 0.1], [0.2, 0.3], [0.3, 0.2], [0.1, 0.4]])
    found = torch.tensor([[True, False], [True, False], [True, False], [False, False]])

    def tokens(most: int, exact: bool) -> list[list[int]]:
        return [one.tokens.tolist() for one in sequences.choices(outside, found, most, exact)]

    assert tokens(2, True) == [[1, 2, 0], [0, 2]]
    assert tokens(2, False) == [[1, 2], [0, 2]]
    assert tokens(9, False) == [[1, 2, 0], [0, 2, 1, 3]]
    rows, far = sequences._distinct(
        torch.tensor([[1, 2], [3, 4], [1, 2]]), vector(0.3, 0.2, 0.1), 3
    )
    assert rows.tolist() == [[1, 2], [3, 4], [1, 2]]
    assert far.tolist() == [0.1, 0.2, 0.1]
