"""Accuracy of trained defenses as a cell measures it, and the sensitivities of PartPSP."""

import pytest

from dpaudit.errors import ConfigError
from dpaudit.files.config import AuditConfig
from dpaudit.papers import accuracy as room
from dpaudit.papers.accuracy import (
    ACCURACY,
    CURVE,
    accuracy,
    curve,
    estimate_cost,
    nested,
    prepared_of,
)
from dpaudit.papers.partpsp_figures import EXCEEDED, FIGURE_2, MEAN, SENSITIVITY, sensitivities
from dpaudit.pipeline.run import Runtime, run_audit
from tests.papers.toy import TRAINED


def test_dotted_keys_are_the_tables_of_an_audit_file() -> None:
    assert nested({"a.b.c": 1, "a.b.d": None, "e": 2}) == {"a": {"b": {"c": 1, "d": None}}, "e": 2}


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    config = AuditConfig.from_dict({**nested(TRAINED), "seed": 3})
    return run_audit(config, tmp_path_factory.mktemp("audit"), Runtime(cores=1)).utility


@pytest.mark.parametrize("world", ["defense", "no-defense"])
def test_a_cell_measures_what_an_audit_of_its_settings_says(world, around, audited) -> None:
    found = list(curve({**TRAINED, "world": world}, 3, around))
    assert [m.at for m in found] == list(audited[world].rounds)
    expected = [100 * sum(agents) / 4 for agents in audited[world].accuracy]
    assert [m.value for m in found] == pytest.approx(expected)
    assert {m.quantity for m in found} == {CURVE}
    [last] = accuracy({**TRAINED, "world": world}, 3, around)
    assert (last.quantity, last.value, last.at) == (ACCURACY, found[-1].value, None)


@pytest.mark.parametrize("scale, low", [("unit", 0.0), ("symmetric", -1.0)])
def test_records_are_in_the_scale_that_is_asked_for(scale, low, around) -> None:
    prepared, _ = prepared_of({**TRAINED, "data.scale": scale}, 3, around)
    assert prepared.learned.dataset.x.min() == low


def test_what_does_not_fit_is_one_line(around, monkeypatch) -> None:
    monkeypatch.setattr(room, "available", lambda: 10)
    with pytest.raises(ConfigError, match="^training takes about .* and 0.01 kB is free$"):
        list(accuracy(TRAINED, 3, around))


def test_time_and_memory_are_estimated_and_time_grows_with_rounds(around) -> None:
    short = estimate_cost(TRAINED, 3, around)
    long, size = estimate_cost({**TRAINED, "defense.n_rounds": 6000}, 3, around)
    assert 0 < short[0] < 60
    assert long > 20 * short[0]
    assert size > 10**8


def test_the_first_round_after_a_synchronisation_has_the_estimate_of_22(around) -> None:
    """S = 2 C' max_i ||gamma_s g_i||_1 there; and the real one is at most twice that norm."""
    cell = FIGURE_2.cells[0]
    settings = {**FIGURE_2.settings, **{one.key: one.value for one in FIGURE_2.open}}
    settings |= {**cell.settings, "data.name": "digits", "defense.n_rounds": 6}
    settings["defense.batch_size"] = 20
    found = list(sensitivities(settings, 0, around))
    real = {m.at: m.value for m in found if m.labels == {"which": "real"} and m.at}
    estimated = {m.at: m.value for m in found if m.labels == {"which": "estimated"} and m.at}
    assert set(real) == set(estimated) == {1, 2, 3, 4, 5, 6}
    for k in (1, 6):  # T_sync = 5
        assert real[k] <= estimated[k] / 0.78 * (1 + 1e-5)
    [share] = [m.value for m in found if m.quantity == EXCEEDED]
    assert share == pytest.approx(100 * sum(real[k] > estimated[k] for k in real) / 6)
    assert {m.quantity for m in found} == {SENSITIVITY, MEAN, EXCEEDED}
