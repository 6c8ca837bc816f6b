"""Programs whose records can only be replaced, as of a sum that is divided by their number."""

from pathlib import Path

import numpy as np
import pytest

from dpaudit.capture.record_changes import adding_nothing
from dpaudit.files.result import AuditResult
from dpaudit.files.verdict import Verdict
from dpaudit.files.world import FAR, How
from tests.capture.test_premises import audited

CLAIMS = (
    {"text": "in a round", "mu": 2.0, "scope": "round", "adjacency": "replace-one"},
    {"text": "less", "mu": 1.98, "scope": "round", "adjacency": "replace-one"},
)
GENEROUS = ({"text": "far more", "mu": 60.0, "adjacency": "replace-one"},)
RNG = np.random.default_rng(3)


def verdicts(result: AuditResult) -> list[Verdict]:
    return [claim.verdict for claim in result.claims]


@pytest.mark.parametrize(
    ("variant", "victims"),
    [
        ("divided-by-count alone", (0,)),
        pytest.param("divided-by-count", (0, 1), marks=pytest.mark.slow),
    ],
)
def test_a_sum_divided_by_the_number_of_records_is_supported(
    tmp_path: Path, variant: str, victims: tuple[int, ...]
) -> None:
    """All records move where one is left out, and no claim is of that."""
    at, below = audited(tmp_path, variant, CLAIMS, victims=victims).claims
    assert at.verdict is Verdict.SUPPORTED, at.reason
    assert below.verdict is not Verdict.SUPPORTED
    assert at.range is not None
    assert at.range.accounted == pytest.approx(below.range.accounted)  # type: ignore[union-attr]


@pytest.mark.slow
def test_noise_for_each_record_is_supported(tmp_path: Path) -> None:
    """Without one record, as many draws are fewer by one: such runs cannot be compared."""
    result = audited(tmp_path / "alone", "noise-of-each-record", CLAIMS[:1])
    assert verdicts(result) == [Verdict.SUPPORTED], result.sentence


FAULTS = (
    *("clip-of-batch", "no-clip-far-out", "no-clip-in-between", "no-clip-of-label"),
    *(
        "no-clip-of-last",
        "clip-of-largest",
        "clip-of-median",
        "normalised-by-batch",
        "used-twice",
        "second-used-twice",
    ),
    *("stop-when-short", "remembered", "no-clip-of-layer", "low-in-a-round", "dropped-far-out"),
)


@pytest.mark.slow
@pytest.mark.parametrize("variant", FAULTS)
def test_no_fault_is_supported_where_records_are_replaced(tmp_path: Path, variant: str) -> None:
    assert Verdict.SUPPORTED not in verdicts(audited(tmp_path, variant, GENEROUS))


def clipped(centre: np.ndarray, adding: set[str]) -> dict[How, np.ndarray]:
    """Moves to records far out, from one that is this far from one that adds nothing."""
    of = {d: v / np.linalg.norm(v) for d in ("own", "level", "few") for v in [RNG.normal(size=9)]}
    moves = {}
    for how in FAR:
        direction, _, rest = how.partition(":")
        sign = -1.0 if rest.startswith("-") else 1.0
        moves[how] = centre + (sign * of[direction] if how in adding else 0.0)
    return moves


@pytest.mark.parametrize("adding", [{*FAR}, {*FAR[::2]}, {*FAR[:6]}], ids=("all", "half", "near"))
def test_what_adds_nothing_is_seen(adding: set[str]) -> None:
    """By opposite records, or by those far out that have no loss."""
    centre = RNG.normal(size=9)
    found = adding_nothing(clipped(centre, adding), 2)
    assert found is not None
    assert found == pytest.approx(centre)


def test_where_no_record_adds_nothing_it_is_not_seen() -> None:
    moves = {how: RNG.normal(size=9) for how in FAR}
    assert adding_nothing(moves, 2) is None
    at_one: dict[How, np.ndarray] = dict.fromkeys(FAR, np.ones(9))
    assert adding_nothing(at_one, 1) == pytest.approx(np.ones(9))
    alone = {how: moves[how] for how in FAR if how.startswith("own")}
    alone[FAR[0]] = alone[FAR[1]]  # of one direction: a clip, and no record that adds nothing
    assert adding_nothing(alone, 2) is None


def test_of_two_middles_the_further_one_counts() -> None:
    """Records at two points may both add nothing; from the second, others are further."""
    moves = {how: np.array([float(i), 0.0]) for i, how in enumerate(FAR)}
    moves |= {"own:1e3": np.zeros(2), "level:1e3": np.zeros(2)}
    moves |= {"few:1e3": np.array([5.0, 0.0]), "own:-1e3": np.array([5.0, 0.0])}
    assert adding_nothing(moves, 2) == pytest.approx(np.zeros(2))
