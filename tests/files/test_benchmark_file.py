"""Benchmark files that cannot be meant: one line each, with file, line and key."""

from pathlib import Path

import pytest

from dpaudit.errors import ConfigError
from dpaudit.files.benchmark_file import (
    Axis,
    BenchmarkFile,
    called,
    hashable,
    path_of,
    unknown_key,
    with_absolute_data,
)
from tests.benchmark.small_benchmarks import BASE, GRAPHS


@pytest.mark.parametrize(
    "text, said",
    [
        (GRAPHS, "bench.toml: audit: Field required"),
        ('audit = "absent.toml"\n', 'bench.toml:1: audit: there is no file "absent.toml"'),
        (
            '[audit]\n[audit.program]\nrun = ["a.py"]\n',
            "bench.toml:2: audit.program: a benchmark compares defenses; audit a program by itself",
        ),
        (
            f'[axis]\nkey = "seed"\nvalues = [1]\n{BASE}',
            "bench.toml:1: axis: expected an array, whose tables begin with [[axis]]",
        ),
        (f"cell = [1]\n{BASE}", "bench.toml:1: cell[1]: expected a table, got 1"),
        (f"axes = 1\n{BASE}", 'bench.toml:1: axes: unknown key (did you mean "axis"?)'),
        (f"seeds = [1, 1]\n{BASE}", "bench.toml:1: seeds: a seed is there twice"),
        (f"seeds = [{2**63}]\n{BASE}", "bench.toml: not valid TOML: an integer has more than 64"),
        (f"[[axis]]\nvalues = [{{}}]\n{BASE}", "bench.toml:1: axis[1]: expected a key, or values"),
        (
            f"seeds = [3]\n[tuning]\nseed = 3\n[[tuning.factor]]\nkeys = ['a']\nvalues = [1]\n{BASE}",
            "bench.toml:3: tuning.seed: the runs that choose would be among those that are audited",
        ),
        (
            f"[tuning]\nseed = 3\n[[tuning.factor]]\nkeys = ['a', 'a']\nvalues = [1]\n{BASE}",
            "bench.toml:1: tuning.factor: a key is there twice",
        ),
        (
            f"[[exclude]]\na = [1, {{ b = 2 }}]\n[[exclude]]\na = [1, {{ b = 2 }}]\n{BASE}",
            "bench.toml:3: exclude[2]: is exclude[1] again",
        ),
        (f"seeds = [-1]\n{BASE}", "bench.toml:1: seeds[1]: Input should be greater than"),
        (f"[[axis]]\nvalues = [1]\n{BASE}", "bench.toml:1: axis[1]: expected a key, or values"),
        (
            f'[[axis]]\nkey = "seed"\nvalues = [2, 2]\n{BASE}',
            "bench.toml:3: axis[1].values: 2 is there twice",
        ),
        (
            f'[[axis]]\nkey = "seed"\nvalues = [1]\n[[axis]]\nvalues = [{{ seed = 2 }}]\n{BASE}',
            'bench.toml:4: axis[2]: sets "seed" in all its values, as axis[1] does; expected one',
        ),
        (
            f"[[cell]]\nseed = 1\n[[cell]]\nseed = 1\n{BASE}",
            "bench.toml:3: cell[2]: is cell[1] again",
        ),
    ],
)
def test_a_line_for_each_problem(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "bench.toml").write_text(text)
    with pytest.raises(ConfigError) as found:
        BenchmarkFile.read(tmp_path / "bench.toml")
    [line] = str(found.value).replace(f"{tmp_path}/", "").split("\n")
    assert line.startswith(said)


def test_a_number_is_not_the_truth_value_that_equals_it(tmp_path: Path) -> None:
    path = tmp_path / "bench.toml"
    path.write_text(f'[[axis]]\nkey = "defense.align_noise"\nvalues = [1, true]\n{BASE}')
    (axis,) = BenchmarkFile.read(path).benchmark.axis
    assert [setting["defense.align_noise"] for setting in axis.settings] == [1, True]


def test_a_benchmark_is_called_as_it_says_or_as_its_file(tmp_path: Path) -> None:
    path = tmp_path / "bench.toml"
    path.write_text(BASE)
    assert BenchmarkFile.read(path).name == "bench"
    path.write_text(f'name = "ours"\n{BASE}')
    assert BenchmarkFile.read(path).name == "ours"


@pytest.mark.parametrize(
    "path, said",
    [
        ("seed", None),
        ("defense.epsilon", None),
        ("defense.name", None),
        ("claim.0.epsilon", None),
        ("claim.first.epsilon", '"claim.first.epsilon": expected claim[1], claim[2], ... for its'),
        ("defense.epsilom", 'no key "defense.epsilom" (did you mean "defense.epsilon"?); known'),
        ("claim.0.epsilom", 'no key "claim[1].epsilom" (did you mean "claim[1].epsilon"?)'),
        ("sead", 'an audit has no key "sead" (did you mean "seed"?); known here: seed, '),
    ],
)
def test_a_key_that_no_audit_has_is_named_up_to_there(path: str, said: str | None) -> None:
    found = unknown_key(path, {"defense": ("epsilon",)})
    assert found is None if said is None else said in (found or "")


@pytest.mark.parametrize(
    "key, path",
    [
        ("claim[1].epsilon", "claim.0.epsilon"),
        ("attack[12].rounds[3]", "attack.11.rounds.2"),
        ("claim[0].epsilon", "claim[0].epsilon"),  # tables are counted from 1
        ("defense.x2", "defense.x2"),
    ],
)
def test_tables_are_counted_from_1_in_keys_and_from_0_in_paths(key: str, path: str) -> None:
    assert path_of(key) == path
    assert called(path) == key


def test_an_axis_sets_one_key_or_several_or_what_its_tables_say() -> None:
    assert Axis(key="claim[1].mu", values=(1, 2)).settings == [
        {"claim.0.mu": 1},
        {"claim.0.mu": 2},
    ]
    assert Axis(key=("a", "b"), values=(1,)).settings == [{"a": 1, "b": 1}]
    tables = Axis(values=({"a": 1, "b[2]": 2}, {"b[2]": 3, "c": 1}))
    assert tables.settings == [{"a": 1, "b.1": 2}, {"b.1": 3, "c": 1}]
    assert tables.always == ["b.1"]


def test_a_path_of_data_is_relative_to_its_file(tmp_path: Path) -> None:
    there = str((tmp_path / "d.npz").resolve())
    assert with_absolute_data("data.path", "d.npz", tmp_path) == there
    assert with_absolute_data("data", {"path": "d.npz", "n": 1}, tmp_path) == {
        "path": there,
        "n": 1,
    }
    for key, value in (("data", {"name": "d"}), ("defense", {"path": "d"}), ("data.name", "d")):
        assert with_absolute_data(key, value, tmp_path) == value


def test_equal_tables_are_equal_in_any_order() -> None:
    assert hashable({"a": [1, {"b": 2}], "c": 3}) == hashable({"c": 3, "a": (1, {"b": 2})})
    assert hashable([1, 2]) != hashable([2, 1])


@pytest.mark.parametrize("path", ["attack.0.options", "defense.x"])
def test_options_of_unknown_plugins_may_be_any(path: str) -> None:
    assert unknown_key(path, {}) is None
    known = unknown_key(path, {"defense": ["y"], "attack": ["y"]}, suggest=False)
    assert known is not None
    assert known.endswith(f'no key "{called(path)}"; known here: name, y')
