"""`dpaudit epsilon`: what noise adds up to, without an audit."""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import Annotated, Literal

from typer import Option

from dpaudit.errors import ConfigError

from .terminal import say

DIGITS = 4  # of an end of the interval, rounded outwards
MOST_ROUNDS = 10**7

Sampling = Literal["poisson", "fixed", "none"]


def epsilon(
    noise_multiplier: Annotated[
        float,
        Option(help="Standard deviation or Laplace scale of the noise over the sensitivity."),
    ],
    rate: Annotated[float, Option(help="The share of the records that is in a batch.")] = 1.0,
    rounds: Annotated[int, Option(min=1, max=MOST_ROUNDS, help="The number of rounds.")] = 1,
    delta: Annotated[float, Option(help="The delta; 0 only for Laplace noise.")] = 1e-5,
    sampling: Annotated[
        Sampling | None,
        Option(help="How batches are drawn; default: poisson, or none where the rate is 1."),
    ] = None,
    adjacency: Annotated[
        Literal["add-remove", "replace-one"], Option(help="Which data sets are neighbours.")
    ] = "add-remove",
    family: Annotated[
        Literal["gaussian", "laplace"], Option(help="The distribution of the noise.")
    ] = "gaussian",
) -> None:
    """The epsilon that so much noise adds up to: an interval that is certain to hold it."""
    drawn: Sampling = sampling or ("none" if rate == 1 else "poisson")
    _refuse(noise_multiplier, rate, drawn, delta)
    from dpaudit.accounting import Release
    from dpaudit.accounting import epsilon as accounted

    release = Release(
        family=family,
        noise_multiplier=noise_multiplier,
        sampling=drawn,
        sampling_rate=rate,
        count=rounds,
    )
    low, high = accounted([release], delta, adjacency)
    say(f"epsilon {_interval(low, high)} at delta {delta:g} ({adjacency} adjacency, in nats)")


def _refuse(noise_multiplier: float, rate: float, sampling: Sampling, delta: float) -> None:
    """Raises ConfigError, with a line for each option that cannot be meant."""
    problems = []
    if not 0 <= noise_multiplier < math.inf:
        problems.append(f"--noise-multiplier: expected at least 0, got {noise_multiplier:g}")
    if not 0 < rate <= 1:
        problems.append(f"--rate: expected above 0 and at most 1, got {rate:g}")
    elif sampling == "none" and rate != 1:
        problems.append(f"--rate: expected 1 with --sampling none, got {rate:g}")
    if not 0 <= delta < 1:
        problems.append(f"--delta: expected at least 0 and below 1, got {delta:g}")
    if problems:
        raise ConfigError("DPA014", "\n".join(problems))


def _interval(low: float, high: float) -> str:
    """With few digits, never rounded to the wrong side."""
    if low == high:
        return f"{low:.{DIGITS}g}"
    ends = (low, ROUND_FLOOR), (high, ROUND_CEILING)
    least, most = (Context(DIGITS, side).create_decimal_from_float(x) for x, side in ends)
    return f"between {float(least):g} and {float(most):g}"
