"""The progress of a long computation, saved so that a killed one resumes without repeating work."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


class Progress(NamedTuple):
    """What a computation needs to resume with the same numbers."""

    tensors: "Mapping[str, Tensor]"
    note: Any = None  # JSON values; numbers are restored to the last bit

    @classmethod
    def of(cls, *parts: Any) -> "Progress":
        """The progress that ``parts`` describe: nested lists and mappings of tensors and numbers.

        ``parts`` of the saved progress returns them; tuples come back as lists.
        """
        tensors: dict[str, Tensor] = {}

        def described(part: Any) -> Any:
            if isinstance(part, Mapping):
                return {"of": [[key, described(each)] for key, each in part.items()]}
            if isinstance(part, list | tuple):
                return [described(each) for each in part]
            if hasattr(part, "requires_grad"):
                tensors[str(len(tensors))] = part
                return {"tensor": str(len(tensors) - 1)}
            return part

        return cls(tensors, described(parts))

    @property
    def parts(self) -> list[Any]:
        """What ``of`` was given."""

        def found(part: Any) -> Any:
            if isinstance(part, list):
                return [found(each) for each in part]
            if not isinstance(part, Mapping):
                return part
            if "tensor" in part:
                return self.tensors[part["tensor"]]
            return {key: found(each) for key, each in part["of"]}

        parts: list[Any] = found(self.note)
        return parts


class Checkpoint(ABC):
    """Saves and restores the progress of one stage of a computation."""

    @abstractmethod
    def stage(self, name: str | int) -> "Checkpoint":
        """The checkpoint of a stage within this one."""

    @abstractmethod
    def last(self) -> Progress | None:
        """The progress saved last, if its file is intact; None: begin at the start."""

    @abstractmethod
    def keep(self, now: Callable[[], Progress]) -> None:
        """Replace the saved progress. Call it after each step; it writes only now and then."""

    @abstractmethod
    def done(self, result: Progress) -> None:
        """Save the final result before any later stage is saved."""


class NoCheckpoint(Checkpoint):
    """Saves nothing: for short work, and for a run without a folder."""

    def stage(self, name: str | int) -> Checkpoint:
        return self

    def last(self) -> Progress | None:
        return None

    def keep(self, now: Callable[[], Progress]) -> None: ...

    def done(self, result: Progress) -> None: ...


NO_CHECKPOINT = NoCheckpoint()
