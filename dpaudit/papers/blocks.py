"""What a study prints, block after block: each is kept, so that it goes on where it stopped."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

from dpaudit.training.run_directory import RunDirectory
from dpaudit.training.seals import bound_to


class Block(NamedTuple):
    """Lines that are computed together."""

    lines: list[str]
    notes: list[tuple[str, str]] = []  # said elsewhere: of which row, and what


Compute = Callable[[], Block]
Keep = Callable[[str, Compute], Block]  # by a key that says all but code, seed and scale


def at_once(key: str, compute: Compute) -> Block:
    """Computed, and not kept."""
    return compute()


@dataclass(frozen=True)
class Kept:
    """Blocks in a folder, each believed only for what it is about."""

    run: RunDirectory
    about: Mapping[str, Any]  # what decides all of them, as JSON can hold it

    def __call__(self, key: str, compute: Compute) -> Block:
        binding = bound_to({**self.about, "block": key})
        name = f"blocks/{sha256(key.encode()).hexdigest()[:16]}.json"
        found = self.run.read_result(name, binding)
        if found is not None:
            lines, notes = found
            return Block(lines, [(row, said) for row, said in notes])
        block = compute()
        self.run.write_result(name, [*block], binding)
        return block
