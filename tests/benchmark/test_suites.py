"""The suites that ship: every defense that makes a claim, budgets and graphs, and what is left out."""

from collections import defaultdict
from functools import cache

import pytest

from dpaudit.benchmark.grid import BenchmarkPlan, PlannedCell, plan_of
from dpaudit.benchmark.suites import benchmark_path, suites
from dpaudit.benchmark.tuning import refuse_unused, shared_choices
from dpaudit.errors import ConfigError, DpauditError
from dpaudit.files.benchmark_file import BenchmarkFile
from dpaudit.pipeline.run import Runtime, prepare
from dpaudit.registry import load_plugin
from tests.own_plugins import OWN

BUDGETS, GRAPHS = {0.5, 2.0, 8.0}, {"ring", "bipartite", "exponential"}
NEED_A_SERVER = {"secure-aggregation"}  # which no graph of the suite has
SUITE, UNDEFENDED = "decentralized", "d-psgd"
DIRECTED = "sgp"  # undefended, too, where links have one direction
# What no training of LeNet stays finite or learns at, or is outside of the theorem: budgets.
LEFT_OUT = {"dpps": BUDGETS, "sgpdp": BUDGETS, "partpsp": {0.5}, "adp-vrsgp": {2.0, 8.0}}
ATTACKS = {"likelihood-ratio", "gradient-inversion", "membership"}


@cache
def plan(scale: str) -> BenchmarkPlan:
    return plan_of(BenchmarkFile.read(benchmark_path(SUITE, scale)), 1000)


def claiming() -> set[str]:
    """The defenses that come with dpaudit and promise an epsilon, without a server."""
    said = {name: load_plugin("defenses", name).claims for name in OWN}
    promise = {name for name, claims in said.items() if not claims.startswith(("none", "no "))}
    return promise - NEED_A_SERVER


def by_defense(scale: str) -> dict[str, dict[str, set[float]]]:
    """The budgets of each graph of each defense."""
    found: dict[str, dict[str, set[float]]] = defaultdict(lambda: defaultdict(set))
    for cell in plan(scale).cells:
        name, graph = cell.values["defense.name"], cell.values["graph.name"]
        found[name][graph].add(cell.values["claim.0.epsilon"])
    return found


def test_what_the_full_scale_tunes_is_there() -> None:
    refuse_unused(BenchmarkFile.read(benchmark_path(SUITE, "full")), plan("full"))
    assert {cell.config.seed for cell in plan("full").cells} == {1, 2, 3}


def test_the_suite_is_there() -> None:
    assert SUITE in suites()


def of_functions(name: str) -> bool:
    return "function" in load_plugin("defenses", name).claims


def test_quick_has_every_claiming_defense_at_every_budget() -> None:
    found = by_defense("quick")
    assert found.pop(UNDEFENDED) == {"ring": {0.5}, "bipartite": {0.5}}  # a positive control
    assert found.keys() == claiming()
    for name, graphs in found.items():
        assert graphs.pop("ring") == BUDGETS, name
        assert "bipartite" in graphs, name
        assert all(budgets == {2.0} for budgets in graphs.values()), name


def test_full_has_on_each_graph_what_quick_has_and_learns() -> None:
    quick, full = by_defense("quick"), by_defense("full")
    assert quick.pop(UNDEFENDED)
    assert full.pop(UNDEFENDED) == {"ring": {0.5}, "bipartite": {0.5}}
    assert full.pop(DIRECTED) == {"exponential": {0.5}}
    functions = {name for name in quick if of_functions(name)}
    assert len(functions) == 9
    never = {name for name, budgets in LEFT_OUT.items() if budgets == BUDGETS}
    assert quick.keys() - full.keys() == {*never, *functions}
    for name, graphs in full.items():
        every = {
            graph: budgets - LEFT_OUT.get(name, set()) for graph, budgets in quick[name].items()
        }
        assert graphs == {graph: budgets for graph, budgets in every.items() if budgets}, name


@pytest.mark.parametrize("scale", ["quick", "full"])
def test_what_is_claimed_is_what_the_noise_is_set_for(scale: str) -> None:
    for cell in plan(scale).cells:
        [claim] = cell.config.claim
        if cell.config.defense.name in (UNDEFENDED, DIRECTED):
            continue
        options = cell.content["defense"]
        assert options.get("epsilon", options.get("protocol", {}).get("epsilon")) == claim.epsilon
        said = load_plugin("defenses", cell.config.defense.name).claims
        assert (claim.delta == 0) == said.startswith("pure"), cell.name
        assert (claim.adjacency == "function") == ("function" in said), cell.name
        assert (claim.scope == "round") == ("each round" in said), cell.name
        assert (claim.scope == "message") == ("one message" in said), cell.name
        kinds = {attack.name for attack in cell.config.attack}
        assert kinds == ATTACKS | ({"mutual-information"} if scale == "quick" else set())


@pytest.mark.parametrize("scale", ["quick", "full"])
def test_at_equal_epsilon_all_have_as_many_candidates(scale: str) -> None:
    file = BenchmarkFile.read(benchmark_path("equal-epsilon", scale))
    assert file.benchmark.tuning is not None
    found = plan_of(file, 1000)
    refuse_unused(file, found)
    choices = shared_choices(found, file.benchmark.tuning)
    by_name = {one.cells[0].config.defense.name: len(one.candidates) for one in choices}
    assert by_name.pop(UNDEFENDED) == 3  # it has no clip norm
    assert {*by_name.values()} == {9}
    assert {len(one.cells) for one in choices} == {len(file.benchmark.seeds)} == {3}
    for cell in found.cells:
        said = load_plugin("defenses", cell.config.defense.name).claims
        assert cell.config.defense.name == UNDEFENDED or cell.config.claim[0].scope == "run", said


@pytest.mark.parametrize("scale", ["quick", "full"])
def test_updates_are_of_all_steps_and_two_levels_of_noise(scale: str) -> None:
    cells = plan_of(BenchmarkFile.read(benchmark_path("updates", scale)), 1000).cells
    noises: dict[tuple[str, int], set[float]] = defaultdict(set)
    for cell in cells:
        values, [attack, *_] = cell.values, cell.config.attack
        steps = values.get("defense.local_steps", 0)
        what = values["defense.name"] if steps else (attack.name, cell.config.model.name)
        noises[what, steps].add(values["defense.noise_multiplier"])
        if steps:
            assert attack.message == "local-steps"
    of_steps = {steps for _, steps in noises}
    assert of_steps == {0, 1, 4, 16}
    assert {what for what, steps in noises if not steps} == {
        ("dager", "gpt-tiny"), ("dager", "bert-tiny"), ("shadow-models", cells[0].config.model.name),
    }  # fmt: skip
    assert all(min(of) <= 0.01 < 1.0 <= max(of) for of in noises.values())
    prepare(cells[0].config, Runtime(cores=1))


@pytest.mark.slow
def test_every_cell_can_be_prepared_and_what_is_left_out_cannot() -> None:
    """On the graph that varies a defense of the quick suite is left out because it refuses it."""
    cells = {(c.values["defense.name"], c.values["graph.name"]): c for c in plan("quick").cells}
    for cell in cells.values():
        prepare(cell.config, Runtime(cores=1))
    left_out = {name for name, _ in cells if (name, "exponential") not in cells} - {UNDEFENDED}
    assert left_out
    for name in left_out:
        with pytest.raises(DpauditError, match="graph"):
            prepare(on_exponential(cells[name, "ring"]).config, Runtime(cores=1))


def on_exponential(cell: PlannedCell) -> PlannedCell:
    graph = {"graph": {"name": "exponential"}}
    config = type(cell.config).from_dict({**cell.content, **graph})
    return PlannedCell(cell.name, cell.values, cell.group, {**cell.content, **graph}, config)


def test_no_suite_of_another_name_is_taken_for_one() -> None:
    with pytest.raises(ConfigError, match="suites: decentralized, equal-epsilon, updates"):
        benchmark_path("decentralised-learning", None)
