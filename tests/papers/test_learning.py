"""Accuracy and loss of trained defenses as a cell measures them."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from dpaudit.errors import ConfigError
from dpaudit.files.config import AuditConfig
from dpaudit.papers import learning as room
from dpaudit.papers.learning import (
    ACCURACY,
    CURVE,
    LEAST,
    LOSS,
    RECORDS,
    TrainingLoss,
    accuracy,
    convergence,
    curve,
    estimate_cost,
    nested,
    prepared_of,
    with_noise,
)
from dpaudit.pipeline.run import Runtime, run_audit
from tests.papers.toy import TRAINED


def test_dotted_keys_are_the_tables_of_an_audit_file() -> None:
    assert nested({"a.b.c": 1, "a.b.d": None, "e": 2}) == {"a": {"b": {"c": 1, "d": None}}, "e": 2}


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    config = AuditConfig.from_dict({**nested(TRAINED), "seed": 3})
    return run_audit(config, tmp_path_factory.mktemp("audit"), Runtime(cores=1)).utility


@pytest.mark.parametrize("world", ["defense", "no-defense"])
def test_a_cell_measures_what_an_audit_of_its_settings_says(world, context, audited) -> None:
    found = list(curve({**TRAINED, "world": world}, 3, context))
    assert [m.at for m in found] == list(audited[world].rounds)
    expected = [100 * sum(agents) / 4 for agents in audited[world].accuracy]
    assert [m.value for m in found] == pytest.approx(expected)
    assert {m.quantity for m in found} == {CURVE}
    [last] = accuracy({**TRAINED, "world": world}, 3, context)
    assert (last.quantity, last.value, last.at) == (ACCURACY, found[-1].value, None)


@pytest.mark.parametrize("scale, low", [("unit", 0.0), ("symmetric", -1.0)])
def test_records_are_in_the_scale_that_is_asked_for(scale, low, context) -> None:
    prepared, _ = prepared_of({**TRAINED, "data.scale": scale}, 3, context)
    assert prepared.learned.dataset.x.min() == low


def test_what_does_not_fit_is_one_line(context, monkeypatch) -> None:
    monkeypatch.setattr(room, "available", lambda: 10)
    with pytest.raises(ConfigError, match="(?m)^training takes about .* and 0.01 kB is free$"):
        list(accuracy(TRAINED, 3, context))


def test_time_and_memory_are_estimated_and_grow_with_rounds(context) -> None:
    short = estimate_cost(TRAINED, 3, context)
    long, size = estimate_cost({**TRAINED, "defense.n_rounds": 6000}, 3, context)
    assert 0 < short[0] < 60
    assert long > 20 * short[0]
    assert size > 10**8


def test_loss_is_of_training_and_accuracy_of_test_records(context) -> None:
    prepared, _ = prepared_of(TRAINED, 3, context)
    problem = prepared.learned.problem
    X = problem.initial(prepared.streams) + torch.arange(4)[:, None] / 100
    loss, accuracy = TrainingLoss(problem).evaluate(X)
    x, y = context.dataset.x[:2000].flatten(1), context.dataset.y[:2000]
    W, b = X[:, :640].view(4, 10, 64), X[:, 640:]
    expected = [cross_entropy(x @ W[i].T + b[i], y).item() for i in range(4)]
    assert loss.tolist() == pytest.approx(expected, rel=1e-5)
    assert accuracy.tolist() == problem.evaluate(X)[1].tolist()


def test_curves_end_in_the_accuracy_of_tables(context) -> None:
    found = list(convergence(TRAINED, 3, context))
    points = [(m.at, m.value) for m in found if m.quantity == CURVE]
    losses = [m.value for m in found if m.quantity == LOSS]
    single = {m.quantity: m.value for m in found if m.at is None}
    assert points == [(m.at, m.value) for m in curve(TRAINED, 3, context)]
    assert single == {ACCURACY: points[-1][1], LEAST: min(losses)}
    assert len(losses) == len(points)
    assert losses[-1] < losses[0]


def test_agents_may_have_so_many_records_each(context) -> None:
    for n in (3, 5):
        prepared, _ = prepared_of({**TRAINED, "data.n_agents": n, RECORDS: 40}, 3, context)
        assert prepared.setting.sizes == (40,) * n


def test_methods_without_a_budget_have_the_noise_of_algorithm_1() -> None:
    """nu = gamma delta q2 / (epsilon (q2 - q1)), (5): 2 x 3 x 0.75 / (4 x 0.25)."""
    values = {"step_size": 2.0, "gradient_distance": 3.0, "step_decay": 0.5}
    values |= {"noise_decay": 0.75, "epsilon": 4.0}
    settings = {f"defense.{key}": value for key, value in values.items()}
    found = with_noise({**settings, "defense.name": "pp-doagt"})
    assert found["defense.noise_scale"] == 4.5
    assert "defense.epsilon" not in found
    own = {**settings, "defense.name": "dpop"}
    assert with_noise(own) == own
