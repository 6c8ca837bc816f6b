"""Benchmark files that cannot be meant: one line each, with file, line and key."""

from pathlib import Path

import pytest

from dpaudit.errors import ConfigError
from dpaudit.files.benchmark_file import BenchmarkFile, unknown_key
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
