"""What is recorded round by round, and what is said of it, by hand."""

from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import dpaudit.attack as da
import dpaudit.defense as dp
from dpaudit.attacks.mutual_information import attack, samples
from dpaudit.attacks.mutual_information.attack import Limits, MutualInformation, limits
from dpaudit.attacks.mutual_information.samples import (
    GradientListener,
    RevealedQuantity,
    RoundSamples,
    Samples,
    _Column,
    _Recorder,
)
from dpaudit.files.finding import Column, Name, Role
from dpaudit.files.threat import ThreatModel
from dpaudit.information.capacity import (
    of_bit_in_gaussian,
    of_bit_in_randomised_response,
    of_number_in_gaussian,
    of_pure_epsilon,
    of_vector_in_gaussian,
)

NOTHING: Any = None
EVE = ThreatModel(name="eve", kind="external")


def release(multiplier: float, count: int = 1, family: str = "gaussian") -> Any:
    return SimpleNamespace(family=family, noise_multiplier=multiplier, count=count)


def asked(message: str = "x", rounds: tuple[int, ...] = (1, 3), **of: Any) -> RevealedQuantity:
    return RevealedQuantity(message, of.pop("private", "gradient"), 1, EVE, rounds, **of)


@pytest.mark.parametrize(
    ("of", "most", "heard", "n", "b", "multiplier"),
    [
        ({}, [release(2.0)], 1, 1, 4, 2.0),
        ({}, [release(4.0, 6), release(2.0, 3)], 3, 9, 4, 2.0),  # 9 in 4 rounds: 3 in each
        ({}, [release(2.0, 8)], 1, 2, 4, 2.0),
        ({"drawing": "poisson"}, [release(2.0)], 1, 1, 50, 2.0),
        ({"protects": "user", "drawing": "poisson"}, [release(2.0)], 1, 1, 1, 2.0),
    ],
)
def test_limits_are_of_releases_of_a_round_and_a_batch(of, most, heard, n, b, multiplier) -> None:
    mechanism = SimpleNamespace(most=most)
    defense: Any = SimpleNamespace(
        batches_per_round=1, function_distance=lambda: None, clip_norm_in=lambda k: 1.0 / k,
        mechanism=lambda *_: mechanism, n_rounds=4, batch_size=4,
        **{"drawing": "fixed", "protects": "record", **of},
    )  # fmt: skip
    setting: Any = SimpleNamespace(sizes=(9, 50), d=7)
    mu = 1 / multiplier
    assert limits(asked(), defense, setting, heard) == Limits(
        pytest.approx(n * of_vector_in_gaussian(7, b * mu)),  # type: ignore[arg-type]
        pytest.approx(of_number_in_gaussian(n**0.5 * mu)),  # type: ignore[arg-type]
        pytest.approx(of_bit_in_gaussian(n**0.5 * mu)),  # type: ignore[arg-type]
    )
    mechanism.most = [release(one.noise_multiplier, one.count, "laplace") for one in most]
    assert limits(asked(), defense, setting, heard) == Limits(
        pytest.approx(n * of_pure_epsilon(2 * b * mu)),  # type: ignore[arg-type]
        pytest.approx(n * of_pure_epsilon(mu)),  # type: ignore[arg-type]
        pytest.approx(n * of_bit_in_randomised_response(mu)),  # type: ignore[arg-type]
    )
    mechanism.most = [release(2.0), release(0.0)]
    assert limits(asked(), defense, setting, heard) == Limits(inf, inf, inf)
    mechanism.most = []
    assert limits(asked(), defense, setting, heard) == (
        "the defense declares no release of it to this adversary"
    )
    defense.function_distance = lambda: 1.0
    assert limits(asked(), defense, setting, heard) == "nothing bounds the norm of a gradient"


def test_a_batch_has_a_limit_that_an_estimate_may_exceed() -> None:
    known = Limits(2.0, 1.0, 0.5)
    assert attack.beyond(known, 2.0) == ()
    [note] = attack.beyond(known, 2.5)
    assert note.startswith("beyond the noise: at least 2.5 bits in round 1, where")
    assert "2 through at most" in note
    assert attack.limits_note(known).startswith("capacity: what the declared noise lets through")
    assert attack.limits_note("why").endswith("beside the estimate: why")


def estimated(p: float, low: float = 0.25) -> Any:
    return SimpleNamespace(p_value=p, round=2, n=40, lows=np.array([low, 0.5]))


def of_rounds(*rounds: int, **of: Any) -> Samples:
    columns = np.arange(10.0)[:, None]
    found = {k: RoundSamples(columns, columns + k, f"reduction {k}") for k in rounds}
    return Samples(found, of.get("unseen", {}), of.get("constant", {}))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replaces all that estimates; what it gives may be changed."""
    of: dict[str, Any] = {"estimate": estimated(0.01), "known": Limits(2.0, 1.0, 0.5)}
    monkeypatch.setattr(
        attack, "without_warnings", lambda work: (work() and of["estimate"], ("warned",))
    )

    def information(private: Any, view: Any, rng: Any, **how: Any) -> Any:
        of["asked"] = [len(private), len(view), rng, how["k"], how["n_permutations"], how["n_splits"]]  # fmt: skip
        return True

    monkeypatch.setattr(attack, "maximum_information", information)
    monkeypatch.setattr(
        attack, "information_metrics", lambda found, shuffled: {"shuffled": shuffled}
    )
    monkeypatch.setattr(attack, "information_series", lambda found, rounds: {"rounds": rounds})
    monkeypatch.setattr(attack, "heard_rounds", lambda question, defense: 5)
    monkeypatch.setattr(
        attack, "limits",
        lambda question, defense, setting, heard: of["known"] if heard == 5 else None,
    )  # fmt: skip
    monkeypatch.setattr(MutualInformation, "_guess", lambda self, *of: "guess")
    monkeypatch.setattr(
        MutualInformation, "_finding",
        lambda self, question, world, title, metrics, notes, series: SimpleNamespace(
            world=world, title=title, metrics=metrics, notes=notes, series=series
        ),
    )  # fmt: skip
    return of


def findings(own: MutualInformation, found: Samples, world: Any = "defense", bare: Any = False) -> Any:  # fmt: skip
    context: Any = SimpleNamespace(
        defense=SimpleNamespace(private={"gradient": ""}), setting=None,
        problem=SimpleNamespace(varies="the batches"),
        streams=SimpleNamespace(numpy=lambda name: name),
        checkpoint=SimpleNamespace(stage=lambda n: SimpleNamespace(stage=lambda n: None)),
    )  # fmt: skip
    return own._findings(context, asked(), world, found, bare)


def test_information_is_told_beside_its_limits(told: dict[str, Any]) -> None:
    own = MutualInformation(message="x", trials=40, k=4, n_splits=0)
    one, guess = findings(own, of_rounds(1, 3))
    assert guess == "guess"
    assert told["asked"] == [2, 2, "estimate", 4, 99, 0]
    assert one.title == "information about gradient of agent 1, most in round 3"
    assert one.metrics == {"shuffled": True, **told["known"].metrics()}
    assert one.metrics[Name.CAPACITY_FOR_A_NUMBER].value == 1.0
    assert one.series == {"rounds": [1, 3]}
    notes = one.notes
    assert notes[0] == (
        "random over the 40 runs: the batches, and the noise; all else is the same in every run"
    )
    assert notes[1] == "reduction, in round 3: reduction 3, standardise"
    assert "k = 4" in notes[2]
    assert "n = 40" in notes[2]
    assert "the maxima of 99 shuffles" in notes[3]
    assert (notes[-2], notes[-1][:8]) == ("warned", "capacity")
    assert len(notes) == 6
    told["estimate"] = estimated(0.01, 2.5)
    assert findings(own, of_rounds(1, 3))[0].notes[0].startswith("beyond the noise")
    assert not findings(own, of_rounds(2, 3))[0].notes[0].startswith("beyond")  # not of round 1
    told["known"] = "why"
    one = findings(own, of_rounds(1, 3))[0]
    assert one.metrics == {"shuffled": True}
    assert one.notes[-1].endswith("beside the estimate: why")
    quiet = MutualInformation(message="x", trials=40, n_permutations=0)
    one = findings(quiet, of_rounds(1, 3))[0]
    assert one.metrics == {"shuffled": False}
    assert one.notes[3].startswith("the 95% interval holds for all rounds together")


@pytest.mark.parametrize(("p", "is_blind"), [(0.05, False), (0.051, True)])
def test_a_control_without_noise_should_find_something(told, p: float, is_blind: bool) -> None:
    told["estimate"] = estimated(p)
    own = MutualInformation(message="x", trials=40)
    one = findings(own, of_rounds(1, 3), "no-defense")[0]
    assert (one.notes[0] == attack._BLIND_CONTROL) is is_blind
    assert one.notes[is_blind].startswith("random over the 40 runs: the batches, and no noise")
    assert one.metrics == {"shuffled": True}
    bare = findings(own, of_rounds(1, 3), bare=True)[0]
    assert "and whatever the defense draws itself; all" in bare.notes[0]
    assert "no twin" in " ".join(bare.notes)


def test_rounds_without_an_estimate_are_named(told: dict[str, Any]) -> None:
    own = MutualInformation(message="x", trials=40)
    unseen = of_rounds(unseen={3: "it sees nothing", 5: "other"})
    [one] = findings(own, unseen)
    assert one.notes == ("not available to this adversary: it sees nothing",)
    assert one.metrics == {}
    constant = {1: "the view", 2: "the private quantity", 4: "the view"}
    [one] = findings(own, of_rounds(constant=constant))
    assert (one.metrics[Name.INFORMATION].value, one.metrics[Name.INFORMATION].n) == (0.0, 40)
    assert one.notes[1:] == (
        "2 rounds from 1 to 4: the view is the same in all runs, so there are 0 bits to be told",
        "round 2: the private quantity is the same in all runs, so there are 0 bits to be told",
    )
    [one] = findings(own, of_rounds(constant={2: "the private quantity"}))
    assert one.metrics == {}
    left = list(attack._left_out(of_rounds(1, unseen={3: "why", 7: "other"})))
    assert left == ["2 rounds from 3 to 7 not available to this adversary: why"]
    view = list(attack._of_view(asked("view"), SimpleNamespace(private={})))  # type: ignore[arg-type]
    assert [note[:12] for note in view] == ["the view is ", "the gradient"]
    named: Any = SimpleNamespace(private={"gradient": ""})
    assert list(attack._of_view(asked("x"), named)) == []


def test_a_guess_is_of_the_round_that_tells_most(monkeypatch: pytest.MonkeyPatch) -> None:
    def best(private: Any, view: Any, rng: str) -> Any:
        assert (private.shape, view.shape, rng) == ((300,), (300, 2), "best estimate")
        return SimpleNamespace(
            explained=0.5, low=0.25, high=0.75, private=private, estimate=private + 1, method="line"
        )

    monkeypatch.setattr(attack, "best_estimate", best)
    columns = np.arange(600.0).reshape(300, 2)
    found = Samples({k: RoundSamples(columns + k, columns, "r") for k in (3, 5)}, {}, {})
    context: Any = SimpleNamespace(streams=SimpleNamespace(numpy=lambda name: name))
    own = MutualInformation(message="x", trials=300)
    one = own._guess(context, asked(), "defense", estimated(0.01), found)
    assert (one.rounds, one.role, one.message) == ((5,), Role.BEST_ESTIMATE, "x")
    metric = one.metrics[Name.VARIANCE_EXPLAINED]
    assert (metric.value, metric.low, metric.high, metric.n) == (0.5, 0.25, 0.75, 300)
    private = one.series[Column.PRIVATE]
    assert (len(private), private[:2]) == (200, (5.0, 7.0))
    assert one.series[Column.ESTIMATE][:2] == (6.0, 8.0)
    empty = own._empty(asked(), "defense", ("note",))
    assert (empty.role, empty.rounds, empty.metrics) == (Role.INFORMATION, (1, 3), {})


@pytest.mark.parametrize("twin", [True, False])
def test_both_worlds_are_sampled_and_kept(monkeypatch, twin: bool) -> None:
    """Of two blocks and three rounds each; a world that was kept is not sampled again."""
    monkeypatch.setattr(attack, "blocks", lambda trials, setting: [20, 20])
    monkeypatch.setattr(attack, "last_round", lambda question, defense: 3)
    monkeypatch.setattr(MutualInformation, "_question", lambda *_: asked())
    sampled: list[Any] = []

    def sample(question: Any, defense: Any, *of: Any) -> str:
        for _ in range(6):
            of[4]()
        sampled.append((defense, of[3]))
        return f"samples of {defense}"

    class Finding(str):
        def model_dump(self, mode: str) -> str:
            return f"{self}, dumped"

    monkeypatch.setattr(attack, "samples", sample)
    monkeypatch.setattr(
        MutualInformation, "_findings",
        lambda self, c, q, world, found, bare: [Finding(f"{world}: {found}, {bare}")],
    )  # fmt: skip
    monkeypatch.setattr(da.Finding, "model_validate", lambda kept: Finding(f"kept {kept}"))
    done: dict[str, Any] = {}

    class Saved:
        def __init__(self, name: str) -> None:
            self.name = name

        def stage(self, name: str) -> "Saved":
            return Saved(name)

        def last(self) -> Any:
            return kept.get(self.name)

        def done(self, progress: Any) -> None:
            done[self.name] = progress.note

    class Defense(str):
        def without_noise(self) -> "Defense":
            return Defense("quiet") if twin else self

    kept: dict[str, Any] = {}
    context: Any = SimpleNamespace(
        defense=Defense("noisy"), problem=None, setting=None, streams=None, checkpoint=Saved("")
    )
    steps: list[Any] = []
    own = MutualInformation(message="x", trials=40)
    found: Any = own.measure(context, EVE, lambda *of: steps.append(of))
    first = f"defense: samples of noisy, {not twin}"
    both = [first, "no-defense: samples of quiet, False"]
    assert found == (both if twin else both[:1])
    assert sampled == [("noisy", 40), ("quiet", 40)][: 1 + twin]
    total = 6 * (1 + twin)
    assert steps == [(i + 1, total) for i in range(total)]
    assert done["defense"] == [f"{first}, dumped"]
    sampled.clear()
    kept["defense"] = SimpleNamespace(note=["a", "b"])
    again: Any = own.measure(context, EVE, lambda *of: None)
    assert again == ["kept a", "kept b", *both[1 : 1 + twin]]
    assert len(sampled) == int(twin)


class Observed(SimpleNamespace):
    pass


def a_defense(**of: Any) -> Any:
    observable = Observed(
        needs={"x": (-1, 0)}, links="x", differs_by_link=of.get("differs", True),
        derive=lambda defense, view, setting, target: SimpleNamespace(
            gradient=10.0 * target.receiver + view.sent["x"].payload[:, 1]
        ),
    )  # fmt: skip
    combination = Observed(
        messages=("x",), delay=1,
        derive=lambda defense, view, setting, target: target.receiver + view.sent["x"].payload[:, 1:2],
    )  # fmt: skip
    return SimpleNamespace(
        n_rounds=3, messages={"x": "", "y": ""}, observables={"o": observable},
        combinations={"c": combination}, private=of.get("private", {"gradient": ""}),
    )  # fmt: skip


class View(SimpleNamespace):
    """Of the last round that it has; agent 1 is read by agents 0 and 2."""

    def edges(self, message: str, k: int) -> list[tuple[int, int]]:
        return [(1, 0), (2, 1), (1, 2)] if reads else [(2, 1)]

    def all_sent_by(self, message: str, k: int, victim: int) -> Tensor:
        return self.rounds[k][message].payload[:, [victim]]


reads = True


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Any:
    def view_of(threat_model: Any, transcript: Any, rounds: set[int]) -> View:
        assert set(transcript) == rounds
        return View(rounds=transcript, sent=transcript[max(rounds)])

    monkeypatch.setattr(samples.dp, "View", SimpleNamespace(of=view_of))
    monkeypatch.setattr(samples.dp, "Transcript", lambda rounds: rounds)
    return monkeypatch


def a_round(k: int, trials: int = 6) -> Any:
    """Agent 1 sends numbers that vary in each trial, with a private quantity beside them."""
    rng = torch.Generator().manual_seed(k)
    X = torch.randn(trials, 3, 2, generator=rng, dtype=torch.float64)
    sent = {name: SimpleNamespace(payload=X + i) for i, name in enumerate(("x", "y", "z"))}
    return SimpleNamespace(sent=sent, private={"gradient": 3 * X})


def test_rounds_asked_for_are_recorded(recorded: Any) -> None:
    """All columns of a message, less the first trial; of other messages and rounds nothing."""
    question = asked("x", (1, 3), reduction="none")
    recorder = _Recorder(question, a_defense(), NOTHING)
    rounds = {k: a_round(k) for k in (1, 2, 3)}
    for k, one in rounds.items():
        recorder(k, one, None)
        assert set(recorder._messages) <= {k}
    found = recorder.samples()
    assert (list(found.rounds), found.unseen, found.constant) == ([1, 3], {}, {})
    for k in (1, 3):
        own = rounds[k].sent["x"].payload[:, 1]
        np.testing.assert_allclose(found.rounds[k].view, own - own[0], rtol=1e-12)
        np.testing.assert_allclose(found.rounds[k].private, 3 * (own - own[0]), rtol=1e-12)
        assert found.rounds[k].reduction == "private 2; view 1 x 2"
    more = {k: a_round(k + 5) for k in (1, 2, 3)}
    recorder.end_block()
    for k, one in more.items():
        recorder(k, one, None)
    both = recorder.samples().rounds[1].view
    own, first = more[1].sent["x"].payload[:, 1], rounds[1].sent["x"].payload[0, 1]
    np.testing.assert_allclose(both[6:], own - first, rtol=1e-12)
    block, after = _Recorder(question, a_defense(), NOTHING).resume(None)
    assert (block, after) == (0, None)


def test_a_gradient_is_overheard_where_none_is_named(recorded: Any) -> None:
    question = asked("x", (1, 2), reduction="none")
    recorder = _Recorder(question, a_defense(private={}), NOTHING)
    answer = torch.arange(12.0).view(6, 2).double().square()
    recorder(1, a_round(1), answer)
    recorder(2, a_round(2), None)
    found = recorder.samples()
    assert list(found.rounds) == [1]
    np.testing.assert_allclose(found.rounds[1].private, answer - answer[0])
    assert found.unseen == {2: "agent 1 asks for no gradient in round 2"}


def test_what_is_sent_later_is_waited_for(recorded: Any) -> None:
    """A combination has a delay of one round; that of the last round of a block never comes."""
    recorder = _Recorder(asked("c", (1, 3), reduction="none"), a_defense(), NOTHING)
    rounds = {k: a_round(k) for k in (1, 2, 3)}
    recorder(1, rounds[1], None)
    assert (list(recorder._waiting), list(recorder._found)) == ([1], [])
    recorder(2, rounds[2], None)
    assert (list(recorder._waiting), list(recorder._found)) == ([], [1])
    recorder(3, rounds[3], None)
    assert sorted(recorder._messages) == [1, 2, 3]
    recorder.end_block()
    found = recorder.samples()
    own = rounds[2].sent["x"].payload[:, 1]
    np.testing.assert_allclose(found.rounds[1].view, own - own[0], rtol=1e-12)
    assert found.unseen == {3: "what shows the gradient of round 3 is sent later"}
    assert (recorder._messages, recorder._waiting) == ({}, {})


@pytest.mark.parametrize(("differs", "n"), [(True, 2), (False, 1)])
def test_an_observable_is_derived_of_each_link_that_differs(recorded, differs, n: int) -> None:
    global reads
    recorder = _Recorder(asked("o", (2,), reduction="none"), a_defense(differs=differs), NOTHING)
    rounds = {k: a_round(k) for k in (1, 2)}
    recorder(1, rounds[1], None)
    assert list(recorder._messages) == [1]  # which the next round needs
    recorder(2, rounds[2], None)
    found = recorder.samples().rounds[2]
    own = rounds[2].sent["x"].payload[:, 1]
    expected = torch.cat([own - own[0]] * n, dim=1)
    np.testing.assert_allclose(found.view, expected, rtol=1e-10, atol=1e-13)
    assert found.reduction == f"private 2; view {n} x 2"
    reads = False
    try:
        blind = _Recorder(asked("o", (2,)), a_defense(), NOTHING)
        blind(1, rounds[1], None)
        blind(2, rounds[2], None)
    finally:
        reads = True
    assert blind.samples().unseen == {2: 'eve does not see "x" of agent 1 in round 2'}


@pytest.mark.parametrize(
    ("reduction", "name"),
    [
        ("aligned", "private 4 -> PCA 1 (67% of variance); view 2 x 4 -> 2 x 1 along the same"),
        ("pca", "private 4 -> PCA 1 (67% of variance); view 2 x 4 -> PCA 3 (100% of variance)"),
        ("none", "private 4; view 2 x 4"),
    ],
)
def test_columns_are_reduced_as_it_is_asked(reduction: Any, name: str) -> None:
    """Along the leading direction of the private quantity, or along a view's own."""
    a = torch.tensor([1.0, -1.0] * 4).double()
    b = torch.tensor([1.0, 1.0, -1.0, -1.0] * 2).double()
    c = torch.tensor([1.0] * 4 + [-1.0] * 4).double()
    private = torch.stack([2.0 * a, b, c, 0 * a], dim=1)
    rows = torch.stack([torch.stack([a, b, c, 0 * a], 1), torch.stack([b, a, 0 * a, a], 1)], 1)
    recorder = _Recorder(asked("x", reduction=reduction), a_defense(), NOTHING)
    mine, seen = recorder._reduced(1, private, rows)
    assert recorder._names == {1: name}
    if reduction != "none":
        np.testing.assert_allclose(mine[:, 0].abs(), (2 * (a - a[0])).abs(), atol=1e-12)
    if reduction == "aligned":
        expected = torch.stack([a - a[0], b - b[0]], dim=1).abs()
        np.testing.assert_allclose(seen.abs(), expected, atol=1e-12)
    assert seen.shape[1] == {"aligned": 2, "pca": 3, "none": 6}[reduction]
    assert samples._named("3", _Column(2)) == "3"


def test_views_of_other_sizes_are_along_their_own_directions() -> None:
    private = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)).double()
    recorder = _Recorder(asked("x", reduction="aligned"), a_defense(), NOTHING)
    recorder._reduced(1, private, private[:, None, :3])
    assert recorder._names[1].endswith("view 1 x 3")  # as many columns as are kept


def test_sides_that_do_not_vary_give_no_round() -> None:
    varied, still = torch.arange(6.0)[:, None], torch.ones(6, 1)
    recorder = _Recorder(asked(), a_defense(), NOTHING)
    recorder._found = {
        5: [(varied, torch.cat([still, varied], 1))], 3: [(still, varied)], 4: [(varied, still)],
    }  # fmt: skip
    recorder._names, recorder._unseen = {5: "five", 3: "three", 4: "four"}, {9: "b", 8: "a"}
    found = recorder.samples()
    assert list(found.rounds) == [5]
    assert found.rounds[5].view.tolist() == varied.tolist()
    assert found.rounds[5].reduction == "five"
    assert found.constant == {3: "the private quantity", 4: "the view"}
    assert list(found.unseen) == [8, 9]


def test_the_first_answer_of_a_round_is_overheard() -> None:
    class Problem(SimpleNamespace):
        def for_trials(self, *of: Any) -> Any:
            return ("trials", *of)

        def initial(self, streams: Any, trials: Any = None) -> Any:
            return (streams, trials)

        def gradient(self, *of: Any) -> dp.Gradient:
            asked_for.append(of)
            return Twice()

    class Twice(dp.Gradient):
        batch_size = 4

        def __call__(self, X: Tensor, holders: Any = None) -> Tensor:
            return 2 * X

        def clipped_sum(
            self, X: Tensor, clip_norm: float, holders: Any = None, norm: int = 2
        ) -> Tensor:
            assert (clip_norm, norm) == (3.0, 1)
            return 8 * X

    asked_for: list[Any] = []
    problem: Any = Problem(differentiates=True, varies="the batches")
    heard = GradientListener(problem, 1)
    assert (heard.differentiates, heard.varies) == (True, "the batches")
    assert heard.initial("streams", 3) == ("streams", 3)  # type: ignore[arg-type,comparison-overlap]
    made = heard.for_trials("shared", "own", 5, 2)  # type: ignore[arg-type]
    assert (made.agent, made.problem) == (1, ("trials", "shared", "own", 5, 2))  # type: ignore[comparison-overlap]
    oracle = heard.gradient("streams", 3, 4, "poisson", 7)  # type: ignore[arg-type]
    assert asked_for == [("streams", 3, 4, "poisson", 7)]
    X = torch.arange(6.0).view(1, 3, 2)
    oracle(X[:, [0, 2]], torch.tensor([0, 2]))
    assert heard.answer is None
    assert oracle.clipped_sum(X, 3.0, norm=1).tolist() == (8 * X).tolist()
    oracle(X + 1)
    assert heard.answer is not None
    assert heard.answer.tolist() == [[4.0, 6.0]]
    heard.gradient("streams", 4, 4)  # type: ignore[arg-type]
    assert heard.answer is None
    assert asked_for[-1] == ("streams", 4, 4, "fixed", None)
