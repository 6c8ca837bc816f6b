"""What a reader must know beside the verdicts: claims and runs that say little."""

from collections.abc import Iterator, Mapping, Sequence
from math import log
from statistics import fmean

from dpaudit.defense.claim_accounting import claimed_epsilon
from dpaudit.defense.contract import Setting
from dpaudit.files.claim import Claim
from dpaudit.files.result import Curve, Note
from dpaudit.training.loaded_problem import LoadedProblem

ERRORS = 1e-6  # error rate of a guess between two equally likely worlds: nothing is hidden
DIVERGED = 1e3  # times the loss of the initial models
UNCHANGED = 1e-6  # relative to that loss: rounding in float32


def vacuous_notes(claims: Sequence[Claim], setting: Setting) -> Iterator[Note]:
    """A warning for each claim that a mechanism which hides nothing would keep to."""
    for claim in claims:
        epsilon = claimed_epsilon(claim)
        if epsilon > -log(ERRORS):
            yield Note(
                "DPA122",
                f'Claim "{claim.text}" promises next to nothing: epsilon {epsilon:.3g} allows an '
                f"adversary that takes one world for the other less than once in {1 / ERRORS:,.0f} "
                "guesses.",
            )
        of_records = claim.adjacency in ("add-remove", "replace-one")
        n = max(setting.sizes) if of_records else setting.n_agents
        if claim.delta >= 1 / n:
            what = "records of an agent" if of_records else "agents"
            yield Note(
                "DPA122",
                f'Claim "{claim.text}" promises little: delta {claim.delta:g} is 1 / {n} or more, '
                f"and whoever publishes one of the {n} {what}, drawn at random, keeps to it.",
            )


def problem_notes(learned: LoadedProblem) -> Iterator[Note]:
    """Which layers were replaced; and a warning where most records are copies of one another.

    What hides one copy hides none of the others.
    """
    if learned.dataset is None:
        return
    if learned.replaced:
        text = f"The model was fixed, each BatchNorm replaced: {'; '.join(learned.replaced)}."
        yield Note("DPA125", text)
    n, distinct = learned.n_records, learned.dataset.n_distinct
    if distinct <= n / 2:
        yield Note(
            "DPA126",
            f"Of {n} records {distinct} are distinct. A claim on one record covers one copy of "
            "it; what comes many times is as visible as all of its copies together.",
        )


def learning_notes(curves: Mapping[str, Curve]) -> Iterator[Note]:
    """A warning for each world whose loss exploded, or stayed what it was before round 1."""
    for world, curve in curves.items():
        before = fmean(curve.initial_loss) if curve.initial_loss else 0.0
        after = fmean(curve.loss[-1])
        if not before > 0:  # a result of before, or models that are perfect to begin with
            continue
        if not after <= DIVERGED * before:  # or is no number
            happened = f"diverged: its {curve.loss_is} went from {before:.3g} to {after:.3g}"
            remedy = "lower the learning rate, the clip norm or the noise"
        elif abs(after - before) <= UNCHANGED * before:
            happened = f"changed nothing: its {curve.loss_is} is {before:.3g} as before round 1"
            remedy = "raise the learning rate or the clip norm"
        else:
            continue
        yield Note(
            "DPA127",
            f'Training of "{world}" {happened}. That nothing is found on a run that learns nothing '
            f"speaks for no claim; {remedy}.",
        )
