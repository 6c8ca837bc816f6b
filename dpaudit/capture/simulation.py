"""Rounds and agents of a simulation in one process, from the order in which it calls the tap.

An agent begins a round of its own with the first batch after it has sent. One without batches does
when it sends the same again, by name and receivers, and so do all where nobody takes another batch
after it has sent. A round of the program ends when an agent that has a part in it begins another.
So an agent has one part at most in each round, whatever is sent in a round was sent before anything
of the next one, and agents may miss rounds. Threads act in any order: where agents are threads, and
all begin as many rounds of their own, these are the rounds. What an agent sends before its first
batch is of its first round then, for threads pass a first model on in any order.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, get_args

from dpaudit.files.recorded import RecordedBatch, RecordedDraw, RecordedEvent
from dpaudit.files.world import Noise

Called = RecordedEvent | RecordedDraw | RecordedBatch
TAP = "tap"  # the operator of a message that dpaudit.tap was shown


class Counting(NamedTuple):
    """How the rounds of a program are counted, which a run to its end shows."""

    by_batch: bool  # batches begin rounds: an agent takes one after it has sent
    alike: bool  # agents are threads that begin as many, each of which counts its own
    from_batch: bool = False  # without those that end before the first batch of an agent

    @classmethod
    def of(
        cls, events: Sequence[RecordedEvent], batches: Sequence[RecordedBatch], threads: bool
    ) -> "Counting":
        first: dict[int, int] = {}  # message of each agent
        for event in events:
            first.setdefault(event.source, event.sequence)
        by_batch = any(b.sequence > first.get(b.agent, b.sequence) for b in batches)
        for from_batch in (True, False) if threads else ():
            counting = cls(by_batch, True, from_batch)
            last = {agent: k for _, agent, k in _own_rounds(events, batches, counting)}
            if len({*last.values()}) == 1:
                return counting
        return cls(by_batch, False)


def is_simulation(events: Sequence[RecordedEvent], children: Collection[int] = ()) -> bool:
    """Whether the process of the command has shown ``dpaudit.tap`` all messages, of any agent.

    Args:
        children: processes that others of the program have started, as workers of Ray.
    """
    senders = {event.process for event in events}
    shown = {event.operator for event in events} == {TAP} and len(senders) == 1
    return shown and not senders & {*children}


def with_counted_rounds(
    events: Sequence[RecordedEvent],
    draws: Sequence[RecordedDraw],
    batches: Sequence[RecordedBatch],
    counting: Counting,
) -> tuple[list[RecordedEvent], list[RecordedDraw]]:
    """Messages with their rounds, and draws with their agents and rounds.

    A draw that ``tap.noise`` was not shown is of the agent whose call of the tap comes next, if the
    tap was called before. A draw is of the round of its agent's next message.
    """
    rounds = _rounds(events, batches, counting)
    calls: list[Called] = [*events, *batches, *filter(_is_noise, draws)]
    everything: list[Called] = [*calls, *(draw for draw in draws if not _is_noise(draw))]
    begin = min((one.sequence for one in calls), default=0)
    of_draws: dict[int, tuple[int | None, int | None]] = {}  # agent and round, by sequence
    next_agent: int | None = None
    next_round: dict[int | None, int] = {}
    sent = {event.sequence for event in events}
    for one in sorted(everything, key=lambda one: -one.sequence):
        if isinstance(one, RecordedDraw) and not _is_noise(one):
            agent = next_agent if one.sequence > begin else None
            of_draws[one.sequence] = agent, next_round.get(agent)
            continue
        next_agent = _agent(one)
        if one.sequence in sent:
            next_round[next_agent] = rounds[one.sequence]
        elif isinstance(one, RecordedDraw):
            of_draws[one.sequence] = next_agent, next_round.get(next_agent)
    keys = "rank", "round"
    return (
        [event.model_copy(update={"round": rounds[event.sequence]}) for event in events],
        [d.model_copy(update=dict(zip(keys, of_draws[d.sequence], strict=True))) for d in draws],
    )


def _own_rounds(
    events: Sequence[RecordedEvent], batches: Sequence[RecordedBatch], counting: Counting
) -> Iterator[tuple[RecordedEvent | RecordedBatch, int, int]]:
    """Messages and batches in their order, with the agent of each and its round of its own."""
    taking = {batch.agent for batch in batches} if counting.by_batch else set()
    before = {*taking} if counting.from_batch else set()  # agents that have taken no batch yet
    own: defaultdict[int, int] = defaultdict(lambda: 1)
    sent: defaultdict[int, set[tuple[object, ...]]] = defaultdict(set)  # agent -> its messages
    both: list[RecordedEvent | RecordedBatch] = [*events, *batches]
    for one in sorted(both, key=lambda one: one.sequence):
        agent = one.source if isinstance(one, RecordedEvent) else one.agent
        key = (one.call_site, one.destinations) if isinstance(one, RecordedEvent) else ()
        before -= set() if key else {agent}
        if not key and bool(sent[agent]) if agent in taking else key in sent[agent]:
            sent[agent].clear()
            own[agent] += 1
        if key and agent not in before:
            sent[agent].add(key)
        yield one, agent, own[agent]


def _rounds(
    events: Sequence[RecordedEvent], batches: Sequence[RecordedBatch], counting: Counting
) -> dict[int, int]:
    """The round of each message and batch, by sequence."""
    number, parts = 1, dict[int, int]()  # the round of its own with which an agent takes part
    found = {}
    for one, agent, own in _own_rounds(events, batches, counting):
        if parts.get(agent, own) != own:
            number, parts = number + 1, {}
        parts[agent] = own
        found[one.sequence] = own if counting.alike else number
    return found


def _is_noise(draw: RecordedDraw) -> bool:
    """Whether a draw is one that ``tap.noise`` was shown."""
    return draw.operator in get_args(Noise)


def _agent(one: Called) -> int | None:
    if isinstance(one, RecordedEvent):
        return one.source
    return one.agent if isinstance(one, RecordedBatch) else one.rank
