"""Which rounds and messages are read, and how many trials are played at once, by hand."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import dpaudit.attack as da
from dpaudit.attacks.mutual_information import samples
from dpaudit.attacks.mutual_information.samples import _Column, blocks, first_heard, span_of
from dpaudit.defense.contract import Setting
from dpaudit.files.threat import ThreatModel
from dpaudit.graphs.graph import build_graph

DEFENSE: Any = SimpleNamespace(
    n_rounds=9,
    messages={"x": "", "y": ""},
    observables={"o": SimpleNamespace(needs={"x": (0, -2), "y": (-1,)})},
    combinations={"c": SimpleNamespace(delay=2, messages=("y",))},
)


def test_rounds_that_show_a_quantity_are_read() -> None:
    assert list(span_of("x", DEFENSE, 4)) == [4]
    assert list(span_of("o", DEFENSE, 4)) == [2, 3, 4]
    assert list(span_of("c", DEFENSE, 4)) == [1, 2, 3, 4, 5, 6]
    assert samples.read_of("x", DEFENSE) == ["x"]
    assert samples.read_of(samples.VIEW, DEFENSE) == ["x", "y"]
    assert set(samples.read_of("o", DEFENSE)) == {"x", "y"}
    assert samples.read_of("c", DEFENSE) == ("y",)

    def asked(message: str, *rounds: int) -> Any:
        return SimpleNamespace(message=message, rounds=rounds)

    assert samples.last_round(asked("x", 5, 2), DEFENSE) == 5
    assert samples.last_round(asked("c", 5, 2), DEFENSE) == 7
    assert samples.last_round(asked("c", 8), DEFENSE) == 9
    assert [samples.heard_rounds(asked(m), DEFENSE) for m in ("x", "o", "c")] == [1, 1, 3]


@pytest.mark.parametrize(
    ("agents", "links", "victim"),
    [((0,), None, 1), ((1,), None, 0), ((), None, 0), ((), ((2, 1),), 2), ((0, 1), None, 2)],
)
def test_the_first_honest_agent_that_is_heard_is_the_victim(agents, links, victim: int) -> None:
    setting = Setting(build_graph("path", 4), (10,) * 4, 1)
    kind: Any = {0: "external", 1: "curious", 2: "colluding"}[len(agents)]
    view = ThreatModel(name="some", kind=kind, agents=agents, links=links)
    assert first_heard(setting, view) == victim
    idle = Setting(build_graph("path", 4), (0, 0, 0, 10), 1)
    assert first_heard(idle, ThreatModel(name="one", kind="curious", agents=(0,))) == 3
    own = ThreatModel(name="one", kind="curious", agents=(3,))
    assert first_heard(idle, own) == 0


def test_trials_are_played_in_blocks_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four agents and six links with three numbers each, as so many tensors of four bytes."""
    setting = Setting(build_graph("path", 4), (10,) * 4, 3)
    each = (4 + 6) * 3 * 4 * samples.TENSORS
    fit = 2 * samples.FEWEST
    monkeypatch.setattr(samples, "BLOCK_BYTES", fit * each)
    assert blocks(fit, setting) == [fit]
    assert blocks(fit + 1, setting) == [fit // 2 + 1, fit // 2]
    assert blocks(3 * fit - 1, setting) == [fit, fit, fit - 1]
    least = -(-samples.FEWEST // 16)
    monkeypatch.setattr(samples, "BLOCK_BYTES", least * each)
    assert blocks(2 * samples.FEWEST, setting) == [samples.FEWEST] * 2
    monkeypatch.setattr(samples, "BLOCK_BYTES", (least - 1) * each)
    with pytest.raises(da.ConfigError, match=f"{samples.FEWEST} runs at once of 4 agents"):
        blocks(1000, setting)


def test_columns_that_are_the_same_in_all_trials_are_left_out() -> None:
    """What is common drops out; one that varies by roundings does not vary."""
    rng = np.random.default_rng(0)
    values = torch.from_numpy(rng.normal(size=(6, 1, 3)))
    values[:, 0, 1] = 7.0
    values[:, 0, 2] = 1e3 + torch.tensor([0, 1, 0, 1, 0, 1]) * 1e-13
    column = _Column(5)
    found = column(values)
    assert found.shape == (6, 1)
    np.testing.assert_allclose(found[:, 0], values[:, 0, 0] - values[0, 0, 0], atol=1e-12)
    assert column.directions is None
    assert (column.share, column.basis) == (1.0, None)
    more = column(values + 1.0)
    np.testing.assert_allclose(more[:, 0], values[:, 0, 0] + 1.0 - values[0, 0, 0], atol=1e-12)
    both = _Column(5)(values[:, :, :2].clone(), torch.tensor([[1.0], [2.0]]).double())
    np.testing.assert_allclose(both[:, 0], values[:, 0, 0] - values[0, 0, 0], atol=1e-12)


@pytest.mark.parametrize("alike", [False, True])
def test_columns_are_projected_on_their_leading_directions(alike: bool) -> None:
    """Two independent ones of deviations 3 and 1, of which alike ones are measured by their own."""
    a = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0]).double()
    b = torch.tensor([1.0, 1.0, -1.0, -1.0, 1.0, 1.0, -1.0, -1.0]).double()
    values = torch.stack([3 * a, b, 3 * a], dim=1)[:, None]
    column = _Column(1)
    found = column(values, alike=alike)
    assert column.directions is not None
    assert found.shape == (8, 1)
    direction = column.directions[:, 0].abs()
    half = 0.5**0.5
    expected = [half / 3, 0.0, half / 3] if alike else [half, 0.0, half]
    np.testing.assert_allclose(direction, expected, atol=1e-12)
    assert column.share == pytest.approx(2 / 3 if alike else 18 / 19)
    assert column.basis is not None
    assert column.basis.shape == (3, 1)
    far = _Column(1)
    far(torch.full((4, 1, 2), float("inf")).double())
    assert far.directions is None
    wide = _Column(3)
    wide(values)
    assert wide.directions is None
