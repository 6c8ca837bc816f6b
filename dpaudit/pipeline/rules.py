"""A claim against one adversary, which evidence decides on it, and the sentence that says so."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf
from typing import NamedTuple

from dpaudit.defense.claim_accounting import AccountedClaim, claimed_epsilon
from dpaudit.files.claim import Adjacency, Claim
from dpaudit.files.finding import LEFT_OUT, WITHIN_BOUND, Finding, Metric, Name, Role
from dpaudit.files.result import Premise
from dpaudit.files.threat import ThreatModel
from dpaudit.files.verdict import Verdict
from dpaudit.text import apart, at_least

CAPTURED = "captured"  # the attack of a test that counts records of short runs
ALPHA = 0.05  # probability of one false refutation among all claims and adversaries


class Judging(NamedTuple):
    """A claim against one threat model, and the findings that bear on it, by their index."""

    claim_index: int  # into the audit's claims
    claim: Claim
    threat_model: ThreatModel
    restated: AccountedClaim  # one record, the whole run
    because: tuple[int, ...]
    reads_nothing: bool = False  # the adversary has no link in any round
    premise: str = ""  # what a verdict assumes besides its evidence, as a sentence
    unjudged: str | None = None  # why neither runs nor measurements can judge the claim
    void: str | None = None  # why the restated figure is void; None: it is not


def accounting_of(findings: Sequence[Finding]) -> Finding | None:
    """The accounting that may support a claim; what was measured may if it has an upper end."""
    for role in (Role.DECLARED, Role.MEASURED):
        for finding in findings:
            if finding.role is role and (
                role is Role.DECLARED or finding.metrics[Name.EPSILON].ends[1] < inf
            ):
                return finding
    return None


@dataclass(frozen=True)
class ClaimCase:
    """A claim against one adversary, and the evidence that bears on it."""

    judging: Judging
    findings: tuple[Finding, ...]
    refuted: bool  # by a test, corrected for all statements of the audit
    n_tested: int  # number of those statements
    premises: tuple[Premise, ...] = ()  # premises of accounting

    @property
    def claimed(self) -> float:
        return claimed_epsilon(self.judging.claim)

    @property
    def claims(self) -> str:
        """The beginning of a sentence that says what was found instead."""
        mu = self.judging.claim.mu
        if mu is None:
            return f"Claimed epsilon {self.claimed:.3g}"
        return f"Claimed mu {mu:.3g}, which is epsilon {self.claimed:.3g} at delta 1e-05"

    @property
    def adversary(self) -> str:
        return f'"{self.judging.threat_model.name}"'

    def of(self, role: Role) -> list[Finding]:
        return [finding for finding in self.findings if finding.role is role]

    def first(self, role: Role) -> Finding | None:
        return next(iter(self.of(role)), None)

    @property
    def tests(self) -> list[Finding]:
        """Findings of certified lower bounds, those that this adversary's view allowed."""
        return [finding for finding in self.of(Role.TEST) if finding.metrics]

    @property
    def best_test(self) -> Finding | None:
        """The test that refuted the claim, or the one that came nearest to it."""
        if self.refuted:
            return min(self.tests, key=lambda test: test.metrics[Name.P_VALUE].value)
        return max(
            self.tests,
            key=lambda test: (
                test.metrics[Name.EPSILON_LOWER_BOUND].value,
                test.metrics[Name.CEILING].value,
            ),
            default=None,
        )

    @property
    def bound(self) -> float:
        """The certified lower bound of that test; 0 without one."""
        test = self.best_test
        return float(test.metrics[Name.EPSILON_LOWER_BOUND].value) if test else 0.0

    @property
    def certified(self) -> str:
        """What that test certifies, as a clause; "" if nothing."""
        test = self.best_test
        if test is None or not self.bound > 0:
            return ""
        by = f"{_cases(test)} certify at least {at_least(self.bound)}{self.of_declared_family}"
        return f"{by} at {test.value(Name.CONFIDENCE) or 1 - ALPHA:.0%} confidence"

    @property
    def of_declared_family(self) -> str:
        """What that test certifies beyond it of noise of the declared family; "" if no more."""
        test = self.best_test
        known = 0.0 if test is None else test.value(Name.EPSILON_OF_DECLARED_SHAPE) or 0.0
        if known <= self.bound or at_least(known) == at_least(self.bound):
            return ""
        return f" ({at_least(known)} if the noise is of the declared family)"

    @property
    def not_examined(self) -> str:
        """A sentence with all that an examination could not look at; "" if that is nothing."""
        parts = dict.fromkeys(
            f"the noise of {what}"
            if finding.role is Role.NOISE and finding.attack is None
            else what
            for finding in self.findings
            for what in finding.not_examined
        )
        named = [p for p in self.premises if p.status == "not examined"]
        parts |= dict.fromkeys(
            f"{premise.name} ({premise.says})"
            for premise in named
            if not any(premise.says in part for part in parts)
        )
        parts = {part: None for part in parts if LEFT_OUT not in part} or parts
        return f" Not examined: {'; '.join(parts)}." if parts else ""

    @property
    def most(self) -> float:
        """The smallest epsilon that accounting proves not to be exceeded; infinite without one."""
        highs = [
            float(inf if (high := finding.metrics[Name.EPSILON].high) is None else high)
            for finding in (*self.of(Role.EXACT_LEAK), *filter(None, [self.accounting]))
            if Name.EPSILON in finding.metrics and finding.void is None
        ]
        return min(highs, default=inf)

    @property
    def least(self) -> float:
        """The largest epsilon that is certainly reached."""
        lows = [
            float(finding.metrics[Name.EPSILON].low or 0)
            for role in (Role.EXACT_LEAK, Role.MEASURED, Role.DECLARED)
            for finding in self.of(role)
            if Name.EPSILON in finding.metrics
        ]
        noiseless = any(finding.verdict is Verdict.REFUTED for finding in self.of(Role.EXACT_LEAK))
        certified = self.bound if self.refuted else min(self.bound, self.claimed)
        return max([inf if noiseless else certified, *lows])

    @property
    def accounting(self) -> Finding | None:
        return accounting_of(self.findings)

    @property
    def held(self) -> bool:
        """Whether each premise was examined and held: only then an upper end is known."""
        return bool(self.premises) and all(p.status == "examined" for p in self.premises)

    @property
    def is_supported(self) -> bool:
        """Whether what is declared is no more than the claim, and each premise of it held."""
        declared = self.accounting
        if declared is None or declared.void is not None or self.bound > self.claimed:
            return False
        return self.held and declared.metrics[Name.EPSILON].ends[1] <= self.claimed

    @property
    def unconfirmed(self) -> list[str]:
        """Messages for which the declared law of the noise was not confirmed."""
        return [what for finding in self.of(Role.NOISE) for what in finding.unconfirmed]

    @property
    def also(self) -> str:
        """The same at the end of another reason."""
        return f"; {self.certified}" if self.certified else ""


def epsilon_size(metric: Metric, claimed: float = 0.0) -> str:
    """Both ends of an accountant's epsilon, or one where they are as good as equal.

    An end above what is claimed is written so that it reads otherwise.
    """
    low, high = float(metric.low or 0), float(metric.high or 0)
    if low == inf:
        return "infinite"
    least, most = (apart(end, claimed) if end > claimed else f"{end:.3g}" for end in (low, high))
    if high == inf > low:
        return f"at least {least}"
    alike = high - low <= 1e-3 * low and not low <= claimed < high
    return least if alike else f"between {least} and {most}"


def epsilon_of(finding: Finding, claimed: float = 0.0) -> str:
    """The same with its delta."""
    delta = finding.metrics[Name.DELTA].value
    return f"epsilon {epsilon_size(finding.metrics[Name.EPSILON], claimed)} at delta {delta:g}"


def _cases(test: Finding) -> str:
    """What a test counted: runs of both worlds, or guesses, canaries or targets of one run."""
    guesses, runs = test.value(Name.GUESSES), test.metrics[Name.EPSILON_LOWER_BOUND].n
    canaries, targets = test.value(Name.CANARIES), test.metrics.get(Name.RECONSTRUCTED)
    if targets is not None:
        return f"reconstructions of {targets.n:,} targets"
    if canaries is not None:
        return f"{canaries:,.0f} canaries"
    if guesses is not None:
        return f"{guesses:,.0f} guesses"
    if test.attack == CAPTURED:
        return f"{runs:,} records that short runs held or not"
    return "runs" if runs is None else f"{runs:,} runs"


MILLIONFOLD = 14.0  # epsilon from which on odds are a million and more
SECRETS: Mapping[Adjacency, str] = {
    "add-remove": "that a given record was used",
    "replace-one": "on which of two records was used",
    "function": "on which of two functions an agent has",
    "agent-identity": "on which agent it is",
    "user": "that the records of a given agent were used",
}


class Decision(NamedTuple):
    """A verdict, why it is given, and the finding that it rests on, if it is one."""

    verdict: Verdict
    code: str  # code of the reason
    reason: str
    finding: Finding | None = None


def decide(case: ClaimCase) -> Decision:
    """The first that applies: what speaks against the claim, else what is left of it."""
    against = next(_against(case), None)
    return next(_undecided(case)) if against is None else against


def _against(case: ClaimCase) -> Iterator[Decision]:
    """What speaks against a claim, the surest first."""

    def because(verdict: Verdict, code: str, what: str, finding: Finding) -> Decision:
        return Decision(verdict, code, f"{case.claims}; {what}{case.also}.", finding)

    exact, declared = case.first(Role.EXACT_LEAK), case.first(Role.DECLARED)
    if exact is not None and exact.verdict is Verdict.REFUTED:
        shown = f'"{exact.message}" shows the record with no noise at all to {case.adversary}'
        yield because(Verdict.REFUTED, "DPA101", shown, exact)
    if case.refuted:
        n = case.n_tested
        among = f", which is refuted among {n} statements (Holm)" if n > 1 else ""
        reason = f"{case.claims}{among}; {case.certified} against {case.adversary}."
        yield Decision(Verdict.REFUTED, "DPA102", reason, case.best_test)
    if declared is not None and declared.metrics[Name.EPSILON].low == inf:
        noiseless = "a message that depends on the data is sent with no noise at all"
        yield because(Verdict.REFUTED, "DPA103", noiseless, declared)
    for role, code, what in (
        (Role.DECLARED, "DPA104", "the noise that is declared"),
        (Role.EXACT_LEAK, "DPA105", "the noise that is really added"),
        (Role.MEASURED, "DPA106", "what was measured of a record and the noise"),
    ):
        finding = case.first(role)
        if finding is not None and finding.verdict is Verdict.UNSUPPORTED:
            if finding.message is not None and role is Role.MEASURED:
                code, said = (
                    "DPA107",
                    f"{finding.message} moves with the record, and no noise hides it",
                )
            else:
                said = f"{what} gives {epsilon_of(finding, case.claimed)} to {case.adversary}"
            yield because(Verdict.UNSUPPORTED, code, said, finding)
    unsupported = [f for f in case.findings if f.verdict is Verdict.UNSUPPORTED]
    for finding in (f for f in unsupported if f.kind == "sensitivity"):
        code = "DPA109" if finding.role is Role.DEPENDENCE else "DPA108"
        yield because(Verdict.UNSUPPORTED, code, _moves(finding), finding)
    for finding in (f for f in unsupported if f.role is Role.NOISE):
        other = f"{_other_noise(finding)} (p = {finding.metrics[Name.P_VALUE].value:.1g})"
        yield because(Verdict.UNSUPPORTED, "DPA110", other, finding)


def _moves(finding: Finding) -> str:
    """What a sensitivity finding says against what is stated, as a clause."""
    if finding.role is Role.DEPENDENCE:
        n = finding.value(Name.FOUND) or 0
        return (
            f"{n:.0f} {'things' if n != 1 else 'thing'} beside the values of messages "
            f"{'depend' if n != 1 else 'depends'} on the data, which no accounting covers"
        )
    moved, stated = map(finding.value, (Name.MEASURED, Name.STATED_BOUND))
    if moved is None:
        return f"a measured sensitivity exceeds its bound: {finding.title}"
    moves = f'"{finding.message}" moves by {moved:.3g} when the data change'
    ratio = finding.value(Name.MEASURED_OVER_STATED)
    if stated is None or ratio is None or ratio <= WITHIN_BOUND:
        return f"{moves}, and no noise hides it"
    return f"{moves}, {apart(ratio, 1)} times the bound that its noise is made for ({stated:.3g})"


def _other_noise(finding: Finding) -> str:
    """What a finding against the noise says, as a clause."""
    if Name.NOISE_FACTOR in finding.metrics:
        factor = finding.metrics[Name.NOISE_FACTOR].value
        return (
            f"runs with the record in a batch tell of {apart(factor, 1)} times the declared noise, "
            "or less"
        )
    if finding.claim is None:
        independent = "the messages of the real run do not carry independent noise in every number"
        return f"{independent}: {finding.title}"
    return "the noise really drawn is not the independent noise that the defense asks for"


def _undecided(case: ClaimCase) -> Iterator[Decision]:
    """Whether accounting settles a claim that nothing speaks against; else the power of the audit.

    Whatever is claimed holds against an adversary without a view, and says nothing. Nothing judges
    a program whose sampling is not known.
    """

    def powerless(code: str, reason: str, finding: Finding | None = None) -> Decision:
        return Decision(Verdict.UNDERPOWERED, code, reason, finding)

    if case.judging.reads_nothing:
        yield powerless(
            "DPA111",
            "This adversary reads nothing: none of its links is in the graph of any round. Nothing "
            "is supported or refuted by what it sees.",
        )
    if case.judging.unjudged is not None:
        yield powerless("DPA112", f"{case.claims}; {case.judging.unjudged}.")
    if case.is_supported:
        accounting = case.accounting
        assert accounting is not None
        what = "Accounting" if accounting.role is Role.DECLARED else "What was measured"
        held = "each premise that this rests on was examined and held"
        reason = f"{_stands(what, accounting, case)}, and {held}{case.also}."
        yield Decision(Verdict.SUPPORTED, "DPA141", reason, accounting)
    test, accounted = case.best_test, _accounted(case)
    if test is None:
        none = "and no attack in this audit could certify a lower bound on epsilon"
        yield powerless("DPA113", f"{accounted}, {none}.")
        return
    top = test.metrics[Name.CEILING].value
    if top <= case.claimed:
        needed = test.metrics[Name.TRIALS_NEEDED].value
        runs = f"{needed:.3g} runs of each world"
        if needed == inf:
            runs = "no number of runs that can be played"
        perfect = f"Even a perfect attack with these runs certifies {top:.3g} at most"
        yield powerless("DPA114", f"{accounted}. {perfect}; {runs} would do.", test)
    controls = case.of(Role.POSITIVE_CONTROL)
    if controls and not any(control.verdict is Verdict.REFUTED for control in controls):
        said = f"The positive control, which has no noise, {_not_found(case)}."
        yield powerless("DPA115", f"{accounted}. {said}", test)
    if case.bound == 0:
        expected = test.metrics.get(Name.EXPECTED_BOUND)
        hoped = f" ({expected.value:.3g} was to be expected)" if expected else ""
        none = "certified nothing: no smaller claim would have been refuted either"
        attack = f"The attack {none}{hoped}{case.of_declared_family}"
        yield powerless("DPA116", f"{accounted}. {attack}.", test)
    if case.bound > case.claimed:  # this test alone
        more = "more than is claimed, but not beside the other tests of this audit (Holm)"
        reason = f"{accounted}; {case.certified} by itself, {more}. More runs would tell."
        yield Decision(Verdict.NOT_REFUTED, "DPA117", reason, test)
    smaller = apart(case.claimed / case.bound, 1)
    times = f"a claim {smaller} times smaller would have been refuted"
    reason = f"{accounted}; {case.certified}: {times}. This is no proof of privacy."
    yield Decision(Verdict.NOT_REFUTED, "DPA118", reason, test)


def _not_found(case: ClaimCase) -> str:
    """Why a run without noise was not refuted: too few runs, or too little that they reveal."""
    best = max(control.metrics[Name.CEILING].value for control in case.of(Role.POSITIVE_CONTROL))
    if best <= case.claimed:
        return (
            "is played in fewer runs, by which even a perfect attack certifies "
            f"{best:.3g} at most; more runs of each world would do"
        )
    return "was not refuted either: the runs tell this adversary too little about the record"


def _accounted(case: ClaimCase) -> str:
    """What accounting says where nothing speaks against a claim, as the beginning of a sentence.

    Where what is declared is void, the algebra of the view stands in its place.
    """
    declared = case.first(Role.DECLARED)
    if declared is None:
        measured = case.first(Role.MEASURED)
        return case.claims if measured is None else _of_measured(measured, case)
    if declared.void is None:
        return _on_its_premise(declared, case)
    exact = case.first(Role.EXACT_LEAK)
    void = f"what is declared is void, for {declared.void}"
    if exact is None or exact.void is not None or Name.EPSILON not in exact.metrics:
        return f"{case.claims}, which no accounting supports: {void}"
    return f"{_stands('The noise that is really added', exact, case)}; {void}"


def _on_its_premise(declared: Finding, case: ClaimCase) -> str:
    """Accounting, which supports a claim only if the noise has the law that it is said to have."""
    missed = case.unconfirmed
    if not missed or float(declared.metrics[Name.EPSILON].high or 0) > case.claimed:
        return _stands("Accounting", declared, case)
    figures = f"{epsilon_of(declared)}, {case.claimed:.3g} claimed"
    return (
        f"Accounting would support the claim ({figures}) if the noise had the declared law, which "
        f"was not confirmed of {', and of '.join(missed)}"
    )


def _of_measured(finding: Finding, case: ClaimCase) -> str:
    """What measurements say; without an upper end they never support a claim."""
    if finding is case.accounting:
        return _stands("What was measured", finding, case)
    low = float(finding.metrics[Name.EPSILON].low or 0)
    if low == 0:
        return f"{case.claims}; what was measured says nothing of this adversary"
    said = f"epsilon {low:.3g} at delta {finding.metrics[Name.DELTA].value:g}"
    return f"{case.claims}; what was measured comes to {said}, which does not contradict it"


def _stands(what: str, finding: Finding, case: ClaimCase) -> str:
    """A figure beside the claim; that it supports the claim is said where the premises held."""
    stands = "supports" if case.is_supported else "stays within"
    if float(finding.metrics[Name.EPSILON].high or 0) > case.claimed:
        stands = "does not settle"
    figure = epsilon_of(finding, case.claimed)
    return f"{what} {stands} the claim ({figure}, {case.claimed:.3g} claimed)"


def meaning(case: ClaimCase, verdict: Verdict) -> str:
    """How far an adversary's odds can rise: at epsilon e, at most e^e-fold but for delta.

    An upper end is said only where all premises held; else, what accounting gives if they do.
    """
    odds = f"the odds of {case.adversary} {SECRETS[case.judging.claim.adjacency]}"
    on_agents = case.judging.claim.adjacency in ("function", "agent-identity")
    whose = "For an agent" if on_agents else "For the owner of a record"
    allowed = f"the claim allows {_fold(case.claimed)}"
    least, most = case.least, case.most if case.held else inf
    if least == inf:
        return f"{whose}: nothing bounds {odds}; {allowed}."
    if verdict is Verdict.REFUTED or least > case.claimed:
        return f"{whose}: {odds} can rise {_between(least, most)}; {allowed}."
    if verdict is Verdict.UNSUPPORTED or most == inf:
        accounted = "" if verdict is Verdict.UNSUPPORTED else _if_premises_hold(case)
        return f"{whose}: no bound on how far {odds} can rise is proven here; {accounted}{allowed}."
    rise = "do not rise" if _fold(most) == "1-fold" else f"rise {_fold_at_most(most)}"
    return f"{whose}: {odds} {rise}, by accounting; {allowed}."


def _if_premises_hold(case: ClaimCase) -> str:
    """What accounting gives where its premises were not all examined; "" if one failed."""
    accounting = case.accounting
    if accounting is None or any(premise.status == "failed" for premise in case.premises):
        return ""
    high = accounting.metrics[Name.EPSILON].ends[1]
    return "" if high == inf else f"accounting gives {_fold(high)} if its premises hold, "


def _between(least: float, most: float) -> str:
    """How far odds can rise; once where both ends are written alike."""
    if _fold(least) == _fold(most) or least > MILLIONFOLD:
        return _fold(least)
    if not least <= most < inf:
        return f"{_fold(least)} or more"
    return f"{_fold(least)} or more, and {_fold_at_most(most)}"


def _fold_at_most(epsilon: float) -> str:
    return f"e^{epsilon:.3g}-fold at most" if epsilon > MILLIONFOLD else f"{_fold(epsilon)} at most"


def _fold(epsilon: float) -> str:
    if epsilon > MILLIONFOLD:
        return "more than a million-fold"
    times = exp(epsilon)
    return f"{times:,.0f}-fold" if times >= 100 else f"{apart(times, 1)}-fold"
