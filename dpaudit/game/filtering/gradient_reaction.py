"""Gradients that react: where may agents relay what they learn, though the view does not show it?

The algebra of a view takes every gradient as given. An agent trains on what it receives, though:
its gradient is a function of its model, which moves with the record. Where the view determines that
model, before the gradient shows, the gradient is a function of what the adversary holds already,
and the algebra is exact round by round (sequential releases of equal covariance). Where it does
not, a loss that is steep there turns a small shift of the hidden model into a large one of the next
message: the algebra is then a lower end, and an adversary of every link is the upper end.

Round 1 is taken at initial models, which are public. So averaging, and runs whose gradients move
nothing, stay exact; so does any view in which every message is seen, if messages determine models.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dpaudit.files.threat import ThreatModel
from dpaudit.game.matrices import Array, Mask, Matrix, factors, largest
from dpaudit.game.probing.probed_round import NOISELESS, Answers, ProbedRound


class Reaction(NamedTuple):
    """A gradient at a model that a view does not determine."""

    round: int
    agent: int


def reacting_note(found: Reaction) -> str:
    """What that means for figures of the algebra, for people."""
    return (
        f"gradients that react: in round {found.round} agent {found.agent} takes a gradient at a "
        "model that the view does not reveal, and may relay what it learns there. The figure takes "
        "gradients as given, so it is the lower end. The upper end is the figure of an adversary "
        "that reads every link, where the messages reveal all models"
    )


def with_every_link(threat_model: ThreatModel) -> ThreatModel:
    """An adversary that knows the same and reads every link."""
    return threat_model.model_copy(update={"kind": "external", "links": None})


def reaction(
    threat_model: ThreatModel, out: ProbedRound, answers: Callable[[], Answers]
) -> Reaction | None:
    """The first gradient of a round that reacts to what the view does not show; None: none does.

    Args:
        answers: what the gradients of the round reach.

    Raises:
        NotLocal: too much of a sparse round hangs together.
    """
    known = np.isin(out.askers, threat_model.agents)
    noise, record = out.noise.models, np.concatenate([out.earlier.models, out.record.models])
    if not (_moved(noise, record, out) & ~known).any():
        return None
    shows, before = answers()
    V, S, U, _ = factors(out.noise.seen[:, before], NOISELESS)
    gain = V @ noise  # what the view reveals of models before their gradients show
    record = record - ((out.records_seen[:, before] @ U) / S) @ gain
    hidden = _moved(noise - V.T @ gain, record, out)
    first = np.flatnonzero(hidden & shows & ~known)
    return Reaction(out.round, out.askers[int(first[0])]) if len(first) else None


def _moved(noise: Matrix, record: Array, out: ProbedRound) -> Mask:
    """Which models [n_asked] noise or record moves, by what they do to each."""
    least = NOISELESS * max(largest(out.noise.models), largest(out.noise.state))
    by_noise = np.asarray((abs(noise) > least).sum(0)) > 0
    return by_noise | (np.abs(record) > NOISELESS * out.scale).any(axis=0)
