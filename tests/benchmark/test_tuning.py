"""What is chosen on validation data: which candidates, on which records, and once."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from dpaudit.benchmark import tuning as module
from dpaudit.benchmark.grid import BenchmarkPlan, plan_of
from dpaudit.benchmark.tuning import (
    FILE,
    PARTS,
    HeldOut,
    has_begun,
    refuse_unused,
    shared_choices,
    split,
    tuned,
    validated_utility,
)
from dpaudit.commands.cli import app
from dpaudit.data.datasets import Dataset, load_dataset
from dpaudit.errors import ConfigError, RunError
from dpaudit.files.benchmark_file import BenchmarkFile, Factor, Tuning
from dpaudit.pipeline.run import Runtime
from tests.benchmark.small_benchmarks import EPSILONS, GRAPHS, written

TUNING = """
[tuning]
seed = 9
shared = ["graph.name"]

[[tuning.factor]]
keys = ["defense.learning_rate", "defense.step_size"]
values = [0.5, 1, 2]

[[tuning.factor]]
keys = ["defense.clip_norm"]
values = [1, 3]
"""
ONE_CORE = Runtime(cores=1)


def read(folder: Path, *parts: str) -> tuple[BenchmarkPlan, Tuning]:
    file = BenchmarkFile.read(written(folder, *parts))
    assert file.benchmark.tuning is not None
    return plan_of(file, 100), file.benchmark.tuning


def learning_rates(plan: BenchmarkPlan) -> list[float]:
    return [cell.config.defense.options["learning_rate"] for cell in plan.cells]


def test_every_combination_has_the_same_candidates(tmp_path: Path) -> None:
    """Three step sizes and two clip norms; seeds and graphs share the choice, budgets do not."""
    plan, asked = read(tmp_path, "seeds = [1, 2]\n", EPSILONS, GRAPHS, TUNING)
    choices = shared_choices(plan, asked)
    assert [len(one.cells) for one in choices] == [4, 4]
    listed = plan.cells[0].config.defense.options
    for one in choices:
        assert len(one.candidates) == 6
        assert one.candidates[0] == {
            "defense.learning_rate": listed["learning_rate"],
            "defense.clip_norm": listed["clip_norm"],
        }
        rates = {candidate["defense.learning_rate"] for candidate in one.candidates}
        assert rates == {by * listed["learning_rate"] for by in (0.5, 1, 2)}


def test_the_best_on_validation_data_is_chosen_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, asked = read(tmp_path, "seeds = [1, 2]\n", EPSILONS, TUNING)
    trained: list[Any] = []

    def utility(cell: Any, *_: Any) -> float:
        options = cell.config.defense.options
        trained.append(options)
        if options["clip_norm"] > 2 and options["learning_rate"] > 0.05:
            raise RunError("DPA017", "diverges")
        return float(options["learning_rate"] - options["clip_norm"])

    monkeypatch.setattr(module, "validated_utility", utility)
    chosen = tuned(plan, asked, tmp_path / "out", ONE_CORE)
    assert len(trained) == 2 * 6
    listed = learning_rates(plan)[0]
    assert learning_rates(chosen) == [2 * listed] * 4
    assert [cell.name for cell in chosen.cells] == [cell.name for cell in plan.cells]
    assert all(cell.content["defense"]["learning_rate"] == 2 * listed for cell in chosen.cells)
    records = json.loads((tmp_path / "out" / FILE).read_text())["choices"].values()
    assert [record["trainings"] for record in records] == [6, 6]
    assert any(row["problem"] == "diverges" for record in records for row in record["candidates"])
    assert tuned(plan, asked, tmp_path / "out", ONE_CORE) == chosen
    assert len(trained) == 2 * 6


def test_choices_of_a_killed_run_are_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, asked = read(tmp_path, EPSILONS, TUNING)
    out, trained, seen = tmp_path / "out", list[Any](), list[tuple[int, int]]()

    def utility(cell: Any, *_: Any) -> float:
        if len(trained) == 6 + 2:
            raise KeyboardInterrupt  # in the second choice
        trained.append(cell)
        return 0.5

    monkeypatch.setattr(module, "validated_utility", utility)
    with pytest.raises(KeyboardInterrupt):
        tuned(plan, asked, out, ONE_CORE)
    assert has_begun(out)
    assert not (out / FILE).exists()
    trained.clear()
    tuned(plan, asked, out, ONE_CORE, lambda *at: seen.append(at))
    assert len(trained) == 6
    assert seen == [(6 + n, 12) for n in range(1, 7)]
    assert (out / FILE).exists()
    assert not (out / PARTS).exists()


@pytest.mark.slow
def test_processes_choose_what_one_chooses(tmp_path: Path) -> None:
    plan, asked = read(tmp_path, EPSILONS, TUNING)
    folders = tmp_path / "one", tmp_path / "two"
    one, two = (tuned(plan, asked, folders[i], Runtime(cores=i + 1)) for i in range(2))
    assert one == two
    first, second = (json.loads((folder / FILE).read_text()) for folder in folders)
    assert first == second


def test_without_tuning_a_plan_is_as_it_is(tmp_path: Path) -> None:
    plan = plan_of(BenchmarkFile.read(written(tmp_path, EPSILONS)), 100)
    assert tuned(plan, None, tmp_path / "out", ONE_CORE) is plan
    assert not (tmp_path / "out").exists()


def test_validation_records_come_from_the_training_set() -> None:
    data = load_dataset("digits", seed=1)
    asked = Tuning(seed=4, factor=(Factor(keys=("defense.x",), values=(1.0,)),))
    held = split(data, asked)
    assert len(held.x_test) == round(0.2 * len(data.x))
    together = torch.cat([held.x, held.x_test]).flatten(1)
    assert torch.equal(
        together.sum(dim=1).sort().values, data.x.flatten(1).sum(dim=1).sort().values
    )
    assert len(together) == len(data.x)


def test_candidates_share_data_and_find_what_they_find_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits: list[Tuning] = []

    def counted(dataset: Dataset, tuning: Tuning) -> Dataset:
        splits.append(tuning)
        return split(dataset, tuning)

    monkeypatch.setattr(module, "split", counted)
    plan, asked = read(tmp_path, EPSILONS, TUNING)
    shared = HeldOut(asked)
    found = [validated_utility(cell, shared, ONE_CORE) for cell in plan.cells]
    assert len(found) > len(splits) == 1
    assert all(0 <= accuracy <= 1 for accuracy in found)
    assert found == [validated_utility(cell, HeldOut(asked), ONE_CORE) for cell in plan.cells]


@pytest.mark.parametrize(
    "wrong, line",
    [
        (("seeds = [9]\n", TUNING), "the runs that choose would be among those that are audited"),
        ((TUNING.replace('"defense.clip_norm"', '"defense.step_size"'),), "a key is there twice"),
        ((TUNING.replace("[0.5, 1, 2]", "[0.5, -1]"),), "greater than 0"),
        ((TUNING.replace("seed = 9", "seed = 9\nvalidation = 1.0"),), "less than 1"),
        (
            (GRAPHS, TUNING.replace("clip_norm", "clipnorm")),
            r"tuning.factor\[2\].keys: no cell has",
        ),
        ((EPSILONS, TUNING), 'tuning.shared: cells do not differ at "graph.name"'),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, wrong: tuple[str, ...], line: str) -> None:
    def planned() -> None:
        file = BenchmarkFile.read(written(tmp_path, *wrong))
        refuse_unused(file, plan_of(file, 100))

    with pytest.raises(ConfigError, match=line):
        planned()


@pytest.mark.slow
def test_a_benchmark_tunes_in_its_own_folder_and_goes_on_there(tmp_path: Path) -> None:
    path, out = written(tmp_path, TUNING.replace('shared = ["graph.name"]\n', "")), tmp_path / "out"
    arguments = ["benchmark", str(path), "--out", str(out), "--quiet", "--workers", "1"]
    first = CliRunner().invoke(app, arguments)
    assert first.exit_code == 0, first.output
    chosen = (out / FILE).read_text()
    assert json.loads(chosen)["choices"]
    again = CliRunner().invoke(app, [*arguments, "--resume"])
    assert again.exit_code == 0, again.output
    assert (out / FILE).read_text() == chosen
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "mine").write_text("")
    refused = CliRunner().invoke(app, ["benchmark", str(path), "--out", str(foreign)])
    assert refused.exit_code == 2
    assert [found.name for found in foreign.iterdir()] == ["mine"]
