"""Whether a run had and learned anything, which whoever reads its numbers must know."""

from collections.abc import Iterator, Mapping
from statistics import fmean

from dpaudit.files.result import Curve
from dpaudit.training.loaded_problem import LoadedProblem

DIVERGED = 1e3  # times the loss of the initial models
UNCHANGED = 1e-6  # of that loss: rounding in float32


def problem_notes(learned: LoadedProblem) -> Iterator[str]:
    """Which layers were replaced; and a warning where most records are copies of one another.

    What hides one copy hides none of the others.
    """
    if learned.dataset is None:
        return
    if learned.replaced:
        yield f"The model was fixed, each BatchNorm replaced: {'; '.join(learned.replaced)}."
    n, distinct = learned.n_records, learned.dataset.n_distinct
    if distinct <= n / 2:
        yield (
            f"Of {n} records {distinct} are distinct. A claim on one record covers one copy of "
            "it; what comes many times is as visible as all of its copies together."
        )


def learning_notes(curves: Mapping[str, Curve]) -> Iterator[str]:
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
        yield (
            f'Training of "{world}" {happened}. That nothing is found on a run that learns nothing '
            f"speaks for no claim; {remedy}."
        )
