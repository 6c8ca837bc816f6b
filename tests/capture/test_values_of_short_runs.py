"""Short runs, value by value: which are played and scored, and what is estimated from their scores."""

from math import inf, log2
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dpaudit.capture import short_runs
from dpaudit.capture.record_shift import RoundLeak
from dpaudit.capture.runs import MessageId, NamedDraw
from dpaudit.capture.short_runs import (
    Channel,
    ClaimAgainst,
    ShortRuns,
    ShortRunScores,
    _capacity,
    _refuse_other_names,
    _revealed,
    certified,
    findings_of_short_runs,
    information,
)
from dpaudit.errors import RunError
from dpaudit.files.captured_file import MutualInformationOptions
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Name, Role
from dpaudit.files.threat import ThreatModel
from dpaudit.information.capacity import of_bit_in_gaussian

SPY = ThreatModel(name="spy")
HELD = ThreatModel(name="b", kind="curious", agents=(1,))
OWN = ThreatModel(name="a", kind="curious", agents=(0,))


class Place(SimpleNamespace):
    """A victim's round."""

    def changes(self, how: str) -> list[str]:
        return [f"{self.victim}:{how}"]


def sent(victim: int, name: str | None = None) -> MessageId:
    return MessageId(victim, (9,), name or "x", 2)


def place(victim: int, *names: str, others: tuple[MessageId, ...] = ()) -> Place:
    messages = tuple(sent(victim, name) for name in names)
    draws = [NamedDraw(f"{victim}/0/z", "z", victim, 0, 1.0, "laplace" if victim else "gaussian")]
    return Place(victim=victim, messages=messages, others=others, draws=draws)


def neighbours(*places: Place) -> Any:
    """Pairs differ by victim, and a message is read where its name is not "silent"."""
    return SimpleNamespace(
        places={one.victim: one for one in places},
        worst=lambda victim, model, adjacency: ((f"{adjacency} {model.name}", f"w{victim}"), None),
        leak=lambda victim, model, pair, name=None: RoundLeak(1.0, 0.0),
        read=lambda victim, model, name: [] if name == "silent" else [sent(victim, name)],
        base=SimpleNamespace(sent_until=lambda k: {0: k}),
        unmeasured={},
    )


def runs(*places: Place, n: int = 61, seed: int = 5, **more: Any) -> ShortRuns:
    config = SimpleNamespace(seed=seed, certify=SimpleNamespace(runs=n), **more)
    rounds = {1: neighbours(), 2: neighbours(*places), 4: neighbours(place(7, "x"))}
    replay = SimpleNamespace(model_copy=lambda update: update)
    worlds: Any = SimpleNamespace(
        config=config, rounds=rounds, replay=replay, unmeasured={}, leaves_out=True
    )
    worlds.unnamed = SimpleNamespace(hidden=lambda found: None, hides=lambda message: "")
    return ShortRuns(worlds, "add-remove")


def test_short_runs_end_with_the_first_round_of_a_victim() -> None:
    of = runs(place(0, "x"), place(1, "x", "x"))
    assert of.round == 2
    assert list(of.neighbours.places) == [0, 1]
    assert of.pairs == {v: ("add-remove every link", f"w{v}") for v in (0, 1)}
    assert of.drawn == {"0/0/z": "gaussian", "1/0/z": "laplace"}


@pytest.mark.parametrize(
    "places",
    [
        (place(0, "x", "y"), place(1, "x")),
        (place(0, "x"), place(1, "x", "y")),
        (place(0, "x"), place(1, "x", others=(MessageId(0, (9,), "x", 2),))),
    ],
)
def test_of_several_phases_one_victim_has_a_bit(places: Any) -> None:
    of = runs(*places)
    assert list(of.pairs) == [0]
    assert of.drawn == {"0/0/z": "gaussian"}


@pytest.mark.parametrize(
    ("n", "choosing"), [(8, 4), (39, 4), (40, 4), (49, 4), (50, 5), (59, 5), (1000, 100)]
)
def test_a_tenth_of_the_runs_chooses(n: int, choosing: int) -> None:
    of = runs(place(0, "x"), place(1, "x"), n=n)
    assert of.n_choosing == choosing
    assert of.included.shape == (n, 2)
    for part in (of.included[:choosing], of.included[choosing:]):
        assert set(part.sum(axis=0)) == {len(part) // 2}
    assert np.array_equal(of.included, runs(place(0, "x"), place(1, "x"), n=n).included)
    other = runs(place(0, "x"), place(1, "x"), n=n, seed=6).included
    assert n < 40 or not np.array_equal(of.included, other)


def test_a_channel_is_tested_on_victims_of_others() -> None:
    of, own = runs(place(0, "x"), place(1, "x")), runs(place(1, "x"))
    assert of.can_test(Channel(HELD))
    assert of.can_test(Channel(HELD, "x"))
    assert not of.can_test(Channel(SPY, "silent"))
    assert not own.can_test(Channel(HELD))
    assert not own.can_test(Channel(HELD, "x"))
    assert own.can_test(Channel(SPY, "x"))
    of.worlds.rounds[2].read = lambda victim, model, name: [sent(1)] if victim == 1 else []
    assert of.can_test(Channel(SPY, "x"))
    assert not of.can_test(Channel(HELD, "x"))


def test_a_run_has_the_records_of_its_bits() -> None:
    of = runs(place(0, "x"), place(1, "x"))
    world: Any = of.world([1, 0], noise_seed=3)
    changes = ("0:w0", "1:add-remove every link")
    assert world == {"changes": changes, "last": {0: 2}, "noise_seed": 3}


class Program:
    """Plays worlds: their message is their seed, and -1 without noise."""

    def __init__(self) -> None:
        self.blocks: list[list[Any]] = []

    def each(self, worlds: list[Any], made: Any, on_run: Any) -> list[Any]:
        self.blocks.append(worlds)
        found = []
        for world in worlds:
            on_run()
            found.append(SimpleNamespace(value=world.get("noise_seed", -1), silent=world))
        return [made(one) for one in found]


class Kept:
    def __init__(self, table: Any = None) -> None:
        self.before = table
        self.sizes: list[int] = []

    def last(self) -> Any:
        if self.before is None:
            return None
        return SimpleNamespace(tensors={"scores": torch.from_numpy(self.before)})

    def keep(self, progress: Any) -> None:
        self.sizes.append(len(progress().tensors["scores"]))


def play(monkeypatch: pytest.MonkeyPatch, kept: Kept) -> tuple[Any, Any, int, Program]:
    def score(leak: RoundLeak, run: Any, mean: Any) -> float:
        assert mean.value == -1
        return leak.mu * run.value

    monkeypatch.setattr(short_runs, "log_likelihood_ratio", score)
    monkeypatch.setattr(short_runs.ProgramRun, "loaded", lambda run: run)
    of, program, ran = runs(place(0, "x"), place(1, "x"), n=45), Program(), []
    mus = {"spy": 1.0, "b": 2.0}
    of.worlds.rounds[2].leak = lambda v, model, pair, name=None: RoundLeak(
        mus[model.name] + 10 * v + (0.5 if name else 0), 0.0
    )
    channels = [Channel(SPY), Channel(SPY, "x"), Channel(HELD, "x")]
    found = of.played(program, channels, lambda: ran.append(1), kept)  # type: ignore[arg-type]
    return of, found, len(ran), program


def test_every_run_is_scored_for_every_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept()
    of, found, ran, program = play(monkeypatch, kept)
    assert [len(block) for block in program.blocks] == [1, 20, 20, 5]
    assert kept.sizes == [20, 40, 45]
    assert ran == 46
    [quiet] = program.blocks[0]
    assert quiet["silent"] == ("0/0/z", "1/0/z")
    assert quiet["changes"] == ("0:add-remove every link", "1:add-remove every link")
    assert [w["noise_seed"] for block in program.blocks[1:] for w in block] == list(range(45))
    assert program.blocks[1][0]["fresh"] == of.drawn
    all_of, of_name, held = found.values()
    i = np.arange(45.0)[:, None]
    assert all_of.values == pytest.approx(i * [1.0, 11.0])
    assert of_name.values == pytest.approx(i * [1.5, 11.5])
    assert held.values == pytest.approx(i * [2.5])
    assert (all_of.victims, held.victims, held.n_choosing) == ((0, 1), (0,), 4)
    assert np.array_equal(all_of.having, of.included == 1)
    assert np.array_equal(held.having, of.included[:, :1] == 1)


def test_scores_that_were_kept_are_not_played_again(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept(np.full((30, 3, 2), 7.0))
    _, found, ran, program = play(monkeypatch, kept)
    assert [len(block) for block in program.blocks] == [1, 15]
    assert (kept.sizes, ran) == ([45], 46)
    first = next(iter(found.values())).values
    assert (first[:30] == 7).all()
    assert first[30:, 0].tolist() == list(range(30, 45))


def test_names_that_no_victim_sends_are_refused() -> None:
    def refuse(*names: str | None) -> None:
        attacks = [
            MutualInformationOptions(name="mutual-information", message=name) for name in names
        ]
        _refuse_other_names(runs(place(0, "model", "loss"), attack=attacks).worlds)

    refuse("model", None, "loss")
    with pytest.raises(RunError) as error:
        refuse("model", "modle")
    said = str(error.value)
    assert 'attack[2].message: no victim sends "modle" in round 2' in said
    assert 'did you mean "model"?); sent are model, loss' in said


def claim(adjacency: str, **more: Any) -> Claim:
    content = {"text": "c", "epsilon": 1.0, "delta": 1e-5, "adjacency": adjacency, **more}
    return Claim.model_validate(content)


def all_findings(monkeypatch: pytest.MonkeyPatch, **asked: Any) -> tuple[list[Any], list[Any]]:
    """The findings of claims 0 and 1 against a spy, by name, and what was played."""
    about = {"n": 60, "unknown": [], "amplifies": False, "claims": ("add-remove", "replace-one")}
    about |= asked
    attacks = [
        MutualInformationOptions(name="mutual-information", message="x"),
        SimpleNamespace(name="likelihood-ratio", message="y"),
    ]
    worlds = runs(place(0, "x", "y"), n=about["n"], attack=attacks, threat_model=(SPY, OWN)).worlds
    worlds.sampling = SimpleNamespace(  # type: ignore[assignment]
        amplifies=about["amplifies"],
        unknown=lambda c: "why" if c.adjacency in about["unknown"] else None,
    )
    played, counted = [], []

    def play(self: Any, program: Any, channels: Any, on_run: Any, checkpoint: Any) -> Any:
        assert {c.threat_model for c in channels} == {SPY}  # the victim is the other's own
        played.append((self.adjacency, [c.message for c in channels], checkpoint))
        return {c: (c.message, self.adjacency) for c in channels}

    monkeypatch.setattr(ShortRuns, "played", play)
    monkeypatch.setattr(short_runs, "certified", lambda i, c, at, s, r: ("test", i, *s, r.round))
    monkeypatch.setattr(short_runs, "information", lambda a, at, s, r: [("bits", *s)])
    claims = [ClaimAgainst(i, claim(adjacency), SPY) for i, adjacency in enumerate(about["claims"])]
    keep: Any = SimpleNamespace(stage=lambda name: name)
    counter: Any = lambda what, n: counted.append((what, n))  # noqa: E731
    found: Any = findings_of_short_runs(worlds, claims, None, counter, keep)  # type: ignore[arg-type]
    found = list(found)
    assert all(one == ("short runs", about["n"] + 1) for one in counted)
    return found, played


def test_each_claim_is_tested_by_runs_of_its_adjacency(monkeypatch: pytest.MonkeyPatch) -> None:
    """All messages together and those that attacks name; the information of its own message."""
    found, played = all_findings(monkeypatch)
    kinds = ("add-remove", "replace-one")
    assert played == [(kind, [None, "y", "x"], kind) for kind in kinds]
    assert found == [
        one
        for i, kind in enumerate(kinds)
        for one in (("test", i, None, kind, 2), ("test", i, "y", kind, 2), ("bits", "x", kind))
    ]


@pytest.mark.parametrize(
    ("asked", "tests", "bits"),
    [
        ({"n": 0}, [], []),
        ({"unknown": ["add-remove"]}, [1, 1], ["replace-one"]),
        ({"unknown": ["add-remove", "replace-one"]}, [], ["add-remove"]),
        ({"amplifies": True}, [], ["add-remove"]),
        ({"claims": ("replace-one", "replace-one")}, [0, 0, 1, 1], ["replace-one"]),
        ({"claims": ()}, [], ["add-remove"]),
    ],
)
def test_claims_whose_batches_are_known_are_tested(monkeypatch, asked, tests, bits) -> None:
    found, _ = all_findings(monkeypatch, **asked)
    assert sorted(one[1] for one in found if one[0] == "test") == tests
    assert [one[2] for one in found if one[0] == "bits"] == bits


def scores(values: Any, having: Any, victims: tuple[int, ...] = (0,)) -> ShortRunScores:
    n = len(values)
    shape = (n, len(victims))
    return ShortRunScores(
        victims, np.reshape(values, shape), np.reshape(having, shape).astype(bool), 4
    )


def test_a_certified_bound_is_of_one_round() -> None:
    having = np.arange(104) % 2
    of = runs(place(0, "x"))
    found = certified(3, claim("add-remove"), Channel(SPY, "x"), scores(having, having), of)
    assert (found.claim, found.threat_model, found.message) == (3, "spy", "x")
    assert (found.role, found.rounds, found.adjacency) == (Role.TEST, (2,), "add-remove")
    assert found.metrics[Name.FALSE_POSITIVES].n == found.metrics[Name.FALSE_NEGATIVES].n == 50
    assert found.metrics[Name.CONFIDENCE].value == 0.95
    assert found.metrics[Name.CEILING].value == pytest.approx(
        found.metrics[Name.EPSILON_LOWER_BOUND].value
    )


ASKED = MutualInformationOptions(name="mutual-information", n_permutations=0, n_splits=0)


def revealed(values: Any, leak: RoundLeak, asked: Any = ASKED, **more: Any) -> Any:
    having = (np.arange(len(values)) % 2).astype(float)
    return _revealed(asked, np.asarray(values, float), having, leak, runs(place(0, "x"), **more))


def test_scores_that_are_all_alike_reveal_nothing() -> None:
    metrics, series, notes = revealed(np.zeros(20), RoundLeak(0.5, 0.0))
    assert (metrics[Name.INFORMATION].value, metrics[Name.INFORMATION].n) == (0.0, 20)
    assert metrics[Name.CAPACITY_FOR_PRESENCE].value == of_bit_in_gaussian(0.5)
    assert (series, notes) == ({}, (short_runs.SAME,))
    shown = RoundLeak(inf, inf, noiseless=MessageId(0, (1,), "x", 1))
    metrics, series, notes = revealed(np.zeros(20), shown)
    assert (metrics, series) == ({}, {})
    assert notes[0].startswith("not estimated: ")


def test_what_scores_reveal_stands_beside_its_limit() -> None:
    """Of scores that are the bit: 1 bit, which noise of mu = 0.1 does not let through."""
    having = np.arange(200) % 2
    values = 10.0 * having + 1e-3 * np.random.default_rng(1).normal(size=200)
    metrics, series, notes = revealed(values, RoundLeak(0.1, 0.0))
    assert metrics[Name.INFORMATION].value > 0.9
    assert metrics[Name.CAPACITY_FOR_PRESENCE].value == of_bit_in_gaussian(0.1)
    assert Name.P_VALUE not in metrics
    assert series["round"] == (2,)
    split = ASKED.model_copy(update={"n_splits": 5, "n_permutations": 9})
    metrics, _, notes = revealed(values, RoundLeak(0.1, 0.0), split)
    low = metrics[Name.INFORMATION].low
    assert low is not None
    assert low > 1.0  # more than the bit has
    assert notes[0].startswith("beyond the noise: at least 0.888 bits, where the measured noise")
    assert metrics[Name.P_VALUE].value == pytest.approx(0.1)
    for mu, beyond in ((3.0, True), (8.0, False), (50.0, False)):
        *said, method, _, _, limit = revealed(values, RoundLeak(mu, 0.0), split)[2]
        assert (method, limit) == (short_runs.METHOD, short_runs.LIMIT)
        assert bool(said) is beyond  # of_bit_in_gaussian(8) is 0.9999: no run of 200 errs


@pytest.mark.parametrize("n", [8, 200, 1000])
def test_runs_without_errors_prove_less_than_a_bit(n: int) -> None:
    """1 - h(p) of the rate p at which n runs have no error with probability 5%."""
    p = 1 - 0.05 ** (1 / n)
    exact = 1 + p * log2(p) + (1 - p) * log2(1 - p)
    assert short_runs._without_errors(n) == pytest.approx(exact)


def test_information_is_of_each_victim() -> None:
    of = runs(place(0, "x"), place(1, "x"))
    asked = []
    of.worlds.rounds[2].leak = lambda *args: asked.append(args) or RoundLeak(0.5, 0.0)
    table = scores(np.zeros(24), np.arange(24) % 2, victims=(1,))
    [found] = information(ASKED, Channel(SPY, "x"), table, of)
    assert asked == [(1, SPY, of.pairs[1], "x")]
    assert found.title == "information about the record of agent 1: add-remove every link, or w1"
    assert (found.role, found.rounds, found.message) == (Role.INFORMATION, (2,), "x")


def test_no_capacity_is_derived_where_there_is_none() -> None:
    nothing = "no noise hides this record, and so no capacity of it stands beside"
    for leak in (RoundLeak(inf, 0.0), RoundLeak(0.0, inf), RoundLeak(inf, inf)):
        assert _capacity(leak) == ({}, (nothing,))
    metrics, notes = _capacity(RoundLeak(0.0, 0.0))
    assert metrics[Name.CAPACITY_FOR_PRESENCE].value == 0.0
    assert notes == (short_runs.LIMIT,)
