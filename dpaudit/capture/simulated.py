"""Rounds and agents of a simulation in one process, from the order in which it calls the tap.

An agent begins a round of its own with the first batch after it has sent. One without batches does
when it sends the same again, by name and receivers, and so do all where nobody takes another batch
after it has sent. A round of the program ends when an agent that has a part in it begins another.
So an agent has one part at most in each round, whatever is sent in a round was sent before anything
of the next one, and agents may miss rounds.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import get_args

from dpaudit.files.recorded import Batch, Draw, Event
from dpaudit.files.world import Noise

Called = Event | Draw | Batch
TAP = "tap"  # the operator of a message that dpaudit.tap was shown


def is_simulation(events: Sequence[Event], children: Collection[int] = ()) -> bool:
    """Whether the process of the command has shown ``dpaudit.tap`` all messages, of any agent.

    Args:
        children: processes that others of the program have started, as workers of Ray.
    """
    senders = {event.process for event in events}
    shown = {event.operator for event in events} == {TAP} and len(senders) == 1
    return shown and not senders & {*children}


def with_counted_rounds(
    events: Sequence[Event], draws: Sequence[Draw], batches: Sequence[Batch], by_batch: bool
) -> tuple[list[Event], list[Draw]]:
    """Messages with their rounds, and draws with their agents and rounds.

    Args:
        by_batch: whether batches begin rounds: see ``batches_begin_rounds``.

    A draw that ``tap.noise`` was not shown is of the agent whose call of the tap comes next, if the
    tap was called before. A draw is of the round of its agent's next message.
    """
    rounds = _rounds(events, batches, {b.agent for b in batches} if by_batch else set())
    calls: list[Called] = [*events, *batches, *filter(_is_noise, draws)]
    everything: list[Called] = [*calls, *(draw for draw in draws if not _is_noise(draw))]
    begin = min((one.sequence for one in calls), default=0)
    of_draws: dict[int, tuple[int | None, int | None]] = {}  # agent and round, by sequence
    next_agent: int | None = None
    next_round: dict[int | None, int] = {}
    sent = {event.sequence for event in events}
    for one in sorted(everything, key=lambda one: -one.sequence):
        if isinstance(one, Draw) and not _is_noise(one):
            agent = next_agent if one.sequence > begin else None
            of_draws[one.sequence] = agent, next_round.get(agent)
            continue
        next_agent = _agent(one)
        if one.sequence in sent:
            next_round[next_agent] = rounds[one.sequence]
        elif isinstance(one, Draw):
            of_draws[one.sequence] = next_agent, next_round.get(next_agent)
    keys = "rank", "round"
    return (
        [event.model_copy(update={"round": rounds[event.sequence]}) for event in events],
        [d.model_copy(update=dict(zip(keys, of_draws[d.sequence], strict=True))) for d in draws],
    )


def batches_begin_rounds(events: Sequence[Event], batches: Sequence[Batch]) -> bool:
    """Whether an agent takes a batch after it has sent, in a run to the end of the program."""
    first: dict[int, int] = {}  # message of each agent
    for event in events:
        first.setdefault(event.source, event.sequence)
    return any(b.sequence > first.get(b.agent, b.sequence) for b in batches)


def _rounds(
    events: Sequence[Event], batches: Sequence[Batch], by_batch: Collection[int]
) -> dict[int, int]:
    """The round of each message and batch, by sequence.

    Args:
        by_batch: agents whose batches begin rounds.
    """
    number, taking_part = 1, set[int]()
    sent: defaultdict[int, set[tuple[object, ...]]] = defaultdict(set)  # in the agent's own round
    found = {}
    calls: list[Called] = [*events, *batches]
    for one in sorted(calls, key=lambda one: one.sequence):
        agent = _agent(one)
        assert agent is not None
        key = (one.call_site, one.destinations) if isinstance(one, Event) else ()
        begins = not key and bool(sent[agent]) if agent in by_batch else key in sent[agent]
        if begins:
            sent[agent].clear()
            if agent in taking_part:
                number, taking_part = number + 1, set()
        if key:
            sent[agent].add(key)
        taking_part.add(agent)
        found[one.sequence] = number
    return found


def _is_noise(draw: Draw) -> bool:
    """Whether a draw is one that ``tap.noise`` was shown."""
    return draw.operator in get_args(Noise)


def _agent(one: Called) -> int | None:
    if isinstance(one, Event):
        return one.source
    return one.agent if isinstance(one, Batch) else one.rank
