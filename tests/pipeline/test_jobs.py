"""What an exception in a job is called: the config's doing, or a bug that keeps its trace."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dpaudit.attack.contract import Part
from dpaudit.defenses.dpsgd import DPDPSGD
from dpaudit.errors import RunError
from dpaudit.files.threat import ThreatModel
from dpaudit.pipeline import jobs
from dpaudit.pipeline.jobs import context_of, faults_in_a_line, jobs_of
from dpaudit.pipeline.run import Runtime, _longest_first, fingerprint_of, prepare
from dpaudit.rng import Streams
from dpaudit.training.run_directory import RunDirectory
from tests.small_audits import digits_config

MEANT = DPDPSGD(noise_multiplier=1.0)
LARGE = DPDPSGD(noise_multiplier=1e200)


def test_a_bug_whose_text_speaks_of_overflow_keeps_its_trace() -> None:
    with pytest.raises(RuntimeError, match="stack overflow"), faults_in_a_line("x", MEANT):
        raise RuntimeError("stack overflow")


@pytest.mark.parametrize(
    "error, options",
    [(RuntimeError("whatever torch says"), (MEANT, LARGE)), (OverflowError("of Python"), (MEANT,))],
)
def test_numbers_beyond_float32_are_a_line(error, options) -> None:
    with (
        pytest.raises(RunError, match="training: numbers exceed what float32 holds"),
        faults_in_a_line("training", *options),
    ):
        raise error


def test_a_run_on_another_device_is_not_resumed() -> None:
    defense = {"name": "dp-dpsgd", "n_rounds": 2, "batch_size": 4, "noise_multiplier": 1.0}
    config = digits_config(model="logistic", n_agents=3, defense=defense)
    prepared = prepare(config, Runtime())
    one, other = (fingerprint_of(prepared, Runtime(torch.device(d))) for d in ("cpu", "cuda"))
    assert one != other
    assert {**one, "device": "cuda"} == other


def test_parts_of_attacks_begin_after_whole_ones() -> None:
    defense = {"name": "dp-dpsgd", "n_rounds": 2, "batch_size": 4, "noise_multiplier": 1.0}
    inversion = {"name": "gradient-inversion", "message": "view", "rounds": [1], "targets": 1}
    config = digits_config(inversion, model="logistic", n_agents=3, defense=defense)
    ordered = _longest_first(prepare(config, Runtime()))
    parts = ["inversion" in job for job in ordered]
    assert ordered[0] == "noise-of-the-run"
    assert parts == sorted(parts)
    assert 0 < sum(parts) < len(parts) - 1


def test_an_attacks_draws_do_not_depend_on_those_before_it(tmp_path) -> None:
    defense = {"name": "dp-dpsgd", "n_rounds": 2, "batch_size": 4, "noise_multiplier": 1.0}
    membership = {"name": "membership", "rounds": [1], "victims": 2}
    canaries = {"name": "canaries", "kind": "mislabelled", "canaries": 20}
    found = []
    for attacks in ([membership, canaries], [canaries, membership], [canaries]):
        prepared = prepare(
            digits_config(*attacks, model="logistic", n_agents=3, defense=defense), Runtime()
        )
        run = RunDirectory(tmp_path)
        asked = [job for job in jobs_of(prepared) if job.index is not None]
        contexts = {job.attack_name: context_of(prepared, run, job) for job in asked}
        assert len({context.streams for context in contexts.values()}) == len(attacks)
        (job,) = (job for job in asked if job.attack_name == "canaries")
        found.append(job.attack.measure(contexts["canaries"], job.threat_model, lambda *_: None))
    assert found[0] == found[1] == found[2]
    assert found[0][0].metrics


def test_rounds_of_distances_are_all_or_drawn_from_the_first() -> None:
    """100 numbers a round: 20 rounds of 2,000 numbers, and among the first 50 of many rounds."""

    def examined(n_rounds: int, batch_size: int = 5, seed: int = 0) -> tuple[int, ...]:
        setting: Any = SimpleNamespace(n_agents=2, d=10)
        defense: Any = SimpleNamespace(n_rounds=n_rounds, batch_size=batch_size)
        return jobs.examined_for_distances(defense, setting, Streams(seed))

    n = jobs.NUMBERS // 100
    assert examined(n) == tuple(range(1, n + 1))
    some = [examined(10 * max(n, jobs.REACH), seed=seed) for seed in range(20)]
    assert {(len(set(one)), one[0], one == tuple(sorted(one))) for one in some} == {
        (min(n, max(n, jobs.REACH)), 1, True)
    }
    assert max(map(max, some)) <= max(n, jobs.REACH)
    few = [examined(10**6, batch_size=jobs.NUMBERS, seed=seed) for seed in range(400)]
    assert {len(one) for one in few} == {2}
    seen = {k for one in few for k in one}  # the last is missed with probability 4e-4 or less
    assert min(seen) == 1
    assert max(seen) <= jobs.REACH
    assert examined(3, batch_size=jobs.NUMBERS) in ((1, 2), (1, 3))


def test_jobs_are_named_by_place_attack_adversary_and_part() -> None:
    attack: Any = SimpleNamespace(per_threat_model=True)
    spy = ThreatModel(name="spy 1")
    job = jobs.AttackJob(3, "a", attack, spy, Part())
    assert (job.name, job.stream, job.of) == (
        "03-a-spy-1",
        f"{jobs.FIRST}-a-spy-1",
        "attack 03 a (spy 1)",
    )
    own = replace(job, index=None, attack=SimpleNamespace(per_threat_model=False))
    assert own.name == own.stream == f"{jobs.EXAMINATION}-a-spy-1"
    assert own.of == "examination a"
    part = replace(job, part=Part(batch_size=4, world="no-defense"))
    assert part.name == "03-a-spy-1-batch-4-no-defense"
    assert replace(job, part=Part(world="no-defense")).name == "03-a-spy-1-no-defense"


def test_memory_that_is_allowed_is_less_what_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "resident", lambda: 10**9)
    limit = jobs.Limit.of(3 * 10**9, torch.device("cpu"))
    assert (limit.free, limit.process) == (2 * 10**9, 10**9)
    assert jobs.Limit.of(10**8, torch.device("cpu")).free == 0
    monkeypatch.setattr(jobs, "available", lambda: 7 * 10**6)
    assert jobs.Limit.of(None, torch.device("cpu")) == (7 * 10**6, "7 MB is free", 10**9)
    monkeypatch.setattr(jobs, "available", lambda: None)
    assert jobs.Limit.of(None, torch.device("cpu")) == (None, "", 10**9)


def test_the_numbers_of_options_lie_in_tables_and_lists() -> None:
    options = {"a": 1, "b": [2.0, {"c": (3,)}], "d": "4", "e": None}
    assert list(jobs._numbers(options)) == [1, 2.0, 3]
