"""What the declared noise lets through at most, beside an estimate of mutual information.

In round 1 the model is public and the same in all trials, so that a victim's gradient is a
function of its batch, and any view of it of what the victim releases of that batch. Later gradients
depend on the model too, and so on all noise before them, which a view may hold: an estimate of such
a round may exceed what the round adds, and is held against nothing.
"""

from math import inf
from typing import NamedTuple

from dpaudit.defense.contract import Defense, Setting
from dpaudit.files.finding import Metric, Name
from dpaudit.information.capacity import (
    of_bit_in_gaussian,
    of_bit_in_randomised_response,
    of_number_in_gaussian,
    of_pure_epsilon,
    of_vector_in_gaussian,
)

from .samples import Question


class Limits(NamedTuple):
    """Bits, at most; infinite without noise."""

    batch: float  # of the gradient of a whole batch
    number: float  # of one record that moves a message by a number within its sensitivity
    presence: float  # whether one record was used, a fair bit

    def metrics(self) -> dict[str, Metric]:
        return {
            Name.CAPACITY: Metric(value=self.batch),
            Name.CAPACITY_FOR_A_NUMBER: Metric(value=self.number),
            Name.CAPACITY_FOR_PRESENCE: Metric(value=self.presence),
        }


def limits(question: Question, defense: Defense, setting: Setting, n_heard: int) -> Limits | str:
    """Of as many rounds as are heard of one batch; or why no limit is known.

    A batch is a vector of as many clip norms as it has records, or of one where the whole is
    clipped. Releases of a round are taken to have the least noise of the run.
    """
    if question.private != "gradient":
        return f'none is derived for the private quantity "{question.private}"'
    if defense.batches_per_round > 1:
        return "none is derived for several batches in a round"
    if defense.function_distance() is not None or defense.clip_norm_in(1) is None:
        return "nothing bounds the norm of a gradient"
    releases = defense.mechanism(setting, question.threat_model, question.victim).most
    if not releases:
        return "the defense declares no release of it to this adversary"
    if any(release.noise_multiplier == 0 for release in releases):
        return Limits(inf, inf, inf)
    least = min(releases, key=lambda release: release.noise_multiplier)
    each = max(1, -(-sum(release.count for release in releases) // defense.n_rounds))
    n, mu = each * n_heard, 1 / least.noise_multiplier
    all_held = defense.drawing == "poisson"
    b = setting.sizes[question.victim] if all_held else defense.batch_size
    b = 1 if defense.protects == "user" else b
    if least.family == "laplace":
        one, whole = of_bit_in_randomised_response(mu), of_pure_epsilon(2 * b * mu)
        return Limits(n * whole, n * of_pure_epsilon(mu), n * one)
    together = n**0.5 * mu
    return Limits(
        n * of_vector_in_gaussian(setting.d, b * mu),
        of_number_in_gaussian(together),
        of_bit_in_gaussian(together),
    )


def beyond(known: Limits | str, low: float) -> tuple[str, ...]:
    """What it means if the lower end of the estimate of round 1 exceeds the limit of its batch."""
    if isinstance(known, str) or not low > known.batch:
        return ()
    return (
        f"beyond the noise: at least {low:.3g} bits in round 1, where the declared noise lets "
        f"{known.batch:.3g} through at most; this speaks against the noise",
    )


def about(known: Limits | str) -> str:
    """What the limits are, for a reader."""
    if isinstance(known, str):
        return f"no capacity of the noise beside the estimate: {known}"
    return (
        "capacity: what the declared noise lets through of the gradient of a batch at most, which "
        "limits the estimate in round 1; and of one record, a number or its presence; an estimate "
        "below them proves nothing"
    )
