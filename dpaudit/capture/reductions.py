"""What others see of a message: what was sent, or of a reduction the sum or a row alone."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from functools import cache
from typing import Literal

import numpy as np
from torch import Tensor

from dpaudit.accounting.privacy_loss import Array
from dpaudit.errors import RunError
from dpaudit.files.recorded import Event

from .recording import Recording

Reductions = Literal["contributions", "sum only", "rows of a padded stack"]
SUMMED = "all_reduce"  # to other reductions the root's own part is not recorded


def is_summed(event: Event, reductions: Reductions) -> bool:
    """Whether others see nothing but its sum with those of all."""
    return reductions == "sum only" and event.operator == SUMMED


class Contents:
    """The numbers of messages, flat and in float64."""

    def __init__(
        self, recording: Recording, events: Sequence[Event], reductions: Reductions
    ) -> None:
        self._recording, self._reductions = recording, reductions
        self._together: defaultdict[Hashable, list[Event]] = defaultdict(list)
        for event in events:
            self._together[_call(event)].append(event)
        self._sum = cache(self._summed)

    def of(self, event: Event) -> Array:
        """Raises RunError where a reduction is not what the options say."""
        if is_summed(event, self._reductions):
            return self._sum(_call(event))
        if event.operator == SUMMED and self._reductions == "rows of a padded stack":
            return self._rows(event)
        return self._sent(event)

    def _sent(self, event: Event) -> Array:
        parts = [numbers(self._recording.content(sent)) for sent in event.tensors]
        return np.concatenate(parts) if parts else np.empty(0)

    def _summed(self, call: Hashable) -> Array:
        events = self._together[call]
        if len(events) != len(events[0].group):
            raise RunError(
                "DPA060",
                f"{events[0].call_site}: {len(events)} of {len(events[0].group)} ranks contribute "
                'from this line; messages.reductions = "sum only" needs all',
            )
        return np.asarray(sum(map(self._sent, events)))

    def _rows(self, event: Event) -> Array:
        """The row of the rank that sends it, in a stack of one for each rank."""
        place = event.group.index(event.source)
        rows = []
        for sent in event.tensors:
            stack = self._recording.content(sent)
            others = [i for i in range(len(event.group)) if i != place]
            if stack.shape[:1] != (len(event.group),) or bool(stack[others].any()):
                raise RunError(
                    "DPA060",
                    f"{event.call_site}: rank {event.source} contributes {tuple(stack.shape)}; "
                    f'messages.reductions = "rows of a padded stack" expects {len(event.group)} '
                    "rows, and zeros in those of others",
                )
            rows.append(numbers(stack[place]))
        return np.concatenate(rows)


def _call(event: Event) -> Hashable:
    return event.operator, event.group, event.call_site, event.occurrence


def numbers(content: Tensor) -> Array:
    """Flat and in float64."""
    return content.reshape(-1).double().numpy()
