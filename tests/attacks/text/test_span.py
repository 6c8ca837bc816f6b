"""Ranks of gradients, without noise and in it, and what was found of a vocabulary."""

from math import nan
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from dpaudit.attack.text_metrics import score
from dpaudit.attacks.text import attack, span
from dpaudit.attacks.text.attack import RecoveredBatch, ScoredText, _rates
from dpaudit.files.finding import Metric, Name


def sizes(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("S", "rank"),
    [
        (sizes(5.0, 4.0, 3.0, 1e-12), 3),
        (sizes(5.0, 1e-12, 1e-13), 1),
        (sizes(5.0, 1e-12, 0.0), 2),  # the fall to nothing is the largest
        (sizes(5.0, 4.0, 3.0), None),
        (sizes(5.0), None),
        (sizes(), None),
    ],
)
def test_singular_values_fall_to_rounding_at_the_rank(S: Tensor, rank: int | None) -> None:
    assert span._rank_of_exact(S) == rank


def test_values_above_known_noise_are_counted() -> None:
    """The largest singular value of noise is near std (sqrt d + sqrt m)."""
    edge = span._KNOWN * 0.5 * (10 + 4)
    S = sizes(3 * edge, edge * 1.01, edge, edge * 0.99)
    assert span._rank_in_noise(S, 100, 16, 0.5) == 2
    assert span._rank_in_noise(S, 16, 100, 0.5) == 2


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_unknown_noise_is_what_is_alike_behind_the_rank(rank: int) -> None:
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(400, 60, generator=generator, dtype=torch.float64)
    strong = torch.eye(400, 60).double()
    strong[:, rank:] = 0.0
    S = torch.linalg.svdvals(noise + 500 * strong)
    assert span._rank_in_noise(S, 400, 60, None) == rank
    assert span._rank_in_noise(S, 400, 60, 1.0) == rank


def test_rates_are_of_tokens_of_the_batch_and_of_all_others() -> None:
    found = torch.tensor([True, True, False, False, True])
    assert _rates(torch.tensor([[0, 2], [2, 0]]), found) == (0.5, pytest.approx(2 / 3))


@pytest.mark.parametrize(("rates", "expected"), [((nan, 0.5, nan), 0.5), ((nan, nan, nan), None)])
def test_batches_of_all_tokens_have_no_false_positives(rates: Any, expected: Any) -> None:
    """They are left out of the mean; where there are no others there is none."""
    seen: dict[str, bytes] = {}
    scenario: Any = SimpleNamespace(
        name="a", message="x", attack_name="dager", threat_model=SimpleNamespace(name="who"),
        batch_size=1,
    )  # fmt: skip
    problem: Any = SimpleNamespace(dataset=SimpleNamespace(vocabulary=("a", "b")))
    context: Any = SimpleNamespace(run=SimpleNamespace(write=seen.__setitem__))
    of = ScoredText(scenario, problem, context, 1, context)
    truth = torch.tensor([[[0, 1]]] * 3)
    targets: Any = [SimpleNamespace(victim=i) for i in range(3)]
    more: Any = {Name.TPR: (1.0, 0.0, 0.5), Name.FPR: rates}
    found = of._scored("defense", ("",), truth, truth, score(truth, truth), targets, more)
    assert found.metrics[Name.TPR].value == 0.5
    assert found.metrics.get(Name.FPR) == (expected and Metric(value=expected, n=1))
    assert found.series[Name.FPR] == pytest.approx(rates, nan_ok=True)


@pytest.mark.parametrize(
    ("world", "noise"),
    [("defense", "under noise"), ("noiseless", "what was taken for noise is rounding")],
)
def test_blind_guesses_are_scored_beside_the_text(monkeypatch, world, noise) -> None:
    """Of two batches of one sequence of two tokens, out of four; a guess is drawn for each round.

    The noise has given the rank 3 of the first and 5 of the second.
    """
    public = torch.tensor([[0, 1]])
    truth = torch.tensor([[[0, 1]], [[2, 3]]])
    guess = torch.tensor([[[0, 3]], [[2, 3]]])

    def found(ids: Any, seen: Any, far: float, rank: int) -> RecoveredBatch:
        of: Any = SimpleNamespace(rank=rank, d=9, is_exact=world != "defense")
        return RecoveredBatch(torch.tensor(ids), torch.tensor(seen).bool(), far, of)

    def blind(asked: Any, shape: Any, generator: str) -> dict[str, Tensor]:
        assert (asked is public, tuple(shape), generator) == (True, (2, 1), "blind 4")
        return {"a guess": guess}

    def scored(self: Any, world: str, notes: Any, *given: Any) -> Any:
        _, ids, scores, targets, more = given
        return world, notes, ids.tolist(), scores.tokens.tolist(), targets, more

    monkeypatch.setattr(attack, "blind", blind)
    monkeypatch.setattr(attack, "attack_streams", lambda *_: lambda name, k: f"{name} {k}")
    monkeypatch.setattr(ScoredText, "_scored", scored)
    scenario: Any = SimpleNamespace(world=world)
    problem: Any = SimpleNamespace(dataset=SimpleNamespace(x_test=public))
    nothing: Any = None
    of = ScoredText(scenario, problem, nothing, 4, nothing)
    batches = [found([[0, 1]], [1, 1, 1, 0], 0.5, 3), found([[1, 3]], [0, 1, 0, 1], 0.25, 5)]
    targets: Any = ["targets"]
    own, *others = of.findings(truth, batches, targets)
    notes = f"ranks 3 to 5 of 9 directions; {noise}"
    more = {Name.TPR: (1.0, 0.5), Name.FPR: (0.5, 0.5), Name.LOSS: (0.5, 0.25)}
    assert own == (world, (notes,), [[[0, 1]], [[1, 3]]], [1.0, 0.5], targets, more)
    expected = ("blind", ("a guess",), guess.tolist(), [0.5, 1.0], targets, {})
    assert others == ([expected] if world == "defense" else [])
