"""Claims of one audit on different neighbours: each is judged by what was measured of its own."""

from collections.abc import Mapping
from typing import Any

import pytest

import dpaudit
from dpaudit.defense.contract import Setting, Stated
from dpaudit.defense.transcript import Messages
from dpaudit.defenses.dpsgd import DPDPSGD
from dpaudit.files.claim import Adjacency
from dpaudit.files.finding import Role
from dpaudit.files.verdict import Verdict


class ForgetsTheRecordTakenOut(DPDPSGD):
    """States for a replaced record what holds for an added one: half of how far sums move."""

    def sensitivity(
        self, k: int, setting: Setting, adjacency: Adjacency, victim: int, sent: Messages
    ) -> Mapping[str, Stated]:
        return super().sensitivity(k, setting, "add-remove", victim, sent)


class ForgetsHalf(DPDPSGD):
    """States half of how far an added record moves a sum, and the truth of a replaced one."""

    def sensitivity(
        self, k: int, setting: Setting, adjacency: Adjacency, victim: int, sent: Messages
    ) -> Mapping[str, Stated]:
        stated = super().sensitivity(k, setting, adjacency, victim, sent)
        if adjacency == "replace-one":
            return stated
        return {name: bound._replace(value=bound.value / 2) for name, bound in stated.items()}


def audit(defense: DPDPSGD, *adjacencies: Adjacency) -> Any:
    config = {
        "seed": 0,
        "data": {"name": "digits", "n_agents": 4},
        "graph": {"name": "ring"},
        "model": {"name": "logistic"},
        "claim": [
            {"text": adjacency, "epsilon": 1e3, "delta": 1e-5, "adjacency": adjacency}
            for adjacency in adjacencies
        ],
        "threat_model": [{"name": "eavesdropper"}],
        "attack": [{"name": "sensitivity", "points": 1, "restarts": 1, "steps": 0}],
    }
    return dpaudit.audit(config, defense=defense, cores=1)


@pytest.mark.parametrize(
    ("defense", "wrong"),
    [
        (ForgetsTheRecordTakenOut, {"replace-one"}),
        pytest.param(  # a user's records are bounded one by one
            ForgetsHalf, {"add-remove", "user"}, marks=pytest.mark.slow
        ),
    ],
)
def test_a_claim_is_not_judged_by_a_bound_on_other_neighbours(
    defense: type[DPDPSGD], wrong: set[str]
) -> None:
    result = audit(
        defense(n_rounds=2, batch_size=4, noise_multiplier=1.0, clip_norm=0.1),
        "add-remove",
        "replace-one",
        "user",
    )
    verdicts = {claim.adjacency: claim.verdict for claim in result.claims}
    assert {a for a, verdict in verdicts.items() if verdict is Verdict.UNSUPPORTED} == wrong
    moved = [f for f in result.findings if f.role is Role.SENSITIVITY]
    assert [f.adjacency for f in moved] == ["add-remove", "replace-one"]
