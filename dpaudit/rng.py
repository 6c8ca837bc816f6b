"""Named random streams: one generator per role, round and message, all derived from one seed.

A stream depends on nothing but its name, so adding an attack never changes the run it attacks, a
round can be replayed alone (which is all that resuming needs), and two worlds share every draw but
those of the record under test.
"""

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class Streams:
    """The family of all streams of one seed.

    ``streams("noise", 12, "cross_gradient")`` is always the same stream for the same seed and
    device; two different names give independent streams (64-bit seeds from BLAKE2b).
    """

    seed: int
    device: torch.device = torch.device("cpu")

    def __call__(self, *name: str | int) -> torch.Generator:
        """A new torch generator at the start of the stream of this name."""
        return torch.Generator(self.device).manual_seed(self._seed_of(name))

    def numpy(self, *name: str | int) -> np.random.Generator:
        """The NumPy generator of this name, for what is drawn on the CPU whatever the device."""
        return np.random.default_rng(self._seed_of(name))

    def child(self, *name: str | int) -> "Streams":
        """A family of streams of its own, by this name, on the same device."""
        return Streams(self.numpy(*name).integers(2**62).item(), self.device)

    def _seed_of(self, name: tuple[str | int, ...]) -> int:
        text = repr((self.seed, *name)).encode()
        return int.from_bytes(blake2b(text, digest_size=8).digest(), "little") >> 1
