"""Single rounds: sensitivities of PartPSP, and norms of gradients."""

import pytest

from dpaudit.papers.declared import DECLARED
from dpaudit.papers.learning import (
    EXCEEDED,
    MEAN,
    NORM,
    SENSITIVITY,
    TENTH,
    curve,
    gradient_norms,
    played,
    prepared_of,
    sensitivity_by_round,
)
from tests.papers.toy import TRAINED


def test_the_first_round_after_a_sync_has_the_estimate_of_22(context) -> None:
    """S = 2 C' max_i ||gamma_s g_i||_1 there; and the real one is at most twice that norm."""
    figure = DECLARED["partpsp-figure2"]
    cell = figure.cells[0]
    settings = {**figure.settings, **{one.key: one.value for one in figure.open}}
    settings |= {**cell.settings, "data.name": "digits", "defense.n_rounds": 6}
    settings["defense.batch_size"] = 20
    found = list(sensitivity_by_round(settings, 0, context))
    real = {m.at: m.value for m in found if m.labels == {"which": "real"} and m.at}
    estimated = {m.at: m.value for m in found if m.labels == {"which": "estimated"} and m.at}
    assert set(real) == set(estimated) == {1, 2, 3, 4, 5, 6}
    for k in (1, 6):  # T_sync = 5
        assert real[k] <= estimated[k] / 0.78 * (1 + 1e-5)
    [share] = [m.value for m in found if m.quantity == EXCEEDED]
    assert share == pytest.approx(100 * sum(real[k] > estimated[k] for k in real) / 6)
    assert {m.quantity for m in found} == {SENSITIVITY, MEAN, EXCEEDED}


def test_rounds_are_those_of_training(context) -> None:
    """The accuracy of the models of the last round that is played is that of the curve."""
    *_, last = played(TRAINED, 3, context)
    prepared, _ = prepared_of(TRAINED, 3, context)
    models = prepared.defenses["defense"].models(last.state)
    shares = prepared.learned.problem.evaluate(models)[1]
    assert 100 * shares.double().mean().item() == pytest.approx(
        [m.value for m in curve(TRAINED, 3, context)][-1]
    )


def test_gradients_are_as_long_as_those_that_sgp_steps_by(context) -> None:
    settings = {**TRAINED, "defense.name": "sgp", "defense.n_rounds": 40}
    settings = {k: v for k, v in settings.items() if k != "defense.epsilon"}
    found = list(gradient_norms(settings, 3, context))
    norms = [r.private["gradient"].norm(dim=1).mean().item() for r in played(settings, 3, context)]
    tenths = {m.labels["rounds"]: m.value for m in found if m.quantity == TENTH}
    assert tenths["first tenth"] == pytest.approx(sum(norms[:4]) / 4)
    assert tenths["last tenth"] == pytest.approx(sum(norms[36:]) / 4)
    points = {m.at: m.value for m in found if m.quantity == NORM}
    assert points[40] == pytest.approx(sum(norms[38:]) / 2)
    assert len(points) == 20
