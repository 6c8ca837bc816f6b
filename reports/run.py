"""One result as the templates ask for it: what of it is shown where, with pictures and drawings."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from markupsafe import Markup

from dpaudit.codes import entries
from dpaudit.files.finding import Column, Finding, Metric, Name, Role
from dpaudit.files.result import AuditResult, JudgedClaim, ThreatModelSummary

from . import reconstructions
from .claims import claimed_epsilon
from .figures.curves import AXIS, training_curve
from .figures.drawing import DrawnFigure
from .figures.evidence import accounting_figures, empirical_figures, sensitivity_figures
from .figures.information import MessageInformation, estimates, information_by_round, leaks
from .figures.range import RangeDrawing, range_drawing
from .figures.reconstruction import search_by_iteration, share_figures, ssim_intervals
from .reconstructions import GroupKey, MostRevealing, NumberedFinding, Picture, ReconstructionGroup
from .tables import CROWD, training, training_of_many
from .texts import (
    TextScenario,
    TextSequence,
    exact_leaks,
    most_recovered,
    text_scenarios,
    text_sequences,
)

LONGEST = 40  # characters of a title in an address
UNPICKED = 2  # images' widths of a strip whose targets have no rows
HEADLINES = (  # metrics that may stand beside a finding's name; the first one it has does
    Name.EPSILON,
    Name.EPSILON_LOWER_BOUND,
    Name.MEASURED_OVER_STATED,
    Name.MOVED_OVER_DECLARED,
    Name.NOISE_OVER_DECLARED,
    Name.SAMPLING_RATE,
    Name.FOUND,
    Name.MEASURED,
    Name.LARGEST_MU,
    Name.WORST_MU,
    Name.MU_LOWER_BOUND,
    Name.NOISE_FACTOR,
    Name.AUC,
    Name.INFORMATION,
    Name.M_NMI,
    Name.VARIANCE_EXPLAINED,
    Name.ROUNDS,
)


@dataclass(frozen=True)
class Run:
    """A result with its pictures and drawings, as the templates ask for them."""

    label: str
    number: int  # keeps the ids of several runs on one page apart
    result: AuditResult
    directory: Path

    @property
    def name(self) -> str:
        """What was audited: a defense, a function or a program by its command."""
        command = self.configured("program", "command")
        words = " ".join(map(str, command)) if isinstance(command, list) else None
        own = self.configured("defense", "name") or self.configured("mechanism", "function")
        return str(own or words or "A decentralized run")

    @cached_property
    def pictures(self) -> dict[str, Picture]:
        artifacts = (path for f in self.result.findings for path in f.artifacts.values())
        paths = dict.fromkeys(path for path in artifacts if not path.endswith((".npz", ".json")))
        return {path: reconstructions.embedded(path, self.directory) for path in paths}

    @cached_property
    def texts(self) -> list[TextScenario]:
        return text_scenarios(self.result.findings, self.directory)

    @property
    def text_sequences(self) -> list[TextSequence]:
        return text_sequences(self.texts)

    def exact_leaks(self, threat_model: str | None) -> list[Finding]:
        """What the algebra of the protocol reveals to an adversary."""
        return exact_leaks(self.result.findings, threat_model)

    @cached_property
    def scenarios(self) -> list[ReconstructionGroup]:
        return reconstructions.scenarios(self.entries())

    @cached_property
    def most_revealing(self) -> MostRevealing | None:
        return reconstructions.most_revealing(self.scenarios)

    @property
    def most_recovered(self) -> TextScenario | None:
        return most_recovered(self.texts)

    @property
    def claimed(self) -> list[JudgedClaim]:
        """Each claim once, however many adversaries it is made against."""
        return list({claim.claim: claim for claim in self.result.claims}.values())

    @property
    def claimed_against(self) -> list[str]:
        """The adversaries that claims are made against, in order."""
        return list(dict.fromkeys(claim.threat_model for claim in self.result.claims))

    @property
    def other_claims(self) -> list[JudgedClaim]:
        """The claims and adversaries beside the one that decided on the verdict."""
        return [claim for claim in self.result.claims if claim is not self.result.decided_by]

    def range_of(self, claim: JudgedClaim) -> RangeDrawing | None:
        """The figure of what is known of a claim's epsilon; None where nothing is accounted."""
        if claim.range is None:
            return None
        void = claim.restated is not None and claim.restated.void is not None
        return range_drawing(claimed_epsilon(self.result, claim), claim.range, void)

    @staticmethod
    def headline(finding: Finding) -> str | None:
        """The metric that stands beside a finding's name; the others are folded below it."""
        return next((name for name in HEADLINES if name in finding.metrics), None)

    @staticmethod
    def context(finding: Finding) -> list[str]:
        """What tells a finding from others of its name: adversary and message."""
        return [part for part in (finding.threat_model, finding.message) if part]

    def decisive_figures(self, claim: JudgedClaim) -> list[DrawnFigure]:
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
        """The notes that every scored attack carries, or every share of targets: said once."""
        found = [entry.finding for scenario in self.scenarios for entry in scenario.entries]
        attacks = [f.notes for f in found if f.metrics and f.world != "blind"]
        shares = [f.notes for f in self.result.findings if f.role is Role.RECONSTRUCTED_SHARE]
        return [
            note
            for every in (attacks, shares if len(shares) > 1 else [])
            for note in dict.fromkeys(every[0] if every else ())
            if all(note in notes for notes in every)
        ]

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
    def codes(self) -> list[str]:
        """Known codes of the reasons of all claims and of the notes, each once."""
        claimed = (code for claim in self.result.claims for code in claim.codes)
        return sorted({*claimed, *self.result.note_codes} & entries().keys())

    @cached_property
    def claim_links(self) -> list[str]:
        """By index, the name under which a link finds it."""
        return claim_links(self.result.claims)

    @cached_property
    def choices(self) -> dict[str, dict[str, str]]:
        """What a reader can choose to see alone, by what the page marks with it."""
        rounds = sorted({k for s in self.scenarios for k in s.rounds})
        return {
            "adversary": {mark: str(name) for name, mark in self.marks.items()},
            "claim": {str(claim.claim): claim.sentence for claim in self.claimed},
            "round": {str(k): str(k) for k in rounds},
            "agent": {str(i): str(i) for i in range(self.result.graph.n_agents)},
        }

    @cached_property
    def marks(self) -> dict[str | None, str]:
        """By the name of every adversary, how the page marks what is about it."""
        models = (model.name for model in self.result.threat_models)
        found = (f.threat_model for f in self.result.findings if f.threat_model)
        return {name: str(i) for i, name in enumerate(dict.fromkeys([*models, *found]))}

    def about(self, finding: Finding) -> Markup:
        """What a row is about, for those who choose what they see."""
        marks = {
            "adversary": self.marks.get(finding.threat_model, ""),
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

    def curves(self) -> list[DrawnFigure]:
        """What there is to draw of training, each with all of its numbers."""
        is_crowded = self.result.graph.n_agents > CROWD
        rows = list((training_of_many if is_crowded else training)(self.result))
        name = f"run{self.number}"
        drawn = (training_curve(self.result.utility, q, f"{name}-{q}", rows) for q in AXIS)
        return [figure for figure in drawn if figure is not None]

    def figures_of(self, kind: str) -> list[DrawnFigure]:
        """What there is to draw of one kind of finding, each with its caption."""
        findings, name = self.result.findings, f"run{self.number}-{kind}"
        if kind == "accounting":
            return accounting_figures(findings, name)
        if kind == "empirical-epsilon":
            return list(empirical_figures(findings, name, self.claim_texts))
        return sensitivity_figures(findings, name) if kind == "sensitivity" else []

    @property
    def claim_texts(self) -> dict[int, str]:
        """The claims' own words, by their index."""
        return {claim.claim: claim.text for claim in self.result.claims}

    @cached_property
    def leaks(self) -> list[MessageInformation]:
        """Findings on mutual information by adversary and message."""
        return leaks(self.entries("mutual-information"))

    def drawings_of(self, leak: MessageInformation) -> list[DrawnFigure]:
        """What there is to draw of a message's information."""
        name = f"run{self.number}-leak{self.leaks.index(leak)}"
        about = f"{leak.message or 'a message'} read by {leak.threat_model or 'an adversary'}"
        by_round = f"Information by round, 95% interval over all rounds together: {about}"
        best = f"Best estimates on held-out trials, in the round that reveals most: {about}"
        figures = [
            draw(found, f"{name}-{column}", caption)
            for caption, column, draw in (
                (by_round, Column.ROUND, information_by_round),
                (best, Column.PRIVATE, estimates),
            )
            if (found := leak.drawn(column))
        ]
        return [figure for figure in figures if figure is not None]

    def ssim_figures(self, adversary: str | None) -> list[DrawnFigure]:
        """SSIM by round of each message and batch size that one adversary reconstructed."""
        name = f"run{self.number}-ssim{self.adversaries.index(adversary)}"
        shown = [s for s in self.scenarios if s.key.threat_model == adversary and s.scored]
        several = len({scenario.key.attack for scenario in shown}) > 1
        labelled = [(_row_label(s.key, with_attack=several), s) for s in shown]
        return ssim_intervals(labelled, name, f"SSIM of reconstructions by {adversary}")

    @cached_property
    def ssim_of_all(self) -> list[tuple[str | None, DrawnFigure]]:
        """The figures of ``ssim_figures`` of every adversary, each captioned with its name."""
        return [
            (who, figure._replace(caption=f"{figure.caption}, by {who or 'an unnamed adversary'}"))
            for who in self.adversaries
            for figure in self.ssim_figures(who)
        ]

    @property
    def images_in_a_row(self) -> int:
        """How many images a row of the widest scenario shows, over its rounds."""
        rows = (
            sum(len(scenario.picks(k)) or UNPICKED for k in scenario.rounds)
            for scenario in self.scenarios
            if scenario.scored
        )
        return max(rows, default=1)

    @staticmethod
    def lead(scenario: ReconstructionGroup) -> Metric | None:
        """By how much a scenario's best reconstruction under the defense exceeds a blind guess."""
        best = reconstructions.most_revealing([scenario])
        return None if best is None else best.entry.finding.metrics.get(Name.SSIM_OVER_BLIND)

    def search_figures(self, scenario: ReconstructionGroup) -> list[DrawnFigure]:
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
            and reconstructions.group_key(entry.finding) == scenario.key
        ]

    def share_figures(self, entry: NumberedFinding) -> list[DrawnFigure]:
        """How many targets were reconstructed how well."""
        name = f"run{self.number}-share{entry.number}"
        return share_figures(entry.finding, name, self.claim_texts)

    def metric(self, key: GroupKey, round: int, name: str) -> dict[str, Metric]:
        """One metric of one scenario and round, by world; {} where this run has none."""
        return next((s.metric(name, round) for s in self.scenarios if s.key == key), {})


def _row_label(key: GroupKey, with_attack: bool) -> str:
    attack = f"{key.attack}: " if with_attack else ""
    return f"{attack}{key.message}, batch size {key.batch_size}"


def finding_links(findings: Iterable[Finding], claims: Sequence[JudgedClaim]) -> list[str]:
    """For each finding a name that stays when others are added and when its numbers change.

    It is made of what the finding is, not of where it stands.
    """
    words = {claim.claim: claim.text for claim in claims}
    return _apart(
        _link(
            "finding", f.title, f.role, f.attack, f.threat_model, f.message, f.adjacency, f.rounds,
            f.world, f.batch_size, None if f.claim is None else words.get(f.claim),
        )
        for f in findings
    )  # fmt: skip


def claim_links(claims: Iterable[JudgedClaim]) -> list[str]:
    """For each claim, against its adversary."""
    return _apart(_link("claim", c.threat_model, c.sentence, c.text) for c in claims)


def _link(kind: str, title: str, *parts: object) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", title.lower())[:LONGEST].strip("-")
    digest = hashlib.sha256(repr((title, *parts)).encode("utf-8", "backslashreplace"))
    return "-".join(part for part in (kind, slug, digest.hexdigest()[:8]) if part)


def _apart(names: Iterable[str]) -> list[str]:
    """What has the same name is counted, in its order."""
    seen = Counter[str]()
    found = []
    for name in names:
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name}-{seen[name]}")
    return found
