"""Printed tables as numbers with labels, and the cells behind them."""

import pytest

from dpaudit.papers.experiment import Cell, Published
from dpaudit.papers.published import cells_of, grid, printed

TABLE = """
    0.25, DPDL | 94.4±0.6 92.3
    0.25, CGA | 88.0±0.7 -
"""
COLUMNS = ({"N": "10"}, {"N": "20"})


def test_each_number_has_the_labels_of_its_row_and_column() -> None:
    assert printed(TABLE, ("epsilon", "method"), COLUMNS, "accuracy") == (
        Published({"epsilon": "0.25", "method": "DPDL", "N": "10"}, "accuracy", 94.4, 0.6),
        Published({"epsilon": "0.25", "method": "DPDL", "N": "20"}, "accuracy", 92.3),
        Published({"epsilon": "0.25", "method": "CGA", "N": "10"}, "accuracy", 88.0, 0.7),
    )


@pytest.mark.parametrize("line", ["0.25 | 1 2", "0.25, DPDL | 1", "0.25, DPDL | 1 2 3"])
def test_a_line_of_another_length_is_no_table(line: str) -> None:
    with pytest.raises(ValueError):
        printed(line, ("epsilon", "method"), COLUMNS, "accuracy")


def test_a_cell_has_the_settings_of_all_of_its_labels() -> None:
    published = printed(TABLE, ("epsilon", "method"), COLUMNS, "accuracy")
    of_column = {
        "epsilon": lambda label: {"defense.epsilon": float(label)},
        "N": {"10": {"data.n_agents": 10}, "20": {"data.n_agents": 20}},
    }
    assert cells_of(published, of_column) == (
        Cell({"epsilon": "0.25", "N": "10"}, {"defense.epsilon": 0.25, "data.n_agents": 10}),
        Cell({"epsilon": "0.25", "N": "20"}, {"defense.epsilon": 0.25, "data.n_agents": 20}),
    )


def test_a_grid_has_every_combination_and_later_columns_win() -> None:
    of_column = {"graph": {"ring": {"g": 1, "n": 0}, "star": {"g": 2}}, "N": {"10": {"n": 10}}}
    assert grid(of_column) == (
        Cell({"graph": "ring", "N": "10"}, {"g": 1, "n": 10}),
        Cell({"graph": "star", "N": "10"}, {"g": 2, "n": 10}),
    )
