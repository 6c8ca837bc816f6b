"""All declared experiments: their settings are audits, their numbers belong to cells, labels exist."""

from itertools import product

import pytest

from dpaudit.errors import ConfigError, DataError
from dpaudit.files.config import AuditConfig
from dpaudit.files.finding import Metric
from dpaudit.files.published import ExperimentLine
from dpaudit.papers import local_updates, recovered_text
from dpaudit.papers.cells import Request, _DoneCells, chosen, refuse_missing_data
from dpaudit.papers.declared import DECLARED, EXPERIMENTS, described, reproduction
from dpaudit.papers.learning import RECORDS, WORLD, nested, with_noise
from dpaudit.papers.outcome import held

NAMES = sorted(DECLARED)
NO_DEFENSE = (local_updates.recovered, recovered_text.recovered)  # makes what is attacked there
ON_DATA = [n for n in NAMES if DECLARED[n].data and DECLARED[n].measure not in NO_DEFENSE]


@pytest.mark.parametrize("name, scale", [*product(ON_DATA, ("quick", "paper"))])
def test_every_cell_is_an_audit(name: str, scale: str) -> None:
    """Each different set of options is checked by the plug-in's own class."""
    seen = set()
    for cell in chosen(DECLARED[name], Request(name, scale)):
        own = {WORLD, RECORDS}  # that are read before there is an audit
        settings = {k: v for k, v in with_noise(cell.settings).items() if k not in own}
        settings = {k: v for k, v in settings.items() if k[:7] not in ("attack.", "images.")}
        kind = tuple(sorted((k, type(v).__name__) for k, v in settings.items()))
        kind += (settings["defense.name"], settings["graph.name"])
        if kind not in seen:
            seen.add(kind)
            AuditConfig.from_dict(nested(settings))


@pytest.mark.parametrize("name", NAMES)
def test_cells_have_names_of_their_own_and_every_column(name: str) -> None:
    experiment = DECLARED[name]
    cells = chosen(experiment, Request(name, "paper"))
    names = {_DoneCells.name(_Named(cells), (i, 0)) for i in range(len(cells))}
    assert len(names) == len(cells)
    assert all(set(cell.labels) <= set(experiment.columns) for cell in cells)


class _Named:
    def __init__(self, cells) -> None:
        self._cells = cells


@pytest.mark.parametrize("name", NAMES)
def test_every_published_number_has_a_cell(name: str) -> None:
    experiment = DECLARED[name]
    for number in experiment.published:
        assert any(cell.labels.items() <= number.labels.items() for cell in experiment.cells)
    keys = [(tuple(sorted(p.labels.items())), p.quantity) for p in experiment.published]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("name", NAMES)
def test_orderings_and_scales_name_labels_that_there_are(name: str) -> None:
    experiment = DECLARED[name]
    known = {column: set(experiment.values(column)) for column in experiment.columns}
    for number in experiment.published:
        for column, label in number.labels.items():
            known[column].add(label)
    for labels in known.values():
        labels |= {"blind guess"} if "ND-CG" in labels else set()  # of which nothing is published
    for ordering in experiment.orderings:
        named = {ordering.along: (ordering.above, *ordering.below)}
        named |= {column: (label,) for column, label in ordering.where.items()}
        for column, labels in named.items():
            named_there = known[column] | {""}  # of a whole column none is named
            assert set(labels) <= named_there or not known[column], (column, labels)
    for scale in experiment.scales.values():
        for column, labels in scale.only.items():
            assert set(labels) <= known[column]
    assert set(experiment.scales) == {"quick", "paper"}
    assert experiment.scales["quick"].seconds <= 300


@pytest.mark.parametrize("name", [name for name in NAMES if DECLARED[name].published])
def test_orderings_are_those_of_the_published_numbers(name: str) -> None:
    """Were ours the published numbers, no pair would be the other way round; some are equal."""
    experiment = DECLARED[name]
    lines = tuple(
        ExperimentLine(labels=dict(p.labels), quantity=p.quantity, ours=Metric(value=p.value, n=1),
                       values=(p.value,) * 3)
        for p in experiment.published
    )  # fmt: skip
    for ordering in experiment.orderings:
        assert held(ordering, lines).contradicted == 0, ordering.says


@pytest.mark.parametrize("name", ON_DATA)
def test_missing_data_are_a_line_with_the_file_and_its_place(name: str, tmp_path) -> None:
    with pytest.raises(DataError) as error:
        refuse_missing_data(DECLARED[name], Request(name, data_root=tmp_path))
    said = str(error.value)
    assert said.startswith(f"{name} learns from {DECLARED[name].data}: {tmp_path}")
    assert " is missing" in said
    assert "\n" not in said


@pytest.mark.parametrize("name", NAMES)
def test_a_label_that_there_is_not_names_those_there_are(name: str) -> None:
    experiment = DECLARED[name]
    for column in experiment.columns:
        labels = experiment.values(column)
        if labels:
            with pytest.raises(ConfigError) as error:
                chosen(experiment, Request(name, only={column: ("no such",)}))
            said = str(error.value)  # what is long is shortened in its middle
            assert said.startswith(f'--only: {column} has no "no such"')
            assert f"it has {labels[0]}" in said
            assert said.endswith(labels[-1])
            assert "\n" not in said


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_a_name_that_there_is_not_is_told_the_nearest(name: str) -> None:
    with pytest.raises(ConfigError) as error:
        reproduction(f"{name}x")
    assert f'did you mean "{name}"?' in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "name, labels, value",
    [
        ("dpdl-table1", ("DPDL", "0.25", "0.25", "bipartite", "20"), 92.3),
        ("dpdl-table1", ("DP-CGA", "1.0", "0.25", "complete", "30"), 55.8),
        ("dpdl-table2", ("DPDL", "0.25", "4.0", "bipartite", "20"), 62.1),
        ("dpdl-table5", ("MUFFLIATO", "1.0", "0.5", "ring", "10"), 87.4),
        ("dpdl-table6", ("DPDL", "0.25", "4.0", "ring", "10"), 60.2),
        ("dpdl-table3-all", ("DPDL-MM", "complete", "10"), [1.33, 4.55, 4.27]),
        ("dpdl-table4", ("ND-CG", "ring", "20"), [1.16, 10.20, 11.89]),
        ("dpdl-figures1-2", ("DPDL", "0.5", "ring", "30"), 0.41),
        ("dpdl-figures1-2", ("MUFFLIATO", "0.5", "bipartite", "20"), 1.64),
        ("dyn-d2p-table1", ("Dyn-D2P", "0.3"), 71.87),
        ("dyn-d2p-table2", ("Non-private", "none"), 89.98),
        ("dyn-d2p-figures6-8", ("Dyn[mu]-D2P", "1"), 69.37),
        ("dyn-d2p-figures9-11", ("Const-D2P", "0.3"), 45.37),
        ("adp-vrsgp-table2", ("ADP-VRSGP", "6"), 97.36),
        ("adp-vrsgp-table3", ("ADP-VRSGP", "ResNet-18", "0.3", "12"), 90.59),
        ("adp-vrsgp-table3-fashion", ("ADP-VRSGP", "CNN", "0.7", "30"), 70.83),
        ("adp-vrsgp-table4", ("FedDPA", "128"), 37.85),
        ("adp-vrsgp-table7", ("ADP-VRSGP", "0.5"), 44.65),
        ("partpsp-table2", ("PartPSP-1", "3", "8-Out"), 88.87),
        ("partpsp-table2-resnet", ("PEDFL", "2", "8-Out"), 71.16),
        ("partpsp-table2-vit", ("SGPDP", "2", "4-Out"), 7.61),
        ("partpsp-table3-resnet", ("real", "2", "2-Out"), 80.83),
        ("partpsp-table3", ("estimated", "2", "EXP"), 53.99),
        ("xie-budgets", ("Diff-TV-AB", "10"), 102.40),
    ],
)
def test_numbers_are_as_printed(name: str, labels: tuple[str, ...], value) -> None:
    experiment = DECLARED[name]
    found = [
        p.value
        for p in experiment.published
        if tuple(p.labels[c] for c in experiment.columns if c in p.labels) == labels
    ]
    assert found == (value if isinstance(value, list) else [value])


def test_what_is_listed_says_time_memory_data_and_what_is_open() -> None:
    for name, experiment in EXPERIMENTS.items():
        listed = described(experiment)
        assert listed["quick"].startswith("quick: "), name
        assert listed["paper"].startswith("paper: "), name
        assert all(listed[key] for key in ("of", "table", "shows", "data"))
    assert "defense.n_rounds" in described(DECLARED["dpdl-table1"])["open"]
