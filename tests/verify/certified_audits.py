"""Twenty small audits that differ in what is claimed, how it is accounted and what speaks for it."""

from pathlib import Path
from typing import Any

from dpaudit.files.certificate import certificate_of
from dpaudit.files.config import AuditConfig
from dpaudit.pipeline.run import Runtime, run_audit

Options = dict[str, Any]
RUNS = {"name": "likelihood-ratio", "trials": 200}
AGENT = {"name": "agent 1", "kind": "curious", "agents": [1]}
EVERYONE = {"name": "eavesdropper", "kind": "external"}
AUDITS: dict[str, Options] = {
    "as it is": {},
    "a claim that accounting exceeds": {"claim": {"epsilon": 0.1}},
    "poisson batches": {"defense": {"sampling": "poisson", "batch_size": 30}},
    "whole batches": {"defense": {"batch_size": 359}},
    "calibrated noise": {"defense": {"noise_multiplier": None, "epsilon": 3.0}},
    "five rounds": {"defense": {"n_rounds": 5}, "seed": 4},
    "replace-one": {"claim": {"adjacency": "replace-one"}},
    "mu": {"claim": {"epsilon": None, "delta": 0.0, "mu": 1.5}},
    "a round": {"claim": {"scope": "round"}},
    "a message": {"claim": {"scope": "message"}},
    "all records of a user": {"claim": {"adjacency": "user", "epsilon": 300.0}},
    "a curious agent": {"threat_model": [AGENT]},
    "two adversaries": {"threat_model": [EVERYONE, AGENT]},
    "all links": {"graph": {"name": "complete"}, "seed": 5},
    "little noise": {"defense": {"noise_multiplier": 0.6}, "claim": {"epsilon": 30.0}},
    "counted runs": {"attack": [RUNS], "defense": {"batch_size": 359}},
    "counted runs that refute": {
        "attack": [RUNS],
        "defense": {"batch_size": 359, "noise_multiplier": 0.3},
        "claim": {"epsilon": 1.0},
    },
    "counted runs against mu": {
        "attack": [RUNS],
        "defense": {"batch_size": 359},
        "claim": {"epsilon": None, "delta": 0.0, "mu": 0.5},
    },
    "another defense": {"defense": {"name": "dpdl"}},
    "no noise": {"defense": {"name": "dgd", "noise_multiplier": None}},
}


def certificate(name: str, folder: Path) -> str:
    """The text of the certificate of an audit, which is run in an empty folder."""
    asked = AUDITS[name]
    plain: Options = {"text": "ours", "epsilon": 4.0, "delta": 1e-5}
    defense: Options = {"name": "dp-dpsgd", "n_rounds": 2, "batch_size": 8}
    defense |= {"noise_multiplier": 2.0} | asked.get("defense", {})
    claim = plain | asked.get("claim", {})
    content: Options = {
        "data": {"name": "digits", "n_agents": 4},
        "graph": {"name": "ring"},
        "model": {"name": "logistic"},
        **{key: value for key, value in asked.items() if key not in ("defense", "claim")},
        "defense": {key: value for key, value in defense.items() if value is not None},
        "claim": [{key: value for key, value in claim.items() if value is not None}],
    }
    config = AuditConfig.from_dict(content)
    result = run_audit(config, folder, Runtime(cores=1))
    return certificate_of(result, folder).to_json()
