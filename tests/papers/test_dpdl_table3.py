"""Table III of DPDL: which scenario stands beside which published numbers, and what is printed."""

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from typer.testing import CliRunner

from dpaudit.commands.cli import app
from dpaudit.errors import DataError
from dpaudit.files.config import AuditConfig
from dpaudit.files.finding import Finding, Metric, Name, Role
from dpaudit.files.options import graph_options
from dpaudit.graphs.graph import build_graph
from dpaudit.papers import dpdl_table3, image_table
from dpaudit.papers.dpdl_table3 import SCENARIOS, SIZES, Size, printed, study
from dpaudit.papers.image_table import blind, scored
from dpaudit.pipeline.run import Runtime, prepare
from tests.said import without_help

PUBLISHED = {  # as printed: ten agents, bipartite
    "ND-CG": (0.84, 6.88, 0.1714),
    "ND-MM": (0.88, 6.69, 0.1573),
    "DPDL-CG": (1.37, 4.67, 0.0575),
    "DPDL-MM": (1.39, 4.58, 0.0518),
}


TINY = ("cross_gradient", "momentum-difference", "momentum-stripped")


@pytest.fixture(scope="module")
def tiny() -> Iterator[None]:
    """Three rounds, three scenarios, three iterations of each search, in this process."""
    whole = dpdl_table3.study

    def cut(scale: str, with_mnist: bool) -> image_table.ImageTable:
        table = whole(scale, with_mnist)
        return replace(
            table,
            scenarios=tuple(s for s in table.scenarios if s.message in TINY),
            attack={**table.attack, "iterations": 3, "restarts": 1},
            readings=table.readings[::2],
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("DPAUDIT_DATA", raising=False)
        patch.setitem(SIZES, "quick", Size(3, ((2,), (2, 3)), 4))
        patch.setattr(dpdl_table3, "study", cut)
        patch.setattr(image_table, "Runtime", partial(Runtime, cores=1))
        yield


@pytest.fixture(scope="module")
def text(tiny) -> list[str]:
    return list(printed("quick", 4, None))


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


def test_published_numbers_are_beside_their_scenarios() -> None:
    assert {s.name: s.published for s in SCENARIOS if s.published} == PUBLISHED
    for s in SCENARIOS:
        assert s.world == ("no-defense" if s.name.startswith("ND-") else "defense")
        kind = s.name.partition("-")[2]
        assert {"CG": "cross_gradient", "MM": "momentum-difference"}.get(kind, s.message) == (
            s.message
        )
        if s.published:  # value range 2: the paper's PSNR is nearly that of its MSE
            assert 10 * math.log10(4 / s.published[0]) == pytest.approx(s.published[1], abs=0.15)


def test_settings_are_those_of_the_paper() -> None:
    one, eight, full = (reading.config for reading in study("paper", True).readings)
    assert [c["defense"]["batch_size"] for c in (one, eight, full)] == [1, 8, 216]
    assert one["data"]["name"] == "mnist"
    assert (one["data"]["n_agents"], one["graph"]) == (10, {"name": "bipartite"})
    expected = {"epsilon": 0.5, "n_rounds": 800, "clip_norm": 2.0, "learning_rate": 0.005}
    assert expected.items() <= one["defense"].items()
    rounds = study("paper", True).readings[0].rounds
    assert [group[-1] for group in rounds] == [200, 400, 800]
    assert len(rounds[-1]) * study("paper", True).attack["targets"] >= 32
    assert build_graph(graph_options(**one["graph"]), 10).at(1).W.max() == pytest.approx(1 / 6)


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
    row = scored(own + guesses, SCENARIOS[-1], (3, 4))
    assert row.batches == [(3, 1), (3, 2), (4, 1), (4, 2)]
    np.testing.assert_array_equal(row.scores[Name.PSNR], [4, 6, 8, 9])
    guess = blind(own + guesses, "view", (3, 4))
    assert guess.batches == [(3, 2), (3, 1), (4, 2), (4, 3)]
    np.testing.assert_array_equal(row.gains(guess), [4 - 3, 6 - 5, 9 - 6])
    assert not scored(own, SCENARIOS[0], (3, 4)).batches


def test_the_view_holds_four_times_less_noise_than_a_cross_gradient(tiny) -> None:
    """By hand: z^ii / (sqrt(w_ii) N) hides e_i / (sqrt(w_ii) N) + alpha sum w_ij K_ij e_i.

    K_ij is about 1/2 under this much noise, so that e_i stands there 1 / (1 + alpha N sqrt(w) / 2)
    times as noisy as in a message of its own.
    """
    config = AuditConfig.from_dict({**study("quick", False).readings[0].config, "attack": []})
    prepared = prepare(config, Runtime())
    defense = prepared.defenses["defense"]
    told = sorted(image_table._told(defense, prepared.setting, config))
    expected = 1 / (1 + 1.5 * 10 * 6**-0.5 / 2)
    np.testing.assert_allclose(np.array(told[1:]) / defense.noise_multiplier, np.ones(5))
    assert told[0] / defense.noise_multiplier == pytest.approx(expected, rel=0.02)


def test_the_printed_form_has_every_row_with_its_interval(text) -> None:
    assert "the embedded digits (8x8), not the paper's MNIST" in text[0]
    assert any("delta 1e-5" in line for line in text)
    score = r"[-+]?\d+\.\d+ \[[-+]?\d+\.\d+, [-+]?\d+\.\d+\]"
    for name in ("ND-CG", "ND-MM", "DPDL-CG", "DPDL-MM", "blind guess"):
        for rounds, n in (("2", 4), ("2-3", 8)):
            [row] = [line for line in text if re.match(rf"  {name} +{rounds} +{n} ", line)]
            assert len(re.findall(score, row)) == (3 if name == "blind guess" else 4)
            published = [float(x) for x in re.findall(r"\((-?\d+\.\d+)\)", row)]
            known = PUBLISHED.get(name) if rounds == "2-3" else None
            assert published == ([known[0], known[1], round(100 * known[2], 2)] if known else [])
    assert sum("over DPDL-CG" in line for line in text) == 2  # of each row of rounds
    assert sum("bits a pixel" in line for line in text) == 4  # of both batch sizes


def test_the_same_seed_prints_the_same(text) -> None:
    assert list(printed("quick", 4, None)) == text


def test_a_folder_without_mnist_is_one_line_and_no_other_data_are_taken(tmp_path) -> None:
    with pytest.raises(DataError, match="data set mnist"):
        list(printed("quick", 0, tmp_path))
    done = CliRunner().invoke(
        app,
        ["reproduce", "dpdl-table3", "--data-root", str(tmp_path), "--out", str(tmp_path / "o")],
    )
    assert done.exit_code == 2
    assert done.stdout == ""
    [line] = without_help(done.stderr).strip().splitlines()
    assert str(tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte") in line
    assert "the embedded digits are taken" in line


def test_a_folder_is_refused_where_no_data_are_read(tmp_path) -> None:
    done = CliRunner().invoke(app, ["reproduce", "xie-table4", "--data-root", str(tmp_path)])
    assert done.exit_code == 2
    assert (
        without_help(done.stderr).strip()
        == "error: --data-root: xie-table4 reads no data set; leave it out"
    )
