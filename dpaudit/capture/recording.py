"""The folder that a capture leaves.

- ``events.jsonl``: one line for each message that was sent, an Event
- ``draws.jsonl``: one line for each call that drew random numbers, a Draw
- ``transcript/*.safetensors``: what was sent
- ``captured.toml``: a draft of its audit
- ``capture.html``: who sent what to whom in which round
"""

from functools import cached_property
from pathlib import Path

import safetensors
import torch
from torch import Tensor

from dpaudit.errors import RunError
from dpaudit.files.recorded import DRAWS, EVENTS, Draw, Event, SentTensor, read_lines


class Recording:
    """The folder of a capture, read when asked. Raises RunError for what is missing or damaged."""

    def __init__(self, path: Path, warning: str | None = None) -> None:
        self.path = path
        self.warning = warning  # about the command that it was made of

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """All messages, in the order of ``time``, each process's in the order of ``sequence``."""
        return tuple(read_lines(self.path / EVENTS, Event))

    @cached_property
    def draws(self) -> tuple[Draw, ...]:
        """All draws, in the same order."""
        return tuple(read_lines(self.path / DRAWS, Draw))

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that sent or received, ascending."""
        sides = ((event.source, *event.destinations) for event in self.events)
        return tuple(sorted({rank for side in sides for rank in side}))

    def content(self, sent: SentTensor) -> Tensor:
        """A tensor as it was sent, of its shape and dtype, on the CPU."""
        path = self.path / sent.file
        dtype = getattr(torch, sent.dtype, None)
        if not isinstance(dtype, torch.dtype) or ".." in Path(sent.file).parts:
            raise RunError(
                "DPA066", f"{self.path / EVENTS}: no tensor of {sent.dtype} in {sent.file}"
            )
        try:
            with safetensors.safe_open(path, "pt") as file:
                stored: Tensor = file.get_tensor(sent.key)
            return stored.flatten().view(dtype).reshape(sent.shape)
        except (OSError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
            raise RunError(
                "DPA066", f"{path}: {' '.join(str(error).split())}; capture again"
            ) from None
