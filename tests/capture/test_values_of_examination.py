"""What an examination finds of a program of known figures, and what it refuses before any run."""

import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpaudit.accounting.releases import epsilon
from dpaudit.capture import alignment, premises
from dpaudit.capture.alignment import Alignments
from dpaudit.capture.composition import NOISELESS, Ends
from dpaudit.capture.file_times import files_below
from dpaudit.capture.premises import Cost, PremiseExamination
from dpaudit.capture.record_changes import RecordMoves, Variant
from dpaudit.capture.runs import MessageId, TakenBatch
from dpaudit.capture.sampling import Sampling
from dpaudit.capture.short_runs import ClaimAgainst
from dpaudit.capture.visible_output import NotExamined
from dpaudit.capture.worlds import measured_worlds
from dpaudit.errors import RunError
from dpaudit.files.claim import Claim
from dpaudit.files.finding import LEFT_OUT, Metric, Name, Role
from dpaudit.files.threat import ThreatModel
from dpaudit.files.world import FAR

from .toy import CLIP, SCALE, Toy, config_of

EVERYONE = ThreatModel(name="every link")
MU = CLIP / SCALE  # of one record in one round


def claim(scope: str = "run", adjacency: str = "add-remove", **of: Any) -> Claim:
    content = {"text": "c", "epsilon": 1.0, "delta": 1e-5, "scope": scope, "adjacency": adjacency}
    return Claim.model_validate(content | of)


def against(*claims: Claim) -> list[ClaimAgainst]:
    return [ClaimAgainst(i, one, EVERYONE) for i, one in enumerate(claims)]


def examination(toy: Toy, folder: Path, **of: Any) -> PremiseExamination:
    worlds = measured_worlds(config_of(folder, **of), toy)  # type: ignore[arg-type]
    files = files_below(folder, toy.scratch.parent)
    return PremiseExamination(worlds, toy, lambda: None, files)  # type: ignore[arg-type]


@pytest.fixture
def few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer ways to change a record, none among others, and nine seeds."""
    monkeypatch.setattr(alignment, "FAR_OWN_LABEL", FAR[:2])
    monkeypatch.setattr(alignment, "NEARER", ())
    monkeypatch.setattr(alignment, "FAR_OTHER_LABEL", FAR[6:8])
    monkeypatch.setattr(premises, "refuse_unbounded", lambda moves, used: None)
    monkeypatch.setattr(premises, "refuse_otherwise_among_others", lambda *_: None)
    monkeypatch.setattr(premises, "runs_needed", lambda plain, sites: 9)


def test_a_right_program_is_examined_whole(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(premises, "runs_needed", lambda plain, sites: 9)
    toy = Toy(tmp_path / "scratch" / "worlds")
    of = examination(toy, tmp_path)
    counted: list[int] = []
    of.on_run = lambda: counted.append(1)
    asked = against(claim(), claim("round"), claim("round", "replace-one"))
    before = len(toy.worlds)
    of.examine(asked, False)
    assert (of.missing, of.blocked, of.aligned, of.unseen) == ({}, "", True, ())
    assert [world.seed for world in toy.worlds[-9:]] == [*range(1, 10)]
    assert {world.tape for world in toy.worlds[-9:]} == {None}
    assert len(of.runs) == 9
    assert len(counted) == len(toy.worlds) - before - 5  # those of equal runs do not count
    assert [(c.victim, c.adjacency, c.noiseless) for c in of.costs] == [
        (v, adjacency, None) for v in (0, 1) for adjacency in ("add-remove", "replace-one")
    ]
    assert [c.sizes["gaussian"] for c in of.costs] == pytest.approx([MU, 2 * MU] * 2)
    assert of.moves is not None
    assert of.moves.largest(2, "gaussian") == pytest.approx(MU)
    assert of.uses() == 2
    whole, one = of.releases(claim()), of.releases(claim("round"))
    assert whole is not None
    assert one is not None
    assert [(r.count, r.clipped, r.sampling) for r in (*whole, *one)] == [
        (2, "records", "none"), (1, "records", "none"),
    ]  # fmt: skip
    assert [r.noise_multiplier for r in (*whole, *one)] == pytest.approx([1 / MU] * 2, rel=2e-5)


@pytest.mark.usefixtures("few_runs")
def test_what_was_examined_bounds_a_claim(tmp_path: Path) -> None:
    of = examination(Toy(tmp_path / "scratch" / "worlds"), tmp_path)
    asked = against(claim(), claim("round", "replace-one"), claim("round"), claim())
    assert of.ends(claim(), EVERYONE) == Ends(None, None)
    of.examine(asked, False)
    for one, count, mu in ((claim(), 2, MU), (claim("round", "replace-one"), 1, 2 * MU)):
        ends = of.ends(one, EVERYONE)
        assert (ends.most, ends.whole) == (of.releases(one), of.releases(claim()))
        [note] = ends.notes
        assert note.startswith("moving an agent's own noise hides its record in every message of 2")
        assert f"; {count} of them count" in note
        least = epsilon(ends.least.releases or (), 1e-5, "add-remove").low
        assert ends.least.epsilon == pytest.approx(least)
        releases = ends.least.releases or ()
        assert [r.noise_multiplier for r in releases] == pytest.approx([1.001 / mu] * count, 1e-5)
    found = list(of.findings(asked))
    noise, state, *more = found
    assert (noise.role, state.role) == (Role.NOISE, Role.STATE)
    assert state.metrics == {Name.ROUNDS: Metric(value=2, n=2)}
    assert [(f.role, f.claim, f.adjacency) for f in more] == [
        (Role.RECORDS, 0, None), (Role.ALIGNMENT, None, "add-remove"),
        (Role.DEPENDENCE, None, "add-remove"), (Role.RECORDS, 1, None),
        (Role.ALIGNMENT, None, "replace-one"), (Role.DEPENDENCE, None, "replace-one"),
        (Role.RECORDS, 2, None), (Role.ALIGNMENT, None, "add-remove"), (Role.RECORDS, 3, None),
    ]  # fmt: skip
    assert {f.not_examined for f in (state, *more)} == {()}
    assert more[0].notes[0].endswith("is in 2 batches of a run at most, of 10 runs")
    assert more[0].threat_model == "every link"
    aligning = more[1]
    assert aligning.metrics[Name.MOVED_OVER_DECLARED].value == 1.0
    assert aligning.metrics[Name.ROUNDS] == Metric(value=2, n=2)
    assert aligning.releases == {"most": of.releases(claim())}
    assert "which none of 18 changes of the first" in aligning.notes[0]
    assert more[2].metrics == {Name.FOUND: Metric(value=0.0)}
    of.unseen = ("1e22",)
    assert next(of.findings(asked)).role is Role.NOISE
    again = of._alignment(claim())
    assert again.notes[0].endswith(
        "that of a clip; inputs 1e22 times as large give no finite numbers"
    )
    assert [len(of.assumed), of.assumed[-1]] == [
        8, "no record is so large that its messages are no finite numbers",
    ]  # fmt: skip


def test_assumptions_hold_no_figures() -> None:
    """A figure of a verdict's sentence must be in its evidence, or `dpaudit verify` contradicts."""
    assert not [text for text in (*premises.ASSUMED, premises.COINS) if re.search(r"\d", text)]


@pytest.mark.usefixtures("few_runs")
def test_what_was_not_examined_says_why(tmp_path: Path) -> None:
    of = examination(Toy(tmp_path / "scratch" / "worlds"), tmp_path)
    asked = against(claim())
    of.examine(asked, True)
    assert (of.missing, of.blocked, of.aligned) == ({"distance": LEFT_OUT}, LEFT_OUT, False)
    noise, state, records, alignment, beside = of.findings(asked)
    for finding in (noise, state, records, alignment, beside):
        assert finding.not_examined == (LEFT_OUT,)
    for finding in (state, records, alignment, beside):
        assert (finding.metrics, finding.notes, finding.releases) == ({}, (), {})
    of.blocked = "blocked"
    of.missing = {"noise": "n", "records": "r", "composition": "c", "completeness": "b"}
    said = [finding.not_examined for finding in of.findings(asked)]
    assert said == [("n",), ("blocked",), ("r",), ("c",), ("b",)]
    of.missing = {"state": "s", "distance": "d", "composition": "c"}
    said = [finding.not_examined for finding in of.findings(asked)]
    assert said == [("blocked",), ("s",), ("blocked",), ("d",), ("blocked",)]
    of.runs = [of.worlds.plain] * 2
    assert next(of.findings(asked)).not_examined != ("blocked",)


@pytest.mark.usefixtures("few_runs")
def test_a_program_that_writes_or_draws_is_not_examined(tmp_path: Path, monkeypatch) -> None:
    of = examination(Toy(tmp_path / "scratch" / "worlds"), tmp_path)
    (tmp_path / "written").mkdir()
    (tmp_path / "written" / "loss.txt").touch()
    monkeypatch.setattr(premises, "other_draws", lambda plain, sites, sampled: "a.py:1 draws")
    of.examine(against(claim()), False)
    name = Path("written") / "loss.txt"
    assert of.missing == {
        "completeness": f"it writes files, such as {name}", "noise": "a.py:1 draws",
    }  # fmt: skip
    assert (of.aligned, of.blocked) == (True, "")
    failing = examination(Toy(tmp_path / "scratch" / "worlds"), tmp_path)

    def fail(*_: Any) -> Any:
        raise RunError("DPA058", "it ended", "help")

    monkeypatch.setattr(premises, "refuse_bare_numbers", fail)
    failing.examine(against(claim()), False)
    assert failing.missing == {"composition": "it ended"}
    assert (failing.aligned, failing.blocked, failing.runs) == (False, LEFT_OUT, ())


def test_files_of_a_run_directory_are_not_the_programs(tmp_path: Path) -> None:
    for name in ("data.txt", "out/worlds/x.txt", "done/run.json", "done/deep/x.txt", "kept/x.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    (tmp_path.parent / "run.json").touch()  # it is no directory of the program
    found = files_below(tmp_path, tmp_path / "out")
    (tmp_path.parent / "run.json").unlink()
    assert sorted(found) == [tmp_path / "data.txt", tmp_path / "kept" / "x.txt"]
    status = os.stat(tmp_path / "data.txt")
    assert found[tmp_path / "data.txt"] == (status.st_mtime_ns, 1)


def state(**of: Any) -> Any:
    """What is known of runs before they are examined; all of it is as it should be."""
    draw = SimpleNamespace(agent=0)
    place = SimpleNamespace(draws=[draw], owners_of=lambda d: of.get("owners", {0}))
    return SimpleNamespace(
        config=SimpleNamespace(
            record=SimpleNamespace(victims=of.get("victims", (0,))),
            messages=SimpleNamespace(ignore=of.get("ignore", ())),
        ),
        sampling=Sampling(of.get("stated"), of.get("rate", 1.0), of.get("pattern", "whole")),
        unmeasured=of.get("unmeasured", {}),
        base=SimpleNamespace(
            batches=of.get("taken", [SimpleNamespace(agent=0, records=1)]),
            draws=of.get("draws", [draw]), summed=of.get("summed", ()),
            unseen=of.get("unseen", ()), n_rounds=of.get("n_rounds", 100),
        ),
        rounds={1: SimpleNamespace(places={0: place})},
        replay=SimpleNamespace(same=of.get("same", {})),
    )  # fmt: skip


def taken(*agents: int, records: int = 1) -> list[Any]:
    return [SimpleNamespace(agent=agent, records=records) for agent in agents]


def test_one_draw_of_several_that_agents_share_is_refused() -> None:
    worlds, own = state(), SimpleNamespace(agent=0)
    place = worlds.rounds[1].places[0]
    place.draws, place.owners_of = [*place.draws, own], lambda d: {0, 1} if d is own else {0}
    nothing: Any = None
    with pytest.raises(NotExamined, match="agents share noise"):
        PremiseExamination(worlds, nothing, lambda: None, {})._refuse_before_runs(
            against(claim()), False
        )


@pytest.mark.parametrize(
    ("of", "drawn"),
    [
        ({}, False),
        ({"stated": "poisson", "rate": 0.5}, True),  # as a recording of whole batches may be
        ({"stated": "fixed"}, False),
        ({"pattern": "random"}, True),
        ({"pattern": "unknown"}, True),
        ({"pattern": "epochs"}, False),
    ],
)
def test_batches_may_be_drawn_where_they_are_said_to_be(monkeypatch, of: Any, drawn: bool) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(premises, "other_draws", lambda *given: asked.append(given))
    worlds, nothing = state(**of), None
    worlds.plain, worlds.config.noise = "plain", SimpleNamespace(sites=("z",))
    own = PremiseExamination(worlds, nothing, lambda: None, {})  # type: ignore[arg-type]
    own._refuse_other_draws()
    assert asked == [("plain", ("z",), drawn)]
    assert own.missing == {}


def test_a_record_in_few_rounds_counts_in_the_loudest(monkeypatch) -> None:
    """It moves four rounds by 1, 0, 3 and 2 of their noise, and is in two batches of a run."""
    monkeypatch.setattr(PremiseExamination, "_records_missing", lambda self: "")
    monkeypatch.setattr(PremiseExamination, "_count", lambda self, claim: 2)
    nothing: Any = None
    own = PremiseExamination(state(n_rounds=4), nothing, lambda: None, {}, aligned=True)
    moved = {
        (0, k, "gaussian"): {"a": size, "b": 0.0} for k, size in enumerate((1.0, 0.0, 3.0, 2.0), 1)
    }
    own.moves = RecordMoves(moved, None, {})  # type: ignore[arg-type]
    found = own.releases(claim())
    assert found is not None
    assert [1 / r.noise_multiplier for r in found] == pytest.approx([3.0, 2.0], rel=2e-3)
    own.aligned = False
    assert own.releases(claim()) is None


@pytest.mark.parametrize(
    ("of", "premise", "said"),
    [
        ({}, "", ""),
        ({"decided": True}, "distance", LEFT_OUT),
        ({"unmeasured": {"x": RunError("DPA063", "not linear")}}, "composition", "not linear"),
        ({"stated": "fixed", "rate": 0.5}, "records", "drawn as stated was not tested"),
        ({"stated": "poisson", "rate": 0.5}, "", ""),
        ({"stated": "fixed", "rate": 1.0}, "", ""),
        ({"stated": "none"}, "", ""),
        ({"taken": [*taken(0), *taken(0, records=0)]}, "records", "a batch holds no record"),
        ({"pattern": "random"}, "records", "how likely a record is in a batch is not known"),
        ({"pattern": "unknown"}, "", ""),  # one of the claims is of a round
        ({"taken": taken(0, 2)}, "distance", r"of agent 2 was changed \(record.victims\)"),
        ({"taken": taken(3, 0, 2)}, "distance", r"of agents 2, 3 was changed \(record.victims\)"),
        ({"taken": taken(8, 0, 1)}, "distance", "of agents 1, 8 was changed"),  # a set has 8 first
        ({"taken": taken(0, 2), "victims": (0, 2)}, "", ""),
        ({"draws": taken(0, 5, 4)}, "records", "agent 4 draws noise and takes no batch, so that"),
        ({"same": {"a": ("b", 1)}}, "composition", "agents share noise"),
        ({"owners": {0, 1}}, "composition", "agents share noise"),
        ({"summed": ("x",)}, "composition", "the noise of several agents is in one sum"),
        ({"ignore": ("a", "b")}, "completeness", "messages of a, b were left out"),
        ({"unseen": ("it sends unseen", "more")}, "completeness", "it sends unseen"),
        ({"n_rounds": 101}, "composition", "the program has 101 rounds; 100 at most are played"),
    ],
)
def test_what_is_known_before_more_runs_is_refused(of: Any, premise: str, said: str) -> None:
    nothing: Any = None
    own = PremiseExamination(state(**of), nothing, lambda: None, {})
    asked = against(claim(), claim("round"))
    if not premise:
        own._refuse_before_runs(asked, False)
        return
    with pytest.raises(NotExamined, match=said) as error:
        own._refuse_before_runs(asked, of.get("decided", False))
    assert error.value.premise == premise


def of_batches(
    *by_agent: list[tuple[int, str]], n_rounds: int = 2, **of: Any
) -> PremiseExamination:
    """Batches with their times; an agent sends in round k at 10 k."""
    batches = [
        TakenBatch(agent, at, len(records), tuple(records))
        for agent, own in enumerate(by_agent)
        for at, records in own
    ]
    run = SimpleNamespace(
        batches=batches, n_rounds=n_rounds, span=lambda agent, k: (10 * (k - 1), 10 * k)
    )
    victims = tuple(range(len(by_agent)))
    worlds: Any = SimpleNamespace(
        base=run, plain=run, sampling=Sampling(of.get("stated"), of.get("rate", 1.0), "whole"),
        config=SimpleNamespace(record=SimpleNamespace(victims=victims)),
    )  # fmt: skip
    nothing: Any = None
    return PremiseExamination(worlds, nothing, lambda: None, {}, aligned=of.get("aligned", True))


def test_each_round_has_one_batch_of_an_agent() -> None:
    of = of_batches([(5, "abc"), (15, "abc")], [(0, "de"), (10, "de"), (12, "de"), (20, "de")])
    assert of.used == {0: {1: 1, 2: 2}, 1: {2: 3}}  # what is taken as it sends is of no round
    with pytest.raises(NotExamined, match="agent 0 takes 2 batches in round 1") as error:
        assert of_batches([(5, "abc"), (6, "abc")]).used
    assert error.value.premise == "records"


def test_the_record_of_a_place_is_the_same_one_where_it_may_be() -> None:
    """The first, the middle and the last of a batch; in others it is where that record is."""
    of = of_batches([(5, "abcd"), (15, "dcba")], [(5, "ab"), (15, "cd")])
    assert of.records == {0: {1: [0, 1, 3], 2: [3, 2, 0]}, 1: {1: [0, 0, 1], 2: [0, 0, 1]}}
    assert of_batches([(5, "abcde"), (15, "a")]).records == {0: {1: [0, 2, 4], 2: [0, 0, 0]}}
    three = of_batches([(5, "ab"), (15, "cd"), (25, "ca")], n_rounds=3)
    assert three.records == {0: {1: [0, 0, 1], 2: [0, 0, 1], 3: [1, 1, 1]}}


@pytest.mark.parametrize(
    ("batches", "of", "counts", "said"),
    [
        (["ab", "ab"], {}, (2, 2), ""),
        (["ab", "cd"], {"n_rounds": 5}, (1, 5), ""),  # drawn at random: it may be in each
        (["ab"], {}, (1, 1), ""),
        (["aa", "ab"], {}, (3, 2), "a batch of agent 0 holds one record twice"),
        (["ab", "ab"], {"aligned": False}, (2, 2), "blocked"),
        ([], {}, (0, 0), ""),
    ],
)
def test_how_often_a_record_is_used_is_known(batches, of, counts, said) -> None:
    uses, counted = counts
    own = of_batches([(10 * i + 5, one) for i, one in enumerate(batches)], **of)
    own.blocked = "blocked"
    assert own._records_missing().startswith(said)
    assert bool(own._records_missing()) == bool(said)
    assert own.uses() == uses
    assert own._count(claim("run")) == counted
    assert own._count(claim("round")) == 1
    assert (premises.COINS in own.assumed) == (not own.in_turn)
    other = of_batches([(5, "ab"), (15, "cd")])
    own.runs = [other.worlds.plain]
    assert own.uses() == max(uses, 1)


def test_batches_are_in_turn_where_those_of_all_runs_are() -> None:
    own = of_batches([(5, "ab"), (15, "ab")])
    own.runs = [of_batches([(5, "ab"), (15, "cd")]).worlds.plain]
    assert not own.in_turn
    assert own._count(claim("run")) == own.worlds.base.n_rounds


def test_batches_that_are_drawn_are_held_against_their_rate(monkeypatch) -> None:
    metric = Metric(value=0.5, low=0.4, high=0.6)
    seen: list[Any] = []

    def drawn_rate(runs: Any, victims: Any, rate: float) -> Any:
        seen.append((len(runs), victims, rate))
        return of.why, metric

    monkeypatch.setattr(premises, "drawn_rate", drawn_rate)
    of: Any = of_batches([(5, "ab"), (15, "cd")], stated="poisson", rate=0.5)
    of.why, of.runs = "", [of.worlds.plain]
    assert of.drawn == ("", {Name.DECLARED_RATE: Metric(value=0.5), Name.SAMPLING_RATE: metric})
    assert seen == [(2, (0,), 0.5)]
    assert of._records_missing() == ""  # by chance, in each batch
    assert of._count(claim()) == 2
    assert of._count(claim("round")) == 1
    assert of.assumed[-1] == premises.COINS
    apart: Any = of_batches([(5, "ab"), (15, "cd")], stated="poisson", rate=0.5)
    apart.why, of = "they are not", apart
    assert apart._records_missing() == "they are not"
    assert apart.releases(claim("round")) is None
    used = apart._used(0, claim(), EVERYONE)
    assert used.not_examined == ("they are not",)
    assert used.metrics == {Name.DECLARED_RATE: Metric(value=0.5)}
    unaligned: Any = of_batches([(5, "ab")], stated="poisson", rate=0.5, aligned=False)
    assert unaligned.drawn == ("", {Name.DECLARED_RATE: Metric(value=0.5)})
    assert of_batches([(5, "ab")]).drawn == ("", {})
    assert of_batches([(5, "ab")]).assumed[-1] == premises.ASSUMED[-1]


def test_seeds_show_the_noise_and_the_rate_of_records(monkeypatch) -> None:
    monkeypatch.setattr(premises, "runs_needed", lambda plain, sites: 3)
    monkeypatch.setattr(premises, "runs_for_rate", lambda plain, victims, rate: 5)
    for stated, n in (("poisson", 5), (None, 3)):
        of: Any = of_batches([(5, "ab")], stated=stated, rate=0.5 if stated else 1.0)
        of.worlds.config.noise = SimpleNamespace(sites=())
        of.worlds.config.seed = 2**32 - 2
        of.program = SimpleNamespace(scratch=Path("s"), each=lambda worlds, *_: worlds)
        found: Any = of._with_other_seeds()
        assert [world.seed for world in found] == [2**32 - 1, *range(n - 1)]


@pytest.mark.parametrize(("amplifies", "refused"), [(True, True), (False, False)])
def test_a_drawn_batch_moves_noise_of_one_family(
    tmp_path: Path, monkeypatch, amplifies: bool, refused: bool
) -> None:
    """Of several families, and for one victim in one round: one that is not moved does not count."""
    of = examination(Toy(tmp_path / "scratch" / "worlds"), tmp_path)
    stated = Sampling("poisson", 0.5, "random") if amplifies else of.worlds.sampling
    of.worlds = of.worlds._replace(sampling=stated)
    sizes: dict[Any, Any] = {
        (0, 1, "gaussian"): {"a": 1.0, "b": 0.0}, (0, 1, "laplace"): {"a": 1.0, "b": 0.0},
        (0, 2, "gaussian"): {"a": 1.0},
    }  # fmt: skip
    message = MessageId(0, (1,), "x", 1)
    for moved, both in ((sizes, True), ({**sizes, (0, 1, "laplace"): {"a": 0.0}}, False)):
        moves = RecordMoves(moved, (message, Variant("absent", 0)), {})
        monkeypatch.setattr(Alignments, "moves", lambda self, moves=moves: moves)
        monkeypatch.setattr(
            PremiseExamination, "_costs", lambda *_: iter([Cost(0, "add-remove", {})])
        )
        with pytest.raises(NotExamined) as error:
            of._align(against(claim()))
        assert error.value.premise == "composition"
        two = "a batch that is drawn moves noise of two families"
        bare = f"{message} moves with a record by what no noise hides"
        assert error.value.why == (two if refused and both else bare)


class OfMoves(SimpleNamespace):
    """Alignments of which it is known what is furthest and how far two records are apart."""

    ways = (Variant("absent", 0), Variant("scaled", 0), Variant("own:3", 1))

    def furthest(self, victim: int, k: int, way: Variant, moves: Any, adjacency: str) -> str:
        return f"{adjacency} of {way.how}"

    def apart(self, victim: int, k: int, pair: Any, number: int) -> Any:
        self.asked.append((victim, k, [way.how for way in pair], number))
        return self.shown


def test_the_record_that_moves_most_has_a_cost() -> None:
    message = MessageId(1, (0,), "x", 2)
    of: Any = of_batches([(5, "ab"), (15, "ab")], [(5, "ab"), (15, "ab")])
    sizes: Any = {
        (0, 1, "gaussian"): {"scaled": 1.0, "present": 9.0},
        (0, 2, "gaussian"): {"scaled": 0.5, "own:3": 2.0},
        (1, 1, "laplace"): {"own:1e22": 3.0, "scaled": 1.0},
        (1, 3, "laplace"): {"scaled": 7.0},  # in no batch of this round
    }
    runs: Any = OfMoves(asked=[], shown={"gaussian": 2.0})
    moves = RecordMoves(sizes, None, {}, {Variant("own:1e22", 0): {}})
    found = list(of._costs(runs, moves, ["add-remove", "replace-one"]))
    assert found == [
        Cost(v, adjacency, {"gaussian": 2.0})
        for v in (0, 1)
        for adjacency in ("add-remove", "replace-one")
    ]
    assert runs.asked == [
        (0, 2, ["add-remove of own:3", "own:3"], 2),
        (0, 2, ["replace-one of own:3", "own:3"], 2),
        (1, 1, ["add-remove of own:1e22", "own:1e22"], 1),
        (1, 1, ["replace-one of own:1e22", "own:1e22"], 1),
    ]
    for shown, costs in ((message, [Cost(1, "add-remove", {}, message)]), (None, [])):
        runs = OfMoves(asked=[], shown=shown)
        bare = RecordMoves(sizes, (message, Variant("absent", 0)), {})
        assert list(of._costs(runs, bare, ["add-remove", "replace-one"])) == costs
        assert [one[:2] for one in runs.asked] == [(1, 2)]  # without it, none is in its place
    unused: Any = of_batches([], [(5, "ab")])
    assert list(unused._costs(OfMoves(asked=[], shown=None), bare, ["add-remove"])) == []


def test_a_bare_message_of_a_toy_costs_everything(tmp_path: Path) -> None:
    class Bare(Toy):
        def content(self, agent: int, k: int, total: np.ndarray, noise: np.ndarray) -> np.ndarray:
            return np.append(total + noise, total[0])

    of = examination(Bare(tmp_path / "scratch" / "worlds"), tmp_path)
    of.examine(against(claim()), False)
    message = MessageId(0, (1,), "x", 1)
    assert of.costs == [Cost(0, "add-remove", {}, message)]
    assert of.missing == {"composition": f"{message} moves with a record by what no noise hides"}
    assert of.ends(claim(), EVERYONE) == Ends(None, None, NOISELESS, str(message))
