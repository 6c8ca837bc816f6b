"""From the audits of a claims file to what is said about each claim, limit and key metric."""

from collections.abc import Iterator, Mapping, Sequence
from math import exp, inf, isfinite
from typing import Literal, NamedTuple

from dpaudit.errors import ConfigError, Problem, nearest
from dpaudit.files.claims_file import (
    Check,
    ClaimsFile,
    Statement,
    StatementOutcome,
    Threshold,
    ThresholdSubject,
    name_of_figure,
)
from dpaudit.files.finding import Metric, Name, Role, canonical
from dpaudit.files.result import AuditResult, EpsilonRange, JudgedClaim
from dpaudit.files.verdict import Verdict
from dpaudit.statistics.p_values import Side, holm, p_beyond

from .baseline import Baseline, CheckBaseline, compare, not_compared, other_verdicts
from .changes import loosened
from .evidence import (
    AGAINST,
    AccumulatedEvidence,
    History,
    Stake,
    accumulated,
    by_history,
    stakes_of,
)

NOUNS = {"claim": "claims", "threshold": "thresholds", "evidence": "histories of claims"}
CONFIDENCE = 0.95  # assumed if a lower bound gives none
LOWER_BOUNDS = (
    Name.EPSILON_LOWER_BOUND,
    Name.EPSILON_OF_DECLARED_SHAPE,
    Name.MU_LOWER_BOUND,
    Name.MU_OF_WHOLE_CURVE,
)


class Tentative(NamedTuple):
    """A statement that is made anew if its p-value, adjusted for all of the file, is small."""

    statement: Statement  # the statement unless the test rejects
    p: float
    significance: float
    random: bool  # whether p comes from an estimate; what is exact needs no adjustment
    verdict: str  # if it rejects
    message: str


CODES = {"threshold": "DPA131", "baseline": "DPA132", "evidence": "DPA133"}


class _Speaker(NamedTuple):
    """Says what became of one check."""

    check: Check
    line: int  # line in the claims file
    result: AuditResult

    def says(
        self,
        about: Literal["claim", "threshold", "evidence", "baseline"],
        subject: tuple[str, str],
        outcome: StatementOutcome,
        verdict: str,
        message: str,
        code: str = "",
    ) -> Statement:
        """A statement about a claim, limit or metric, and an adversary or "".

        A claim's ``code`` is that of its reason; what else a check says has one of its own.
        """
        return Statement(
            check=self.check.name,
            about=about,
            subject=subject[0],
            adversary=subject[1],
            outcome=outcome,
            verdict=verdict,
            message=message,
            line=self.line,
            code=code or CODES[about],
        )

    def claim(self, claim: JudgedClaim) -> Tentative:
        """A refuted claim needs its p-value; an unsupported one is so by exact accounting.

        Several tests of one claim share its part, as where the audit judged it.
        """
        tests = [f for i in claim.because if (f := self.result.findings[i]).role is Role.TEST]
        p_values = [p for f in tests if (p := f.value(Name.P_VALUE)) is not None]
        against = claim.verdict in (Verdict.REFUTED, Verdict.UNSUPPORTED)
        if not against:
            p, random = 1.0, bool(p_values)
        elif claim.confidence is None:
            p, random = 0.0, False
        else:
            smallest = min(p_values, default=1 - claim.confidence)
            p, random = min(1.0, max(1, len(p_values)) * smallest), True
        message = (
            f'"{claim.sentence}" against adversary "{claim.threat_model}" is {claim.verdict}: '
            f"{claim.reason}{_range_and_premise(claim)}"
        )
        warns = against or claim.verdict is Verdict.UNDERPOWERED
        subject = (claim.sentence, claim.threat_model)
        code = claim.codes[0] if claim.codes else "DPA134"
        said = self.says(
            "claim", subject, "warning" if warns else "holds", claim.verdict, message, code
        )
        if against and claim.failed is not None:
            update = {"cause": claim.failed.says, "remedy": claim.remedy}
            said = said.model_copy(update={**update, "message": f"{claim.failed.says}. {message}"})
        return Tentative(said, p, self.check.significance, random, claim.verdict, said.message)

    def beside(self, claim: JudgedClaim, before: str, earlier: EpsilonRange | None) -> Statement:
        """A claim that had another verdict in the baseline, and the range that it had there."""
        subject, now = (claim.sentence, claim.threat_model), claim.verdict
        was = "" if earlier is None else f" with {earlier.sentence}"
        was = f"it is {now} and was {before} in the baseline{was}"
        about = f'"{claim.sentence}" against adversary "{claim.threat_model}" got'
        if now is Verdict.SUPPORTED:
            return self.says("baseline", subject, "holds", "better", f"{about} better: {was}")
        message = f"{about} worse: {was}. What is missing now: {claim.lacking}"
        return self.says("baseline", subject, "fails", "worse", message, "DPA142")

    def limits(self, threshold: Threshold) -> Iterator[Tentative]:
        """One test for each finding that a threshold selects and that has its metric."""
        measured = [*map(ThresholdSubject.of, self.result.findings), *_utility(self.result)]
        selected = [m for m in measured if threshold.selects(m)]
        if not selected:
            raise ConfigError("DPA050", _no_finding(threshold, self.result))
        name = canonical(threshold.metric)
        found = [(m, m.metrics[name]) for m in selected if name in m.metrics]
        if not found:
            known = sorted({name for m in selected for name in m.metrics})
            raise ConfigError(
                "DPA050",
                f'no finding has a metric "{threshold.metric}"{nearest(threshold.metric, known)}; '
                f"there are {'; '.join(known) or 'none'}",
            )
        for subject, metric in found:
            yield self._limit(threshold, subject, metric)

    def _limit(self, threshold: Threshold, measured: ThresholdSubject, metric: Metric) -> Tentative:
        side: Side = "below" if threshold.at_most is None else "above"
        limit, name = _limit_value(threshold, measured, self.result), canonical(threshold.metric)
        bounds = "at least" if side == "below" else "at most"
        subject = f"{_about(threshold, measured)} {bounds} {limit:g}"
        adversary = measured.threat_model or ""
        value = f"the value is {metric.value:.4g} ({_interval(metric)})"
        if measured.void is not None:
            least = f" (at least {metric.low:.4g})" if metric.low and isfinite(metric.low) else ""
            value = f"its figure is void, because {measured.void}{least}"
        where = f'{subject} against adversary "{adversary}"' if adversary else subject
        return Tentative(
            self.says(
                "threshold", (subject, adversary), "holds", "limit kept", f"{where}: {value}"
            ),
            _p_of_limit(threshold, measured, metric, limit, side),
            self.check.significance,
            metric.n is not None or _is_certified(name, metric, side),
            "limit broken",
            f"{where} is broken: {value}",
        )

    def loosened(self, old: CheckBaseline, file: ClaimsFile) -> Iterator[Statement]:
        """A warning of each limit that allows more than it did in the baseline, or is gone."""
        i = file.claims.check.index(self.check)
        for one in loosened(old.limits or (), old.significance, self.check):
            here = self
            if one.at is not None:
                here = self._replace(line=file.line(("check", i, "threshold", one.at)))
            message = (
                f"{one.sentence}. If that is intended, write a new baseline with --update-baseline"
            )
            subject, verdict = (
                (one.limit, ""),
                "limit gone" if one.now is None else "limit loosened",
            )
            yield here.says("baseline", subject, "warning", verdict, message, "DPA145")

    def together(self, history: History, found: AccumulatedEvidence) -> Tentative:
        """On one claim; ``found.p`` holds however many audits there will be."""
        sentence, _, adversary = history.claim.rpartition(AGAINST)
        claim = f'"{sentence}" against adversary "{adversary}"'
        together = f"by {found.n} audits with different seeds together ({history.attack})"
        wealth = exp(min(found.log_wealth, 700.0))
        won = f"bets against it reached a wealth of {wealth:.3g}, p = {found.p:.2g}"
        not_refuted = f"{claim} is not refuted {together}: {won}"
        subject = (sentence, adversary)
        return Tentative(
            self.says("evidence", subject, "holds", Verdict.NOT_REFUTED, not_refuted),
            found.p,
            self.check.significance,
            True,
            Verdict.REFUTED,
            f"{claim} is refuted {together}: {won}. If the cause has been fixed since, "
            "--update-baseline begins a new history.",
        )


def _range_and_premise(claim: JudgedClaim) -> str:
    """What is known of the claim's epsilon, and the first premise that is missing; or nothing."""
    if claim.range is None:
        return ""
    said = f" {claim.range.sentence[0].upper()}{claim.range.sentence[1:]}."
    if claim.missing and claim.failed is None:
        first = claim.missing[0]
        said += f" Missing premise: {first.name} ({first.status})."
    return said


def _speakers(file: ClaimsFile, results: Mapping[str, AuditResult]) -> list[_Speaker]:
    """Speakers for the checks that have a result."""
    checks = [(i, c) for i, c in enumerate(file.claims.check) if c.name in results]
    return [_Speaker(c, file.line(("check", i)), results[c.name]) for i, c in checks]


def not_checked(
    file: ClaimsFile, name: str, problem: Problem, about: Literal["audit", "threshold"] = "audit"
) -> Statement:
    """Why there is no outcome of a check, of a limit of it, or of a ledger."""
    lines = {one.name: file.line(("check", i)) for i, one in enumerate(file.claims.check)}
    lines |= {one.name: file.line(("ledger", i)) for i, one in enumerate(file.claims.ledger)}
    return Statement(
        check=name,
        about=about,
        subject=about,
        adversary="",
        outcome="error",
        verdict="not checked",
        message=problem.text,
        line=lines[name],
        code=problem.code,
        remedy=problem.help,
    )


def statements(file: ClaimsFile, results: Mapping[str, AuditResult]) -> list[Statement]:
    """Every claim and every limit of the file.

    Those that rest on estimates are adjusted by Holm's method, the claims among themselves and the
    limits among themselves.
    A threshold that fits no metric is one, too.
    """
    tested: list[Tentative] = []
    problems: list[Statement] = []
    for speaker in _speakers(file, results):
        tested += map(speaker.claim, speaker.result.claims)
        i = file.claims.check.index(speaker.check)
        for j, threshold in enumerate(speaker.check.threshold):
            key = ("check", i, "threshold", j)
            try:
                tested += speaker._replace(line=file.line(key)).limits(threshold)
            except ConfigError as error:
                for one in error.problems:
                    problem = file.located((*key, "metric"), one)
                    problems.append(not_checked(file, speaker.check.name, problem, "threshold"))
    return _decided(tested) + problems


def beside_baseline(
    file: ClaimsFile, results: Mapping[str, AuditResult], baseline: Baseline, content: str
) -> list[Statement]:
    """What got worse than the baseline, or cannot be compared; one statement where nothing did."""
    worse, compared = compare(baseline, results, content)
    level = baseline.ledger.level(content)
    found = []
    for speaker in _speakers(file, results):
        mine = [w for w in worse if w.check == speaker.check.name]
        for w in mine:
            message = (
                f"{name_of_figure(w.label)} got worse: it {_is(w.now)} and was "
                f"{_value(w.before)} in the baseline"
            )
            if w.p > 0:
                message += f"; adjusted p = {w.p:.2g}, level {level:.2g}"
            found.append(speaker.says("baseline", (w.label, ""), "fails", "worse", message))
        about = ("baseline", "")
        old = baseline.checks[speaker.check.name]
        found += [speaker.beside(*change) for change in other_verdicts(old, speaker.result)]
        found += speaker.loosened(old, file)
        if not mine:
            message = (
                f"no key metric got worse by more than its error: {compared} were compared at "
                f"level {level:.2g}"
            )
            found.append(speaker.says("baseline", about, "holds", "not worse", message))
        if left := not_compared(old, speaker.result):
            message = (
                f"{len(left)} key metrics were not compared: the baseline or this audit lacks them "
                f"or their errors ({'; '.join(left[:3])}{'; ...' if left[3:] else ''}). If that is "
                "intended, write a new baseline with --update-baseline"
            )
            found.append(speaker.says("baseline", about, "warning", "not compared", message))
    return found


def by_evidence(
    file: ClaimsFile,
    results: Mapping[str, AuditResult],
    configs: Mapping[str, str],
    stakes: Sequence[Stake],
) -> tuple[list[Statement], list[History]]:
    """What several audits say together of each claim that was bet against, and who is refuted.

    Args:
        configs: hash of each check's audit, without its seed.
        stakes: all evidence there is, that of these results in it.
    """
    tested: list[Tentative] = []
    histories: list[History] = []
    of_each = by_history(stakes)
    for speaker in _speakers(file, results):
        name = speaker.check.name
        for stake in stakes_of(name, configs[name], speaker.result):
            evidence = accumulated(of_each[stake.history], stake.history)
            if evidence.n > 1:
                tested.append(speaker.together(stake.history, evidence))
                histories.append(stake.history)
    found = _decided(tested)
    refuted = [h for h, s in zip(histories, found, strict=True) if s.outcome == "fails"]
    return found, refuted


def _decided(tested: Sequence[Tentative]) -> list[Statement]:
    adjusted = {i: t.p for i, t in enumerate(tested)}
    among = dict.fromkeys(adjusted, 1)
    for about in ("claim", "threshold", "evidence"):
        family = [i for i, t in enumerate(tested) if t.random and t.statement.about == about]
        adjusted |= zip(family, holm([tested[i].p for i in family]), strict=True)
        among |= dict.fromkeys(family, len(family))
    return [_decide(t, adjusted[i], among[i]) for i, t in enumerate(tested)]


def _decide(test: Tentative, adjusted: float, among: int) -> Statement:
    level = test.significance * (1 + 1e-9)  # 1 - 0.95 is above 0.05 by rounding
    if test.p > level:
        return test.statement
    outcome, message = "fails", test.message
    if adjusted > level:
        outcome = "warning"
        message += (
            f" Taken alone this is significant (p = {test.p:.2g}). Among the {among} "
            f"{NOUNS[test.statement.about]} that this file tests it is not, at significance "
            f"{test.significance:g} (adjusted p = {adjusted:.2g})."
        )
    update = {"outcome": outcome, "verdict": test.verdict, "message": message}
    return test.statement.model_copy(update=update)


def _p_of_limit(
    threshold: Threshold, measured: ThresholdSubject, metric: Metric, limit: float, side: Side
) -> float:
    """p-value of a certified bound from its error counts, else by ``p_beyond``."""
    if measured.void is not None:
        return p_beyond(Metric(value=metric.value), limit, side)  # no end of it is certain
    name = canonical(threshold.metric)
    if not _is_certified(name, metric, side):
        return p_beyond(metric, limit, side)
    if not metric.value > limit:
        return 1.0
    fp, fn, delta, confidence = map(
        measured.metrics.get,
        (Name.FALSE_POSITIVES, Name.FALSE_NEGATIVES, Name.DELTA, Name.CONFIDENCE),
    )
    if fp is not None and fn is not None and fp.n is not None and fn.n is not None:
        from dpaudit.statistics.bounds import mu_p_value, p_value

        counts = int(fp.value), int(fn.value), fp.n, fn.n
        if name == Name.EPSILON_LOWER_BOUND and delta is not None:
            return p_value(*counts, delta.value, limit)
        if name == Name.MU_LOWER_BOUND:
            return mu_p_value(*counts, limit)
    return 1 - (CONFIDENCE if confidence is None else confidence.value)


def _is_certified(name: str, metric: Metric, side: Side) -> bool:
    """Whether a limit is on a lower bound, which a test at some confidence certified."""
    return side == "above" and name in LOWER_BOUNDS and metric.low is None


def _limit_value(threshold: Threshold, measured: ThresholdSubject, result: AuditResult) -> float:
    if threshold.at_most != "claim":
        limit = threshold.at_most if threshold.at_most is not None else threshold.at_least
        assert isinstance(limit, float)
        return limit
    claimed = [
        c.epsilon
        for c in result.claims
        if c.epsilon is not None and measured.threat_model in (None, c.threat_model)
    ]
    if not claimed:
        raise ConfigError(
            "DPA050", f'at_most = "claim": no epsilon is claimed against "{measured.threat_model}"'
        )
    return min(claimed)


def _utility(result: AuditResult) -> Iterator[ThresholdSubject]:
    """What the curves end with: the mean over agents and their range."""
    for world, curve in result.utility.items():
        last = {Name.LOSS: curve.loss[-1:], Name.ACCURACY: curve.accuracy[-1:]}
        metrics: dict[str, Metric] = {
            name: Metric(value=sum(agents) / len(agents), low=min(agents), high=max(agents))
            for name, ends in last.items()
            for agents in ends
            if agents
        }
        for distance in curve.consensus_distance[-1:]:
            metrics[Name.CONSENSUS_DISTANCE] = Metric(value=distance)
        yield ThresholdSubject("utility", metrics, rounds=curve.rounds[-1:], world=world)


def _no_finding(threshold: Threshold, result: AuditResult) -> str:
    """Which selector fits nothing, with the nearest name."""
    asked = threshold.model_dump(exclude={"metric", "at_most", "at_least", "round", "world"})
    for field, word in asked.items():
        there = sorted({str(v) for f in result.findings if (v := getattr(f, field)) is not None})
        if word is not None and str(word) not in there:
            return (
                f'no finding has {field} = "{word}"{nearest(str(word), there)}; there are '
                f"{', '.join(there) or 'none'}"
            )
    rounds = sorted({k for f in result.findings for k in f.rounds})
    return f"no finding fits all that is given; there are rounds {', '.join(map(str, rounds))}"


def _about(threshold: Threshold, measured: ThresholdSubject) -> str:
    rounds = ", ".join(str(k) for k in measured.rounds)
    parts = (
        threshold.metric,
        f"of {measured.attack or measured.kind}",
        f"on {measured.message}" if measured.message else "",
        f"in round{'s' * (len(measured.rounds) > 1)} {rounds}" if rounds else "",
        f"at batch size {measured.batch_size}" if measured.batch_size else "",
    )
    return " ".join(part for part in parts if part)


def _is(metric: Metric) -> str:
    return "has no upper end" if metric.value == inf else f"is {_value(metric)}"


def _value(metric: Metric) -> str:
    """A figure, with its interval if it has one that says more."""
    value = f"{metric.value:.4g}"
    if metric.low is None or metric.high is None:
        return value
    ends = f"{metric.low:.4g} to {metric.high:.4g}"
    n = "" if metric.n is None else f", n = {metric.n}"
    return value if ends == f"{value} to {value}" and not n else f"{value} ({ends}{n})"


def _interval(metric: Metric) -> str:
    n = "" if metric.n is None else f", n = {metric.n}"
    if metric.low is None or metric.high is None:
        return f"no interval{n}"
    return f"{metric.low:.4g} to {metric.high:.4g}{n}"
