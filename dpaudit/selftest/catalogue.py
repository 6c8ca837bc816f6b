"""All mechanisms that audits are tried on, and what an ordinary audit says of each.

Nothing is applied to a defense here that an audit file would not apply: the pipeline trains it on a
small problem, plays its game, moves its records, examines its noise and judges its claim.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from dpaudit.accounting.releases import epsilon
from dpaudit.data.datasets import Dataset, from_arrays
from dpaudit.defense import Setting, ThreatModel
from dpaudit.files.config import AuditConfig
from dpaudit.files.result import JudgedClaim
from dpaudit.files.verdict import AGAINST, Verdict
from dpaudit.graphs.graph import build_graph
from dpaudit.pipeline.caller_objects import CallerObjects
from dpaudit.pipeline.run import Runtime, run_audit

from .correct import Mechanism, PrivateGossip
from .faults import COMMON_MISTAKES, FAULTS, RECORDS
from .odd import CORRECT, LIKE_MISTAKES

MECHANISMS = COMMON_MISTAKES + LIKE_MISTAKES
WITHOUT_ATTACKS = FAULTS + CORRECT

AGENTS, FEATURES, CLASSES = 6, 11, 3
NOISE = {"gaussian": 2.0, "laplace": 3.0}  # multipliers, for claims that runs could refute
DELTA = 1e-5
ATTACKS: tuple[Mapping[str, Any], ...] = (
    {"name": "likelihood-ratio", "trials": 400},
    {"name": "sensitivity", "points": 2, "restarts": 2, "steps": 5},
)


# noise made of draws in ways that neither the algebra nor an alignment covers
NOT_EXAMINED = ("noise by Box and Muller", "noise by inversion", "noise reflected at random")


class Said(NamedTuple):
    """What an ordinary audit says of a mechanism."""

    mechanism: Mechanism
    claim: JudgedClaim
    seconds: float
    found_by: str | None = None  # the role of the finding that decided, if it is one

    @property
    def alarmed(self) -> bool:
        return self.claim.verdict in AGAINST

    @property
    def is_supported(self) -> bool:
        return self.claim.verdict is Verdict.SUPPORTED

    @property
    def passed(self) -> bool:
        """Faults are found; what is correct is supported, but for ``NOT_EXAMINED``."""
        if not self.mechanism.is_correct:
            return self.alarmed
        return self.is_supported or (self.mechanism.name in NOT_EXAMINED and not self.alarmed)


def ordinary_audits(
    seed: int,
    mechanisms: Sequence[Mechanism] = MECHANISMS,
    attacks: Sequence[Mapping[str, Any]] = ATTACKS,
) -> Iterator[Said]:
    """An audit of each mechanism's claim, which is the epsilon of what it declares."""
    for mechanism in mechanisms:
        began = perf_counter()
        claim, found_by = judged(mechanism.defense, seed, attacks, mechanism.graph)
        yield Said(mechanism, claim, perf_counter() - began, found_by)


def audits_without_attacks(
    seed: int, mechanisms: Sequence[Mechanism] = WITHOUT_ATTACKS
) -> Iterator[Said]:
    """An audit of each mechanism's claim that asks for no attack."""
    yield from ordinary_audits(seed, mechanisms, attacks=())


def judged(
    defense: PrivateGossip,
    seed: int,
    attacks: Sequence[Mapping[str, Any]] = ATTACKS,
    graph: str = "ring",
) -> tuple[JudgedClaim, str | None]:
    """The verdict of one ordinary audit, and the role of the finding that decided."""
    defense = defense.model_copy(update={"noise_multiplier": NOISE[defense.family]})
    own = CallerObjects(defense, _records())
    content = _content(defense, seed, attacks, graph)
    config = AuditConfig.from_dict(own.fill(content), defense)
    with TemporaryDirectory(prefix="dpaudit-") as folder:
        result = run_audit(config, Path(folder), Runtime(cores=1), own=own, report=False)
    claim = result.claims[0]
    return claim, None if claim.decisive is None else result.findings[claim.decisive].role


def _records() -> Dataset:
    rng = np.random.default_rng(1)
    y = np.arange(60) % CLASSES
    x = (rng.normal(size=(60, FEATURES)) + np.eye(CLASSES, FEATURES)[y]).astype(np.float32)
    known = from_arrays(x, y, seed=0)
    n = AGENTS * RECORDS
    return replace(known, x=known.x[:n], y=known.y[:n])


def _content(
    defense: PrivateGossip, seed: int, attacks: Sequence[Mapping[str, Any]], graph: str
) -> dict[str, Any]:
    setting = Setting(build_graph(graph, AGENTS), (RECORDS,) * AGENTS, (FEATURES + 1) * CLASSES)
    declared = defense.mechanism(setting, ThreatModel(name="eavesdropper"), 0).most
    delta = DELTA if defense.family == "gaussian" else 0.0
    return {
        "seed": seed,
        "data": {"n_agents": AGENTS},
        "graph": {"name": graph},
        "model": {"name": "logistic"},
        "claim": [{"text": "the claim", "epsilon": epsilon(declared, delta).high, "delta": delta}],
        "attack": [dict(attack) for attack in attacks],
    }
