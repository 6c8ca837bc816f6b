"""Step sizes and clip norms of each defense, chosen on validation data before anything is audited.

Each combination trains the same candidates: the values that it sets, times the factors of the
benchmark file. Records that the chosen one is validated on are held out of the training records, so
that the test set decides nothing. The choice looks at data and is not private.
"""

import json
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpaudit.errors import DpauditError, RunError
from dpaudit.files.atomic_files import write_whole
from dpaudit.files.benchmark_file import BenchmarkFile, Tuning
from dpaudit.files.config import AuditConfig
from dpaudit.files.documents import read_json
from dpaudit.source import hash_of, own_source

from .drafts import SEED, put, value_at
from .grid import BenchmarkPlan, PlannedCell

if TYPE_CHECKING:
    from dpaudit.data.datasets import Dataset
    from dpaudit.pipeline.jobs import Prepared
    from dpaudit.pipeline.run import Runtime

FILE = "tuning.json"
PARTS = "tuning"  # a folder of choices that are made, until all are

Chosen = dict[str, float]  # by key
OnTrained = Callable[[int, int], None]  # trainings that are over, trainings in all


@dataclass(frozen=True)
class SharedChoice:
    """Cells that share one choice, and the candidates for it, the listed values first."""

    key: str  # of all that decides the choice
    cells: tuple[PlannedCell, ...]
    candidates: tuple[Chosen, ...]


def shared_choices(plan: BenchmarkPlan, tuning: Tuning) -> list[SharedChoice]:
    """Cells that differ in their seed, or in keys that ``tuning.shared`` names, together."""
    groups: dict[str, list[PlannedCell]] = {}
    for cell in plan.cells:
        content = deepcopy(cell.content)
        for key in (SEED, *tuning.shared):
            _forget(content, key.split("."))
        groups.setdefault(json.dumps(content, sort_keys=True, default=str), []).append(cell)
    found = []
    code = hash_of(own_source())
    for cells in groups.values():
        decides = [cells[0].content, tuning.model_dump(mode="json"), code]
        key = sha256(json.dumps(decides, sort_keys=True, default=str).encode()).hexdigest()
        found.append(SharedChoice(key, tuple(cells), tuple(_candidates(cells[0], tuning))))
    return found


def refuse_unused(file: BenchmarkFile, plan: BenchmarkPlan) -> None:
    """Raises ConfigError: no cell has a key of a factor, or all cells are alike at a shared key."""
    tuning = file.benchmark.tuning
    if tuning is None:
        return
    complete = [cell.config.model_dump(mode="json") for cell in plan.cells]
    for i, factor in enumerate(tuning.factor):
        if not any(
            _number(content, key) is not None for content in complete for key in factor.keys
        ):
            said = f"no cell has a number at {' or '.join(factor.keys)}; expected keys of a defense"
            raise file.refusal(("tuning", "factor", i, "keys"), said)
    for key in tuning.shared:
        if key not in plan.axes:
            said = f'cells do not differ at "{key}"; expected some of {", ".join(plan.axes)}'
            raise file.refusal(("tuning", "shared"), said)


def _forget(content: Any, path: list[str]) -> None:
    """Take a key out, if it is there."""
    try:
        inside = value_at(content, ".".join(path[:-1])) if path[:-1] else content
        del inside[path[-1]]
    except (KeyError, IndexError, TypeError, ValueError):
        return


def _candidates(cell: PlannedCell, tuning: Tuning) -> Iterator[Chosen]:
    """What is set at the keys of each factor that the defense has, times its values."""
    complete = cell.config.model_dump(mode="json")
    axes: list[list[Chosen]] = []
    for factor in tuning.factor:
        listed = {key: _number(complete, key) for key in factor.keys}
        there = {key: x for key, x in listed.items() if x is not None}
        ordered = sorted(factor.values, key=lambda value: value != 1.0)  # the listed value first
        if there:
            axes.append([{key: x * by for key, x in there.items()} for by in ordered])
    for parts in product(*axes):
        yield {key: x for part in parts for key, x in part.items()}


def _number(content: Any, key: str) -> float | None:
    try:
        found = value_at(content, key)
    except (KeyError, IndexError, TypeError, ValueError):
        return None
    return found if isinstance(found, int | float) and not isinstance(found, bool) else None


def tuned(
    plan: BenchmarkPlan,
    tuning: Tuning | None,
    out: Path,
    runtime: "Runtime",
    on_trained: OnTrained = lambda done, total: None,
) -> BenchmarkPlan:
    """The plan with what was chosen set in its cells; tuning.json in ``out`` says how.

    Choices that are there already, of the same content and code, are not made again. Workers of
    the runtime make one each, side by side.
    """
    from dpaudit.pipeline.workers import run_jobs

    if tuning is None:
        return plan
    choices = shared_choices(plan, tuning)
    known = _earlier(out)
    total = sum(len(one.candidates) for one in choices)
    trained = {one.key: len(one.candidates) for one in choices if one.key in known}

    def on_choice(key: str, done: int, _: int) -> None:
        trained[key] = done
        on_trained(sum(trained.values()), total)

    missing = [one for one in choices if one.key not in known]
    arguments = tuning, out / PARTS, replace(runtime, cores=1)
    run_jobs(_worker, arguments, missing, runtime.workers, on_choice)
    made = _earlier(out)
    records = {one.key: made[one.key] for one in choices}
    write_whole(out / FILE, _json({"choices": records}))
    shutil.rmtree(out / PARTS, ignore_errors=True)
    chosen = {cell.name: records[one.key]["chosen"] for one in choices for cell in one.cells}
    return replace(plan, cells=tuple(_with(cell, chosen[cell.name]) for cell in plan.cells))


def has_begun(out: Path) -> bool:
    """Whether choices were made for a benchmark in this folder."""
    return (out / FILE).exists() or (out / PARTS).exists()


def _earlier(out: Path) -> dict[str, Any]:
    """The record of each choice that was made, by its key; what cannot be read was not."""
    records: dict[str, Any] = {}
    for path in (*sorted((out / PARTS).glob("*.json")), out / FILE):
        try:
            records |= read_json(path)["choices"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return records


def _worker(tuning: Tuning, parts: Path, runtime: "Runtime") -> Callable[[SharedChoice, Any], None]:
    """What makes a choice in one process, which reads and splits data once."""
    held = HeldOut(tuning)

    def work(one: SharedChoice, on_progress: Any) -> None:
        record = _record(one, held, runtime, partial(on_progress, one.key))
        write_whole(parts / f"{one.key}.json", _json({"choices": {one.key: record}}))

    return work


def _json(content: Any) -> bytes:
    return (json.dumps(content, indent=2, allow_nan=False) + "\n").encode()


def _record(
    one: SharedChoice, held: "HeldOut", runtime: "Runtime", on_trained: OnTrained
) -> dict[str, Any]:
    """The candidates of one choice with the utility of each, and the best."""
    rows: list[dict[str, Any]] = []
    for candidate in one.candidates:
        utility, problem = None, ""
        if len(one.candidates) > 1:
            try:
                utility = validated_utility(_with(one.cells[0], candidate), held, runtime)
            except DpauditError as error:
                problem = error.problems[0].text
        finite = utility is not None and math.isfinite(utility)
        rows.append({"set": candidate, "utility": utility if finite else None, "problem": problem})
        on_trained(len(rows), len(one.candidates))
    scored = [row for row in rows if row["utility"] is not None]
    best = max(scored, key=lambda row: row["utility"], default=rows[0])  # of equal ones the first
    return {
        "cells": [cell.name for cell in one.cells],
        "trainings": len(rows),
        "chosen": best["set"],
        "candidates": rows,
    }


def _with(cell: PlannedCell, chosen: Chosen) -> PlannedCell:
    """The cell with what was chosen in the place of what it sets."""
    content = deepcopy(cell.content)
    for key, value in chosen.items():
        put(content, key.split("."), value)
    values = {key: chosen.get(key, value) for key, value in cell.values.items()}
    config = AuditConfig.from_dict(content)
    return replace(cell, content=content, config=config, values=values)


def validated_utility(cell: PlannedCell, held: "HeldOut", runtime: "Runtime") -> float:
    """The accuracy on held-out training records after the last round, or less the loss.

    Of one training run with the noise that the claim needs; the mean over agents.

    Raises:
        DpauditError: it cannot be trained so.
    """
    from dpaudit.training.run_directory import RunDirectory
    from dpaudit.training.train import NOTHING_RECORDED, train

    content = {**cell.content, "claim": [], "attack": [], SEED: held.tuning.seed}
    prepared = held.prepared(AuditConfig.from_dict(content), runtime)
    with tempfile.TemporaryDirectory() as folder, RunDirectory(Path(folder)).held() as run:
        curve = train(
            prepared.defense,
            prepared.learned.problem,
            prepared.setting,
            prepared.streams,
            NOTHING_RECORDED,
            run,
            "tuning",
            lambda done, total: None,
            evaluations=1,
        )
    last = curve.accuracy[-1] if curve.accuracy else [-loss for loss in curve.loss[-1]]
    return math.fsum(last) / len(last)


class HeldOut:
    """Prepares candidates on split data, which is read and split once for all that share it."""

    def __init__(self, tuning: Tuning) -> None:
        self.tuning = tuning
        self._source = ""  # of the data set that is held
        self._dataset: Dataset | None = None

    def prepared(self, config: AuditConfig, runtime: "Runtime") -> "Prepared":
        """Prepare a config with the seed of the tuning. Raises DpauditError: it cannot be."""
        from dpaudit.pipeline.caller_objects import CallerObjects
        from dpaudit.pipeline.run import prepare

        source = config.data.model_dump_json()
        if source == self._source:
            return prepare(config, runtime, CallerObjects(data=self._dataset))
        whole = prepare(config, runtime)
        if whole.learned.dataset is None:
            return whole
        self._dataset = split(whole.learned.dataset, self.tuning)
        self._source = source
        return prepare(config, runtime, CallerObjects(data=self._dataset))


def split(dataset: "Dataset", tuning: Tuning) -> "Dataset":
    """The training records alone, a share of them in the place of the test set."""
    import torch

    n = len(dataset.x)
    n_held = round(tuning.validation * n)
    if not 0 < n_held < n:
        raise RunError(
            "DPA032", f"tuning.validation: {tuning.validation:g} of {n} training records is none"
        )
    order = torch.randperm(n, generator=torch.Generator().manual_seed(tuning.seed))
    held, rest = order[:n_held], order[n_held:]
    return replace(
        dataset,
        x=dataset.x[rest],
        y=dataset.y[rest],
        x_test=dataset.x[held],
        y_test=dataset.y[held],
    )
