"""Numbers of the HTML report: every one is in the result, in three digits, in its own row."""

import math
import re
from collections.abc import Iterator
from typing import Any

import pytest

from dpaudit.files.finding import Metric
from dpaudit.files.result import AuditResult
from dpaudit.reports.numbers import at_least, at_most, estimate, number, span
from dpaudit.reports.run import finding_links
from tests.reports.pages import Page, visible

FIXED = {0.0, 1.0, 95.0}  # in the page's own sentences: SSIM 1 and MSE 0 are perfect, 95% intervals


def numbers_in(value: Any) -> Iterator[float]:
    """Every number of a result, those inside its texts and the counts of its lists included."""
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, int | float):
        yield float(value)
    elif isinstance(value, str):
        yield from (float(x) for x in re.findall(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?", value))
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from numbers_in(key)
            yield from numbers_in(part)
    else:
        yield float(len(value))
        for part in value:
            yield from numbers_in(part)


def shown_numbers(text: str) -> list[str]:
    plain = text.replace("−", "-").replace(",", "")
    return re.findall(r"(?<![\w.-])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w])", plain)


def is_rounded_from(shown: str, x: float) -> bool:
    mantissa, _, exponent = shown.partition("e")
    decimals = len(mantissa.partition(".")[2])
    half_a_digit = 0.5 * 10.0 ** (int(exponent or 0) - decimals)
    return abs(float(shown) - x) <= half_a_digit * (1 + 1e-9)


def unexplained(text: str, result: AuditResult) -> list[str]:
    """The numbers of a text that no number of the result rounds to."""
    indexes = range(len(result.findings))
    scored = [f for f in result.findings if f.world == "defense" and "ssim" in f.metrics]
    known = {*numbers_in(result.model_dump()), *indexes, len(scored), *FIXED}
    known = {x for x in known if math.isfinite(x)}
    return [s for s in shown_numbers(text) if not any(is_rounded_from(s, x) for x in known)]


def test_every_number_on_the_page_is_in_the_result(page: Page, golden: AuditResult) -> None:
    assert len(shown_numbers(visible(page))) > 500
    assert unexplained(visible(page), golden) == []


def test_every_number_of_a_comparison_is_in_a_result(comparison: str, golden: AuditResult) -> None:
    """Or the mean over agents; and no number differs between a result and a part of it."""
    page = Page(comparison)
    text = visible(page).replace("2 audits side by side", "")
    first_nine = sum("ssim" in f.metrics and f.world == "defense" for f in golden.findings[:9])
    rows = [r[-1] for curve in golden.utility.values() for r in (curve.loss, curve.accuracy) if r]
    known = [first_nine, 2, *(sum(row) / len(row) for row in rows)]
    left = [s for s in unexplained(text, golden) if not any(is_rounded_from(s, x) for x in known)]
    assert left == []


@pytest.mark.parametrize("planted", ["0.7331", "3.17e-07", "421", "−0.0377"])
def test_a_number_that_is_not_in_the_result_would_be_noticed(
    page: Page, golden: AuditResult, planted: str
) -> None:
    assert len(unexplained(f"{visible(page)} {planted}", golden)) == 1


def test_each_metric_stands_in_the_row_of_its_finding(page: Page, golden: AuditResult) -> None:
    links = finding_links(golden.findings, golden.claims)
    for i, finding in enumerate(f for f in golden.findings):
        metrics = finding.metrics.values()
        expected = [x for m in metrics for x in (m.value, m.low, m.high) if x is not None]
        expected = [x for x in expected if math.isfinite(x)]
        place = page.by_id(links[i])
        cells = [cell for cell in place.every("td") if "num" in cell.classes()]
        shown = shown_numbers(" ".join(cell.text() for cell in cells))
        counts = [float(m.n) for m in metrics if m.n is not None]
        assert all(any(is_rounded_from(s, x) for x in [*expected, *counts]) for s in shown), i
        assert all(any(is_rounded_from(s, x) for s in shown) for x in expected), i


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (4.0, "4"),
        (1.9983, "2.00"),
        (0.75, "0.75"),
        (-0.12345, "−0.123"),
        (99.97, "100"),
        (5000.0, "5,000"),
        (123456.7, "123,457"),
        (4567890.0, "4.57e+06"),
        (1e-5, "1e−05"),
        (math.inf, "∞"),
        (-math.inf, "−∞"),
        (math.nan, "undefined"),
        (None, "–"),
    ],
)
def test_a_number_is_shown_with_three_digits(x: float | None, text: str) -> None:
    assert number(x) == text


@pytest.mark.parametrize(
    ("x", "low", "high"),
    [
        (0.1, "0.1", "0.1"),
        (0.0, "0", "0"),
        (3.621, "3.62", "3.63"),
        (5.9996, "5.99", "6"),
        (341.2, "341", "342"),
        (12345.6, "12,300", "12,400"),
        (1.2345e-7, "1.23e−07", "1.24e−07"),
        (math.inf, "∞", "∞"),
        (math.nan, "undefined", "undefined"),
    ],
)
def test_an_end_of_a_range_is_rounded_outward(x: float, low: str, high: str) -> None:
    assert (at_least(x), at_most(x)) == (low, high)


@pytest.mark.parametrize(
    ("metric", "text"),
    [
        (Metric(value=0.32, low=0.26, high=0.38), "0.320 [0.260, 0.380]"),
        (Metric(value=0.0256, low=-0.0344, high=0.0856), "0.026 [−0.034, 0.086]"),
        (Metric(value=7.3342, low=7.3124, high=7.3342), "7.33 [7.31, 7.33]"),
        (Metric(value=-0.0001, low=-0.2, high=0.2), "0.000 [−0.200, 0.200]"),
        (Metric(value=math.inf, low=2.5, high=math.inf), "∞ [2.50, ∞]"),
        (Metric(value=math.nan, low=math.nan, high=math.nan), "undefined [undefined, undefined]"),
        (Metric(value=2e-7, low=0.0, high=4e-7), "2e−07 [0, 4e−07]"),
        (Metric(value=0.5, low=0.25), "0.500 [0.250, –]"),
        (Metric(value=0.5, n=9), "0.5"),
    ],
)
def test_an_estimate_has_its_interval_in_the_same_decimals(metric: Metric, text: str) -> None:
    assert estimate(metric).striptags() == text


def test_an_epsilon_in_an_interval_is_shown_by_its_ends() -> None:
    assert span(Metric(value=13.912, low=4.3511, high=13.912)) == "4.35 to 13.9"
    assert span(Metric(value=7.3342, low=7.3339, high=7.3342)) == "7.33"
    assert span(Metric(value=math.inf, low=math.inf, high=math.inf)) == "∞"
    assert span(Metric(value=2.5)) == "2.5"
