"""What attacks refuse, ask for and put together, value by value."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import dpaudit.attack as da
from dpaudit.attacks import membership
from dpaudit.attacks.canaries import records as canaries_of_records
from dpaudit.attacks.canaries.attack import Canaries
from dpaudit.attacks.canaries.records import WithRecords
from dpaudit.attacks.membership import Membership
from dpaudit.attacks.text import attack as text
from dpaudit.attacks.text.attack import Dager, RecoveredBatch, ScoredText
from dpaudit.attacks.weather import WeatherAttack
from dpaudit.files.threat import ThreatModel

NOTHING: Any = None
EAVESDROPPER = ThreatModel(name="eavesdropper", kind="external")


class Linear:
    """A record's gradient at x is its input times x; labels give its sign."""

    def clipped_sum(
        self, X: Tensor, inputs: Tensor, labels: Tensor, C: float | None, norm: int = 2,
        weights: Tensor | None = None, holders: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        if holders is not None:
            inputs, labels = inputs[holders], labels[holders]
        each = inputs[..., None] * labels[..., None] * X[:, None]  # [m, b, d]
        if C is not None and float("inf") > C:
            each = each * (C / each.norm(norm, dim=-1, keepdim=True)).clamp(max=1)
        if weights is not None:
            weights = weights if holders is None else weights[holders]
            each = each * weights[..., None]
        return each.sum(1)


class Real:
    """Every agent's gradient is 1, of batches of two."""

    def __init__(self, step: int = 0) -> None:
        self.step = step

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        return torch.ones_like(X)

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        return 2 * torch.ones_like(X)

    def per_record(self, X: Tensor, holders: Tensor | None = None, own: bool = False) -> Tensor:
        if own:
            return torch.ones_like(X)
        return torch.ones(*X.shape[:-1], 2, X.shape[-1])

    def at_step(self, s: int) -> "Real":
        return Real(s)


def with_records() -> WithRecords:
    """Records 2 and 5 of agent 1, the second of which is drawn; in step 1 it is the first."""
    oracle: Any = Real()
    gradients: Any = Linear()
    return WithRecords(
        oracle, gradients, 1, torch.tensor([2.0, 5.0]), torch.tensor([1.0, -1.0]),
        torch.tensor([0.0, 1.0]), 2, (torch.tensor([1.0, 0.0]),),
    )  # fmt: skip


def test_records_of_an_agent_are_added_to_its_batch() -> None:
    """The gradient of a record is its input, times its sign, times the model."""
    oracle, X = with_records(), torch.tensor([[1.0, 1.0], [3.0, 4.0], [1.0, 1.0]])
    assert oracle(X).tolist() == [[1, 1], [1 - 15 / 2, 1 - 20 / 2], [1, 1]]
    found = oracle.clipped_sum(X, 2.0)
    assert found.tolist() == [[2, 2], pytest.approx([2 - 1.2, 2 - 1.6]), [2, 2]]
    by_sizes = oracle.clipped_sum(X, 7.0, norm=1)
    assert by_sizes[1].tolist() == pytest.approx([2 - 3, 2 - 4])
    later = oracle.at_step(1)
    assert later(X)[1].tolist() == [1 + 6 / 2, 1 + 8 / 2]
    assert (oracle.at_step(0).drawn.tolist(), later.drawn.tolist()) == ([0, 1], [1, 0])
    assert (oracle.at_step(0).real.step, later.real.step) == (0, 1)  # type: ignore[attr-defined]


def test_records_of_an_agent_stand_behind_its_real_ones() -> None:
    X = torch.tensor([[1.0, 1.0], [3.0, 4.0], [1.0, 1.0]])
    found = with_records().per_record(X)
    assert found.shape == (3, 4, 2)
    assert torch.equal(found[:, :2], torch.ones(3, 2, 2))
    expected = torch.zeros(3, 2, 2)
    expected[1, 1] = torch.tensor([-15.0, -20.0])
    assert torch.equal(found[:, 2:], expected)
    own = X[:, None] * torch.tensor([1.0, 1.0, 1.0, 2.0])[:, None]  # a model for each record
    doubled = with_records().per_record(own, own=True)
    assert doubled.shape == (3, 4, 2)
    assert torch.equal(doubled[:, 2:], 2 * expected)
    some = with_records().per_record(X[:2], holders=torch.tensor([2, 1]))
    assert torch.equal(some[:, 2:], torch.stack([expected[0], expected[1]]))
    none = with_records().per_record(X[:1], holders=torch.tensor([0]))
    assert not none[:, 2:].any()


def a_model(**of: Any) -> ThreatModel:
    about = {"name": "the end", "kind": "final-model", "model_of": 0, **of}
    return ThreatModel(**about)


def test_a_final_model_is_read_by_some_canaries_alone() -> None:
    context: Any = SimpleNamespace(defense=SimpleNamespace(n_rounds=6))
    white, black = a_model(), a_model(access="black-box")
    for model in (white, EAVESDROPPER):
        Canaries().refuse_too_large(context, model)
        Canaries(n_rounds=6, kind="mislabelled").refuse_too_large(context, model)
    Canaries(n_rounds=3).refuse_too_large(context, EAVESDROPPER)
    Canaries(kind="mislabelled").refuse_too_large(context, black)
    with pytest.raises(da.ConfigError, match="the end.* has the model after all 6 rounds"):
        Canaries(n_rounds=3).refuse_too_large(context, white)
    with pytest.raises(da.ConfigError, match="losses of a model, and these canaries are"):
        Canaries().refuse_too_large(context, black)


def claim(**of: Any) -> da.Claim:
    about = {"text": "t", "epsilon": 1.0, "delta": 1e-5, "scope": "run", "adjacency": "add-remove"}
    return da.Claim(**{**about, **of})


def test_canaries_are_of_claims_about_one_record_of_a_run() -> None:
    claims = (
        claim(), claim(scope="round"), claim(adjacency="replace-one"),
        claim(threat_model="eavesdropper"), claim(threat_model="others"),
    )  # fmt: skip
    context: Any = SimpleNamespace(claims=claims)
    assert list(Canaries()._claimed(context, EAVESDROPPER)) == [0, 3]


@pytest.mark.parametrize(
    ("distance", "cyclic", "said"),
    [(2.0, False, "protects an agent's whole function"), (None, True, "takes batches in turn")],
)
def test_canaries_are_refused_where_no_record_is_drawn(distance, cyclic, said) -> None:
    defense = SimpleNamespace(function_distance=lambda: distance, cyclic=cyclic)
    context: Any = SimpleNamespace(claims=(claim(),), problem=None, defense=defense)
    with pytest.raises(da.ConfigError, match=said):
        Canaries().measure(context, EAVESDROPPER, lambda done, total: None)
    context.claims = ()
    assert Canaries().measure(context, EAVESDROPPER, lambda done, total: None) == []


@pytest.mark.parametrize(
    ("nonlinear", "error", "kind"),
    [
        (None, None, "found"),
        ({"defined": False, "quiet": True}, None, "refused"),
        ({"defined": True, "quiet": True}, None, "found"),
        ({"defined": True, "quiet": False}, da.DpauditError("DPA046", "no number"), "refused"),
        ({"defined": True, "quiet": False}, ValueError("no number"), "refused"),
        ({"defined": True, "quiet": True}, ValueError("no number"), ValueError),
        (None, da.DpauditError("DPA046", "no number"), da.DpauditError),
        ({"defined": True, "quiet": False}, da.ConfigError("DPA022", "large"), da.ConfigError),
    ],
)
def test_a_step_that_gives_no_number_is_not_available(monkeypatch, nonlinear, error, kind) -> None:
    defense = SimpleNamespace(function_distance=lambda: None, cyclic=False)
    monkeypatch.setattr("dpaudit.attacks.canaries.attack.replace", lambda one, **_: one)
    monkeypatch.setattr("dpaudit.attacks.canaries.attack.as_seen_by", lambda *_: None)
    monkeypatch.setattr(Canaries, "_game", lambda *_: SimpleNamespace(victim=1))
    about = None if nonlinear is None else SimpleNamespace(**nonlinear)
    monkeypatch.setattr(Canaries, "_nonlinear", lambda *_: about)

    def by_gradients(*_: Any) -> Any:
        if error is not None:
            raise error
        return ["found"]

    monkeypatch.setattr(Canaries, "_by_gradients", by_gradients)
    context: Any = SimpleNamespace(claims=(claim(),), problem=None, defense=defense)
    if isinstance(kind, type):
        with pytest.raises(kind):
            Canaries().measure(context, EAVESDROPPER, lambda done, total: None)
        return
    found: Any = Canaries().measure(context, EAVESDROPPER, lambda done, total: None)
    if kind == "found":
        assert found == ["found"]
    else:
        [one] = found
        assert one.notes[0].startswith("not available to this adversary")


def a_setting(weather: Any = None) -> Any:
    return SimpleNamespace(setting=SimpleNamespace(network=SimpleNamespace(weather=weather)))


def test_weather_needs_something_that_differs_between_draws() -> None:
    calm, stormy = a_setting(), a_setting("rain")
    drawn = ThreatModel(name="some", kind="colluding", drawn=2)
    own = ThreatModel(name="one", kind="curious", agents=(3,))
    for context, model in ((stormy, own), (calm, drawn), (stormy, drawn), (stormy, EAVESDROPPER)):
        WeatherAttack().refuse_too_large(context, model)
    with pytest.raises(da.ConfigError, match="nothing differs between draws"):
        WeatherAttack().refuse_too_large(calm, own)
    WeatherAttack(victim=2).refuse_too_large(stormy, own)
    WeatherAttack(victim=3).refuse_too_large(stormy, drawn)
    with pytest.raises(da.ConfigError, match='victim 3 is an agent of "one"'):
        WeatherAttack(victim=3).refuse_too_large(stormy, own)


def test_weather_reads_twice_as_many_rounds_as_agents() -> None:
    assert [WeatherAttack()._rounds(n, 4) for n in (6, 8, 20)] == [6, 8, 8]
    assert [WeatherAttack(n_rounds=n)._rounds(20, 4) for n in (3, 15)] == [3, 15]

    def invalid(n_rounds: int = 10, **of: Any) -> list[str]:
        return [option for option, _ in WeatherAttack(**of).validate_options(n_rounds, 4)]

    assert invalid() == []
    assert invalid(n_rounds=10) == []
    assert [option for option, _ in WeatherAttack(n_rounds=11).validate_options(10, 4)] == [
        "n_rounds"
    ]
    assert [option for option, _ in WeatherAttack(victim=4).validate_options(10, 4)] == ["victim"]
    assert invalid(participation=(2, 7)) == []
    assert invalid(participation=(2, 8)) == ["participation"]  # of the eight that are read
    [(option, said)] = WeatherAttack(participation=(3, 4)).validate_options(10, 4)
    assert (option, said) == (
        "participation", "3 times every 4 rounds takes 9 rounds of 8; expected 2 times at most",
    )  # fmt: skip


class Batch:
    """A batch of which the adversary has an estimate."""

    def __init__(self, k: int, victim: int, inputs: int) -> None:
        self.k, self.victim, self.inputs = k, victim, range(inputs)
        self.where = f"round {k}, agent {victim}"

    def scored(self) -> tuple[int, int]:
        return self.k, self.victim

    def matched(self, candidates: int, rng: Any) -> bool:
        return self.k == 2


@pytest.mark.parametrize("candidates", [None, 3])
def test_batches_of_honest_agents_are_scored_in_all_rounds(monkeypatch, candidates: Any) -> None:
    """Agents 0 is the adversary's, agent 3 holds nothing; of agent 2 nothing is revealed."""
    asked: list[Any] = []
    order = np.array([3, 1, 0, 2, 4])

    def revealed(
        defense: Any, setting: Any, view: Any, rounds: Any, k: int, victims: Any, n: int
    ) -> Any:
        asked.append((defense, k, victims, n))
        return {v: ("estimate",) for v in victims if v != 2}, [f"no agent 2 in {k}"]

    monkeypatch.setattr(membership, "gradients_of_window", revealed)
    monkeypatch.setattr(membership, "window_of", lambda view, k, n, last: range(k, k + 2))
    monkeypatch.setattr(membership.dp.View, "of", lambda *of: of[-1])
    monkeypatch.setattr(
        membership, "_Batch",
        SimpleNamespace(of=lambda c, p, d, k, v, e: Batch(k, v, 0 if (k, v) == (4, 1) else 2)),
    )  # fmt: skip
    monkeypatch.setattr(membership.Membership, "_found", lambda self, *of: of[2:])
    monkeypatch.setattr(membership.Membership, "_finding", lambda self, *of: of[2])
    defense = SimpleNamespace(n_rounds=6, without_noise=lambda: "quiet", messages={"x": ""})
    quiet = SimpleNamespace(n_rounds=6)
    defense.without_noise = lambda: quiet
    rng = SimpleNamespace(permutation=lambda n: order)
    context: Any = SimpleNamespace(
        problem=object.__new__(da.Classification), defense=defense,
        part=SimpleNamespace(world="defense"), run=SimpleNamespace(transcript=lambda *_: None),
        streams=SimpleNamespace(device=None, numpy=lambda *_: rng),
        setting=SimpleNamespace(n_agents=5, holders=(0, 1, 2, 4)),
    )  # fmt: skip
    own = ThreatModel(name="agent 0", kind="curious", agents=(0,))
    steps: list[tuple[int, int]] = []
    attack = Membership(rounds=(2, 4), candidates=candidates)
    found: Any = attack.measure(context, own, lambda *s: steps.append(s))
    assert asked == [(defense, k, [1, 2, 4], 3) for k in (2, 4)]
    assert steps == [(1, 2), (2, 2)]
    scored, matched, refusals = found[0]
    assert scored == [(2, 1), (2, 4), (4, 4)]
    assert matched == ([] if candidates is None else [True, True, False])
    assert refusals == ["no agent 2 in 2", "round 4, agent 1 drew no record", "no agent 2 in 4"]
    few = Membership(rounds=(2,), victims=1)
    asked.clear()
    context.part.world = "no-defense"
    few.measure(context, own, lambda *s: None)
    assert asked == [(quiet, 2, [1], 1)]
    order[:] = [2, 3, 0, 1, 4]
    assert few.measure(context, own, lambda *s: None) == [("not available: no agent 2 in 2",)]
    nobody = ThreatModel(name="all", kind="colluding", agents=(0, 1, 2, 4))
    monkeypatch.setattr(membership, "gradients_of_window", lambda *_: ({}, []))
    [notes] = few.measure(context, nobody, lambda *s: None)
    assert notes == ("not available: every agent that holds data is the adversary's own",)  # type: ignore[comparison-overlap]


def test_a_finding_names_each_round_once_in_order() -> None:
    attack = Membership(rounds=(4, 2, 4, 3))
    context: Any = SimpleNamespace(
        name="membership", part=SimpleNamespace(world="defense"),
        defense=SimpleNamespace(batch_size=5),
    )  # fmt: skip
    found = attack._finding(context, EAVESDROPPER, ("a note",))
    assert (found.rounds, found.batch_size, found.notes) == ((2, 3, 4), 5, ("a note",))
    defense: Any = SimpleNamespace(n_rounds=4, messages={"x": "", "y": ""})
    needed = attack.recording(defense)
    assert sorted(needed.messages) == [1, 2, 3, 4]
    assert all(names == {"x", "y"} for names in needed.messages.values())


def test_matches_are_counted_where_candidates_were_asked() -> None:
    """Members of higher scores than all others are told apart; half of the others choose."""
    rng = np.random.default_rng(0)
    problem = object.__new__(da.Classification)
    problem.dataset = SimpleNamespace(n_copied=0)  # type: ignore[assignment]
    context: Any = SimpleNamespace(streams=SimpleNamespace(numpy=lambda *_: rng), problem=problem)
    scored: Any = [
        SimpleNamespace(members=np.arange(9.0) + 100, public=np.arange(40.0) + i) for i in (0, 1)
    ]

    class Kept(Membership):
        def _finding(self, *of: Any) -> Any:
            return of[2:]

    for candidates, matched, is_told in (
        (4, [True, False], True),
        (None, [True], False),
        (4, [], False),
    ):
        attack = Kept(rounds=(1,), candidates=candidates)
        notes, metrics, _ = attack._found(context, EAVESDROPPER, scored, matched, ["out there"])  # type: ignore[misc]
        assert (da.Name.MATCHED in metrics) is is_told
        assert any(note.startswith("matched: ") for note in notes) is is_told
        if is_told:
            assert metrics[da.Name.MATCHED].value == 0.5
            assert metrics[da.Name.MATCHED_BLINDLY].value == 0.25
            assert "one record among 3 that nobody holds" in notes[-2]
        assert notes[0] == (
            "18 records of 2 batches against 40 that nobody holds, of which 20 set the thresholds"
        )
        assert notes[-1] == "out of reach 1 times: out there"


def text_scenario(world: str = "defense") -> Any:
    return SimpleNamespace(
        world=world, rounds=(1, 2), name="dager-links", message="gradient", attack_name="dager",
        threat_model=SimpleNamespace(name="links"), batch_size=2,
    )  # fmt: skip


def seen(rank: int = 2) -> Any:
    return SimpleNamespace(rank=rank, d=9, is_exact=True)


def test_text_is_kept_as_pairs_of_truth_and_recovered() -> None:
    """A token without a name is its number; sequences stand beside the truth that they are of."""
    written: dict[str, bytes] = {}
    context: Any = SimpleNamespace(run=SimpleNamespace(write=written.__setitem__))
    problem: Any = SimpleNamespace(dataset=SimpleNamespace(vocabulary=("a", "b")))
    of = ScoredText(text_scenario("no-defense"), problem, context, 7, NOTHING)
    truth = torch.tensor([[[0, 1], [1, 2]]])
    found = RecoveredBatch(
        torch.tensor([[1, 2], [0, 0]]), torch.tensor([True, True, True]), 0.5, seen()
    )
    [finding] = of.findings(truth, [found], [SimpleNamespace(victim=3)])  # type: ignore[list-item]
    path = "artifacts/dager-links-round-000007-no-defense-text.json"
    assert finding.artifacts == {"text": path}
    assert written == {
        path: b'[{"agent": 3, "sequences": [{"truth": ["a", "b"], "recovered": ["a", "a"]}, '
        b'{"truth": ["b", "#2"], "recovered": ["b", "#2"]}]}]'
    }
    assert (finding.rounds, finding.world, finding.title) == (
        (7,),
        "no-defense",
        "text from gradient",
    )
    assert finding.series[da.Column.VICTIM] == (3.0,)
    assert finding.series[da.Name.LOSS] == (0.5,)
    assert finding.notes == ("ranks 2 to 2 of 9 directions; what was taken for noise is rounding",)


def test_text_is_recovered_round_by_round_where_it_is_seen(monkeypatch) -> None:
    """In round 2 the second gradient is refused: then nothing is said of that round but why."""
    problem = object.__new__(da.Classification)
    monkeypatch.setattr(
        da.Classification, "initial", lambda self, streams: ["start"], raising=False
    )
    problem.gradients = "gradients"  # type: ignore[assignment]
    scenario = text_scenario()
    monkeypatch.setattr(Dager, "scenario", lambda *_: scenario)
    defense: Any = SimpleNamespace(clip_norm_in=lambda k: 10 * k)
    bare: Any = SimpleNamespace(clip_norm_in=lambda k: 100 * k)
    defense.without_noise = lambda: bare
    context: Any = SimpleNamespace(
        problem=problem, defense=defense, setting="setting", seed=3, run="run",
        streams=SimpleNamespace(device="cpu"),
    )  # fmt: skip
    every = [SimpleNamespace(target=SimpleNamespace(round=k, i=i)) for k in (1, 2) for i in (0, 1)]
    asked: list[Any] = []

    def derived(scenario: Any, played: Any, *of: Any) -> Any:
        asked.append((played, of[0], of[2:]))
        return every, ["nothing is sent"]

    def observed(scenario: Any, some: Any, clip_norm: float) -> Any:
        k = some[0].target.round
        asked.append((k, clip_norm))
        gradients: Any = SimpleNamespace(models=[(k, one.target.i) for one in some])
        gradients.surest = lambda: gradients
        return gradients, [one.target for one in some]

    def recovered(front: Any, observed: Any, i: int, gradients: Any, progress: Any) -> Any:
        progress(1, 2)
        if front == (2, 1):
            raise da.NotObservable("DPA054", "full rank")
        return front, i, gradients

    monkeypatch.setattr(text, "derived_targets", derived)
    monkeypatch.setattr(text, "observed_gradients", observed)
    monkeypatch.setattr(text, "truth_of", lambda scenario, targets, *_: (targets, None))
    monkeypatch.setattr(text, "_front", lambda problem, model: model)
    monkeypatch.setattr(text, "recovered", recovered)
    monkeypatch.setattr(ScoredText, "findings", lambda self, ids, found, targets: [(self.k, found)])
    steps: list[tuple[int, int]] = []
    first, second = Dager(message="gradient", rounds=(1, 2)).measure(
        context, EAVESDROPPER, lambda *s: steps.append(s)
    )
    assert first == (1, [((1, 0), 0, "gradients"), ((1, 1), 1, "gradients")])
    assert (second.rounds, second.notes) == ((2,), ("not available to this adversary: full rank",))
    assert asked == [(defense, "setting", ("run", "start")), (1, 10), (2, 20)]
    assert len(steps) == 4
    every.clear()
    [none] = Dager(message="gradient", rounds=(1, 2)).measure(
        context, EAVESDROPPER, lambda *s: None
    )
    assert none.notes == ("not available to this adversary: nothing is sent",)
    assert none.rounds == (1, 2)
    asked.clear()
    scenario.world = "no-defense"
    Dager(message="gradient", rounds=(1, 2)).measure(context, EAVESDROPPER, lambda *s: None)
    assert asked[0][0] is bare


@pytest.mark.parametrize("access", ["black-box", "white-box"])
def test_canaries_of_records_are_read_of_the_last_model(monkeypatch, access: str) -> None:
    """By log odds of its answers, or by how far it came from where it began."""
    problem = object.__new__(da.Classification)
    asked: list[Any] = []

    def log_odds(models: Tensor, inputs: Tensor, labels: Tensor, holder: Tensor) -> Tensor:
        asked.append((models.tolist(), inputs.tolist(), labels.tolist(), holder.tolist()))
        return torch.tensor([[0.5, -0.5]])

    problem.gradients = SimpleNamespace(log_odds=log_odds)  # type: ignore[assignment]
    defense = SimpleNamespace(n_rounds=4, observables={}, clip_norm_in=lambda k: 3.0 * k)
    released = SimpleNamespace(released=lambda state: torch.tensor([[1.0, 4.0]]))
    monkeypatch.setattr(
        canaries_of_records,
        "ReleasedModel",
        SimpleNamespace(playing=lambda defense, model_of: released),
    )

    def presence(inputs: Any, labels: Any, moved: Any, gradients: Any, clip_norm: float) -> str:
        asked.append((moved.gradient.tolist(), moved.model.tolist(), clip_norm))
        return "presence"

    monkeypatch.setattr(canaries_of_records, "_presence", presence)
    context: Any = SimpleNamespace(defense=defense, problem=problem)
    inputs, labels, initial = (
        torch.tensor([7.0, 8.0]),
        torch.tensor([1, 0]),
        torch.tensor([2.0, 2.0]),
    )
    read = canaries_of_records._reader(context, a_model(access=access), 1, inputs, labels, initial)
    assert [list(read(k, {}, {}, None)) for k in (1, 3)] == [[], []]
    found: Any = next(read(4, {}, {}, None))
    if access == "black-box":
        assert found.tolist() == [0.5, -0.5]
        assert asked == [([[1.0, 4.0]], [[7.0, 8.0]], [[1, 0]], [0])]
    else:
        assert found == "presence"
        assert asked == [([1.0, -2.0], [1.0, 4.0], 12.0)]
