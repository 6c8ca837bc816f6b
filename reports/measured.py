"""What a row of a leaderboard takes from one audit: the figures of a claim against an adversary.

Nothing is computed but differences from the blind guess, and means over agents and over rounds. Of
several attacks of a kind the one that found most stands for all.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dpaudit.files.finding import Column, Finding, Metric, Name, Role, claim_column
from dpaudit.files.result import AuditResult, Curve, JudgedClaim

from .compared import ClaimFigures, ComparedRun
from .run import Run


class Measured(NamedTuple):
    """Of one audit, against one of its adversaries, one of its claims; None where it has none."""

    graph: str
    adversary: str  # "" where the audit names none
    claim: JudgedClaim | None
    accounted: Metric | None  # epsilon of one record over the whole run, between its ends
    void: str | None  # what falsifies that
    figures: Mapping[str, float]  # those of ``FIGURES`` that the audit has
    unavailable: frozenset[str]  # those that it was asked for and has not
    loss_is: str  # what its loss is


class _Asked(NamedTuple):
    """Which part of an audit its figures are asked of."""

    run: ComparedRun
    adversary: str
    place: ClaimFigures | None

    def most(self, role: Role, name: Name) -> Finding | None:
        """The finding on the defense with the largest such metric against this adversary."""
        told = [
            f
            for f in self.run.result.findings
            if (f.role, f.threat_model) == (role, self.adversary)
            and f.world in (None, "defense")
            and f.void is None
            and not math.isnan(f.metrics[name].value if name in f.metrics else math.nan)
        ]
        return max(told, key=lambda f: f.metrics[name].value, default=None)


class Figure(NamedTuple):
    """A column of a leaderboard."""

    heading: str
    of: Callable[[_Asked], float | None]
    role: Role | None = None  # of the findings it comes from, whatever they found
    is_share: bool = False  # from 0 to 1, and so is its interval


def measured(result: AuditResult) -> Iterator[Measured]:
    """Each adversary of an audit with each claim against it, or with none."""
    run = ComparedRun(Run("", 0, result, Path()), is_baseline=False)
    named = [*(m.name for m in result.threat_models), *(c.threat_model for c in result.claims)]
    final = run.utility.get("defense")
    for adversary in dict.fromkeys(named) or [""]:
        places: list[ClaimFigures | None] = [
            place for place in run.claims if place.claim.threat_model == adversary
        ]
        roles = {f.role for f in result.findings if f.threat_model == adversary}
        for place in places or [None]:
            asked = _Asked(run, adversary, place)
            told = {key: figure.of(asked) for key, figure in FIGURES.items()}
            found = {k: x for k, x in told.items() if x is not None and not math.isnan(x)}
            yield Measured(
                result.graph.name,
                adversary,
                None if place is None else place.claim,
                None if place is None else place.accounted.metric,
                None if place is None else place.accounted.void,
                found,
                frozenset(k for k, one in FIGURES.items() if one.role in roles and k not in found),
                "" if final is None else final.loss_is,
            )


def _certified(asked: _Asked) -> float | None:
    return None if asked.place is None else asked.place.certified.most


def _confidence(asked: _Asked) -> float | None:
    """Of the certified bound, by the tests that a claim rests on."""
    if asked.place is None:
        return None
    evidence = (asked.run.result.findings[i] for i in asked.place.claim.because)
    told = [f.value(Name.CONFIDENCE) for f in evidence if f.role is Role.TEST]
    return min((x for x in told if x is not None), default=None)


def _above_blind(name: Name) -> Callable[[_Asked], float | None]:
    """The best reconstruction less the best guess that saw no message, of the same targets."""

    def of(asked: _Asked) -> float | None:
        leads = []
        for scenario in asked.run.run.scenarios_of(asked.adversary):
            for k in scenario.rounds:
                own, blind = (
                    [x for e in scenario.at(w, k) if (x := e.finding.value(name)) is not None]
                    for w in ("defense", "blind")
                )
                if own and blind:
                    leads.append(max(own) - max(blind))
        return max(leads, default=None)

    return of


def _of(
    role: Role, heading: str, name: Name, most_of: Name | None = None, is_share: bool = False
) -> Figure:
    """A metric of the finding that has most of it, or of another one."""

    def of(asked: _Asked) -> float | None:
        found = asked.most(role, most_of or name)
        return None if found is None else found.value(name)

    return Figure(heading, of, role, is_share)


def _claim_allows(asked: _Asked) -> float | None:
    """The share of targets that any attacker can reconstruct, if the claim holds."""
    found = asked.most(Role.RECONSTRUCTED_SHARE, Name.RECONSTRUCTED)
    if found is None or asked.place is None:
        return None
    levels = found.series.get(Column.PSNR_AT_LEAST, ())
    allowed = found.series.get(claim_column(asked.place.claim.claim), ())
    threshold = found.value(Name.THRESHOLD)
    return next((x for at, x in zip(levels, allowed, strict=False) if at == threshold), None)


def _accuracy(world: str) -> Callable[[_Asked], float | None]:
    def of(asked: _Asked) -> float | None:
        final = asked.run.utility.get(world)
        return None if final is None or final.accuracy is None else final.accuracy.value

    return of


def _loss(asked: _Asked) -> float | None:
    final = asked.run.utility.get("defense")
    return None if final is None else final.loss.value


def _a_round(column: Callable[[Curve], Sequence[int]]) -> Callable[[_Asked], float | None]:
    """What was sent, a round on average."""

    def of(asked: _Asked) -> float | None:
        curve = asked.run.result.utility.get("defense")
        if curve is None or not column(curve):
            return None
        return column(curve)[-1] / curve.rounds[-1]

    return of


FIGURES: Mapping[str, Figure] = {
    "certified_epsilon": Figure("certified epsilon, at least", _certified, Role.TEST),
    "confidence": Figure("confidence of that", _confidence, Role.TEST),
    "psnr_above_blind": Figure(
        "PSNR above blind (dB)", _above_blind(Name.PSNR), Role.RECONSTRUCTION
    ),
    "ssim_above_blind": Figure("SSIM above blind", _above_blind(Name.SSIM), Role.RECONSTRUCTION),
    "share_reconstructed": _of(
        Role.RECONSTRUCTED_SHARE, "share reconstructed", Name.RECONSTRUCTED, is_share=True
    ),
    "share_claim_allows": Figure(
        "share that the claim allows", _claim_allows, Role.RECONSTRUCTED_SHARE, True
    ),
    "share_accounting_allows": _of(
        Role.RECONSTRUCTED_SHARE,
        "share that accounting allows",
        Name.ACCOUNTING_ALLOWS,
        Name.RECONSTRUCTED,
        is_share=True,
    ),
    "tpr_at_1%_fpr": _of(
        Role.MEMBERSHIP, "membership: TPR at 1% FPR", Name.TPR_AT_001, is_share=True
    ),
    "tpr_at_0.1%_fpr": _of(
        Role.MEMBERSHIP, "membership: TPR at 0.1% FPR", Name.TPR_AT_0001, is_share=True
    ),
    "bits": _of(Role.INFORMATION, "information (bits)", Name.INFORMATION),
    "m_nmi": _of(Role.INFORMATION, "M-NMI", Name.M_NMI, Name.INFORMATION),
    "capacity_bits": _of(
        Role.INFORMATION, "capacity of the noise (bits)", Name.CAPACITY, Name.INFORMATION
    ),
    "test_accuracy": Figure("test accuracy", _accuracy("defense"), is_share=True),
    "test_accuracy_without_noise": Figure(
        "test accuracy without noise", _accuracy("no-defense"), is_share=True
    ),
    "test_loss": Figure("loss", _loss),
    "messages_a_round": Figure("messages a round", _a_round(lambda curve: curve.messages)),
    "bytes_a_round": Figure("bytes a round", _a_round(lambda curve: curve.bytes)),
}
