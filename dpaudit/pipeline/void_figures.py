"""Figures that rest on what the same audit falsifies: they are void, and shown as void."""

from collections.abc import Mapping, Sequence
from math import inf, nan
from typing import NamedTuple

from dpaudit.accounting.releases import Interval
from dpaudit.files.finding import Column, Finding, Metric, Name, Role
from dpaudit.files.verdict import Verdict
from dpaudit.statistics.bounds import p_value
from dpaudit.statistics.successes import EpsilonPromise, Successes
from dpaudit.text import apart

from .rules import ALPHA, Judging, epsilon_size

ROUNDING = 1e-6  # relative, between two accountants of the same releases
LIMITS = (  # upper ends that follow from what is declared
    Name.ACCOUNTING_ALLOWS,
    Name.CAPACITY,
    Name.CAPACITY_FOR_A_NUMBER,
    Name.CAPACITY_FOR_PRESENCE,
)


class Doubt(NamedTuple):
    """What speaks against the figures of a claim against an adversary."""

    why: str
    proven: float  # epsilon that this audit proves nevertheless
    of_algebra: bool  # whether the algebra of the view rests on what is falsified, too
    of_noise: bool = False  # whether even its lower end does


def void_figures(
    judgings: Sequence[Judging], findings: Sequence[Finding]
) -> tuple[list[Judging], list[Finding]]:
    """Take back each figure that the evidence beside it falsifies.

    What is declared is falsified by a sensitivity above its bound, by noise that is not what the
    defense asks for, by a view that leaks more by the protocol's own algebra, and by runs that
    certify more (all statements of the audit together err so with probability 5% at most). No upper
    end is left then, and as the lower end what this audit proves nevertheless. Of a final model it
    needs the algebra to show that the model and all messages together leak no more than is declared
    of messages.
    """
    said, left, falsified = list(findings), [], dict[str | None, str]()
    n_tests = sum(findings[i].role is Role.TEST for judging in judgings for i in judging.because)
    for judging in judgings:
        evidence = [findings[i] for i in judging.because]
        doubt = _doubt(evidence, n_tests, judging.threat_model.has_final_model)
        if doubt is not None:
            for i in judging.because:
                said[i] = _taken_back(said[i], doubt)
            judging = _restated(judging, doubt)
            falsified.setdefault(judging.threat_model.name, doubt.why)
        left.append(judging)
    said = [_without_limits(f, falsified.get(f.threat_model)) for f in said]
    doubted = [f for f in findings if f.claim is None and f.verdict is Verdict.UNSUPPORTED]
    why = next((why for f in doubted if (why := _falsified(f)) is not None), None)
    return left, said if why is None else [_without_mu(f, why) for f in said]


def _doubt(evidence: Sequence[Finding], n_tests: int, of_final_model: bool) -> Doubt | None:
    by_role: Mapping[Role, Finding] = {f.role: f for f in reversed(evidence)}
    exact, declared = by_role.get(Role.EXACT_LEAK), by_role.get(Role.DECLARED)
    against = [f for f in evidence if f.verdict is Verdict.UNSUPPORTED]
    why = next((why for f in against if (why := _falsified(f)) is not None), None)
    low = _least(exact)
    if why is not None:
        of_noise = any(f.role is Role.NOISE for f in against)
        known = exact is not None and exact.verdict is not None
        return Doubt(why, 0.0 if of_noise and not known else low, True, of_noise and not known)
    if declared is None:
        return None
    certified = max((_certified(f, _most(exact), n_tests) for f in evidence), default=0.0)
    if low > _most(declared) * (1 + ROUNDING):
        why = f"the noise that is really added leaves {'no bound' if low == inf else 'more'}"
        return Doubt(why, max(low, certified), certified > 0)
    certified = max((_certified(f, _most(declared), n_tests) for f in evidence), default=0.0)
    if certified > 0:
        return Doubt("runs certify more", certified, certified > _most(exact))
    if of_final_model and _most(exact) > _most(declared) * (1 + ROUNDING):
        return Doubt(
            "no algebra shows that the last model holds no more than messages do", low, False
        )
    quiet = next((f for f in against if Name.NOISE_OVER_NEEDED in f.metrics), None)
    if quiet is None:
        return None
    part = f"{quiet.value(Name.NOISE_OVER_NEEDED):.3g} of the noise that its stated bound needs"
    return Doubt(f'"{quiet.message}" carries {part}', low, of_algebra=False)


def _falsified(finding: Finding) -> str | None:
    """What an unsupported finding says of the bounds and the noise that figures rest on."""
    if finding.role is Role.SENSITIVITY and Name.NOISE_OVER_NEEDED in finding.metrics:
        return None  # it moves as is stated: the algebra is of that, and of the noise that there is
    if finding.role is Role.SENSITIVITY:
        ratio = finding.value(Name.MEASURED_OVER_STATED) or 0.0
        if ratio > 1 + ROUNDING:
            far = f"{apart(ratio, 1)} times as far as its noise is made for"
            return f'"{finding.message}" moves {far}'
        return f'"{finding.message}" moves with the data as no stated bound or noise covers'
    if finding.role is Role.DEPENDENCE:
        return "more than the values of messages depends on the data"
    if finding.role is Role.NOISE:
        return "the noise is not the independent noise that the defense asks for"
    return None


def _least(exact: Finding | None) -> float:
    """The lower end of what a view leaks by the protocol's algebra; infinite if noiseless."""
    if exact is None:
        return 0.0
    if exact.verdict is Verdict.REFUTED:
        return inf
    metric = exact.metrics.get(Name.EPSILON)
    return 0.0 if metric is None else float(metric.low or 0)


def _most(accounted: Finding | None) -> float:
    """The upper end of what accounting or the algebra gives; infinite without one."""
    metric = None if accounted is None else accounted.metrics.get(Name.EPSILON)
    return inf if metric is None or metric.high is None else float(metric.high)


def _certified(test: Finding, most: float, n_tests: int) -> float:
    """A bound that runs certify beyond ``most``, among all tests of the audit; else 0."""
    bound, delta, fp, fn = map(
        test.metrics.get,
        (Name.EPSILON_LOWER_BOUND, Name.DELTA, Name.FALSE_POSITIVES, Name.FALSE_NEGATIVES),
    )
    if test.role is not Role.TEST or bound is None or not bound.value > most:
        return 0.0
    if Column.LEVEL in test.series:
        by_level = zip(test.series[Column.LEVEL], test.series[Column.CERTIFIED], strict=True)
        proven = max((e for level, e in by_level if n_tests * level <= ALPHA), default=0.0)
        return float(bound.value) if proven > most else 0.0
    found = _successes_of(test)
    if found is not None and delta is not None:
        p = found.p_value(EpsilonPromise(most, delta.value))
        return float(bound.value) if n_tests * p <= ALPHA else 0.0
    if delta is None or fp is None or fn is None or fp.n is None or fn.n is None:
        return 0.0
    p = p_value(int(fp.value), int(fn.value), fp.n, fn.n, delta.value, most)
    return float(bound.value) if n_tests * p <= ALPHA else 0.0


def _successes_of(test: Finding) -> Successes | None:
    """What a test of reconstructions counted; None of any other test."""
    for share, blindly in (
        (Name.MATCHED, Name.MATCHED_BLINDLY),
        (Name.RECONSTRUCTED, Name.RECONSTRUCTED_BLINDLY),
    ):
        reached, kappa = test.metrics.get(share), test.value(blindly)
        if reached is not None and reached.n is not None and kappa is not None:
            hits = round(reached.value * reached.n)
            return Successes(hits, reached.n, kappa, apart=share is Name.MATCHED)
    return None


def _taken_back(finding: Finding, doubt: Doubt) -> Finding:
    """The finding of accounting, or of the algebra, without what is falsified."""
    metric = finding.metrics.get(Name.EPSILON)
    if metric is None or metric.low == inf:
        return finding
    if finding.role is Role.DECLARED:
        known = float(metric.low or 0) if finding.verdict is not None else 0.0
        low = max(known, doubt.proven)
        title = finding.title
    elif finding.role is Role.EXACT_LEAK and doubt.of_algebra:
        low = 0.0 if doubt.of_noise else float(metric.low or 0)
        title = "leak of the view"  # exact no longer
    else:
        return finding
    kept = {n: finding.metrics[n] for n in (Name.CLAIMED_EPSILON, Name.DELTA)}
    least = finding.releases.get("least")
    had_figure = (metric.low, metric.high) != (0.0, inf)
    said = (f"void: it would be epsilon {epsilon_size(metric)}, but {doubt.why}",) * had_figure
    unbounded = dict.fromkeys(finding.metrics, Metric(value=inf))
    return finding.model_copy(
        update={
            "metrics": unbounded | {Name.EPSILON: Metric(value=inf, low=low, high=inf)} | kept,
            "title": title,
            "void": doubt.why,
            "notes": (*said, *finding.notes),
            "series": {},
            "releases": {"least": least} if least and low == metric.low else {},
        }
    )


def _restated(judging: Judging, doubt: Doubt) -> Judging:
    """The claim in common terms, of which a record's own leak is the least."""
    restated = judging.restated
    if restated.epsilon.low == inf:
        return judging
    of_record = judging.claim.adjacency in ("add-remove", "replace-one")
    interval = Interval(doubt.proven if of_record else 0.0, inf)
    return judging._replace(restated=restated._replace(epsilon=interval), void=doubt.why)


def _without_limits(finding: Finding, why: str | None) -> Finding:
    """A finding of an attack, without the most that the declared noise would let through."""
    gone = [name for name in LIMITS if name in finding.metrics]
    if why is None or not gone:
        return finding
    series = finding.series
    if Column.ACCOUNTING_ALLOWS in series:
        unknown = (nan,) * len(series[Column.ACCOUNTING_ALLOWS])
        series = {**series, Column.ACCOUNTING_ALLOWS: unknown}
    return finding.model_copy(
        update={
            "metrics": {n: metric for n, metric in finding.metrics.items() if n not in gone},
            "series": series,
            "notes": (*finding.notes, f"void: {', '.join(gone)}, for {why}"),
        }
    )


def _without_mu(finding: Finding, why: str) -> Finding:
    """Who learns what, in any weather, without figures in units of a noise that is not there."""
    if finding.role not in (Role.WHO_LEARNS_WHAT, Role.WEATHER) or not finding.metrics:
        return finding
    kept = {n: m for n, m in finding.metrics.items() if n == Name.PAIRS_WITHOUT_NOISE}
    return finding.model_copy(
        update={
            "metrics": dict.fromkeys(finding.metrics, Metric(value=inf)) | kept,
            "void": why,
            "series": {},
        }
    )
