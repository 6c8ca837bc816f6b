"""What an exception in a job is called: the config's doing, or a bug that keeps its trace."""

import pytest
import torch

from dpaudit.defenses.dpsgd import DPDPSGD
from dpaudit.errors import RunError
from dpaudit.pipeline.jobs import context_of, faults_in_a_line, jobs_of
from dpaudit.pipeline.run import Runtime, _longest_first, fingerprint_of, prepare
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
    assert parts == sorted(parts) and 0 < sum(parts) < len(parts) - 1


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
        jobs = [job for job in jobs_of(prepared) if job.index is not None]
        contexts = {job.attack_name: context_of(prepared, run, job) for job in jobs}
        assert len({context.streams for context in contexts.values()}) == len(attacks)
        (job,) = (job for job in jobs if job.attack_name == "canaries")
        found.append(job.attack.measure(contexts["canaries"], job.threat_model, lambda *_: None))
    assert found[0] == found[1] == found[2]
    assert found[0][0].metrics
