"""How membership and shadow models score records, by hand."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import dpaudit.attack as da
from dpaudit.attacks import membership
from dpaudit.attacks.membership import Membership, _Batch
from dpaudit.attacks.shadow_models import scores as shadow_scores
from dpaudit.attacks.shadow_models import shadows
from dpaudit.attacks.shadow_models.attack import ShadowModels
from dpaudit.attacks.shadow_models.attack import _Scored as ScoredRuns
from dpaudit.attacks.shadow_models.shadows import RecordAssignment

NOTHING: Any = None


class PerRecord:
    """A record's gradient is its input."""

    def per_record(self, models: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        parts.append(inputs.shape[1])
        return inputs * 1.0


parts: list[int] = []


def a_batch(clip_norm: float | None = None, std: float | None = None, **of: Any) -> _Batch:
    """Records (3, 4) and (0, 1) of a batch of two; public ones beside them."""
    data = SimpleNamespace(
        x_test=torch.tensor(of.get("public", [[1.0, 0.0], [0.0, 2.0], [4.0, 3.0]])),
        y_test=torch.zeros(3),
    )
    problem: Any = SimpleNamespace(gradients=PerRecord(), dataset=data)
    estimate: Any = SimpleNamespace(
        model=torch.zeros(2), gradient=torch.tensor(of.get("gradient", [1.5, 2.5])), std=std
    )
    inputs = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    return _Batch(problem, inputs, torch.zeros(2), estimate, clip_norm, 2, "round 1, agent 3")


def test_records_are_scored_beside_public_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standardised by the mean and spread of public scores; in parts that memory holds."""
    found = a_batch().scored()
    raw = [1.5, 2.5, (6 + 7.5) / 5]
    members = [(4.5 + 10) / 5, 2.5]
    assert found.public.tolist() == pytest.approx([(x - np.mean(raw)) / np.std(raw) for x in raw])
    expected = [(x - np.mean(raw)) / np.std(raw) for x in members]
    assert found.members.tolist() == pytest.approx(expected)
    with pytest.raises(da.DpauditError, match="scores of round 1, agent 3 are no numbers"):
        a_batch(gradient=[0.0, 0.0]).scored()
    clipped = torch.cat([*a_batch(1.0).gradients(a_batch().inputs, torch.zeros(2))])
    assert clipped.tolist() == [pytest.approx([0.6, 0.8]), [0.0, 1.0]]
    for chunk, sizes in ((8, [1, 1]), (16, [2]), (1, [1, 1])):
        monkeypatch.setattr(membership, "CHUNK", chunk)
        parts.clear()
        list(a_batch().gradients(a_batch().inputs, torch.zeros(2)))
        assert parts == sizes


def test_members_and_public_records_have_one_kind_of_score() -> None:
    """The noise is longer than each member's gradient, and shorter than a public one's."""
    public = [[6.0, 0.0], [0.0, 2.0], [4.0, 3.0]]  # 36, against 25 and 1 of members, 32 of noise
    longer = a_batch(std=4.0, public=public).scored()
    raw = np.array([9 / 6, 2.5, (6 + 7.5) / 5])
    expected = (np.array([(4.5 + 10) / 5, 2.5]) - raw.mean()) / raw.std()
    assert longer.members.tolist() == pytest.approx(expected.tolist())


def test_a_record_is_matched_beside_the_others_of_its_batch(monkeypatch: Any) -> None:
    """The estimate less the other record's share; two public ones are decoys."""
    asked: list[Any] = []
    monkeypatch.setattr(
        membership, "is_matched",
        lambda left, record, decoys, b, rng: asked.append(
            (left.tolist(), record.tolist(), decoys.tolist(), b)
        ) or True,
    )  # fmt: skip

    class Random:
        def integers(self, n: int) -> int:
            assert n == 2
            return 1

        def permutation(self, n: int) -> Any:
            assert n == 3
            return np.array([2, 0, 1])

    rng: Any = Random()
    assert a_batch().matched(3, rng)
    assert asked == [([0.0, 0.5], [0.0, 1.0], [[4.0, 3.0], [1.0, 0.0]], 2)]


def test_candidates_and_records_that_nobody_holds_are_enough() -> None:
    def refused(tests: int, candidates: int | None = None) -> bool:
        learned: Any = SimpleNamespace(dataset=SimpleNamespace(x_test=range(tests)))
        try:
            Membership(rounds=(1,), candidates=candidates).refuse(learned, NOTHING)
        except da.DataError:
            return True
        return False

    assert [refused(n) for n in (39, 40)] == [True, False]
    assert [refused(40, c) for c in (2, 41, 42)] == [False, False, True]
    assert Membership(rounds=(1,)).victims == 8


def test_a_record_alone_has_no_direction_of_others() -> None:
    """Of two statistics of a single record, whose members are no direction to look along."""
    rng = np.random.default_rng(0)
    included = np.array([[True], [True], [False], [False], [False]])
    references = shadow_scores.References(rng.normal(size=(5, 1, 2)), included)
    found = shadow_scores.lira_offline(rng.normal(size=(3, 1, 2)), references)
    assert found.tolist() == [[0.0]] * 3
    invalid = [option for option, _ in ShadowModels(rounds=(3, 11)).validate_options(10, 4)]
    assert len(invalid) == 1
    assert not list(ShadowModels().validate_options(10, 4))


def test_half_of_attacked_runs_choose_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of five runs two choose, by records that they do not have."""
    asked: list[Any] = []

    class Rates(SimpleNamespace):
        notes = ("rates",)

        def _replace(self, notes: Any) -> Any:
            return notes

    monkeypatch.setattr(
        "dpaudit.attacks.shadow_models.attack.membership_rates",
        lambda *of: asked.append([x.tolist() for x in of]) or Rates(),
    )  # fmt: skip
    numbers = np.arange(10.0).reshape(5, 2)
    included = np.array([[1, 0], [0, 0], [1, 1], [0, 1], [0, 0]], dtype=bool)
    notes: Any = ScoredRuns(numbers, included, 0).rates()
    assert asked == [[[4.0, 5.0, 7.0], [1.0, 2.0, 3.0], [6.0, 8.0, 9.0]]]
    assert notes == ("3 members and 3 others", "rates")
    less: Any = ScoredRuns(numbers, included, 4).rates()
    assert less[1].startswith("4 records are in too few reference runs")


def test_runs_are_trained_in_blocks_and_read_after_rounds(monkeypatch: Any) -> None:
    """Three runs, two at once, of rounds 1 and 3 of three."""
    monkeypatch.setattr(shadows, "_runs_at_once", lambda setting: 2)
    monkeypatch.setattr(
        shadows, "statistics",
        lambda problem, X, which, gradients: np.full((len(X), len(which), 1 + gradients), float(X[0])),
    )  # fmt: skip
    kept: list[str] = []
    saved: Any = SimpleNamespace(
        last=lambda: None,
        keep=lambda now: kept.append("keep"),
        done=lambda now: kept.append("done"),
    )
    monkeypatch.setattr(shadows, "_progress", lambda *of: of)
    blocks: list[Any] = []

    class Trials(SimpleNamespace):
        def holding(self, held: Tensor) -> str:
            return f"holding {held.flatten().tolist()}"

    problem = object.__new__(da.Classification)
    monkeypatch.setattr(
        da.Classification,
        "for_trials",
        lambda self, shared, own, n, victim: Trials(),
        raising=False,
    )

    def run_trials(defense: Any, fixed: Any, setting: Any, own: Any, n: int, watch: Any, after: Any) -> None:  # fmt: skip
        blocks.append((fixed, own, n, after))
        for k in (1, 2, 3):
            watch(k, SimpleNamespace(state=None))

    monkeypatch.setattr(da, "run_trials", run_trials)
    context: Any = SimpleNamespace(
        problem=problem, setting=None, seed=1, checkpoint=SimpleNamespace(stage=lambda b: saved),
        streams=SimpleNamespace(device="cpu", child=lambda *of: of),
    )  # fmt: skip
    dealt = RecordAssignment(
        torch.arange(3)[:, None, None], np.array([5, 6]), np.ones((3, 2), dtype=bool), np.array([7])
    )
    defense: Any = SimpleNamespace(n_rounds=3)
    sees = True
    steps: list[Any] = []

    def train() -> Any:
        return shadows.train_shadows(
            context, defense, dealt, (1, 3),
            lambda k, played: torch.full((2, 1), 1.0 * k) if sees else None, True,
            lambda *s: steps.append(s),
        )  # fmt: skip

    found = train()
    assert blocks == [
        ("holding [0, 1]", ("shadows", 0), 2, None), ("holding [2]", ("shadows", 1), 1, None),
    ]  # fmt: skip
    assert steps == [(i, 6) for i in range(1, 7)]
    assert kept == ["keep", "keep", "done"] * 2
    assert found.records.shape == (4, 2, 2, 2)
    assert found.records[0, 0, :, 0].tolist() == [1.0, 3.0]
    assert found.public.shape == (4, 1, 2, 2)
    sees = False
    assert train() is None
    monkeypatch.undo()
    setting: Any = SimpleNamespace(n_agents=4, d=2**20)
    assert shadows._runs_at_once(setting) == 2**28 // (4 * 4 * 2**20)
    assert shadows._runs_at_once(SimpleNamespace(n_agents=4, d=2**30)) == 1  # type: ignore[arg-type]
