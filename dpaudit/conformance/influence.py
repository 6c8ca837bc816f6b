"""Which agents an agent's batch may influence in a round: those that messages reach.

Two rounds are played that differ in one agent's batch alone. Whatever differs elsewhere must have
come by a message that differs; within a round an agent sends each of its messages once.
"""

from dpaudit.defense.transcript import Message, Messages

Link = tuple[str, int, int]  # message, sender, receiver
Reached = set[tuple[int, frozenset[str]]]  # an agent, and the messages over which it was reached


def pairs(sent: Message) -> list[tuple[int, int]]:
    """(sender, receiver) of each link."""
    return list(zip(sent.senders.tolist(), sent.receivers.tolist(), strict=True))


def changed_links(one: Messages, other: Messages) -> list[Link]:
    """The links on which the payload differs between two rounds."""
    changed = []
    for name, sent in one.items():
        differs = (sent.payload != other[name].payload).any(dim=-1)[sent.rows]
        links = pairs(sent)
        changed += [(name, *links[e]) for e in differs.nonzero().flatten().tolist()]
    return changed


def reached_from(links: list[Link], source: int) -> Reached:
    """Whom the source's batch may have reached over these links, itself over none."""
    reached: Reached = {(source, frozenset())}
    new = set(reached)
    while new:
        new = {
            (receiver, used | {name})
            for agent, used in new
            for name, sender, receiver in links
            if sender == agent and name not in used
        } - reached
        reached |= new
    return reached


def unreached_senders(links: list[Link], reached: Reached) -> list[Link]:
    """Links whose message changed although no other changed message reached its sender."""
    return [
        (name, sender, receiver)
        for name, sender, receiver in links
        if not any(agent == sender and name not in used for agent, used in reached)
    ]
