"""Values of what is played again, of noise that is examined and of what is counted, by hand."""

import sys
from math import inf
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dpaudit.attack.contract import Part
from dpaudit.errors import ConfigError
from dpaudit.files.finding import Name
from dpaudit.files.threat import ThreatModel
from dpaudit.files.verdict import Verdict
from dpaudit.pipeline import batch_rate, costs, noise_law, processes, provenance, replay, run
from dpaudit.pipeline.jobs import AttackJob, context_of
from dpaudit.pipeline.judge import judge
from dpaudit.pipeline.noise_of_the_run import (
    DIFFERENT,
    NoiseTest,
    _finding,
    _Layers,
    _least,
    _ranges,
    examined_rounds,
    n_examined,
)
from dpaudit.pipeline.rules import Judging
from dpaudit.release import Release
from dpaudit.rng import Streams
from dpaudit.source import hash_of
from dpaudit.statistics.bounds import clopper_pearson
from tests.pipeline.test_judge import CLAIM, EAVESDROPPER, accounted


@pytest.mark.parametrize(
    ("most", "abreast", "device", "share"),
    [
        (None, 1, "cpu", None),
        (100, 1, "cpu", 100),
        (100, 3, "cpu", 33),
        (100, 0, "cpu", 100),
        (None, 3, "cpu", 20),
        (100, 3, "cuda", 100),
        (None, 3, "cuda", None),
        (None, 1, "cuda", None),
    ],
)
def test_audits_side_by_side_share_memory(monkeypatch, most, abreast, device, share) -> None:
    monkeypatch.setattr(processes, "available", lambda: 60)
    assert processes.share_of_memory(most, abreast, device) == share
    monkeypatch.setattr(processes, "available", lambda: None)
    if most is None:
        assert processes.share_of_memory(most, abreast, device) is None


@pytest.mark.parametrize(
    ("one", "other", "gap"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.0], [1.0, -4.0], 1.5),
        ([1.0, -8.0], [1.0, -4.0], 1.0),
        ([1.0], [float("nan")], inf),
        ([1e-9], [0.0], 1e291),
    ],
)
def test_a_gap_is_a_part_of_the_largest_number(one, other, gap) -> None:
    assert replay._gap(torch.tensor(one), torch.tensor(other)) == pytest.approx(gap)


@pytest.mark.parametrize(
    ("count", "played"), [(1, {9}), (2, {1, 9}), (3, {1, 5, 9}), (5, {1, 3, 5, 7, 9}), (99, None)]
)
def test_rounds_are_played_again_from_the_last_on(count: int, played: Any) -> None:
    rounds = list(range(1, 10))
    assert replay._spread(rounds, count) == (played or set(rounds))
    assert replay._spread([4], count) == {4}


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ([3], "round 3"),
        ([3, 3], "round 3"),
        ([3, 1, 2], "rounds 1 to 3"),
        ([300, 5, 4], "rounds 4 to 5, 300"),
        ([1, 3, 5], "rounds 1, 3, 5"),
        ([1, 3, 5, 7], "4 rounds"),
    ],
)
def test_rounds_are_said_in_few_pieces(numbers: list[int], said: str) -> None:
    assert _ranges(numbers) == said


@pytest.mark.parametrize("n_rounds", [1, 2, 3, 5, 14, 15, 16, 400])
def test_rounds_that_are_examined_are_spread_over_the_run(n_rounds: int) -> None:
    found = examined_rounds(n_rounds, Streams(1))
    assert len(found) == n_examined(n_rounds) == min(n_rounds, 15)
    assert found[0] == 1
    assert found[-1] == n_rounds
    assert list(found) == sorted(set(found))
    if n_rounds == 400:  # one of each eleventh of rounds 3 to 398
        parts = np.array_split(np.arange(3, 399), 11)
        assert all(k in part for k, part in zip(found[2:-2], parts, strict=True))


def test_the_least_of_no_p_values_is_one() -> None:
    assert _least(np.array([0.3, 0.1, 0.2])) == (0.1, 1)
    assert _least(np.array([])) == (1.0, 0)


def test_coordinates_are_called_by_their_layers() -> None:
    setting: Any = SimpleNamespace(d=9, layers=(("a", 3), ("b", 6)))
    layers = _Layers(setting, 9)
    assert layers.parts == [("a", slice(0, 3)), ("b", slice(3, 9))]
    assert layers.named([2]) == "coordinate 2 (a)"
    assert layers.named([2, 3]) == "coordinates 2 to 3 (a, b)"
    assert layers.named([3, 8]) == "2 of coordinates 3 to 8 (b)"
    assert _Layers(setting, 8).parts == []


@pytest.mark.parametrize(
    ("p", "among", "verdict"),
    [(0.9e-6, 1, Verdict.UNSUPPORTED), (0.9e-6, 2, None), (0.4e-6, 2, Verdict.UNSUPPORTED)],
)
def test_noise_is_accused_by_all_tests_together(p, among, verdict) -> None:
    tests = [NoiseTest(p, 1, "x", (3,), "says"), NoiseTest(0.5, among - 1, "y", (4,), "other")]
    found = _finding(tests[:among], 80, (), ("left",))
    assert found.verdict is verdict
    assert found.metrics[Name.P_VALUE].value == pytest.approx(among * p)
    assert (found.message, found.rounds) == (("x", (3,)) if verdict else (None, ()))
    assert found.not_examined == ("left",)
    assert _finding([], 0, (), ()).metrics == {}
    assert DIFFERENT == noise_law.DIFFERENT


def release(multiplier: float, family: Any = "gaussian", count: int = 1) -> Release:
    return Release(family=family, noise_multiplier=multiplier, count=count)


@pytest.mark.parametrize(
    ("declared", "sampling", "records"),
    [
        ([release(3.0)], "poisson", 3),
        ([release(3.0, count=9)], "poisson", 1),
        ([release(9.0)], "poisson", 5),  # all that the victim holds
        ([release(9.0)], "fixed", 4),  # all of a batch
        ([release(0.2)], "poisson", 1),
        ([release(3.0, "laplace")], "poisson", 0),
    ],
)
def test_as_many_records_as_hide_beside_the_noise(declared, sampling, records) -> None:
    game: Any = SimpleNamespace(
        setting=SimpleNamespace(sizes=(1, 5)), sampling=sampling,
        defense=SimpleNamespace(batch_size=4),
    )  # fmt: skip
    assert noise_law._records(tuple(declared), game, 1) == records
    game.setting.sizes = (1, 50)
    game.defense.batch_size = 50
    assert noise_law._records((release(90.0),), game, 1) == noise_law.MOST_RECORDS


class Classified:
    """Of three agents, counts of how many batches hold each of their records."""

    def __init__(self, counts: list[list[int]]) -> None:
        self.counts = counts

    def uses(self, streams: Any, k: int, size: int, how: str, trials: int) -> tuple[Tensor, Tensor]:
        there = torch.tensor([True, True, True, True, False])
        return torch.tensor(self.counts).repeat(trials, 1), there


@pytest.mark.parametrize(
    ("drawing", "counts", "value", "exact"),
    [
        ("fixed", [1, 0, 1, 0, 7], 1.0, True),
        ("fixed", [1, 1, 1, 0, 7], 1.5, False),
        ("fixed", [2, 0, 0, 0, 0], 1.0, False),
        ("poisson", [1, 1, 1, 0, 0], 1.5, None),
    ],
)
def test_batches_hold_as_many_records_as_they_should(
    monkeypatch, drawing, counts, value, exact
) -> None:
    monkeypatch.setattr(batch_rate, "Classification", Classified)
    monkeypatch.setattr(batch_rate, "COUNTED", 40)  # ten trials of four records
    prepared: Any = SimpleNamespace(
        learned=SimpleNamespace(problem=Classified([counts])), streams=None,
        defense=SimpleNamespace(batch_size=1, drawing=drawing),
        setting=SimpleNamespace(sizes=(2, 2)),
    )  # fmt: skip
    found = batch_rate.counted_rate(prepared)
    assert found is not None
    assert found.value == pytest.approx(value)
    assert found.n == 40
    if exact is None:  # 30 of 40, where 20 are expected
        high = float(clopper_pearson(30, 40, 0.025))
        low = 1 - float(clopper_pearson(10, 40, 0.025))
        assert (found.low, found.high) == (pytest.approx(2 * low), pytest.approx(2 * high))
    else:
        assert (found.low, found.high) == ((1.0, 1.0) if exact else (0.0, inf))
    prepared.learned.problem = None
    assert batch_rate.counted_rate(prepared) is None


@pytest.mark.parametrize(
    ("steps", "seconds"),
    [([], None), ([(0.5, 1, 10)], None), ([(0.25, 2, 10), (0.75, 4, 10)], 0.75 + 0.25 * 6)],
)
def test_the_time_of_an_attack_follows_from_its_steps(monkeypatch, steps, seconds) -> None:
    times = iter([0.0, *(at for at, _, _ in steps), 9.0])
    monkeypatch.setattr(costs.time, "perf_counter", lambda: next(times))

    def measure(context: Any, threat_model: Any, on_step: Any) -> None:
        for _, done, total in steps:
            on_step(done, total)
        raise ValueError

    job: Any = SimpleNamespace(attack=SimpleNamespace(measure=measure), threat_model=None)
    assert costs._seconds(job, None) == seconds  # type: ignore[arg-type]


def test_a_premise_is_said_unless_nothing_is_judged() -> None:
    own = Judging(0, CLAIM, EAVESDROPPER, accounted(1.0, 1.5), (), premise="It is assumed.")
    [said] = judge([own], [])
    assert said.reason.endswith("It is assumed.")
    [unjudged] = judge([own._replace(unjudged="its sampling is not known")], [])
    assert "It is assumed." not in unjudged.reason


@pytest.mark.parametrize(
    ("recorded", "said"),
    [((), replay.NO_ROUND), (("defense",), None), (("initial", "defense"), None)],
)
def test_rounds_of_any_world_are_played_again(monkeypatch, recorded, said) -> None:
    class Run:
        def __init__(self, path: Any) -> None:
            pass

        def recorded(self) -> dict[str, Any]:
            return {}

        def transcript(self, world: str, device: str) -> Any:
            return SimpleNamespace(rounds={1: {}} if world in recorded else {})

    prepared = SimpleNamespace(learned=SimpleNamespace(fingerprint="f"))
    monkeypatch.setattr(replay, "RunDirectory", Run)
    monkeypatch.setattr(replay, "WORLDS", ("defense", "initial"))
    monkeypatch.setattr(replay, "_config", lambda *_: SimpleNamespace(model_dump=lambda mode: {}))
    monkeypatch.setattr(replay, "prepare", lambda *_: prepared)
    monkeypatch.setattr(replay, "_is_same", lambda *_: True)
    monkeypatch.setattr(replay, "_differences", lambda p, run, world, *_: iter([world]))
    result: Any = SimpleNamespace(config={}, provenance=SimpleNamespace(data_fingerprint="f"))
    runtime: Any = SimpleNamespace(device="cpu")
    path: Any = None
    found: Any = replay.replay(path, result, 3, runtime)
    assert found == ["defense", "initial"] if said is None else [f.what for f in found] == [said]


@pytest.mark.parametrize(
    ("values", "chosen"),
    [((0.0, 0.0, 0.0), 0), ((0.0, 0.5, 0.4), 1), ((0.1, 0.5, 3.0), 2), ((2.0, 1.0, 2.0), 0)],
)
def test_the_score_that_shows_most_elsewhere_is_counted(monkeypatch, values, chosen) -> None:
    """A score is its number; what it gives for samples says which of them it was given."""
    played: list[tuple[int, str]] = []

    infinite: list[str] = []
    shifted: list[Any] = []

    def sample(n: int, what: str, places: Any, victim: int, there: float) -> list[np.ndarray]:
        played.append((n, what))
        if any(name in what for name in infinite):
            return [np.array([[there], [inf]])]
        return [np.full((2, 1), there + (10 if "counted" in what else 0))]

    def family(one: Any, other: Any, alpha: float, choosing: Any) -> Any:
        i, of_one = one
        assert choosing == ((i, 0.0), (i, 1.0))
        assert of_one == other[1] - 1
        return SimpleNamespace(value=values[i], fp=(i, of_one), fn=0, n0=1, n1=1)

    def score(i: int) -> Any:
        return lambda samples: (i, float(samples[0, 0]))

    def shifts(silent: Any, moves: Any) -> Any:
        shifted.append([move.tolist() for move in moves])
        return iter([score(0), score(1)])

    monkeypatch.setattr(noise_law, "replace", lambda game, victim: game)
    monkeypatch.setattr(noise_law, "declared_of_a_round", lambda *_: (release(2.0, "laplace"),))
    monkeypatch.setattr(noise_law, "scores_of_a_shift", shifts)
    monkeypatch.setattr(noise_law, "score_of_edges", lambda *_: score(2))
    monkeypatch.setattr(noise_law, "family_from_scores", family)
    monkeypatch.setattr(noise_law, "noise_p_value", lambda *_: 0.25)
    round: Any = SimpleNamespace(plays=400, sample=sample)
    game: Any = SimpleNamespace(setting=SimpleNamespace(sizes=(3, 3)))
    place: Any = SimpleNamespace(sender=1, message="x")
    tested = noise_law.LawTest(place, 1, 0.5, "")
    found = noise_law._record_test(round, game, tested, np.full((5, 1), 0.25))
    assert shifted == [[[-0.25], [0.75]]]
    assert found is not None
    assert found.counts == ((chosen, 10.0), 0, 1, 1)
    assert (found.p, found.records, found.adjacency) == (0.25, 0, "add-remove")
    assert played == [
        (n, f"{name} {there:g} of x")
        for n, name in ((25, "fitting"), (25, "choosing"), (100, "counted"))
        for there in (0.0, 1.0)
    ]
    for name in ("fitting 0", "choosing 1", "counted 1"):
        infinite[:] = [name]
        assert noise_law._record_test(round, game, tested, np.full((5, 1), 0.25)) is None
    infinite.clear()
    assert noise_law._record_test(round, game, tested, np.array([[0.25], [inf]])) is None


@pytest.mark.parametrize(("messages", "ends"), [({}, None), ({3: ("x",), 5: ("x",)}, 5)])
def test_rounds_are_recorded_up_to_the_last_that_is_read(monkeypatch, messages, ends) -> None:
    done: list[int] = []

    def train(defense: Any, *given: Any) -> None:
        assert given[4:6] == ("run", "defense")
        for k in range(1, 10):
            done.append(k)
            given[-1](k, 9)

    monkeypatch.setattr(costs, "recording_for", lambda _: SimpleNamespace(messages=messages))
    monkeypatch.setattr(costs, "train", train)
    prepared: Any = SimpleNamespace(
        learned=SimpleNamespace(problem=None), setting=None, streams=None, defense=None
    )
    costs._record(prepared, "run")  # type: ignore[arg-type]
    assert done == list(range(1, (ends or 0) + 1))


def edited(monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], **changed: Any) -> Any:
    """What is taken of a config.toml that differs from the run in these keys."""
    recorded = {"seed": 3, "data": {"path": "there", "n": 1}, "model": {"fix": 1}, "attack": []}
    attacks = [{"name": "a"}, {"name": "b"}]
    now = {**recorded, "data": {"path": "here", "n": 1}, "attack": attacks, **changed}

    def from_toml(path: Path, seed: int, fixed: bool) -> Any:
        assert (path, seed, fixed) == (Path("out/config.toml"), 3, True)
        of = [SimpleNamespace(name=attack["name"]) for attack in attacks]
        return SimpleNamespace(attack=of, model_dump=lambda mode: now)

    reader = SimpleNamespace(from_toml=from_toml, from_dict=lambda given: given)
    monkeypatch.setattr(run, "AuditConfig", reader)
    found = run._edited(Path("out"), recorded, names)
    assert found == {**recorded, "attack": found["attack"]}  # type: ignore[index, comparison-overlap]
    return found["attack"]  # type: ignore[index]


def test_attacks_alone_may_change_after_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert edited(monkeypatch, ()) == [{"name": "a"}, {"name": "b"}]
    assert edited(monkeypatch, ("b",)) == [{"name": "b"}]
    with pytest.raises(ConfigError, match='no attack "c"'):
        edited(monkeypatch, ("a", "c"))
    for changed in ({"seed": 4}, {"data": {"path": "there", "n": 2}}, {"model": {}}):
        with pytest.raises(ConfigError, match=f"{next(iter(changed))} changed since the run"):
            edited(monkeypatch, (), **changed)


@pytest.mark.parametrize(
    ("sent", "exact", "said"),
    [
        ([[1.0, 2.0]], True, None),
        ([[1.0, 2.0 + 1e-6]], True, "x is not what is sent again, bit for bit"),
        ([[1.0, 2.0 + 1e-6]], False, None),
        ([[1.0, 2.0 + 1e-2]], False, "x is not what is sent again, to 0.001"),
        ([[1.0, 2.0], [1.0, 2.0]], False, "no such message is sent: x"),
        ([[1, 2]], False, "no such message is sent: x"),
        (None, False, "no such message is sent: x"),
    ],
)
def test_what_is_sent_again_has_the_shape_that_was_recorded(monkeypatch, sent, exact, said) -> None:
    monkeypatch.setattr(replay, "tensors_of", lambda messages: messages)
    recorded: Any = SimpleNamespace(read_messages=lambda *_: {"x": torch.tensor([[1.0, 2.0]])})
    again: Any = {"y": torch.ones(1)} | ({} if sent is None else {"x": torch.tensor(sent)})
    found = list(replay._compared(recorded, "defense", 3, 8, again, exact))
    assert len(found) == (said is not None)
    for flaw in found:
        assert flaw.where == "transcript/defense, round 3, batch size 8"
        assert flaw.what.startswith(said or "")


def test_code_of_a_plugin_is_that_of_its_module(tmp_path: Path, monkeypatch) -> None:
    def code(*names: str) -> dict[str, str]:
        return provenance.code_of(*(type("Own", (), {"__module__": name}) for name in names))

    paths = [tmp_path / "one.py", tmp_path / "other.py"]
    for path in paths:
        path.write_text("A = 1")
        module = ModuleType(path.stem)
        module.__file__ = str(path)
        monkeypatch.setitem(sys.modules, path.stem, module)
    both, none = code("one", "other"), code("missing")
    assert both["plug-ins"] == hash_of(paths) == code("one", "missing", "one", "other")["plug-ins"]
    assert none["plug-ins"] == hash_of([])
    assert {**both, "plug-ins": ""} == {**none, "plug-ins": ""}


@pytest.mark.parametrize(("index", "place"), [(None, 2), (0, 0), (1, 1)])
def test_attacks_of_every_audit_stand_after_those_of_the_config(index, place) -> None:
    config = SimpleNamespace(attack=("a", "b"), claim=("claim",), seed=7)
    streams = SimpleNamespace(child=lambda *names: names)
    prepared: Any = SimpleNamespace(
        config=config, learned=SimpleNamespace(problem="problem"), setting="setting",
        defense="defense", streams=streams,
    )  # fmt: skip
    view, attack, folder = ThreatModel(name="view"), SimpleNamespace(), SimpleNamespace()
    job = AttackJob(index, "topology", attack, view, Part())  # type: ignore[arg-type]
    found: Any = context_of(prepared, folder, job)  # type: ignore[arg-type]
    assert found.index == place
    assert (found.problem, found.setting, found.defense) == ("problem", "setting", "defense")
    assert (found.claims, found.seed, found.name) == (("claim",), 7, "topology")
    assert found.streams == ("measurement", job.stream)
