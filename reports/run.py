"""One result as the templates ask for it: what of it is shown where, with pictures and drawings."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from markupsafe import Markup

from dpaudit.files.finding import Column, Finding, Metric, Name
from dpaudit.files.result import AuditResult, JudgedClaim, ThreatModelSummary

from .arrangement import (
    GroupKey,
    NumberedFinding,
    ReconstructionGroup,
    Telling,
    most_telling,
    scenarios,
    shared_notes,
)
from .figures.drawing import AXIS, GraphDrawing, graph_drawing, ssim_intervals, training_curve
from .figures.epsilon import Figure, accounting_figures, empirical_figures
from .figures.information import MessageInformation, estimates, information_by_round, leaks
from .figures.pictures import Picture, embedded
from .figures.search import search_by_iteration
from .figures.sensitivity import sensitivity_figures


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


def _row_label(key: GroupKey, with_attack: bool) -> str:
    attack = f"{key.attack}: " if with_attack else ""
    return f"{attack}{key.message}, batch size {key.batch_size}"
