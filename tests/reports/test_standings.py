"""Rows of a leaderboard: what is a row, what is averaged over seeds, and what is a gap."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from dpaudit.files.finding import Role
from dpaudit.files.result import AuditResult, EpsilonRange, Premise
from dpaudit.files.verdict import Verdict
from dpaudit.reports.standings import (
    FIGURES,
    Standing,
    as_markdown,
    as_rows,
    gaps_of,
    over_seeds,
    standings,
)
from tests.reports.benchmarks import AXES, audited, benchmark, cell, written


def test_over_seeds_there_is_a_mean_and_students_interval() -> None:
    values = [0.25, 0.5, 0.625, 0.375]
    found = over_seeds(values)
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert found.value == np.mean(values)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-12)
    assert found.n == 4
    share = over_seeds([0.25, 0.75], limits=(0.0, 1.0))
    assert (share.low, share.high) == (0.0, 1.0)


def test_what_cannot_be_below_0_has_no_interval_that_is() -> None:
    signed = {"psnr_above_blind", "ssim_above_blind"}
    for key, figure in FIGURES.items():
        found = over_seeds([0.0, 0.9], figure.limits)
        assert found.low is not None
        assert (found.low < 0) == (key in signed), key
    of_estimates = over_seeds([-0.03, -0.01, 0.01], FIGURES["bits"].limits)
    assert (of_estimates.value, of_estimates.low) == pytest.approx((-0.01, -0.01))


@pytest.mark.parametrize("values", [[0.5], [0.5, math.inf]])
def test_one_seed_has_no_interval(values: list[float]) -> None:
    found = over_seeds(values)
    assert (found.value, found.low, found.high) == (values[-1], None, None)


def rows_of(folder: Path, *cells, axes=AXES) -> list[Standing]:
    return standings(benchmark(*cells, axes=axes), folder)


def test_seeds_of_one_combination_are_one_row(golden: AuditResult, tmp_path: Path) -> None:
    written(tmp_path, {
        "a": audited(golden, 0.5, epsilon=1.0),
        "b": audited(golden, 0.75, epsilon=1.5, verdict=Verdict.REFUTED),
        "c": audited(golden, 0.5),
    })  # fmt: skip
    other = ("dpdl", "complete", 2.0)
    one, two = rows_of(tmp_path, cell("a"), cell("b", seed=2), cell("c", values=other))
    assert one.values == ("dpdl", "ring", "2.0")
    assert (one.adversary, len(one.seeds)) == ("eavesdropper", 2)
    assert one.figures["test_accuracy"].value == pytest.approx(0.625)
    assert one.figures["test_accuracy"].low is not None
    assert two.figures["test_accuracy"].low is None
    assert one.accounted is not None
    assert (one.accounted.low, one.accounted.high) == (0.5, 1.5)  # from the least to the largest
    assert (one.verdict, one.agreeing) == (Verdict.REFUTED, 1)


def test_a_row_has_the_largest_measured_epsilon(golden: AuditResult, tmp_path: Path) -> None:
    held = Premise(name="noise", status="examined", says="in all 10 rounds")
    missing = Premise(name="state", status="not examined", says="not played again")

    def found(verdict: Verdict, measured: float, *premises: Premise) -> AuditResult:
        known = EpsilonRange(certified=0.25, accounted=1.5, measured=measured)
        return audited(golden, verdict=verdict, known=known, premises=premises)

    written(tmp_path, {
        "a": found(Verdict.SUPPORTED, 1.625, held),
        "b": found(Verdict.SUPPORTED, 1.75, held),
        "c": found(Verdict.UNDERPOWERED, math.inf, held, missing),
        "d": audited(golden),
    })  # fmt: skip
    a, b, c, d = (cell(name, seed=i) for i, name in enumerate("abcd"))
    says = "state not examined: not played again"
    for seeds, measured, lacks in (
        ((a, b), 1.75, None),
        ((a, c), math.inf, says),
        ((a, d), None, "no premise was examined"),  # of an older version
    ):
        [row] = as_rows(AXES, rows_of(tmp_path, *seeds))
        assert (row["measured_epsilon"], row["missing"]) == (measured, lacks)
    assert says in as_markdown(AXES, rows_of(tmp_path, a, c))


def test_values_that_are_alike_as_text_are_rows_of_their_own(
    golden: AuditResult, tmp_path: Path
) -> None:
    written(tmp_path, {"a": audited(golden, 0.5), "b": audited(golden, 0.75)})
    cells = [cell(name, values=("dpdl", "ring", x)) for name, x in (("a", 2), ("b", "2"))]
    assert [len(row.seeds) for row in rows_of(tmp_path, *cells)] == [1, 1]


def test_an_array_of_tables_is_called_by_their_names(golden: AuditResult, tmp_path: Path) -> None:
    one, two = {"text": "ours", "epsilon": 1}, {"text": "theirs", "epsilon": 1}
    claims: list[list[dict[str, object]]] = [[], [one], [one, two], [{"epsilon": 1}]]
    written(tmp_path, {str(i): audited(golden) for i in range(4)})
    cells = [cell(str(i), values=("dpdl", "ring", x)) for i, x in enumerate(claims)]
    found = [row.values[2] for row in rows_of(tmp_path, *cells)]
    assert found == ["[]", "ours", "ours, theirs", '[{"epsilon": 1}]']


def test_asked_for_in_vain_differs_from_not_asked_for(golden: AuditResult, tmp_path: Path) -> None:
    whole = audited(golden)
    empty = [
        f.model_copy(update={"metrics": {}}) if f.role is Role.MEMBERSHIP else f
        for f in whole.findings
        if f.role is not Role.INFORMATION
    ]
    audits = {"a": whole, "b": whole.model_copy(update={"findings": tuple(empty)})}
    written(tmp_path, audits)
    rows = rows_of(tmp_path, cell("a"), cell("b", values=("dpdl", "complete", 2.0)))
    assert {"tpr_at_1%_fpr", "bits"}.isdisjoint(rows[1].figures)
    assert (rows[1].lacks("tpr_at_1%_fpr"), rows[1].lacks("bits")) == ("not available", "")
    head, _, one, other = as_markdown(AXES, rows).splitlines()
    columns = head.split(" | ")
    found = [line.split(" | ")[columns.index("membership: TPR at 1% FPR")] for line in (one, other)]
    assert found == ["0.125", "not available"]
    assert other.split(" | ")[columns.index("information (bits)")] == ""


def test_what_is_void_in_one_seed_is_void(golden: AuditResult, tmp_path: Path) -> None:
    written(tmp_path, {"a": audited(golden), "b": audited(golden, void="it moves too far")})
    [row] = rows_of(tmp_path, cell("a"), cell("b", seed=2))
    assert row.void == "it moves too far"
    [found] = as_rows(AXES, [row])
    assert found["accounted_epsilon_high"] == math.inf
    assert found["accounting_void"] == "it moves too far"


def test_a_row_has_every_figure_of_its_audits(golden: AuditResult, tmp_path: Path) -> None:
    written(tmp_path, {"a": audited(golden, accuracy=0.5)})
    [row] = rows_of(tmp_path, cell("a"))
    found = {key: metric.value for key, metric in row.figures.items()}
    assert found == pytest.approx({
        "certified_epsilon": 0.5, "confidence": 0.95,
        "psnr_above_blind": 1.0, "ssim_above_blind": 0.375,  # each less the best blind guess by it
        "share_reconstructed": 0.75, "share_claim_allows": 0.9375,
        "share_accounting_allows": 0.875,
        "tpr_at_1%_fpr": 0.125, "bits": 0.25, "m_nmi": 0.0625, "capacity_bits": 4.0,
        "test_accuracy": 0.5, "test_loss": 1.5, "messages_a_round": 8.0, "bytes_a_round": 800.0,
    })  # fmt: skip


def test_a_bound_that_is_void_is_none(golden: AuditResult, tmp_path: Path) -> None:
    result = audited(golden)
    test = result.findings[0].model_copy(update={"void": "its control gave a false alarm"})
    result = result.model_copy(update={"findings": (test, *result.findings[1:])})
    written(tmp_path, {"a": result})
    [row] = rows_of(tmp_path, cell("a"))
    assert "certified_epsilon" not in row.figures


def test_each_adversary_has_a_row_also_without_a_claim(golden: AuditResult, tmp_path: Path) -> None:
    [first, *_] = golden.threat_models
    result = audited(golden)
    models = (*result.threat_models, first.model_copy(update={"name": "agent 1"}))
    written(tmp_path, {"a": result.model_copy(update={"threat_models": models})})
    one, two = rows_of(tmp_path, cell("a"))
    assert (one.adversary, two.adversary) == ("eavesdropper", "agent 1")
    assert (two.claim, two.verdict, two.accounted) == (None, None, None)
    assert two.figures.keys() == {"test_accuracy", "test_loss", "messages_a_round", "bytes_a_round"}


def test_cells_without_a_result_are_gaps_that_say_why(golden: AuditResult, tmp_path: Path) -> None:
    written(tmp_path, {"a": audited(golden), "damaged": audited(golden)})
    (tmp_path / "cells" / "damaged" / "audit.json").write_text("{")
    other = ("dpop", "ring", 2.0)
    rows = rows_of(
        tmp_path,
        cell("a"),
        cell("b", seed=2, state="failed", error="out of memory"),
        cell("damaged", seed=3),
        cell("missing", seed=4),
        cell("../a", seed=5),
        cell("c", values=other, state="waiting"),
    )
    done, waiting = rows
    assert [len(done.seeds), len(done.gaps)] == [1, 4]
    assert (waiting.values[0], waiting.seeds, waiting.figures) == ("dpop", (), {})
    why = {gap.cell.name: gap.why for gap in gaps_of(rows)}
    assert why["b"] == "out of memory"
    assert why["c"] == "not run yet"
    assert "an audit.json that is cut off" in why["damaged"]
    assert "No such file" in why["missing"]
    assert "outside" in why["../a"]
    found = list(as_rows(AXES, rows))
    assert found[1]["gaps"] == "c: not run yet"
    assert len({tuple(row) for row in found}) == 1  # the same columns


def test_tables_are_named_where_that_distinguishes_them(
    golden: AuditResult, tmp_path: Path
) -> None:
    written(tmp_path, dict.fromkeys("abc", audited(golden)))
    tables = [{"name": "ring"}, {"name": "torus", "rows": 2}, {"name": "torus", "rows": 3}]
    cells = [
        cell(name).model_copy(update={"values": {"graph": table}})
        for name, table in zip("abc", tables, strict=True)
    ]
    found = [row.values for row in rows_of(tmp_path, *cells, axes=("graph",))]
    assert found[0] == ("ring",)
    assert found[1] != found[2]
