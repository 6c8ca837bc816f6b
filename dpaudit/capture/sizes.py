"""Messages whose size, or whether they are sent, depends on a record and on no noise.

As of a loop that ends by a clean loss, a list of the tokens of a batch, or a text with a number in
it. Such a message is not measured number by number. It shows the record where it has one size with
the record and another one without, whatever the noise of the round is.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dpaudit.files.world import How

from .program import KeptRuns
from .runs import MessageId, ProgramRun
from .worlds import MeasuredRuns, NeighbouringRuns

Sizes = dict[How, int | None]  # None: it is not sent


def with_sizes(worlds: MeasuredRuns, runs: KeptRuns) -> MeasuredRuns:
    """The same, with the messages whose sizes show a record. Raises RunError."""
    rounds = {k: _with_sizes(of_round, runs, k) for k, of_round in worlds.rounds.items()}
    return worlds._replace(rounds=rounds)


def _with_sizes(found: NeighbouringRuns, runs: KeptRuns, k: int) -> NeighbouringRuns:
    differing = {v: _differing(found, v) for v in found.places}
    if not any(differing.values()):
        return found
    keys = tuple(dict.fromkeys(d.key for place in found.places.values() for d in place.draws))
    noises: list[dict[str, Any]] = [
        {"silent": keys}, *({"signs": keys, "sign_seed": seed} for seed in (0, 1))
    ]  # fmt: skip
    last = found.base.sent_until(k)
    sizes: dict[int, Mapping[MessageId, Sizes]] = {}
    for victim, messages in differing.items():
        kept = dict(messages)
        for how, run in found.runs[victim].items() if kept else ():
            worlds = [run.world.model_copy(update={**noise, "last": last}) for noise in noises]
            for other in runs.loaded(worlds):
                kept = {m: of for m, of in kept.items() if _size(other, m) == of[how]}
        sizes[victim] = kept
    return replace(found, sizes=sizes)


def _differing(found: NeighbouringRuns, victim: int) -> dict[MessageId, Sizes]:
    """Messages of other sizes with what a record may be."""
    of = {
        message: {how: _size(run, message) for how, run in found.runs[victim].items()}
        for message in found.unmeasured.get(victim, ())
    }
    return {message: sizes for message, sizes in of.items() if len({*sizes.values()}) > 1}


def _size(run: ProgramRun, message: MessageId) -> int | None:
    content = run.messages.get(message)
    return None if content is None else len(content)
