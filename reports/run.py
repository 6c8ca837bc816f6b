"""One result as the templates ask for it: what of it is shown where, with pictures and drawings."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from markupsafe import Markup

from dpaudit.files.finding import Column, Finding, Metric, Name, Role
from dpaudit.files.result import AuditResult, JudgedClaim, ThreatModelSummary

from .arrangement import (
    GroupKey,
    NumberedFinding,
    ReconstructionGroup,
    Telling,
    group_key,
    most_telling,
    scenarios,
    shared_notes,
)
from .figures.curves import AXIS, training_curve
from .figures.drawing import Drawn
from .figures.epsilon import accounting_figures, empirical_figures
from .figures.graph import GraphDrawing, graph_drawing
from .figures.information import MessageInformation, estimates, information_by_round, leaks
from .figures.pictures import Picture, embedded
from .figures.reconstructed_share import share_figures
from .figures.search import search_by_iteration
from .figures.sensitivity import sensitivity_figures
from .figures.ssim import Scored, ssim_intervals
from .links import claim_links, finding_links
from .tables import CROWD, Row, by_world, metrics, training, training_of_many


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

    def decisive_figures(self, claim: JudgedClaim) -> list[Drawn]:
        """What there is to draw of the finding that decided on a claim."""
        findings, name = self.result.findings, f"run{self.number}-decisive"
        if claim.decisive is None:
            return []
        if findings[claim.decisive].kind == "sensitivity":
            return sensitivity_figures([findings[claim.decisive]], name)
        evidence = [findings[i] for i in claim.because]
        return [*islice(empirical_figures(evidence, name, self.claim_texts), 1)]

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

    @cached_property
    def finding_links(self) -> list[str]:
        """By index, the name under which a link finds it."""
        return finding_links(self.result.findings, self.result.claims)

    @cached_property
    def claim_links(self) -> list[str]:
        """By index, the name under which a link finds it."""
        return claim_links(self.result.claims)

    @cached_property
    def choices(self) -> dict[str, dict[str, str]]:
        """What a reader can choose to see alone, by what the page marks with it."""
        rounds = sorted({k for s in self.scenarios for k in s.rounds})
        return {
            "adversary": {str(i): name for i, name in enumerate(self.named)},
            "claim": {str(claim.claim): claim.sentence for claim in self.claimed},
            "round": {str(k): str(k) for k in rounds},
            "agent": {str(i): str(i) for i in range(self.result.graph.n_agents)},
        }

    @cached_property
    def named(self) -> list[str]:
        """Every adversary by its name."""
        models = [model.name for model in self.result.threat_models]
        found = (f.threat_model for f in self.result.findings if f.threat_model)
        return list(dict.fromkeys([*models, *found]))

    def who(self, adversary: str | None) -> str:
        """An adversary as the page marks what is about it."""
        return self._numbers.get(adversary, "")

    @cached_property
    def _numbers(self) -> dict[str | None, str]:
        return {name: str(i) for i, name in enumerate(self.named)}

    def about(self, finding: Finding) -> Markup:
        """What a row is about, for those who choose what they see."""
        marks = {
            "adversary": self.who(finding.threat_model),
            "claim": "" if finding.claim is None else str(finding.claim),
            "round": " ".join(map(str, finding.rounds)) if finding.kind == "reconstruction" else "",
        }
        return Markup("").join(
            Markup(' data-{}="{}"').format(key, value) for key, value in marks.items() if value
        )

    def victims_of(self, model: ThreatModelSummary) -> set[int]:
        """The agents whose records an adversary tried to reconstruct."""
        own = (f for f in self.result.findings if f.threat_model == model.name)
        return {int(agent) for f in own for agent in f.series.get(Column.VICTIM, ())}

    @cached_property
    def learnt(self) -> dict[int, str]:
        """By agent, how much each other one learns of it, in their order; {} where it is unknown.

        Nothing of a result with several such findings, or of one that is void.
        """
        found = [f for f in self.result.findings if f.role is Role.WHO_LEARNS_WHAT and f.series]
        if len(found) != 1:
            return {}
        series, agents = found[0].series, range(self.result.graph.n_agents)
        columns = (series.get(name, ()) for name in (Column.ADVERSARY, Column.VICTIM, Column.MU))
        mu = {(int(a), int(v)): f"{x:.4g}" for a, v, x in zip(*columns, strict=True)}
        return {v: " ".join(mu.get((a, v), "nan") for a in agents) for v in agents}

    @property
    def bare_drawing(self) -> GraphDrawing:
        return graph_drawing(self.result.graph, ())

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

    @property
    def is_crowded(self) -> bool:
        """Whether there are too many agents to show each."""
        return self.result.graph.n_agents > CROWD

    def training(self) -> list[Row]:
        return list((training_of_many if self.is_crowded else training)(self.result))

    def curves(self) -> list[Markup]:
        drawn = (training_curve(self.result.utility, q, f"run{self.number}-{q}") for q in AXIS)
        return [figure for figure in drawn if figure is not None]

    def figures_of(self, kind: str) -> list[Drawn]:
        """What there is to draw of one kind of finding, each with its caption."""
        findings, name = self.result.findings, f"run{self.number}-{kind}"
        if kind == "accounting":
            return accounting_figures(findings, name)
        if kind == "empirical-epsilon":
            return list(empirical_figures(findings, name, self.claim_texts))
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

    @cached_property
    def leaks(self) -> list[MessageInformation]:
        """Findings on mutual information by adversary and message."""
        return leaks(self.entries("mutual-information"))

    def drawings_of(self, leak: MessageInformation) -> list[Drawn]:
        """What there is to draw of a message's information."""
        name = f"run{self.number}-leak{self.leaks.index(leak)}"
        about = f"{leak.message or 'a message'} read by {leak.threat_model or 'an adversary'}"
        drawn = (
            (
                f"Information by round, 95% interval over all rounds together: {about}",
                Column.ROUND,
                information_by_round,
            ),
            (
                f"Best estimates on held-out trials, in the most telling round: {about}",
                Column.PRIVATE,
                estimates,
            ),
        )
        return [
            Drawn(said, svg, list(by_world({w: f.series for w, f in found.items()})))
            for said, column, draw in drawn
            if (found := leak.drawn(column))
            and (svg := draw(found, f"{name}-{column}", said)) is not None
        ]

    def ssim_figures(self, adversary: str | None) -> list[Drawn]:
        """SSIM by round of each message and batch size that one adversary reconstructed."""
        name = f"run{self.number}-ssim{self.adversaries.index(adversary)}"
        shown = [s for s in self.scenarios_of(adversary) if s.scored]
        several = len({scenario.key.attack for scenario in shown}) > 1
        messages = [
            Scored(
                _row_label(s.key, with_attack=several),
                [(k, s.metric(Name.SSIM, k)) for k in s.rounds],
                list(metrics(s.by_round, {Name.SSIM})),
            )
            for s in shown
        ]
        return ssim_intervals(messages, name, f"SSIM of reconstructions by {adversary}")

    def search_figures(self, scenario: ReconstructionGroup) -> list[Drawn]:
        """How the searches of a scenario went, by iteration, a figure for each round."""
        name = f"run{self.number}-search{self.scenarios.index(scenario)}"
        found = [entry.finding for entry in scenario.by_round]
        title = f"Loss and PSNR by iteration: {_row_label(scenario.key, with_attack=False)}"
        return search_by_iteration(found, name, title)

    def shares_of(self, scenario: ReconstructionGroup) -> list[NumberedFinding]:
        """What shares of a scenario's targets were reconstructed, beside bounds."""
        return [
            entry
            for entry in self.entries("reconstruction")
            if entry.finding.role is Role.RECONSTRUCTED_SHARE
            and group_key(entry.finding) == scenario.key
        ]

    def share_figures(self, entry: NumberedFinding) -> list[Drawn]:
        """How many targets were reconstructed how well."""
        name = f"run{self.number}-share{entry.number}"
        return share_figures(entry.finding, name, self.claim_texts)

    def metric(self, key: GroupKey, round: int, name: str) -> dict[str, Metric]:
        """One metric of one scenario and round, by world; {} where this run has none."""
        return next((s.metric(name, round) for s in self.scenarios if s.key == key), {})


def _row_label(key: GroupKey, with_attack: bool) -> str:
    attack = f"{key.attack}: " if with_attack else ""
    return f"{attack}{key.message}, batch size {key.batch_size}"
