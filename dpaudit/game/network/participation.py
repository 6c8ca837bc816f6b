"""In which rounds a record is used: a schema that is fixed before the run starts."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from dpaudit.errors import ConfigError

Schema = str | tuple[int, int]  # "once", "every-round", or how many times and every how many rounds


@dataclass(frozen=True)
class Participation:
    """A record is used ``times`` times, ``every`` so many rounds, from any round where that fits.

    Admissible are the rounds s, s + every, ..., s + (times - 1) every for each s with which they
    lie within the run. With times x every = n_rounds that is the schema of batches taken in turn,
    and s says in which batch the record is.
    """

    times: int
    every: int

    @classmethod
    def of(cls, schema: Schema, n_rounds: int) -> Self:
        """The schema in so many rounds. Raises ConfigError: there is none, or it does not fit."""
        if isinstance(schema, str) and schema not in ("once", "every-round"):
            raise ConfigError(
                "DPA071",
                f'participation: "{schema}" is no schema; expected "once", "every-round" or '
                "[times, every]",
            )
        named = {"once": (1, max(1, n_rounds)), "every-round": (n_rounds, 1)}
        times, every = named[schema] if isinstance(schema, str) else schema
        if min(n_rounds, times, every) < 1:
            raise ConfigError(
                "DPA071",
                f"participation: {times} times every {every} rounds of {n_rounds}; expected at "
                "least 1 of each",
            )
        last = (times - 1) * every
        if last >= n_rounds:
            raise ConfigError(
                "DPA071",
                f"participation: {times} times every {every} rounds takes {last + 1} rounds of "
                f"{n_rounds}; expected {1 + (n_rounds - 1) // every} times at most",
            )
        return cls(times, every if times > 1 else n_rounds)

    def classes(self, n_rounds: int) -> list[Tensor]:
        """The rounds, counted from 0, that one record may be used in; each round is in one class.

        An admissible set is ``times`` consecutive rounds of a class.
        """
        classes = [torch.arange(s, n_rounds, self.every) for s in range(self.every)]
        return [rounds for rounds in classes if len(rounds) >= self.times]
