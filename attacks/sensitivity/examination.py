"""How far the messages of a round move between neighbouring worlds, beside what is stated."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dpaudit.defense.contract import Gradient, Stated
from dpaudit.defense.transcript import Capture
from dpaudit.files.claim import Adjacency
from dpaudit.training.classification import BatchGradient

from .search import Search
from .worlds import Coupled, FunctionChange, Played, Record, lengths, placed, reordered, rounding

REORDERED = 1e-10  # of a message's norm: sums in another order differ by less, in float64


class Row(NamedTuple):
    """One message of one round."""

    message: str
    round: int
    norm: int
    moved: Mapping[str, float]  # kind of neighbour -> norm of the message's difference
    stated: float | None
    tolerance: float  # what rounding can add to these norms
    unhidden: bool = False  # it moved, and noise of the round makes no difference to it

    @property
    def measured(self) -> float:
        return max(self.moved.values())

    @property
    def exceeds(self) -> bool:
        return self.stated is not None and self.measured > self.stated + self.tolerance


@dataclass
class Dependences:
    """What depends on data beside the values of messages, found while rounds were played."""

    found: dict[str, None] = field(default_factory=dict)  # in the order of discovery
    silent: bool = False  # the scale of some noise differs between worlds: measure without it

    def add(self, what: str) -> None:
        self.found[what] = None

    def compare(self, here: Played, there: Played) -> None:
        """The same draws of noise of the same scale, the same messages on the same links."""
        if [draw[:3] for draw in here.draws] != [draw[:3] for draw in there.draws]:
            self.add("which noise is drawn depends on the data")
            return
        for one, other in zip(here.draws, there.draws, strict=True):
            if not torch.equal(torch.as_tensor(one.scale), torch.as_tensor(other.scale)):
                self.silent = True
                self.add(f'the scale of the noise on "{one.stream}" depends on the data')
        if _links(here.sent) != _links(there.sent):
            self.add("which messages are sent, or to whom, depends on the data")


@dataclass(frozen=True)
class Examination:
    """Measures rounds of one run at one victim.

    Args:
        restarts, steps: of the search for a record by gradient ascent; no steps: no such search.
    """

    coupled: Coupled
    restarts: int
    steps: int
    dependences: Dependences = field(default_factory=Dependences)

    def record(
        self, state: Any, k: int, adjacency: Adjacency, stated_for: Adjacency | None = None
    ) -> Iterator[Row]:
        """One record is added to, or replaced in, the victim's batch of round k.

        Where no message of round k depends on its batches, those of the round after it are measured
        instead. ``stated_for``: the adjacency whose bounds are shown, if it is another one.
        """
        oracle = self.coupled.batches(k)
        self._check(state, k, oracle)
        pair = Pair(self, state, k, oracle, stated_for or adjacency, self._norm(state, k, oracle))
        search = Search(self.coupled, pair.norm, self.restarts, self.steps)
        longest = search.natural(state)
        if adjacency == "replace-one":
            pair.present = longest
        natural = longest if pair.present is None else search.natural(state, unlike=longest)
        found = {"natural": natural, "mislabelled": search.mislabelled(state, longest)}
        pair.lag = not any(row.measured for row in pair.rows(found))
        if pair.lag and k == self.coupled.defense.n_rounds:
            return
        if self.steps:
            found["optimised"] = pair.optimised(search, longest)
        yield from pair.rows(found)

    def function(
        self, state: Any, k: int, own: Mapping[str, Any], slopes: Mapping[str, Tensor]
    ) -> tuple[list[Row], dict[str, Any]]:
        """A linear function is added to the victim's; each such world keeps a state of its own.

        Returns the rows, and the worlds' states after the round, had the messages been those
        observed. A world that cannot explain them goes on from the observed one's state.
        """
        coupled, oracle = self.coupled, self.coupled.oracle(k)
        here = coupled.play(state, k, oracle)
        differences, after = {}, {}
        for kind, slope in slopes.items():
            changed = FunctionChange(oracle, coupled.victim, slope)
            there = coupled.play(own[kind], k, changed)
            self.dependences.compare(here, there)
            differences[kind] = [coupled.differences(here.sent, there.sent)]
            explained = coupled.replayed(own[kind], k, changed, here.sent)
            if explained is None:
                explained = coupled.replayed(state, k, changed, here.sent)
            after[kind] = here.round.state if explained is None else explained
        return self.rows(k, here, differences, "function", 1), after

    def agents(self, state: Any, k: int) -> list[Row]:
        """One agent's query is replaced by another's: how far apart any two are, before noise."""
        here = self.coupled.play(state, k, self.coupled.oracle(k), silent=True)
        stated = self._stated(k, "agent-identity", here.sent)
        rows = []
        for name, bound in stated.items():
            sent = here.sent[name]
            queries = sent.payload[sent.rows.unique()]
            spread = torch.cdist(queries, queries, p=bound.norm).max().item()
            tolerance = self._tolerance(lengths(queries, bound.norm).item(), spread)
            moved = {"two agents": spread}
            rows.append(Row(name, k, bound.norm, moved, bound.value, tolerance))
        return rows

    def rows(
        self,
        k: int,
        here: Played,
        differences: Mapping[str, list[dict[str, Tensor]]],
        adjacency: Adjacency,
        norm: int,
        unhidden: frozenset[str] = frozenset(),
    ) -> list[Row]:
        """A row for each message: the largest of its differences, by kind of neighbour."""
        stated = self._stated(k, adjacency, here.sent)
        rows = []
        for name, sent in here.sent.items():
            bound = stated.get(name)
            p, value = (norm, None) if bound is None else bound
            moved = {
                kind: max(lengths(difference[name], p).item() for difference in several)
                for kind, several in differences.items()
            }
            size = lengths(self.coupled.own(sent), p).item()
            part = max([value or 0.0, *moved.values()])
            tolerance = 0.0 if value == 0 else self._tolerance(size, part)
            hidden = name not in unhidden or max(moved.values()) == 0
            rows.append(Row(name, k, p, moved, value, tolerance, not hidden))
        return rows

    def _tolerance(self, size: float, part: float) -> float:
        return rounding(size, part, self.coupled.defense.batch_size, self.coupled.setting.d)

    def _stated(self, k: int, adjacency: Adjacency, sent: Capture) -> Mapping[str, Stated]:
        coupled = self.coupled
        return coupled.defense.sensitivity(k, coupled.setting, adjacency, coupled.victim, sent)

    def _norm(self, state: Any, k: int, oracle: Gradient) -> int:
        """What Laplace noise is measured by, or Gaussian noise."""
        drawn = self.coupled.play(state, k, oracle).draws
        return 1 if any(draw.family == "laplace" for draw in drawn) else 2

    def _check(self, state: Any, k: int, oracle: BatchGradient) -> None:
        """Sums are divided by the public batch size, and the order of records does not matter."""
        public = self.coupled.defense.batch_size
        if oracle.batch_size != public:
            self.dependences.add(
                f"sums over a batch are divided by how many records were drawn: in round {k} by "
                f"{oracle.batch_size}, where the public batch size is {public}"
            )
        here = self.coupled.play(state, k, oracle)
        there = self.coupled.play(state, k, reordered(oracle))
        for name, difference in self.coupled.differences(here.sent, there.sent).items():
            size = lengths(self.coupled.own(here.sent[name]), 2)
            if bool(lengths(difference, 2) > REORDERED * size):
                self.dependences.add(f'"{name}" depends on the order of the records in a batch')


@dataclass
class Pair:
    """The worlds that differ in the first place of the victim's batch of round k."""

    examination: Examination
    state: Any
    k: int
    oracle: BatchGradient
    adjacency: Adjacency  # whose stated bounds are shown
    norm: int  # of messages without a stated bound
    present: Record | None = None  # that the other worlds replace; None: they add one
    lag: bool = False  # messages of round k + 1 are measured

    def rows(self, found: Mapping[str, Record]) -> list[Row]:
        """The larger of each record's effects in the drawn batch, and alone if sampling allows."""
        coupled, dependences = self.examination.coupled, self.examination.dependences
        here, there = self._play(self.present), {kind: self._play(r) for kind, r in found.items()}
        was_silent = dependences.silent
        for played in there.values():
            dependences.compare(here, played)
        if dependences.silent and not was_silent:
            return self.rows(found)  # again, before noise
        differences = {kind: [coupled.differences(here.sent, p.sent)] for kind, p in there.items()}
        if coupled.defense.sampling == "poisson":
            alone = self._play(self.present, alone=True)
            for kind, record in found.items():
                other = self._play(record, alone=True)
                dependences.compare(alone, other)
                differences[kind].append(coupled.differences(alone.sent, other.sent))
        unhidden = self._unhidden()
        k = self.k + self.lag
        return self.examination.rows(k, here, differences, self.adjacency, self.norm, unhidden)

    def optimised(self, search: Search, start: Record) -> Record:
        """The record that ascent on the messages' differences finds."""
        coupled, examination = self.examination.coupled, self.examination
        here = self._play(self.present).sent
        stated = examination._stated(self.k + self.lag, self.adjacency, here)
        own = {name: coupled.own(sent) for name, sent in here.items()}

        def objective(sent: Capture) -> Tensor:
            parts = []
            for name, reference in own.items():
                norm, value = stated.get(name, (self.norm, 1.0))
                if value > 0:
                    parts.append(lengths(coupled.own(sent[name]) - reference, norm) / value)
            return torch.stack(parts).sum(0)  # each as a part of its bound

        without = placed(self.oracle, coupled.victim, None)
        silent = examination.dependences.silent
        return search.optimised(self.state, self.k, without, start, objective, self.lag, silent)

    def _play(
        self, record: Record | None, alone: bool = False, silent: bool | None = None
    ) -> Played:
        coupled = self.examination.coupled
        silent = self.examination.dependences.silent if silent is None else silent
        oracle = placed(self.oracle, coupled.victim, record, alone)
        played = coupled.play(self.state, self.k, oracle, silent)
        if self.lag:
            after = played.round.state
            played = coupled.play(after, self.k + 1, coupled.oracle(self.k + 1), silent)
        return played

    def _unhidden(self) -> frozenset[str]:
        """Messages that are the same with noise and without it."""
        own = self.examination.coupled.own
        noisy, quiet = (self._play(self.present, silent=silent).sent for silent in (False, True))
        return frozenset(name for name in noisy if torch.equal(own(noisy[name]), own(quiet[name])))


Links = dict[str, tuple[list[int], list[int], torch.Size]]


def _links(sent: Capture) -> Links:
    return {n: (s.senders.tolist(), s.receivers.tolist(), s.payload.shape) for n, s in sent.items()}
