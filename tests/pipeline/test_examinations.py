"""An audit with a claim and no attack: what the claim rests on is examined all the same."""

import pytest
import torch
from torch import Tensor

from dpaudit.defense import Gradient, Noise
from dpaudit.files.config import AuditConfig
from dpaudit.files.result import AuditResult
from dpaudit.files.verdict import Verdict
from dpaudit.pipeline.caller_objects import CallerObjects
from dpaudit.pipeline.jobs import (
    MOST_BYTES,
    NOISE_OF_THE_RUN,
    REACH,
    examined_for_distances,
    names_of_attacks,
)
from dpaudit.pipeline.run import Runtime, prepare, run_audit
from dpaudit.rng import Streams
from dpaudit.selftest.catalogue import _content, _records
from dpaudit.selftest.correct import PrivateGossip

pytestmark = pytest.mark.usefixtures("no_report")

LEAK, DISTANCE = "claim-likelihood-ratio-eavesdropper", "claim-sensitivity-eavesdropper"


class NoiseQuarter(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise) / 4


class NoiseOff(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise) * 0


class NoiseOfStd0(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return noise.gaussian("gradient", 0.0, like)


class NotClipped(PrivateGossip):
    def summed(self, gradient: Gradient, X: Tensor) -> Tensor:
        return gradient(X) * self.batch_size


class NotClippedInRound3(PrivateGossip):
    def step(self, state, k, graph, gradient, noise):
        faulty = NotClipped(**self.model_dump()) if k == 3 else PrivateGossip(**self.model_dump())
        return type(faulty).step(faulty, state, k, graph, gradient, noise)


class SignOfNoisy(PrivateGossip):
    """Correct: of the noisy sum, the signs."""

    def noised(self, S: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noised(S, k, noise).sign()


class SignOfLess(SignOfNoisy):
    """Signs of a sum under a tenth of the declared noise."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise) / 10


def config_of(defense: PrivateGossip, *attacks: dict[str, object]) -> AuditConfig:
    content = CallerObjects(defense, _records()).fill(_content(defense, 1, list(attacks), "ring"))
    return AuditConfig.from_dict(content, defense)


@pytest.fixture
def audited(tmp_path, monkeypatch):
    """The law of the noise has tests of its own; here a tenth of its plays will do."""
    monkeypatch.setattr("dpaudit.game.runs.noise_law.WORK", 4 * 10**6)

    def run(defense: PrivateGossip, *attacks: dict[str, object]) -> AuditResult:
        own = CallerObjects(defense, _records())
        with torch.random.fork_rng():
            return run_audit(config_of(defense, *attacks), tmp_path, Runtime(cores=1), own=own)

    return run


@pytest.mark.parametrize(
    "faulty, verdict",
    [
        (NoiseQuarter, Verdict.UNSUPPORTED),
        pytest.param(NoiseOff, Verdict.REFUTED, marks=pytest.mark.slow),
        pytest.param(NoiseOfStd0, Verdict.REFUTED, marks=pytest.mark.slow),
        pytest.param(NotClipped, Verdict.UNSUPPORTED, marks=pytest.mark.slow),
        (NotClippedInRound3, Verdict.UNSUPPORTED),
        pytest.param(SignOfLess, Verdict.UNSUPPORTED, marks=pytest.mark.slow),
    ],
)
def test_a_fault_is_found_without_any_attack(audited, faulty, verdict) -> None:
    result = audited(faulty(noise_multiplier=2.0, n_rounds=3))
    assert result.verdict is verdict
    assert result.exit_code == 1


@pytest.mark.parametrize(
    "correct", [PrivateGossip, pytest.param(SignOfNoisy, marks=pytest.mark.slow)]
)
def test_a_correct_mechanism_is_supported(audited, correct) -> None:
    """Fails falsely with probability 2e-6 over fresh seeds: the level of the tests of noise."""
    result = audited(correct(noise_multiplier=2.0))
    assert result.verdict is Verdict.SUPPORTED
    assert result.exit_code == 0


def test_what_was_not_examined_is_in_the_verdict(audited, monkeypatch) -> None:
    monkeypatch.setattr("dpaudit.pipeline.jobs.MOST_BYTES", dict.fromkeys(MOST_BYTES, 1000))
    (claim,) = audited(PrivateGossip(noise_multiplier=2.0)).claims
    assert "Not examined: the exact leak of the view (it takes" in claim.reason
    assert "how far a record moves messages (it takes" in claim.reason


def jobs(*attacks: dict[str, object]) -> list[str]:
    defense = PrivateGossip(noise_multiplier=2.0)
    config = config_of(defense, *attacks)
    return names_of_attacks(prepare(config, Runtime(), CallerObjects(defense, _records())))


def test_attacks_of_the_file_stand_in_for_examinations() -> None:
    assert jobs() == [LEAK, DISTANCE, NOISE_OF_THE_RUN]
    asked = {"name": "likelihood-ratio", "trials": 400}
    assert jobs(asked) == ["00-likelihood-ratio-eavesdropper", DISTANCE, NOISE_OF_THE_RUN]
    assert LEAK not in jobs(asked)
    assert DISTANCE not in jobs({"name": "sensitivity"})


def test_every_round_of_a_small_run_is_examined(setting_of) -> None:
    setting = setting_of("ring", 4, "logistic")[1]
    defense = PrivateGossip(n_rounds=30)
    assert examined_for_distances(defense, setting, Streams(1)) == tuple(range(1, 31))


def test_rounds_of_a_long_run_are_drawn_from_the_first(setting_of) -> None:
    setting = setting_of("ring", 4, "logistic")[1]
    defense = PrivateGossip(n_rounds=10_000, batch_size=1000)
    one, other = (examined_for_distances(defense, setting, Streams(seed)) for seed in (1, 2))
    assert one != other
    assert one[0] == other[0] == 1
    assert max(one + other) <= max(REACH, len(one))
