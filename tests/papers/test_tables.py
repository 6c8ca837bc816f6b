"""Printed tables as numbers with labels, and the cells that files of experiments declare."""

import pytest

from dpaudit.papers.declared import _cells, _merged, read_experiments
from dpaudit.papers.experiment import PublishedNumber, TableCell, printed

TABLE = """
    0.25, DPDL | 94.4±0.6 92.3
    0.25, CGA | 88.0±0.7 -
"""
COLUMNS = ({"N": "10"}, {"N": "20"})
LABELS = {
    "graph": {"ring": {"g": {"name": 1}, "n": 0}, "star": {"g": {"name": 2}}},
    "N": "n",
}


def test_each_number_has_the_labels_of_its_row_and_column() -> None:
    assert list(printed(TABLE, ("epsilon", "method"), COLUMNS, "accuracy")) == [
        PublishedNumber({"epsilon": "0.25", "method": "DPDL", "N": "10"}, "accuracy", 94.4, 0.6),
        PublishedNumber({"epsilon": "0.25", "method": "DPDL", "N": "20"}, "accuracy", 92.3),
        PublishedNumber({"epsilon": "0.25", "method": "CGA", "N": "10"}, "accuracy", 88.0, 0.7),
    ]


def test_the_label_of_a_single_column_may_have_commas() -> None:
    [number] = printed("A, 10 | 3", ("method",), ({},), "accuracy")
    assert number.labels == {"method": "A, 10"}


@pytest.mark.parametrize("line", ["0.25 | 1 2", "0.25, DPDL | 1", "0.25, DPDL | 1 2 3"])
def test_a_line_of_another_length_is_no_table(line: str) -> None:
    with pytest.raises(ValueError):
        list(printed(line, ("epsilon", "method"), COLUMNS, "accuracy"))


def test_a_published_number_has_a_cell_with_its_labels_settings() -> None:
    numbers = [
        PublishedNumber({"method": "A", "graph": graph, "N": n}, "accuracy", 1.0)
        for graph, n in (("star", "10"), ("star", "10"), ("ring", "20"))
    ]
    table = {"labels": LABELS, "columns": ["graph", "N"]}
    assert list(_cells(table, numbers)) == [
        TableCell({"graph": "star", "N": "10"}, {"g.name": 2, "n": 10}),
        TableCell({"graph": "ring", "N": "20"}, {"g.name": 1, "n": 20}),
    ]


def test_a_grid_has_all_combinations_and_later_columns_win() -> None:
    table = {
        "labels": LABELS,
        "columns": ["graph", "N"],
        "grid": {"graph": ["ring", "star"], "N": ["10"]},
        "cases": [{"where": {"graph": "star"}, "settings": {"n": 7}}],
    }
    assert list(_cells(table, [])) == [
        TableCell({"graph": "ring", "N": "10"}, {"g.name": 1, "n": 10}),
        TableCell({"graph": "star", "N": "10"}, {"g.name": 2, "n": 7}),
    ]


def test_tables_are_merged_and_lists_replaced() -> None:
    below = {"a": {"b": 1, "c": 2}, "d": [1], "e": 3}
    assert _merged(below, {"a": {"c": 4}, "d": [2]}) == {"a": {"b": 1, "c": 4}, "d": [2], "e": 3}


def test_an_experiment_takes_from_what_it_is_like(tmp_path) -> None:
    (tmp_path / "toy.toml").write_text(
        """
        [defaults]
        paper = "Toy"
        measure = "accuracy"
        quantity = "test accuracy, %"
        columns = ["N"]
        labels.N = "data.n_agents"
        grid.N = ["4"]
        scales.quick = { seeds = 1, seconds = 1, bytes = 1 }
        scales.paper = { seeds = 3, seconds = 1, bytes = 1 }

        [_table]
        shows = "nothing"
        open = [{ key = "defense.delta", says = "not printed" }]

        [toy]
        like = "_table"
        table = "Table 1"
        scales.paper.seeds = 5
        orderings = [{ says = "4 is best", along = "N", above = "4" }]
        """
    )
    [(name, toy)] = read_experiments(tmp_path)
    assert (name, toy.paper, toy.shows, toy.table) == ("toy", "Toy", "nothing", "Table 1")
    assert (toy.scales["quick"].seeds, toy.scales["paper"].seeds) == (1, 5)
    assert toy.cells == (TableCell({"N": "4"}, {"data.n_agents": 4}),)
    assert toy.open[0].value is None
    assert toy.orderings[0].quantity == "test accuracy, %"
