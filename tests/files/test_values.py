"""Values of files on which a verdict or a figure rests, one by one."""

import json
from math import inf
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from pydantic import ValidationError

from dpaudit.errors import ConfigError, DataError, RunError
from dpaudit.files import score_file
from dpaudit.files.claim import Claim, measured_change
from dpaudit.files.dp_event import read_event, write_event
from dpaudit.files.hint import Hint
from dpaudit.files.ledger_file import (
    Budget,
    LedgerEntry,
    PrivacyEvent,
    counted_lines,
    read_ledger,
    to_line,
)
from dpaudit.files.local_training import LocalTraining
from dpaudit.files.mechanism_file import MechanismConfig, MechanismOptions
from dpaudit.files.options import GraphOptions, graph_options, partition_options
from dpaudit.files.published import ExperimentLine, ResultTable, ResultTables, limits
from dpaudit.files.world import DONE, World, draw_key
from dpaudit.release import Release


def sgd(**more: Any) -> LocalTraining:
    return LocalTraining.model_validate({"optimizer": "sgd", "learning_rate": 0.5, **more})


@pytest.mark.parametrize(
    "momentum, nesterov, reached",
    [
        (0.0, False, 1.5),
        (0.5, False, 0.5 * (1 + 1.5 + 1.75)),
        (0.5, True, 0.5 * (1.5 + 1.75 + 1.875)),
    ],
)
def test_momentum_goes_further_in_three_steps(momentum, nesterov, reached) -> None:
    assert sgd(momentum=momentum, nesterov=nesterov).reach(3) == pytest.approx(reached)
    assert sgd(momentum=momentum, nesterov=nesterov).reach(0) == 0.0


def test_local_training_takes_the_options_of_its_optimizer() -> None:
    assert LocalTraining(optimizer="adamw", learning_rate=0.5).reach(4) == 2.0
    plain = sgd()
    assert (plain.momentum, plain.nesterov, plain.weight_decay) == (0.0, False, 0.0)
    assert (plain.epochs, plain.shuffled, plain.betas, plain.eps) == (1, True, (0.9, 0.999), 1e-8)
    outer = [{}, {"outer_momentum": 0.1}, {"outer_learning_rate": 0.7}]
    assert [sgd(**one).has_outer_step for one in outer] == [False, True, True]
    for wrong in ({"nesterov": True}, {"eps": 1e-3}, {"betas": (0.1, 0.2)}, {"momentum": 1.0}):
        with pytest.raises(ValidationError):
            sgd(**wrong)
    with pytest.raises(ValidationError):
        LocalTraining(optimizer="adamw", learning_rate=0.5, momentum=0.0)


@pytest.mark.parametrize(
    "of, said",
    [
        ({"epsilon": 2.0, "delta": 1e-5}, "(2, 1e-05)-DP for the whole run"),
        ({"epsilon": 2.0}, "pure 2-DP for the whole run"),
        ({"mu": 1.5, "scope": "round"}, "1.5-GDP for each round"),
        ({"epsilon": 2.0, "delta": 0.4999, "scope": "message"}, "(2, 0.4999)-DP for each message"),
    ],
)
def test_a_claim_in_one_line(of: Any, said: str) -> None:
    claim = Claim.model_validate({"text": "c", **of})
    assert claim.sentence() == f"c: {said}, add-remove adjacency"


@pytest.mark.parametrize(
    "of",
    [
        *({}, {"epsilon": 1.0, "mu": 1.0}, {"mu": 1.0, "delta": 1e-5}, {"epsilon": 0.0}),
        *({"epsilon": 1.0, "delta": 0.5}, {"epsilon": 1.0, "delta": -0.1}, {"mu": 1.1e6}),
        {"epsilon": True},
    ],
)
def test_a_claim_that_promises_nothing_is_refused(of: Any) -> None:
    with pytest.raises(ValidationError):
        Claim.model_validate({"text": "c", **of})


def test_a_users_records_are_measured_one_by_one() -> None:
    assert measured_change("user") == "add-remove"
    assert measured_change("replace-one") == "replace-one"


def test_an_event_is_repeated_and_sampled_as_it_is_nested(tmp_path: Path) -> None:
    noise = {"class_name": "GaussianDpEvent", "noise_multiplier": 2.0}
    drawn = {"class_name": "SampledWithoutReplacementDpEvent", "event": noise}
    drawn |= {"sample_size": 30, "source_dataset_size": 120}
    thrice = {"class_name": "SelfComposedDpEvent", "count": 3, "event": drawn}
    both = {
        "class_name": "ComposedDpEvent",
        "events": [thrice, {"class_name": "NoOpDpEvent"}, noise],
    }
    twice = {"class_name": "SelfComposedDpEvent", "count": 2, "event": both}
    (path := tmp_path / "event.json").write_text(json.dumps(twice))
    plain = Release(family="gaussian", noise_multiplier=2.0, count=2)
    sampled = {"sampling": "fixed", "sampling_rate": 0.25, "count": 6}
    assert read_event(path) == [plain.model_copy(update=sampled), plain]


@pytest.mark.parametrize("n, is_read", [(0, False), (1, True), (3, True), (4, False)])
def test_an_event_holds_some_releases(n: int, is_read: bool, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("dpaudit.files.dp_event.MOST_EVENTS", 3)
    one = Release(family="gaussian", noise_multiplier=2.0)
    write_event(path := tmp_path / "event.json", [one] * n)
    if is_read:
        assert read_event(path) == [one] * n
        return
    with pytest.raises(ConfigError, match=f"expected 1 to 3 releases, got {n}"):
        read_event(path)


@pytest.mark.parametrize(
    "scores, is_read",
    [
        (np.zeros(2), True),
        (np.zeros(4), True),
        (np.zeros(1), False),
        (np.zeros(5), False),
        (np.zeros((2, 2)), False),
        (np.array([1, -2], "int16"), True),
        (np.array([1, 2], "uint8"), True),
        (np.array([1, 2], "float32"), True),
        (np.array([1, 2], "float16"), False),
        (np.array([1, 2], "longdouble"), False),
        (np.array([True, False]), False),
        (np.array([np.inf, -np.inf]), True),
        (np.array([0.0, np.nan]), False),
    ],
)
def test_scores_are_a_list_of_some_numbers(scores, is_read, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(score_file, "MOST", 4)
    np.save(path := tmp_path / "scores.npy", scores)
    if is_read:
        assert score_file.read_scores(path).tolist() == scores.tolist()
        return
    with pytest.raises(DataError):
        score_file.read_scores(path)


def test_a_place_is_written_as_editors_read_it() -> None:
    assert Hint("a.py", 3, 7, "DPA201", "m").place == "a.py:3:7"
    assert Hint("a.ipynb", 3, 7, "DPA201", "m", 2).place == "a.ipynb:cell 2:3:7"


@pytest.mark.parametrize(
    "quantity, ends",
    [
        ("accuracy, %", (0.0, 100.0)),
        ("loss", (0.0, inf)),
        ("PSNR, dB", (-inf, inf)),
        ("information, %", (-inf, inf)),
    ],
)
def test_a_quantity_has_limits(quantity: str, ends: tuple[float, float]) -> None:
    assert limits(quantity) == ends
    assert ExperimentLine(labels={}, quantity=quantity).interval == "student"


def test_rows_of_tables_have_the_columns_of_all() -> None:
    tables = (
        ResultTable(title="one", columns=("a",), rows=((1.0,), (2.0,))),
        ResultTable(title="two", columns=("b",), rows=(("x",),)),
    )
    assert list(ResultTables(title="t", tables=tables).rows) == [
        {"table": "one", "a": 1.0, "b": None},
        {"table": "one", "a": 2.0, "b": None},
        {"table": "two", "a": None, "b": "x"},
    ]


GRAPHS = [g.model_fields["name"].annotation for g in get_args(get_args(GraphOptions)[0])]
GRAPHS = [name for names in GRAPHS for name in get_args(names)]
LINE = to_line(LedgerEntry(event=PrivacyEvent(epsilon=1.0), note="é"))


@pytest.mark.parametrize(
    "rest, n, is_cut_off",
    [(b"", 1, False), (LINE[:-1], 2, False), (LINE[:-2], 1, True), (b"\xff", 1, True)],
)
def test_a_last_line_counts_if_it_is_whole(rest: bytes, n: int, is_cut_off: bool) -> None:
    first = to_line(Budget(epsilon=2.0, delta=0.0))
    counted = counted_lines(first + LINE + rest)
    assert (counted.lines.count(b"\n"), counted.is_cut_off) == (1 + n, is_cut_off)
    budget, entries = read_ledger(first + LINE + rest, Path("l"))
    assert (budget.epsilon, budget.version, budget.adjacency) == (2.0, 1, "add-remove")
    assert entries == [LedgerEntry(event=PrivacyEvent(epsilon=1.0), note="é")] * n


def test_a_budget_is_written_without_what_it_has_not() -> None:
    found = json.loads(to_line(Budget(epsilon=2.0, delta=0.0)))
    assert found == {
        "format": "dpaudit-ledger", "version": 1, "epsilon": 2.0, "delta": 0.0,
        "adjacency": "add-remove", "composition": "fixed",
    }  # fmt: skip


@pytest.mark.parametrize(
    "lines, said",
    [
        (b"", "l:1: not a line of a ledger: "),
        (b"{}\n", "l:1: not a line of a ledger: epsilon: Field required, got {}"),
        (b'{"epsilon": 1, "delta": 0}\n{}\n', "l:2: not a line of a ledger: expected either rel"),
        (b'{"epsilon": 1, "delta": 0}\n' + LINE + b"[\n", "l:3: not a line of a ledger: "),
    ],
)
def test_a_line_that_is_none_of_a_ledger_is_named(lines: bytes, said: str) -> None:
    with pytest.raises(RunError) as refused:
        read_ledger(lines, Path("l"))
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize(
    "of, is_one",
    [
        ({"composition": "renyi-filter", "order": 2.0}, True),
        ({"composition": "renyi-filter"}, False),
        ({"composition": "gaussian-filter", "order": 2.0}, False),
        ({"composition": "gaussian-filter"}, True),
        ({"composition": "gaussian-filter", "delta": 0.0}, False),
        ({"delta": 0.0}, True),
        ({"order": 2.0}, False),
    ],
)
def test_a_filter_has_what_it_needs(of: Any, is_one: bool) -> None:
    given = {"epsilon": 1.0, "delta": 0.1, **of}
    if is_one:
        assert Budget.model_validate(given)
        return
    with pytest.raises(ValidationError):
        Budget.model_validate(given)


def test_which_graphs_are_drawn_and_in_which_rounds() -> None:
    drawn = {graph_options(name).name for name in GRAPHS if graph_options(name).is_random}
    fixed = {"directed-ring", "bipartite", "hub2", "complete", "exponential", "half-exponential"}
    assert drawn == set(GRAPHS) - fixed - {"ring", "path", "star", "d-out"}
    redrawn = [graph_options("erdos-renyi", redrawn=True), graph_options("pairwise")]
    redrawn.append(graph_options("server", participation=0.5))
    assert all(graph.is_redrawn for graph in redrawn)
    assert not any(graph_options(n).is_redrawn for n in set(GRAPHS) - {"pairwise"})


def test_weather_is_any_loss_delay_or_absence() -> None:
    for one in ({"loss": 0.1}, {"delay": 1}, {"churn": 0.1}, {"stragglers": 0.1}):
        assert graph_options("ring", **one).has_weather
        assert set(graph_options("ring", **one).model_dump()) == {"name", "lazy", *one}
    assert not graph_options("ring").has_weather
    late = graph_options("ring", delay=3)
    assert [late.never_arrives(n) is None for n in (3, 4)] == [False, True]
    assert graph_options("ring").never_arrives(0) is None


@pytest.mark.parametrize(
    "make, name, options, said",
    [
        (graph_options, "d-out", {"d": 1}, 'graph "d-out": d: Input should be greater than or eq'),
        (graph_options, "rign", {}, 'graph "rign": there is none (did you mean "ring"?); known: r'),
        (graph_options, "ring", {"loss": 1.0}, 'graph "ring": loss: Input should be less than 1'),
        (partition_options, "by-class", {"shards": 0}, 'partition "by-class": shards: Input sh'),
        (partition_options, "dirichlet", {}, 'partition "dirichlet": alpha: Field required'),
    ],
)
def test_an_option_out_of_range_is_named(make, name, options, said) -> None:
    with pytest.raises(ConfigError) as refused:
        make(name, **options)
    assert str(refused.value).startswith(said)


def function(**changed: Any) -> MechanismOptions:
    return MechanismOptions.model_validate({"function": "a:f", "shape": (3,), **changed})


def test_shapes_of_a_functions_values() -> None:
    one, many = function(), function(shape=((2, 3), (4,)))
    assert [(f.is_list, f.shapes, f.output_shapes, f.returns_list) for f in (one, many)] == [
        (False, ((3,),), ((3,),), False),
        (True, ((2, 3), (4,)), ((2, 3), (4,)), True),
    ]
    other = function(shape=((2,), (3,)), output_shape=(5,))
    assert (other.output_shapes, other.returns_list) == (((5,),), False)
    assert function(output_shape=((5,), (6,))).returns_list
    assert (one.calls, one.runs, one.records, one.own_randomness) == (1, 20_000, False, False)
    assert (one.norm, one.dtype, one.seconds, function(shape=()).shapes) == (
        *("l2", "float64", 600.0, ((),)),
    )


@pytest.mark.parametrize(
    "of, is_one",
    [
        ({"shape": (0, 3)}, False),
        ({"shape": (10**7,)}, True),
        ({"shape": ((10**7,), (1,))}, False),
        ({"low": 0.0, "high": 0.0}, False),
        ({"low": 0.0, "high": 1.0}, True),
        ({"low": 0.0}, True),
        ({"high": 0.0}, True),
        ({"records": True}, True),
        ({"records": True, "sensitivity": 1.0}, False),
        ({"records": True, "shape": ((3,), (2,))}, False),
        ({"records": True, "shape": ()}, False),
        ({"sensitivity": 1.0, "shape": ()}, True),
        ({"dtype": "bfloat16"}, False),
        ({"dtype": "bfloat16", "library": "torch"}, True),
    ],
)
def test_a_function_that_cannot_be_audited_is_refused(of: Any, is_one: bool) -> None:
    if is_one:
        assert function(**of)
        return
    with pytest.raises(ValidationError):
        function(**of)


def test_the_reader_of_a_function_is_the_adversary(tmp_path: Path) -> None:
    claim = {"text": "c", "epsilon": 1.0}
    table: Any = {"mechanism": {"function": "a:f", "shape": [3]}, "claim": [claim]}
    path = tmp_path / "m.toml"
    assert MechanismConfig.from_table(table, path, "").seed == 0
    for changed, said in (
        ({"adjacency": "user"}, "claim[1].adjacency: a function is audited on single values"),
        ({"threat_model": "a"}, "claim[1].threat_model: whoever reads the output is the adv"),
    ):
        with pytest.raises(ConfigError) as refused:
            MechanismConfig.from_table({**table, "claim": [claim | changed]}, path, "")
        assert str(refused.value).startswith(f"{path}: {said}")
    with pytest.raises(ConfigError, match="threat_model: whoever reads"):
        MechanismConfig.from_table({**table, "threat_model": [{"name": "a"}]}, path, "")
    path.write_text('seed = 3\nclaim = [{ text = "c", epsilon = 1 }]\n'
                    'mechanism = { function = "a:f", shape = [3] }\n')  # fmt: skip
    assert [MechanismConfig.from_toml(path, seed).seed for seed in (None, 0, 5)] == [3, 0, 5]


def test_a_program_is_over_when_each_agent_has_sent_its_last(tmp_path: Path) -> None:
    world = World(out=tmp_path, last={0: 2, 3: 1})
    (tmp_path / f"{DONE}0").touch()
    assert [w.is_over for w in (world, World(out=tmp_path))] == [False, False]
    (tmp_path / f"{DONE}3").touch()
    assert world.is_over
    assert (world.seed, world.noise_seed, world.sign_seed, world.keeps_records) == (0, 0, 0, False)
    assert draw_key(3, 0, "x") == "3/0/x"


@pytest.mark.parametrize(
    "event",
    [
        {"class_name": "SelfComposedDpEvent", "count": 2, "event": "x"},
        {"class_name": "ComposedDpEvent", "events": [3]},
        {"class_name": "ComposedDpEvent"},
        {"class_name": "ComposedDpEvent", "events": []},
        {"class_name": "UnsupportedDpEvent"},
        {"class_name": "GaussianDpEvent", "noise_multiplier": -1.0},
        {"class_name": "PoissonSampledDpEvent", "sampling_probability": 0.5, "event":
         {"class_name": "PoissonSampledDpEvent", "sampling_probability": 0.5, "event":
          {"class_name": "GaussianDpEvent", "noise_multiplier": 1.0}}},
        {"class_name": "SampledWithoutReplacementDpEvent", "sample_size": 1,
         "source_dataset_size": 0, "event": {"class_name": "NoOpDpEvent"}},
    ],
)  # fmt: skip
def test_an_event_that_is_none_is_refused(event: Any, tmp_path: Path) -> None:
    (path := tmp_path / "event.json").write_text(json.dumps(event))
    with pytest.raises(ConfigError, match="not a DpEvent: "):
        read_event(path)


def test_events_are_written_as_they_were_drawn(tmp_path: Path) -> None:
    poisson = {"sampling": "poisson", "sampling_rate": 0.1, "count": 3}
    fixed = {"sampling": "fixed", "sampling_rate": 0.25, "count": 2}
    one = Release(family="laplace", noise_multiplier=2.0)
    releases = [one, one.model_copy(update=poisson), one.model_copy(update=fixed)]
    write_event(path := tmp_path / "event.json", releases, records=8)
    assert read_event(path) == releases
    text = path.read_text()
    assert '\n  "module_name": "dp_accounting.dp_event",' in text
    assert '"sample_size": 2' in text
    with pytest.raises(ConfigError, match="needs the number of records"):
        write_event(path, releases)
