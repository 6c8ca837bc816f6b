"""What was sent: one kind of message of a round, all messages of a round, all recorded rounds."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dpaudit.errors import ConfigError, NotObservable
from dpaudit.graphs.graph import Graph


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """One named message of one round on every edge it travels; self-loops are no transmission.

    Edge e goes from ``senders[e]`` to ``receivers[e]`` and carries ``payload[..., rows[e], :]``:
    a broadcast stores one row for each agent, whatever its degree. If it travels encrypted, the
    payload is the plaintext, and ``readers[e]`` the one agent that holds the key to it.
    """

    payload: Tensor  # [..., n_rows, d]
    senders: Tensor  # [n_edges]
    receivers: Tensor  # [n_edges]
    rows: Tensor  # [n_edges]
    readers: Tensor | None = None  # [n_edges]; None: in the clear, for whoever reads the link

    def on_edge(self, sender: int, receiver: int) -> Tensor:
        """The payload [..., d] from sender to receiver. Raises NotObservable if there is none."""
        edge = ((self.senders == sender) & (self.receivers == receiver)).nonzero().flatten()
        if edge.numel() == 0:
            raise NotObservable("DPA053", f"nothing intercepted on the link {sender} -> {receiver}")
        return self.payload[..., self.rows[edge[0]], :]

    def restricted(self, visible: Tensor) -> "Message":
        """Only the edges [n_edges] marked True, with a copy of the rows they carry, no others."""
        rows, renumbered = self.rows[visible].unique(return_inverse=True)
        return Message(
            self.payload[..., rows, :].detach().clone(),
            self.senders[visible],
            self.receivers[visible],
            renumbered,
            None if self.readers is None else self.readers[visible],
        )


Messages = Mapping[str, Message]  # all messages of one round, by name


def refuse_other_messages(k: int, sent: Messages, other: Messages) -> None:
    """Hold two plays of round k against each other, of other data or noise.

    Raises:
        ConfigError: a message is in one alone, or has another number of rows or coordinates.
    """
    for name in sorted(sent.keys() | other.keys()):
        there = [play[name].payload.shape[-2:] if name in play else None for play in (sent, other)]
        if there[0] != there[1]:
            how = "is not sent" if None in there else "has another shape"
            raise ConfigError(
                "DPA045",
                f'defense: message "{name}" of round {k} {how} where gradients or noise differ: '
                "that alone tells who reads it, whatever the noise is; expected the same messages "
                "in the same shapes for all data (send zeros, or pad)",
            )


def kind_of(name: str) -> str:
    """The kind of a message: "x" of "x/1", "x/2", ..., which an edge carries in one round."""
    return name.partition("/")[0]


_FIELDS = ("payload", "senders", "receivers", "rows", "readers")


def tensors_of(messages: Messages) -> dict[str, Tensor]:
    """All that is in it, by names, for a file; ``messages_of`` is the inverse."""
    return {
        f"{name}/{field}": tensor
        for name, sent in messages.items()
        for field in _FIELDS
        if (tensor := getattr(sent, field)) is not None
    }


def messages_of(tensors: Mapping[str, Tensor]) -> Messages:
    names = dict.fromkeys(key.rpartition("/")[0] for key in tensors)
    return {
        name: Message(
            payload=tensors[f"{name}/payload"],
            senders=tensors[f"{name}/senders"],
            receivers=tensors[f"{name}/receivers"],
            rows=tensors[f"{name}/rows"],
            readers=tensors.get(f"{name}/readers"),
        )
        for name in names
    }


def broadcast(graph: Graph, payload: Tensor) -> Message:
    """Each agent sends its own row of [..., n_agents, d] to all its out-neighbours.

    With a server, to the server, which sends nothing here.
    """
    senders, receivers = graph.senders, graph.receivers
    if graph.server is not None:
        up = receivers == graph.server
        senders, receivers = senders[up], receivers[up]
    return Message(payload, senders, receivers, senders)


def unicast(graph: Graph, payload: Tensor, readers: Tensor | None = None) -> Message:
    """Row e of [..., n_edges, d] goes along edge e of the graph, and nowhere else.

    ``readers`` [n_edges]: if encrypted, the agent that can decrypt it on each edge.
    """
    rows = torch.arange(graph.senders.numel(), device=graph.senders.device)
    return Message(payload, graph.senders, graph.receivers, rows, readers)


@dataclass(frozen=True, eq=False)
class Transcript:
    """The recorded rounds of a run; a round that nobody asked for is not here."""

    rounds: Mapping[int, Messages]

    def on_edge(self, name: str, round: int, sender: int, receiver: int) -> Tensor:
        """The payload [..., d] of a message from sender to receiver.

        Raises:
            NotObservable: it was not recorded or not sent.
        """
        if round not in self.rounds:
            raise NotObservable("DPA053", f"round {round} was not recorded")
        if name not in self.rounds[round]:
            raise NotObservable("DPA053", f'no message "{name}" was recorded in round {round}')
        return self.rounds[round][name].on_edge(sender, receiver).detach()

    def with_round(self, round: int, messages: Messages) -> "Transcript":
        """The same transcript with other messages in the place of one round."""
        return Transcript({**self.rounds, round: messages})
