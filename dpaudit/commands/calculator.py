"""`dpaudit epsilon`: what noise adds up to, without an audit."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Option

from dpaudit.errors import ConfigError
from dpaudit.text import at_least, at_most

from .terminal import say

if TYPE_CHECKING:
    from dpaudit.accounting.formulas import Tool
    from dpaudit.accounting.releases import RecordAdjacency
    from dpaudit.release import Release

DIGITS = 4  # digits of an end of the interval, rounded outwards
MOST_ROUNDS = 10**7
PRECISION = 1e-5  # relative, of a noise multiplier that is solved for
LEAST_NOISE, MOST_NOISE = 1e-3, 1e6  # range in which it is searched

Sampling = Literal["none", "poisson", "fixed"]  # ordered as elsewhere: typing keeps one order
Family = Literal["gaussian", "laplace"]

NoiseMultiplier = Annotated[
    float | None,
    Option(help="Standard deviation or Laplace scale of the noise over the sensitivity."),
]
TargetEpsilon = Annotated[
    float | None, Option(help="Solve for the noise multiplier that gives this epsilon.")
]
EventFile = Annotated[Path | None, Option(help="Account a DpEvent of dp-accounting, a JSON file.")]
Rounds = Annotated[str, Option(help="The number of rounds, as 1000 or 1e3; several with commas.")]


def _share(given: object) -> float:
    """A number, or one over another. Raises ValueError."""
    part, over, whole = str(given).partition("/")
    try:
        return float(part) / float(whole if over else 1)
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"expected a number, or one over another, got {given}") from None


Rate = Annotated[
    float,
    Option(parser=_share, help="The share of the records in a batch, as 0.01 or 256/60000."),
]
Drawn = Annotated[
    Sampling | None,
    Option(help="How batches are drawn; default: poisson, or none where the rate is 1."),
]
Like = Annotated[
    Literal["flower", "nvflare", "opacus", "p2pfl", "tf-privacy"] | None,
    Option(help="Print what the formulas of this tool give beside it."),
]
EventOutput = Annotated[
    Path | None, Option(help="Write the releases as a DpEvent of dp-accounting, JSON.")
]


def epsilon(
    noise_multiplier: NoiseMultiplier = None,
    target_epsilon: TargetEpsilon = None,
    event: EventFile = None,
    rate: Rate = 1.0,
    rounds: Rounds = "1",
    delta: Annotated[float, Option(help="The delta; 0 only for Laplace noise.")] = 1e-5,
    sampling: Drawn = None,
    adjacency: Annotated[
        Literal["add-remove", "replace-one"], Option(help="Which data sets are neighbours.")
    ] = "add-remove",
    family: Annotated[Family, Option(help="The distribution of the noise.")] = "gaussian",
    like: Like = None,
    write_event: EventOutput = None,
) -> None:
    """The epsilon that so much noise adds up to: an interval that is certain to hold it."""
    counts = _counts(rounds)
    drawn: Sampling = sampling or ("none" if rate == 1 else "poisson")
    _refuse(noise_multiplier, target_epsilon, event, rate, drawn, delta)
    from dpaudit.accounting import Release
    from dpaudit.accounting import epsilon as accounted
    from dpaudit.files import dp_event

    def released(count: int, noise: float) -> list[Release]:
        common: dict[str, Any] = {"family": family, "sampling": drawn, "sampling_rate": rate}
        return [Release(noise_multiplier=noise, count=count, **common)]

    several = [dp_event.read_event(event)] if event is not None else []
    for count in counts if event is None else ():
        noise = noise_multiplier
        if target_epsilon is not None:
            noise = _noise(partial(released, count), target_epsilon, delta, adjacency)
            say(f"noise multiplier {noise:.{DIGITS + 2}g} for epsilon {target_epsilon:g}:")
        several.append(released(count, noise or 0.0))
    for releases in several:
        low, high = accounted(releases, delta, adjacency)
        n = releases[0].count
        after = f" after {n:,} round{'s' * (n > 1)}" if len(counts) > 1 else ""
        at = f"at delta {delta:g} ({adjacency} adjacency, in nats)"
        say(f"epsilon {_interval(low, high)} {at}{after}")
        if like is not None:
            for line in _by_formulas(like, releases, delta, low, high):
                say(line)
    say(f"assuming {_assumed(several[-1], adjacency)}")
    if write_event is not None:
        dp_event.write_event(write_event, several[-1])


def _counts(rounds: str) -> list[int]:
    """The numbers of rounds. Raises ConfigError."""
    try:
        numbers = [float(part) for part in rounds.split(",")]
    except ValueError:
        numbers = [math.nan]
    if not all(1 <= number <= MOST_ROUNDS and number == int(number) for number in numbers):
        said = f'expected whole numbers from 1 to {MOST_ROUNDS:,} with commas, got "{rounds}"'
        raise ConfigError("DPA014", f"--rounds: {said}")
    return [int(number) for number in numbers]


def _noise(
    released: "Callable[[float], list[Release]]",
    target: float,
    delta: float,
    adjacency: "RecordAdjacency",
) -> float:
    """The least noise multiplier that certainly gives no more. Raises ConfigError: none does."""
    from dpaudit.accounting import epsilon as accounted

    def is_enough(noise: float) -> bool:
        return accounted(released(noise), delta, adjacency).high <= target

    low = high = 1.0
    while not is_enough(high) and high < MOST_NOISE:
        low, high = high, 2 * high
    while is_enough(low) and low > LEAST_NOISE:
        low, high = low / 2, low
    if not is_enough(high):
        said = f"no noise multiplier up to {MOST_NOISE:g} gives {target:g} at delta {delta:g}"
        raise ConfigError("DPA041", f"--target-epsilon: {said}")
    if is_enough(low):
        said = f"a noise multiplier of {LEAST_NOISE:g} gives less than {target:g} already"
        raise ConfigError("DPA041", f"--target-epsilon: {said}", "no smaller one is tried")
    while high > (1 + PRECISION) * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _assumed(releases: "Sequence[Release]", adjacency: str) -> str:
    """What an accounting of releases takes for granted, as a clause."""
    release = releases[0]
    batches = {
        "none": "every record in every round",
        "poisson": f"each record in a batch with probability {release.sampling_rate:g} (Poisson)",
        "fixed": f"batches of a fixed share of {release.sampling_rate:g} of the records",
    }[release.sampling]
    change = "added or removed" if adjacency == "add-remove" else "replaced by another"
    more = f"; and {len(releases) - 1} further kinds of release" if len(releases) > 1 else ""
    name, n = release.family.capitalize(), release.count
    fresh = "in one round" if n == 1 else f"fresh in each of {n:,} rounds"
    return (
        f"{batches}; {name} noise of {release.noise_multiplier:g} times the sensitivity to one "
        f"record added or removed, {fresh}; neighbours with one record {change}; exact "
        f"arithmetic{more}"
    )


def _by_formulas(
    tool: "Tool", releases: "Sequence[Release]", delta: float, low: float, high: float
) -> list[str]:
    """A line for each formula of a tool: what it gives, and on which side of the exact value."""
    from dpaudit.accounting.formulas import claimed

    lines = []
    for found, words in claimed(tool, releases, delta):
        side = "less" if found < low else "more" if found > high else "within the interval"
        lines.append(f"{tool} claims epsilon {found:.{DIGITS}g}, by {words}: {side}")
    return lines


def _refuse(
    noise_multiplier: float | None,
    target: float | None,
    event: Path | None,
    rate: float,
    sampling: Sampling,
    delta: float,
) -> None:
    """Raises ConfigError, with a line for each option that cannot be meant."""
    problems = []
    if sum(given is not None for given in (noise_multiplier, target, event)) != 1:
        problems.append("expected exactly one of --noise-multiplier, --target-epsilon and --event")
    if noise_multiplier is not None and not 0 <= noise_multiplier < math.inf:
        problems.append(
            f"--noise-multiplier: expected a finite number, 0 or more, got {noise_multiplier:g}"
        )
    if target is not None and not 0 < target < math.inf:
        problems.append(f"--target-epsilon: expected a finite number above 0, got {target:g}")
    if not 0 < rate <= 1:
        problems.append(f"--rate: expected above 0 and at most 1, got {rate:g}")
    elif sampling == "none" and rate != 1:
        problems.append(f"--rate: expected 1 with --sampling none, got {rate:g}")
    if not 0 <= delta < 1:
        problems.append(f"--delta: expected at least 0 and below 1, got {delta:g}")
    if problems:
        raise ConfigError("DPA014", "\n".join(problems))


def _interval(low: float, high: float) -> str:
    """An interval with few digits, rounded outwards."""
    least, most = at_least(low, DIGITS), at_most(high, DIGITS)
    return f"{low:.{DIGITS}g}" if low == high or least == most else f"between {least} and {most}"
