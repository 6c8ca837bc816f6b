"""A reproduced table as text, CSV, Markdown and a page: what is said of each number."""

import csv
import io

import pytest

from dpaudit.files.finding import Metric
from dpaudit.files.published import (
    Assumption,
    ExperimentLine,
    ExperimentResult,
    HeldOrdering,
)
from dpaudit.reports.published import as_csv, as_markdown, page, render_experiment, text

LINES = (
    ExperimentLine(
        labels={"method": "<b>DPDL</b>", "N": "10"},
        quantity="accuracy, %",
        published=94.4,
        published_spread=0.6,
        ours=Metric(value=91.25, low=90.5, high=92.0, n=3),
        difference=91.25 - 94.4,
        values=(91.0, 91.25, 91.5),
    ),
    ExperimentLine(
        labels={"method": "CGA", "N": "10"},
        quantity="accuracy, %",
        published=88.0,
        error="round 3 has a model that is infinite",
    ),
)


def result(**changed) -> ExperimentResult:
    about = {
        "name": "dpdl-table1",
        "paper": "Yuan and others",
        "table": "Table I",
        "shows": "accuracy",
        "scale": "quick",
        "cut": "20 rounds",
        "data": "digits",
        "data_of_the_paper": "mnist",
        "seeds": (0, 1, 2),
        "assumed": (Assumption(key="defense.delta", value=1e-5, says="not printed"),),
        "columns": ("method", "N"),
        "lines": LINES,
        "orderings": (
            HeldOrdering(says="DPDL is best", compared=4, as_published=3, confirmed=2),
            HeldOrdering(says="N matters"),
        ),
        "seconds": 90.0,
        "version": "0.2.0",
    }
    return ExperimentResult(**{**about, **changed})


def test_the_terminal_has_published_ours_and_difference() -> None:
    found = "\n".join(text(result()))
    assert "on digits and not on mnist" in found
    assert "94.4 ± 0.6  91.2 [90.5, 92]  -3.15" in found
    assert "did not end" in found
    assert "defense.delta = 1e-05: not printed" in found
    assert "DPDL is best: so in 3 of 4 pairs, confirmed by 2, contradicted by 0" in found
    assert "N matters: not compared" in found


def test_csv_has_all_digits() -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv([result()]))))
    assert [row["method"] for row in rows] == ["<b>DPDL</b>", "CGA"]
    assert float(rows[0]["difference"]) == 91.25 - 94.4
    assert rows[0]["values"] == "91.0 91.25 91.5"
    assert (rows[1]["ours"], rows[1]["error"]) == ("", "round 3 has a model that is infinite")


def test_a_page_says_how_to_have_a_run_again() -> None:
    run = result(command="dpaudit reproduce dpdl-table1", date="2026-11-22", asked=("N=10",))
    text = page("dpdl-table1", [run, result(data="mnist")])
    for said in (
        "# Table I: dpdl-table1\n\nYuan and others: accuracy. The numbers as data: "
        "[dpdl-table1-quick.json](dpdl-table1-quick.json), [CSV](dpdl-table1-quick.csv).",
        "## Scale quick, N=10, digits\n",
        "    dpaudit reproduce dpdl-table1\n",
        "On digits, not the paper's mnist. Seeds 0, 1, 2, 1.5 min of CPU time, 2026-11-22",
        "Cut: 20 rounds. Ours is the mean over 3 seeds with its 95% Student-t interval in [ ].",
        "| CGA | 10 | accuracy, % | 88 | did not end |  |  |",
        "- CGA, 10: round 3 has a model that is infinite",
        "## Scale quick\n",
    ):
        assert said in text


def test_a_range_of_seeds_and_an_old_interval_are_named() -> None:
    """An interval that is impossible for its quantity is as old as its run."""
    ours = Metric(value=1.0, low=-2.0, high=4.0, n=3)
    line = ExperimentLine(labels={}, quantity="residual", ours=ours)
    assert "an end below 0 says that the seeds differ" in as_markdown(result(lines=(line,)))
    signed = line.model_copy(update={"quantity": "PSNR, dB"})
    assert "an end below 0" not in as_markdown(result(lines=(signed,)))
    seeds = line.model_copy(
        update={"ours": Metric(value=1.0, low=0.1, high=2.5, n=3), "interval": "range"}
    )
    shown = as_markdown(result(lines=(seeds,)))
    assert "| 1 (0.1, 2.5) |" in shown
    assert "the range of the seeds in ( )" in shown


def test_the_page_escapes_what_it_shows_and_names_other_data() -> None:
    page = render_experiment(result())
    assert "&lt;b&gt;DPDL&lt;/b&gt;" in page
    assert "<b>DPDL" not in page
    assert "not from the paper's mnist" in page
    assert len(page) < 200_000


@pytest.mark.parametrize("values", [(1.0, 1e4), (0.0, 2.0), (-1.0, float("inf"))])
def test_a_figure_draws_what_is_finite(values) -> None:
    points = tuple(
        ExperimentLine(
            labels={"method": "A", "N": "10"}, quantity="residual", at=float(k),
            ours=Metric(value=value, n=1), values=(value,),
        )
        for k, value in enumerate(values, start=1)
    )  # fmt: skip
    page = render_experiment(result(lines=points, at="round"))
    assert page.count('role="img"') == 1


def test_of_a_long_curve_the_table_has_its_ends() -> None:
    points = tuple(
        ExperimentLine(
            labels={"method": "A", "N": "10"}, quantity="residual", at=float(k),
            ours=Metric(value=float(k), n=1), values=(float(k),),
        )
        for k in range(1, 101)
    )  # fmt: skip
    found = [line for line in text(result(lines=points, at="round")) if line.startswith("A ")]
    assert len(found) == 4
    assert found[0].split()[3] == "1"
    assert found[-1].split()[3] == "100"


@pytest.mark.filterwarnings("error")
def test_a_line_without_a_label_is_drawn_without_a_legend() -> None:
    points = (
        ExperimentLine(labels={}, quantity="norm", at=k, ours=Metric(value=v, n=1), values=(v,))
        for k, v in ((1, 2.0), (2, 1.0))
    )
    drawn = result(at="round", columns=("method",), lines=tuple(points))
    assert "<svg" in render_experiment(drawn)


def test_an_interval_is_spoken_of_where_there_is_one() -> None:
    one = LINES[0].model_copy(update={"ours": Metric(value=91.25, n=1), "values": (91.25,)})
    said = [
        [line for line in text(result(seeds=seeds, lines=lines)) if line.startswith("ours: ")]
        for seeds, lines in (((0, 1, 2), LINES), ((0, 1), (one,)), ((0,), (one,)))
    ]
    assert [line.partition(";")[0] for [line] in said] == [
        "ours: the mean over 3 seeds with its 95% Student-t interval in [ ]",
        "ours: the mean over 2 seeds",
        "ours: of one seed",
    ]
