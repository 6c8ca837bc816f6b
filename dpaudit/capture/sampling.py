"""How records come into batches: as captured.toml states it, or as the recording shows it.

A recording has the digest of each record of each batch. Batches that all hold the same records, and
batches that go through the same records again and again, are recognised. Batches of other
sizes, or with records that come again before the others came, are drawn at random: how likely a
record is in one has to be stated. Where no record comes again, it is unknown.
"""

from collections.abc import Iterator, Sequence
from math import lgamma, log, pi
from typing import Literal, NamedTuple

from dpaudit.errors import RunError
from dpaudit.files.captured_file import RecordOptions
from dpaudit.files.claim import Claim

from .runs import TakenBatch

Pattern = Literal["whole", "epochs", "random", "unknown"]
Digests = Sequence[Sequence[str]]  # digests of the records of each batch
CHANCE = 1e-4  # batches that random draws make less often than this are not random

_SEEN: dict[Pattern, str] = {
    "whole": "every batch has the same records",
    "epochs": "every record is in one batch of each pass over the data",
}


class Sampling(NamedTuple):
    """What is known of it; ``stated`` None: by the recording alone."""

    stated: Literal["none", "poisson", "fixed"] | None
    rate: float
    pattern: Pattern  # that all victims have

    @classmethod
    def of(cls, record: RecordOptions, taken: Sequence[TakenBatch]) -> "Sampling":
        """Raises RunError for what is stated, and is not so in the recording."""
        found = [
            pattern_of([one.digests for one in taken if one.agent == victim])
            for victim in record.victims
        ]
        order: list[Pattern] = ["random", "unknown", "epochs", "whole"]
        sampling = cls(record.sampling, record.sampling_rate, min(found, key=order.index))
        if not sampling.amplifies:
            return sampling
        said = f'record.sampling: "{record.sampling}" is stated, and in the recording'
        for victim, pattern in zip(record.victims, found, strict=True):
            if pattern in _SEEN:
                seen = f'of agent {victim} {_SEEN[pattern]}; expected "none"'
                raise RunError("DPA065", f"{said} {seen}")
            sizes = [one.records for one in taken if one.agent == victim]
            spread = 2 * pi * sizes[0] * (1 - record.sampling_rate)
            equal = -0.5 * (len(sizes) - 1) * log(max(spread, 1.0))  # log of the chance of that
            if record.sampling == "poisson" and len(set(sizes)) == 1 and equal < log(CHANCE):
                raise RunError(
                    "DPA065",
                    f"{said} all {len(sizes)} batches of agent {victim} have {sizes[0]} records, "
                    'which batches of other sizes would hardly have; expected "fixed" or "none"',
                )
        return sampling

    @property
    def amplifies(self) -> bool:
        """Whether a record is stated to be in a batch by chance alone."""
        return self.stated in ("poisson", "fixed") and self.rate < 1

    def unknown(self, claim: Claim) -> str | None:
        """Why a claim has no verdict; None: it may have one."""
        if self.stated is not None or self.pattern in ("whole", "epochs"):
            return None
        if self.pattern == "random":
            seen = "the recording shows batches that do not pass over all records in turn"
        elif claim.scope == "run":
            seen = "the recording does not show it"
        else:
            return None
        return (
            "this claim has no verdict: how likely a record is in a batch is not stated, and "
            f'{seen}; state record.sampling ("none", "poisson" or "fixed")'
        )

    def premise(self, claim: Claim) -> str:
        """What a verdict on a claim rests on, as a sentence."""
        if self.unknown(claim) is not None:
            return ""
        if self.amplifies:
            how = "by itself" if self.stated == "poisson" else "in batches of fixed size"
            return (
                f"This assumes that a record is in a batch with probability {self.rate:g}, {how} "
                f'(record.sampling = "{self.stated}"); short runs, which hold the record or not, '
                "test no such claim."
            )
        if self.stated is not None:
            return (
                "This assumes that the adversary knows which batches hold the record "
                f'(record.sampling = "{self.stated}").'
            )
        if claim.scope != "run":
            return "This assumes that the adversary knows that the record is in the batch."
        return (
            "This assumes that the adversary knows which batches hold the record; in the recording "
            f"{_SEEN[self.pattern]}."
        )


def pattern_of(batches: Digests) -> Pattern:
    """How the batches of one agent are made, in the order in which it took them."""
    if len(batches) < 2 or any(len(set(batch)) < len(batch) for batch in batches):
        return "unknown"  # equal records cannot be distinguished
    if all(set(batch) == set(batches[0]) for batch in batches):
        return "whole"
    sizes, all_records = [len(batch) for batch in batches], set().union(*batches)
    if len(all_records) == sum(sizes):  # no record comes again
        even = max(sizes[:-1]) - min(sizes[:-1]) <= 1 and sizes[-1] <= max(sizes[:-1])
        return "unknown" if even else "random"
    *passes, last = _passes(batches)
    largest = max(sizes)
    if any(len(set().union(*one)) <= len(all_records) - largest for one in passes):
        return "random"  # a pass may drop less than a batch at its end
    n, logarithm = len(all_records), 0.0
    for one in (*passes, last):
        used = 0
        for batch in one:  # the chance that it has no record of those before
            logarithm += _log_choices(n - used, len(batch)) - _log_choices(n, len(batch))
            used += len(batch)
    return "epochs" if logarithm < log(CHANCE) else "unknown"


def _passes(batches: Digests) -> Iterator[Digests]:
    """Batches up to the one before a record comes again."""
    now: list[Sequence[str]] = []
    for batch in batches:
        if now and set().union(*now) & set(batch):
            yield now
            now = []
        now.append(batch)
    yield now


def _log_choices(n: int, k: int) -> float:
    if not 0 <= k <= n:
        return 0.0
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)
