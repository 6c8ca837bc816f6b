"""Small files with many entries: the work grows as they do, counted and not timed."""

from collections.abc import Iterator
from fractions import Fraction
from math import fsum
from pathlib import Path
from typing import Any

import pytest

from dpaudit.benchmark import grid
from dpaudit.benchmark.drafts import Groups, parts_of
from dpaudit.check import baseline, evidence
from dpaudit.check.evidence import Stake, accumulated, by_history
from dpaudit.files import benchmark_file, claims_file, documents
from dpaudit.files.claims_file import Claims
from dpaudit.files.threat import ThreatModel

N = 500
FEW = 20  # operations for each entry; N of them would be quadratic


class Count:
    """How often values were compared or shown."""

    n = 0

    def text(self, content: str) -> str:
        """A text that counts its comparisons, however its hash is."""
        count = self

        class Counted(str):
            def __eq__(self, other: object) -> bool:
                count.n += 1
                return str.__eq__(self, other)

            def __repr__(self) -> str:
                count.n += 1
                return str.__repr__(self)

            __hash__ = str.__hash__

        return Counted(content)

    def number(self, content: int) -> int:
        count = self

        class Counted(int):
            def __eq__(self, other: object) -> bool:
                count.n += 1
                return int.__eq__(self, other)

            __hash__ = int.__hash__

        return Counted(content)


@pytest.fixture
def count() -> Count:
    return Count()


def test_a_key_that_is_written_twice_is_found_in_one_pass(count: Count) -> None:
    pairs = [(count.text(f"k{i}"), 0) for i in [*range(N), N - 1]]
    with pytest.raises(ValueError, match=f'key "k{N - 1}" is written twice'):
        documents._table(pairs)
    assert count.n <= FEW * N


def test_links_that_are_there_twice_are_found_in_one_pass(count: Count) -> None:
    links = tuple((count.number(i), count.number(i + 1)) for i in range(N))
    model = ThreatModel.model_construct(links=links)
    assert model._every_link_is_one() is model
    assert count.n <= FEW * N


def test_which_links_are_read_is_looked_up(count: Count) -> None:
    links = tuple((count.number(i), count.number(i + 1)) for i in range(N))
    model = ThreatModel(name="a").model_copy(update={"links": links})
    assert all(model.sees(i, i + 1) and not model.sees(i + 1, i) for i in range(N))
    assert count.n <= FEW * N
    assert model == ThreatModel(name="a").model_copy(update={"links": links})


def test_cells_that_are_there_twice_are_found_in_one_pass(count: Count) -> None:
    tables = tuple({"a": count.text(f"v{i}")} for i in [*range(N), 1])
    [(key, problem)] = benchmark_file._repeated(tables, "cell")
    assert (key, problem.text) == (("cell", N), "is cell[2] again")
    assert count.n <= FEW * N


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"a": 1, "b": [1, {"c": 2}]}, {"b": [1, {"c": 2}], "a": 1.0}, True),
        ({"a": [1, 2]}, {"a": [2, 1]}, False),
        ({"a": {"b": 1}}, {"a": [["b", 1]]}, False),
        ({"a": 1}, {"a": "1"}, False),
    ],
)
def test_hashable_is_equal_where_values_are(one: Any, other: Any, same: bool) -> None:
    assert (one == other) is same
    assert (benchmark_file.hashable(one) == benchmark_file.hashable(other)) is same


def test_values_of_an_axis_are_written_down_once_each(count: Count) -> None:
    keys = [{f"k{i % 7}": count.text(f"v{i}"), "x": i // 2} for i in range(N)]
    parts = parts_of(keys, ("cell",))
    assert len({(part.labels, str(part.setting)) for part in parts}) == N
    assert count.n <= FEW * N


def test_cells_of_many_keys_are_distinguished_by_a_key_of_each() -> None:
    parts = parts_of([{f"k{i}": 1} for i in range(N)], ("cell",))
    assert [part.labels for part in parts] == [(f"k{i}",) for i in range(N)]


def test_groups_split_where_values_differ_or_are_not_there() -> None:
    groups = Groups([{"a": 1, "b": 1}, {"a": 1, "b": 2}, {"a": 2}, {"c": 1}, {"c": 1}])
    found = {key: groups.split(key) for key in groups.keys}
    assert found == {"a": True, "b": True, "c": False}
    assert not groups.split("a")


def test_an_exclusion_does_not_look_at_every_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = ", ".join(map(str, range(1, 101)))
    axis = f'[[axis]]\nkey = "defense.noise_multiplier"\nvalues = [{values}]\n'
    gone = "".join(f'[[exclude]]\n"defense.noise_multiplier" = {i}.0\n' for i in range(2, 101))
    (tmp_path / "audit.toml").write_text("seed = 1\n")
    (tmp_path / "b.toml").write_text(f'audit = "audit.toml"\n{axis}{gone}')
    file = benchmark_file.BenchmarkFile.read(tmp_path / "b.toml")
    axes = [parts_of(axis.settings, ("axis", 0)) for axis in file.benchmark.axis]
    calls = list[object]()
    own = grid.set_by
    monkeypatch.setattr(grid, "set_by", lambda each: calls.append(each) or own(each))
    [left] = grid._grid(file, axes, any_listed=False)
    assert left[0].setting == {"defense.noise_multiplier": 1}
    assert len(calls) <= 100


def test_a_file_is_searched_once_for_the_lines_of_its_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "".join(f"[[cell]]\nkey{i} = 1\n" for i in range(N))
    calls = list[str]()
    own = documents._parts
    monkeypatch.setattr(documents, "_parts", lambda found: calls.append(found) or own(found))
    lines = [documents.line_of(text, ("cell", i, f"key{i}", "inside")) for i in range(N)]
    assert lines == [2 * i + 2 for i in range(N)]
    assert len(calls) <= 2 * N


def test_checks_of_one_name_are_found_in_one_pass(count: Count, tmp_path: Path) -> None:
    (tmp_path / "a.toml").touch()
    checks = Claims.model_validate({"check": [{"name": "c", "audit": "a.toml"}]}).check
    names = [count.text(f"c{i}") for i in [*range(N), 0]]
    every = tuple(checks[0].model_copy(update={"name": name}) for name in names)
    claims = Claims.model_construct(check=every, import_from=None)
    assert len(list(claims_file._cross_checks(claims, tmp_path))) == 1
    assert count.n <= FEW * N


def stakes(n: int, histories: int = 1) -> Iterator[Stake]:
    for i in range(n):
        claim, won = f"claim {i % histories}", (-1) ** i * (0.1 + i)
        yield Stake(check="a", config="b", claim=claim, attack="c", seed=i, log_wealth=won)


def test_evidence_adds_up_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    added = list[int]()

    class Counted(Fraction):
        def __add__(self, other: Fraction) -> "Counted":  # type: ignore[override]
            added.append(1)
            return Counted(Fraction.__add__(self, other))

    monkeypatch.setattr(evidence, "Fraction", Counted)
    every = list(stakes(N))
    found = accumulated(every, every[0].history)
    won = [stake.log_wealth for stake in every]
    assert (found.n, found.log_wealth) == (N, max(fsum(won[: i + 1]) for i in range(N)))
    assert len(added) <= N


def test_evidence_is_exact_and_bounded() -> None:
    won = [1e308, 1e308, -1e308, 1e-300, 0.1]
    every = [
        one.model_copy(update={"log_wealth": x}) for one, x in zip(stakes(5), won, strict=True)
    ]
    assert accumulated(every, every[0].history).log_wealth == pytest.approx(1.797e308, rel=1e-3)
    assert accumulated(every[2:], every[0].history).log_wealth == -1e308


def test_evidence_is_sorted_into_its_histories_once() -> None:
    every = list(stakes(12, histories=3))
    found = by_history(every)
    assert [[s.seed for s in one] for one in found.values()] == [
        [i, i + 3, i + 6, i + 9] for i in range(3)
    ]


def test_labels_of_metrics_that_are_alike_are_counted_on(count: Count) -> None:
    known, alike = dict[str, Any](), dict[str, int]()

    class Looked(dict[str, Any]):
        def __contains__(self, key: object) -> bool:
            count.n += 1
            return dict.__contains__(self, key)

    known = Looked()
    for _ in range(N):
        known[baseline._unique("a", known, alike)] = 0
    assert list(known)[:3] == ["a", "a (2)", "a (3)"]
    assert count.n <= FEW * N
