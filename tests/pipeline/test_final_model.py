"""Claims against an adversary that sees only a last model: what judges them, and what refuses."""

from typing import Any

import numpy as np
import pytest

import dpaudit
from dpaudit.errors import ConfigError
from dpaudit.files.config import AuditConfig
from dpaudit.files.finding import Name, Role
from dpaudit.files.verdict import Verdict

FINAL = {"name": "final", "kind": "final-model", "model_of": 1}


def config(
    *attacks: dict[str, Any], adversary: dict[str, Any] = FINAL, **defense: Any
) -> AuditConfig:
    options = {"name": "dp-dpsgd", "n_rounds": 3, "batch_size": 32, "noise_multiplier": 4.0}
    return AuditConfig.from_dict(
        {
            "seed": 3,
            "data": {"name": "digits", "n_agents": 4},
            "graph": {"name": "ring"},
            "model": {"name": "logistic"},
            "defense": options | defense,
            "claim": [{"text": "last model", "epsilon": 3.0, "delta": 1e-5}],
            "threat_model": [adversary],
            "attack": list(attacks),
        }
    )


@pytest.mark.slow
def test_a_claim_on_the_last_model_is_accounted_by_all_messages() -> None:
    result = dpaudit.audit(config(), cores=1)
    exact, declared = (
        next(f for f in result.findings if f.role is role)
        for role in (Role.EXACT_LEAK, Role.DECLARED)
    )
    assert result.verdict is Verdict.SUPPORTED
    assert declared.metrics[Name.EPSILON].low == 0
    assert 0 < exact.metrics[Name.EPSILON].low < exact.metrics[Name.EPSILON].high < 3
    assert exact.metrics[Name.EPSILON].high == pytest.approx(declared.metrics[Name.EPSILON].high)
    assert any(
        "post-processing" in note or "computed from messages" in note for note in declared.notes
    )


@pytest.mark.slow
def test_a_last_model_without_noise_refutes() -> None:
    """Here noise is on the message alone; the model of one round has the gradient as it is."""
    result = dpaudit.audit(config(perturb="model", n_rounds=1, noise_multiplier=500.0), cores=1)
    assert result.verdict is Verdict.REFUTED
    assert result.claims[0].codes[0] == "DPA101"
    assert '"final model" shows the record with no noise' in result.claims[0].reason


@pytest.mark.slow
def test_runs_and_canaries_are_read_from_the_last_model() -> None:
    attacks = {"name": "likelihood-ratio", "trials": 400}, {"name": "canaries", "canaries": 100}
    quiet = {"noise_multiplier": 0.02, "batch_size": 359, "sampling": "poisson"}
    result = dpaudit.audit(config(*attacks, **quiet), cores=1)
    bounds = {
        f.attack: f.value(Name.EPSILON_LOWER_BOUND) for f in result.findings if f.role is Role.TEST
    }
    assert bounds["likelihood-ratio"] > 3
    assert bounds["canaries"] > 0.5
    assert result.verdict is Verdict.REFUTED


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["crafted", "mislabelled"])
@pytest.mark.parametrize("access", ["white-box", "black-box"])
def test_records_are_guessed_from_a_last_model(kind: str, access: str) -> None:
    attack = {"name": "canaries", "kind": kind, "canaries": 20}
    result = dpaudit.audit(config(attack, adversary=FINAL | {"access": access}), cores=1)
    (test,) = (f for f in result.findings if f.role is Role.TEST)
    assert test.value(Name.GUESSES) == 2
    assert np.isfinite(test.value(Name.EPSILON_LOWER_BOUND) or 0.0)


@pytest.mark.slow
def test_mislabelled_records_are_found_without_sampling() -> None:
    """Batches of all 359 records: what sampled batches teach hides these canaries elsewhere.

    A bound above 0 of a model that shows nothing has probability 0.05 over fresh seeds.
    """
    attack = {"name": "canaries", "kind": "mislabelled", "canaries": 100, "guesses": 50}
    whole = {"batch_size": 359, "n_rounds": 20, "noise_multiplier": 0.01}
    result = dpaudit.audit(config(attack, adversary=FINAL, **whole), cores=1)
    (test,) = (f for f in result.findings if f.role is Role.TEST)
    assert test.value(Name.EPSILON_LOWER_BOUND) > 0.5


@pytest.mark.parametrize(
    "attack, access, said",
    [
        ({"name": "membership", "rounds": [1]}, "white-box", "membership reads messages, and "),
        ({"name": "likelihood-ratio"}, "black-box", "likelihood-ratio reads parameters, and "),
        (
            {"name": "likelihood-ratio", "n_rounds": 2},
            "white-box",
            "has the model after all 3 rounds",
        ),
        (
            {"name": "canaries", "n_rounds": 2},
            "white-box",
            "model after all 3 rounds; leave it out",
        ),
        ({"name": "canaries"}, "black-box", 'kind = "gradient": "final" has the losses of a model'),
    ],
)
def test_an_attack_that_cannot_read_it_is_refused(attack, access: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        dpaudit.audit(config(attack, adversary=FINAL | {"access": access}), cores=1)
