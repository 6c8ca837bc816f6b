"""Records that move a message as far as they can: found, mislabelled, or optimised."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dpaudit.defense.contract import Setting
from dpaudit.defense.transcript import Messages
from dpaudit.training.classification import BatchGradient

from .worlds import Candidates, Coupled, Record, stacked

AT_ONCE = 2**26  # numbers that the messages of one stack of restarts may have
NUMBER = 8  # bytes: all is float64
PLAYS = 2  # of each world, with noise and without
STEP = 0.1  # of the optimiser, as a part of the range that values of a record have


@dataclass(frozen=True)
class Search:
    """Finds records at a given model of the victim; restarts of an optimisation run as a stack."""

    coupled: Coupled
    norm: int  # L1 or L2, of gradients
    restarts: int
    steps: int

    def natural(self, state: Any, unlike: Record | None = None) -> Record:
        """The victim's record with the largest gradient at its current model, of all it holds.

        ``unlike``: of those of another class than this record's, if there are any.
        """
        inputs, labels = self.coupled.classification.records(self.coupled.victim)
        if unlike is not None and bool((labels != unlike.label).any()):
            inputs, labels = inputs[labels != unlike.label], labels[labels != unlike.label]
        inputs = inputs.double()
        longest = int(self._norms(state, inputs, labels).argmax())
        return Record(inputs[longest], labels[longest])

    def mislabelled(self, state: Any, record: Record) -> Record:
        """The same record with the wrong label that gives the largest gradient."""
        classes = torch.arange(
            self.coupled.classification.dataset.n_classes, device=record.label.device
        )
        wrong = classes[classes != record.label]
        inputs = record.input.expand(len(wrong), *record.input.shape)
        return Record(record.input, wrong[self._norms(state, inputs, wrong).argmax()])

    def optimised(
        self,
        state: Any,
        k: int,
        without: BatchGradient,
        record: Record,
        objective: Callable[[Messages], Tensor],
        lag: bool,
        silent: bool,
    ) -> Record:
        """Gradient ascent on how far the victim's messages move, over inputs in the value range.

        Args:
            without: the oracle of round k with nothing in the victim's first place.
            record: half of the restarts begin near it, half anywhere.
            objective: [m], from the messages of m worlds that each hold one candidate.
            lag: messages of round k do not depend on its batches, those of the next round do.
            silent: without noise.
        """
        low, high = self.coupled.classification.dataset.value_range

        def moved(candidates: Tensor, labels: Tensor) -> Tensor:
            oracle = Candidates(without, self.coupled.victim, candidates, labels)
            played = self.coupled.play(stacked(state, len(labels)), k, oracle, silent)
            if lag:
                after = played.round.state
                played = self.coupled.play(after, k + 1, self.coupled.oracle(k + 1), silent)
            return objective(played.sent)

        found: list[tuple[float, Record]] = []
        size = at_once(self.coupled.setting, k)
        parts = (start.split(size) for start in self._starts(record))
        for inputs, labels in zip(*parts, strict=True):
            best, values = ascent(partial(moved, labels=labels), inputs, (low, high), self.steps)
            chosen = int(values.argmax())
            found.append((values[chosen].item(), Record(best[chosen], labels[chosen])))
        return max(found, key=lambda pair: pair[0])[1]

    def _starts(self, record: Record) -> tuple[Tensor, Tensor]:
        """Inputs [restarts, *shape] and labels [restarts], every class in turn."""
        dataset = self.coupled.classification.dataset
        low, high = dataset.value_range
        inputs = record.input.expand(self.restarts, *record.input.shape).clone()
        anywhere = inputs[self.restarts // 2 :]
        generator = self.coupled.streams("optimised neighbour")
        anywhere.uniform_(low, high, generator=generator)
        labels = torch.arange(self.restarts, device=inputs.device) + record.label + 1
        return inputs, labels % dataset.n_classes

    def _norms(self, state: Any, inputs: Tensor, labels: Tensor) -> Tensor:
        X = self.coupled.defense.models(state)[self.coupled.victim][None]
        gradients = self.coupled.classification.gradients
        return gradients.norms(X, inputs[None], labels[None], self.norm)[0]


def at_once(setting: Setting, k: int) -> int:
    """How many restarts are one stack in round k."""
    graph = setting.network.at(k)
    return max(1, AT_ONCE // ((graph.n_edges + graph.n_agents) * setting.d))


def ascent(
    value: Callable[[Tensor], Tensor],
    start: Tensor,
    value_range: tuple[float, float],
    steps: int,
) -> tuple[Tensor, Tensor]:
    """The best iterate of each restart and its value, by Adam with projection on the value range.

    Of what cannot be differentiated, as a step in NumPy, it is the start and its value.

    Args:
        value: [m] from inputs [m, *shape]; each entry depends on its own input alone.
        start: [m, *shape].
    """
    low, high = value_range
    z = start.clone().requires_grad_(True)
    optimiser = torch.optim.Adam([z], lr=STEP * (high - low), maximize=True)
    best, values = start.clone(), start.new_full(start.shape[:1], -torch.inf)
    for _ in range(steps + 1):
        try:
            now = value(z)
        except RuntimeError:
            now = value(z.detach())
        better = now.detach() > values
        best[better], values[better] = z.detach()[better], now.detach()[better]
        if not now.requires_grad:
            break  # the messages do not depend on the records
        (gradient,) = torch.autograd.grad(now.sum(), z)
        z.grad = gradient.nan_to_num()
        optimiser.step()
        with torch.no_grad():
            z.clamp_(low, high)
    return best, values
