"""audit.json: all that a report or a CI system reads. Nothing here imports torch."""

from collections.abc import Mapping, Sized
from math import inf, nan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, NonNegativeInt, model_validator

from dpaudit.errors import RunError
from dpaudit.registry import load_plugin
from dpaudit.strict import Strict
from dpaudit.text import at_least, at_most

from .claim import Adjacency, Scope
from .file_problems import read_model
from .finding import Finding, Metric, Name, Number, Role, canonical
from .verdict import AGAINST, MEANING, Verdict, worst

if TYPE_CHECKING:
    import pandas as pd


Code = Annotated[str, Field(pattern=r"^DPA\d{3}$")]
_BY_KIND = {  # keys of version 1
    "accounting": Role.DECLARED,
    "sensitivity": Role.SENSITIVITY,
    "empirical-epsilon": Role.TEST,
    "reconstruction": Role.RECONSTRUCTION,
    "mutual-information": Role.INFORMATION,
    "control": Role.NULL_CONTROL,
}


class Restated(Strict):
    """A claim in the common currency: one record, the whole run."""

    epsilon: Metric
    delta: float
    adjacency: Adjacency
    assumptions: tuple[str, ...]
    void: str | None = None  # why the accounted figure is void; None: it is not


PremiseName = Literal["distance", "noise", "records", "completeness", "composition", "state"]


class Premise(Strict):
    """What accounting rests on, and whether this audit examined it."""

    name: PremiseName
    status: Literal["examined", "not examined", "failed"]
    says: str  # how it was examined and what an examination resolves, or what is missing
    findings: tuple[NonNegativeInt, ...] = ()  # indices of the evidence

    @property
    def sentence(self) -> str:
        """Its name, whether it was examined, and how."""
        return f"{self.name} {self.status}: {self.says}"


REMEDIES: Mapping[PremiseName, str] = {  # other premises have codes that say what to do
    "distance": "Clip the gradient of each record to the stated norm before anything is added up, "
    "and give the noise the scale of the sum or the mean that it is added to; or state the bound "
    "that holds.",
    "noise": "Draw fresh noise of the declared scale for each coordinate, agent and round.",
    "records": "Draw batches as accounting assumes, or account for how they are drawn.",
    "completeness": "Send nothing without noise that depends on records.",
    "composition": "Add noise to every message that depends on records, fresh in each round and "
    "not cancelled by other messages; or account for all that is sent.",
}


class EpsilonRange(Strict):
    """What an audit knows of a claim's epsilon, from what is proven to what could be overlooked."""

    certified: Number  # lower end, by attacks or algebra
    accounted: Number  # upper end, by what is declared
    measured: Number  # upper end, by measurements at their unfavourable confidence ends

    @property
    def sentence(self) -> str:
        """All three ends, and what each rests on; no upper end is said to hold that may not."""
        accounted, measured = (
            "no upper end" if end == inf else f"at most {at_most(end, 4)}"
            for end in (self.accounted, self.measured)
        )
        if self.accounted < inf == self.measured:
            accounted = f"{at_most(self.accounted, 4)} if its premises held"
        least = f"at least {at_least(self.certified, 4)}"
        certified = "infinite" if self.certified == inf else least
        ends = f"{certified} (by attacks or algebra)", f"{accounted} (accounted)"
        return f"epsilon {', '.join(ends)}, {measured} (measured)"


class JudgedClaim(Strict):
    """A claim, against one threat model, with its verdict."""

    claim: NonNegativeInt  # index of the claim in the config
    text: str
    sentence: str
    epsilon: float | None
    delta: float
    mu: float | None
    scope: Scope
    adjacency: Adjacency
    threat_model: str
    restated: Restated | None
    verdict: Verdict
    confidence: float | None  # confidence of a refutation; None if it rests on no statistics
    because: tuple[int, ...]  # indices of the findings behind the verdict
    decisive: NonNegativeInt | None = None  # index of the finding that decided; None: no single one
    reason: str  # the reason of the verdict, with its figures
    codes: tuple[Code, ...] = ()  # of the reason, then of its limits: dpaudit explain CODE
    meaning: str = ""  # for the person whose record it is: how far an adversary's odds can rise
    premises: tuple[Premise, ...] = ()  # of accounting; empty: none, or an older version
    range: EpsilonRange | None = None  # None: there is no accounting, or an older version

    @property
    def missing(self) -> tuple[Premise, ...]:
        """The premises that were not examined, or failed."""
        return tuple(premise for premise in self.premises if premise.status != "examined")

    @property
    def failed(self) -> Premise | None:
        """The first premise that failed: the cause, where accounting settles nothing after it."""
        return next((premise for premise in self.missing if premise.status == "failed"), None)

    @property
    def remedy(self) -> str:
        """What to do about the premise that failed; "" if none did, or if its code says that."""
        if self.verdict not in AGAINST or self.failed is None:
            return ""
        if self.failed.name == "distance" and "DPA101" in self.codes:
            return ""  # no clip helps a message without noise
        return REMEDIES.get(self.failed.name, "")

    @property
    def examination(self) -> str:
        """The premises that were examined, and why others are missing; "" if there are none.

        What failed stands before what was not examined. Premises that are missing for one reason
        share a clause.
        """
        examined = [premise.name for premise in self.premises if premise not in self.missing]
        held = [f"✓ {', '.join(examined)} examined"] if examined else []
        signs = {"failed": "×", "not examined": "?"}
        alike: dict[tuple[str, str], list[str]] = {}
        for p in sorted(self.missing, key=lambda p: p.status != "failed"):
            alike.setdefault((p.status, p.says), []).append(p.name)
        missing = [
            f"{signs[status]} {', '.join(names)} {status}: {says}"
            for (status, says), names in alike.items()
        ]
        return "; ".join([*held, *missing])

    @property
    def lacking(self) -> str:
        """What keeps the claim from being supported; "" if nothing does."""
        if self.verdict is Verdict.SUPPORTED:
            return ""
        if self.range is None:
            return "no premise was examined"
        if self.missing:
            return self.missing[0].sentence
        settled = self.epsilon is not None and self.range.accounted <= self.epsilon
        return "no premise is missing" if settled else "accounting does not settle the claim"


class ThreatModelSummary(Strict):
    """An adversary in a sentence, and the links it reads, for the drawing of the graph."""

    name: str
    sentence: str
    agents: tuple[int, ...] = ()  # agents of the adversary
    links: tuple[tuple[int, int], ...]  # (sender, receiver)


class GraphSummary(Strict):
    """The communication graph of round 1, as drawn in a report."""

    name: str
    n_agents: int
    links: tuple[tuple[int, int], ...]  # (sender, receiver)
    positions: tuple[tuple[float, float], ...]  # of agents, within [-1, 1]
    spectral_gap: Number = nan  # nan if the mixing weights are not known

    @model_validator(mode="after")
    def _drawable(self) -> Self:
        ends = {agent for link in self.links for agent in link}
        n = self.n_agents
        if len(self.positions) != n or not ends <= set(range(n)):
            raise ValueError(
                f"expected a position for each of {n} agents, and links between agents from 0 "
                f"below {n}; found {len(self.positions)} positions, and links of agents up to "
                f"{max(ends, default=0)}"
            )
        return self


class Curve(Strict):
    """Values over rounds; for agents [n_rounds_evaluated][n_agents]."""

    rounds: tuple[int, ...]
    loss: tuple[tuple[Number, ...], ...]
    loss_is: str = "test loss"  # the name of the loss, for a label
    accuracy: tuple[tuple[Number, ...], ...]  # empty if nothing is classified
    consensus_distance: tuple[Number, ...]
    initial_loss: tuple[Number, ...] = ()  # loss of each agent before round 1
    messages: tuple[NonNegativeInt, ...] = ()  # number sent on links, from round 1 to this one
    bytes: tuple[NonNegativeInt, ...] = ()  # their size in bytes, in their dtype; plaintext

    @model_validator(mode="after")
    def _equal_lengths(self) -> Self:
        columns: list[Sized] = [self.loss, self.consensus_distance]
        columns += [column for column in (self.accuracy, self.messages, self.bytes) if column]
        if any(len(column) != len(self.rounds) for column in columns):
            raise ValueError(
                "rounds, loss, accuracy, consensus_distance, messages and bytes differ in length"
            )
        return self


class Provenance(Strict):
    """What it would take to run this again and get the same."""

    dpaudit: str
    python: str
    packages: dict[str, str]
    platform: str
    device: str
    seed: int
    git_commit: str | None
    git_dirty: bool | None
    data: str
    data_fingerprint: str
    n_records: int = 0  # 0 for a program, whose records are not counted
    agent_sizes: tuple[int, ...] = ()


class Note(NamedTuple):
    """What a reader must know before any number."""

    code: str  # code of its page: dpaudit explain CODE
    text: str


class AuditResult(Strict):
    """One audit: its config, every number shown anywhere, and the verdict."""

    schema_version: Literal[3] = 3
    config: dict[str, Any]
    calibrated: dict[str, Any] = {}  # the options of the defense with its calibrated noise
    provenance: Provenance
    verdict: Verdict | None  # the worst verdict of all claims; None if nothing was claimed
    notes: tuple[str, ...] = ()  # what to know before reading any number
    note_codes: tuple[Code, ...] = ()  # codes of the notes, in order
    claims: tuple[JudgedClaim, ...]
    threat_models: tuple[ThreatModelSummary, ...]
    graph: GraphSummary
    findings: tuple[Finding, ...]
    utility: dict[str, Curve] = {}  # "defense", "no-defense"
    timing: dict[str, float]  # seconds by stage; the only part that differs between two equal runs

    @model_validator(mode="after")
    def _evidence_exists(self) -> Self:
        n = len(self.findings)
        for i, claim in enumerate(self.claims):
            named = () if claim.decisive is None else (claim.decisive,)
            premises = (j for premise in claim.premises for j in premise.findings)
            for j in (*claim.because, *named, *premises):
                if not 0 <= j < n:
                    raise ValueError(
                        f"claims[{i + 1}].because: there is no finding {j}; expected indexes from "
                        f"0 below {n}, the number of findings"
                    )
        return self

    @model_validator(mode="after")
    def _notes_have_codes_or_none_has(self) -> Self:
        if self.note_codes and len(self.note_codes) != len(self.notes):
            raise ValueError(
                f"note_codes: expected one for each of {len(self.notes)} notes, or none; found "
                f"{len(self.note_codes)}"
            )
        return self

    @model_validator(mode="after")
    def _verdict_is_the_worst_of_the_claims(self) -> Self:
        if self.verdict is not (found := worst([claim.verdict for claim in self.claims])):
            named, expected = (v or "none" for v in (self.verdict, found))
            raise ValueError(
                f"verdict: expected {expected}, the worst of those of the claims, got {named}"
            )
        return self

    @property
    def decided_by(self) -> JudgedClaim | None:
        """The first of the claims with the worst verdict, which is the audit's."""
        return next((claim for claim in self.claims if claim.verdict is self.verdict), None)

    @property
    def sentence(self) -> str:
        """Why the verdict is what it is, what that means, and what it does not mean."""
        if self.verdict is None:
            return "No claim was made, so there is no verdict."
        claim = self.decided_by
        return self.meaning if claim is None else f"{claim.reason} {self.meaning}"

    @property
    def meaning(self) -> str:
        """What the verdict means, and what it does not mean."""
        if self.verdict is None:
            return ""
        claim, common = self.decided_by, MEANING[self.verdict]
        return f"{claim.meaning} {common}" if claim is not None and claim.meaning else common

    def __str__(self) -> str:
        """The verdict, the claim that decided it, its range and premises, and where the rest is."""
        n = len(self.claims)
        rest = f"{n} verdict{'s' * (n != 1)} and {len(self.findings)} findings in to_frame, figures"
        claim = self.decided_by
        if claim is None:
            return f"no claim was made, so there is no verdict\n{rest}"
        lines = [
            f"{claim.verdict.upper()}  {claim.sentence}",
            f"against {claim.threat_model}: {claim.reason}",
            "" if claim.range is None else claim.range.sentence,
            claim.examination and f"premises: {claim.examination}",
            rest,
        ]
        return "\n".join(line for line in lines if line)

    def __repr__(self) -> str:
        return f"<AuditResult: {self.verdict or 'no claim'}>"

    @property
    def exit_code(self) -> int:
        """1 if a claim is refuted or unsupported, else 0."""
        return int(self.verdict in AGAINST)

    def to_json(self) -> str:
        """The text of audit.json."""
        return self.model_dump_json(indent=2) + "\n"

    @property
    def figures(self) -> Any:
        """The report's figures by name, such as "trade-off": each is shown, saved and a frame."""
        return self._in_a_notebook().figures

    def to_frame(self, table: str = "claims") -> "pd.DataFrame":
        """Its "claims", "premises", "findings" (each metric), "series", "traces" or "training".

        Raises ConfigError for another name.
        """
        return self._in_a_notebook().frame(table)

    def _repr_html_(self) -> str:
        """The verdict, the claims and what decided, for notebooks."""
        html: str = self._in_a_notebook().html()
        return html

    def _in_a_notebook(self) -> Any:
        """The notebook of the room of reports, which this room does not import."""
        return load_plugin("reports", "notebook")(self, Path())

    @classmethod
    def read(cls, path: Path) -> "AuditResult":
        """Read an audit.json of this version, or of version 1 or 2.

        Raises:
            RunError: it is missing, damaged or of another version.
        """

        def newest(content: dict[str, Any]) -> dict[str, Any]:
            version = content.get("schema_version")
            if version not in (1, 2, 3):
                raise RunError(
                    "DPA010",
                    f"{path}: schema_version {version!r}, this dpaudit reads versions 1 to 3; "
                    "update dpaudit, or run the audit again",
                )
            content = upgraded(content) if version == 1 else content
            return {**content, "schema_version": 3}

        return read_model(path, cls, "an audit.json", RunError, newest)


def upgraded(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a version 1 file as version 3; what is malformed is left for the checks.

    Version 1 had no roles, and joined findings to claims by words. Here the join is by what the
    claims themselves cite, and the role by what a finding holds. Version 2 had no premises.
    """
    claims = _indexed(content)
    cited = _citing(claims)
    findings = [
        _finding(finding, cited.get(i)) if isinstance(finding, dict) else finding
        for i, finding in enumerate(_list(content, "findings"))
    ]
    return {**content, "claims": claims, "findings": findings}


def _indexed(content: Mapping[str, Any]) -> list[Any]:
    """The judged claims, each with the index of the config's claim that it judges.

    They stand claim by claim, and for each claim one for each adversary that it is made against.
    """
    config = content.get("config")
    stated = _list(config, "claim") if isinstance(config, dict) else []
    models = len(_list(content, "threat_models"))
    indexes = [
        i
        for i, claim in enumerate(stated)
        for _ in range(1 if isinstance(claim, dict) and claim.get("threat_model") else models)
    ]
    claims = _list(content, "claims")
    indexes += [max(0, len(stated) - 1)] * (len(claims) - len(indexes))
    return [
        {**claim, "claim": i} if isinstance(claim, dict) else claim
        for i, claim in zip(indexes, claims, strict=False)
    ]


def _citing(claims: list[Any]) -> dict[int, int]:
    """The claim of each finding that only one claim cites."""
    found: dict[int, set[int]] = {}
    for claim in claims:
        if isinstance(claim, dict):
            for i in _list(claim, "because"):
                if isinstance(i, int):
                    found.setdefault(i, set()).add(claim["claim"])
    return {i: min(several) for i, several in found.items() if len(several) == 1}


def _finding(finding: Mapping[str, Any], claim: int | None) -> dict[str, Any]:
    metrics = finding.get("metrics")
    if isinstance(metrics, dict):
        metrics = {canonical(name): metric for name, metric in metrics.items()}
    upgraded = {**finding, "metrics": metrics or {}, "claim": claim}
    return {**upgraded, "role": _role(upgraded)}


def _role(finding: Mapping[str, Any]) -> str:
    kind, metrics, series = finding.get("kind"), finding["metrics"], finding.get("series")
    metrics, series = (x if isinstance(x, dict) else {} for x in (metrics, series))
    if kind == "control" and finding.get("world") == "no-defense":
        return Role.POSITIVE_CONTROL
    if kind == "control" and Name.P_VALUE in metrics:
        return Role.NOISE
    if kind == "accounting" and finding.get("attack"):
        return Role.WHO_LEARNS_WHAT if "victim" in series else Role.EXACT_LEAK
    if kind == "sensitivity" and Name.FOUND in metrics:
        return Role.DEPENDENCE
    if kind == "empirical-epsilon" and metrics and Name.EPSILON_LOWER_BOUND not in metrics:
        return Role.NOISE_BOUND
    if kind == "mutual-information" and Name.VARIANCE_EXPLAINED in metrics:
        return Role.BEST_ESTIMATE
    return _BY_KIND.get(str(kind), Role.TEST)


def _list(content: Any, key: str) -> list[Any]:
    found = content.get(key)
    return list(found) if isinstance(found, list | tuple) else []
