"""How an audit is begun, trained, attacked and attacked again, by stand-ins for its parts."""

from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dpaudit.attack.contract import Part
from dpaudit.errors import ConfigError, RunError
from dpaudit.files.finding import Finding, Role
from dpaudit.files.result import Curve
from dpaudit.pipeline import (
    run,
)
from dpaudit.pipeline.jobs import NOISE_OF_THE_RUN
from dpaudit.pipeline.run import Runtime

NOTHING: Any = None


class NotedWorkers:
    """Those of an audit that note what they would do."""

    def __init__(self, log: list[Any], work: Any, given: tuple[Any, ...], most: int) -> None:
        self.log, self.binding, self.most = log, given[2], most

    def __enter__(self) -> "NotedWorkers":
        return self

    def __exit__(self, *error: object) -> None:
        self.log.append(("ended", self.most))

    def run(self, jobs: Any, at_once: int, progress: Any, alone: float = 0.0) -> None:
        self.log.append((list(jobs), at_once, alone, self.binding))


def trained(
    monkeypatch: pytest.MonkeyPatch, cores: int, is_short: bool, claims: bool = True
) -> Any:
    """What an audit does with its jobs, of two attacks and two parts of another."""
    log: list[Any] = []
    names = ["00-a", "01-b", "02-c-defense", "02-c-no-defense"]
    listed = [
        SimpleNamespace(name=n, part=Part() if i < 2 else Part(batch_size=1))
        for i, n in enumerate(names)
    ]
    curve = Curve.model_construct(loss=((1.0,),), initial_loss=(2.0,), loss_is="loss")
    monkeypatch.setattr(run, "jobs_of", lambda prepared: iter(listed))
    monkeypatch.setattr(
        run, "names_of_attacks", lambda prepared: [*names, *[NOISE_OF_THE_RUN] * claims]
    )
    monkeypatch.setattr(run, "begin", lambda: log.append("begin"))
    monkeypatch.setattr(run, "Workers", partial(NotedWorkers, log))
    monkeypatch.setattr(run, "_result_of", lambda r, job, binding: (
        log.append(("read", job, binding)) or ([] if job in (*names, NOISE_OF_THE_RUN) else curve.model_dump())
    ))  # fmt: skip
    monkeypatch.setattr(run, "accounted", lambda prepared, found: (["judging"], found))
    monkeypatch.setattr(run, "problem_notes", lambda learned: ["note of the problem"])
    monkeypatch.setattr(run, "learning_notes", lambda curves: sorted(curves))
    monkeypatch.setattr(run, "provenance_of", lambda *given: given)
    monkeypatch.setattr(run.Curve, "model_validate", lambda found: found)
    clock = iter([10.0, 13.0, 20.0, 27.5, 30.0, 31.0])
    monkeypatch.setattr(run.time, "perf_counter", lambda: next(clock))
    found = SimpleNamespace(
        is_short=is_short, lines=lambda workers: [f"on {workers}"], training="training",
        attacks="attacks", workers=lambda parts, most: (log.append((parts, most)), most)[1],
    )  # fmt: skip
    learned = SimpleNamespace(name="n", fingerprint="f", n_records=5, sizes=(2, 3))
    prepared = SimpleNamespace(
        config=SimpleNamespace(seed=7), learned=learned, graph="graph", notes=("own",),
        defense=SimpleNamespace(model_dump=lambda mode: {"name": "d"}),
    )  # fmt: skip
    own: Any = run._Trained(prepared, Runtime(cores=cores), found)  # type: ignore[arg-type]
    told: list[Any] = []
    folder: Any = SimpleNamespace(binding="bound")
    said: list[str] = []
    evidence = own.evidence(folder, lambda *report: told.append(report), said.append)
    own.attacked(folder, "again", NotedWorkers(log, NOTHING, (0, 0, "again"), 2), lambda *_: None)
    return evidence, log, told, said


def test_an_audit_trains_and_then_attacks(monkeypatch: pytest.MonkeyPatch) -> None:
    evidence, log, told, said = trained(monkeypatch, 3, is_short=False)
    ordered = [NOISE_OF_THE_RUN, "00-a", "01-b", "02-c-defense", "02-c-no-defense"]
    assert log[:5] == [
        "begin", ("training", 3), (["defense", "no-defense"], 3, 0.0, "bound"), ("attacks", 3),
        (ordered, 3, 0.0, "bound"),
    ]  # fmt: skip
    assert ("ended", 3) in log
    assert (ordered, 3, 0.0, "again") in log  # what is attacked again waits for no process
    assert said == ["on 3"]
    assert told[:3] == [
        ("training, defense", 0, 0), ("training, no-defense", 0, 0), (NOISE_OF_THE_RUN, 0, 0),
    ]  # fmt: skip
    assert told[3] == ("attack 00-a", 0, 0)
    assert told[-4:] == [
        ("accounting", 0, 0),
        ("the report", 0, 0),
        ("accounting", 0, 1),
        ("accounting", 1, 1),
    ]
    assert evidence.timing == {"training": 3.0, "attacks": 7.5}
    assert evidence.provenance == ("n", "f", 7, torch.device("cpu"), 5, (2, 3))
    assert evidence.notes == ("own", "note of the problem", "defense", "no-defense")
    assert (evidence.judgings, evidence.graph) == (["judging"], "graph")
    assert (evidence.calibrated, [*evidence.utility]) == ({"name": "d"}, ["defense", "no-defense"])


@pytest.mark.parametrize(("cores", "is_short"), [(1, False), (3, True), (1, True)])
def test_short_training_is_done_here(monkeypatch, cores: int, is_short: bool) -> None:
    _, log, *_ = trained(monkeypatch, cores, is_short)
    alone = run.SHORT if is_short else 0.0
    assert log[0] == ("training", 1)
    assert log[1][1:3] == (1, 0.0)
    assert log[3][1:3] == (cores, alone)


def finding_json(title: str) -> dict[str, Any]:
    return Finding(role=Role.NOISE, kind="control", title=title).model_dump(mode="json")


def test_a_worker_does_a_job_once(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []
    results: dict[str, Any] = {"findings/done.json": []}
    folder: Any = SimpleNamespace(
        path="run", read_result=lambda name, binding: results.get(name),
        write_result=lambda name, content, binding: done.append((name, len(content), binding)),
    )  # fmt: skip

    @contextmanager
    def named(what: str, defense: Any) -> Any:
        done.append(what)
        yield

    law: list[Any] = [None]
    noise = Finding(role=Role.NOISE, kind="control", title="n")
    monkeypatch.setattr(run, "prepare", lambda *_: SimpleNamespace(defense="d"))
    monkeypatch.setattr(run, "jobs_of", lambda prepared: iter([SimpleNamespace(name="00-a")]))
    monkeypatch.setattr(run, "train_world", lambda p, r, job, progress: done.append(job))
    monkeypatch.setattr(
        run, "run_attack", lambda p, r, job, b, progress, most: done.append((job.name, b, most))
    )
    monkeypatch.setattr(run, "faults_in_a_line", named)
    monkeypatch.setattr(run, "examine_noise", lambda p, models, on_step: (on_step(1, 2), noise)[1])
    monkeypatch.setattr(run, "examine_law", lambda p, models: law[0])
    config: Any = SimpleNamespace(threat_model=())
    work = run.worker(config, folder, "bound", Runtime(max_memory=9), NOTHING)
    told: list[Any] = []
    for job in ("done", "no-defense", "00-a", NOISE_OF_THE_RUN):
        work(job, lambda *report: told.append(report))
    law[0] = noise
    work(NOISE_OF_THE_RUN, lambda *_: None)
    assert done == [
        "no-defense", ("00-a", "bound", 9),
        NOISE_OF_THE_RUN, (f"findings/{NOISE_OF_THE_RUN}.json", 1, "bound"),
        NOISE_OF_THE_RUN, (f"findings/{NOISE_OF_THE_RUN}.json", 2, "bound"),
    ]  # fmt: skip
    assert told == [(NOISE_OF_THE_RUN, 1, 2)]
    assert run._result_of(folder, "done", "bound") == []
    with pytest.raises(RunError, match=r"run: findings/00-a\.json is gone, damaged or was changed"):
        run._result_of(folder, "00-a", "bound")


@pytest.mark.parametrize("recorded", [None, [], {}, {"config": 3}, {"config": {"seed": "x"}}])
def test_a_damaged_run_is_not_attacked_again(recorded: Any) -> None:
    folder: Any = SimpleNamespace(path=Path("out"), recorded=lambda: recorded)
    with pytest.raises(RunError, match=r"out/run\.json: damaged: ") as error:
        run._recorded(folder)
    assert error.value.code == "DPA020"


def test_rounds_that_were_not_recorded_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = SimpleNamespace(messages={2: ("x", "w"), 3: ("x",)}, probes={3: (1, 4)})
    monkeypatch.setattr(run, "recording_for", lambda prepared: recording)
    asked: list[Any] = []
    missing: list[Any] = []

    def has_messages(world: str, k: int, size: Any, names: Any) -> bool:
        asked.append((world, k, size, names))
        return (world, k, size) not in missing

    folder: Any = SimpleNamespace(path="out", has_messages=has_messages)
    run._refuse_unrecorded(folder, NOTHING)
    assert asked == [
        (world, k, size, names)
        for world in ("defense", "no-defense")
        for k, size, names in (
            (2, None, ("x", "w")),
            (3, None, ("x",)),
            (3, 1, ("x",)),
            (3, 4, ("x",)),
        )
    ]
    for one, said in (
        (("defense", 2, None), "out: round 2 with w, x was not recorded"),
        (("no-defense", 3, 4), "out: round 3 at batch size 4 with x was not recorded"),
    ):
        missing[:] = [one]
        with pytest.raises(RunError, match=said):
            run._refuse_unrecorded(folder, NOTHING)


def again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **now: str) -> list[Any]:
    """What attacking a recorded run again does, in order."""
    log: list[Any] = []

    @contextmanager
    def held(self: Any) -> Any:
        yield SimpleNamespace(
            forget=lambda what: log.append(("forget", what)), noted=lambda on_progress: "noted"
        )

    folder = type(
        "Folder",
        (),
        {
            "__init__": lambda self, out: None,
            "held": held,
            "read_json": lambda self, name: log.append(name),
        },
    )
    here = {"data": "d", "device": "cpu", **now}
    monkeypatch.setattr(run, "RunDirectory", folder)
    monkeypatch.setattr(run, "_recorded", lambda r: {"config": "c", "data": "d", "device": "cpu"})
    monkeypatch.setattr(
        run, "_edited", lambda out, config, names: log.append((config, names)) or "edited"
    )
    monkeypatch.setattr(run, "prepare", lambda config, runtime: SimpleNamespace(config="edited"))
    monkeypatch.setattr(run, "fingerprint_of", lambda prepared, runtime: here)
    monkeypatch.setattr(run, "_refuse_unrecorded", lambda r, prepared: log.append("recorded"))
    monkeypatch.setattr(run, "estimate_costs", lambda p, most, trains: log.append((most, trains)))
    monkeypatch.setattr(
        run._Trained, "announce", lambda self, first, told: log.append((first, told))
    )
    monkeypatch.setattr(
        run._Trained,
        "attacked",
        lambda self, r, binding, workers, told: log.append((binding, workers.most)) or "found",
    )
    monkeypatch.setattr(run, "Workers", partial(NotedWorkers, log))
    monkeypatch.setattr(run, "concluded", lambda config, r, found: log.append((config, found)))
    run.attack_again(tmp_path / "out", Runtime(max_memory=7), ("a",))
    return log


def test_a_recorded_run_is_attacked_without_training(monkeypatch, tmp_path: Path) -> None:
    log = again(monkeypatch, tmp_path)
    bound = run.bound_to({"data": "d", "device": "cpu"})
    assert log == [
        "run.json", ("c", ("a",)), "recorded", (7, False), ("forget", "findings/[0-9]*.json"),
        ((), "noted"), (bound, Runtime.cores), ("ended", Runtime.cores), ("edited", "found"),
    ]  # fmt: skip
    for changed in ({"data": "e"}, {"device": "cuda"}):
        with pytest.raises(RunError, match="data or device differ from those of the recorded run"):
            again(monkeypatch, tmp_path, **changed)
    (tmp_path / "out").write_text("")
    with pytest.raises(RunError, match="not a folder") as error:
        again(monkeypatch, tmp_path)
    assert error.value.code == "DPA019"


def test_an_audit_needs_numbers_of_single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run.torch, "get_default_dtype", lambda: torch.float64)
    with pytest.raises(ConfigError, match=r"torch's default dtype is torch\.float64"):
        run.prepare(NOTHING, NOTHING)


def test_data_are_read_by_their_name_or_path(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    data = SimpleNamespace(in_units=lambda: "in units")
    monkeypatch.setattr(run, "load_text", lambda *given: asked.append(given) or "text")
    monkeypatch.setattr(
        run, "load_dataset", lambda source, **how: asked.append((source, how)) or data
    )

    def loaded(**of: Any) -> Any:
        options = {"name": None, "path": Path("p"), "text": "t", "scale": "unit", **of}
        return run._loaded(
            SimpleNamespace(data=SimpleNamespace(**options), seed=3),  # type: ignore[arg-type]
            Runtime(data_root=Path("root"), download=True),
        )

    assert loaded(name="text") == "text"
    assert loaded() == "in units"
    assert loaded(name="digits", scale="as-is") is data
    how = {"data_root": Path("root"), "download": True, "seed": 3}
    assert asked == [(Path("p"), "t", 3), (Path("p"), how), ("digits", how)]


def test_an_audit_is_timed_for_who_listens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(run, "prepare", lambda *_: "prepared")
    monkeypatch.setattr(run, "estimate_costs", lambda p, most, timed: asked.append((most, timed)))
    monkeypatch.setattr(run, "fingerprint_of", lambda *_: "fingerprint")
    monkeypatch.setattr(run, "audited", lambda *given: given)
    config: Any = "config"
    for resume, say, timed in ((False, print, True), (True, print, False), (False, None, False)):
        found: Any = run.run_audit(
            config, tmp_path, Runtime(max_memory=5), "text", resume, say=say, report=False
        )
        assert asked.pop() == (5, timed)
        assert found[:5] == ("config", tmp_path, "text", resume, "fingerprint")
        assert found[6] is False


def test_what_a_reader_must_know_first_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "vacuous_notes", lambda claims, setting: iter([claims]))
    monkeypatch.setattr(
        run, "absent_notes", lambda models, network, n: iter([(models, network, n)])
    )
    config: Any = SimpleNamespace(claim="claims", threat_model="models")
    setting: Any = SimpleNamespace(network="network")

    def notes(reconstructed: str | None, condition: str | None) -> list[Any]:
        defense: Any = SimpleNamespace(
            reconstructed=reconstructed, outside_theory=lambda setting: condition, n_rounds=7
        )
        return list(run._notes(config, defense, setting))

    last = ["claims", ("models", "network", 7)]
    assert notes(None, None) == last
    [note, *others] = notes("by its text", None)
    assert (note.code, note.text) == (
        "DPA123", "A part of this method is reconstructed, and may differ from its authors' own: by its text.",
    )  # fmt: skip
    assert others == last
    [note, *others] = notes(None, "the rate is too large")
    assert (note.code, others) == ("DPA124", last)
    assert note.text.endswith("as allowed by its config: the rate is too large.")
    assert len(notes("a", "b")) == 4


def test_an_outlook_plays_first_steps_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "prepare", lambda config, runtime: (config, "prepared"))
    monkeypatch.setattr(run, "costs_ahead", lambda prepared, most: (prepared, most))
    monkeypatch.setattr(run, "powers_of", lambda prepared: iter([prepared]))
    found = run.outlook("config", Runtime(max_memory=5))  # type: ignore[arg-type]
    assert found == ((("config", "prepared"), 5), [("config", "prepared")])
