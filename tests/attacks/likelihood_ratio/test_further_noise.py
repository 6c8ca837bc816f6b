"""Noise that is not independent and comes on top of noise that is.

A correct mechanism fails with probability 1e-6 for each test of its noise. The seed is fixed.
"""

import pytest

from dpaudit.defense.contract import Defense
from dpaudit.files.finding import Role
from dpaudit.files.verdict import Verdict
from tests.pipeline.correct_noise import (
    OffsetForTheRun,
    OffsetOfAllCoordinates,
    OffsetsOfAll,
    OffsetWithSuchNames,
    RandomWalk,
)
from tests.pipeline.faulty_noise import HalfAndOffset, OffsetTakenBack, SeededOnceAndOffset

from .test_attack import claim, findings

LITTLE = 'without the draws "once" the noise is as it should be and hides what is declared'


def named(defense: Defense) -> str:
    return type(defense).__name__


@pytest.mark.parametrize("trials", [0, 400])
@pytest.mark.parametrize(
    "adjacency", ["add-remove", pytest.param("replace-one", marks=pytest.mark.slow)]
)
def test_an_offset_for_the_run_is_no_fault(trials: int, adjacency: str) -> None:
    generous = claim(100.0, adjacency=adjacency)
    noise = findings(OffsetForTheRun(), generous, records=40, trials=trials)[Role.NOISE]
    assert noise.verdict is None
    assert any(note.startswith(LITTLE) for note in noise.notes)
    assert any(note.startswith("with these draws p = ") for note in noise.notes)
    assert noise.metrics["p-value"].value > 1e-6


@pytest.mark.parametrize(
    "correct",
    [
        OffsetOfAllCoordinates(),
        *(
            pytest.param(made, marks=pytest.mark.slow)
            for made in (OffsetWithSuchNames(), RandomWalk(), OffsetsOfAll())
        ),
    ],
    ids=named,
)
def test_further_noise_is_no_fault(correct: Defense) -> None:
    found = findings(correct, claim(100.0), records=40, trials=0)
    assert found[Role.NOISE].verdict is None


@pytest.mark.parametrize("scope", ["round", "message"])
def test_an_offset_is_no_fault_for_claims_on_a_part(scope: str) -> None:
    found = findings(OffsetForTheRun(), claim(100.0, scope=scope), records=40, trials=0)
    assert found[Role.NOISE].verdict is None


@pytest.mark.parametrize(
    "fault",
    [
        HalfAndOffset(),
        pytest.param(HalfAndOffset(kept=0.99), marks=pytest.mark.slow),
        OffsetTakenBack(),
        pytest.param(SeededOnceAndOffset(), marks=pytest.mark.slow),
    ],
    ids=named,
)
def test_an_offset_beside_too_little_noise_is_found(fault: Defense) -> None:
    found = findings(fault, claim(100.0), records=40, trials=0)
    assert found[Role.NOISE].verdict is Verdict.UNSUPPORTED
