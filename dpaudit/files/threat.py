"""Who the adversary is: which links it reads, or which last model it has, and what it knows."""

import hashlib
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, model_validator

from dpaudit.errors import ConfigError
from dpaudit.strict import Strict, Text

SHOWN = 10  # agents that a sentence names
LONGEST_SLUG = 120  # bytes, of the 255 that a file's name may have

Agent = Annotated[int, Field(strict=True)]  # true is no agent
Link = tuple[Agent, Agent]  # (sender, receiver)
# of agents; left out of results where it is None, so that they are as without it
Drawn = Annotated[int | None, Field(ge=1, exclude_if=lambda value: value is None)]
Access = Literal["white-box", "black-box"]  # to a model: its parameters, or its losses on records


class Region(Strict):
    """Some agents and all within a few links of them; whoever taps it reads all links they have."""

    around: Annotated[tuple[Agent, ...], Field(min_length=1)]  # agents in the middle of it
    hops: NonNegativeInt = 0  # links from one of them to the outermost agents, in any direction

    @model_validator(mode="after")
    def _every_agent_is_one(self) -> "Region":
        for agent, times in Counter(self.around).items():
            if times > 1:
                raise ValueError(f"around: agent {agent} is there twice")
        return self

    def agents(self, links: Collection[Link]) -> frozenset[int]:
        """All agents of it in a graph of these links."""
        near = defaultdict[int, set[int]](set)
        for sender, receiver in links:
            near[sender].add(receiver)
            near[receiver].add(sender)
        found = edge = {*self.around}
        for _ in range(self.hops):
            edge = {other for agent in edge for other in near[agent]} - found
            if not edge:
                break
            found = found | edge
        return frozenset(found)

    def sentence(self) -> str:
        """Which links it means, for people."""
        shown = ", ".join(map(str, self.around[:SHOWN]))
        more = f" and {len(self.around) - SHOWN} more" * (len(self.around) > SHOWN)
        who = f"agent{'s' * (len(self.around) > 1)} {shown}{more}"
        if not self.hops:
            return f"all links that {who} {'have' if len(self.around) > 1 else 'has'}"
        return f"all links of agents within {self.hops} hop{'s' * (self.hops > 1)} of {who}"


Tapped = Annotated[Region | None, Field(exclude_if=lambda value: value is None)]


class ThreatModel(Strict):
    """Which links an adversary reads. It always knows the algorithm and its public parameters.

    An agent's own messages are among what it holds, so a curious agent knows its own states. One of
    kind "final-model" reads no link: it has what is left after the last round.
    """

    name: Text
    kind: Literal["external", "curious", "colluding", "final-model"] = "external"
    agents: tuple[Agent, ...] = ()  # one agent if curious, two or more if colluding
    drawn: Drawn = None  # how many agents are drawn at random, in place of naming ``agents``
    links: tuple[Link, ...] | None = None  # the links that an external adversary reads; None: all
    region: Tapped = None  # instead of ``links``: all links of the agents of a region
    model_of: Agent | None = None  # for "final-model": the agent; None: the mean of all
    access: Access = "white-box"  # for "final-model"
    knows_draws: bool = (
        True  # whether it knows graphs and participants that are drawn in each round
    )

    @model_validator(mode="after")
    def _kind_and_agents_agree(self) -> "ThreatModel":
        if self.drawn is not None and not self.agents:
            if self.kind not in ("curious", "colluding") or (self.drawn == 1) is not (
                self.kind == "curious"
            ):
                raise ValueError('drawn is 1 for kind "curious", and 2 or more for "colluding"')
            return self
        alone = {"external": (0, 0), "final-model": (0, 0), "curious": (1, 1)}
        low, high = alone.get(self.kind, (2, len(self.agents)))
        if not low <= len(set(self.agents)) <= high or len(set(self.agents)) != len(self.agents):
            count = {"curious": "one", "colluding": "two or more distinct"}
            said = f'kind "{self.kind}" takes agents: {count.get(self.kind, "no agents")}'
            of_model = "; model_of is the agent whose last model it has"
            raise ValueError(said + of_model * self.has_final_model)
        if not self.has_final_model and (self.model_of is not None or self.access != "white-box"):
            raise ValueError('model_of and access belong to kind "final-model"')
        if self.links is not None and self.kind != "external":
            raise ValueError('links belong to kind "external"; others read all links they touch')
        if self.region is not None and self.kind != "external":
            raise ValueError('region belongs to kind "external"; others read all links they touch')
        if self.region is not None and self.links is not None:
            raise ValueError("give either links or region")
        return self

    @model_validator(mode="after")
    def _every_link_is_one(self) -> "ThreatModel":
        links = self.links
        if links is None:
            return self
        if not links:
            raise ValueError("links is empty, so that nothing is read; leave it out to read all")
        times = Counter(links)
        for sender, receiver in links:
            if sender == receiver:
                raise ValueError(f"links: agent {sender} sends itself nothing; expected two agents")
            if times[sender, receiver] > 1:
                raise ValueError(f"links: {sender} -> {receiver} is there twice")
        return self

    def with_agents(self, seed: int, n_agents: int) -> "ThreatModel":
        """The same with its agents drawn, those of ``seed``; without ``drawn`` itself.

        Agents come in the order of a hash, which is uniform over sets and the same everywhere.
        """
        if self.drawn is None:
            return self
        ranked = sorted(range(n_agents), key=lambda i: _hashed(seed, self.name, i))
        return self.model_copy(update={"agents": tuple(sorted(ranked[: self.drawn]))})

    def within(self, links: Collection[Link]) -> "ThreatModel":
        """The same with the links of its region, of these of a graph; without a region itself."""
        if self.region is None:
            return self
        inside = self.region.agents(links)
        read = sorted(link for link in links if link[0] in inside or link[1] in inside)
        return self.model_copy(update={"links": tuple(read)})

    @property
    def has_final_model(self) -> bool:
        """Whether all that it has is what is left after the last round."""
        return self.kind == "final-model"

    @property
    def likeness(self) -> str:
        """Its name without what is easily overlooked: case, spaces, signs, forms of a letter."""
        folded = unicodedata.normalize("NFKC", self.name).casefold().strip()
        return "".join(c if c.isalnum() else "-" for c in folded)

    @property
    def slug(self) -> str:
        """Its name as a part of a file's name; of a long one the beginning, and a digest of all."""
        slug = "".join(c if c.isalnum() else "-" for c in self.name)
        if len(slug.encode()) <= LONGEST_SLUG:
            return slug
        return f"{slug[:24]}-{hashlib.sha256(self.name.encode()).hexdigest()[:16]}"

    @property
    def reads_every_link(self) -> bool:
        """Whether an eavesdropper reads all links.

        Raises:
            ConfigError: it reads a region, and does not have its links (``within``).
        """
        if self.region is not None and self.links is None:
            raise ConfigError(
                "DPA013",
                f'threat model "{self.name}": which links its region has depends on the graph',
                "take threat_model.within(graph.links)",
            )
        return self.kind == "external" and self.links is None

    @cached_property
    def _links_read(self) -> frozenset[Link]:
        return frozenset(self.links or ())

    def sees(self, sender: int, receiver: int) -> bool:
        """Whether this adversary reads the directed link from sender to receiver."""
        if self.kind == "external":
            return self.reads_every_link or (sender, receiver) in self._links_read
        return sender in self.agents or receiver in self.agents

    def sentence(self) -> str:
        """What this adversary sees and knows, for a reader of the report."""
        known = "It knows the algorithm, its public parameters and the graph (Kerckhoffs)."
        if not self.knows_draws:
            known += " It does not know what of the graph is drawn anew in every round."
        if self.has_final_model:
            whose = "the mean of all agents' models"
            if self.model_of is not None:
                whose = f"the model of agent {self.model_of}"
            sees = "the parameters of" if self.access == "white-box" else "only the losses of"
            return f"This adversary sees {sees} {whose} after the last round. {known}"
        if self.kind == "external":
            links = "every link" if self.links is None else f"{len(self.links)} of the links"
            if self.region is not None:
                links = self.region.sentence()
            return f"An external eavesdropper reads all messages on {links}. {known}"
        who = ", ".join(str(agent) for agent in self.agents)
        if self.kind == "curious":
            return f"Agent {who} follows the protocol and reads what it receives and sends. {known}"
        return f"Agents {who} follow the protocol and pool what they receive and send. {known}"


def _hashed(*parts: object) -> bytes:
    return hashlib.sha256(repr(parts).encode()).digest()
