"""The premises of accounting: which of them this audit examined, and how finely.

Accounting supports a claim if what is declared is what the program does. Six premises say what that
means; each is examined on the program itself, or the verdict names it as not examined. Two proofs
stand behind them, and either will do:

- The algebra of the protocol (``exact-leak``) accounts all rounds of a step that is linear in its
  noise. It takes for granted that the noise is what is asked, which tests of the messages examine,
  and that a record moves a message no further than is stated, which is measured.
- An alignment (``alignment``) makes two runs the same by moving the noise of one. It asks no step
  to be linear, and proves distance, noise and composition for the rounds and records it plays.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple

from dpaudit.accounting.releases import Mechanism, epsilon
from dpaudit.defense.claim_accounting import claimed_delta, record_adjacency
from dpaudit.files.claim import Claim, measured_change
from dpaudit.files.finding import WITHIN_BOUND, Finding, Metric, Name, Role
from dpaudit.files.result import EpsilonRange, Premise, PremiseName
from dpaudit.files.verdict import AGAINST, Verdict
from dpaudit.text import apart, times

from .jobs import Prepared
from .rules import CAPTURED, accounting_of

ALLOWED = 1 + 1e-6  # times what is declared or stated, from rounding
TENTH = 0.1  # relative difference between noise drawn and noise sent


def state_finding(prepared: Prepared) -> Finding:
    """Rounds that were played again, from the same state, by themselves and stacked."""
    n, n_rounds = prepared.replayed, prepared.defense.n_rounds
    return Finding(
        role=Role.STATE,
        kind="control",
        title="Rounds that are played again",
        metrics={Name.ROUNDS: Metric(value=n, n=n_rounds)},
        notes=(
            "the same again, from their own state alone, on other data, and in a stack of trials",
        ),
        not_examined=() if n else ("rounds cannot be played on a model of few coordinates",),
    )


class ClaimEvidence(NamedTuple):
    """The findings that bear on a claim against an adversary, by their index."""

    claim: Claim
    findings: tuple[tuple[int, Finding], ...]

    def of(self, *roles: Role) -> list[tuple[int, Finding]]:
        return [(i, finding) for i, finding in self.findings if finding.role in roles]

    @property
    def declared(self) -> Finding | None:
        """What is accounted: declared, or measured of a function with an upper end.

        Of a program that was captured it is what was measured, even without one.
        """
        measured = (f for _, f in self.of(Role.MEASURED) if f.attack == CAPTURED)
        return accounting_of([f for _, f in self.findings]) or next(measured, None)

    @property
    def algebra(self) -> Finding | None:
        """The exact leak of the whole claim, with an upper end that stands."""
        for _, finding in self.of(Role.EXACT_LEAK):
            metric = finding.metrics.get(Name.EPSILON)
            whole = self.claim.scope != "run" or _covers(finding)
            if metric is not None and metric.ends[1] < inf and finding.void is None and whole:
                return finding
        return None

    @property
    def aligned(self) -> Finding | None:
        """An alignment of every round whose moves the declared releases of the claim allow."""
        declared = self.declared
        for _, finding in self.of(Role.ALIGNMENT):
            ratio = finding.value(Name.MOVED_OVER_DECLARED)
            if ratio is None or ratio > ALLOWED or not _covers(finding) or declared is None:
                continue
            if finding.adjacency == self.claim.adjacency and _are_all(
                finding.releases.get("most", ()), declared.releases.get("most", ())
            ):
                return finding
        return None


def _covers(finding: Finding) -> bool:
    """Whether it is of all rounds."""
    rounds = finding.metrics.get(Name.ROUNDS)
    return rounds is not None and rounds.n is not None and rounds.value >= rounds.n


def _are_all(all_links: Mechanism, declared: Mechanism) -> bool:
    """Whether as many releases are declared as an eavesdropper of every link faces."""

    def kinds(releases: Mechanism) -> set[tuple[str, float, str]]:
        return {(r.family, r.noise_multiplier, r.clipped) for r in releases}

    n, most = (sum(release.count for release in some) for some in (declared, all_links))
    return bool(declared) and kinds(declared) <= kinds(all_links) and n >= most


def premises(claim: Claim, findings: Sequence[tuple[int, Finding]]) -> tuple[Premise, ...]:
    """Each premise of accounting, with what was examined of it.

    Args:
        findings: those that bear on the claim against an adversary, by their index.
    """
    evidence = ClaimEvidence(claim, tuple(findings))
    if evidence.declared is None:
        return ()
    if evidence.declared.attack == CAPTURED:
        return tuple(_of_program(name, evidence) for name in EXAMINED)
    found = tuple(_premise(name, examine, evidence) for name, examine in EXAMINED.items())
    if evidence.declared.role is Role.DECLARED:
        return found
    return tuple(_of_function(premise, dict(findings)) for premise in found)


def _of_function(premise: Premise, findings: Mapping[int, Finding]) -> Premise:
    """A function declares nothing, so that the evidence itself says what was measured."""
    if premise.status != "examined":
        return premise
    return premise.model_copy(update={"says": findings[premise.findings[0]].notes[0]})


OF_PROGRAM: Mapping[PremiseName, tuple[Role, ...]] = {
    "distance": (Role.ALIGNMENT,),
    "noise": (Role.NOISE,),
    "records": (Role.RECORDS,),
    "completeness": (Role.DEPENDENCE,),
    "composition": (Role.MEASURED, Role.ALIGNMENT),
    "state": (Role.STATE,),
}  # roles that examine a premise of a captured program; the first says how


def _of_program(name: PremiseName, evidence: ClaimEvidence) -> Premise:
    """Only the scale of its noise is stated of a program; the evidence says the rest."""
    cited = [found for role in OF_PROGRAM[name] for found in evidence.of(role)]
    if name in ("distance", "composition") and evidence.aligned is not None:
        cited = [(i, f) for i, f in cited if f.role is not Role.ALIGNMENT or f is evidence.aligned]
    against = _against(name, cited, evidence)
    missing = [what for _, f in cited for what in f.not_examined]
    if name in ("distance", "composition") and evidence.aligned is None:
        missing = missing or ["no alignment of the runs covers the claim"]
    if name == "noise" and not any(size.ends[1] >= 1 - TENTH for size in _sizes(evidence)):
        missing = missing or ["how large the noise is was not measured"]
    missing = missing if cited else ["it was not looked at"]
    status = "failed" if against else "not examined" if missing else "examined"
    says = _failure(against[0]) if against else missing[0] if missing else cited[0][1].notes[0]
    return Premise(name=name, status=status, says=says, findings=tuple(i for i, _ in cited))


TOO_FAR = "clipping is missing or too weak, or the noise too small"
UNMOVED = "no record that was tried moves a message"
Answer = tuple[str | None, str, list[tuple[int, Finding]]]  # missing, how examined, evidence


def _premise(
    name: PremiseName, examine: Callable[[ClaimEvidence], Answer], evidence: ClaimEvidence
) -> Premise:
    missing, says, findings = examine(evidence)
    against = _against(name, findings, evidence)
    status = "failed" if against else "not examined" if missing is not None else "examined"
    return Premise(
        name=name,
        status=status,
        says=_failure(against[0]) if against else says if missing is None else missing,
        findings=tuple(i for i, _ in findings),
    )


def _against(
    name: PremiseName, cited: Sequence[tuple[int, Finding]], evidence: ClaimEvidence
) -> list[Finding]:
    """What speaks against a premise.

    Accounting that gives more than is claimed speaks against the claim alone; against composition
    speaks what leaks more than is accounted.
    """
    against = [finding for _, finding in cited if finding.verdict in AGAINST]
    if name != "composition" or evidence.declared is None:
        return against
    high = evidence.declared.metrics[Name.EPSILON].ends[1]
    return [
        f
        for f in against
        if f.verdict is Verdict.REFUTED or f.metrics[Name.EPSILON].ends[0] >= high * ALLOWED
    ]


def _failure(finding: Finding) -> str:
    """What speaks against a premise."""
    if finding.role is Role.SENSITIVITY and finding.message is not None:
        ratio = finding.value(Name.MEASURED_OVER_STATED)
        if ratio is None or ratio <= WITHIN_BOUND:
            return f'no noise of the round hides how "{finding.message}" moves'
        far = (
            f"{apart(ratio, 1)} times" if ratio >= 1.1 else f"{100 * (ratio - 1):.2g}% further than"
        )
        moves = f'"{finding.message}" moves {far} its stated bound'
        of_record = finding.adjacency in (None, "add-remove", "replace-one")
        return f"{moves}: {TOO_FAR}" if of_record else moves
    metric = finding.metrics.get(Name.EPSILON)
    if metric is None:
        return finding.title
    if metric.ends[0] == inf and finding.message is not None:
        quoted = finding.message if '"' in finding.message else f'"{finding.message}"'
        return f"{quoted} moves with a record, and no noise hides it"
    return f"{finding.title}: epsilon {metric.ends[0]:.3g}"


def _rounds(finding: Finding) -> str:
    rounds = finding.metrics.get(Name.ROUNDS)
    if rounds is None or rounds.n is None:
        return "the rounds"
    n, of, real = round(rounds.value), rounds.n, finding.value(Name.REAL_ROUNDS)
    every = f"all {of} rounds" if n >= of else f"{n} of {of} rounds"
    return every if real is None else f"{every} ({real:.0f} of them with the real model)"


def _distance(evidence: ClaimEvidence) -> Answer:
    """Algebra where the step is linear; worst records that were searched for elsewhere."""
    change = measured_change(evidence.claim.adjacency)
    measured = [(i, f) for i, f in evidence.of(Role.SENSITIVITY) if f.adjacency in (None, change)]
    aligned, cited = evidence.aligned, measured + evidence.of(Role.ALIGNMENT)
    if aligned is not None:
        ratio = aligned.metrics[Name.MOVED_OVER_DECLARED].value
        return (
            None if ratio > 0 else UNMOVED,
            (
                f"in {_rounds(aligned)} a record moves what noise hides by "
                f"{times(ratio, 'what is declared')}, at most, of the records that were tried"
            ),
            cited,
        )
    dependence = next(
        (f for _, f in evidence.of(Role.DEPENDENCE) if Name.ROUNDS in f.metrics), None
    )
    if dependence is None or not measured:
        return "how far a record moves messages was not measured", "", cited
    unbounded = [f.message for _, f in measured if Name.STATED_BOUND not in f.metrics]
    if unbounded:
        return f'no bound is stated for "{unbounded[0]}"', "", cited
    if not _covers(dependence):
        return f"{_rounds(dependence)} were measured, and no others", "", cited
    moves = [f.value(Name.MEASURED_OVER_STATED) for _, f in measured]
    largest = max(move or 0.0 for move in moves)
    return (
        UNMOVED if all(move == 0 for move in moves) else None,
        (
            f"in {_rounds(dependence)} a record moves a message by "
            f"{times(largest, 'its stated bound')}, at most, of the records that were tried"
        ),
        cited,
    )


def _noise(evidence: ClaimEvidence) -> Answer:
    cited, aligned = evidence.of(Role.NOISE), evidence.aligned
    sizes = [f.metrics.get(Name.NOISE_OVER_DECLARED) for _, f in cited]
    if any(size is not None and not _is_as_drawn(size) for size in sizes):
        return f"what is sent is not the noise that is drawn{_size(evidence)}", "", cited
    if aligned is not None:
        return (
            None,
            (
                "every draw that hides a record is fresh and of the declared family"
                + _size(evidence)
            ),
            cited + evidence.of(Role.ALIGNMENT),
        )
    real = next((f for _, f in cited if Name.ROUNDS in f.metrics), None)
    if real is None:
        return "the noise of the run was not tested", "", cited
    for _, finding in cited:
        if finding.claim is None and finding.not_examined:
            return finding.not_examined[0], "", cited
        if finding.unconfirmed:
            return f"its law was not confirmed of {finding.unconfirmed[0]}", "", cited
    if evidence.algebra is None:
        return "neither the algebra nor an alignment covers the step", "", cited
    if not any(sizes):
        cited = cited + evidence.of(Role.ALIGNMENT)  # these say how large draws were
    return (
        None,
        (
            f"tested in {_rounds(real)} for scale, law and independence{_size(evidence)}; the "
            f"algebra covers {_rounds(evidence.algebra)}"
        ),
        cited,
    )


def _is_as_drawn(size: Metric) -> bool:
    """Whether it may be within a tenth of what draws make of a message."""
    low, high = size.ends
    return low <= 1 + TENTH and high >= 1 - TENTH


def _size(evidence: ClaimEvidence) -> str:
    size = next(_sizes(evidence), None)
    if size is None:
        return ""
    low, high = size.ends
    return f"; it is {apart(low, 1)} to {apart(high, 1)} times as large as declared"


def _records(evidence: ClaimEvidence) -> Answer:
    cited = evidence.of(Role.RECORDS)
    if not cited:
        return "batches were not counted", "", cited
    finding = cited[0][1]
    if finding.not_examined:
        return finding.not_examined[0], "", cited
    rate = finding.metrics.get(Name.SAMPLING_RATE)
    if rate is None:
        return None, finding.notes[0], cited
    low, high = rate.ends
    return None, f"a batch holds a record with probability {low:.3g} to {high:.3g}", cited


def _completeness(evidence: ClaimEvidence) -> Answer:
    cited = evidence.of(Role.DEPENDENCE)
    found = next((f for _, f in cited if Name.FOUND in f.metrics), None)
    missing = [what for _, finding in cited for what in finding.not_examined]
    if found is None or missing:
        return missing[0] if missing else "what else depends on data was not looked for", "", cited
    return (
        None,
        (f"in {_rounds(found)} nothing beside the values of messages differs between two runs"),
        cited,
    )


def _composition(evidence: ClaimEvidence) -> Answer:
    cited = evidence.of(Role.DECLARED, Role.MEASURED, Role.EXACT_LEAK)
    declared, algebra, aligned = evidence.declared, evidence.algebra, evidence.aligned
    assert declared is not None
    if declared.void is not None:
        return f"what is declared is void: {declared.void}", "", cited
    high = declared.metrics[Name.EPSILON].ends[1]
    if high == inf:
        return "no upper end follows from what is declared", "", cited
    if aligned is not None:
        return (
            None,
            f"{_rounds(aligned)} move no more noise than the releases declared",
            (cited + evidence.of(Role.ALIGNMENT)),
        )
    if algebra is None:
        return "neither the algebra nor an alignment covers all rounds", "", cited
    exact = algebra.metrics[Name.EPSILON].ends[1]
    if exact > high * ALLOWED:
        return f"the algebra bounds epsilon by {exact:.3g} alone", "", cited
    return None, f"the algebra of {_rounds(algebra)} gives epsilon {exact:.3g} at most", cited


def _state(evidence: ClaimEvidence) -> Answer:
    cited = evidence.of(Role.STATE)
    if not cited:
        return "rounds were not played again", "", cited
    finding = cited[0][1]
    if finding.not_examined:
        return finding.not_examined[0], "", cited
    return None, f"{_rounds(finding)} are the same when they are played again", cited


EXAMINED: dict[PremiseName, Callable[[ClaimEvidence], Answer]] = {
    "distance": _distance,
    "noise": _noise,
    "records": _records,
    "completeness": _completeness,
    "composition": _composition,
    "state": _state,
}


def epsilon_range(
    claim: Claim, findings: Sequence[tuple[int, Finding]], certified: float, held: bool
) -> EpsilonRange | None:
    """What is certified, what is accounted, and what was measured at most.

    The last is the accounting of the declared releases with the noise at its lower confidence end
    and the rate at its upper one; infinite where a premise was not examined or failed.

    Args:
        held: whether all premises were examined and held.
    """
    evidence = ClaimEvidence(claim, tuple(findings))
    declared = evidence.declared
    if declared is None:
        return None
    accounted = declared.metrics[Name.EPSILON].ends[1]
    measured = inf
    releases = declared.releases.get("most")
    if held and releases is not None:
        measured = max(accounted, _measured(claim, releases, list(_sizes(evidence)), evidence))
    return EpsilonRange(certified=certified, accounted=accounted, measured=measured)


def _sizes(evidence: ClaimEvidence) -> Iterator[Metric]:
    """How large noise was beside what is declared: of messages, then of draws."""
    for _, finding in evidence.of(Role.NOISE) + evidence.of(Role.ALIGNMENT):
        if Name.NOISE_OVER_DECLARED in finding.metrics:
            yield finding.metrics[Name.NOISE_OVER_DECLARED]


def _measured(
    claim: Claim, releases: Mechanism, sizes: Sequence[Metric], evidence: ClaimEvidence
) -> float:
    """Epsilon of the releases as they were measured; the noise by messages, or else by draws."""
    if not releases:
        return 0.0
    if not sizes:
        return inf
    noise = min(1.0, sizes[0].ends[0])
    records = next((f for _, f in evidence.of(Role.RECORDS)), None)
    rate = None if records is None else records.metrics.get(Name.SAMPLING_RATE)
    times = 1.0 if rate is None or rate.value == 0 else max(1.0, rate.ends[1] / rate.value)
    as_measured = tuple(
        release.model_copy(
            update={
                "noise_multiplier": release.noise_multiplier * noise,
                "sampling_rate": min(1.0, release.sampling_rate * times),
            }
        )
        for release in releases
    )
    return epsilon(as_measured, claimed_delta(claim), record_adjacency(claim)).high
