"""Evidence against claims that grows from check to check, in the baseline and the cache.

Each audit bets against its claims (``dpaudit.statistics.betting``). As long as a claim holds in all
audits of a history, the product of their wealths has a mean of 1 at most, if each is drawn anew:
it reaches 1 / alpha with probability alpha at most, however long the history gets. An audit with a
seed that was used before replays its noise, so that a seed counts once, whatever the code was then.
Another config, which has the claim and the threat model in it, begins anew.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import accumulate
from math import exp, inf
from sys import float_info
from typing import Annotated, NamedTuple

from pydantic import Field, ValidationError

from dpaudit.files.finding import Name, Role
from dpaudit.files.result import AuditResult
from dpaudit.strict import Strict

AGAINST = "; against "


class Stake(Strict):
    """What one audit won by betting against one claim, as ln(wealth) from a wealth of 1."""

    check: str
    config: str  # hash of the audit as it is written, without its seed
    claim: str  # and against whom
    attack: str
    seed: int
    log_wealth: Annotated[float, Field(allow_inf_nan=False)]
    settled: bool = False  # refuted the claim in a history that a new baseline has closed

    @property
    def history(self) -> "History":
        """The claim and all that must stay the same for evidence to add up."""
        return History(self.check, self.config, self.claim, self.attack)


class History(NamedTuple):
    """One claim of one check in one config, tested by one attack."""

    check: str
    config: str
    claim: str
    attack: str


class AccumulatedEvidence(NamedTuple):
    """All evidence of one history."""

    n: int  # audits
    log_wealth: float  # the most that there was after any of them

    @property
    def p(self) -> float:
        """1 / largest wealth, at most 1."""
        return exp(-max(0.0, self.log_wealth))


def claim_label(sentence: str, threat_model: str) -> str:
    """A claim and its adversary in one line."""
    return f"{sentence}{AGAINST}{threat_model}"


def stakes_of(check: str, config: str, result: AuditResult) -> list[Stake]:
    """What the tests of one audit have won, one for each claim, adversary and attack."""
    found: dict[History, Stake] = {}
    for claim in result.claims:
        for finding in (result.findings[i] for i in claim.because):
            won = finding.value(Name.LOG_WEALTH)
            if finding.role is Role.TEST and won is not None and -inf < won < inf:
                stake = Stake(
                    check=check,
                    config=config,
                    claim=claim_label(claim.sentence, claim.threat_model),
                    attack=finding.attack or finding.title,
                    seed=result.provenance.seed,
                    log_wealth=won,
                )
                found.setdefault(stake.history, stake)
    return list(found.values())


def merged(stakes: Iterable[Stake]) -> tuple[Stake, ...]:
    """The same without those whose seed was staked on the claim before."""
    first: dict[tuple[History, int], Stake] = {}
    for stake in stakes:
        first.setdefault((stake.history, stake.seed), stake)
    return tuple(first.values())


def accumulated(stakes: Sequence[Stake], history: History) -> AccumulatedEvidence:
    """The evidence of a history, in the order in which it came."""
    won = [Fraction(s.log_wealth) for s in stakes if s.history == history and not s.settled]
    most = max(accumulate(won), default=Fraction(0))  # exact sums may exceed the range of floats
    return AccumulatedEvidence(len(won), float(min(most, Fraction(float_info.max))))


def by_history(stakes: Iterable[Stake]) -> dict[History, list[Stake]]:
    """The stakes of each history, in the order in which they came."""
    found: dict[History, list[Stake]] = {}
    for stake in stakes:
        found.setdefault(stake.history, []).append(stake)
    return found


def settled(stakes: Sequence[Stake], refuted: Iterable[History]) -> tuple[Stake, ...]:
    """The same, with the histories of refuted claims closed: their seeds do not count again."""
    closed = set(refuted)
    return tuple(
        s.model_copy(update={"settled": True}) if s.history in closed else s for s in stakes
    )


def as_notes(stakes: Iterable[Stake]) -> tuple[str, ...]:
    """One line of JSON for each."""
    return tuple(stake.model_dump_json() for stake in stakes)


def of_notes(notes: Iterable[str]) -> list[Stake]:
    """What ``as_notes`` made; lines of another version of dpaudit are left out."""
    found = []
    for note in notes:
        try:
            found.append(Stake.model_validate_json(note))
        except ValidationError:
            continue
    return found
