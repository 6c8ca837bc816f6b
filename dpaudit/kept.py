"""How far a long computation is, kept where a killed one goes on, so that nothing is done twice."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


class Progress(NamedTuple):
    """All that a computation needs to go on with the same numbers."""

    tensors: "Mapping[str, Tensor]"
    note: Any = None  # of what JSON has; numbers come back as they were, to the last bit


class Kept(ABC):
    """Where one stage of a computation keeps how far it is."""

    @abstractmethod
    def stage(self, name: str | int) -> "Kept":
        """Where a stage of this stage does."""

    @abstractmethod
    def last(self) -> Progress | None:
        """What was kept last, if it is as it was written; None: begin at the beginning."""

    @abstractmethod
    def keep(self, now: Callable[[], Progress]) -> None:
        """Keep how far it is in the place of what was kept before; often called, seldom done."""

    @abstractmethod
    def done(self, result: Progress) -> None:
        """Keep what came out, which does not change any more, before anything later is kept."""


class NotKept(Kept):
    """Keeps nothing: for what is short, and for a run without a folder."""

    def stage(self, name: str | int) -> Kept:
        return self

    def last(self) -> Progress | None:
        return None

    def keep(self, now: Callable[[], Progress]) -> None:
        return

    def done(self, result: Progress) -> None:
        return


NOT_KEPT = NotKept()


def joined(parts: "Mapping[str, Mapping[str, Tensor]]") -> "dict[str, Tensor]":
    """Tensors of several things under one roof; ``under`` gives those of one back."""
    return {f"{name}/{key}": t for name, tensors in parts.items() for key, t in tensors.items()}


def under(tensors: "Mapping[str, Tensor]", name: str) -> "dict[str, Tensor]":
    """What ``joined`` had under a name."""
    start = f"{name}/"
    return {key[len(start) :]: t for key, t in tensors.items() if key.startswith(start)}
