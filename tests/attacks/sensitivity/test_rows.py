"""What the rows of a run say of its bounds, and what an examination keeps, case by case."""

from math import inf, isnan
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from dpaudit.accounting.releases import Release
from dpaudit.attacks.sensitivity import attack, stand_in
from dpaudit.attacks.sensitivity.attack import Sensitivity
from dpaudit.attacks.sensitivity.bounded_noise import BeyondNoise
from dpaudit.attacks.sensitivity.examination import RoundExamination
from dpaudit.attacks.sensitivity.message_move import Row
from dpaudit.attacks.sensitivity.noise_log import DrawSizes
from dpaudit.attacks.sensitivity.search import stacked, starts, wrong_labels
from dpaudit.files.finding import Column, Name
from dpaudit.files.verdict import Verdict


def row(moved: float = 1.0, stated: float | None = 2.0, **of: Any) -> Row:
    about = {"message": "x", "round": 1, "norm": 2, "tolerance": 0.0, **of}
    return Row(moved={"natural": moved}, stated=stated, **about)


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("options", "n_rounds", "rounds"),
    [
        ({"points": 1}, 9, {1}),
        ({"points": 2}, 9, {1, 9}),
        ({"points": 3}, 9, {1, 5, 9}),
        ({"points": 10}, 4, {1, 2, 3, 4}),
        ({"points": 10}, 1, {1}),
        ({"rounds": (3, 3, 1)}, 9, {1, 3}),
    ],
)
def test_rounds_lie_evenly_from_the_first_to_the_last(options, n_rounds, rounds) -> None:
    assert Sensitivity(**options)._rounds(n_rounds) == rounds


def test_a_round_is_that_of_its_row_that_counts_or_the_larger() -> None:
    counts, larger = row(2.5), row(9.0, None)
    of = [row(1.0, round=3), row(1.5, round=2), larger, counts, row(4.0, message="y")]
    found = list(attack._by_message([*of, row(0.5, round=2)]))
    assert found == [[counts, of[1], of[0]], [of[4]]]
    assert list(attack._by_message([row(1.0), row(3.0, 4.0)])) == [[row(3.0, 4.0)]]


def test_series_have_a_gap_where_a_kind_is_missing() -> None:
    rows = [row(1.0, None), row(2.0, 3.0, round=4)._replace(moved={"optimised": 2.0})]
    found = attack._series(rows)
    assert found[Column.ROUND] == (1, 4)
    assert found["natural"][0] == 1.0
    assert isnan(found["natural"][1])
    assert isnan(found["optimised"][0])
    assert found["optimised"][1] == 2.0
    assert isnan(found[Column.STATED_BOUND][0])
    assert found[Column.STATED_BOUND][1] == 3.0
    assert Column.STATED_BOUND not in attack._series([row(1.0, None)])


@pytest.mark.parametrize(
    ("rows", "by_record", "verdict", "ratio"),
    [
        ([row(2.0)], False, None, 1.0),
        ([row(2.1)], False, Verdict.UNSUPPORTED, 1.05),
        ([row(2.1)], True, None, 1.05),
        ([row(2.1, tolerance=0.2)], False, None, 1.05),
        ([row(2.1, processed=True)], False, None, 1.05),
        ([row(1.0, noiseless=True), row(1.9, round=2)], False, Verdict.UNSUPPORTED, 0.5),
        ([row(3.0, None), row(1.0, round=2)], False, None, 0.5),
        ([row(1.0), row(1.5, round=2)], False, None, 0.75),
    ],
)
def test_one_row_that_counts_decides(rows, by_record, verdict, ratio) -> None:
    found = Sensitivity()._finding(rows, "add-remove", by_record, 0)
    assert found.verdict is verdict
    assert found.metrics[Name.MEASURED_OVER_STATED].value == pytest.approx(ratio)
    assert found.rounds == tuple(r.round for r in rows)
    assert found.adjacency == ("replace-one" if by_record else "add-remove")


def test_noise_is_compared_with_what_a_stated_bound_needs() -> None:
    declared = row(1.0, 1.5, by_releases=True, beyond=3.0)
    found = Sensitivity()._finding([declared], "add-remove", False, 0)
    assert found.metrics[Name.NOISE_OVER_NEEDED].value == 0.5
    for beyond, tolerance, known in ((0.99, 0.0, False), (0.99, 0.01, True), (1.0, 0.0, True)):
        of = [row(1.0, 1.5, beyond=beyond, tolerance=tolerance)]
        metrics = Sensitivity()._finding(of, "add-remove", False, 0).metrics
        assert (Name.NOISE_OVER_NEEDED in metrics) is known
    assert (
        Name.STATED_BOUND
        not in Sensitivity()._finding([row(1, None)], "function", False, 0).metrics
    )


@pytest.mark.parametrize(
    ("drawing", "probability", "delta", "seen"),
    [
        ("poisson", 0.02, 0.004, True),
        ("poisson", 0.02, 0.005, False),
        ("cyclic", 0.02, 0.019, True),
        ("cyclic", 0.02, 0.02, False),
    ],
)
def test_noise_that_ends_counts_beyond_delta(
    monkeypatch, drawing, probability, delta, seen
) -> None:
    """A record is in a quarter of the batches, or in each where they are taken in turn."""
    monkeypatch.setattr(attack, "beyond_the_noise", lambda of: BeyondNoise("x", probability, 3.0))
    defense = SimpleNamespace(drawing=drawing, sampling_rate=lambda n: 2 / n)
    of: Any = SimpleNamespace(defense=defense, setting=SimpleNamespace(sizes=(5, 8)), victim=1)
    found = list(attack._beyond(of, "add-remove", delta))
    assert len(found) == seen
    for one in found:
        assert one.verdict is Verdict.UNSUPPORTED
        assert one.metrics[Name.MEASURED].value == 3.0
    monkeypatch.setattr(attack, "beyond_the_noise", lambda of: None)
    assert not list(attack._beyond(of, "add-remove", 0.0))


def examined(aligned: Any, drawn: Any = None, unclear: Any = (), found: Any = ()) -> Any:
    release = Release(family="gaussian", noise_multiplier=2.0)
    coupled = SimpleNamespace(
        setting=SimpleNamespace(holders=(0, 1)), victim=0,
        declared=lambda agent: (release,),
    )  # fmt: skip
    return SimpleNamespace(
        coupled=coupled, aligned=aligned, drawn=drawn or {}, unclear=dict.fromkeys(unclear),
        found=dict.fromkeys(found),
    )  # fmt: skip


def test_alignments_of_all_rounds_give_a_figure(monkeypatch) -> None:
    monkeypatch.setattr(attack, "over_declared", lambda of, moves, adjacency: 0.1 * len(moves))
    monkeypatch.setattr(attack, "_FINDING", lambda **known: SimpleNamespace(**known))
    aligned: dict[Any, Any] = {("add-remove", k): {(0, "gaussian"): 1.0} for k in (1, 2, 3)}
    aligned["replace-one", 1] = {}
    for n, known in ((3, True), (4, False)):
        rounds: Any = {Name.ROUNDS: SimpleNamespace(value=n)}
        one: Any = attack._alignment(examined(aligned), "add-remove", rounds)
        assert (Name.MOVED_OVER_DECLARED in one.metrics) is known
        assert one.rounds == (1, 2, 3)
        assert len(one.notes) == 1


def test_what_depends_on_data_leaves_a_claim_unsupported() -> None:
    for found, verdict in (((), None), (("a", "b"), Verdict.UNSUPPORTED)):
        one = attack._dependence(examined({}, found=found, unclear=("c",)), {}, {}, ["n"])
        assert one.verdict is verdict
        assert one.metrics[Name.FOUND].value == len(found)
        assert one.not_examined == ("c",)
        assert one.notes[: len(found)] == found
        assert one.notes[-1] == "n"
        constant = attack._dependence(examined({}, found=found), {"x": None, "y": None}, {}, [])
        assert constant.notes[-1] == "bit-identical in all worlds: x, y"


def test_slopes_have_the_stated_length() -> None:
    coupled: Any = SimpleNamespace(
        defense=SimpleNamespace(function_distance=lambda: 6.0),
        setting=SimpleNamespace(d=4), streams=SimpleNamespace(device="cpu"),
    )  # fmt: skip
    found = attack._slopes(coupled)
    assert found["one coordinate"].tolist() == [6.0, 0.0, 0.0, 0.0]
    assert found["all coordinates"].tolist() == [1.5] * 4
    assert found[attack.TURNS].tolist() == [6.0, 0.0, 0.0, 0.0]
    assert [attack._turned(attack.TURNS, k) for k in (1, 2, 3, 4)] == [1, -1, 1, -1]
    assert [attack._turned("one coordinate", k) for k in (1, 2)] == [1, 1]


@pytest.mark.parametrize("counted", [1, 50])
def test_an_examination_takes_back_what_it_saved(counted: int) -> None:
    one = RoundExamination(None, 2, 3)  # type: ignore[arg-type]
    one.found, one.unclear, one.silent = {"a": None}, {"b": None, "c": None}, True
    one.aligned = {("add-remove", 1): {(0, "gaussian"): 2.0}, ("replace-one", 3): {}}
    one.drawn = {"gaussian": DrawSizes(3.5, counted)}
    other = RoundExamination(None, 2, 3)  # type: ignore[arg-type]
    other.restore(*one.saved())
    assert (other.found, other.unclear, other.silent) == (one.found, one.unclear, True)
    assert (other.aligned, other.drawn, other.aligns) == (one.aligned, one.drawn, True)
    one.aligned["add-remove", 2] = "which noise is drawn"
    other.restore(*one.saved())
    assert other.aligned == one.aligned
    assert not other.aligns


def test_what_a_small_model_shows_is_joined() -> None:
    one, small = (RoundExamination(None, 2, 3) for _ in range(2))  # type: ignore[arg-type]
    one.found, one.unclear = {"a": None}, {"u": None}
    one.aligned = {("add-remove", 1): {(0, "gaussian"): 2.0}}
    small.found, small.unclear = {"b": None}, {"v": None}
    small.aligned = {("add-remove", 1): "other", ("add-remove", 2): {}}
    one.join(small)
    assert [*one.found] == ["a", "b, on a small model"]
    assert [*one.unclear] == ["u", "v"]
    assert one.aligned == {
        ("add-remove", 1): {(0, "gaussian"): 2.0},
        ("add-remove", 2): {},
    }


def test_noise_of_all_rounds_is_counted_together() -> None:
    def play(state: int, k: int, oracle: Any) -> Any:
        drawn = {"gaussian": DrawSizes(2.0 * k, 10)} | (
            {"laplace": DrawSizes(7.0, 3)} if k == 2 else {}
        )
        return SimpleNamespace(drawn=drawn, state=state + 1)

    coupled: Any = SimpleNamespace(play=play, kept_oracle=lambda k: k, note_noise=lambda *_: None)
    one = RoundExamination(coupled, 0, 0)
    assert [one.next_state(0, 1), one.next_state(1, 2)] == [1, 2]
    assert one.drawn == {"gaussian": DrawSizes(6.0, 20), "laplace": DrawSizes(7.0, 3)}
    assert one._first_played is not None
    assert one._first_played.state == 1


def test_starts_are_the_record_and_draws_of_every_class() -> None:
    dataset: Any = SimpleNamespace(value_range=(-1.0, 3.0), n_classes=3)
    record: Any = SimpleNamespace(input=vector(0.5, 0.5), label=torch.tensor(1))
    for restarts, own in ((5, 2), (4, 2), (1, 0)):
        generator = torch.Generator().manual_seed(0)
        inputs, labels = starts(record, restarts, dataset, generator)
        assert labels.tolist() == [(i + 2) % 3 for i in range(restarts)]
        assert (inputs == record.input).all(1).tolist() == [i < own for i in range(restarts)]
        assert (inputs >= -1).all()
        assert (inputs <= 3).all()
    many, _ = starts(record, 4000, dataset, torch.Generator().manual_seed(0))
    assert float(many[2000:].min()) < -0.99
    assert float(many[2000:].max()) > 2.99


def test_wrong_labels_are_all_others() -> None:
    assert wrong_labels(torch.tensor(1), 4).tolist() == [0, 2, 3]
    assert wrong_labels(torch.tensor([1, 0]), 4).tolist() == [[2, 2], [3, 3]]
    assert wrong_labels(torch.tensor([0, 1, 2]), 3).tolist() == [[1, 2, 0]]


class State(NamedTuple):
    X: Tensor
    mask: Tensor


def test_masks_have_no_axis_of_trials() -> None:
    found = stacked(State(torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool)), 5)
    assert (found.X.shape, found.mask.shape) == ((5, 2, 3), (2, 3))


def test_a_row_is_clearly_beyond_its_bound() -> None:
    assert stand_in._is_clear(row(2.00001, 2.0))
    assert not stand_in._is_clear(row(2.000001, 2.0))
    assert not stand_in._is_clear(row(9.0, None))


def test_a_bound_has_room_for_a_millionth_and_rounding() -> None:
    for tolerance, most in ((0.0, 2.000002), (0.5, 2.500002)):
        within, beyond = (row(most + step, tolerance=tolerance) for step in (-1e-9, 1e-9))
        assert (within.exceeds, beyond.exceeds) == (False, True)
    assert row(inf, inf).exceeds
    assert not row(3.0, None).exceeds
