"""What runs are compared by: figures of claims and attacks, utility, keys of configs that differ.

The only arithmetic here is a difference from the baseline, and the mean over agents. What is void
in its own run is void here, too, and nothing is compared with it.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeGuard

from dpaudit.errors import shortened
from dpaudit.files.finding import Finding, Metric, Name, Role
from dpaudit.files.result import AuditResult, Curve, JudgedClaim

from .run import Run

HEADLINES: Mapping[Role, Name] = {  # what each kind of attack is measured by, more is worse
    Role.TEST: Name.EPSILON_LOWER_BOUND,
    Role.SENSITIVITY: Name.MEASURED_OVER_STATED,
    Role.RECONSTRUCTION: Name.SSIM_OVER_BLIND,
    Role.MEMBERSHIP: Name.AUC,
    Role.INFORMATION: Name.INFORMATION,
    Role.WHO_LEARNS_WHAT: Name.LARGEST_MU,
}
LONGEST = 80  # characters of a config's value
MACHINE = ("dpaudit", "python", "device", "data", "data_fingerprint", "n_records", "packages")


class Cell(NamedTuple):
    """One figure of a run; of a void one why it is, and its lower end."""

    metric: Metric | None
    void: str | None = None
    n: int = 1  # findings of which it is the largest

    @property
    def most(self) -> float | None:
        """What is compared: the upper end of what lies in an interval for certain."""
        return None if self.void or self.metric is None else self.metric.value


class ClaimFigures(NamedTuple):
    """A claim with what accounting, algebra, runs and the sensitivity check say of it."""

    claim: JudgedClaim
    accounted: Cell  # of one record over the whole run
    exact: Cell  # what the view leaks by the protocol's algebra
    certified: Cell
    ceiling: Cell
    sensitivity: Cell  # measured over stated


class AttackColumn(NamedTuple):
    """What one attack is measured by, against one adversary."""

    attack: str
    metric: Name
    threat_model: str | None


class FinalUtility(NamedTuple):
    """Mean over agents at the last evaluated round, from the lowest to the highest agent."""

    round: int
    loss: Metric
    loss_is: str
    accuracy: Metric | None
    consensus_distance: float


class Difference(NamedTuple):
    """A figure, and by how much it is above the baseline's; None where that says nothing."""

    name: str
    cell: Cell
    over_baseline: float | None


class KeyRow(NamedTuple):
    """A key of the configs, its value in each run, and which are not the baseline's."""

    key: str
    values: tuple[str | None, ...]
    differs: tuple[bool, ...]


@dataclass(frozen=True)
class ComparedRun:
    """A run as one of several."""

    run: Run
    is_baseline: bool

    @property
    def result(self) -> AuditResult:
        return self.run.result

    @property
    def void(self) -> str | None:
        """What falsifies a figure of some claim of this run; None: nothing here."""
        found = (c.accounted.void or c.exact.void for c in self.claims)
        return next((why for why in found if why), None)

    @cached_property
    def claims(self) -> list[ClaimFigures]:
        return [_figures(claim, self.result.findings) for claim in self.result.claims]

    @property
    def worst_accounted(self) -> ClaimFigures | None:
        """The claim whose record may lose most by accounting; None where none was accounted."""
        told = [c for c in self.claims if c.accounted.metric is not None]
        return max(told, key=lambda c: _size(c.accounted.metric), default=None)

    @property
    def certified(self) -> Cell:
        """The largest bound that runs certify, on whichever claim."""
        told = [c.certified for c in self.claims]
        return max(told, key=lambda cell: _size(cell.metric), default=Cell(None))

    @cached_property
    def utility(self) -> dict[str, FinalUtility]:
        """By world, of those that were evaluated."""
        return {w: _final(curve) for w, curve in self.result.utility.items() if curve.rounds}

    def attacked(self, column: AttackColumn) -> Cell:
        """The most that an attack found, over messages, rounds and batch sizes."""
        return _largest([f for f in self.result.findings if _column(f) == column], column.metric)

    def differences(self, baseline: "ComparedRun") -> list[Difference]:
        """Of what is measured once in a run."""
        own, theirs = self._once(), baseline._once()
        return [_difference(name, cell, theirs[name]) for name, cell in own.items()]

    def claim_differences(
        self, own: ClaimFigures, baseline: "ComparedRun"
    ) -> tuple[JudgedClaim | None, list[Difference]]:
        """The baseline's claim in the same place against the same adversary, and figures."""
        place = own.claim.claim, own.claim.threat_model
        same = (c for c in baseline.claims if (c.claim.claim, c.claim.threat_model) == place)
        theirs = next(same, None)
        figures = {} if theirs is None else _told(theirs)
        void = self.void or baseline.void
        found = [_difference(n, cell, figures.get(n)) for n, cell in _told(own).items()]
        if void:  # a bound certified on what is broken is no smaller leak
            found = [d._replace(over_baseline=None) for d in found]
        return (None if theirs is None else theirs.claim), found

    def _once(self) -> dict[str, Cell]:
        final = self.utility.get("defense")
        telling = None if self.run.telling is None else self.run.telling.entry.finding
        over = None if telling is None else telling.metrics.get(Name.SSIM_OVER_BLIND)
        return {
            "test accuracy": Cell(None if final is None else final.accuracy),
            "test loss": Cell(None if final is None else final.loss),
            "SSIM minus blind": Cell(over),
        }


def attack_columns(runs: Sequence[ComparedRun]) -> list[AttackColumn]:
    """Each attack against each adversary that some run has, attack by attack."""
    found = [c for run in runs for f in run.result.findings if (c := _column(f)) is not None]
    order = list(HEADLINES.values())
    return sorted(
        dict.fromkeys(found), key=lambda c: (order.index(c.metric), c.attack, c.threat_model or "")
    )


def differing_keys(runs: Sequence[ComparedRun], baseline: ComparedRun) -> list[KeyRow]:
    """The keys of the configs, and of what ran them, that are not the same in all runs."""
    tables = [dict(_keys_of(run.result)) for run in runs]
    theirs = tables[runs.index(baseline)]
    rows = []
    for key in dict.fromkeys(key for table in tables for key in table):
        values = tuple(table.get(key) for table in tables)
        if len(set(values)) > 1:
            differs = tuple(value != theirs.get(key) for value in values)
            rows.append(KeyRow(key, values, differs))
    return rows


def _keys_of(result: AuditResult) -> Iterator[tuple[str, str]]:
    yield from _flat(result.config, "")
    defense = result.config.get("defense")
    own = defense if isinstance(defense, Mapping) else {}
    set_later = {k: v for k, v in result.calibrated.items() if own.get(k) != v}
    yield from _flat(set_later, "as it ran: ")
    yield from _flat(result.provenance.model_dump(include={*MACHINE}), "run by: ")


def _flat(value: object, key: str) -> Iterator[tuple[str, str]]:
    """Every value by the path of its key; tables of an array by their names."""
    dot = "" if not key or key.endswith(": ") else "."
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _flat(part, f"{key}{dot}{name}")
    elif _is_tables(value):
        seen: dict[str, int] = {}
        for part in value:
            name = str(part.get("name", ""))
            seen[name] = seen.get(name, 0) + 1
            place = f"{name} {seen[name]}" if seen[name] > 1 or not name else name
            yield from _flat(part, f"{key}[{place.strip()}]")
    else:
        as_json = json.dumps(value, ensure_ascii=False, default=str)
        yield key, shortened(value if isinstance(value, str) else as_json, LONGEST)


def _is_tables(value: object) -> TypeGuard[Sequence[Mapping[str, object]]]:
    tables = isinstance(value, list | tuple) and all(isinstance(part, Mapping) for part in value)
    return tables and bool(value)


def _figures(claim: JudgedClaim, findings: Sequence[Finding]) -> ClaimFigures:
    evidence = [findings[i] for i in claim.because]
    restated = claim.restated
    tests = [f for f in evidence if f.role is Role.TEST]
    exact = _largest([f for f in evidence if f.role is Role.EXACT_LEAK], Name.EPSILON)
    moved = [
        f
        for f in findings
        if f.role is Role.SENSITIVITY and (f in evidence or f.adjacency in (None, claim.adjacency))
    ]
    return ClaimFigures(
        claim,
        Cell(restated.epsilon, restated.void) if restated else Cell(None),
        exact,
        _largest(tests, Name.EPSILON_LOWER_BOUND),
        _largest(tests, Name.CEILING),
        _largest(moved, Name.MEASURED_OVER_STATED),
    )


def _told(figures: ClaimFigures) -> dict[str, Cell]:
    claimed = figures.claim.epsilon
    return {
        "claimed epsilon": Cell(None if claimed is None else Metric(value=claimed)),
        "accounted, at most": _at_most(figures.accounted),
        "exact leak, at most": _at_most(figures.exact),
        "certified, at least": figures.certified,
        "measured over stated": figures.sensitivity,
    }


def _at_most(cell: Cell) -> Cell:
    """The upper end of a figure that is known to lie in an interval."""
    if cell.void or cell.metric is None or cell.metric.high is None:
        return cell
    return cell._replace(metric=Metric(value=cell.metric.high))


def _difference(name: str, own: Cell, theirs: Cell | None) -> Difference:
    here, there = own.most, None if theirs is None else theirs.most
    if here is None or there is None or not math.isfinite(here - there):
        return Difference(name, own, None)
    return Difference(name, own, here - there)


def _largest(findings: Sequence[Finding], name: Name) -> Cell:
    told = [f for f in findings if name in f.metrics]
    if not told:
        return Cell(None)
    most = max(told, key=lambda f: (f.void is not None, _size(f.metrics[name])))
    return Cell(most.metrics[name], most.void, len(told))


def _size(metric: Metric | None) -> float:
    """A metric to compare by: one that is missing or undefined is less than any other."""
    return -math.inf if metric is None or math.isnan(metric.value) else metric.value


def _column(finding: Finding) -> AttackColumn | None:
    metric = HEADLINES.get(finding.role)
    scored = metric in finding.metrics and finding.world in (None, "defense")
    if finding.attack is None or metric is None or not scored:
        return None
    return AttackColumn(finding.attack, metric, finding.threat_model)


def _final(curve: Curve) -> FinalUtility:
    accuracy = _over_agents(curve.accuracy[-1]) if curve.accuracy else None
    loss, distance = _over_agents(curve.loss[-1]), curve.consensus_distance[-1]
    return FinalUtility(curve.rounds[-1], loss, curve.loss_is, accuracy, distance)


def _over_agents(values: Sequence[float]) -> Metric:
    return Metric(value=sum(values) / len(values), low=min(values), high=max(values))
