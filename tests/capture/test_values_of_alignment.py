"""Runs whose noise is moved, what they may differ by, and what a record costs, by hand."""

from functools import partial
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from dpaudit.accounting.families import gaussian_epsilon
from dpaudit.capture import alignment, extreme_records, premises
from dpaudit.capture.alignment import Alignments
from dpaudit.capture.composition import NOISELESS, SLACK, Least
from dpaudit.capture.named_models import stored_weights
from dpaudit.capture.premises import Cost, PremiseExamination
from dpaudit.capture.record_changes import Variant
from dpaudit.capture.runs import MessageId
from dpaudit.capture.visible_output import SAME
from dpaudit.errors import RunError
from dpaudit.files.claim import Claim
from dpaudit.files.threat import ThreatModel
from dpaudit.files.world import Change, World


@pytest.mark.parametrize(("first", "numbers"), [(False, [1, 2, 5]), (True, [1])])
def test_a_run_with_moved_noise_changes_each_batch(tmp_path: Path, first, numbers) -> None:
    tape = {"a": torch.tensor([[1.0, 2.0]]), "b": torch.ones(3), "c": torch.ones(1)}
    save_file(tape, tmp_path / "tape.safetensors")
    drawn = [SimpleNamespace(key=key, scale=scale) for key, scale in (("a", 2.0), ("b", 0.5))]
    runs = SimpleNamespace(
        replay=World(out=tmp_path, tape=tmp_path / "tape.safetensors"),
        base=SimpleNamespace(draws=drawn),
    )
    records = {0: {1: (7, 8, 9), 2: (0, 1, 2), 5: (3, 3, 3)}, 4: {3: (5, 6, 6)}}
    moved = {0: {(1, "a"): np.array([0.5, -1.0])}, 4: {(2, "b"): np.array([2.0, 0.0, 4.0])}}
    of: Any = SimpleNamespace(worlds=runs, records=records)
    of.with_noise_moved = partial(Alignments.with_noise_moved, of)
    world = Alignments.world(of, Variant("absent", 1), moved, (0, 4), first)
    assert world.tape == tmp_path / "absent-middle-0-4.safetensors"
    found = load_file(world.tape)
    assert found["a"].tolist() == [[0.0, 4.0]]
    assert found["b"].tolist() == [0.0, 1.0, -1.0]
    assert found["c"].tolist() == [1.0]
    assert world.changes == (
        *(Change(agent=0, batch=n, how="absent", record=records[0][n][1]) for n in numbers),
        Change(agent=4, batch=3, how="absent", record=6),
    )


@pytest.mark.parametrize(
    ("change", "noised", "left", "over", "named"),
    [
        (0.0, True, 0.0, 0.0, None),
        (0.5 * SAME, True, 0.0, 0.0, None),  # of the largest number, whatever its sign
        (2.0 * SAME, True, 0.0, 0.0, "composition"),
        (0.0, False, 0.0, 0.0, "composition"),  # what has no noise moves
        (0.0, True, 2e-4, 0.0, "composition"),
        (0.0, True, 0.0, 2e-4, "composition"),
        (0.0, True, 0.9e-4, 0.9e-4, None),
    ],
)
def test_a_run_differs_by_what_noise_does_not_hide(
    monkeypatch, change, noised, left, over, named
) -> None:
    """A message of one number with noise, which is -1,000, and two without."""
    message, asked = MessageId(0, (1,), "x", 2), list[Any]()

    def trace(first: float, second: float) -> Any:
        return SimpleNamespace(
            ids=[message], contents=[np.array([first - 1001.0, second, 1.0])], printed=("said",),
            other_order=lambda other: None, ordered="all",
        )  # fmt: skip

    def make_up(k: int, victim: int, changes: Any) -> Any:
        asked.append((k, victim, {m: c.tolist() for m, c in changes.items()}))
        return SimpleNamespace(left=left, units={0: np.array([0.6 * over, 0.8 * over])})

    monkeypatch.setattr(alignment.VisibleOutput, "of", lambda run, ordered: run)
    of: Any = SimpleNamespace(
        equal=SimpleNamespace(trace=trace(1.0, 2.0), printed=[("said",)]), victims=(0,),
        places={2: {0: SimpleNamespace(messages=(message,))}}, make_up=make_up,
        hidden=lambda m: np.array([noised, False, False]),
    )  # fmt: skip
    run: Any = trace(5.0, 2.0 + 1e3 * change)
    nothing: Any = None
    premise, said = Alignments.what_differs(of, nothing, run)
    assert premise == named
    assert asked == [(2, 0, {message: [4.0, run.contents[0][1] - 2.0, 0.0]})]
    assert bool(said) is (named is not None)


def cost(victim: int, adjacency: Any = "add-remove", noiseless: Any = None, **sizes: float) -> Any:
    return SimpleNamespace(victim=victim, adjacency=adjacency, noiseless=noiseless, sizes=sizes)


@pytest.mark.parametrize(
    ("costs", "of", "found"),
    [
        ([], {}, (0.0, None)),
        ([cost(0, gaussian=2.0), cost(1, gaussian=9.0)], {}, (12.0, None)),  # 1 is the adversary
        ([cost(0, gaussian=2.0), cost(2, gaussian=3.0)], {}, (13.0, None)),
        ([cost(0, "replace-one", gaussian=2.0)], {}, (0.0, None)),
        ([cost(1, noiseless="x"), cost(0, gaussian=2.0)], {}, (12.0, None)),
        ([cost(0, noiseless="x"), cost(2, gaussian=3.0)], {}, ("noiseless", "x")),
        ([cost(0, laplace=2.0)], {}, (0.0, None)),
        ([cost(0, laplace=2.0)], {"delta": 0.0}, (12.0, None)),
        ([cost(0, gaussian=0.0)], {}, (0.0, None)),
        ([cost(0, gaussian=2.0)], {"unread": True}, (0.0, None)),
        ([cost(0, gaussian=2.0)], {"unknown": "batches"}, (0.0, None)),
        ([cost(0, gaussian=2.0)], {"amplifies": True}, (12.0, None)),
        (
            [cost(0, "replace-one", gaussian=2.0)],
            {"amplifies": True, "of": "replace-one"},
            (0.0, None),
        ),
        ([cost(0, "replace-one", gaussian=2.0)], {"of": "replace-one"}, (12.0, None)),
    ],
)
def test_a_record_far_out_costs_whoever_reads_all(monkeypatch, costs, of, found) -> None:
    monkeypatch.setattr(premises, "released", lambda family, size, rate: (size, rate))
    monkeypatch.setattr(premises, "least", lambda some, delta, adjacency: Least(10 + some[0][0]))
    sampling = SimpleNamespace(
        unknown=lambda claim: of.get("unknown"), amplifies=of.get("amplifies", False), rate=0.5
    )
    sent = [MessageId(0, (1,), "x", 1), MessageId(1, (0,), "x", 1)]
    sent += [MessageId(0, (2,), "x", 1)] if of.get("unread") else []
    base = SimpleNamespace(messages=dict.fromkeys(sent))
    own: Any = SimpleNamespace(
        worlds=SimpleNamespace(base=base, sampling=sampling), costs=costs, of_runs=()
    )
    about = {"text": "c", "epsilon": 1.0, "adjacency": of.get("of", "add-remove")}
    claim = Claim.model_validate({**about, "delta": of.get("delta", 1e-5)})
    view = ThreatModel(name="view", kind="curious", agents=(1,))
    least, shown = PremiseExamination._least(own, claim, view)
    expected, what = found
    assert least == (NOISELESS if expected == "noiseless" else Least(expected))
    assert shown == what
    assert Cost._fields[:2] == ("victim", "adjacency")


@pytest.mark.parametrize(
    ("of_runs", "of", "found"),
    [
        ([cost(0, gaussian=[3.0, 4.0])], {}, 5.0),
        ([cost(1, gaussian=[9.0])], {}, 2.0),  # of the adversary
        ([cost(0, "replace-one", gaussian=[9.0])], {}, 2.0),
        ([cost(0, "replace-one", gaussian=[9.0])], {"adjacency": "replace-one"}, 9.0),
        ([cost(0, gaussian=[3.0, 4.0])], {"scope": "round"}, 2.0),
        ([cost(0, gaussian=[1.0])], {}, 2.0),  # one record far out costs more
        ([cost(0, noiseless="x")], {}, inf),
        ([cost(1, noiseless="x")], {}, 2.0),
        ([cost(0, noiseless="x")], {"scope": "round"}, 2.0),
    ],
)
def test_what_rounds_remember_costs_a_run(of_runs: Any, of: Any, found: float) -> None:
    sampling = SimpleNamespace(unknown=lambda claim: None, amplifies=False, rate=1.0)
    base = SimpleNamespace(messages={MessageId(0, (1,), "x", 1): None})
    one = [cost(0, gaussian=2.0), cost(0, "replace-one", gaussian=1.0)]
    own: Any = SimpleNamespace(
        worlds=SimpleNamespace(base=base, sampling=sampling), costs=one, of_runs=of_runs
    )
    claim = Claim.model_validate({"text": "c", "mu": 1.0, "scope": "run", **of})
    view = ThreatModel(name="view", kind="curious", agents=(1,))
    least, shown = PremiseExamination._least(own, claim, view)
    expected = inf if found == inf else gaussian_epsilon(1e-5, found / (1 + SLACK))
    assert least.epsilon == pytest.approx(expected, rel=1e-4)
    assert shown == ("x" if found == inf else None)


def test_stored_weights_are_those_of_the_model(tmp_path: Path) -> None:
    model, path = torch.nn.Linear(2, 1), tmp_path / "weights"
    weights = {"weight": torch.tensor([[1.0, 2.0]]).double(), "bias": torch.tensor([3.0])}
    save_file({**weights, "other": torch.ones(4)}, path)
    found = stored_weights(path, model)
    assert (found.tolist(), found.dtype) == ([1.0, 2.0, 3.0], torch.float32)
    save_file({**weights, "weight": torch.ones(2, 1)}, path)
    with pytest.raises(RunError, match=r"weight: expected \[1, 2\], found \[2, 1\]"):
        stored_weights(path, model)
    save_file({"weight": weights["weight"]}, path)
    with pytest.raises(RunError, match=r"bias: expected \[1\], found nothing"):
        stored_weights(path, model)


def test_a_far_record_moves_finite_numbers_alone() -> None:
    one, other, third = (MessageId(v, (9,), "x", 2) for v in (0, 1, 2))
    base = {m: np.array([1.0, 2.0]) for m in (one, other, third)}
    sent = {one: np.array([4.0, 0.0]), other: np.array([np.inf, 7.0])}
    runs: Any = SimpleNamespace(
        worlds=SimpleNamespace(base=SimpleNamespace(messages=base)),
        places={2: {m.source: SimpleNamespace(messages=(m,)) for m in base}},
    )
    nothing: Any = None
    of, shorter = ({**sent, **more} for more in ({}, {third: np.ones(1)}))
    for messages in (of, shorter):
        run: Any = SimpleNamespace(messages=messages)
        moved, unseen = extreme_records._changes(runs, 2, (0, 1, 2), nothing, run)
        assert {v: c.tolist() for v, some in moved.items() for c in some.values()} == {
            0: [3.0, -2.0], 1: [0.0, 5.0], 2: [0.0, 0.0],
        }  # fmt: skip
        assert unseen == {1, 2}


def test_a_first_batch_is_of_the_round_that_sends_next() -> None:
    """Agent 0 sends at 10 and 20, agent 1 at 20 and 30; batches 1 and 2 of agent 1 are evaluated."""
    ends = {0: [10, 20, -1], 1: [-1, 20, 30]}
    batches = [SimpleNamespace(agent=v, sequence=s) for v, s in [(0, 5), (0, 15), (1, 7), (1, 25)]]

    def span(victim: int, k: int) -> tuple[int, int]:
        end = ends[victim][k - 1]
        return max([-1, *(e for e in ends[victim][: k - 1])]), end

    base = SimpleNamespace(batches=batches, span=span)
    of: Any = SimpleNamespace(worlds=SimpleNamespace(base=base), places={1: {}, 2: {}, 3: {}})
    for first, of.records in ((1, {0: {1: []}}), (2, {0: {2: []}}), (None, {0: {}})):
        assert Alignments._first_round(of, 0) == first
    for first, of.records in ((2, {1: {1: []}}), (3, {1: {2: []}})):
        assert Alignments._first_round(of, 1) == first
