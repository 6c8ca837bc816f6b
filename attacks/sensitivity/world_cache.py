"""What is kept of worlds that are played again and again: answers, and how much noise."""

from dataclasses import dataclass, field, fields, replace
from math import inf
from typing import Any

import torch
from torch import Tensor

from dpaudit.defense import Message, Messages
from dpaudit.training.classification import BatchGradient

from .side_effects import unwatched

KEPT_ANSWERS = 4  # the last ones of an oracle to one question, at other models each


@dataclass(frozen=True)
class KeptAnswers(BatchGradient):
    """The oracle of a world that is played with noise, without, and with its noise moved.

    Each play begins from the same models, so that what they were answered is kept. Worlds whose
    batches differ at the victim alone share what the others are answered; without a victim they
    share all. A copy that a step makes, with other batches, keeps none of it.
    """

    answers: dict[Any, list[tuple[Tensor, Tensor]]] = field(default_factory=dict, init=False)
    steps: dict[int, BatchGradient] = field(default_factory=dict, init=False)
    # an oracle with the same batches, but for the victim's
    shared: "KeptAnswers | None" = field(default=None, init=False)
    victim: int | None = field(default=None, init=False)
    bare: list[str] = field(default_factory=list)  # questions for gradients that it does not clip

    @classmethod
    def of(
        cls, oracle: BatchGradient, shared: "KeptAnswers | None" = None, victim: int | None = None
    ) -> "KeptAnswers":
        own = {f.name: getattr(oracle, f.name) for f in fields(BatchGradient)}
        kept = cls(**own)
        object.__setattr__(kept, "shared", shared)
        object.__setattr__(kept, "victim", victim)
        return kept

    @unwatched()
    def per_record(self, X: Tensor, holders: Tensor | None = None, own: bool = False) -> Tensor:
        self.bare.append("per_record")
        return super().per_record(X, holders, own)

    @unwatched()
    def part(self, X: Tensor, coordinates: slice) -> Tensor:
        self.bare.append("part")
        return super().part(X, coordinates)

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        if clip_norm == inf:
            self.bare.append("clipped_sum")
        if type(X) is not Tensor or X.requires_grad:
            with unwatched():
                return super().clipped_sum(X, clip_norm, holders, norm)
        asked = clip_norm, norm, None if holders is None else tuple(holders.tolist())
        kept = self.answers.setdefault(asked, [])
        for models, answer in kept:
            if torch.equal(models, X):
                return answer.clone()
        with unwatched():
            answer = self._answered(X, clip_norm, holders, norm)
        kept.append((X.clone(), answer.clone()))
        del kept[:-KEPT_ANSWERS]
        return answer

    def _answered(self, X: Tensor, clip_norm: float, holders: Tensor | None, norm: int) -> Tensor:
        """Where others' batches are shared, the victim's alone are gone through."""
        if self.shared is None or X.ndim > 2:
            return super().clipped_sum(X, clip_norm, holders, norm)
        answer = self.shared.clipped_sum(X, clip_norm, holders, norm)
        if self.victim is None:
            return answer
        whose = torch.arange(len(X), device=X.device) if holders is None else holders
        rows = (whose == self.victim).nonzero().flatten()
        if len(rows):
            own = super().clipped_sum(X[rows], clip_norm, whose[rows], norm)
            answer = answer.index_copy(0, rows, own)
        return answer

    def at_step(self, s: int) -> BatchGradient:
        if s > 0 and self.draw is not None and s not in self.steps:
            self.steps[s] = replace(KeptAnswers.of(super().at_step(s)), bare=self.bare)
        return self.steps.get(s, self)


@dataclass
class UnsentNoise:
    """Agents that drew more noise before a round than they sent new numbers, for each round.

    A message that repeats the one of the round before is not new.
    """

    state: Any  # after the rounds so far
    sent: Tensor  # [n_agents], new numbers in these rounds
    kept: list[Tensor] = field(default_factory=list)  # [n_agents] each, after round 1, 2, ...
    drawn: int = 0
    last: Messages = field(default_factory=dict)

    def note(self, state: Any, drawn: int, sent: Messages) -> None:
        """The first round that was not noted yet: what it leaves, draws and sends."""
        self.drawn += drawn
        for name, message in sent.items():
            self.sent += _new_numbers(message, self.last.get(name), len(self.sent))
        self.state, self.last = state, sent
        self.kept.append(self.drawn > self.sent)


def _new_numbers(sent: Message, before: Message | None, n_agents: int) -> Tensor:
    """How many numbers each agent sends, if any of them is another one than before, [n_agents]."""
    sender, row = torch.stack([sent.senders, sent.rows]).unique(dim=1).cpu()
    n_rows = torch.bincount(sender, minlength=n_agents)
    if before is not None and before.payload.shape == sent.payload.shape:
        other = (sent.payload != before.payload).any(-1)
        other = other.reshape(-1, other.shape[-1]).any(0).cpu()
        n_rows *= torch.bincount(sender[other[row]], minlength=n_agents) > 0
    return n_rows * (sent.payload.numel() // max(1, sent.payload.shape[-2]))
