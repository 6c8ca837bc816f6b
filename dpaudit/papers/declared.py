"""Every experiment that can be reproduced: those that the files of ``experiments/`` declare.

Each paper has a file, with a table for each experiment, by the experiment's name. Keys that a table
leaves out come from the table that ``like`` names, then from ``defaults``: tables are merged, lists
are replaced. A table whose name begins with "_" is no experiment; others are like it. Settings are
nested as in an audit file. The keys are those of ``Experiment``, with these differences:

    measure    a name in ``MEASURES``
    quantity   of published numbers and orderings that name no other
    published  printed tables: ``rows``, ``columns`` and ``numbers`` as ``printed`` reads them
    labels     by column: the settings of each label, or the one key that has the label as its value
    grid       by column: labels, each combination of which is a cell
    cells      the cells one by one; without this and ``grid``, those of the published numbers
    cases      further settings of all cells that have the labels ``where``
"""

import json
import tomllib
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from dpaudit.errors import ConfigError, nearest
from dpaudit.memory import size_text
from dpaudit.text import duration

from . import images, learning, local_updates, recovered_text, sensor_fusion, weather, xie_table4
from .experiment import (
    Experiment,
    ExperimentScale,
    Labels,
    Measure,
    Open,
    Ordering,
    PublishedNumber,
    TableCell,
    printed,
)
from .five_papers import FINDINGS, PrintedStudy
from .frameworks import FRAMEWORKS

Table = Mapping[str, Any]

MEASURES: Mapping[str, Measure] = {
    "accuracy": learning.accuracy,
    "curve": learning.curve,
    "convergence": learning.convergence,
    "sensitivity by round": learning.sensitivity_by_round,
    "mean sensitivity": learning.mean_sensitivity,
    "gradient norms": learning.gradient_norms,
    "images": images.images,
    "recovered images": local_updates.recovered,
    "recovered text": recovered_text.recovered,
    "residuals": sensor_fusion.residuals,
    "communication": sensor_fusion.communication,
    "budgets": sensor_fusion.budgets,
    "sensitivities": sensor_fusion.sensitivities,
    "leaks": xie_table4.leaks,
    "cancelled noise": weather.cancelled_noise,
}


def read_experiments(folder: Path) -> Iterator[tuple[str, Experiment]]:
    """Every experiment of the files of a folder, with its name."""
    for path in sorted(folder.glob("*.toml")):
        tables = tomllib.loads(path.read_text("utf-8"))
        for name in tables:
            if name != "defaults" and not name.startswith("_"):
                yield name, _experiment(_whole(tables, name))


def _whole(tables: Mapping[str, Table], name: str) -> Table:
    """A table with what it takes from others."""
    own = tables[name]
    return own if name == "defaults" else _merged(_whole(tables, own.get("like", "defaults")), own)


def _merged(below: Table, above: Table) -> Table:
    tables = {
        key: _merged(below[key], value)
        for key, value in above.items()
        if isinstance(value, dict) and isinstance(below.get(key), dict)
    }
    return {**below, **above, **tables}


def _experiment(table: Table) -> Experiment:
    common = {"quantity": table.get("quantity", "")}
    numbers = [
        number
        for one in table.get("published", ())
        for number in printed(**{**common, **one, "columns": _combinations(one["columns"])})
    ]
    as_written = ("paper", "table", "shows", "columns", "remarks", "at", "data")
    return Experiment(
        **{key: table[key] for key in as_written if key in table},
        measure=MEASURES[table["measure"]],
        cells=tuple(_cells(table, numbers)),
        scales={
            name: ExperimentScale(**{**scale, "settings": dotted(scale.get("settings", {}))})
            for name, scale in table["scales"].items()
        },
        settings=dotted(table.get("settings", {})),
        published=tuple(numbers),
        open=tuple(Open(**one) for one in table.get("open", ())),
        orderings=tuple(Ordering(**{**common, **one}) for one in table.get("orderings", ())),
    )


def _cells(table: Table, numbers: list[PublishedNumber]) -> Iterator[TableCell]:
    if "cells" in table:
        for one in table["cells"]:
            yield TableCell(one.get("labels", {}), dotted(one.get("settings", {})))
        return
    of_column = table["labels"]
    known = _combinations(table.get("grid", [])) or [
        {column: label for column, label in number.labels.items() if column in of_column}
        for number in numbers
    ]
    for labels in {tuple(found.items()): found for found in known}.values():
        settings: dict[str, Any] = {}
        for column in (column for column in table["columns"] if column in labels):
            key, label = of_column[column], labels[column]
            settings |= {key: json.loads(label)} if isinstance(key, str) else dotted(key[label])
        for case in table.get("cases", ()):
            if case["where"].items() <= labels.items():
                settings |= dotted(case["settings"])
        yield TableCell(labels, settings)


def _combinations(of_column: Mapping[str, list[str]] | list[Labels]) -> list[Labels]:
    """One label of each column, in all combinations; or the combinations as they are listed."""
    if isinstance(of_column, list):
        return of_column
    return [dict(zip(of_column, row, strict=True)) for row in product(*of_column.values())]


def dotted(table: Table, prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, by dotted keys."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        inner = isinstance(value, dict)
        found |= dotted(value, f"{prefix}{key}.") if inner else {prefix + key: value}
    return found


DECLARED = dict(read_experiments(Path(__file__).parent / "experiments"))
EXPERIMENTS: dict[str, Experiment | PrintedStudy] = {
    "findings": FINDINGS,
    "frameworks": FRAMEWORKS,
    **DECLARED,
}
EXPERIMENTS = dict(sorted(EXPERIMENTS.items()))


def reproduction(name: str) -> Experiment | PrintedStudy:
    """The experiment of this name. Raises ConfigError if there is none."""
    if name not in EXPERIMENTS:
        raise ConfigError(
            "DPA006",
            f'nothing called "{name}" can be reproduced{nearest(name, EXPERIMENTS)}; '
            f"known: {', '.join(EXPERIMENTS)}",
        )
    return EXPERIMENTS[name]


def described(experiment: Experiment | PrintedStudy) -> dict[str, str]:
    """What there is to say of it before it is run."""
    about = {"of": experiment.paper, "table": experiment.table, "shows": experiment.shows}
    about["data"] = f"learns from {experiment.data}" if experiment.data else "needs no data"
    for name, scale in experiment.scales.items():
        cut = f": {scale.cut}" if scale.cut else ""
        takes = f"{duration(scale.seconds)} on two cores, {size_text(scale.bytes)}"
        about[name] = f"{name}: {takes}{cut}"
    keys = ", ".join(dict.fromkeys(one.key for one in experiment.open))
    return {**about, "open": f"open: {keys}" if keys else ""}
