"""Table 4 of Xie, Liu and Chai: observation sets as the paper lists them, and what is printed."""

import re
import warnings

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from dpaudit.commands.cli import app
from dpaudit.defense.contract import Setting
from dpaudit.defense.noise import Noise
from dpaudit.graphs.graph import build_graph
from dpaudit.papers import xie_table4
from dpaudit.papers.xie_table4 import (
    DATA_SCALE,
    PUBLISHED,
    SCALES,
    TableScale,
    _method,
    _spread,
    lines,
    table,
)
from dpaudit.rng import Streams
from dpaudit.training.sensor_fusion import SensorFusion
from tests.said import without_help

TINY = TableScale(60, 12, 3, 3, 2)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCALES, "quick", TINY)


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


def test_the_corrected_third_component_is_the_gradient_less_the_fresh_noise() -> None:
    """(z_bar(k) - z(k+1)) / alpha_k - y(k) = grad f(z(k)) - xi(k+1) / alpha_k, by (4c)."""
    defense, before, played, views = rounds_of("Algorithm 1, epsilon = 1")
    for k in range(1, 4):
        xi_next = played[k].sent["z"].payload[:, 0] - before[k].X[:, 0]
        expected = played[k - 1].private["gradient"][:, 0] - xi_next / defense.alpha(k)
        found = views[k - 1]["(44) corrected"][:, 2:]
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-6)


def test_the_printed_third_component_holds_no_gradient_of_its_round() -> None:
    """(44) as printed: z, y and (z_bar - z) / alpha_k - y, of messages of round k alone."""
    defense, _, played, views = rounds_of("Algorithm 1, epsilon = 1")
    for k in range(1, 4):
        z, y = played[k - 1].sent["z"].payload, played[k - 1].state.Y[:, 0]
        third = (z.mean(dim=1) - z[:, 0]) / defense.alpha(k) - y
        expected = torch.cat([z[:, 0], y, third], dim=-1)
        torch.testing.assert_close(views[k - 1]["(44) as printed"], expected)


def test_the_eavesdropper_on_shares_holds_the_gradient_but_for_the_tracker() -> None:
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


def test_every_row_has_what_the_paper_has(tiny) -> None:
    rows = table("quick", 1, on_row=lambda method: None)
    assert [row.published for row in rows] == list(PUBLISHED)
    assert [sorted(row.found) for row in rows] == [
        *[["(44) as printed", "(44) corrected"]] * 3,
        *[["curious", "eavesdropper"]] * 2,
    ]
    assert rows[4].found["eavesdropper"] is None
    for row in rows:
        assert np.isfinite(row.residual)
        for found in filter(None, row.found.values()):
            assert found.n == 60
            assert found.low <= found.bits <= found.high


def test_more_noise_tells_less(monkeypatch) -> None:
    """Over an epsilon of 10, 1 and 0.1 the information falls, as the paper has it."""
    monkeypatch.setitem(SCALES, "quick", TableScale(600, 12, 4, 0, 0))
    rows = table("quick", 2, on_row=lambda method: None)[:3]
    assert [row.found["(44) corrected"].bits for row in rows] == sorted(
        (row.found["(44) corrected"].bits for row in rows), reverse=True
    )


def test_the_same_seed_prints_the_same_and_says_what_is_random(tiny) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = list(lines("quick", 4))
        assert list(lines("quick", 4)) == first
        assert list(lines("quick", 5)) != first
    text = "\n".join(first)
    assert text.count("Random over trials: noise, initial models, and") == 3
    assert "is then one affine function of z, which is seen" in text
    assert "published values are therefore not expected to come out" in text
    for row in PUBLISHED:
        assert text.count(row.method) >= 6


def test_the_command_prints_warnings_as_lines_without_a_trace(tiny, monkeypatch, tmp_path) -> None:
    def crowded(*args, **options):
        concern = "view: values repeat"
        return [row._replace(concerns=(concern,)) for row in table(*args, **options)[:1]]

    monkeypatch.setattr(xie_table4, "table", crowded)
    command = ["reproduce", "xie-table4", "--seed", "1", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    monkeypatch.delattr(xie_table4, "table")  # the same again is read, and warns again
    again = CliRunner().invoke(app, command)
    assert (again.stdout, without_help(again.stderr)) == (done.stdout, without_help(done.stderr))
    (line,) = without_help(done.stderr).strip().splitlines()
    assert re.fullmatch(r"warning: Algorithm 1, epsilon = 10 .*: view: values repeat", line)


def test_an_unknown_reproduction_is_one_line() -> None:
    done = CliRunner().invoke(app, ["reproduce", "xie-table5"])
    assert done.exit_code == 2
    (line,) = without_help(done.stderr).strip().splitlines()
    assert 'did you mean "xie-table4"' in line


def test_rounds_are_spread_evenly_on_a_logarithmic_scale() -> None:
    assert _spread(5, 9) == [1, 2, 3, 4, 5]
    assert _spread(1000, 4) == [1, 10, 100, 1000]


def test_the_most_telling_round_is_printed_by_its_number_and_not_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(SCALES, "quick", TableScale(60, 40, 3, 3, 2))
    told = [line for line in lines("quick", 0) if "], round " in line]
    rounds = {int(re.search(r"], round (\d+)", line)[1]) for line in told}
    assert rounds <= set(_spread(39, 3))
    assert max(rounds) > 3
