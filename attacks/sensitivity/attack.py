"""Empirical sensitivity: how far messages move when one record, function or agent changes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf, nan
from typing import Annotated, ClassVar

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor

import dpaudit.attack as da
from dpaudit.defense import CHANGED_RECORDS
from dpaudit.files.claim import Adjacency, measured_change
from dpaudit.files.finding import known_releases
from dpaudit.game.game import Game
from dpaudit.game.probing.linearity import fewest_coordinates
from dpaudit.game.worst_case.record import of_most_moved_agent

from .alignment import over_declared, size_of_noise
from .bounded_noise import beyond_the_noise
from .examination import RoundExamination
from .message_move import Row
from .noise_reach import ALL_SENT
from .other_agents import LONG, UNLIKE, OtherAgents
from .rare_noise import unlikely_draws
from .stand_in import MOST_NUMBERS, MOST_ROUNDS, examine_every_round, far_from_the_run
from .substituted_agents import between_agents
from .unseen_inputs import few_with_gradients
from .worlds import EVERY_LINK, CoupledWorlds

CHANGED: dict[Adjacency, str] = {
    "add-remove": "one record is added",
    "replace-one": "one record is replaced",
    "function": "one agent's function changes",
    "agent-identity": "one agent's query is replaced by another's",
}
CHEAP: tuple[Adjacency, ...] = "function", "agent-identity"  # changes, examined in every round
PAIRED: dict[Adjacency, str] = {
    "add-remove": "both worlds draw the same batch; its first record gives way to the one that "
    "only one world has, and the sum is divided by the public batch size in both",
    "replace-one": "both worlds draw the same batch; its first record gives way to the victim's "
    "record with the largest gradient, and in the other world to another record",
    "function": "each world keeps its own state; its noise is moved until its messages are those "
    "observed, as the definition conditions on them",
    "agent-identity": "the largest distance between the messages of two agents before noise",
}
NEIGHBOURS = (
    "natural: the largest gradient of all the victim's records (another class than the replaced "
    "one's); mislabelled: the largest with its worst label; optimised: gradient ascent on the "
    "messages' difference within the data's value range, from {restarts} starts of {steps} steps; "
    "opposite: a gradient that outweighs all others of the batch"
)
STRETCHED = (
    "stretched: the natural one's gradient, of the length that moves messages most, as the step "
    "clips by itself"
)
TURNS = "one coordinate that turns around in each round"
SMALL_NOTE = "on a small model and random records, in all rounds"
FEW_NOTE = (
    "on a small model and random records, in up to 3 rounds; few: of the other records of a batch "
    "some have no gradient, or none has one"
)
LEAST_DELTA = 1e-9  # leaks of lower probability cannot be told from rounding
MEASURED = 30  # rounds that are only played take about as long as one that is measured


_FINDING = partial(da.Finding, kind="sensitivity", attack="sensitivity", world="defense")

Rows = dict[tuple[Adjacency, bool], list[Row]]  # (adjacency, whether a record was changed) -> rows


class Sensitivity(da.Attack):
    """Plays neighbouring worlds with shared noise and shared history, and compares messages.

    The difference of a message before noise is a lower bound on its sensitivity; above the bound
    that the defense states, in its norm and beyond rounding, the claim is unsupported. Where it
    states none or a larger one, the noise on a message over its declared multiplier is one.
    Claims of each adjacency are measured as it says; without a claim one record is added.

    Rounds: those given, or ``points`` of them from the first to the last; the distance between
    agents in all of them.
    """

    per_threat_model: ClassVar[bool] = False

    rounds: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] | None = None
    points: PositiveInt = 10
    victim: NonNegativeInt | None = None  # None: the first with data, or whose messages move more
    restarts: PositiveInt = 16
    steps: NonNegativeInt = 40

    def validate_options(self, n_rounds: int, n_agents: int) -> Iterator[da.InvalidOption]:
        yield from da.late_rounds(self.rounds or (), n_rounds)
        yield from da.missing_agent(self.victim, n_agents)

    def measure(
        self, context: da.AttackContext, threat_model: da.ThreatModel, on_step: da.OnStep
    ) -> list[da.Finding]:
        defense = context.defense
        claimed = list(dict.fromkeys(measured_change(claim.adjacency) for claim in context.claims))
        if "function" in claimed and defense.function_distance() is None:
            raise da.ConfigError(
                "DPA047",
                "claim.adjacency: function adjacency needs a stated distance between gradients, "
                "and this defense states none",
                "claim add-remove or replace-one",
            )
        victim = self._victim(context)
        coupled = CoupledWorlds(defense, context.problem, context.setting, context.streams, victim)
        examination = RoundExamination(coupled, self.restarts, self.steps)
        ahead = self._ahead(coupled, claimed or ["add-remove"], on_step)
        found = self._rows(examination, claimed or ["add-remove"], ahead, context.checkpoint)
        findings, constant = list[da.Finding](), dict[str, None]()
        for change, every in found.items():
            for rows in _by_message(every):
                if any(row.measured for row in rows):
                    findings.append(self._finding(rows, *change, victim))
                else:
                    constant[rows[0].message] = None
        n_rounds = len(self._rounds(defense.n_rounds))
        cheap = bool(claimed) and {*claimed} <= {*CHEAP} and _is_small(coupled)
        played = defense.n_rounds if cheap else n_rounds
        rounds: dict[str, da.Metric] = {da.Name.ROUNDS: da.Metric(value=played, n=defense.n_rounds)}
        notes = list[str]()
        for adjacency, by_record in found:
            if adjacency not in CHANGED_RECORDS or by_record:
                continue
            if n_rounds < defense.n_rounds:
                small, rows = examine_every_round(examination, adjacency, ahead)
                known = {f.message for f in findings if f.verdict is not None}
                unknown = [row for row in rows if row.message not in known]
                findings += self._of_small(unknown, adjacency, victim)
                examination.join(small)
                if rows:
                    rounds = _all_rounds(n_rounds, defense.n_rounds)
                else:
                    notes.append("the other rounds could not be played on a small model")
            unclear, said = far_from_the_run(examination, adjacency)
            examination.unclear |= {} if unclear is None else {unclear: None}
            notes += said
            few, rows = few_with_gradients(coupled, adjacency)
            if few is not None:
                known = {f.message for f in findings if f.verdict is not None}
                unknown = [row for row in rows if row.message not in known]
                findings += self._of_small(unknown, adjacency, victim, FEW_NOTE)
                examination.join(few)
            unlikely = unlikely_draws(coupled, adjacency)
            examination.unclear |= {} if unlikely is None else {unlikely: None}
            findings.append(_alignment(examination, adjacency, rounds))
            delta = max([LEAST_DELTA, *(claim.delta for claim in context.claims)])
            findings += _beyond(coupled, adjacency, delta)
            ahead(MEASURED)
        ahead.end()  # also where a part could not be played
        return [*findings, _dependence(examination, constant, rounds, notes)]

    def _victim(self, context: da.AttackContext) -> int:
        victim = _most_moved(context) if self.victim is None else self.victim
        if context.setting.sizes[victim] == 0:
            raise da.ConfigError(
                "DPA051", f"attack.victim: agent {victim} is a server, without data"
            )
        return victim

    def _rows(
        self,
        examination: RoundExamination,
        adjacencies: list[Adjacency],
        ahead: "_Ahead",
        checkpoint: da.Checkpoint,
    ) -> Rows:
        """By adjacency, and whether a record was changed where a claim is on functions."""
        coupled = examination.coupled
        rounds, state = self._rounds(coupled.defense.n_rounds), coupled.start()
        slopes = _slopes(coupled) if "function" in adjacencies else {}
        done, own, last = 0, dict.fromkeys(slopes, state), self._last(coupled, adjacencies)
        others = OtherAgents(examination)
        rows: Rows = {(adjacency, False): [] for adjacency in adjacencies}
        if (saved := checkpoint.last()) is not None:
            done, values, own_values, found, *rest = saved.parts
            examination.restore(*rest)
            state, like = type(state)(*values), type(state)
            own = {kind: like(*parts) for kind, parts in own_values.items()}
            rows = {(change, by): [Row(*row) for row in every] for change, by, every in found}
            ahead(done + MEASURED * sum(k <= done for k in rounds))
        for k in range(done + 1, last + 1):
            if slopes:
                in_round = {kind: _turned(kind, k) * slope for kind, slope in slopes.items()}
                by_function, own = examination.function(state, k, own, in_round)
                asked = by_function if k in rounds else [row for row in by_function if row.counts]
                rows["function", False] += asked
            if ("agent-identity", False) in rows:
                rows["agent-identity", False] += between_agents(examination, state, k)
            for adjacency in adjacencies if k in rounds else ():
                if adjacency == "function" and isinstance(coupled.problem, da.Classification):
                    replaced = examination.record(state, k, "replace-one", stated_for="function")
                    rows.setdefault((adjacency, True), []).extend(replaced)
                elif adjacency in ("add-remove", "replace-one"):
                    rows[adjacency, False] += examination.record(state, k, adjacency)
                    rows[adjacency, False] += others.record(state, k, adjacency)
            state = examination.next_state(state, k)
            every = [[*key, some] for key, some in rows.items()]
            checkpoint.keep(partial(da.Progress.of, k, state, own, every, *examination.saved()))
            ahead(1 + MEASURED * (k in rounds))
        examination.play_again()
        return rows

    def _of_small(
        self, every: list[Row], adjacency: Adjacency, victim: int, note: str = SMALL_NOTE
    ) -> Iterator[da.Finding]:
        """What speaks against the stated bounds on a small model."""
        for rows in _by_message(every):
            if any(row.counts for row in rows):
                finding = self._finding(rows, adjacency, False, victim)
                yield finding.model_copy(update={"notes": (note, *finding.notes)})

    def _finding(
        self, rows: list[Row], adjacency: Adjacency, by_record: bool, victim: int
    ) -> da.Finding:
        worst = max(rows, key=lambda row: (row.counts, row.stated is not None, _ratio(row)))
        metrics = {da.Name.MEASURED: da.Metric(value=worst.measured)}
        if worst.stated is not None:
            metrics[da.Name.STATED_BOUND] = da.Metric(value=worst.stated)
            metrics[da.Name.MEASURED_OVER_STATED] = da.Metric(value=_ratio(worst))
            if worst.beyond is not None and worst.measured <= worst.beyond + worst.tolerance:
                metrics[da.Name.NOISE_OVER_NEEDED] = da.Metric(value=worst.stated / worst.beyond)
        noiseless = any(row.noiseless and row.counts for row in rows)
        against = not by_record and any(row.counts for row in rows)
        return _FINDING(
            role=da.Role.SENSITIVITY,
            title=f"How far {rows[0].message} moves when "
            + ("a record is replaced instead" if by_record else CHANGED[adjacency]),
            message=rows[0].message,
            adjacency="replace-one" if by_record else adjacency,
            rounds=tuple(row.round for row in rows),
            metrics=metrics,
            verdict=da.Verdict.UNSUPPORTED if against else None,
            notes=tuple(self._notes(worst, adjacency, by_record, noiseless, victim)),
            series=_series(rows),
        )

    def _notes(
        self, worst: Row, adjacency: Adjacency, by_record: bool, noiseless: bool, victim: int
    ) -> Iterator[str]:
        kind = max(worst.moved, key=lambda kind: worst.moved[kind])
        whose = victim if worst.agent is None else worst.agent
        who = "" if adjacency == "agent-identity" else f", agent {whose} is the victim"
        yield f"L{worst.norm} norm{who}; worst in round {worst.round} by {kind}"
        yield PAIRED["replace-one" if by_record else adjacency]
        if "natural" in worst.moved:
            yield NEIGHBOURS.format(restarts=self.restarts, steps=self.steps)
        if "stretched" in worst.moved:
            yield STRETCHED
        if by_record:
            yield "the claim covers functions within its stated distance, not this change"
        if noiseless:
            yield "it is the same with the noise of the round and without it: nothing hides it"
        if worst.processed:
            yield (
                "it moves further as a function of values under noise: with the noise moved so "
                "that these are the same, by no more than is declared, it does not differ, so this "
                "does not count"
            )
        if worst.by_releases:
            yield (
                "this bound is the noise on it over the declared noise "
                "multiplier: none is stated, or a larger one"
            )
        if worst.weighted:
            yield "coordinates that carry more noise than others count for less"
        if worst.stated is not None:
            beyond = worst.most - worst.stated
            yield f"a bound counts as exceeded by more than {beyond:.1g}, from rounding"

    def _last(self, coupled: CoupledWorlds, adjacencies: Sequence[Adjacency]) -> int:
        """The round up to which the run is played."""
        n_rounds = coupled.defense.n_rounds
        cheap = {*CHEAP} & {*adjacencies} and _is_small(coupled)
        return n_rounds if cheap else max(self._rounds(n_rounds))

    def _ahead(
        self, coupled: CoupledWorlds, adjacencies: Sequence[Adjacency], on_step: da.OnStep
    ) -> "_Ahead":
        """Rounds of the run, then those on a small model, then the rest."""
        n_rounds, rounds = coupled.defense.n_rounds, self._rounds(coupled.defense.n_rounds)
        small = n_rounds if len(rounds) < n_rounds else 0
        of_records = sum(adjacency in CHANGED_RECORDS for adjacency in adjacencies)
        played = self._last(coupled, adjacencies) + MEASURED * len(rounds)
        return _Ahead(on_step, played + of_records * (small + MEASURED))

    def _rounds(self, n_rounds: int) -> frozenset[int]:
        if self.rounds is not None:
            return frozenset(self.rounds)
        last = max(1, self.points - 1)
        return frozenset(1 + round(i * (n_rounds - 1) / last) for i in range(self.points))


class _Ahead:
    """Steps of all parts, in rounds that are only played: those done, and those in all."""

    def __init__(self, on_step: da.OnStep, total: int) -> None:
        self._on_step, self._done, self._total = on_step, 0, total

    def __call__(self, n: int = 1) -> None:
        self._done = min(self._done + n, self._total)
        self._on_step(self._done, self._total)

    def end(self) -> None:
        self(self._total)


def _is_small(coupled: CoupledWorlds) -> bool:
    """Whether a run is small enough for what is cheap to be examined in every round of it."""
    defense, setting = coupled.defense, coupled.setting
    one = setting.n_agents * setting.d * defense.batch_size
    return defense.n_rounds <= MOST_ROUNDS and defense.n_rounds * one <= MOST_NUMBERS


def _all_rounds(real: int, n_rounds: int) -> dict[str, da.Metric]:
    return {
        da.Name.ROUNDS: da.Metric(value=n_rounds, n=n_rounds),
        da.Name.REAL_ROUNDS: da.Metric(value=real, n=n_rounds),
    }


def _most_moved(context: da.AttackContext) -> int:
    """The first agent with data, or one that declares the same and whose messages move further."""
    first = context.setting.holders[0]
    try:
        game = Game.of(context.defense, context.setting, first, "add-remove")
        fewest = fewest_coordinates(game)
        game = game if fewest == 1 else replace(game, width=fewest)
        return of_most_moved_agent(
            game, EVERY_LINK, context.streams.child("agent of sensitivity")
        ).victim
    except Exception:  # whatever a step raises that takes the real model and its batches alone
        return first


def _slopes(coupled: CoupledWorlds) -> dict[str, Tensor]:
    """Functions whose gradient [d] has the stated L1 length: on one coordinate, on all.

    They are linear, or their gradient turns around from one round's models to those of the next.
    """
    distance, d = coupled.defense.function_distance(), coupled.setting.d
    assert distance is not None
    one = torch.zeros(d, dtype=torch.float64, device=coupled.streams.device)
    one[0] = distance
    return {
        "one coordinate": one,
        "all coordinates": torch.full_like(one, distance / d),
        TURNS: one,
    }


def _turned(kind: str, k: int) -> int:
    """The sign of a function's gradient in round k."""
    return -1 if kind == TURNS and k % 2 == 0 else 1


def _by_message(rows: list[Row]) -> Iterator[list[Row]]:
    """The rows of each message in order of rounds.

    Of several rows of one round, which a lag or other agents give, one that counts, or the larger.
    Of all messages together there are rows only where no message alone speaks against its bound.
    """
    if any(row.counts for row in rows if row.message != ALL_SENT):
        rows = [row for row in rows if row.message != ALL_SENT]
    for message in dict.fromkeys(row.message for row in rows):
        own = (row for row in rows if row.message == message)
        largest = {row.round: row for row in sorted(own, key=lambda r: (r.counts, r.measured))}
        yield [largest[k] for k in sorted(largest)]


def _ratio(row: Row) -> float:
    """Ratio of the measured move to the stated one; the measured move if none is stated."""
    if row.stated is None:
        return row.measured
    return row.measured / row.stated if row.stated else (inf if row.measured else 0.0)


def _series(rows: list[Row]) -> dict[str, tuple[float, ...]]:
    series: dict[str, tuple[float, ...]] = {da.Column.ROUND: tuple(row.round for row in rows)}
    for kind in dict.fromkeys(kind for row in rows for kind in row.moved):
        series[kind] = tuple(row.moved.get(kind, nan) for row in rows)
    if any(row.stated is not None for row in rows):
        series[da.Column.STATED_BOUND] = tuple(nan if r.stated is None else r.stated for r in rows)
    return series


def _beyond(coupled: CoupledWorlds, adjacency: Adjacency, delta: float) -> Iterator[da.Finding]:
    """Where noise ends, if a record is seen for certain beyond it with more than ``delta``."""
    found = beyond_the_noise(coupled)
    if found is None:
        return
    rate = 1.0
    if coupled.defense.drawing != "cyclic":
        rate = coupled.defense.sampling_rate(coupled.setting.sizes[coupled.victim])
    if rate * found.probability <= delta:
        return
    yield _FINDING(
        role=da.Role.SENSITIVITY,
        title=f"How far {found.message} moves where its noise ends",
        message=found.message,
        adjacency=adjacency,
        rounds=(1,),
        metrics={da.Name.MEASURED: da.Metric(value=found.moved)},
        verdict=da.Verdict.UNSUPPORTED,
        notes=(
            f"with probability {rate * found.probability:.2g} a record of agent {coupled.victim} "
            "is in the batch of the round and some number of the message is where no noise brings "
            "it without the record: that is more than delta, whatever epsilon is",
        ),
        series={da.Column.ROUND: (1.0,), "natural": (found.moved,)},
    )


def _alignment(
    examination: RoundExamination, adjacency: Adjacency, rounds: Mapping[str, da.Metric]
) -> da.Finding:
    """How far noise was moved, beside what declared releases say; no figure where that hides less.

    "noise over declared" is how large the draws were in units of the scale that was asked, with the
    exact 95% interval of so many numbers.
    """
    coupled, holders = examination.coupled, examination.coupled.setting.holders
    found = {k: moved for (of, k), moved in examination.aligned.items() if of == adjacency}
    missed = {k: why for k, why in found.items() if isinstance(why, str)}
    moves = {k: moved for k, moved in found.items() if not isinstance(moved, str)}
    metrics, notes = dict(rounds), list[str]()
    if examination.drawn:
        metrics[da.Name.NOISE_OVER_DECLARED] = size_of_noise(examination.drawn)
    if len(moves) == rounds[da.Name.ROUNDS].value:
        ratio = over_declared(coupled, moves, adjacency)
        metrics[da.Name.MOVED_OVER_DECLARED] = da.Metric(value=ratio)
        notes.append(
            "two runs that differ in a record are the same in every message and in the state, once "
            "the noise is moved; every agent's record was left out once, too"
        )
    n_rounds = round(rounds[da.Name.ROUNDS].value)
    if n_rounds > len(moves):
        notes.append(
            f"in {n_rounds - len(moves)} of {n_rounds} rounds no alignment says it of every agent: "
            f"a gradient of {LONG:g} times the clip norm was added at all {len(holders)} agents at "
            "once; the agent whose messages moved most beside their noise was looked at alone, and "
            f"those that moved {UNLIKE:g} times as far as the median agent or further than stated"
        )
    for k, why in list(missed.items())[:3]:
        notes.append(f"round {k}: no move of noise makes {why} the same in both runs")
    declared = coupled.declared(coupled.victim)
    return _FINDING(
        role=da.Role.ALIGNMENT,
        title="How far noise has to move to hide a record",
        adjacency=adjacency,
        rounds=tuple(found),
        metrics=metrics,
        releases=known_releases(None, declared),
        notes=tuple(notes),
    )


def _dependence(
    examination: RoundExamination,
    constant: Mapping[str, None],
    rounds: Mapping[str, da.Metric],
    notes: Sequence[str],
) -> da.Finding:
    found = examination.found
    identical = f"bit-identical in all worlds: {', '.join(constant)}"
    return _FINDING(
        role=da.Role.DEPENDENCE,
        title="Dependence on data beside the values of messages",
        metrics={da.Name.FOUND: da.Metric(value=len(found)), **rounds},
        verdict=da.Verdict.UNSUPPORTED if found else None,
        not_examined=tuple(examination.unclear),
        notes=(
            *found,
            "looked for: draws of noise, their scales, messages, their precision, links, signs of "
            "zeros, failures, prints, logs and files that differ between worlds; sums divided by "
            "how many records were drawn; an effect of the order of records in a batch",
            *([identical] if constant else []),
            *notes,
        ),
    )
