"""Jobs, processes and what an audit is begun with, by stand-ins for what takes long."""

import importlib.metadata
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from dpaudit.attack.contract import Part
from dpaudit.errors import MissingPackage, PluginError, Problem, RunError
from dpaudit.files.finding import Role
from dpaudit.files.threat import ThreatModel
from dpaudit.pipeline import (
    content,
    costs,
    jobs,
    noise_law,
    processes,
    provenance,
    replay,
    requirements,
    workers,
)
from dpaudit.pipeline.caller_objects import CallerObjects
from dpaudit.pipeline.jobs import AttackJob
from dpaudit.pipeline.run import Runtime

NOTHING: Any = None


def test_one_accelerator_has_one_worker() -> None:
    assert Runtime(cores=5).workers == 5
    assert Runtime(torch.device("cuda"), cores=5).workers == 1
    assert Runtime().cores == os.cpu_count()
    assert Runtime().device == torch.device("cpu")


def answers(carry_out: Callable[[str], None], *orders: str) -> list[tuple[int, str]]:
    """What a server says of each of its orders, played in a fork of this process."""
    to_server, orders_in = os.pipe()[::-1], [*orders]
    from_server = os.pipe()
    if (child := os.fork()) == 0:
        code = 99
        try:
            os.dup2(to_server[1], 0)
            os.dup2(from_server[1], 1)
            for end in (*to_server, *from_server):
                os.close(end)
            sys.stdin, sys.stderr = os.fdopen(0, "r"), os.fdopen(2, "w", 1, closefd=False)
            code = processes.serve(carry_out, ("json",))
        finally:
            os._exit(code)
    os.close(to_server[1])
    os.close(from_server[1])
    os.write(to_server[0], "".join(f"{order}\n" for order in orders_in).encode())
    found = []
    with os.fdopen(from_server[0]) as said:
        for _ in orders:
            found.append(tuple(json.loads(said.readline())))
        os.close(to_server[0])  # whoever asked is gone
        assert said.read() == ""
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return found


def test_a_server_answers_each_order_from_a_fork(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where a bug leaves its log

    def carry_out(order: str) -> None:
        word = order.strip()
        print("what is audited prints")
        os.write(1, b"and writes")
        if word == "fails":
            raise RunError("DPA058", "it failed", "try again")
        if word == "fails without help":
            raise RunError("DPA058", "one\nother")
        if word == "exits":
            raise SystemExit(7)
        if word == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if word == "warns":
            print("said beside", file=sys.stderr)

    orders = ("works", "fails", "warns", "fails without help", "is killed", "works")
    found = answers(carry_out, *orders)
    assert found == [
        (0, ""), (2, "DPA058 it failed\ttry again\n"), (0, "said beside\n"),
        (2, "DPA058 one\nDPA058 other\n"), (-signal.SIGKILL, ""), (0, ""),
    ]  # fmt: skip
    assert [processes._problems(*one) for one in found[1:4]] == [
        (Problem("DPA058", "it failed", "try again"),), (),
        (Problem("DPA058", "one"), Problem("DPA058", "other")),
    ]  # fmt: skip
    [(code, said)] = answers(carry_out, "exits")
    assert code == 2
    assert len(processes._problems(code, said)) == 1


def test_a_line_without_a_code_is_a_problem_of_its_own() -> None:
    assert processes._problems(2, "DPA058 a\tb\nplain line\n\n") == (
        Problem("DPA058", "a", "b"), Problem("DPA026", "plain line"),
    )  # fmt: skip
    assert processes._problems(2, "DPA999 a") == (Problem("DPA026", "DPA999 a"),)


class Servers:
    """Stand-ins for processes that answer in turn; None: there is no answer yet."""

    def __init__(self, script: dict[str, list[Any]]) -> None:
        self.script, self.started, self.stopped = script, list[Any](), list[int]()

    def of(self, command: Any, environment: Any) -> Any:
        number = len(self.started)
        server = SimpleNamespace(process=SimpleNamespace(poll=lambda: None), said=[])

        def order(text: str) -> None:
            server.said.append(text)

        def answer() -> Any:
            return self.script[server.said[-1]].pop(0)

        server.order, server.answer = order, answer
        server.stop = lambda: self.stopped.append(number)
        self.started.append((server, command, environment))
        return server


def test_orders_are_carried_out_in_each_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes too long is stopped, and its place has another process."""
    script = {"A": [None, (0, "")], "B": [None, None], "C": [(2, "DPA058 no")], "D": [(0, "")]}
    servers, clock = Servers(script), iter(range(100))
    monkeypatch.setattr(processes, "AuditProcess", servers)
    monkeypatch.setattr(processes.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(processes.time, "sleep", lambda _: None)
    waited: list[dict[str, Path]] = []
    orders = {n.lower(): processes.Order(n, Path(n)) for n in "ABCD"}
    places = [{"CUDA": "0"}, {"CUDA": "1"}]
    found = list(processes.side_by_side(
        ["command"], orders, places, lambda at: waited.append(dict(at)),
        lambda name: 3.0 if name == "b" else 1e9,
    ))  # fmt: skip
    assert [(one.name, one.out_of_time, [p.text for p in one.problems]) for one in found] == [
        ("a", False, []), ("b", True, []), ("c", False, ["no"]), ("d", False, []),
    ]  # fmt: skip
    assert waited[0] == {"a": Path("A"), "b": Path("B")}
    assert [environment for _, _, environment in servers.started] == places
    assert 1 in servers.stopped


class Pool:
    """Stands in for a pool of processes: what it is given, and a future that is given."""

    broken = False

    def __init__(self, workers: int, context: Any, start: Any, arguments: Any) -> None:
        self._processes: dict[int, Any] = {}
        Pool.asked = workers, start, arguments  # type: ignore[attr-defined]

    def submit(self, do: Any, job: Any) -> Any:
        return job

    def shutdown(self, **how: Any) -> None:
        Pool.ended = how  # type: ignore[attr-defined]


def test_a_worker_that_was_killed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def result() -> None:
        raise BrokenProcessPool

    class Job:
        def __init__(self) -> None:
            self.result = result

    monkeypatch.setattr(workers, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(workers, "begin", lambda: None)
    monkeypatch.setattr(workers, "wait", lambda pending, **how: (pending, set()))
    context = SimpleNamespace(Queue=lambda: SimpleNamespace())
    monkeypatch.setattr(workers.multiprocessing, "get_context", lambda how: context)
    with pytest.raises(RunError, match="a worker process was killed") as error:
        workers.run_jobs(NOTHING, ("a",), [Job(), Job(), Job()], 2, lambda *_: None)
    assert error.value.code == "DPA026"
    n, start, (_, sent, _) = Pool.asked  # type: ignore[attr-defined]
    assert (n, start, sent.open()) == (2, workers._start, (None, ("a",)))
    assert Pool.ended == {"wait": False, "cancel_futures": True}  # type: ignore[attr-defined]


def test_a_worker_does_what_its_start_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the environment that it is given, and its reports go to the caller."""
    for name in ("_failure", "_origin", "_work", "_progress"):
        monkeypatch.setattr(workers, name, None)
    monkeypatch.setattr(workers, "_end_with_the_caller", lambda: None)
    monkeypatch.setattr(workers.recorder, "follow", lambda: None)
    monkeypatch.setattr(workers.torch, "set_num_threads", lambda n: reports.append(n))
    monkeypatch.setattr(workers.signal, "signal", lambda *given: reports.append(given))
    monkeypatch.setattr(workers.os, "environ", {"OLD": "1"})
    reports: list[Any] = []

    def prepare(first: str) -> Any:
        def work(job: str, on_progress: Any) -> None:
            on_progress(f"{first} {job}", 1, 2)
            if job == "fails":
                raise Local("no")

        return work

    class Local(Exception):
        """One that no other process can import."""

    sent = workers._Sent((prepare, ("a",)))
    workers._start({"NEW": "2"}, sent, SimpleNamespace(put=reports.append))
    assert workers.os.environ == {"NEW": "2"}
    assert reports == [(signal.SIGINT, signal.SIG_IGN), 1]
    workers._do("b")
    assert reports[2:] == [("a b", 1, 2)]
    with pytest.raises(RuntimeError, match="Local: no$") as error:
        workers._do("fails")
    assert error.value.__suppress_context__
    assert workers._travels(ValueError("x"))
    assert not workers._travels(Local("x"))


def test_reports_of_workers_are_passed_on_in_turn() -> None:
    import queue

    reports: Any = queue.Queue()
    told: list[Any] = []
    workers._drain(
        SimpleNamespace(get=lambda timeout: reports.get_nowait()), lambda *r: told.append(r)
    )
    assert told == []
    for i in range(3):
        reports.put(("a", i, 3))
    reports.get, waited = (
        (lambda timeout, get=reports.get: waited.append(timeout) or get(False)),
        [],
    )
    reports.get_nowait = lambda q=reports: queue.Queue.get(q, False)
    workers._drain(reports, lambda *r: told.append(r))
    assert told == [("a", i, 3) for i in range(3)]
    assert waited == [workers._POLL_SECONDS]


def test_a_package_that_is_missing_is_named() -> None:
    defense: Any = SimpleNamespace(packages={"json": "json", "no_such_module": "no-such[all]"})
    said = 'masks needs the package no_such_module: pip install "no-such[all]"'
    assert requirements.missing_package("masks", defense) == said
    with pytest.raises(MissingPackage) as error:
        requirements.refuse_missing_packages("masks", defense)
    assert (str(error.value), error.value.code) == (said, "DPA023")
    defense.packages = {"json": "json"}
    assert requirements.missing_package("masks", defense) is None
    requirements.refuse_missing_packages("masks", defense)


def test_a_callers_model_is_named_and_may_be_fixed() -> None:
    own = CallerObjects(model=nn.Linear(1, 1))
    given = {"model": {"name": "mlp", "width": 3, "fix": True}, "data": {"n": 1}}
    assert own.fill(given) == {"model": {"name": "Linear", "fix": True}, "data": {"n": 1}}
    assert own.fill({})["model"] == {"name": "Linear"}
    assert given["model"]["name"] == "mlp"  # type: ignore[index]
    assert own.travels
    assert not CallerObjects(model=type("Local", (nn.Linear,), {})(1, 1)).travels


def test_files_that_a_config_binds_are_named(tmp_path: Path, monkeypatch) -> None:
    def bound(audit: dict[str, Any]) -> list[Path]:
        return list(content.bound_files(audit, tmp_path))

    name, folder = next(iter(content.DATA_FOLDERS.items()))
    assert bound({"data": {"path": "a.npz", "name": name}}) == [Path("a.npz")]
    assert bound({"data": {"name": name}}) == [tmp_path / folder.folder]
    assert bound({"data": {"name": "digits"}}) == []
    monkeypatch.setattr(content, "root_folder", lambda given: None)
    assert bound({"data": {"name": name}}) == []
    attacks = [{"weights": "w.safetensors"}, {"weights": None}, {"name": "x"}, "no table"]
    assert bound({"attack": attacks}) == []
    assert bound({"attack": attacks, "program": {}}) == [Path("w.safetensors")]
    mechanism = {"mechanism": {"function": "a.b:f"}, "defense": "no table", "attack": attacks}
    assert list(content._plugins(mechanism)) == [
        ("defenses", "a.b:f"), *[("attacks", str(one)) for one in (None, None, "x")],
    ]  # fmt: skip


def test_the_order_of_keys_makes_no_other_content(tmp_path: Path) -> None:
    one = {"data": {"name": "digits", "n_agents": 3}, "seed": 1}
    other = {"seed": 1, "data": {"n_agents": 3, "name": "digits"}}
    keys = [
        content.content_key(audit, tmp_path, None, "cpu", None, "s")
        for audit in (one, other, {**one, "seed": 2})
    ]
    assert keys[0] == keys[1] != keys[2]
    assert {len(key) for key in keys} == {32}


def test_the_source_of_a_plugin_is_its_package_or_module(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "package_of_plugin" / "deep").mkdir(parents=True)
    files = [tmp_path / "package_of_plugin" / name for name in ("__init__.py", "deep/own.py")]
    for file in (*files, tmp_path / "module_of_plugin.py"):
        file.write_text("")
    found = content._plugin_source({
        "defense": {"name": "package_of_plugin.deep:D"},
        "attack": [{"name": "module_of_plugin:A"}, {"name": "gone_plugin:A"}, {"name": "sensitivity"},
                   {"name": "dpaudit.own:A"}],
    })  # fmt: skip
    assert {name: sorted(of) for name, of in found.items()} == {
        "package_of_plugin.deep:D": sorted(files),
        "module_of_plugin:A": [tmp_path / "module_of_plugin.py"],
    }
    assert content._found("no_such_package.module") is None


@pytest.mark.parametrize("error", [ValueError("one\nother"), ValueError()])
def test_a_part_of_unknown_size_says_why(error: ValueError) -> None:
    def size() -> int:
        raise error

    found = costs._cost("part", size)
    assert (found.size, found.unknown) == (costs.LEAST, "one" if str(error) else "ValueError()")
    known = costs._cost("part", lambda: 1000, NOTHING)
    assert (known.size, known.unknown) == (int(costs.UNSEEN * 1000) + costs.LEAST, None)


def test_where_there_are_no_alarms_nothing_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "current_thread", lambda: "another")
    before = signal.getsignal(signal.SIGALRM)
    with costs._soon():
        assert signal.getsignal(signal.SIGALRM) is before
    monkeypatch.undo()
    with costs._soon():
        assert signal.getsignal(signal.SIGALRM) is not before
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= costs.PATIENCE
        assert signal.getitimer(signal.ITIMER_REAL)[1] == costs.PATIENCE
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("free", "size", "n"), [(600, 1100, 5), (100, 1100, 0), (50, 1100, 0), (1100, 1100, 10)]
)
def test_fewer_agents_take_less_in_proportion(monkeypatch, free: int, size: int, n: int) -> None:
    monkeypatch.setattr(costs, "LEAST", 100)
    config: Any = SimpleNamespace(data=SimpleNamespace(n_agents=10))
    said = costs._remedy(config, costs.PartCost("p", size), free)
    assert said == "n_agents or batch_size" + (f"; about n_agents = {n} would fit" if n else "")


def test_what_no_agent_holds_takes_nothing_to_examine() -> None:
    setting = SimpleNamespace(holders=(1, 2))
    context: Any = SimpleNamespace(defense=None, setting=setting)
    both: Any = SimpleNamespace(agents=(1, 2))
    assert jobs.examined_bytes(jobs.LEAK, context, both) == 0


def attack_job(**of: Any) -> AttackJob:
    view = ThreatModel(name="view")
    attack: Any = SimpleNamespace(per_threat_model=of.pop("per_threat_model", True), **of)
    return AttackJob(of.get("index"), "sensitivity", attack, view, Part())


@pytest.mark.parametrize(
    ("per_threat_model", "size", "said"),
    [
        (True, 6 * 10**9, None),
        (
            False,
            6 * 10**9 + 10**8,
            "how far a record moves messages (it takes 6.1 GB of memory, more than 6 GB)",
        ),
        (True, ValueError("no\nmore"), "how far a record moves messages (no)"),
    ],
)
def test_what_is_too_large_to_examine_is_said(monkeypatch, per_threat_model, size, said) -> None:
    def examined_bytes(name: str, *_: Any) -> int:
        if isinstance(size, Exception):
            raise size
        return size

    monkeypatch.setattr(jobs, "examined_bytes", examined_bytes)
    job = attack_job(per_threat_model=per_threat_model, measure=lambda *_: ["found"])
    found: Any = jobs._examined(job, NOTHING, job.threat_model, lambda *_: None)
    if said is None:
        assert found == ["found"]
        return
    [finding] = found
    assert finding.not_examined == (said,)
    assert (finding.role, finding.attack) == (Role.DEPENDENCE, "sensitivity")
    assert finding.threat_model == ("view" if per_threat_model else None)


@pytest.mark.parametrize("answer", [3, [None], None])
def test_an_attack_gives_a_list_of_findings(monkeypatch, tmp_path: Path, answer: Any) -> None:
    view = ThreatModel(name="view")
    attack: Any = SimpleNamespace(measure=lambda *_: answer, per_threat_model=True)
    job = AttackJob(0, "mine", attack, view, Part())

    @contextmanager
    def nothing(*_: Any) -> Any:
        yield

    for name in ("faults_in_a_line", "unchanged_settings"):
        monkeypatch.setattr(jobs, name, nothing)
    monkeypatch.setattr(jobs, "context_of", lambda *_: SimpleNamespace(defense=None))
    monkeypatch.setattr(jobs, "replace", lambda context, checkpoint: context)
    monkeypatch.setattr(jobs.StoredCheckpoint, "of", lambda *_: None)
    prepared: Any = SimpleNamespace(streams=SimpleNamespace(device=torch.device("cpu")))
    with pytest.raises(PluginError, match='attack "mine": measure returns .*; expected a list'):
        jobs.run_attack(prepared, NOTHING, job, "", lambda *_: None)


def test_a_law_that_cannot_be_looked_at_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise ValueError("no such round")

    monkeypatch.setattr(noise_law, "law_of_the_noise", fails)
    numbers = SimpleNamespace(integers=lambda most: torch.tensor(5))
    prepared: Any = SimpleNamespace(
        defense=None, setting=None, streams=SimpleNamespace(numpy=lambda name: numbers)
    )
    found = noise_law.examine_law(prepared, ())
    assert found is not None
    assert found.unconfirmed == ("any message (no such round)",)
    assert (found.verdict, found.metrics) == (None, {})


@pytest.mark.parametrize("of", [{"declared": None}, {"size": 0}, {"silent": float("inf")}])
def test_who_holds_no_record_shows_none(monkeypatch: pytest.MonkeyPatch, of: Any) -> None:
    monkeypatch.setattr(noise_law, "replace", lambda game, victim: game)
    monkeypatch.setattr(noise_law, "declared_of_a_round", lambda *_: of.get("declared", ("r",)))
    game: Any = SimpleNamespace(setting=SimpleNamespace(sizes=(of.get("size", 3),)))
    tested: Any = SimpleNamespace(place=SimpleNamespace(sender=0), p=1.0)
    silent = torch.full((2, 1), of.get("silent", 0.0)).numpy()
    assert noise_law._record_test(NOTHING, game, tested, silent) is None


def test_a_folder_without_git_has_no_provenance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "_git", lambda *_, **__: None)
    found = provenance.provenance_of("d", "f", 3, torch.device("cpu"), 7, (3, 4))
    assert (found.git_commit, found.git_dirty) == (None, None)
    assert provenance._is_dirty() is None
    assert (found.data, found.data_fingerprint, found.seed) == ("d", "f", 3)
    assert (found.n_records, found.agent_sizes) == (7, (3, 4))
    assert found.packages["torch"] == importlib.metadata.version("torch")

    def run_git(*_: Any, **how: Any) -> Any:
        assert how["timeout"] == 10
        raise provenance.subprocess.TimeoutExpired("git", 10)

    monkeypatch.undo()
    monkeypatch.setattr(provenance.subprocess, "run", run_git)
    assert provenance._git("status") is None
    monkeypatch.setattr(
        provenance.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=1, stdout=b"x")
    )
    assert provenance._git("status") is None


def test_rounds_are_played_up_to_the_last_that_is_compared(monkeypatch) -> None:
    """At each batch size at which it was recorded, and then as in training."""
    played: list[Any] = []
    told: list[tuple[int, int]] = []

    def play_round(
        defense: Any, problem: Any, setting: Any, streams: Any, state: int, k: int, *how: Any
    ) -> Any:
        played.append((k, state, *how))
        return SimpleNamespace(sent=f"sent {k} {how[0]}", state=state + (how[0] == 8))

    monkeypatch.setattr(replay, "play_round", play_round)
    monkeypatch.setattr(replay, "_sizes", lambda run, world, k: [1, 2] if k == 4 else [])
    monkeypatch.setattr(replay, "_compared", lambda *given: iter([given[1:]]))
    defense = SimpleNamespace(start=lambda *_: 0, batch_size=8, drawing="poisson")
    learned = SimpleNamespace(problem=SimpleNamespace(initial=lambda streams: None))
    prepared: Any = SimpleNamespace(
        defenses={"defense": defense}, learned=learned, setting=None,
        streams=SimpleNamespace(device="cpu"),
    )  # fmt: skip
    run: Any = SimpleNamespace(
        transcript=lambda world, device: SimpleNamespace(rounds={4: {}, 2: {}, 1: {}})
    )
    found: Any = list(
        replay._differences(prepared, run, "defense", 2, True, lambda *s: told.append(s))
    )
    assert played == [
        (1, 0, 8, "poisson"), (2, 1, 8, "poisson"), (3, 2, 8, "poisson"), (4, 3, 1, "fixed"),
        (4, 3, 2, "fixed"), (4, 3, 8, "poisson"),
    ]  # fmt: skip
    assert found == [
        ("defense", 1, None, "sent 1 8", True), ("defense", 4, 1, "sent 4 1", True),
        ("defense", 4, 2, "sent 4 2", True), ("defense", 4, None, "sent 4 8", True),
    ]  # fmt: skip
    assert told == [(k, 4) for k in range(1, 5)]
    run.transcript = lambda world, device: SimpleNamespace(rounds={})
    assert list(replay._differences(prepared, run, "defense", 2, True, lambda *_: None)) == []


def test_other_data_are_not_those_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    folder: Any = SimpleNamespace(recorded=lambda: {})
    monkeypatch.setattr(replay, "RunDirectory", lambda out: folder)
    monkeypatch.setattr(replay, "_config", lambda *_: SimpleNamespace(model_dump=lambda mode: {}))
    prepared = SimpleNamespace(learned=SimpleNamespace(fingerprint="here"))
    monkeypatch.setattr(replay, "prepare", lambda *_: prepared)
    result: Any = SimpleNamespace(config={}, provenance=SimpleNamespace(data_fingerprint="there"))
    [flaw] = replay.replay(Path("out"), result, 1, NOTHING)
    assert (flaw.what, flaw.contradicted) == ("the data here are not those of the run", False)
