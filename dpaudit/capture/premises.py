"""The premises of accounting, examined on a program that was not written for dpaudit.

The program states the scale of its noise; nothing else is declared. How far a record moves its
messages is bounded by runs in which records far out are hidden by moving the noise
(``aligned.py``); the noise itself is tested in runs with other seeds (``drawn.py``). What cannot be
examined is said, and makes a support impossible.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from dpaudit.accounting.privacy_loss import NoiseFamily
from dpaudit.accounting.releases import Mechanism, RecordAdjacency, Release
from dpaudit.defense.claim_accounting import claimed_delta, record_adjacency
from dpaudit.errors import RunError
from dpaudit.files.claim import Claim
from dpaudit.files.finding import LEFT_OUT, Finding, Metric, Name, Role
from dpaudit.files.result import PremiseName
from dpaudit.files.threat import ThreatModel
from dpaudit.files.world import FAR, NEARER, World
from dpaudit.pipeline.rules import CAPTURED

from .alignment import MOST_ROUNDS, Alignments
from .batch_tests import batches_of, drawn_rate, runs_for_rate
from .composition import NOISELESS, Ends, Least, least, released
from .extreme_records import refuse_unbounded, refuse_whole_numbers, with_overflowing
from .file_times import FileState, files_below
from .noise_tests import drawn_noise, runs_needed
from .other_draws import other_draws
from .other_records import refuse_bare_numbers, refuse_by_place, refuse_otherwise_among_others
from .program import Program
from .rare_noise import refuse_other_noise_far_out
from .record_changes import PLACES, RecordMoves
from .run_cost import RunCost, costs_of_runs, least_of_run
from .runs import MessageId, ProgramRun
from .sampling import pattern_of
from .short_runs import ClaimAgainst
from .visible_output import EqualRuns, NotExamined, in_short
from .worlds import MeasuredRuns, OnRun

PRECISION = 1e-5  # relative: to which the moves of noise are measured, in favour of the program
FAMILIES: tuple[NoiseFamily, ...] = "gaussian", "laplace"
ASSUMED = (
    "records act only as the batches that the program shows",
    "the numbers of its generators cannot be predicted",
    "no record moves a message further than those far out that were tried",
    "records hold finite numbers",
    "times, files outside of its folder and programs that it starts tell nothing",
    "noise has its stated law beyond three standard deviations, too",
    "what is smaller than a ten-thousandth of the noise tells nothing",
)
COINS = "the numbers by which batches are drawn decide nothing else"


class Cost(NamedTuple):
    """What one record of a victim costs at least, in units of the noise."""

    victim: int
    adjacency: RecordAdjacency
    sizes: Mapping[NoiseFamily, float]
    noiseless: MessageId | None = None  # a message that shows the record without noise


@dataclass
class PremiseExamination:
    """What was examined of a program, for all claims and adversaries.

    Args:
        on_run: called after each run.
        files: of the program's folder, before it was run.
    """

    worlds: MeasuredRuns
    program: Program
    on_run: OnRun
    files: Mapping[Path, FileState]
    missing: dict[PremiseName, str] = field(default_factory=dict)  # why a premise is not examined
    blocked: str = ""  # why none is that rests on moving noise
    moves: RecordMoves | None = None
    costs: Sequence["Cost"] = ()
    of_runs: Sequence[RunCost] = ()  # costs if later rounds remember the record
    unseen: Sequence[str] = ()  # factors of inputs whose messages are no finite numbers
    aligned: bool = False  # the runs are the same when noise is moved, and bound all records
    runs: Sequence[ProgramRun] = ()  # runs with seeds of their own

    def examine(self, asked: Sequence[ClaimAgainst], decided: bool) -> None:
        """Play what the premises need, if the claims may be supported.

        Args:
            decided: something speaks against every claim.
        """
        try:
            self._refuse_before_runs(asked, decided)
            self._align_at_all(asked)
            self._refuse_written()
            self._refuse_other_draws()
            self.runs = self._with_other_seeds()
        except NotExamined as one:
            self.missing[one.premise], self.blocked = one.why, LEFT_OUT
        except RunError as error:
            self.missing["composition"], self.blocked = in_short(error), LEFT_OUT

    @property
    def _folder(self) -> Path:
        return self.worlds.config.program.folder

    def _refuse_before_runs(self, asked: Sequence[ClaimAgainst], decided: bool) -> None:
        """Raises NotExamined for what is known from the runs that there are."""
        worlds, config = self.worlds, self.worlds.config
        sampling, victims = worlds.sampling, config.record.victims
        if decided:
            raise NotExamined("distance", LEFT_OUT)
        for error in worlds.unmeasured.values():
            raise NotExamined("composition", in_short(error))
        if sampling.amplifies and sampling.stated != "poisson":
            raise NotExamined("records", "whether batches are drawn as stated was not tested")
        if any(taken.records == 0 for taken in worlds.base.batches):
            raise NotExamined("records", "a batch holds no record, so that none was changed")
        unknown = [sampling.unknown(one.claim) for one in asked]
        if all(unknown):
            raise NotExamined("records", "how likely a record is in a batch is not known")
        others = sorted({taken.agent for taken in worlds.base.batches} - {*victims})
        if others:
            named = ", ".join(map(str, others))
            why = f"no record of {'agent' if len(others) == 1 else 'agents'} {named} was changed"
            raise NotExamined("distance", f"{why} (record.victims)")
        silent = {draw.agent for draw in worlds.base.draws} - {*victims}
        if silent:
            why = f"agent {min(silent)} draws noise and takes no batch"
            raise NotExamined("records", f"{why}, so that none of its records was changed")
        places = [place for n in worlds.rounds.values() for place in n.places.values()]
        if worlds.replay.same or any(len(p.owners_of(d)) > 1 for p in places for d in p.draws):
            raise NotExamined("composition", "agents share noise")
        if worlds.base.summed:
            raise NotExamined("composition", "the noise of several agents is in one sum")
        if config.messages.ignore:
            named = ", ".join(config.messages.ignore)
            raise NotExamined("completeness", f"messages of {named} were left out")
        if worlds.base.unseen:
            raise NotExamined("completeness", worlds.base.unseen[0])
        if worlds.base.n_rounds > MOST_ROUNDS:
            why = f"the program has {worlds.base.n_rounds} rounds; {MOST_ROUNDS} at most are played"
            raise NotExamined("composition", why)

    @cached_property
    def used(self) -> dict[int, dict[int, int]]:
        """By victim and round: the number of the batch it takes. Raises NotExamined."""
        found: dict[int, dict[int, int]] = {}
        for victim in self.worlds.config.record.victims:
            found[victim] = {}
            own = [taken for taken in self.worlds.base.batches if taken.agent == victim]
            for k in range(1, self.worlds.base.n_rounds + 1):
                begin, end = self.worlds.base.span(victim, k)
                numbers = [i for i, t in enumerate(own, 1) if begin < t.sequence < end]
                if len(numbers) > 1:
                    why = f"agent {victim} takes {len(numbers)} batches in round {k}"
                    raise NotExamined("records", why)
                found[victim] |= dict.fromkeys([k], numbers[0]) if numbers else {}
        return found

    @cached_property
    def records(self) -> dict[int, dict[int, list[int]]]:
        """By victim and batch: which record is that of each place, the same one where it may be."""
        found: dict[int, dict[int, list[int]]] = {}
        for victim, rounds in self.used.items():
            digests = batches_of(self.worlds.plain, victim)
            found[victim] = {number: [] for number in rounds.values()}
            for place in range(len(PLACES)):
                chosen: list[str] = []
                for number, records in found[victim].items():
                    batch = digests[number - 1]
                    new = batch[place * (len(batch) - 1) // (len(PLACES) - 1)]
                    known = [one for one in chosen if one in batch]
                    chosen += [] if known else [new]
                    records.append(batch.index(known[0] if known else new))
        return found

    def _align_at_all(self, asked: Sequence[ClaimAgainst]) -> None:
        """Without leaving a record out, where that prevents it and no claim is of that.

        A sum that is divided by the number of records is another one of all others then, too.
        """
        try:
            self._align(asked)
        except (NotExamined, RunError) as error:
            if not (self.worlds.config.only_replaces and self.worlds.leaves_out):
                raise
            self.worlds = self.worlds._replace(leaves_out=False, otherwise="")
            try:
                self._align(asked)
            except NotExamined as one:
                if isinstance(error, RunError) or not self.moves or self.moves.not_seen != one.why:
                    raise
                raise NotExamined(error.premise, f"{error.why}; {one.why}") from None

    def _align(self, asked: Sequence[ClaimAgainst]) -> None:
        is_simulation = self.worlds.config.program.ranks is None
        equal = EqualRuns.of(self.program, self.worlds.replay, is_simulation)
        runs = Alignments(self.worlds, self.program, self.records, self.on_run, equal)
        moves = runs.moves()
        if moves.noiseless is None:
            moves, self.unseen = with_overflowing(runs, moves, self.used)
        self.moves = moves
        moved = Counter((v, k) for (v, k, _), of in moves.sizes.items() if any(of.values()))
        if self.worlds.sampling.amplifies and max(moved.values(), default=1) > 1:
            raise NotExamined("composition", "a batch that is drawn moves noise of two families")
        adjacencies = dict.fromkeys(record_adjacency(one.claim) for one in asked)
        self.costs = list(self._costs(runs, moves, adjacencies))
        if not self.worlds.sampling.amplifies and any(one.claim.scope == "run" for one in asked):
            self.of_runs = list(costs_of_runs(runs, moves, adjacencies))
        if moves.noiseless is not None:
            why = f"{moves.noiseless[0]} moves with a record by what no noise hides"
            raise NotExamined("composition", why)
        refuse_whole_numbers(runs, self.used)
        refuse_bare_numbers(runs, self.worlds)
        refuse_unbounded(moves, self.used)
        if not self.worlds.leaves_out:
            refuse_by_place(runs, self.used)
        refuse_otherwise_among_others(runs, moves, self.used)
        runs.verify(moves)
        refuse_other_noise_far_out(runs, moves)
        self.aligned = True

    def _costs(
        self, runs: Alignments, moves: RecordMoves, adjacencies: Collection[RecordAdjacency]
    ) -> Iterator["Cost"]:
        """What the record that moves a victim's noise most costs by itself, in one round.

        It is there or not, or in the place of the one that is furthest from it.
        """
        for victim in self.worlds.config.record.victims:
            if moves.noiseless is not None:
                message, way = moves.noiseless
                k = message.round
                if message.source != victim:
                    continue
            else:
                sizes = {
                    (k, how): size
                    for (of, k, _), found in moves.sizes.items()
                    for how, size in found.items()
                    if of == victim and how != "present" and k in self.used[victim]
                }
                k, how = max(sizes, key=lambda at: sizes[at])
                way = next(one for one in [*runs.ways, *moves.overflowing] if one.how == how)
            for adjacency in adjacencies if k in self.used[victim] else ():
                if way.how == "absent" and adjacency == "replace-one":
                    continue
                other = runs.furthest(victim, k, way, moves, adjacency)
                pair = way._replace(how=other), way
                shown = runs.apart(victim, k, pair, self.used[victim][k])
                if isinstance(shown, MessageId):
                    yield Cost(victim, adjacency, {}, shown)
                elif shown is not None:
                    yield Cost(victim, adjacency, shown)

    def _refuse_written(self) -> None:
        now = files_below(self._folder, self.program.scratch.parent)
        written = [path for path, state in now.items() if self.files.get(path) != state]
        if written:
            name = written[0].relative_to(self._folder)
            self.missing["completeness"] = f"it writes files, such as {name}"

    def _refuse_other_draws(self) -> None:
        worlds, sampling = self.worlds, self.worlds.sampling
        drawn = sampling.amplifies or sampling.pattern in ("random", "unknown")
        other = other_draws(worlds.plain, worlds.config.noise.sites, drawn)
        if other:
            self.missing["noise"] = other

    def _with_other_seeds(self) -> Sequence[ProgramRun]:
        config = self.worlds.config
        n, sampling = runs_needed(self.worlds.plain, config.noise.sites), self.worlds.sampling
        if sampling.amplifies:
            n = max(n, runs_for_rate(self.worlds.plain, config.record.victims, sampling.rate))
        seeds = [(config.seed + 1 + i) % 2**32 for i in range(n)]
        plain = [World(out=self.program.scratch, seed=seed) for seed in seeds]
        return self.program.each(plain, ProgramRun.loaded, self.on_run)

    @property
    def assumed(self) -> Sequence[str]:
        """What a bound of a record rests on that no run can show."""
        drawn = self.worlds.sampling.amplifies or not self.in_turn
        of_batches = (COINS,) if drawn else ()
        unseen = ("no record is so large that its messages are no finite numbers",)
        return *ASSUMED, *of_batches, *(unseen if self.unseen else ())

    def uses(self) -> int:
        """The largest number of batches of a run that hold one record, over all runs."""
        counts = [
            max(Counter(d for batch in batches_of(run, v) for d in batch).values(), default=0)
            for run in (self.worlds.plain, *self.runs)
            for v in self.worlds.config.record.victims
        ]
        return max(counts, default=0)

    @cached_property
    def in_turn(self) -> bool:
        """Whether the batches of all runs are whole, or pass over the data again and again."""
        every = [
            batches_of(run, victim)
            for run in (self.worlds.plain, *self.runs)
            for victim in self.worlds.config.record.victims
        ]
        return all(len(of) < 2 or pattern_of(of) in ("whole", "epochs") for of in every)

    @cached_property
    def drawn(self) -> tuple[str, Mapping[str, Metric]]:
        """Why batches may not be drawn as stated, or ""; and the rate of a record."""
        sampling, victims = self.worlds.sampling, self.worlds.config.record.victims
        if not sampling.amplifies:
            return "", {}
        stated: dict[str, Metric] = {Name.DECLARED_RATE: Metric(value=sampling.rate)}
        if not self.aligned:
            return "", stated
        why, rate = drawn_rate([self.worlds.plain, *self.runs], victims, sampling.rate)
        return why, stated | {Name.SAMPLING_RATE: rate}

    def _records_missing(self) -> str:
        """Why it is not known how often a record is used; "" if it is."""
        if not self.aligned or self.drawn[0]:
            return self.drawn[0] or self._why("records")
        for run in (self.worlds.plain, *self.runs):
            for victim in self.worlds.config.record.victims:
                batches = batches_of(run, victim)
                if any(len({*batch}) < len(batch) for batch in batches):
                    return (
                        f"a batch of agent {victim} holds one record twice, or two that are equal"
                    )
        return ""

    def releases(self, claim: Claim) -> Mechanism | None:
        """What moving the noise of all rounds costs at most; None if that is not known."""
        if not self.aligned or self._records_missing():
            return None
        assert self.moves is not None
        most, rate = self._count(claim), self.worlds.sampling.rate
        found: list[Release] = []
        for family in FAMILIES:
            rounds = range(1, self.worlds.base.n_rounds + 1)
            sizes = sorted((self.moves.largest(k, family) for k in rounds), reverse=True)
            found += _releases(family, [size for size in sizes if size > 0][:most], rate)
        return tuple(found)

    def _count(self, claim: Claim) -> int:
        """Batches in which a record counts: all, if batches are drawn at random."""
        if claim.scope != "run":
            return 1
        drawn = self.worlds.sampling.amplifies or not self.in_turn
        return self.worlds.base.n_rounds if drawn else self.uses()

    def ends(self, claim: Claim, model: ThreatModel) -> Ends:
        """What the alignment adds to what was measured of a claim."""
        most, n = self.releases(claim), self.worlds.base.n_rounds
        whole = self.releases(claim.model_copy(update={"scope": "run"}))
        if most is None:
            return Ends(None, whole, *self._least(claim, model))
        note = (
            f"moving an agent's own noise hides its record in every message of {n} rounds; "
            f"{self._count(claim)} of them count for one record"
        )
        return Ends(most, whole, *self._least(claim, model), notes=(note,))

    def _least(self, claim: Claim, model: ThreatModel) -> tuple[Least, str | None]:
        """What records far out cost at least an adversary that reads every message."""
        messages = self.worlds.base.messages
        everything = all(m.read_by(model) or m.source in model.agents for m in messages)
        if not everything or self.worlds.sampling.unknown(claim) is not None:
            return Least(0.0), None
        of_claim = [cost for cost in self.costs if cost.adjacency == record_adjacency(claim)]
        costs = [cost for cost in of_claim if cost.victim not in model.agents]
        shown = next((cost.noiseless for cost in costs if cost.noiseless is not None), None)
        if shown is not None:
            return NOISELESS, str(shown)
        delta, sampling = claimed_delta(claim), self.worlds.sampling
        adjacency = record_adjacency(claim)
        run = [
            cost
            for cost in self.of_runs
            if cost.adjacency == adjacency and cost.victim not in model.agents
        ]
        of_run, remembered = least_of_run(run if claim.scope == "run" else (), delta)
        if remembered is not None:
            return of_run, remembered
        if sampling.amplifies and record_adjacency(claim) != "add-remove":
            return Least(0.0), None  # what a batch sends without both records is not known
        found = [
            least([released(family, size, rate=sampling.rate)], delta, cost.adjacency)
            for cost in costs
            for family, size in cost.sizes.items()
            if size > 0 and (family == "gaussian" or delta == 0)  # only L1 moves count for pure DP
        ]
        return max([*found, of_run], key=lambda one: one.epsilon), None

    def findings(self, asked: Sequence[ClaimAgainst]) -> Iterator[Finding]:
        """The evidence on each premise, what was not examined with why."""
        sites, same = self.worlds.config.noise.sites, self.worlds.replay.same
        runs = self.runs or [self.worlds.plain]
        missing = self.missing.get("noise", "" if self.runs else self.blocked)
        yield from drawn_noise(runs, sites, same, missing)
        yield self._state()
        done = set[tuple[bool, str]]()
        for i, claim, model in asked:
            yield self._used(i, claim, model)
            kind = claim.scope == "run", claim.adjacency
            if kind not in done:
                yield self._alignment(claim)
            if kind[1] not in {adjacency for _, adjacency in done}:
                yield self._beside(claim)
            done.add(kind)

    def _finding(self, why: str, note: str, metrics: Mapping[str, Metric], **other: Any) -> Finding:
        """Evidence on a premise, or why there is none."""
        stated = {key: value for key, value in metrics.items() if key == Name.DECLARED_RATE}
        return Finding(
            attack=CAPTURED,
            metrics=stated if why else dict(metrics),
            notes=() if why else (note,),
            not_examined=(why,) if why else (),
            **other,
        )

    def _why(self, *premises: PremiseName) -> str:
        """What is said of premises that were not examined."""
        return next((self.missing[name] for name in premises if name in self.missing), self.blocked)

    def _state(self) -> Finding:
        n = self.worlds.base.n_rounds
        return self._finding(
            "" if self.aligned else self._why("state"),
            "runs that share every draw send the same, and a record of one round moves no later "
            "message once the noise of that round is moved",
            {Name.ROUNDS: Metric(value=n, n=n)},
            role=Role.STATE,
            kind="control",
            title="Runs that share every draw",
        )

    def _alignment(self, claim: Claim) -> Finding:
        most, n = self.releases(claim), self.worlds.base.n_rounds
        why = "" if self.aligned else self._why("distance", "composition")
        n_hows = len(FAR + NEARER) + len(self.worlds.config.record.hows()) - 1
        found = self._finding(
            why,
            f"records far out, in 3 directions and at 2 distances, move the messages of all {n} "
            f"rounds by one length, which none of {n_hows} changes of the first, the middle or the "
            "last record of a batch exceeds: that of a clip"
            + "".join(f"; inputs {x} times as large give no finite numbers" for x in self.unseen),
            {
                Name.ROUNDS: Metric(value=n, n=n),
                **({} if most is None else {Name.MOVED_OVER_DECLARED: Metric(value=1.0)}),
            },
            role=Role.ALIGNMENT,
            kind="sensitivity",
            title="noise that makes runs with and without a record the same",
            adjacency=claim.adjacency,
        )
        return found if most is None else found.model_copy(update={"releases": {"most": most}})

    def _beside(self, claim: Claim) -> Finding:
        missing = self.missing.get("completeness", "")
        return self._finding(
            missing or ("" if self.aligned else self.blocked),
            "the number, order, size and ends of messages, what is printed, and every number "
            "without noise are the same with the record and without it",
            {Name.FOUND: Metric(value=0.0)},
            role=Role.DEPENDENCE,
            kind="sensitivity",
            title="what else depends on the record",
            adjacency=claim.adjacency,
        )

    def _used(self, i: int, claim: Claim, model: ThreatModel) -> Finding:
        n = len(self.runs) + 1
        return self._finding(
            self._records_missing(),
            f"an agent takes one batch in a round, which holds a record once; a record is in "
            f"{self.uses()} batches of a run at most, of {n} runs",
            self.drawn[1],
            role=Role.RECORDS,
            kind="control",
            title="What batches hold",
            claim=i,
            threat_model=model.name,
        )


def _releases(family: NoiseFamily, sizes: Sequence[float], rate: float) -> Iterator[Release]:
    """Releases of sorted sizes; those that are measured alike are as large as the largest."""
    left = list(sizes)
    while left:
        alike = [size for size in left if size >= left[0] * (1 - PRECISION)]
        left = left[len(alike) :]
        one = released(family, alike[0], rate, clipped="records", slack=PRECISION)
        yield one.model_copy(update={"count": len(alike)})
