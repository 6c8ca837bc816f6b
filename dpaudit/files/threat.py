"""Who the adversary is: which links it reads, or which last model it has, and what it knows."""

import hashlib
import unicodedata
from collections import Counter
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field, model_validator

from dpaudit.strict import Strict, Text

LONGEST_SLUG = 120  # bytes, of the 255 that a file's name may have

Agent = Annotated[int, Field(strict=True)]  # true is no agent
Link = tuple[Agent, Agent]  # (sender, receiver)
# of agents; left out of results where it is None, so that they are as without it
Drawn = Annotated[int | None, Field(ge=1, exclude_if=lambda value: value is None)]
Access = Literal["white-box", "black-box"]  # to a model: its parameters, or its losses on records


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
    model_of: Agent | None = None  # of kind "final-model": whose model; None: the mean of all
    access: Access = "white-box"  # of kind "final-model"
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

    @cached_property
    def _links_read(self) -> frozenset[Link]:
        return frozenset(self.links or ())

    def sees(self, sender: int, receiver: int) -> bool:
        """Whether this adversary reads the directed link from sender to receiver."""
        if self.kind == "external":
            return self.links is None or (sender, receiver) in self._links_read
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
            return f"An external eavesdropper reads all messages on {links}. {known}"
        who = ", ".join(str(agent) for agent in self.agents)
        if self.kind == "curious":
            return f"Agent {who} follows the protocol and reads what it receives and sends. {known}"
        return f"Agents {who} follow the protocol and pool what they receive and send. {known}"


def _hashed(*parts: object) -> bytes:
    return hashlib.sha256(repr(parts).encode()).digest()
