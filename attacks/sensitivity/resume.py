"""How far a measurement of sensitivity is, after a round, as what a checkpoint can hold."""

from typing import Any, NamedTuple

from dpaudit.checkpoint import Progress, joined, under
from dpaudit.files.claim import Adjacency

from .examination import Dependences, Row

Rows = dict[tuple[Adjacency, bool], list[Row]]  # by adjacency, and whether a record was changed


class Measured(NamedTuple):
    """What the next round starts from, and what was found so far."""

    round: int  # the last one that was played
    state: Any
    own: dict[str, Any]  # the states of worlds with another function, by its kind
    rows: Rows


def progress(now: Measured, dependences: Dependences) -> Progress:
    own = {f"own {kind}": state._asdict() for kind, state in now.own.items()}
    note = {
        "round": now.round,
        "rows": [[*key, rows] for key, rows in now.rows.items()],
        "found": list(dependences.found),
        "silent": dependences.silent,
    }
    return Progress(joined({"state": now.state._asdict(), **own}), note)


def resumed(last: Progress | None, begun: Measured, dependences: Dependences) -> Measured:
    """Where to go on; dependences that were found are noted again."""
    if last is None:
        return begun
    tensors, note = last
    dependences.found.update(dict.fromkeys(note["found"]))
    dependences.silent = note["silent"]
    like = type(begun.state)
    return Measured(
        note["round"],
        like(**under(tensors, "state")),
        {kind: like(**under(tensors, f"own {kind}")) for kind in begun.own},
        {(adjacency, by): [Row(*row) for row in rows] for adjacency, by, rows in note["rows"]},
    )
