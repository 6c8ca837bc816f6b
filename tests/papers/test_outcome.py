"""What came out beside what was published: means, differences, and what the paper says is larger."""

import pytest

from dpaudit.files.finding import Metric
from dpaudit.files.published import (
    ExperimentLine,
    ExperimentResult,
    HeldOrdering,
    limits,
)
from dpaudit.papers.experiment import MeasuredNumber, Ordering
from dpaudit.papers.outcome import estimate, held, reproduced
from tests.papers.toy import TOY, ask


@pytest.fixture(scope="module")
def result(tmp_path_factory) -> ExperimentResult:
    out = tmp_path_factory.mktemp("toy")
    return reproduced(TOY, ask(), out, 1, lambda what, done, total: None)


def test_ours_stands_beside_the_published_of_the_same_labels(result) -> None:
    [line] = [line for line in result.lines if line.published is not None]
    assert line.labels == {"method": "B", "budget": "4"}
    assert (line.published, line.published_spread) == (7.5, 0.5)
    assert line.values == (8.0, 8.01, 8.02)
    assert line.difference == pytest.approx(8.01 - 7.5)
    margin = 4.302652729911275 * 0.01 / 3**0.5  # Student's t with 2 degrees of freedom
    assert line.ours.low == pytest.approx(8.01 - margin)
    assert line.ours.high == pytest.approx(8.01 + margin)


def test_labels_that_a_measurement_adds_make_a_line_of_its_own(result) -> None:
    others = [line for line in result.lines if line.labels.get("view") == "other"]
    assert [line.values for line in others] == [(10.0, 10.0, 10.0)] * 4


def test_orderings_are_counted_by_paired_differences(result) -> None:
    """The seed moves both methods by the same, so the differences have no spread at all."""
    above, below, absent, others = result.orderings
    assert above == HeldOrdering(
        says="Table 1: B is above A", compared=4, as_published=2, confirmed=2, contradicted=0
    )  # two of the four pairs are the other view, where both are 10
    assert (below.compared, below.as_published, below.contradicted) == (2, 0, 1)
    assert absent.compared == 0
    assert others == above.model_copy(update={"says": "Table 1: all are above A"})


def test_what_was_assumed_is_told_with_its_value(result, tmp_path) -> None:
    assert [(a.key, a.value, a.says) for a in result.assumed] == [
        ("shift", "0.0", "not printed"),
        ("tilt", "1", "of B alone (B)"),
    ]


def test_the_file_is_read_as_it_was_written(result, tmp_path) -> None:
    (tmp_path / "experiment.json").write_text(result.model_dump_json())
    assert ExperimentResult.read(tmp_path / "experiment.json") == result


@pytest.mark.parametrize(
    "quantity, within",
    [
        ("residual, mean over trials", (0, float("inf"))),
        ("test accuracy, %", (0, 100)),
        ("PSNR, dB", (-float("inf"), float("inf"))),
        ("information, bits", (-float("inf"), float("inf"))),
    ],
)
def test_a_quantity_has_the_limits_of_what_it_is(quantity, within) -> None:
    assert limits(quantity) == within


@pytest.mark.parametrize(
    "quantity, values, low, high, interval",
    [
        ("residual", (1.0, 2.0, 9.0), 1.0, 9.0, "range"),  # 4 ± 10.8
        ("residual", (4.0, 4.1, 4.2), 4.1 - 0.2484, 4.1 + 0.2484, "student"),
        ("test accuracy, %", (99.0, 90.0, 99.0), 90.0, 99.0, "range"),  # 96 ± 12.9
        ("SSIM x 100", (1.0, 2.0, 9.0), 4.0 - 10.8281, 4.0 + 10.8281, "student"),
        ("residual", (1.0, 9.0), None, None, "student"),
    ],
)
def test_an_interval_holds_only_what_is_possible(quantity, values, low, high, interval) -> None:
    found, kind = estimate([MeasuredNumber(quantity, value) for value in values])
    assert found.value == pytest.approx(sum(values) / len(values))
    assert (found.low, found.high) == (
        low if low is None else pytest.approx(low, abs=1e-3),
        high if high is None else pytest.approx(high, abs=1e-3),
    )
    assert kind == interval


def test_the_interval_of_one_run_is_that_over_its_batches() -> None:
    found, _ = estimate([MeasuredNumber("MSE", 0.5, None, {}, 0.4, 0.7, 8)])
    assert (found.value, found.low, found.high, found.n) == (0.5, 0.4, 0.7, 8)


def test_along_a_figure_its_last_points_are_compared() -> None:
    """B is below A at first and above it in the end."""
    lines = tuple(
        ExperimentLine(
            labels={"method": method}, quantity="loss", at=at,
            ours=Metric(value=value, n=1), values=(value,),
        )
        for method, points in {"A": {1: 5.0, 10: 1.0}, "B": {1: 1.0, 10: 2.0}}.items()
        for at, value in points.items()
    )  # fmt: skip
    found = held(Ordering("B is above A", "loss", "method", "B"), lines)
    assert (found.compared, found.as_published) == (1, 1)
