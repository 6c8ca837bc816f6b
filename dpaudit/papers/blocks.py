"""What a study prints, block after block: each is kept, so that it goes on where it stopped."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from dpaudit.training.run_directory import RunDirectory
from dpaudit.training.seals import bound_to

Compute = Callable[[], list[str]]  # lines that are computed together
Keep = Callable[[str, Compute], list[str]]  # by a key that says all but code, seed and scale


@dataclass(frozen=True)
class KeptBlocks:
    """Blocks in a folder, each believed only for what it is about."""

    run: RunDirectory
    about: Mapping[str, Any]  # what decides all of them, as JSON can hold it

    def __call__(self, key: str, compute: Compute) -> list[str]:
        binding = bound_to({**self.about, "block": key})
        name = f"blocks/{sha256(key.encode()).hexdigest()[:16]}.json"
        found: list[str] | None = self.run.read_result(name, binding)
        if found is None:
            found = compute()
            self.run.write_result(name, found, binding)
        return found
