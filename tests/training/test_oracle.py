"""The gradient oracle of a round: each record's gradient, local steps, agents without data."""

from collections.abc import Callable

import pytest
import torch

from dpaudit.data import partition
from dpaudit.data.datasets import Dataset
from dpaudit.rng import Streams
from dpaudit.training import classification
from dpaudit.training.classification import (
    EVALUATED,
    HELD,
    BatchGradient,
    Classification,
    _Order,
    n_evaluated,
)

N, B = 4, 3


def problem(servers: int = 0) -> Classification:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(60, 5, generator=generator, dtype=torch.float64)
    y = torch.arange(60) % 3
    data = Dataset("random", x, y, x[:9], y[:9], ("a", "b", "c"))
    parts = partition.split(y.numpy(), N - servers, "even", Streams(0).numpy("partition"))
    return Classification(data, parts.behind(servers), "logistic", torch.device("cpu"))


def oracle(sampling: str = "fixed", trials: int | None = None, servers: int = 0) -> BatchGradient:
    return problem(servers).gradient(Streams(5), 1, B, sampling, trials)


def models(*shape: int, d: int = 18) -> torch.Tensor:
    return torch.randn(*shape, d, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def test_the_gradients_of_records_add_up_to_the_batch() -> None:
    for sampling in ("fixed", "poisson"):
        given = oracle(sampling)
        holders = torch.tensor([2, 0, 0, 3, 1])
        for X, who in ((models(N), None), (models(5), holders)):
            each = given.per_record(X, who)
            assert torch.allclose(each.sum(-2) / B, given(X, who))
            C = 0.5
            factors = (C / each.norm(dim=-1, keepdim=True)).clamp(max=1)
            clipped = (each * factors.nan_to_num(0)).sum(-2)
            assert torch.allclose(clipped, given.clipped_sum(X, C, who))


def test_a_part_is_that_of_the_whole_gradient() -> None:
    for given, X in (
        (oracle(), models(N)),
        (oracle("poisson"), models(N)),
        (oracle(servers=1), models(N)),
        (oracle(), models(2, N)),  # trials on the same batches
        (oracle("poisson", trials=2), models(2, N)),
    ):
        for coordinates in (slice(0, 18), slice(4, 9), slice(15, 18)):
            part = given.part(X, coordinates)
            torch.testing.assert_close(part, given(X)[..., coordinates], rtol=1e-13, atol=1e-15)


def test_trials_have_records_of_their_own() -> None:
    given, X = oracle("poisson", trials=2), models(2, N)
    each = given.per_record(X)
    assert each.shape[:2] == (2, N)
    assert torch.allclose(each.sum(-2) / B, given(X))
    shared = oracle()
    assert torch.allclose(shared.per_record(X).sum(-2) / B, shared(X))


def test_each_record_may_have_a_model_of_its_own() -> None:
    given, X = oracle("poisson"), models(N)
    each = given.per_record(X)
    b = each.shape[-2]
    spread = X[:, None].expand(N, b, -1)
    assert torch.allclose(given.per_record(spread, own=True), each)
    moved = given.per_record(spread + models(N, b), own=True)
    one = given.per_record(spread[:, 1] + models(N, b)[:, 1])
    assert torch.allclose(moved[:, 1], one[:, 1])
    stacked = torch.stack([spread, spread + 1])
    assert torch.allclose(given.per_record(stacked, own=True)[0], each)


def test_what_needs_its_own_row_alone_is_asked_in_parts(monkeypatch) -> None:
    def norms(given: BatchGradient, sizes: list[int]) -> Callable[..., torch.Tensor]:
        def of(X: torch.Tensor, who: torch.Tensor | None) -> torch.Tensor:
            sizes.append(X.shape[-2])
            return given.per_record(X, who).norm(dim=-1).amax(-1, keepdim=True)

        return of

    for given, X, who in (
        (oracle(), models(N), None),
        (oracle("poisson", servers=1), models(N), None),
        (oracle(), models(2, N), None),  # trials on the same batches
        (oracle("poisson", trials=2), models(2, N), None),
        (oracle("poisson", trials=2), models(2, 3), torch.tensor([3, 0, 3])),
    ):
        whole, parts, m = list[int](), list[int](), X.shape[-2]
        monkeypatch.setattr(classification, "HELD", HELD)
        expected = given.in_parts(X, norms(given, whole), who)
        monkeypatch.setattr(classification, "HELD", 1)
        found = given.in_parts(X, norms(given, parts), who)
        assert (whole, parts) == ([m], [1] * m)
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-15)


def test_local_steps_have_batches_of_their_own() -> None:
    first = oracle()
    assert first.at_step(0) is first
    again = [oracle().at_step(s).batch.labels for s in (0, 1, 2)]
    assert not torch.equal(first.batch.inputs, first.at_step(1).batch.inputs)
    assert torch.equal(first.at_step(2).batch.labels, again[2])
    # the batch of the first step is what it was before there were others
    assert torch.equal(again[0], problem().batch(Streams(5), 1, B).labels)


def test_an_agent_without_data_has_no_gradient() -> None:
    for sampling in ("fixed", "poisson", "cyclic"):
        given, X = oracle(sampling, servers=1), models(N)
        assert not given(X)[0].any()
        assert bool((given(X)[1:] != 0).any(1).all())
        assert not given.clipped_sum(X, 1.0)[0].any()
        assert not given.per_record(X)[0].any()


@pytest.mark.parametrize("n", [3, 256, 257, 5000])
def test_the_smallest_draws_are_found_with_padding_last(n: int) -> None:
    draws = torch.rand(2, 3, n, generator=torch.Generator().manual_seed(4))
    draws[0, 0, :2] = torch.tensor([1 - 2**-24, 0.0])  # the largest that is drawn, and the smallest
    draws[1, 2] = 1 - 2**-24  # as large as padding
    padding = torch.arange(n) >= torch.tensor([[n], [n // 3], [n // 2]])
    for count in (1, n // 2, n):
        expected = draws.masked_fill(padding, 1.0).argsort(dim=-1, stable=True)[..., :count]
        assert torch.equal(_Order.of(padding).smallest(draws, count), expected)


def test_of_many_agents_each_is_evaluated_on_fewer_records() -> None:
    assert n_evaluated(1_000) == EVALUATED == 2_000
    assert [n_evaluated(n) for n in (4_000, 10_000, 10**6)] == [500, 200, 100]
