"""Table 4 of Xie, Liu and Chai round by round: the numbers are those of the table's own rows."""

import pytest

from dpaudit.papers.experiment import Around
from dpaudit.papers.xie_figures import NUMBERS, PARAMETERS, ROUNDS, communication
from dpaudit.papers.xie_leaks import BITS, M_NMI, RESIDUAL, XIE_LEAKS, leaks
from dpaudit.papers.xie_table4 import PUBLISHED, TableScale, table_row
from dpaudit.rng import Streams
from dpaudit.training.run_directory import RunDirectory

TINY = {"trials": 60, "n_rounds": 12, "estimated": 3}


@pytest.fixture
def around(tmp_path) -> Around:
    return Around(RunDirectory(tmp_path), "", None, lambda what, done, total: None)


@pytest.mark.parametrize("i", range(len(PUBLISHED)))
@pytest.mark.filterwarnings("ignore")
def test_a_cell_is_a_row_of_the_table_with_every_round(i: int, around) -> None:
    cells = XIE_LEAKS["xie-table4-rounds"].cells
    cell = [c for c in cells if c.labels["random"] == "agent 1"][i]
    found = list(leaks({**cell.settings, **TINY}, 3, around))
    row = table_row(PUBLISHED[i], TableScale(60, 12, 3, 0, 0), Streams(3), "agent 1")
    assert [m.value for m in found if m.quantity == RESIDUAL] == [row.residual]
    for view, information in row.found.items():
        own = [m for m in found if m.labels.get("view") == view]
        if information is None:
            assert [(m.quantity, m.value) for m in own] == [(M_NMI, 0.0)]
            continue
        bits = {m.at: m.value for m in own if m.quantity == BITS}
        assert max(bits.values()) == pytest.approx(information.bits)
        assert bits[row.rounds[view][information.round - 1]] == max(bits.values())
        assert set(bits) <= {1, 3, 11}


def test_numbers_are_counted_once_for_each_variable_on_each_link(around) -> None:
    """Two variables of p = 2 numbers on every link in every round until the target is reached."""
    settings = {"n_agents": 6, "p_edge": 0.6, "m": 3, "p": 2, "n_rounds": 40, "scale": 3.0}
    settings |= {"trials": 20, "distance": 1.0, "epsilon": 1e4, **PARAMETERS["10"], "gamma": 0.01}
    found = {}
    for method, target in (("DPOP", 1e9), ("PP-DOAGT", 1e9), ("Algorithm 1", 1e-30)):
        cell = {**settings, "method": method, "target": target}
        found[method] = {m.quantity: m.value for m in communication(cell, 0, around)}
    assert found["DPOP"][ROUNDS] == found["PP-DOAGT"][ROUNDS] == 1
    assert found["PP-DOAGT"][NUMBERS] == 2 * found["DPOP"][NUMBERS] > 0
    assert found["Algorithm 1"] == {"runs that get there, %": 0.0}
