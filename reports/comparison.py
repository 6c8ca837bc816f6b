"""Several audits side by side as one HTML page.

The only arithmetic is a difference from the baseline and a mean over agents. A figure that is void
in its own audit is void here, too, and nothing is compared with it.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from dpaudit.errors import DpauditError, shortened
from dpaudit.files.finding import Metric, Name, Role
from dpaudit.files.result import AuditResult, JudgedClaim
from dpaudit.text import lines

from . import tables
from .figures.curves import training_by_run
from .figures.drawing import DrawnFigure
from .figures.information import Question, by_run, information_by_round
from .figures.privacy_utility import RunPoint, privacy_utility
from .html import pages
from .numbers import number
from .run import Run
from .tables import ClaimFigures, LargestFigure
from .texts import TextKey, TextScenario

ACCURACY = "test accuracy"
MOST_PICTURED = 8  # runs whose images and curves are shown: all are in the report of each run
HEADLINES: Mapping[Role, Name] = {  # kind of attack -> its main metric; more is worse
    Role.TEST: Name.EPSILON_LOWER_BOUND,
    Role.SENSITIVITY: Name.MEASURED_OVER_STATED,
    Role.RECONSTRUCTION: Name.SSIM_OVER_BLIND,
    Role.TEXT_RECOVERY: Name.TOKENS_RECOVERED,
    Role.MEMBERSHIP: Name.AUC,
    Role.TOPOLOGY: Name.AUC,
    Role.INFORMATION: Name.INFORMATION,
    Role.WHO_LEARNS_WHAT: Name.LARGEST_MU,
}
ROUNDING = 1e-9  # relative: two figures that are as near as this differ by rounding alone
LONGEST = 80  # characters of a config's value
MACHINE = ("dpaudit", "python", "device", "data", "data_fingerprint", "n_records", "packages")
CLAIM_COLUMNS = (  # columns of the table of differences, a row for each claim
    "claimed epsilon",
    "accounted, upper end",
    "exact leak, upper end",
    "certified, at least",
    "measured over stated",
)
RUN_COLUMNS = (ACCURACY, "test loss", "SSIM minus blind")  # of that table, once per run


class FinalUtility(NamedTuple):
    """Mean over agents at the last evaluated round, from the lowest to the highest agent."""

    round: int
    loss: Metric
    loss_is: str
    accuracy: Metric | None
    consensus_distance: float


Differences = list[tuple[LargestFigure, float | None]]  # a figure, and what it is above another


@dataclass(frozen=True)
class ComparedRun:
    """A run as one of several."""

    run: Run
    claims: list[ClaimFigures]
    is_baseline: bool = False

    @property
    def result(self) -> AuditResult:
        return self.run.result

    @property
    def void(self) -> bool:
        """Whether a figure of some claim of this run is falsified."""
        return any(c.accounted.void or c.exact.void for c in self.claims)

    @property
    def worst_accounted(self) -> LargestFigure:
        """The claim's whose record may lose most by accounting."""
        return _largest([c.accounted for c in self.claims])

    @property
    def certified(self) -> LargestFigure:
        """The largest bound that runs certify, on whichever claim."""
        return _largest([c.certified for c in self.claims])

    @cached_property
    def utility(self) -> dict[str, FinalUtility]:
        return final_utility(self.result)

    def differences(self, baseline: "ComparedRun") -> Differences:
        """The figures of ``RUN_COLUMNS``."""
        return _differences(self._once(), baseline._once())

    def claim_differences(
        self, own: ClaimFigures, baseline: "ComparedRun"
    ) -> tuple[JudgedClaim | None, Differences]:
        """The baseline's claim in the same place against the same adversary; ``CLAIM_COLUMNS``.

        A bound that is certified on a broken audit is no smaller leak: void is not compared. Nor
        are claims of another delta, scope or adjacency: epsilon falls as delta grows.
        """
        place = own.claim.claim, own.claim.threat_model
        same = (c for c in baseline.claims if (c.claim.claim, c.claim.threat_model) == place)
        theirs = next(same, None)
        alike = theirs is not None and is_alike(own.claim, theirs.claim)
        known = alike and not (self.void or baseline.void)
        found = _differences(_upper_ends(own), _upper_ends(theirs) if theirs and known else [])
        return (None if theirs is None else theirs.claim), found

    def _once(self) -> list[LargestFigure]:
        final, best = self.utility.get("defense"), self.run.most_revealing
        over = best and best.entry.finding.metrics.get(Name.SSIM_OVER_BLIND)
        metrics = (final and final.accuracy, final and final.loss, over)
        return [LargestFigure(metric) for metric in metrics]


def compared_runs(runs: Sequence[Run], baseline: int = 0) -> list[ComparedRun]:
    """Runs with the figures of their claims."""
    results = [run.result for run in runs]
    evidence = tables.evidence_frame(tables.findings_frame(results), results)
    claims = tables.claim_figures(evidence, results)
    return [
        ComparedRun(run, own, i == baseline)
        for i, (run, own) in enumerate(zip(runs, claims, strict=True))
    ]


def final_utility(result: AuditResult) -> dict[str, FinalUtility]:
    """By world, of those that were evaluated."""
    return {
        world: FinalUtility(
            curve.rounds[-1],
            _over_agents(curve.loss[-1]),
            curve.loss_is,
            _over_agents(curve.accuracy[-1]) if curve.accuracy else None,
            curve.consensus_distance[-1],
        )
        for world, curve in result.utility.items()
        if curve.rounds
    }


def render_comparison(results: Sequence[tuple[str, AuditResult, Path]], baseline: int = 0) -> str:
    """Several audits, each (label, result, run directory), side by side as one HTML page.

    Args:
        baseline: index of the run that the others are held against.

    Raises:
        DpauditError: there are no results, or an artifact's path leads out of its run directory.
    """
    if not results:
        raise DpauditError("DPA050", "nothing to compare: expected at least one run")
    of_runs = [Run(label, i, result, path) for i, (label, result, path) in enumerate(results)]
    runs = compared_runs(of_runs, baseline)
    scored = ((s.key, k) for run in of_runs for s in run.scenarios if s.scored for k in s.rounds)
    quantity, points = _points(runs)
    attacked = _attacked([run.result for run in runs])
    order = list(HEADLINES.values())
    columns = sorted(
        {column for _, column in attacked},
        key=lambda c: (order.index(c.metric), c.attack, c.threat_model or ""),
    )
    pictured = len(runs) <= MOST_PICTURED
    trained = {f"{r.number + 1} {r.label}": r.result.utility.get("defense") for r in of_runs}
    curves = {name: curve for name, curve in trained.items() if curve is not None}
    template = pages().get_template("comparison.html.j2")
    page = template.render(
        runs=runs,
        baseline=runs[baseline],
        attacked_most=attacked,
        columns=columns,
        keys=differing_keys(runs),
        rows=list(dict.fromkeys(scored)),
        texts=_texts(of_runs),
        information=_information(of_runs),
        scatter=privacy_utility(points, "privacy-utility", "Privacy against utility", quantity),
        quantity=quantity,
        left_out=[run for run in runs if run.run.number + 1 not in {p.number for p in points}],
        pictured=pictured,
        courses=training_by_run(curves, quantity == ACCURACY, "courses") if pictured else None,
        signed=signed,
        is_alike=is_alike,
        claim_columns=CLAIM_COLUMNS,
        run_columns=RUN_COLUMNS,
    )
    return lines(page)


def is_alike(one: JudgedClaim, other: JudgedClaim) -> bool:
    """Whether epsilon means the same for two claims, so that one may be subtracted."""
    units = [
        (c.scope, c.adjacency, c.delta if c.mu is None else None, c.restated and c.restated.delta)
        for c in (one, other)
    ]
    return units[0] == units[1]


def signed(difference: float) -> str:
    """A difference with its sign, in three digits."""
    sign = "+" if difference > 0 else "±" if difference == 0 else ""
    return f"{sign}{number(difference)}"


class AttackColumn(NamedTuple):
    """What one attack is measured by, against one adversary."""

    attack: str
    metric: Name
    threat_model: str | None


def _attacked(results: Sequence[AuditResult]) -> dict[tuple[int, AttackColumn], LargestFigure]:
    """By run and column the most that an attack found, over messages, rounds and batch sizes."""
    frame = tables.of_the_defense(tables.findings_frame(results))
    scored = frame[frame.attack.notna() & (frame.metric == frame.role.map(HEADLINES))]
    found = tables.largest_figures(scored, results, ["run", "attack", "metric", "threat_model"])
    return {(run, AttackColumn(*which)): figure for (run, *which), figure in found.items()}


def _largest(figures: Sequence[LargestFigure]) -> LargestFigure:
    """The largest that is there and a number."""

    def size(figure: LargestFigure) -> float:
        value = math.nan if figure.metric is None else figure.metric.value
        return -math.inf if math.isnan(value) else value

    return max(figures, key=size, default=LargestFigure())


def _upper_ends(figures: ClaimFigures) -> list[LargestFigure]:
    """What ``CLAIM_COLUMNS`` name: of what is known to lie in an interval its upper end."""
    claimed = figures.claim.epsilon
    found = [LargestFigure(None if claimed is None else Metric(value=claimed))]
    for figure in (figures.accounted, figures.exact):
        metric = figure.metric
        if metric is not None and metric.high is not None and not figure.void:
            figure = figure._replace(metric=Metric(value=metric.high))
        found.append(figure)
    return [*found, figures.certified, figures.sensitivity]


def _differences(own: Sequence[LargestFigure], theirs: Sequence[LargestFigure]) -> Differences:
    """None where there is nothing to compare with, or the difference is no number."""
    found: Differences = []
    for figure, other in zip_longest(own, theirs, fillvalue=LargestFigure()):
        here, there = figure.compared, other.compared
        over = math.nan if here is None or there is None else here - there
        if here is not None and there is not None and math.isclose(here, there, rel_tol=ROUNDING):
            over = 0.0
        found.append((figure, over if math.isfinite(over) else None))
    return found


def differing_keys(runs: Sequence[ComparedRun]) -> dict[str, list[str | None]]:
    """The keys of the configs, and of what ran them, that are not the same in all runs."""
    tables = [dict(_keys_of(run.result)) for run in runs]
    names = dict.fromkeys(key for table in tables for key in table)
    values = {key: [table.get(key) for table in tables] for key in names}
    return {key: own for key, own in values.items() if len(set(own)) > 1}


def _keys_of(result: AuditResult) -> Iterator[tuple[str, str]]:
    yield from _flat(result.config, "")
    defense = result.config.get("defense")
    own = defense if isinstance(defense, Mapping) else {}
    set_later = {k: v for k, v in result.calibrated.items() if own.get(k) != v}
    yield from _flat(set_later, "as it ran: ")
    yield from _flat(result.provenance.model_dump(include={*MACHINE}), "run by: ")


def _flat(value: object, key: str) -> Iterator[tuple[str, str]]:
    """Every value by the path of its key; tables of an array by their names."""
    if isinstance(value, Mapping):
        dot = "" if not key or key.endswith(": ") else "."
        for name, part in value.items():
            yield from _flat(part, f"{key}{dot}{name}")
    elif isinstance(value, list | tuple) and value and all(isinstance(v, Mapping) for v in value):
        names = [str(part.get("name", "")) for part in value]
        for i, (name, part) in enumerate(zip(names, value, strict=True)):
            n = names[: i + 1].count(name)
            yield from _flat(part, f"{key}[{f'{name} {n}'.strip() if n > 1 or not name else name}]")
    else:
        as_json = json.dumps(value, ensure_ascii=False, default=str)
        yield key, shortened(value if isinstance(value, str) else as_json, LONGEST)


def _over_agents(values: Sequence[float]) -> Metric:
    return Metric(value=sum(values) / len(values), low=min(values), high=max(values))


def _points(runs: Sequence[ComparedRun]) -> tuple[str, list[RunPoint]]:
    """What utility is measured by, and the runs that have both that and accounting."""
    finals = [final for run in runs if (final := run.utility.get("defense")) is not None]
    by_accuracy = all(final.accuracy for final in finals)
    loss_is = finals[0].loss_is if finals else "test loss"
    points = []
    for run in runs:
        final, epsilon = run.utility.get("defense"), run.worst_accounted.metric
        utility = final and (final.accuracy if by_accuracy else final.loss)
        if epsilon is not None and utility and math.isfinite(utility.value):
            about = run.run.number + 1, run.run.label, run.result.verdict
            points.append(RunPoint(*about, epsilon, run.certified.compared, utility))
    return ACCURACY if by_accuracy else loss_is, points


def _texts(runs: Sequence[Run]) -> dict[TextKey, dict[int, TextScenario]]:
    """What was recovered from each message, by the number of the run."""
    found: dict[TextKey, dict[int, TextScenario]] = {}
    for run in runs:
        for scenario in run.texts:
            found.setdefault(scenario.key, {})[run.number] = scenario
    return found


def _information(runs: Sequence[Run]) -> list[tuple[Question, dict, DrawnFigure | None]]:
    asked = by_run((run.label, run.entries("mutual-information")) for run in runs)
    found = []
    for i, (question, findings) in enumerate(asked.items()):
        message, adversary = question
        read = f"{message} read by {adversary or 'an adversary'}"
        title = f"Information by round under each defense: {read}"
        found.append((question, findings, information_by_round(findings, f"budgets{i}", title)))
    return found
