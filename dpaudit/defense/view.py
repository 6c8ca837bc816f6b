"""What an adversary holds: the messages it intercepted, and nothing besides."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dpaudit.errors import NotObservable
from dpaudit.files.threat import ThreatModel

from .transcript import Message, Transcript


@dataclass(frozen=True, eq=False)
class View:
    """The messages an adversary intercepted: copies of what it may read, and nothing besides.

    No reference leads from a view to the full transcript, the data or the agents' states.
    """

    threat_model: ThreatModel
    transcript: Transcript

    @classmethod
    def of(cls, threat_model: ThreatModel, transcript: Transcript, rounds: set[int]) -> "View":
        """The threat model's part of these rounds (those of them that were recorded)."""
        seen = {
            k: {name: _visible(threat_model, sent) for name, sent in transcript.rounds[k].items()}
            for k in sorted(rounds & set(transcript.rounds))
        }
        return cls(threat_model, Transcript(seen))

    def on_edge(self, name: str, round: int, sender: int, receiver: int) -> Tensor:
        """The payload [..., d] of a message. Raises NotObservable: this adversary has it not."""
        return self.transcript.on_edge(name, round, sender, receiver)

    def sent_by(self, name: str, round: int, sender: int) -> Tensor:
        """What ``sender`` broadcast [..., d], read on any of the links the adversary taps."""
        sent = self.transcript.rounds.get(round, {}).get(name)
        seen = sent is not None and bool((sent.senders == sender).any())
        if sent is None or not seen:
            missing = f'"{name}" of agent {sender} in round {round}'
            raise NotObservable("DPA054", f"{self.threat_model.name} does not see {missing}")
        edge = int((sent.senders == sender).nonzero()[0])
        return sent.payload[..., sent.rows[edge], :]

    def all_sent_by(self, name: str, round: int, sender: int) -> Tensor:
        """All that was read of a message of ``sender``, [..., n_rows, d]: one row if broadcast."""
        self.sent_by(name, round, sender)  # refuses what is not there
        sent = self.transcript.rounds[round][name]
        return sent.payload[..., sent.rows[sent.senders == sender].unique(), :]

    def edges(self, name: str, round: int) -> list[tuple[int, int]]:
        """The (sender, receiver) links on which this message was intercepted in this round."""
        sent = self.transcript.rounds.get(round, {}).get(name)
        if sent is None:
            return []
        return list(zip(sent.senders.tolist(), sent.receivers.tolist(), strict=True))


def _visible(threat_model: ThreatModel, sent: Message) -> Message:
    visible = seen_links(threat_model, sent.senders, sent.receivers)
    if sent.readers is not None:
        visible = visible & _is_one_of(sent.readers, threat_model.agents)
    return sent.restricted(visible)


def seen_links(threat_model: ThreatModel, senders: Tensor, receivers: Tensor) -> Tensor:
    """Which links [n_edges] a threat model reads (``ThreatModel.sees``)."""
    if threat_model.has_final_model:  # a released model is on a link to its own agent
        return senders == receivers
    if threat_model.kind != "external":
        agents = threat_model.agents
        return _is_one_of(senders, agents) | _is_one_of(receivers, agents)
    if threat_model.reads_every_link:
        return torch.ones(len(senders), dtype=torch.bool, device=senders.device)
    ends = zip(senders.tolist(), receivers.tolist(), strict=True)
    seen = [threat_model.sees(sender, receiver) for sender, receiver in ends]
    return torch.tensor(seen, dtype=torch.bool, device=senders.device)


def _is_one_of(agents: Tensor, some: tuple[int, ...]) -> Tensor:
    return torch.isin(agents, torch.tensor(some, dtype=torch.long, device=agents.device))
