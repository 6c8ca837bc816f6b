"""Curves of convergence: losses of training records, beside the accuracy that an audit measures."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from dpaudit.papers.accuracy import ACCURACY, CURVE, RECORDS, curve, prepared_of
from dpaudit.papers.convergence import (
    LEAST,
    LOSS,
    TrainingLoss,
    convergence,
    played,
)
from dpaudit.papers.dyn_d2p_figures import NORM, TENTH, gradient_norms
from tests.papers.toy import TRAINED


def test_the_loss_is_that_of_training_records_and_accuracy_that_of_test_records(around) -> None:
    prepared, _ = prepared_of(TRAINED, 3, around)
    problem = prepared.learned.problem
    X = problem.initial(prepared.streams) + torch.arange(4)[:, None] / 100
    loss, accuracy = TrainingLoss(problem).evaluate(X)
    x, y = around.dataset.x[:2000].flatten(1), around.dataset.y[:2000]
    W, b = X[:, :640].view(4, 10, 64), X[:, 640:]
    expected = [cross_entropy(x @ W[i].T + b[i], y).item() for i in range(4)]
    assert loss.tolist() == pytest.approx(expected, rel=1e-5)
    assert accuracy.tolist() == problem.evaluate(X)[1].tolist()


def test_curves_end_in_the_accuracy_of_tables_and_least_is_the_least_point(around) -> None:
    found = list(convergence(TRAINED, 3, around))
    points = [(m.at, m.value) for m in found if m.quantity == CURVE]
    losses = [m.value for m in found if m.quantity == LOSS]
    single = {m.quantity: m.value for m in found if m.at is None}
    assert points == [(m.at, m.value) for m in curve(TRAINED, 3, around)]
    assert single == {ACCURACY: points[-1][1], LEAST: min(losses)}
    assert len(losses) == len(points)
    assert losses[-1] < losses[0]


def test_agents_may_have_so_many_records_each_whatever_their_number(around) -> None:
    for n in (3, 5):
        prepared, _ = prepared_of({**TRAINED, "data.n_agents": n, RECORDS: 40}, 3, around)
        assert prepared.setting.sizes == (40,) * n


def test_rounds_are_those_of_training(around) -> None:
    """The accuracy of the models of the last round that is played is that of the curve."""
    *_, last = played(TRAINED, 3, around)
    prepared, _ = prepared_of(TRAINED, 3, around)
    models = prepared.defenses["defense"].models(last.state)
    shares = prepared.learned.problem.evaluate(models)[1]
    assert 100 * shares.double().mean().item() == pytest.approx(
        [m.value for m in curve(TRAINED, 3, around)][-1]
    )


def test_gradients_are_as_long_as_those_that_sgp_steps_by(around) -> None:
    settings = {**TRAINED, "defense.name": "sgp", "defense.n_rounds": 40}
    settings = {k: v for k, v in settings.items() if k != "defense.epsilon"}
    found = list(gradient_norms(settings, 3, around))
    norms = [r.private["gradient"].norm(dim=1).mean().item() for r in played(settings, 3, around)]
    tenths = {m.labels["rounds"]: m.value for m in found if m.quantity == TENTH}
    assert tenths["first tenth"] == pytest.approx(sum(norms[:4]) / 4)
    assert tenths["last tenth"] == pytest.approx(sum(norms[36:]) / 4)
    points = {m.at: m.value for m in found if m.quantity == NORM}
    assert points[40] == pytest.approx(sum(norms[38:]) / 2)
    assert len(points) == 20
