"""How long an audit takes by its estimate: arithmetic with a faked clock, and a real run."""

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dpaudit.files.config import AuditConfig
from dpaudit.pipeline import costs as of_audits
from dpaudit.pipeline.costs import AuditCosts, PartCost, costs_ahead, estimate_costs
from dpaudit.pipeline.jobs import WORLDS, Limit, jobs_of, run_attack, train_world
from dpaudit.pipeline.run import Runtime, prepare, run_audit
from dpaudit.pipeline.workers import one_thread
from dpaudit.training.costs import SOON, Pace, pace_of, seconds_of
from dpaudit.training.run_directory import RunDirectory
from tests.small_audits import digits_config

WITHIN = 5.0  # times what it takes, and that times what it takes: a machine is busy or not
PACE = Pace(0.026, 0.01, 0.1)


def audit(*attacks: dict[str, Any], **defense: Any) -> AuditConfig:
    given = {"n_rounds": 6, "batch_size": 4, "noise_multiplier": 1.0, **defense}
    return digits_config(
        *attacks, model="logistic", n_agents=4, defense={"name": "dp-dpsgd", **given}
    )


@pytest.fixture(autouse=True)
def paced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pace is the same."""
    if "slow" not in request.keywords:
        monkeypatch.setattr("dpaudit.pipeline.costs.pace_of", lambda *given, **named: PACE)


def estimated(config: AuditConfig) -> AuditCosts:
    return estimate_costs(prepare(config, Runtime()), 10**15, timed=True)


def of_times(training: list[float], attacks: dict[str, float | None]) -> AuditCosts:
    worlds = [PartCost(f"training ({i})", 1, None, None, s) for i, s in enumerate(training)]
    parts = [PartCost(name, 1, None, None, s) for name, s in attacks.items()]
    return AuditCosts(worlds, parts, PartCost("report", 1), Limit(None, "", 0))


def ticking(step: float) -> Callable[[], float]:
    """A clock on which everything takes ``step`` seconds."""
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += step
        return now

    return clock


def test_training_takes_its_rounds_and_evaluations() -> None:
    one, twice = (estimated(audit(n_rounds=n)).training for n in (100, 200))
    assert [part.part for part in one] == ["training (defense)", "training (no-defense)"]
    assert [part.seconds for part in one] == pytest.approx([100 * 0.026 + 20 * 0.1] * 2)
    assert [part.seconds for part in twice] == pytest.approx([200 * 0.026 + 20 * 0.1] * 2)


def lines(costs: AuditCosts, cores: int) -> str:
    return "".join(costs.lines(cores))


def test_a_line_has_every_part_and_the_whole_on_these_cores() -> None:
    attacks: dict[str, float | None] = {"one (a)": 60.0, "two (a)": 60.0, "short": 0.4}
    costs = of_times([20.0, 20.0], attacks)
    on_one = "; on one: training (0) 20 s, training (1) 20 s, one (a) 60 s, two (a) 60 s"
    assert lines(costs, 2) == f"about 80 s on 2 cores{on_one}"
    assert lines(costs, 1) == f"about 2.7 min on 1 core{on_one}"
    unknown = lines(of_times([20.0, 20.0], {**attacks, "other": None}), 2)
    assert unknown == f"at least about 80 s on 2 cores{on_one}, other unknown"
    assert lines(of_times([9.0], {"short": 0.4}), 2) == ""  # soon done


def test_parts_of_unknown_memory_are_named_and_counted() -> None:
    unknown = [PartCost(name, 1, unknown="no shape") for name in ("one", "two", "three")]
    said = of_times([1.0], {})._replace(attacks=unknown)
    why = "memory is not known beforehand: no shape"
    assert list(said.lines(1)) == [f"one and 2 more: {why}"]
    assert list(said._replace(attacks=unknown[:1]).lines(1)) == [f"one: {why}"]
    large = PartCost("wide", 10**9)
    assert list(of_times([1.0], {})._replace(report=large).lines(1)) == [
        "wide takes about 1 GB of memory"
    ]


def test_noise_of_the_run_takes_its_plays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds each, and 48 ways of playing each message, with half as much again for the rest."""
    examined = estimated(audit()).attacks[-1].seconds
    rounds = of_audits.n_examined(6)
    assert examined == pytest.approx(rounds * (2 * 0.026 + 1.5 * 48 * 0.01))
    monkeypatch.setattr("dpaudit.training.costs.MOST_EXAMINED", 1000)
    left_out = estimated(audit()).attacks[-1]
    assert (left_out.seconds, left_out.size) == (0.0, of_audits.LEAST)


class Reports:
    """An attack that reports so many of ten steps, on a clock of one tick each."""

    def __init__(self, *steps: int) -> None:
        self.steps = steps

    def measure(self, context: Any, threat_model: Any, on_step: Callable[[int, int], None]) -> None:
        for done in self.steps:
            on_step(done, 10)


@pytest.mark.parametrize(
    "steps, tick, seconds",
    [
        ((1, 2, 3), 0.2, 0.4 + 0.2 * 8),  # two steps are enough: the third is not awaited
        ((4, 6), 0.2, 0.4 + 0.1 * 4),  # each took half of a tick
        ((2, 2), 0.2, 0.4 + 0.2 * 8),  # of the first step nothing but its end is known
        ((1, 2, 3, 4), 0.1, 0.4 + 0.1 * 6),  # so long until they show the time
        ((1,), 0.2, 0.4),  # it ended
        ((), 0.2, 0.2),
    ],
)
def test_an_attack_is_timed_by_its_first_steps(
    monkeypatch: pytest.MonkeyPatch, steps: tuple[int, ...], tick: float, seconds: float
) -> None:
    monkeypatch.setattr(of_audits, "time", SimpleNamespace(perf_counter=ticking(tick)))
    job: Any = SimpleNamespace(attack=Reports(*steps), threat_model=None)
    found = of_audits._seconds(job, None)  # type: ignore[arg-type]
    assert found == pytest.approx(seconds, abs=1e-3)


def test_an_attack_that_reports_no_step_has_no_time() -> None:
    """One that fails neither: the run will say why."""

    def fails(*given: Any) -> None:
        raise given[0]

    for why in (of_audits.Enough(), ValueError()):
        attack = SimpleNamespace(measure=lambda *given, why=why: fails(why))
        job: Any = SimpleNamespace(attack=attack, threat_model=None)
        assert of_audits._seconds(job, None) is None  # type: ignore[arg-type]


def test_jobs_of_one_part_are_added() -> None:
    costs = of_times([1.0], {"a": 2.0, "b": None})
    costs = costs._replace(attacks=[costs.attacks[0], *costs.attacks])
    parts = [("training (0)", 1.0, 1, 1), ("a", 4.0, 1, 2), ("b", None, 1, 1)]
    assert list(costs.by_part()) == parts


@pytest.mark.parametrize(
    ("training", "attack", "short"), [(1.0, 2.0, True), (1.5, 2.5, False), (1.0, None, True)]
)
def test_short_training_starts_no_process(
    training: float, attack: float | None, short: bool
) -> None:
    assert of_times([training] * 2, {"attack": attack}).is_short == short


def test_nothing_is_known_of_attacks_before_they_begin() -> None:
    costs = estimated(audit({"name": "canaries", "canaries": 20}))
    assert [part.seconds is None for part in costs.attacks] == [True, True, True, False]
    assert costs.attacks[0].part == "attack 00 canaries (eavesdropper)"
    assert costs.attacks[-1].part == "noise-of-the-run"


def test_what_cannot_be_timed_is_left_to_the_run_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: object, **named: object) -> Pace:
        raise RuntimeError("a plug-in that cannot be played")

    monkeypatch.setattr("dpaudit.pipeline.costs.pace_of", fails)
    costs = estimated(audit())
    assert costs.seconds(1) is None
    assert not costs.is_short


def test_agents_without_records_have_a_pace_too() -> None:
    sensors = {"name": "sensor-fusion", "n_agents": 4, "sensors": {"m": 3, "p": 2, "scale": 1.0}}
    config = AuditConfig.from_dict(
        {
            "data": sensors,
            "graph": {"name": "ring"},
            "defense": {"name": "dp-dgd", "n_rounds": 4, "epsilon": 1.0},
        }
    )
    prepared = prepare(config, Runtime())
    given = prepared.defenses["defense"], prepared.learned.problem, prepared.setting
    pace = pace_of(*given, prepared.streams, ticking(1e-3))
    assert pace == pytest.approx((1e-3, 1e-3, 1e-3))  # all plays took a tick


@pytest.mark.slow
def test_it_is_said_to_who_listens_and_changes_nothing(tmp_path: Path) -> None:
    config, said = audit(n_rounds=2), list[str]()
    slow = PACE._replace(round=100.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpaudit.pipeline.costs.pace_of", lambda *given, **named: slow)
        told = run_audit(config, tmp_path / "told", Runtime(cores=1), say=said.append)
    untold = run_audit(config, tmp_path / "untold", Runtime(cores=1))
    assert len(said) == 1
    assert "; on one: training (defense) 3.3 min, training (no-defense) 3.3 min, " in said[0]
    assert "noise-of-the-run " in said[0]
    assert told.model_dump(exclude={"timing"}) == untold.model_dump(exclude={"timing"})


def test_what_is_timed_leaves_generators_alone() -> None:
    config = audit({"name": "likelihood-ratio", "trials": 40}, {"name": "sensitivity"})
    prepared, before = prepare(config, Runtime()), torch.get_rng_state()
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpaudit.pipeline.costs.pace_of", _that_draws)
        assert estimate_costs(prepared, 10**15, timed=True).seconds(1)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads


def _that_draws(*given: Any, **named: Any) -> Pace:
    torch.rand(3)
    return pace_of(*given, **named)


def test_a_long_round_is_played_once_with_and_without() -> None:
    prepared, played = prepare(audit(), Runtime()), list[int]()
    defense, problem, setting = prepared.defense, prepared.learned.problem, prepared.setting

    class Counted(type(defense)):  # type: ignore[misc]
        def step(self, state: Any, k: int, *given: Any) -> Any:
            played.append(k)
            return super().step(state, k, *given)

    counted = Counted.model_construct(**dict(defense))
    assert pace_of(counted, problem, setting, prepared.streams, ticking(SOON)) == (SOON,) * 3
    assert len(played) == 2
    assert pace_of(counted, problem, setting, prepared.streams, ticking(1e-3)) < (0.01,) * 3
    assert len(played) == 2 + 4


def test_what_takes_long_is_timed_once() -> None:
    calls = list[int]()
    assert seconds_of(lambda: calls.append(1), ticking(0.5)) == 0.5
    assert len(calls) == 2
    assert seconds_of(lambda: calls.append(1), ticking(2.0)) == 2.0
    assert len(calls) == 3


@pytest.mark.slow
def test_an_audit_takes_about_as_long_as_it_is_said_to(tmp_path: Path) -> None:
    config = audit(
        {"name": "likelihood-ratio", "trials": 4_000, "n_rounds": 20},
        {"name": "sensitivity", "points": 4, "steps": 30, "restarts": 8},
        {"name": "gradient-inversion", "message": "view", "rounds": [5], "batch_sizes": [1],
         "method": "optimised", "objective": "l1", "optimizer": "adam"},
        n_rounds=300,
    )  # fmt: skip
    prepared = prepare(config, Runtime())
    costs = costs_ahead(prepared, 10**15)
    took: list[float] = []
    run_directory = RunDirectory(tmp_path / "run")
    with one_thread(), run_directory.begun("", {}, False) as run:
        for world in WORLDS:
            took.append(_seconds(lambda w=world: train_world(prepared, run, w, _silent)))
        for job in jobs_of(prepared):
            took.append(_seconds(lambda j=job: run_attack(prepared, run, j, "", _silent)))
    for part, real in zip(costs.parts, took, strict=False):  # the noise is not examined here
        assert part.seconds is not None
        assert real / WITHIN <= part.seconds <= real * WITHIN, (costs.parts, took)


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _silent(what: str, done: int, total: int) -> None:
    pass


def test_what_loads_with_the_first_gradient_is_not_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepared = prepare(audit(), Runtime())
    gradients, now = prepared.learned.problem.gradients, 0.0
    real = gradients.mean

    def loading(*given: Any, **named: Any) -> torch.Tensor:
        nonlocal now
        now += 1e-6 if now else 60.0  # the first one loads code for a minute
        return real(*given, **named)

    monkeypatch.setattr(
        type(gradients), "mean", lambda self, *given, **named: loading(*given, **named)
    )
    given = prepared.defenses["defense"], prepared.learned.problem, prepared.setting
    pace = pace_of(*given, prepared.streams, lambda: now)
    assert pace.round < 1.0
