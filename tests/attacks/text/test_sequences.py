"""Sequences that lie nearest to a span, where distances are given by hand."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from dpaudit.attacks.text.sequences import Choice, choices, decoded, exchanged


def front() -> Any:
    """Reads of each token the whole sequence and the token's position."""

    def inputs(ids: Tensor, block: Any) -> Tensor:
        at = torch.arange(ids.shape[1])[:, None].expand(len(ids), -1, 1)
        return torch.cat([ids[:, None].expand(-1, ids.shape[1], -1), at], 2)

    return SimpleNamespace(inputs=inputs, last_inputs=lambda ids, block: inputs(ids, block)[:, -1])


def span(distance: Callable[..., float], is_exact: bool = False) -> Any:
    """Rows lie as far outside as ``distance(*tokens)`` and a hundredth of their position."""

    def outside(rows: Tensor) -> Tensor:
        every = [distance(*row[:-1]) + row[-1] / 100 for row in rows.flatten(0, -2).tolist()]
        return torch.tensor(every).view(rows.shape[:-1])

    return SimpleNamespace(outside=outside, is_exact=is_exact)


def choice(*tokens: int, step: float) -> Choice:
    return Choice(torch.tensor(tokens), step * torch.arange(len(tokens)))


def test_a_decoder_s_distance_is_that_of_all_tokens_and_rows() -> None:
    """By a beam of four times as many sequences as are asked for."""
    near, steps = {(4, 7): 0.0, (2, 8): 0.0}, list[int]()
    where = span(lambda *ids: near.get(ids, 5.0) if len(ids) == 2 else 0.0)
    given = [choice(0, 1, 2, 3, 4, 5, step=0.1), choice(7, 8, step=0.3)]
    found, far = decoded(front(), None, where, given, 2, steps.append)  # type: ignore[arg-type]
    assert found.tolist() == [[4, 7], [2, 8]]
    torch.testing.assert_close(far, torch.tensor([0.41, 0.51]))  # a hundredth of position 1
    assert steps == [0, 1]


def test_every_prefix_in_an_exact_span_is_kept() -> None:
    where = span(lambda *ids: 5.0 if len(ids) == 2 and ids[0] != 2 else 0.0, is_exact=True)
    given = [choice(0, 1, 2, step=0.001), choice(7, step=0.0)]
    found, far = decoded(front(), None, where, given, 1, unread)  # type: ignore[arg-type]
    assert found.tolist() == [[2, 7]]
    torch.testing.assert_close(far, torch.tensor([0.012]))


def unread(done: int) -> None:
    """Progress that nobody reads."""


def test_an_encoder_s_tokens_are_exchanged_until_none_is_nearer() -> None:
    """From each token of the middle; the first becomes nearer only after the last has changed."""
    of_ends, steps = {(0, 0): 3.0, (1, 0): 4.0, (0, 1): 2.0, (1, 1): 0.0}, list[int]()
    where = span(lambda a, b, c: of_ends[a, c] + b)
    given = [choice(0, 1, step=0.0), choice(0, 1, 2, 3, step=0.0), choice(0, 1, step=0.0)]
    found, far = exchanged(front(), None, where, given, 4, steps.append)  # type: ignore[arg-type]
    assert found.tolist() == [[1, b, 1] for b in range(4)]
    torch.testing.assert_close(far, torch.arange(4) + 0.01)  # the mean of three positions
    assert steps == [0, 0, 1, 2]


def test_positions_without_a_token_are_given_the_nearest_ones() -> None:
    outside = torch.tensor([[0.5, 0.1], [0.2, 0.3], [0.3, 0.2]])
    found = torch.tensor([[True, False], [False, False], [True, False]])
    tokens = lambda exact: [one.tokens.tolist() for one in choices(outside, found, 1, exact)]  # noqa: E731
    assert tokens(True) == [[2, 0], [0]]
    assert tokens(False) == [[2], [0]]
