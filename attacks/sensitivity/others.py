"""Records of agents beside the victim, which a step may treat otherwise.

One agent may forget to clip, or to add its noise, in one round alone. Where noise is moved until
two runs are the same, a record of every agent is left out at once, and the moves say whose record
needs more noise than is declared. Such a move proves nothing by itself: of a sum of several draws
one is moved for all of them. So that agent's longest record is then added, and what it sends is
held against its own bound. Where no move makes the runs the same, some agents are looked at in the
first and in the last round, and one in each other round, in turn.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from dpaudit.defense import Adjacency

from .alignment import over_declared
from .examination import Examination, Pair
from .row import Row

MOST = 8  # agents of the first and of the last round, of which no alignment says anything
CLEARLY = 1 + 1e-6  # times the declared move


@dataclass
class Others:
    """Looks at other agents beside the victim of an examination."""

    examination: Examination
    _of: dict[int, Examination] = field(default_factory=dict)

    def record(self, state: Any, k: int, adjacency: Adjacency) -> Iterator[Row]:
        """What speaks against the bounds on their messages, once round k is examined."""
        for agent in self._suspected(k, adjacency):
            own = self._of.setdefault(agent, self._at(agent))
            own.silent = self.examination.silent
            for row in _added(own, state, k, adjacency):
                if row.counts:
                    yield row._replace(agent=agent)
            self.examination.found |= own.found
            self.examination.unclear |= own.unclear

    def _suspected(self, k: int, adjacency: Adjacency) -> list[int]:
        """Whose noise moves further than is declared; or some of those of which it is unknown."""
        coupled = self.examination.coupled
        others = [i for i in coupled.setting.holders if i != coupled.victim]
        moved = self.examination.aligned.get((adjacency, k))
        if moved is None or isinstance(moved, str):
            most = MOST if k in (1, coupled.defense.n_rounds) else 1
            first = (k - 1) * most % max(1, len(others))
            return (others[first:] + others[:first])[:most]

        def ratio(agent: int) -> float:
            own = {key: size for key, size in moved.items() if key[0] == agent}
            return over_declared(coupled, {k: own}, adjacency)

        return [agent for agent in others if ratio(agent) > CLEARLY]

    def _at(self, agent: int) -> Examination:
        return Examination(replace(self.examination.coupled, victim=agent), 0, 0, aligns=False)


def _added(own: Examination, state: Any, k: int, adjacency: Adjacency) -> list[Row]:
    """The agent's longest record is added in round k, or takes the place of another."""
    oracle = own.coupled.batches(k)
    pair = Pair(own, state, k, oracle, adjacency, *own.asked(state, k, oracle))
    natural = pair.natural()
    if adjacency == "replace-one":
        pair.present, natural = natural, pair.natural(unlike=natural)
    found = {"natural": natural}
    rows = pair.rows(found)
    if any(row.measured for row in rows) or k == own.coupled.defense.n_rounds:
        return rows
    pair.lag = 1
    return pair.rows(found)
