"""Reconstructed images of DPDL: a cell is an audit, and its scores are those of its findings."""

import pytest

from dpaudit.data.datasets import load_dataset
from dpaudit.files.result import AuditResult
from dpaudit.papers.cells import Request, chosen
from dpaudit.papers.dpdl_images import DPDL_IMAGES, MSE, NAMED, SCENARIOS, images
from dpaudit.papers.dpdl_table3 import SCENARIOS as OF_ONE_COLUMN
from dpaudit.papers.experiment import Around
from dpaudit.papers.image_table import scored
from dpaudit.training.run_directory import RunDirectory


def test_scenarios_are_those_of_the_paper() -> None:
    known = {s.name: (s.message, s.world) for s in OF_ONE_COLUMN}
    assert {s.name: (s.message, s.world) for s in SCENARIOS}.items() <= known.items()


@pytest.mark.slow
def test_a_cell_is_an_audit_with_the_paper_s_attacks(tmp_path) -> None:
    table = DPDL_IMAGES["dpdl-table3-all"]
    [cell] = chosen(table, Request("", "quick", data="digits"))
    settings = {**cell.settings, "defense.n_rounds": 2, "attack.rounds": [1, 2]}
    settings |= {"attack.iterations": 2, "data.n_agents": 4, "defense.batch_size": 2}
    with RunDirectory(tmp_path).held() as run:
        run.binding = "0123456789"
        told = list[str]()
        around = Around(run, "cell", load_dataset("digits"), lambda what, *_: told.append(what))
        found = list(images(settings, 0, around))
    assert {"cell: training, defense", "cell: training, no-defense"} <= set(told)
    result = AuditResult.read(tmp_path / "audits" / "cell-01234567" / "audit.json")
    last = {(m.labels["scenario"], m.quantity): m.value for m in found if m.at is None}
    for scenario in SCENARIOS:
        own = scored(result.findings, scenario, (2,))
        for quantity, name, times in NAMED:
            assert last[scenario.name, quantity] == pytest.approx(times * own.scores[name].mean())
    assert ("blind guess", MSE) in last
    assert {m.at for m in found} == {None, 1, 2}
