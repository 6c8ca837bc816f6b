"""How far the messages of a round move between neighbouring worlds, beside what is stated."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import inf
from typing import Any

import torch
from torch import Tensor

from dpaudit.accounting.privacy_loss import NoiseFamily
from dpaudit.attack import Classification
from dpaudit.defense import CHANGED_RECORDS, Adjacency, Messages, Stated
from dpaudit.training.classification import BatchGradient, in_double

from .alignment import CARRIES, WHICH_DRAWS, Moved, alignment, is_carried_alike
from .declared import DeclaredBounds, declared_of_pairs
from .message_move import Row, lesser
from .noise_log import DrawSizes
from .noise_reach import ALL_SENT, Reach, reaching
from .record_order import examine_order
from .replay import explained
from .search import Candidates, ascent, stacked, starts, wrong_labels
from .side_channels import MAY_SPREAD, OTHER_DRAWS, compare, spreads_alike, with_same_draws
from .synthetic_records import Outweighing, VacantPlace
from .world_cache import KeptAnswers
from .worlds import (
    CoupledWorlds,
    FunctionChange,
    PlayedRound,
    PlayedWorld,
    Record,
    WorldPair,
    all_without_first,
    largest,
    lengths,
    moves,
    placed,
    rounding,
)
from .worst_length import longest_moving

AT_ONCE = 2**26  # numbers that the messages of one stack of restarts may have
LATER = 3  # rounds within which what a record moved is noised, or an alignment is not looked for


@dataclass
class RoundExamination:
    """Measures rounds of one run at one victim.

    Args:
        restarts, steps: of the search for a record by gradient ascent; no steps: no such search.
    """

    coupled: CoupledWorlds
    restarts: int
    steps: int
    briefly: bool = False  # one record in one way, held against stated bounds alone
    aligns: bool = True  # whether alignments are looked for, until there is none in some round
    # what depends on data beside the values of messages, in the order of discovery
    found: dict[str, None] = field(default_factory=dict)
    unclear: dict[str, None] = field(default_factory=dict)  # other ways that data may leave by
    silent: bool = False  # the scale of some noise differs between worlds: measure without it
    # by adjacency and round: the longest moves of noise that align two worlds; or what none aligns
    aligned: dict[tuple[Adjacency, int], Moved | str] = field(default_factory=dict)
    _first_played: PlayedRound | None = None
    drawn: dict[NoiseFamily, DrawSizes] = field(
        default_factory=dict
    )  # noise of the rounds, together

    @cached_property
    def _first(self) -> dict[str, Reach]:
        """The noise that reaches the victim's messages of round 1."""
        coupled = self.coupled
        return reaching(PlayedWorld(coupled, coupled.start(), 1, coupled.kept_batches(1)))

    def record(
        self, state: Any, k: int, adjacency: Adjacency, stated_for: Adjacency | None = None
    ) -> Iterator[Row]:
        """One record is added to, or replaced in, the victim's batch of round k.

        Where no message of round k depends on its batches, those of the round after it are measured
        instead. ``stated_for``: the adjacency whose bounds are shown, if it is another one.
        """
        oracle = self.coupled.kept_batches(k)
        if not self.briefly:
            self._check(state, k, oracle)
        pair = RoundPair(
            self, state, k, oracle, stated_for or adjacency, *self.asked(state, k, oracle)
        )
        natural = longest = pair.natural()
        if adjacency == "replace-one":
            pair.present, natural = longest, pair.natural(unlike=longest)
        found = {"natural": natural}
        if not self.briefly:
            found["mislabelled"] = pair.mislabelled(longest)
        try:
            rows = pair.rows(found)
        except Exception:
            if (failure := pair.failure(found)) is None:
                raise
            self._note(f"a step fails with a record and not without it: {failure}")
            return
        if not rows:
            self.aligned[adjacency, k] = WHICH_DRAWS
            return
        pair.lag = int(not any(row.measured for row in rows))
        if pair.lag and k == self.coupled.defense.n_rounds:
            self.aligned[adjacency, k] = {}
            return
        if self.steps:
            found["optimised"] = pair.optimised(longest)
        if self.aligns:
            self.aligned[adjacency, k] = aligned = pair.alignment(found)
            self.aligns = not isinstance(aligned, str)
        yield from pair.rows(found) if pair.lag or self.steps else rows

    def asked(self, state: Any, k: int, oracle: KeptAnswers) -> tuple[int, bool]:
        """The norm of what noise hides, L1 or L2; whether the step clips or chooses a clip norm."""
        asking = KeptAnswers.of(oracle, shared=oracle)
        drawn = self.coupled.play(state, k, asking).draws
        clips = bool(asking.bare) or len({clip_norm for clip_norm, *_ in asking.answers}) > 1
        return 1 if any(draw.family == "laplace" for draw in drawn) else 2, clips

    def play_again(self) -> None:
        """Hold round 1 against itself after all others: a step may keep what it saw."""
        coupled = self.coupled
        worlds = [PlayedWorld(coupled, coupled.start(), 1, coupled.oracle(1)) for _ in range(2)]
        first = self._first_played or worlds[0].noisy
        sent = worlds[1].noisy.sent
        if any(not torch.equal(m.payload, sent[name].payload) for name, m in first.sent.items()):
            self.unclear["what a round keeps: it is another one when it is played again"] = None

    def join(self, small: "RoundExamination") -> None:
        """Add what was found in all rounds on a small model."""
        self.found |= dict.fromkeys(f"{what}, on a small model" for what in small.found)
        self.unclear |= small.unclear
        self.aligned = small.aligned | self.aligned

    def saved(self) -> tuple[Any, ...]:
        """All that is found so far, for a checkpoint."""
        aligned = [
            [change, k, moved if isinstance(moved, str) else [[*of, x] for of, x in moved.items()]]
            for (change, k), moved in self.aligned.items()
        ]
        drawn = [[family, *sizes] for family, sizes in self.drawn.items()]
        return list(self.found), list(self.unclear), self.silent, aligned, drawn

    def restore(
        self, found: list[str], unclear: list[str], silent: bool, aligned: Any, drawn: Any
    ) -> None:
        """What ``saved`` gave."""
        self.found, self.unclear = dict.fromkeys(found), dict.fromkeys(unclear)
        self.silent, self.drawn = silent, {family: DrawSizes(*sizes) for family, *sizes in drawn}
        self.aligned = {
            (change, k): moved if isinstance(moved, str) else {(i, f): x for i, f, x in moved}
            for change, k, moved in aligned
        }
        self.aligns = not any(isinstance(moved, str) for moved in self.aligned.values())

    def next_state(self, state: Any, k: int) -> Any:
        """The state after round k, whose noise is counted."""
        played = self.coupled.play(state, k, self.coupled.kept_oracle(k))
        self.coupled.note_noise(k, played)
        if k == 1:
            self._first_played = played
        for family, (total, n) in played.drawn.items():
            before = self.drawn.get(family, DrawSizes(0.0, 0))
            self.drawn[family] = DrawSizes(before.total + total, before.n + n)
        return played.state

    def function(
        self, state: Any, k: int, own: Mapping[str, Any], slopes: Mapping[str, Tensor]
    ) -> tuple[list[Row], dict[str, Any]]:
        """A linear function is added to the victim's; each such world keeps a state of its own.

        Returns the rows, and the worlds' states after the round, had the messages been those
        observed. A world that cannot explain them goes on from the observed one's state.
        """
        coupled, oracle = self.coupled, self.coupled.oracle(k)
        here = PlayedWorld(coupled, state, k, oracle)
        pairs, after = {}, {}
        for kind, slope in slopes.items():
            changed = FunctionChange(oracle, coupled.victim, slope)
            there = PlayedWorld(coupled, own[kind], k, changed)
            self.silent |= self.compare(here, there, "function")
            pairs[kind] = [(here, there)]
            explained = coupled.replayed(own[kind], k, changed, here.noisy.sent)
            if explained is None:
                explained = coupled.replayed(state, k, changed, here.noisy.sent)
            after[kind] = here.noisy.state if explained is None else explained
        return self.judged(k, pairs, "function", 1), after

    def compare(self, here: PlayedWorld, there: PlayedWorld, adjacency: Adjacency) -> bool:
        """Notes what differs beside the values of messages; returns whether scales of noise do."""
        found, unclear = compare(here, there, adjacency)
        is_new = OTHER_DRAWS in found and OTHER_DRAWS not in self.found
        if is_new and (MAY_SPREAD in self.unclear or spreads_alike(here, there)):
            del found[OTHER_DRAWS]
            unclear.append(MAY_SPREAD)
        self.found |= dict.fromkeys(found)
        self.unclear |= dict.fromkeys(unclear)
        return any(found.values())

    def judged(
        self,
        k: int,
        pairs: Mapping[str, list[WorldPair]],
        adjacency: Adjacency,
        norm: int,
        noiseless: frozenset[str] = frozenset(),
    ) -> list[Row]:
        """A row for each message: the largest difference of two worlds, by kind of neighbour."""
        coupled, silent = self.coupled, self.silent
        here, _ = next(iter(pairs.values()))[0]
        first = self._first if here.k > 1 and adjacency in CHANGED_RECORDS else {}
        declared = DeclaredBounds({}, ())
        if not self.briefly:
            declared, pairs = declared_of_pairs(pairs, adjacency, first)
        worlds = [pair for several in pairs.values() for pair in several]
        for name in declared.unlike:
            if not explained(worlds[:1], name, adjacency):
                self._note(f'how much noise "{name}" carries depends on the data')
        differences = {kind: moves(coupled, several, silent) for kind, several in pairs.items()}
        sent, rows = here.play(silent).sent, []
        stated = self.stated(k, adjacency, sent)
        for name in (*sent, *({ALL_SENT} & declared.bounds.keys())):
            parts = [name] if name in sent else [n for n, m in sent.items() if m.readers is None]
            by_releases, weights = declared.bounds.get(name), declared.weights.get(name)
            bound, beyond = lesser(stated.get(name) if weights is None else None, by_releases)
            p, value = (norm, None) if bound is None else bound
            moved = {kind: largest(by, parts, p, weights) for kind, by in differences.items()}
            size = lengths(torch.cat([coupled.own(sent[part]) for part in parts], -1), p).item()
            part = max([value or 0.0, *moved.values()])
            row = Row(
                name,
                k,
                p,
                moved,
                value,
                tolerance=0.0 if value == 0 else self.tolerance(size, part),
                noiseless=name in noiseless and max(moved.values()) != 0,
                by_releases=bound is not None and bound is by_releases,
                weighted=weights is not None,
                beyond=beyond,
            )
            processed = row.counts and any(explained(worlds, part, adjacency) for part in parts)
            if name in sent or (row.counts and not processed):
                rows.append(row._replace(processed=processed))
        return rows

    def stated(self, k: int, adjacency: Adjacency, sent: Messages) -> Mapping[str, Stated]:
        """The bounds on the victim's messages, by name."""
        coupled = self.coupled
        return coupled.defense.sensitivity(k, coupled.setting, adjacency, coupled.victim, sent)

    def _note(self, dependence: str) -> None:
        self.found[dependence] = None

    def tolerance(self, size: float, part: float) -> float:
        return rounding(size, part, self.coupled.defense.batch_size, self.coupled.setting.d)

    def _check(self, state: Any, k: int, oracle: KeptAnswers) -> None:
        """Sums are divided by the public batch size, and the order of records does not matter."""
        public = self.coupled.defense.batch_size
        if oracle.batch_size != public:
            self._note(
                f"sums over a batch are divided by how many records were drawn: in round {k} by "
                f"{oracle.batch_size}, where the public batch size is {public}"
            )
        found, unclear = examine_order(PlayedWorld(self.coupled, state, k, oracle))
        self.found |= dict.fromkeys(found)
        self.unclear |= dict.fromkeys(unclear)


@dataclass
class RoundPair:
    """The worlds that differ in the first place of the victim's batch of round k."""

    examination: RoundExamination
    state: Any
    k: int
    oracle: KeptAnswers
    adjacency: Adjacency  # its stated bounds are shown
    norm: int  # L1 or L2, of gradients and of messages without a stated bound
    clips: bool = False  # whether the step is given gradients that are not clipped
    present: Record | None = None  # the record that other worlds replace; None: they add one
    lag: int = 0  # messages of so many rounds later are measured
    # what was made before: worlds by record, whether it is alone, and lag; pairs by lag
    _worlds: list[tuple[Record | None, bool, int, PlayedWorld]] = field(default_factory=list)
    _opposites: dict[int, WorldPair] = field(default_factory=dict)
    _compared: set[tuple[str, int]] = field(default_factory=set)  # kinds and lags

    def rows(self, found: Mapping[str, Record]) -> list[Row]:
        """The larger of each record's effects in the drawn batch, and alone if sampling allows.

        None where each of them changes which noise is drawn.
        """
        examination, coupled, pairs = self.examination, self.examination.coupled, self._pairs(found)
        is_last = examination.briefly or self.lag or self.k == coupled.defense.n_rounds
        new = [kind for kind in pairs if (kind, self.lag) not in self._compared]
        for one, other in (pair for kind in new for pair in pairs[kind]):
            examination.silent |= examination.compare(one, other, self.adjacency)
            if self.adjacency in CHANGED_RECORDS and not is_last:  # through the state
                examination.compare(one.later(), other.later(), self.adjacency)
        self._compared |= {(kind, self.lag) for kind in new}
        if OTHER_DRAWS not in examination.found:  # else noise alone may differ
            pairs = with_same_draws(pairs)
        if not pairs:
            return []
        drawn = next(iter(pairs.values()))[0][0]  # without the record
        noiseless, k = self._noiseless(drawn), self.k + self.lag
        return examination.judged(k, pairs, self.adjacency, self.norm, noiseless)

    def alignment(self, found: Mapping[str, Record]) -> Moved | str:
        """The longest moves of noise that align two of these worlds, within ``LATER`` rounds.

        Also where a record of every agent is left out at once. Later rounds are played where what
        the round leaves still differs, as a sum does that is noised and sent in a later round.
        """
        worlds = [pair for several in self._pairs(found).values() for pair in several]
        coupled, holders = self.examination.coupled, self.examination.coupled.setting.holders
        everybody = (all_without_first(self.oracle, there, holders) for there in (False, True))
        one, other = (
            PlayedWorld(coupled, self.state, self.k, KeptAnswers.of(oracle)) for oracle in everybody
        )
        why, longest = "", Moved()
        for lag in range(min(LATER, coupled.defense.n_rounds - self.k) + 1):
            for i, (a, b) in enumerate([(one, other), *worlds]):
                moved = alignment(replace(a, lag=lag), replace(b, lag=lag), is_first=i == 0)
                if isinstance(moved, str):
                    why, longest = why or moved, Moved()
                    break
                longest |= {key: max(x, longest.get(key, 0.0)) for key, x in moved.items()}
            else:
                return longest
        if not is_carried_alike([(one, other), *worlds]):
            self.examination.unclear[CARRIES] = None
        return why

    def _pairs(self, found: Mapping[str, Record]) -> dict[str, list[WorldPair]]:
        """The world before and after each record is added; also alone where sampling allows."""
        examination = self.examination
        sampled = examination.coupled.defense.sampling == "poisson"
        ways = (False, True) if sampled and not examination.briefly else (False,)
        here = {alone: self._world(self.present, alone) for alone in ways}
        pairs = {
            kind: [(here[alone], self._world(record, alone)) for alone in ways]
            for kind, record in found.items()
        }
        if self.present is None:
            if self.lag not in self._opposites:
                self._opposites[self.lag] = self._opposite(found["natural"], sampled)
            pairs["opposite"] = [self._opposites[self.lag]]
        if self.clips and not examination.briefly and self._of_length:
            pairs["stretched"] = self._of_length
        return pairs

    @cached_property
    def _of_length(self) -> list[WorldPair]:
        """Worlds with the longest record's gradient, at the length that moves messages most."""
        coupled, silent = self.examination.coupled, self.examination.silent
        longest = self.natural()
        X = coupled.defense.models(self.state)[coupled.victim][None]
        one = longest.input[None, None], longest.label[None, None]
        towards = self._problem.gradients.clipped_sum(X, *one, inf)[0]
        clip_norm = coupled.defense.clip_norm_in(self.k)
        without, opposite = self._world(None), self.present is not None
        pairs, missing = longest_moving(
            coupled, without, towards, clip_norm, self.norm, opposite, silent
        )
        self.examination.unclear |= {} if missing is None else {missing: None}
        return pairs

    def _opposite(self, longest: Record, sampled: bool) -> tuple[PlayedWorld, PlayedWorld]:
        """A record against the others in the drawn batch, or against a short one if sampled.

        Behind a clip it is longer than that, elsewhere no longer than the victim's longest.
        """
        coupled = self.examination.coupled
        record = None
        if sampled:
            inputs, labels = self._problem.records(coupled.victim)
            lengths = self._lengths(inputs.double(), labels)
            shortest = int(lengths.where(lengths > 0, inf).argmin())
            record = Record(inputs[shortest].double(), labels[shortest])
        clip_norm, most = coupled.defense.clip_norm_in(self.k), inf
        if clip_norm is None:
            most = self._lengths(longest.input[None], longest.label[None]).max().item()
        others = self._world(record, alone=sampled)
        norms = most, clip_norm or 0.0
        opposed = Outweighing(others.oracle, coupled.victim, 1 if self.norm == 1 else 2, *norms)
        vacant = VacantPlace(others.oracle, coupled.victim)
        return replace(others, oracle=vacant), replace(others, oracle=opposed)

    def failure(self, found: Mapping[str, Record]) -> str | None:
        """What a step raises with one of these records, if it does not without: all see that."""
        try:
            _ = self._world(self.present).noisy
        except Exception:
            return None
        try:
            _ = [self._world(record).noisy for record in found.values()]
        except Exception as error:
            return type(error).__name__
        return None

    def natural(self, unlike: Record | None = None) -> Record:
        """The victim's record with the largest gradient at its current model, of all it holds.

        ``unlike``: of those of another class than this record's, if there are any.
        """
        inputs, labels = self._problem.records(self.examination.coupled.victim)
        if unlike is not None:
            differs = (labels != unlike.label).view(len(labels), -1).any(dim=1)
            if differs.any():
                inputs, labels = inputs[differs], labels[differs]
        inputs = in_double(inputs)
        longest = self._longest(inputs, labels)
        return Record(inputs[longest], labels[longest])

    def mislabelled(self, record: Record) -> Record:
        """The same record with the wrong label that gives the largest gradient."""
        wrong = wrong_labels(record.label, self._problem.dataset.n_classes)
        inputs = record.input.expand(len(wrong), *record.input.shape)
        return Record(record.input, wrong[self._longest(inputs, wrong)])

    def optimised(self, record: Record) -> Record:
        """Gradient ascent on how far the victim's messages move, over inputs in the value range.

        Half of the restarts begin near ``record``, half anywhere; they run as stacks of worlds.
        """
        examination, coupled = self.examination, self.examination.coupled
        silent = examination.silent
        here = self._world(self.present).play(silent).sent
        stated = examination.stated(self.k + self.lag, self.adjacency, here)
        own = {name: coupled.own(sent) for name, sent in here.items()}
        without = self._kept(placed(self.oracle, coupled.victim, None))

        def moved(inputs: Tensor, labels: Tensor) -> Tensor:
            """How far the messages of m worlds, each with one candidate, are moved, [m]."""
            oracle = Candidates(without, coupled.victim, inputs, labels)
            world = PlayedWorld(coupled, stacked(self.state, len(labels)), self.k, oracle, self.lag)
            sent, parts = world.play(silent).sent, []
            for name, reference in own.items():
                norm, value = stated.get(name, (self.norm, 1.0))
                if value > 0:
                    parts.append(lengths(coupled.own(sent[name]) - reference, norm) / value)
            return torch.stack(parts).sum(0)  # each as a part of its bound

        found: list[tuple[float, Record]] = []
        graph, value_range = coupled.setting.network.at(self.k), self._problem.dataset.value_range
        size = max(1, AT_ONCE // ((graph.n_edges + graph.n_agents) * coupled.setting.d))
        generator = coupled.streams("optimised neighbour")
        begin = starts(record, examination.restarts, self._problem.dataset, generator)
        for inputs, labels in zip(*(t.split(size) for t in begin), strict=True):
            value = partial(moved, labels=labels)
            best, values = ascent(value, inputs, value_range, examination.steps)
            chosen = int(values.argmax())
            found.append((values[chosen].item(), Record(best[chosen], labels[chosen])))
        return max(found, key=lambda pair: pair[0])[1]

    @cached_property
    def _kept(self) -> Callable[[BatchGradient], KeptAnswers]:
        """Answers of an oracle that are kept: other agents get the same in all these worlds."""
        own = self.examination.coupled.victim
        return partial(KeptAnswers.of, shared=self.oracle, victim=own)

    @property
    def _problem(self) -> Classification:
        return self.examination.coupled.classification

    def _longest(self, inputs: Tensor, labels: Tensor) -> int:
        return int(self._lengths(inputs, labels).argmax())

    def _lengths(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Norms of records' gradients, L1 or L2 as the noise requires."""
        coupled = self.examination.coupled
        X = coupled.defense.models(self.state)[coupled.victim][None]
        gradients = self._problem.gradients
        return gradients.norms(X, inputs[None], labels[None], self.norm)[0]

    def _world(self, record: Record | None, alone: bool = False) -> PlayedWorld:
        for of, by_itself, lag, world in self._worlds:
            if of is record and (by_itself, lag) == (alone, self.lag):
                return world
        coupled = self.examination.coupled
        own = self._kept(placed(self.oracle, coupled.victim, record, alone))
        world = PlayedWorld(coupled, self.state, self.k, own, self.lag)
        self._worlds.append((record, alone, self.lag, world))
        return world

    def _noiseless(self, world: PlayedWorld) -> frozenset[str]:
        """Messages that no noise of the round changes, unless earlier noise may hide them."""
        coupled = self.examination.coupled
        noisy, quiet = (world.play(silent).sent for silent in (False, True))
        same = [n for n in noisy if torch.equal(coupled.own(noisy[n]), coupled.own(quiet[n]))]
        return frozenset(() if same and coupled.keeps_noise(before=world.k) else same)
