"""What leaked when a repository last agreed to it: small, reviewable, compared beyond its error.

A later check fails where a key metric moved to the worse at level alpha_i, after Holm over all
metrics of the file. The i-th distinct content that is compared, the baseline's own included, spends
alpha_i = alpha 6 / (pi^2 i^2); these sum to alpha over however many commits, and one that was
compared before spends nothing. docs/ci.md explains it.
"""

import json
import math
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import field_validator

from dpaudit.errors import ConfigError
from dpaudit.files.atomic_files import write_whole
from dpaudit.files.claims_file import Check, Threshold
from dpaudit.files.file_problems import read_model
from dpaudit.files.finding import Finding, Metric, Name, Role, canonical
from dpaudit.files.result import AuditResult, EpsilonRange, JudgedClaim
from dpaudit.files.verdict import AGAINST, Verdict
from dpaudit.statistics.p_values import Side, holm, p_worse
from dpaudit.strict import Strict
from dpaudit.version import __version__

from .changes import as_written, kept
from .evidence import Stake, claim_label

ALPHA = 0.005  # probability of a false alarm ever: 1 of 200 histories at most, not checks

# Which metrics say how much leaks, and on which side is more. Those whose error is unknown, such
# as a measured sensitivity, a maximum over what was tried, would cry wolf.
KEY_METRICS: Mapping[Role, Mapping[str, Side]] = {
    Role.DECLARED: {Name.EPSILON: "above"},
    Role.TEST: {Name.EPSILON_LOWER_BOUND: "above"},
    Role.RECONSTRUCTION: {
        Name.PSNR: "above",
        Name.SSIM: "above",
        Name.LABEL_ACCURACY: "above",
    },
    Role.TEXT_RECOVERY: {Name.TOKENS_RECOVERED: "above", Name.SEQUENCES_RECOVERED: "above"},
    Role.MEMBERSHIP: {Name.AUC: "above"},
    Role.TOPOLOGY: {Name.AUC: "above"},
    Role.INFORMATION: {Name.M_NMI: "above"},
}


class KeyMetric(NamedTuple):
    """A key metric of one finding."""

    label: str
    side: Side  # side on which more leaks
    exact: bool  # no estimate: a number of the accounting, which depends on the seed's partition
    metric: Metric

    def p_worse(self, before: Metric) -> float:
        """p-value of the hypothesis that it did not get worse; 1 if an estimate lacks its error."""
        has_errors = _has_error(self.metric) and _has_error(before)
        return p_worse(self.metric, before, self.side) if self.exact or has_errors else 1.0


class CheckBaseline(Strict):
    """One check as it was; labels end with the metric's name, as the vocabulary spells it."""

    config: str  # hash of the audit as it is written, without its seed
    written: dict[str, Any] | None = None  # that audit; None in older baselines, like the next two
    limits: tuple[Threshold, ...] | None = None
    significance: float | None = None
    seed: int
    claims: dict[str, str]  # claim, against whom: verdict
    ranges: dict[str, EpsilonRange] = {}  # keyed like these; empty in version 1
    metrics: dict[str, Metric]

    @field_validator("metrics", mode="after")
    @classmethod
    def _in_todays_spelling(cls, metrics: dict[str, Metric]) -> dict[str, Metric]:
        found = {}
        for label, metric in metrics.items():  # the metric's name is the last part of its label
            about, bar, name = label.rpartition(" | ")
            name, number, rest = name.partition(" (")
            found[f"{about}{bar}{canonical(name)}{number}{rest}"] = metric
        return found


class Contents(Strict):
    """Which contents were compared so far, in order; hashes."""

    alpha: float = ALPHA
    contents: tuple[str, ...] = ()

    @field_validator("alpha", mode="after")
    @classmethod
    def _no_baseline_asks_for_less(cls, alpha: float) -> float:
        if alpha != ALPHA:
            raise ValueError(f"expected {ALPHA:g}, at which every history is compared")
        return alpha

    def place(self, content: str) -> int:
        """1, 2, ...: the place of a content that was compared, or the next one."""
        known = content in self.contents
        return self.contents.index(content) + 1 if known else len(self.contents) + 1

    def level(self, content: str) -> float:
        """alpha_i of this content."""
        return self.alpha * 6 / (math.pi * self.place(content)) ** 2

    def with_(self, contents: Sequence[str]) -> "Contents":
        """The same with some contents behind, those that are new."""
        return self.model_copy(
            update={"contents": tuple(dict.fromkeys((*self.contents, *contents)))}
        )


class Baseline(Strict):
    """The file."""

    schema_version: Literal[2] = 2
    dpaudit: str = __version__
    checks: dict[str, CheckBaseline]
    ledger: Contents = Contents()
    evidence: tuple[Stake, ...] = ()  # against claims, in the order in which it came

    @classmethod
    def read(cls, path: Path) -> "Baseline":
        """Read one of this version, or of version 1, which had no ranges.

        Raises ConfigError if it is missing, damaged or of another schema version.
        """

        def newest(content: dict[str, Any]) -> dict[str, Any]:
            version = content.get("schema_version")
            if version not in (1, 2):
                raise ConfigError(
                    "DPA010",
                    f"{path}: schema_version {version!r}, this dpaudit reads versions 1 and 2; "
                    "write it anew with --update-baseline",
                )
            return {**content, "schema_version": 2}

        return read_model(path, cls, "a baseline", ConfigError, newest)

    def write(self, path: Path) -> None:
        """Write it whole or not at all. Raises RunError."""
        content = self.model_dump(mode="json", exclude_none=True)
        write_whole(path, f"{json.dumps(content, indent=2, sort_keys=True)}\n".encode())


def config_hash(audit: Mapping[str, Any]) -> str:
    """Hash of an audit as written, without its seed; only names of data files count."""
    text = json.dumps(as_written(audit), sort_keys=True, default=str)
    return sha256(text.encode()).hexdigest()[:16]


def check_baseline(
    audit: Mapping[str, Any], result: AuditResult, check: Check | None = None
) -> CheckBaseline:
    """What is kept of an audit and its result, and of the limits that a check has for it."""
    return CheckBaseline(
        config=config_hash(audit),
        written=kept(audit),
        limits=None if check is None else check.threshold,
        significance=None if check is None else check.significance,
        seed=result.provenance.seed,
        claims={label: claim.verdict for label, claim in labelled(result)},
        ranges={label: c.range for label, c in labelled(result) if c.range is not None},
        metrics={key.label: key.metric for key in key_metrics(result)},
    )


def labelled(result: AuditResult) -> list[tuple[str, JudgedClaim]]:
    """Each claim of a result with the label that it has in a baseline."""
    return [(claim_label(c.sentence, c.threat_model), c) for c in result.claims]


def other_verdicts(
    old: CheckBaseline, result: AuditResult
) -> list[tuple[JudgedClaim, str, EpsilonRange | None]]:
    """Claims that are supported now and were not, or that were and are no longer.

    With the verdict and the range that each had. Other changes are a matter of chance, and what
    speaks against a claim is a statement of its own.
    """
    return [
        (claim, before, old.ranges.get(label))
        for label, claim in labelled(result)
        if (before := old.claims.get(label, claim.verdict)) != claim.verdict
        and Verdict.SUPPORTED in (before, claim.verdict)
        and claim.verdict not in AGAINST
    ]


def key_metrics(result: AuditResult) -> list[KeyMetric]:
    """Every key metric of the findings on the defense, by a label that is its own."""
    found: dict[str, KeyMetric] = {}
    alike: dict[str, int] = {}  # the number that a label had last
    texts = {claim.claim: claim.text for claim in result.claims}
    for finding in result.findings:
        sides = KEY_METRICS.get(finding.role, {}) if finding.world in (None, "defense") else {}
        for name in (name for name in finding.metrics if name in sides):
            label = _unique(_label(finding, name, texts), found, alike)
            metric = finding.metrics[name]
            if finding.void is not None:
                metric = Metric(value=metric.value)  # neither end of it is certain
            found[label] = KeyMetric(label, sides[name], finding.role is Role.DECLARED, metric)
    return list(found.values())


class Worse(NamedTuple):
    """A key metric beside its baseline."""

    check: str
    label: str
    before: Metric
    now: Metric
    p: float  # adjusted for all that were compared


def compare(
    baseline: Baseline, results: Mapping[str, AuditResult], content: str
) -> tuple[list[Worse], int]:
    """The key metrics that got worse beyond their error, and how many were compared."""
    compared = [
        (name, key, old.metrics[key.label])
        for name, result in results.items()
        if (old := baseline.checks.get(name)) is not None
        for key in _comparable(old, result)
        if key.label in old.metrics
    ]
    random = [i for i, (_, key, _) in enumerate(compared) if not key.exact]
    p = [key.p_worse(before) for _, key, before in compared]
    for i, adjusted in zip(random, holm([p[i] for i in random]), strict=True):
        p[i] = adjusted
    level = baseline.ledger.level(content)
    worse = [
        Worse(name, key.label, before, key.metric, p_i)
        for (name, key, before), p_i in zip(compared, p, strict=True)
        if p_i <= level
    ]
    return worse, len(compared)


def not_compared(old: CheckBaseline, result: AuditResult) -> list[str]:
    """The labels that only one of a baseline and a result has, or an error of: a comparison that
    could be made, and is not."""
    now = {key.label: key.metric for key in _comparable(old, result)}
    every = {key.label for key in key_metrics(result)}
    return [
        *(label for label in now if label not in old.metrics),
        *(label for label in old.metrics if label not in every),
        *(
            label
            for label, metric in now.items()
            if label in old.metrics and _has_error(metric) != _has_error(old.metrics[label])
        ),
    ]


def _comparable(old: CheckBaseline, result: AuditResult) -> list[KeyMetric]:
    """The key metrics of a result; exact ones only where the partition is the same."""
    same_seed = old.seed == result.provenance.seed
    return [key for key in key_metrics(result) if same_seed or not key.exact]


def _has_error(metric: Metric) -> bool:
    known = metric.standard_error is not None or None not in (metric.low, metric.high)
    return known and (metric.n or 0) >= 2


def _label(finding: Finding, metric: str, texts: Mapping[int, str]) -> str:
    stated = None if finding.claim is None else texts.get(finding.claim)
    rounds = ",".join(str(k) for k in finding.rounds)
    parts = (
        finding.kind,
        finding.attack or stated,
        finding.message,
        finding.threat_model,
        f"round {rounds}" if rounds else None,
        f"batch {finding.batch_size}" if finding.batch_size else None,
        metric,
    )
    return " | ".join(part for part in parts if part)


def _unique(label: str, known: Mapping[str, Any], alike: dict[str, int]) -> str:
    n = alike.get(label, 0) + 1
    while (candidate := label if n == 1 else f"{label} ({n})") in known:
        n += 1
    alike[label] = n
    return candidate
