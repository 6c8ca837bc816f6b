"""One self-contained HTML page from an audit.json: formatting, and no arithmetic beyond it.

The page loads nothing: style, drawings and images are inside it, it has no script, and its content
security policy forbids both. All text is escaped, and shows what is not seen.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dpaudit.errors import DpauditError
from dpaudit.files.finding import Column, Finding, Metric, Name, Role
from dpaudit.files.result import AuditResult, JudgedClaim, ThreatModelSummary
from dpaudit.files.verdict import MEANING
from dpaudit.text import lines

from .arrangement import (
    GroupKey,
    NumberedFinding,
    ReconstructionGroup,
    Telling,
    metric_names,
    most_telling,
    scenarios,
    shared_notes,
)
from .figures.drawing import AXIS, GraphDrawing, graph_drawing, ssim_intervals, training_curve
from .figures.epsilon import Figure, accounting_figures, empirical_figures
from .figures.information import (
    AskedMessage,
    MessageInformation,
    by_run,
    estimates,
    information_by_round,
    leaks,
)
from .figures.pictures import Picture, embedded
from .figures.search import search_by_iteration
from .figures.sensitivity import sensitivity_figures

TEMPLATES = Path(__file__).parent / "templates"
KINDS = (  # of findings besides reconstructions, in the page's order
    (
        "accounting",
        "Accounting",
        "What was claimed beside what the declared noise adds up to, and what the protocol's own "
        "algebra leaves of it; the notes are what that assumes.",
    ),
    (
        "empirical-epsilon",
        "Empirical epsilon",
        "Lower bounds on epsilon that attacks certify. The ceiling is the largest bound that a "
        "perfect attack could certify with as many trials.",
    ),
    (
        "sensitivity",
        "Sensitivity",
        "How far a message moves, before noise, when one record changes: a lower bound on its "
        "sensitivity, held against the stated one.",
    ),
    (
        "membership",
        "Membership",
        "Which records a batch held, told from the view. 0.5 is the area under the curve of a "
        "guess; a rate of true positives is worth what it exceeds the rate of false ones.",
    ),
    (
        "mutual-information",
        "Mutual information",
        "How much an adversary's view tells about the private quantity.",
    ),
    (
        "control",
        "Controls",
        "Whether the auditor is alive: a null control must find nothing, and a positive control, "
        "which leaks on purpose, must be found out.",
    ),
)
DECIMALS = ((0.01, 4), (2, 3), (10, 2), (100, 1))  # of an interval, where all is below the limit
METRIC_NAMES: Mapping[str, str] = {
    Name.SSIM: "SSIM",
    Name.SSIM_OVER_BLIND: "SSIM minus blind",
    Name.PSNR: "PSNR (dB)",
    Name.MSE: "MSE",
    Name.LOSS: "attacker's loss",
    Name.AUC: "AUC",
    Name.TPR_AT_0001: "TPR at 0.1% FPR",
    Name.TPR_AT_001: "TPR at 1% FPR",
    Name.INFORMATION: "information (bits)",
    Name.M_NMI: "M-NMI",
    Name.GAUSSIAN_INFORMATION: "if Gaussian (bits)",
    Name.SELF_INFORMATION: "self-information (bits)",
    Name.BASELINE: "shuffled (bits)",
}


def render(result: AuditResult, run_directory: Path) -> str:
    """One audit as one HTML page; an artifact that is missing is said to be, in its place.

    Args:
        result: what audit.json holds.
        run_directory: the folder to which the artifacts' paths in the findings are relative.

    Raises:
        DpauditError: an artifact's path leads out of the run directory.
    """
    page = _pages().get_template("audit.html.j2")
    return lines(page.render(run=Run("", 0, result, run_directory)))


def render_comparison(results: Sequence[tuple[str, AuditResult, Path]]) -> str:
    """Several audits, each (label, result, run directory), side by side as one HTML page.

    Raises:
        DpauditError: there are no results, or an artifact's path leads out of its run directory.
    """
    if not results:
        raise DpauditError("nothing to compare: expected at least one run")
    runs = [Run(label, i, result, path) for i, (label, result, path) in enumerate(results)]
    scored = ((s.key, k) for run in runs for s in run.scenarios if s.scored for k in s.rounds)
    rows = list(dict.fromkeys(scored))
    asked = by_run((run.label, run.entries("mutual-information")) for run in runs)
    information = [
        (question, found, information_by_round(found, f"budgets{i}", _asked(question)))
        for i, (question, found) in enumerate(asked.items())
    ]
    page = _pages().get_template("comparison.html.j2")
    return lines(page.render(runs=runs, rows=rows, information=information))


@dataclass(frozen=True)
class Run:
    """A result with its pictures and drawings, as the templates ask for them."""

    label: str
    number: int  # keeps the ids of several runs on one page apart
    result: AuditResult
    directory: Path

    @cached_property
    def pictures(self) -> dict[str, Picture]:
        paths = (path for f in self.result.findings for path in f.artifacts.values())
        return embedded(paths, self.directory)

    @cached_property
    def scenarios(self) -> list[ReconstructionGroup]:
        return scenarios(self.entries())

    @cached_property
    def telling(self) -> Telling | None:
        return most_telling(self.scenarios)

    @property
    def telling_leads(self) -> bool:
        """Whether that reconstruction is better than the best blind guess, beyond its error."""
        if self.telling is None:
            return False
        over = self.telling.entry.finding.metrics.get(Name.SSIM_OVER_BLIND)
        return over is not None and (over.low or 0) > 0

    @property
    def claimed(self) -> list[JudgedClaim]:
        """Each claim once, whoever it is made against."""
        return list({claim.claim: claim for claim in self.result.claims}.values())

    @property
    def claimed_against(self) -> list[str]:
        """The adversaries that claims are made against, in order."""
        return list(dict.fromkeys(claim.threat_model for claim in self.result.claims))

    def judged(self, claim: int, threat_model: str) -> list[JudgedClaim]:
        """A claim against an adversary: one, or none where it is not made against it."""
        cell = (claim, threat_model)
        return [c for c in self.result.claims if (c.claim, c.threat_model) == cell]

    def decisive_figures(self, claim: JudgedClaim) -> list[Figure]:
        """What there is to draw of the finding that decided on a claim."""
        findings, name = self.result.findings, f"run{self.number}-decisive"
        if claim.decisive is None:
            return []
        if findings[claim.decisive].kind == "sensitivity":
            return sensitivity_figures([findings[claim.decisive]], name)
        return empirical_figures([findings[i] for i in claim.because], name, self.claim_texts)[:1]

    @cached_property
    def shared_notes(self) -> list[str]:
        return shared_notes(self.scenarios)

    @property
    def picks_targets(self) -> bool:
        """Whether single targets are shown; findings of earlier versions name none."""
        return any(s.picks(k) for s in self.scenarios for k in s.rounds)

    @property
    def adversaries(self) -> list[str | None]:
        """Every threat model that reconstructions name, those of the result first."""
        known = dict.fromkeys(model.name for model in self.result.threat_models)
        return list(known | dict.fromkeys(scenario.key.threat_model for scenario in self.scenarios))

    def entries(self, kind: str | None = None) -> list[NumberedFinding]:
        found = (NumberedFinding(i, f) for i, f in enumerate(self.result.findings))
        return [entry for entry in found if kind in (None, entry.finding.kind)]

    def scenarios_of(self, adversary: str | None) -> list[ReconstructionGroup]:
        return [s for s in self.scenarios if s.key.threat_model == adversary]

    def claims_about(self, entry: NumberedFinding) -> list[JudgedClaim]:
        """The claims that a finding is held against."""
        claims = self.result.claims
        citing = [claim for claim in claims if entry.number in claim.because]
        return citing or [c for c in claims if c.threat_model == entry.finding.threat_model]

    def drawing(self, model: ThreatModelSummary) -> GraphDrawing:
        return graph_drawing(self.result.graph, model.links)

    def agents_of(self, model: ThreatModelSummary) -> tuple[int, ...]:
        """The agents that are the adversary, from the config; none for an eavesdropper."""
        models = self.configured("threat_model")
        models = [m for m in models if isinstance(m, Mapping)] if isinstance(models, list) else []
        named = [m.get("agents") for m in models if m.get("name") == model.name]
        agents = [agent for several in named if isinstance(several, list) for agent in several]
        return tuple(agent for agent in agents if isinstance(agent, int))

    def configured(self, *keys: str) -> Any:
        """A value of the config by its path; None where this result's config has no such key."""
        value: Any = self.result.config
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    def curves(self) -> list[Markup]:
        drawn = (training_curve(self.result.utility, q, f"run{self.number}-{q}") for q in AXIS)
        return [figure for figure in drawn if figure is not None]

    def figures_of(self, kind: str) -> list[Figure]:
        """What there is to draw of one kind of finding, each with its caption."""
        findings, name = self.result.findings, f"run{self.number}-{kind}"
        if kind == "accounting":
            return accounting_figures(findings, name)
        if kind == "empirical-epsilon":
            return empirical_figures(findings, name, self.claim_texts)
        return sensitivity_figures(findings, name) if kind == "sensitivity" else []

    def claim_of(self, finding: Finding) -> str:
        """The text of the claim that a finding bears on; "" where it bears on no single one."""
        return "" if finding.claim is None else self.claim_texts.get(finding.claim, "")

    @property
    def claim_texts(self) -> dict[int, str]:
        """The claims' own words, by their index."""
        return {claim.claim: claim.text for claim in self.result.claims}

    def controls_of(self, claim: JudgedClaim) -> list[NumberedFinding]:
        """The controls among a claim's evidence."""
        found = (NumberedFinding(i, self.result.findings[i]) for i in claim.because)
        return [entry for entry in found if entry.finding.kind == "control"]

    @property
    def leaks(self) -> list[MessageInformation]:
        """Findings on mutual information by adversary and message."""
        return leaks(self.entries("mutual-information"))

    def drawings_of(self, leak: MessageInformation) -> list[tuple[str, Markup]]:
        """What there is to draw of a message's information, each with its caption."""
        name = f"run{self.number}-leak{self.leaks.index(leak)}"
        about = f"{leak.message or 'a message'} read by {leak.threat_model or 'an adversary'}"
        first = f"Information by round, 95% interval over all rounds together: {about}"
        second = f"Best estimates on held-out trials, in the most telling round: {about}"
        drawn = (
            (first, information_by_round(leak.drawn(Column.ROUND), f"{name}-rounds", first)),
            (second, estimates(leak.drawn(Column.PRIVATE), f"{name}-estimates", second)),
        )
        return [(caption, figure) for caption, figure in drawn if figure is not None]

    def ssim_figure(self, adversary: str | None) -> Markup | None:
        """SSIM by message, batch size and round of all that one adversary reconstructed."""
        name = f"run{self.number}-ssim{self.adversaries.index(adversary)}"
        shown = [s for s in self.scenarios_of(adversary) if s.scored]
        several = len({scenario.key.attack for scenario in shown}) > 1
        groups = [
            (
                _row_label(s.key, with_attack=several),
                [(k, s.metric(Name.SSIM, k)) for k in s.rounds],
            )
            for s in shown
        ]
        return ssim_intervals(groups, name, f"SSIM of reconstructions by {adversary}")

    def search_figure(self, scenario: ReconstructionGroup) -> Markup | None:
        """How the searches of a scenario went, by iteration."""
        name = f"run{self.number}-search{self.scenarios.index(scenario)}"
        found = [entry.finding for entry in scenario.by_round]
        title = f"Loss and PSNR by iteration: {_row_label(scenario.key, with_attack=False)}"
        return search_by_iteration(found, name, title)

    def metric(self, key: GroupKey, round: int, name: str) -> dict[str, Metric]:
        """One metric of one scenario and round, by world; {} where this run has none."""
        return next((s.metric(name, round) for s in self.scenarios if s.key == key), {})


def number(x: float | None) -> str:
    """Three significant digits; what is whole or over 100 without decimals, up to a million."""
    if x is None:
        return "–"
    if math.isnan(x):
        return "undefined"
    if math.isinf(x):
        return "∞" if x > 0 else "−∞"
    if abs(x) < 1e6 and (abs(x) >= 100 or x == round(x)):
        return f"{x:z,.0f}".replace("-", "−")
    short = f"{x:.3g}"
    exact = float(short) == x  # 2.00 says that it is not quite 2
    return (short if exact else f"{x:#.3g}".rstrip(".")).replace("-", "−")


def estimate(metric: Metric) -> Markup:
    """A value and its interval, all with the same decimals."""
    ends = [end for end in (metric.low, metric.high) if end is not None]
    if not ends:
        return Markup(number(metric.value))
    finite = [abs(x) for x in (metric.value, *ends) if math.isfinite(x)]
    largest = max(finite, default=0.0)
    decimals = next((d for limit, d in DECIMALS if largest < limit), None)

    def shown(x: float | None) -> str:
        if x is None or not math.isfinite(x) or decimals is None or largest < 1e-3:
            return number(x)
        return f"{x:z.{decimals}f}".replace("-", "−")

    low, high = shown(metric.low), shown(metric.high)
    return Markup('{} <span class="interval">[{}, {}]</span>').format(
        shown(metric.value), low, high
    )


def span(metric: Metric) -> str:
    """A number that is known to lie in its interval, such as an accountant's epsilon."""
    low, high = number(metric.low), number(metric.high)
    if metric.low is None or metric.high is None or low == high:
        return number(metric.value)
    return f"{low} to {high}"


def metric_name(name: str) -> str:
    """A metric's name as a reader of papers knows it."""
    return METRIC_NAMES.get(name, name.replace("_", " "))


def _row_label(key: GroupKey, with_attack: bool) -> str:
    attack = f"{key.attack}: " if with_attack else ""
    return f"{attack}{key.message}, batch size {key.batch_size}"


def _asked(question: AskedMessage) -> str:
    who = question.threat_model or "an adversary"
    return f"Information by round under each defense: {question.message} read by {who}"


def as_json(config: object) -> str:
    return json.dumps(config, indent=2, ensure_ascii=False)


@cache
def _pages() -> Environment:
    pages = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters |= {
        "number": number,
        "estimate": estimate,
        "span": span,
        "metric_name": metric_name,
        "as_json": as_json,
        "is_infinite": math.isinf,
    }
    pages.globals |= {
        "css": Markup((TEMPLATES / "audit.css").read_text(encoding="utf-8")),
        "meaning": MEANING,
        "Role": Role,
        "kinds": KINDS,
        "metric_names": metric_names,
        "Name": Name,
    }
    return pages
