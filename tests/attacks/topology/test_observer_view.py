"""What an observer without the graph holds, value by value."""

import numpy as np
import pytest
import torch
from torch import Tensor

from dpaudit.attacks.topology import observer_view
from dpaudit.attacks.topology.attack import Topology
from dpaudit.attacks.topology.observer_view import known, linked, overhear
from dpaudit.attacks.topology.scores import Regression, by_regression, by_simplex, fitted
from dpaudit.defense import Message, Setting, Transcript
from dpaudit.files.threat import ThreatModel
from dpaudit.graphs.graph import build_graph

EVERYONE = ThreatModel(name="everyone", kind="external")


def sent_by(*senders: int, at: float = 0.0, dtype: torch.dtype = torch.float32) -> Message:
    """One message of each, [at + sender, 10], to agent 9."""
    payload = torch.tensor([[at + sender, 10.0] for sender in senders], dtype=dtype)
    rows = torch.arange(len(senders))
    return Message(payload, torch.tensor(senders), torch.full_like(rows, 9), rows)


def held(rounds: dict[int, dict[str, Message]], view: ThreatModel = EVERYONE, n: int = 3):
    rng = np.random.default_rng(1)
    return overhear(view, Transcript(rounds), "x", range(1, n + 1), rng)


def values(models: Tensor) -> list[list[float]]:
    return models[..., 0].tolist()


def test_an_agent_that_sends_nothing_keeps_a_model() -> None:
    rounds = {
        1: {"x": sent_by(5, at=100)},
        2: {"x": sent_by(2, 5, at=200)},
        3: {"x": sent_by(2, at=300)},
    }
    found = held(rounds)
    assert found is not None
    assert found.agents == (2, 5)
    assert found.sends.tolist() == [[False, True], [True, True], [True, False]]
    assert values(found.models) == [[202, 105], [202, 205], [302, 205]]
    assert found.models.dtype == torch.float64
    assert found.rounding == torch.finfo(torch.float32).eps
    double = {1: {"x": sent_by(1, 2, dtype=torch.float64)}}
    only = held(double, n=1)
    assert only is not None
    assert only.rounding == torch.finfo(torch.float64).eps


def test_messages_of_one_round_are_steps_by_their_numbers() -> None:
    numbered = {f"x/{i}": sent_by(1, 2, at=100 * i) for i in (10, 2, 1)}
    found = held({1: {**numbered, "y": sent_by(1, 2, at=9000)}}, n=1)
    assert found is not None
    assert values(found.models) == [[101, 102], [201, 202], [1001, 1002]]


def test_one_other_agent_is_too_few() -> None:
    curious = ThreatModel(name="curious", kind="curious", agents=(9,))
    both = {1: {"x": sent_by(1, 2)}, 2: {"x": sent_by(2)}}
    assert held({1: {"x": sent_by(1)}}, curious, 1) is None
    found = held(both, curious, 2)
    assert found is not None
    assert found.agents == (1, 2)
    insider = ThreatModel(name="insider", kind="curious", agents=(1,))
    assert held(both, insider, 2) is None


@pytest.mark.parametrize(("numbers", "d"), [(1, 1), (7, 1), (8, 2), (100, 2)])
def test_coordinates_fill_the_memory_that_there_is(monkeypatch, numbers: int, d: int) -> None:
    """Of two agents in two rounds; one coordinate at the least."""
    monkeypatch.setattr(observer_view, "MOST_NUMBERS", numbers)
    found = held({1: {"x": sent_by(1, 2)}, 2: {"x": sent_by(1, 2)}}, n=2)
    assert found is not None
    assert found.models.shape == (2, 2, d)


def test_links_to_agents_that_are_not_heard_are_left_out() -> None:
    setting = Setting(build_graph("ring", 6), (1,) * 6, 4)
    assert np.argwhere(np.triu(linked(setting, (0, 1, 3), range(1, 2)))).tolist() == [[0, 1]]
    tapped = ThreatModel(name="tap", links=((0, 1), (3, 2), (4, 0), (1, 5)))
    assert np.argwhere(np.triu(known(tapped, (0, 1, 3)))).tolist() == [[0, 1]]
    assert not known(ThreatModel(name="none"), (0, 1, 3)).any()


def test_the_links_of_all_rounds_that_are_read_count() -> None:
    setting = Setting(build_graph("exponential", 8), (1,) * 8, 4)
    everybody = tuple(range(8))
    by_round = [linked(setting, everybody, range(k, k + 1)) for k in range(1, 4)]
    assert [int(one.sum()) for one in by_round] == [16, 16, 8]
    assert (linked(setting, everybody, range(1, 3)) == (by_round[0] | by_round[1])).all()
    assert (linked(setting, everybody, range(1, 50)) == np.any(by_round, axis=0)).all()


def test_fifty_rounds_are_read_unless_fewer_are_asked_for() -> None:
    assert Topology()._rounds(200) == range(1, 51)
    assert Topology()._rounds(20) == range(1, 21)
    assert Topology(n_rounds=4)._rounds(20) == range(1, 5)
    assert Topology()._message == "x"
    assert Topology(message="z")._message == "z"


def test_two_steps_have_no_difference_to_be_taken() -> None:
    rng = torch.Generator().manual_seed(1)
    models = torch.randn(2, 4, 5, generator=rng, dtype=torch.float64)
    assert fitted(models, 1e-16).rho == 0.0


def regression(W: list[list[float]], gram: Tensor, cross: Tensor) -> Regression:
    covariance, variance = torch.diag(torch.tensor([1.0, 0.25])), torch.tensor([1.0, 4.0])
    return Regression(torch.tensor(W), covariance, variance, gram, cross, 0.0, 0.0)


def test_weights_of_a_pair_are_pooled_by_their_precision() -> None:
    """Of variances 1/4 and 4 the precisions are 4 and 1/4, of their sum 17/4 is the scale."""
    found = by_regression(regression([[0.5, 0.5], [0.25, 0.75]], torch.eye(2), torch.eye(2)))
    assert found[0, 1] == found[1, 0] == pytest.approx((4 * 0.5 + 0.25 * 0.25) / (17 / 4) ** 0.5)
    assert found[0, 0] == pytest.approx(2 * 0.5 / 2**0.5)
    assert found[1, 1] == pytest.approx(2 * 0.75 / 2**0.5)


def test_a_row_without_residual_has_finite_scores() -> None:
    found = regression([[0.5, 0.5], [0.25, 0.75]], torch.eye(2), torch.eye(2))
    exact = found._replace(W=found.W.double(), variance=torch.zeros(2, dtype=torch.float64))
    assert np.isfinite(by_regression(exact)).all()


def test_sparse_rows_are_the_least_of_a_parabola() -> None:
    """Of the row (x, 1 - x) the slope is 2x - 1.2 for the first, and negative for the second."""
    gram = torch.tensor([[2.0, 0.5], [0.5, 1.0]])
    cross = torch.tensor([[1.3, 0.6], [0.2, 2.9]])
    found = by_simplex(regression([[0.5, 0.5], [0.25, 0.75]], gram, cross))
    assert found == pytest.approx(np.array([[2 * 0.6, 0.4], [0.4, 2.0]]), abs=1e-4)
