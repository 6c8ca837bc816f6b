"""Cells of benchmark files: what they set, how they are called, and what is refused."""

from pathlib import Path

import pytest

from dpaudit.benchmark.grid import BenchmarkPlan, plan_of
from dpaudit.errors import ConfigError
from dpaudit.files.benchmark_file import BenchmarkFile
from tests.benchmark.small_benchmarks import EPSILONS, GRAPHS, written


def planned(folder: Path, *parts: str, most: int = 1000) -> BenchmarkPlan:
    return plan_of(BenchmarkFile.read(written(folder, *parts)), most)


def refused(folder: Path, *parts: str, most: int = 1000) -> list[str]:
    with pytest.raises(ConfigError) as found:
        planned(folder, *parts, most=most)
    return str(found.value).replace(f"{folder}/", "").split("\n")


def test_cells_are_all_combinations_in_order_and_all_seeds(tmp_path: Path) -> None:
    plan = planned(tmp_path, "seeds = [3, 1]\n", EPSILONS, GRAPHS)
    assert plan.axes == ("defense.epsilon", "graph.name")
    assert [cell.name for cell in plan.cells] == [
        f"epsilon-{epsilon}-{graph}-seed-{seed}"
        for epsilon in ("0.5", "8")
        for graph in ("ring", "complete")
        for seed in (3, 1)
    ]
    last = plan.cells[-1]
    assert last.values == {"defense.epsilon": 8, "graph.name": "complete"}
    assert last.config.seed == last.content["seed"] == 1
    assert last.config.defense.options["epsilon"] == 8
    assert last.config.claim[0].epsilon == 8
    assert last.config.graph.name == "complete"
    assert plan.cells[0].config.claim[0].epsilon == 0.5  # no cell changes another


def test_without_axes_and_cells_the_base_is_the_only_cell(tmp_path: Path) -> None:
    [cell] = planned(tmp_path).cells
    assert (cell.name, cell.values, cell.config.seed) == ("seed-0", {}, 0)


def test_an_axis_of_tables_sets_whole_tables_and_keys(tmp_path: Path) -> None:
    defenses = """
[[axis]]
[[axis.values]]
defense = { name = "dp-dpsgd", n_rounds = 3, batch_size = 2, delta = 1e-6 }
"claim.0.text" = "theirs"
[[axis.values]]
defense = { name = "muffliato", n_rounds = 1, batch_size = 4, delta = 1e-5 }
"claim.0.text" = "others"
"""
    plan = planned(tmp_path, EPSILONS, defenses)
    assert plan.axes == ("defense.epsilon", "defense.name")
    first = plan.cells[0].config
    assert first.defense.options["n_rounds"] == 3
    assert first.defense.options["epsilon"] == 0.5  # set inside the table, which comes first
    assert first.defense.options["delta"] == 1e-6
    assert first.claim[0].text == "theirs"
    assert [cell.name for cell in plan.cells][:2] == [
        "epsilon-0.5-dp-dpsgd-seed-0",
        "epsilon-0.5-muffliato-seed-0",
    ]


def test_values_of_one_name_are_told_apart_by_what_differs(tmp_path: Path) -> None:
    values = ", ".join(
        f'{{ name = "dp-dpsgd", n_rounds = {n}, batch_size = 4, epsilon = {e} }}'
        for n, e in ((2, 1.0), (2, 2.0))
    )
    plan = planned(tmp_path, f'[[axis]]\nkey = "defense"\nvalues = [{values}]\n')
    assert plan.axes == ("defense.name", "defense.epsilon")
    assert [cell.group for cell in plan.cells] == ["dp-dpsgd-epsilon-1.0", "dp-dpsgd-epsilon-2.0"]


def test_cells_are_listed_beside_the_grid_or_in_its_place(tmp_path: Path) -> None:
    listed = """
[[cell]]
defense = { name = "d-psgd", n_rounds = 2, batch_size = 4 }
claim = []
[[cell]]
"data.n_agents" = 5
seed = 9
"""
    plan = planned(tmp_path, listed)
    assert [cell.name for cell in plan.cells] == ["d-psgd-seed-0", "n_agents-5-seed-9"]
    assert plan.axes == ("defense.name", "data.n_agents")
    assert plan.cells[0].config.claim == ()
    assert len(planned(tmp_path, GRAPHS, listed).cells) == 4


def test_no_two_audits_have_all_values_alike(tmp_path: Path) -> None:
    listed = '[[cell]]\n"graph.name" = "ring"\n"defense.epsilon" = 4.0\n'
    plan = planned(tmp_path, GRAPHS, listed)
    assert plan.axes == ("graph.name", "defense.epsilon")
    assert [cell.group for cell in plan.cells] == ["ring", "complete", "ring-epsilon-4.0"]
    assert [list(cell.values.values()) for cell in plan.cells] == [
        ["ring", 1.0],
        ["complete", 1.0],
        ["ring", 4.0],
    ]


def test_a_cell_has_the_value_that_its_audit_has(tmp_path: Path) -> None:
    table = '{ name = "dp-dpsgd", n_rounds = 2, batch_size = 4, epsilon = %s }'
    tables = f'[[axis]]\nkey = "defense"\nvalues = [{table % 1.0}, {table % 3.0}]\n'
    listed = '[[cell]]\n"data.n_agents" = 5\n'
    plan = planned(tmp_path, EPSILONS, tables.replace("4,", "8,", 1), listed)
    for cell in plan.cells:  # keys inside tables are set last; what is not set is the base's
        options = cell.config.defense.options
        assert cell.values["defense.epsilon"] == options["epsilon"]
        assert cell.values["defense.batch_size"] == options["batch_size"]
        assert cell.values["data.n_agents"] == cell.config.data.n_agents
    assert len({repr(cell.values) for cell in plan.cells}) == len(plan.cells) == 5


def test_audits_that_differ_in_what_is_taken_away_differ(tmp_path: Path) -> None:
    data = '[[cell]]\ndata = { name = "digits" }\n[[cell]]\n"data.name" = "digits"\n'
    plan = planned(tmp_path, data)  # 10 agents by default, and the 4 of the base
    assert plan.axes == ("data.name", "data.n_agents")
    assert [cell.values["data.n_agents"] for cell in plan.cells] == [10, 4]


def test_audits_that_differ_in_their_seed_alone_are_one_group(tmp_path: Path) -> None:
    plan = planned(tmp_path, GRAPHS, '[[axis]]\nkey = "seed"\nvalues = [1, 2]\n')
    assert plan.axes == ("graph.name",)
    assert [cell.group for cell in plan.cells] == ["ring", "ring", "complete", "complete"]
    assert plan.cells[1].name == "ring-seed-2"


def test_exclusions_leave_out_what_has_all_of_their_values(tmp_path: Path) -> None:
    one = '[[exclude]]\n"graph.name" = "ring"\n"claim.0.epsilon" = 8\n'
    names = [cell.name for cell in planned(tmp_path, EPSILONS, GRAPHS, one).cells]
    assert names == [
        "epsilon-0.5-ring-seed-0",
        "epsilon-0.5-complete-seed-0",
        "epsilon-8-complete-seed-0",
    ]
    unquoted = one.replace('"graph.name"', "graph.name")
    assert [cell.name for cell in planned(tmp_path, EPSILONS, GRAPHS, unquoted).cells] == names
    several = '[[exclude]]\n"graph.name" = ["ring", "star"]\n'
    assert len(planned(tmp_path, EPSILONS, GRAPHS, several).cells) == 2


def test_a_path_of_data_is_relative_to_the_file_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    base = '[data]\npath = "a.npz"\n[graph]\nname = "ring"\n[model]\nname = "logistic"\n'
    base += '[defense]\nname = "dp-dpsgd"\nn_rounds = 1\nbatch_size = 1\nnoise_multiplier = 1.0\n'
    (tmp_path / "below" / "audit.toml").write_text(base)
    path = tmp_path / "bench.toml"
    path.write_text(
        'audit = "below/audit.toml"\n[[cell]]\nseed = 1\n[[cell]]\n"data.path" = "b.npz"\n'
    )
    with pytest.raises(ConfigError) as missing:
        plan_of(BenchmarkFile.read(path), 9)
    assert str(missing.value).replace(f"{tmp_path}/", "").split("\n") == [
        'below/audit.toml: cell "": data.path: below/a.npz: no such file',
        'bench.toml:4: cell[2]: cell "path-b.npz": data.path: b.npz: no such file',
    ]
    for name in ("below/a.npz", "b.npz"):
        (tmp_path / name).touch()
    cells = plan_of(BenchmarkFile.read(path), 9).cells
    assert [c.config.data.path for c in cells] == [tmp_path / "below/a.npz", tmp_path / "b.npz"]


def test_an_axis_over_an_unknown_key_names_the_nearest(
    tmp_path: Path,
) -> None:
    axes = [
        ("graph.nmae", 'an audit has no key "graph.nmae" (did you mean "graph.name"?)'),
        ("grpah.name", 'an audit has no key "grpah" (did you mean "graph"?)'),
        ("defense.epsilom", '"defense.epsilom" (did you mean "defense.epsilon"?)'),
        ("claim.0.epsilon.x", 'an audit has no key "claim[1].epsilon.x"'),
        ("claim[1].epsilom", '"claim[1].epsilom" (did you mean "claim[1].epsilon"?)'),
        ("claim.first.epsilon", '"claim.first.epsilon": expected claim[1], claim[2], ... for its'),
    ]
    parts = [f'[[axis]]\nkey = "{key}"\nvalues = [1]\n' for key, _ in axes]
    lines = refused(tmp_path, *parts)
    assert len(lines) == len(axes)
    for i, (line, (_, said)) in enumerate(zip(lines, axes, strict=True)):
        assert line.startswith(f"bench.toml:{3 * i + 1}: axis[{i + 1}]: "), line
        assert said in line


def test_all_cells_that_are_no_audits_are_listed(tmp_path: Path) -> None:
    many = ", ".join(str(-i) for i in range(1, 16))
    axis = f'[[axis]]\nkey = "defense.epsilon"\nvalues = [1.0, {many}]\n'
    lines = refused(tmp_path, "seeds = [1, 2]\n", axis)
    assert len(lines) == 15
    assert lines[0].startswith(
        'bench.toml:4: axis[1].values[2]: cell "epsilon--1": defense.epsilon: '
    )
    assert lines[0].endswith("0.000001, got -1")
    far = '[[axis]]\nkey = "claim.3.epsilon"\nvalues = [1.0]\n'
    [line] = refused(tmp_path, far)
    assert "there is no claim[4]; the audit has 1 of claim" in line
    broken = '[[axis]]\nkey = "graph.name"\nvalues = ["ring"]\n[[cell]]\n"data.n_agents" = -1\n'
    (line,) = refused(tmp_path, broken)
    assert line.startswith("bench.toml:4: cell[1]: ")


def test_missing_networks_and_data_are_listed_with_cells(tmp_path: Path) -> None:
    models = '[[axis]]\nkey = "model.name"\nvalues = ["mlp", "lenett"]\n'
    data = '[[axis]]\nkey = "data.name"\nvalues = ["digits", "mnits"]\n'
    lines = refused(tmp_path, models, data)
    assert [line.split(" (did")[0] for line in lines] == [
        'bench.toml:6: axis[2].values[2]: cell "mlp-mnits": data.name: no data set "mnits"',
        'bench.toml:3: axis[1].values[2]: cell "lenett-digits": model.name: no network is called '
        '"lenett"',
        'bench.toml:6: axis[2].values[2]: cell "lenett-mnits": data.name: no data set "mnits"',
        'bench.toml:3: axis[1].values[2]: cell "lenett-mnits": model.name: no network is called '
        '"lenett"',
    ]


def test_what_is_wrong_with_the_base_is_said_once(tmp_path: Path) -> None:
    path = written(tmp_path, GRAPHS, EPSILONS)
    path.write_text(path.read_text().replace('"logistic"', '"logistik"').replace("= 2", "= 0"))
    with pytest.raises(ConfigError) as found:
        plan_of(BenchmarkFile.read(path), 9)
    [line] = str(found.value).split("\n")
    assert line.startswith(f"{path}:17: audit.defense.n_rounds: Input should be greater than"), line
    path.write_text(path.read_text().replace("= 0\n", "= 2\n"))
    with pytest.raises(ConfigError) as found:
        plan_of(BenchmarkFile.read(path), 9)
    assert str(found.value).startswith(
        f'{path}:13: audit.model.name: no network is called "logistik"'
    )


def test_more_cells_than_asked_for_are_refused_at_once(tmp_path: Path) -> None:
    [line] = refused(tmp_path, "seeds = [1, 2]\n", EPSILONS, GRAPHS, most=7)
    assert line == (
        "bench.toml: 8 cells are more than the 7 of --max-cells; give a larger --max-cells, or "
        "fewer values"
    )
    assert len(planned(tmp_path, "seeds = [1, 2]\n", EPSILONS, GRAPHS, most=8).cells) == 8
    wide = "".join(
        f'[[axis]]\nkey = "{key}"\nvalues = {list(range(1, 200))}\n'
        for key in ("defense.n_rounds", "defense.batch_size", "data.n_agents", "defense.epsilon")
    )
    assert "1,568,239,201 cells are more than" in refused(tmp_path, wide)[0]


@pytest.mark.parametrize(
    "parts, said",
    [
        (
            [GRAPHS, '[[exclude]]\n"graph.name" = "star"\n'],
            "bench.toml:5: exclude[1]: excludes nothing: no cell has these values",
        ),
        (
            [GRAPHS, '[[exclude]]\n"graph.nam" = "ring"\n'],
            'bench.toml:5: exclude[1]: no axis sets "graph.nam" (did you mean "graph.name"?); known '
            "here: graph.name",
        ),
        ([GRAPHS, '[[exclude]]\n"graph.name" = ["ring", "complete"]\n'], "every cell is excluded"),
        (
            ["seeds = [1]\n", '[[axis]]\nkey = "seed"\nvalues = [1, 2]\n'],
            "sets the seed, and so does seeds; leave one of them out",
        ),
        ([GRAPHS, "[[cell]]\ngraph = {}\n"], 'bench.toml:5: cell[1]: cell "graph": graph: '),
        (
            ['[[axis]]\nkey = "attack.0.trials"\nvalues = [100]\n'],
            'cell "trials-100": attack[1].trials: there is no attack[1]; the audit has 0 of attack',
        ),
        (
            [GRAPHS, '[[cell]]\n"graph.name" = "ring"\n'],
            'bench.toml:5: cell[1]: cell "ring" is the same audit as one before it',
        ),
        (
            [GRAPHS, '[[cell]]\n"defense.learning_rate" = 0.05\n'],
            'bench.toml:5: cell[1]: cell "ring" is the same audit as one before it',
        ),
        (
            ['[[axis]]\nkey = "defense.epsilon"\nvalues = [1, 1.0]\n'],
            'bench.toml:3: axis[1].values[2]: cell "epsilon-1.0" is the same audit as cell "epsilon-1"',
        ),
        (
            [GRAPHS, "[[cell]]\ndata = { n_agents = 4, name = 'digits' }\n"],
            'bench.toml:5: cell[1]: cell "ring" is the same audit as one before it',
        ),
    ],
)
def test_what_cannot_be_meant_is_one_line(parts: list[str], said: str, tmp_path: Path) -> None:
    [line] = refused(tmp_path, *parts)
    assert said in line


def test_a_table_is_named_in_brackets_or_behind_a_dot(tmp_path: Path) -> None:
    """Both are the same key, and a cell has the same name and folder."""
    plans = []
    for key in ("claim[1].epsilon", "claim.0.epsilon"):
        axis = f'[[axis]]\nkey = ["defense.epsilon", "{key}"]\nvalues = [0.5, 8]\n'
        cell = f'[[cell]]\n"{key}" = 3\n'
        gone = f'[[exclude]]\n"{key}" = 8\n'
        plans.append(plan_of(BenchmarkFile.read(written(tmp_path, axis, cell, gone)), 10))
    assert plans[0] == plans[1]
    assert [cell.config.claim[0].epsilon for cell in plans[0].cells] == [0.5, 3]
