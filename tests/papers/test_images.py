"""Images of DPDL's tables: a cell is an audit, and its scores are those of its findings."""

import math

import numpy as np
import pytest

from dpaudit.data.datasets import load_dataset
from dpaudit.files.finding import Finding, Metric, Name, Role
from dpaudit.files.options import graph_options
from dpaudit.files.result import AuditResult
from dpaudit.graphs.graph import build_graph
from dpaudit.papers.cells import Request, chosen
from dpaudit.papers.declared import DECLARED
from dpaudit.papers.experiment import CellContext
from dpaudit.papers.images import (
    ABOVE_BLIND,
    BETTER,
    MESSAGES,
    MSE,
    SCORES,
    WORLDS,
    blind,
    images,
    scored,
)
from dpaudit.papers.learning import ACCURACY
from dpaudit.training.run_directory import RunDirectory
from tests.small_audits import undrawn

TABLE_3 = DECLARED["dpdl-table3"]
TINY = {"attack.iterations": 2, "attack.restarts": 1, "attack.targets": 4, "defense.n_rounds": 2}


def finding(world: str, k: int, psnr: list[float], victims: list[int], mse: float) -> Finding:
    columns = {"victim": victims, "mse": [mse] * len(psnr), "psnr": psnr, "ssim": [0.1] * len(psnr)}
    return Finding(
        role=Role.RECONSTRUCTION,
        kind="reconstruction",
        title="",
        message="view",
        world=world,
        rounds=(k,),
        metrics={Name.MSE: Metric(value=mse)},
        series={name: tuple(map(float, column)) for name, column in columns.items()},
    )


def test_the_papers_psnr_is_that_of_its_mse() -> None:
    by_quantity: dict[str, list[float]] = {}
    for number in TABLE_3.published:
        by_quantity.setdefault(number.quantity, []).append(number.value)
    for mse, psnr in zip(by_quantity[MSE], by_quantity["PSNR, dB"], strict=True):
        assert 10 * math.log10(4 / mse) == pytest.approx(psnr, abs=0.15)


def test_settings_are_those_of_the_paper() -> None:
    one, eight, full = (dict(c.settings) for c in chosen(TABLE_3, Request("", "paper")))
    assert [c["defense.batch_size"] for c in (one, eight, full)] == [1, 8, 216]
    assert (one["data.n_agents"], one["graph.name"]) == (10, "bipartite")
    expected = {"epsilon": 0.5, "n_rounds": 800, "clip_norm": 2.0, "learning_rate": 0.005}
    assert {f"defense.{key}": value for key, value in expected.items()}.items() <= one.items()
    assert one["attack.rounds"][-one["images.pooled"] :] == [797, 798, 799, 800]
    assert one["images.pooled"] * one["attack.targets"] >= 32
    weights = build_graph(graph_options("bipartite"), 10).at(1).W
    assert weights.max() == pytest.approx(1 / 6)


def test_rounds_are_pooled_and_gains_paired_by_batch() -> None:
    """The row has both rounds; the gain is of the batches that both attacked, by their names."""
    own = [
        finding("defense", 3, [4.0, 6.0], [1, 2], 0.5),
        finding("defense", 4, [8.0, 9.0], [1, 2], 0.5),
        finding("defense", 9, [99.0, 99.0], [1, 2], 0.5),
        finding("no-defense", 3, [50.0, 50.0], [1, 2], 0.5),
    ]
    guesses = [
        finding("blind", 3, [5.0, 3.0], [2, 1], 0.25),
        finding("blind", 3, [30.0, 30.0], [2, 1], 0.75),
        finding("blind", 4, [6.0, 6.0], [2, 3], 0.25),
    ]
    row = scored(own + guesses, "view", "defense", (3, 4))
    assert row.batches == [(3, 1), (3, 2), (4, 1), (4, 2)]
    np.testing.assert_array_equal(row.scores[Name.PSNR], [4, 6, 8, 9])
    guess = blind(own + guesses, "view", (3, 4))
    assert guess.batches == [(3, 2), (3, 1), (4, 2), (4, 3)]
    np.testing.assert_array_equal(row.above(guess), [4 - 3, 6 - 5, 9 - 6])
    assert not scored(own, "cross_gradient", "defense", (3, 4)).batches


def test_the_view_has_four_times_less_noise(context) -> None:
    """By hand: z^ii / (sqrt(w_ii) N) hides e_i / (sqrt(w_ii) N) + alpha sum w_ij K_ij e_i.

    K_ij is about 1/2 under this much noise, so that e_i stands there 1 / (1 + alpha N sqrt(w) / 2)
    times as noisy as in a message of its own. Bits and errors are those of these noises, and no
    attack is needed for them.
    """
    settings = chosen(TABLE_3, Request("", "quick", data="digits"))[2].settings
    found = list(images({**settings, "defense.batch_size": 16}, 0, context))
    by_name = {(m.labels["scenario"], m.quantity): m.value for m in found}
    one, view = ((f"noise on {name}", "MSE without prior") for name in ("one message", "the view"))
    noise = by_name["noise on one message", "noise over clip norm, largest"]
    squared_norm = float(context.dataset.x_test.flatten(1).square().sum(1).mean())
    assert len(by_name) == 6
    revealed = 1 / (1 + 1.5 * 10 * 6**-0.5 / 2)  # and five cross-gradients
    assert by_name[one] == pytest.approx(noise**2 * squared_norm)
    assert by_name[one] / by_name[view] == pytest.approx(5 + revealed**-2, rel=0.04)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A cell of Table III on few agents and rounds, its audit, and what it reported."""
    folder = tmp_path_factory.mktemp("images")
    settings = {**chosen(TABLE_3, Request("", "quick", data="digits"))[0].settings, **TINY}
    settings |= {"data.n_agents": 4, "attack.rounds": [1, 2], "images.pooled": 2}
    settings |= {"images.messages": ["CG", "MM-strip", "MM"], "data.partition.kind": "even"}
    del settings["data.partition.alpha"]
    reported: list[str] = []
    with undrawn(), RunDirectory(folder).held() as run:
        run.binding = "0123456789"
        digits = load_dataset("digits")
        context = CellContext(run, "cell", digits, lambda what, *_: reported.append(what))
        found = list(images(settings, 0, context))
    return found, AuditResult.read(folder / "audits/cell-01234567/audit.json"), reported


@pytest.mark.slow
def test_a_cell_is_an_audit_with_the_paper_s_attacks(measured) -> None:
    found, result, reported = measured
    assert {"cell: training, defense", "cell: training, no-defense"} <= set(reported)
    last = {(m.labels["scenario"], m.quantity): m for m in found if m.at is None}
    for prefix, world in WORLDS.items():
        own = scored(result.findings, MESSAGES["CG"], world, (1, 2))
        for quantity, name, times in SCORES:
            number = last[f"{prefix}-CG", quantity]
            assert number.value == pytest.approx(times * own.scores[name].mean())
            assert number.low < number.value < number.high
            assert number.n == 8  # of two rounds
    share = np.mean(result.utility["defense"].accuracy[-1])
    assert last["DPDL", ACCURACY].value == pytest.approx(100 * share)
    assert {m.at for m in found} == {None, 1, 2}
    assert {m.n for m in found if m.quantity == MSE and m.at} == {4}


def test_gains_are_over_the_guess_and_the_papers_attacker(measured) -> None:
    found, result, _ = measured
    last = {(m.labels["scenario"], m.quantity): m.value for m in found if m.at is None}
    own = scored(result.findings, "momentum-stripped", "no-defense", (1, 2))
    gains = own.above(blind(result.findings, "momentum-stripped", (1, 2)))
    assert last["ND-MM-strip", ABOVE_BLIND] == pytest.approx(gains.mean())
    assert last["ND-MM-strip", BETTER] == pytest.approx(100 * (gains > 0).mean())
    over = own.above(scored(result.findings, "momentum-difference", "no-defense", (1, 2)))
    assert last["ND-MM-strip", "dB above ND-MM"] == pytest.approx(over.mean())
    assert ("DPDL-MM-strip", "dB above DPDL-CG") in last
