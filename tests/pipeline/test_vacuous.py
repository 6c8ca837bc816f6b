"""Claims that a mechanism which hides nothing would keep to."""

import pytest

from dpaudit.defense.contract import Setting
from dpaudit.files.claim import Claim
from dpaudit.graphs.graph import build_graph
from dpaudit.pipeline.notes import vacuous_notes

SETTING = Setting(build_graph("ring", 4), (100, 50, 50, 50), 10)


def notes(**claim: object) -> list[str]:
    stated = Claim.model_validate({"text": "Theorem 1", "epsilon": 1.0, "delta": 1e-5} | claim)
    return [note.text for note in vacuous_notes([stated], SETTING)]


@pytest.mark.parametrize(
    "claim",
    [
        {},
        {"epsilon": 13.8},
        {"delta": 0.0099},
        {"delta": 0.24, "adjacency": "user"},
        {"epsilon": None, "delta": 0.0, "mu": 2.0},
    ],
)
def test_a_claim_that_promises_something_has_no_warning(claim) -> None:
    assert notes(**claim) == []


def test_a_large_epsilon_is_said_to_promise_next_to_nothing() -> None:
    (said,) = notes(epsilon=14.0)
    assert "epsilon 14 allows an adversary" in said
    assert "less than once in 1,000,000 guesses" in said
    assert len(notes(epsilon=None, delta=0.0, mu=50.0)) == 1
    assert len(notes(epsilon=None, delta=0.0, mu=1e4)) == 1


def test_a_delta_of_one_record_or_more_promises_little() -> None:
    (said,) = notes(delta=0.01)
    assert "one of the 100 records of an agent" in said
    (said,) = notes(delta=0.25, adjacency="agent-identity")
    assert "one of the 4 agents" in said
