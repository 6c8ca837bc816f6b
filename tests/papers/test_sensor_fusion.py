"""Sensor fusion of Xie, Liu and Chai: residuals against their exact expectations; budgets."""

import pytest
import torch
from torch import Tensor

from dpaudit.errors import ConfigError
from dpaudit.papers.declared import DECLARED
from dpaudit.papers.experiment import CellContext
from dpaudit.papers.sensor_fusion import (
    BUDGET,
    METHODS,
    NUMBERS,
    OVER_STEP,
    RESIDUAL,
    ROUNDS,
    SPREAD,
    _calibrated,
    budgets,
    communication,
    defense_of,
    residuals,
    sensitivities,
)
from dpaudit.rng import Streams
from dpaudit.training.run_directory import RunDirectory
from dpaudit.training.sensor_fusion import SensorFusion

TABLE_3 = DECLARED["xie-table3"]
PARAMETERS = {  # of Section 6.1, by the budget
    cell.labels["epsilon"]: {
        key: {**TABLE_3.settings, **cell.settings}[key] for key in ("gamma", "beta", "q1", "q2")
    }
    for cell in TABLE_3.cells
}
SETTINGS = {
    **{"n_agents": 6, "p_edge": 0.6, "m": 3, "p": 2, "n_rounds": 40, "scale": 3.0},
    **{"trials": 2000, "distance": 1.0, "epsilon": 1.0},
    **{"gamma": 0.01, "beta": 20.0, "q1": 0.9, "q2": 0.95},
}


@pytest.fixture
def context(tmp_path) -> CellContext:
    return CellContext(RunDirectory(tmp_path), "", None, lambda what, done, total: None)


def expected(method: str, seed: int) -> float:
    """The mean of the last residual by the affine recursion of each method, written out here.

    A state s of [n p] blocks obeys s <- A s + B noise + a, with the noise's variances given.
    """
    s, streams = SETTINGS, Streams(seed)
    n, p, alpha_of = s["n_agents"], s["p"], lambda k: s["gamma"] * s["q1"] ** (k - 1)
    problem = SensorFusion.draw(streams, n, m=s["m"], p=p, scale=s["scale"])
    _, setting = _calibrated({**s, "method": method}, streams)
    W = torch.kron(setting.network.at(1).W, torch.eye(p).double())
    H, c = torch.block_diag(*problem.H), problem.c.flatten()
    identity, zero = torch.eye(n * p).double(), torch.zeros(n * p, n * p).double()
    nu_1 = s["gamma"] * s["q2"] / (s["epsilon"] * (s["q2"] - s["q1"]))
    beta_of_z = s["beta"] * (identity - W)

    def round(k: int) -> tuple[Tensor, Tensor, Tensor]:
        """A, B and a."""
        alpha = alpha_of(k)
        if method == "DPOP":
            step = (identity - alpha * H) @ W
            return step, step, alpha * c
        if method == "Algorithm 1":  # of (x, y): y + beta (z - W z), x = W z - alpha (y + H z - c)
            of_z = torch.cat([W - alpha * (beta_of_z + H), beta_of_z])
            A = torch.cat([of_z, torch.cat([-alpha * identity, identity])], dim=1)
            return A, of_z, torch.cat([alpha * c, 0 * c])
        if method == "PP-DOAGT":  # of (x, s)
            of_s = torch.cat([alpha * H, W], dim=1)
            of_x = torch.cat([W, zero], dim=1) - of_s + torch.cat([zero, identity], dim=1)
            noise = torch.cat([torch.cat([W, -W], dim=1), torch.cat([zero, W], dim=1)])
            return torch.cat([of_x, of_s]), noise, torch.cat([alpha * c, -alpha * c])
        of_x = torch.cat([W, -alpha * identity], dim=1)  # Diff-TV-AB, of (x, y)
        of_y = torch.cat([zero, W], dim=1) + H @ (of_x - torch.cat([identity, zero], dim=1))
        noise = torch.cat([torch.cat([W, zero], dim=1), torch.cat([H @ W, W], dim=1)])
        return torch.cat([of_x, of_y]), noise, torch.cat([0 * c, 0 * c])

    start = {"DPOP": identity, "Diff-TV-AB": torch.cat([identity, H])}
    of_x0 = start.get(method, torch.cat([identity, zero]))
    mean = torch.zeros(len(of_x0)).double()
    if method == "Diff-TV-AB":
        mean[n * p :] = -c
    cov = of_x0 @ of_x0.T  # initial models are standard normal
    for k in range(1, s["n_rounds"] + 1):
        A, B, a = round(k)
        variance = 2 * (nu_1 * s["q2"] ** (k - 1)) ** 2
        mean, cov = A @ mean + a, A @ cov @ A.T + variance * B @ B.T
    off = mean[: n * p] - problem.optimum.repeat(n)
    return (off.square().sum() + cov.diagonal()[: n * p].sum()).item()


@pytest.mark.parametrize("method", METHODS)
def test_residuals_are_within_error_of_their_expectation(method, context) -> None:
    """Beyond 4.5 standard errors of 2,000 trials: about 1e-5 of correct programs, for each method."""
    found = {
        (m.quantity, m.at): m.value for m in residuals({**SETTINGS, "method": method}, 5, context)
    }
    error = found[SPREAD, 40] / SETTINGS["trials"] ** 0.5
    assert abs(found[RESIDUAL, 40] - expected(method, 5)) < 4.5 * error


def test_the_settings_are_those_of_section_6_1() -> None:
    assert PARAMETERS["0.1"] == {"gamma": 0.001, "beta": 1000, "q1": 0.92, "q2": 0.99}
    assert PARAMETERS["10"] == {"gamma": 0.002, "beta": 100, "q1": 0.97, "q2": 0.99}
    common = {"n_rounds": 1000, "distance": 1.0, "epsilon": 1.0, **PARAMETERS["1"]}
    nu = {m: defense_of({**common, "method": m}).nu(1) for m in METHODS}
    assert nu == pytest.approx(dict.fromkeys(METHODS, 0.001 * 0.99 / 0.02))  # (5)


def test_one_smoothness_gives_all_budgets_of_diff_tv_ab(context) -> None:
    printed = {
        (p.labels["method"], p.labels["epsilon"]): p.value
        for p in DECLARED["xie-budgets"].published
    }
    settings = {**SETTINGS, "n_agents": 6, "n_rounds": 1000, "smoothness": 2.85}
    for epsilon, own in PARAMETERS.items():
        cell = {**settings, **own, "epsilon": float(epsilon), "method": "Diff-TV-AB"}
        found = {m.quantity: m.value for m in budgets(cell, 0, context)}
        assert found[BUDGET] == pytest.approx(printed["Diff-TV-AB", epsilon], abs=0.006)


def test_algorithm_1_moves_by_the_bound_of_table_3(context) -> None:
    for cell in TABLE_3.cells:
        settings = {**TABLE_3.settings, **cell.settings, "distance": 1.0, "round": 100}
        [ratio] = [m.value for m in sensitivities(settings, 0, context) if m.quantity == OVER_STEP]
        if cell.labels["method"] == "Algorithm 1":
            assert ratio == pytest.approx(1)
        if cell.labels["method"] == "PP-DOAGT":
            assert ratio == pytest.approx(2 + 1 / settings["q1"])


def test_a_round_by_which_the_step_size_is_0_is_refused_at_once(context) -> None:
    late = {**TABLE_3.settings, **TABLE_3.cells[0].settings, "distance": 1.0, "round": 10**8}
    with pytest.raises(ConfigError, match="--set: round: .* 100000000"):
        list(sensitivities(late, 0, context))


def test_numbers_are_counted_once_for_each_link(context) -> None:
    """Two variables of p = 2 numbers on every link in every round until the target is reached."""
    settings = {"n_agents": 6, "p_edge": 0.6, "m": 3, "p": 2, "n_rounds": 40, "scale": 3.0}
    settings |= {"trials": 20, "distance": 1.0, "epsilon": 1e4, **PARAMETERS["10"], "gamma": 0.01}
    found = {}
    for method, target in (("DPOP", 1e9), ("PP-DOAGT", 1e9), ("Algorithm 1", 1e-30)):
        cell = {**settings, "method": method, "target": target}
        found[method] = {m.quantity: m.value for m in communication(cell, 0, context)}
    assert found["DPOP"][ROUNDS] == found["PP-DOAGT"][ROUNDS] == 1
    assert found["PP-DOAGT"][NUMBERS] == 2 * found["DPOP"][NUMBERS] > 0
    assert found["Algorithm 1"] == {"runs that get there, %": 0.0}
