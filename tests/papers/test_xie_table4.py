"""Table 4 of Xie, Liu and Chai: observation sets as the paper lists them, and what is printed."""

import warnings

import pytest
import torch
from typer.testing import CliRunner

from dpaudit.commands.cli import app
from dpaudit.defense.contract import Setting
from dpaudit.defense.noise import Noise
from dpaudit.graphs.graph import build_graph
from dpaudit.information.reduction import EstimatorWarning
from dpaudit.papers import xie_table4
from dpaudit.papers.declared import DECLARED
from dpaudit.papers.experiment import spread
from dpaudit.papers.xie_table4 import (
    BITS,
    DATA_SCALE,
    M_NMI,
    MOST,
    RESIDUAL,
    STANDARD_ERROR,
    TableScale,
    _method,
    leaks,
    table_row,
)
from dpaudit.rng import Streams
from dpaudit.training.sensor_fusion import SensorFusion
from tests.said import without_help

TINY = {"trials": 60, "n_rounds": 12, "estimated": 3}
SCALE = TableScale(600, 12, 4, 0, 0)


def rounds_of(method: str, n: int = 4, trials: int = 6):
    """Rounds 1 to n, with the state before each; and the observation sets of rounds 1 to n - 1."""
    defense, observe = _method(method, n)
    streams, setting = Streams(3), Setting(build_graph("complete", 3), (1, 1, 1), 1)
    problem = SensorFusion.draw(streams, 3, m=1, p=1, scale=DATA_SCALE, trials=trials, redrawn=[0])
    state, graph = defense.start(problem.initial(streams, trials), setting), setting.network.at(1)
    played, before = [], []
    for k in range(1, n + 1):
        before.append(state)
        gradient = problem.gradient(streams, k)
        played.append(defense.step(state, k, graph, gradient, Noise(streams, k)))
        state = played[-1].state
    views = [observe(k, played[k - 1], played[k]) for k in range(1, n)]
    return defense, before, played, views


def test_the_corrected_third_part_is_gradient_less_noise() -> None:
    """(z_bar(k) - z(k+1)) / alpha_k - y(k) = grad f(z(k)) - xi(k+1) / alpha_k, by (4c)."""
    defense, before, played, views = rounds_of("Algorithm 1, epsilon = 1")
    for k in range(1, 4):
        xi_next = played[k].sent["z"].payload[:, 0] - before[k].X[:, 0]
        expected = played[k - 1].private["gradient"][:, 0] - xi_next / defense.alpha(k)
        found = views[k - 1]["(44) corrected"][:, 2:]
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-6)


def test_the_printed_third_component_holds_no_gradient() -> None:
    """(44) as printed: z, y and (z_bar - z) / alpha_k - y, of messages of round k alone."""
    defense, _, played, views = rounds_of("Algorithm 1, epsilon = 1")
    for k in range(1, 4):
        z, y = played[k - 1].sent["z"].payload, played[k - 1].state.Y[:, 0]
        third = (z.mean(dim=1) - z[:, 0]) / defense.alpha(k) - y
        expected = torch.cat([z[:, 0], y, third], dim=-1)
        torch.testing.assert_close(views[k - 1]["(44) as printed"], expected)


def test_the_eavesdropper_on_shares_holds_the_gradient() -> None:
    """By conservation its sum is grad f_1 - y_1, and lambda_y shows y_1 within a factor 3."""
    _, before, played, views = rounds_of("correlated randomness")
    for k in range(2, 4):
        expected = played[k - 1].private["gradient"][:, 0] - before[k - 1].Y[:, 0]
        torch.testing.assert_close(views[k - 1]["eavesdropper"][:, :1], expected)
    curious = views[1]["curious"]
    assert curious.shape == (6, 3)
    torch.testing.assert_close(curious[:, 2:], played[1].sent["tracking"].on_edge(0, 1))


def test_the_curious_pair_on_ciphers_holds_agent_1s_increment() -> None:
    defense, before, played, views = rounds_of("encryption")
    for k in range(1, 4):
        step = played[k - 1].state.X[:, 0] - before[k - 1].X[:, 0]
        increment = step + defense.alpha(k) * played[k - 1].private["gradient"][:, 0]
        torch.testing.assert_close(views[k - 1]["curious"], increment / defense.alpha(k))


@pytest.mark.parametrize("i", range(5))
@pytest.mark.filterwarnings("ignore")
def test_a_cell_is_a_row_of_the_table_with_every_round(i: int, context) -> None:
    cells = DECLARED["xie-table4-rounds"].cells
    cell = [c for c in cells if c.labels["random"] == "agent 1"][i]
    found = list(leaks({**cell.settings, **TINY}, 3, context))
    row = table_row(cell.labels["method"], TableScale(60, 12, 3, 0, 0), Streams(3), "agent 1")
    views = ["curious", "eavesdropper"] if i > 2 else ["(44) as printed", "(44) corrected"]
    assert sorted(row.found) == views
    assert [m.value for m in found if m.quantity == RESIDUAL] == [row.residual]
    for view, information in row.found.items():
        own = [m for m in found if m.labels.get("view") == view]
        if information is None:
            assert (i, view) == (4, "eavesdropper")
            assert [(m.quantity, m.value) for m in own] == [(M_NMI, 0.0)]
            continue
        assert information.n == 60
        bits = {m.at: m.value for m in own if m.quantity == BITS}
        assert max(bits.values()) == pytest.approx(information.bits)
        assert bits[row.rounds[view][information.round - 1]] == max(bits.values())
        assert set(bits) <= {1, 3, 11}


def test_permutations_add_an_interval_and_a_p_value(context) -> None:
    """And the round is given by its number, not by its place among those that are estimated."""
    options = {**TINY, "n_rounds": 40, "permutations": 3, "splits": 2, "random": "agent 1"}
    method = "Algorithm 1, epsilon = 10"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = list(leaks({**options, "method": method}, 0, context))
    numbers = {(m.quantity, m.labels.get("view")): m for m in found if m.at is None}
    most = numbers[MOST, "(44) corrected"]
    assert most.low <= most.value <= most.high
    assert numbers["the round that reveals most", "(44) corrected"].value in spread(39, 3)
    assert numbers["its p-value", "(44) corrected"].value in (0.25, 0.5, 0.75, 1.0)
    assert numbers[STANDARD_ERROR, None].value > 0


def test_what_the_estimator_cannot_read_is_a_warning(context, monkeypatch) -> None:
    row = table_row("encryption", TableScale(60, 12, 3, 0, 0), Streams(3), "agent 1")
    crowded = row._replace(concerns=("view: values repeat",))
    monkeypatch.setattr(xie_table4, "table_row", lambda *arguments: crowded)
    with pytest.warns(EstimatorWarning, match=r"^encryption \(agent 1\): view: values repeat$"):
        list(leaks({**TINY, "method": "encryption", "random": "agent 1"}, 3, context))


def test_more_noise_reveals_less() -> None:
    """Over an epsilon of 10, 1 and 0.1 the information falls, as the paper has it."""
    bits = [
        table_row(f"Algorithm 1, epsilon = {epsilon}", SCALE, Streams(2), "agent 1")
        .found["(44) corrected"]
        .bits
        for epsilon in ("10", "1", "0.1")
    ]
    assert bits == sorted(bits, reverse=True)


def test_an_unknown_reproduction_is_one_line() -> None:
    done = CliRunner().invoke(app, ["reproduce", "xie-table5"])
    assert done.exit_code == 2
    (line,) = without_help(done.stderr).strip().splitlines()
    assert 'did you mean "xie-table4"' in line


def test_rounds_are_spread_evenly_on_a_logarithmic_scale() -> None:
    assert spread(5, 9) == [1, 2, 3, 4, 5]
    assert spread(1000, 4) == [1, 10, 100, 1000]
