"""The noise that a program really drew, by its own generators: repeats, and whether it is noise."""

from collections import defaultdict
from collections.abc import Collection, Sequence

import numpy as np
from scipy.special import ndtri

from dpaudit.accounting.privacy_loss import Array
from dpaudit.files.finding import Finding, Metric, Name, Role
from dpaudit.files.verdict import Verdict
from dpaudit.statistics.noise_tests import white_noise_test

from .runs import NamedDraw, ProgramRun

LEVEL = 1e-4  # of a false alarm about the noise of one program


def drawn_noise(
    plain: ProgramRun, sites: Sequence[str], same: Collection[str] = ()
) -> list[Finding]:
    """Whether the draws of a plain run are fresh, and of the law and scale that the program states.

    A draw of two numbers or more that equals another is repeated. Otherwise they are put in units
    of their scale, Laplace noise by its quantiles, and tested for N(0, 1): sizes, means and
    correlations, at ``LEVEL`` for all of a program together.

    Args:
        same: keys of draws that another agent makes too, in noise that both share; they are no
            further draws.
    """
    named = [d for d in plain.draws if not sites or d.name in sites]
    draws = [d for d in named if d.scale > 0 and d.key not in same]
    if not draws:
        return []
    repeated = _repeated(plain, draws)
    if repeated:
        what, p = f"{len(repeated)} draws repeat an earlier one: {repeated[0]}", 0.0
    else:
        what, p = _least_likely(plain, draws)
    odd = p < LEVEL
    return [
        Finding(
            role=Role.NOISE,
            kind="control",
            title=what if odd else "the noise that was drawn",
            world="defense",
            metrics={
                Name.P_VALUE: Metric(value=p, n=sum(len(plain.tape[d.key]) for d in draws)),
                Name.FOUND: Metric(value=len(repeated), n=len(draws)),
            },
            verdict=Verdict.UNSUPPORTED if odd else None,
            notes=(
                f"{len(draws)} draws of a run with the program's own generators, held against the "
                f"law and the scale that the program states, at level {LEVEL:g}",
            ),
        )
    ]


def _least_likely(plain: ProgramRun, draws: Sequence[NamedDraw]) -> tuple[str, float]:
    """The draw that looks least like its law, in which test, and the p-value of all together."""
    groups: dict[tuple[str, int], list[Array]] = defaultdict(list)
    for draw in draws:
        values = _standard(plain.tape[draw.key] / draw.scale, draw.family)
        groups[draw.name, len(values)].append(values)
    found = []
    for (name, n), group in groups.items():
        columns = np.stack(group, axis=1)  # one for each draw; those of a single number together
        found.append((name, *white_noise_test(columns.T if n == 1 else columns)))
    name, test, p = min(found, key=lambda one: one[2])
    return f'"{name}": {test}', min(1.0, len(found) * p)


def _standard(values: Array, family: str) -> Array:
    """Standard normal, if the law is as stated."""
    if family == "gaussian":
        return values
    upper = 0.5 * np.exp(-np.abs(values))  # the mass beyond
    return np.asarray(np.where(values > 0, -ndtri(upper), ndtri(upper)))


def _repeated(plain: ProgramRun, draws: Sequence[NamedDraw]) -> list[str]:
    """Draws whose numbers were all drawn before, by the same or another agent, in words."""
    first: dict[bytes, NamedDraw] = {}
    said = []
    for draw in draws:
        values = plain.tape[draw.key]
        if len(values) < 2:
            continue  # a single number in single precision may come twice
        seen = first.setdefault(values.tobytes(), draw)
        if seen is not draw:
            said.append(f'"{draw.name}" of agent {draw.agent} is that of agent {seen.agent} before')
    return said
