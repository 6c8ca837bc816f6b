"""What a view leaks by the protocol's own algebra, without a single run."""

from dpaudit.accounting.releases import Interval, epsilon
from dpaudit.files.finding import Column, Finding, Metric, Name, Role
from dpaudit.files.verdict import Verdict

from .question import Question, is_pure

_PROBED = (
    "from the defense's own step, probed with unit noise around a run without records; exact for "
    "defenses that are linear in their noise"
)


def exact_leak(question: Question) -> Finding:
    """The leak of the strongest adversary; a verdict only where it is proven for this run."""
    leak, claimed, delta = question.adversary.leak, question.claimed, question.delta
    at = delta if delta > 0 or is_pure(question.mechanism) else 1e-5
    exact = Interval(0.0, 0.0)
    if question.mechanism:
        exact = epsilon(question.mechanism, at, question.adjacency)
    certain = leak.separate or question.in_round is not None
    verdict = None
    if leak.unhidden:
        verdict = Verdict.REFUTED
    elif certain and exact.low > claimed:
        verdict = Verdict.UNSUPPORTED
    mu = leak.by_round.tolist()
    return Finding(
        role=Role.EXACT_LEAK,
        kind="accounting",
        title="exact leak of the view",
        claim=question.index,
        attack="likelihood-ratio",
        threat_model=question.threat_model.name,
        message=next(iter(leak.unhidden.values()), None),
        rounds=(1, question.n_rounds),
        metrics={
            Name.EPSILON: Metric(value=exact.high, low=exact.low, high=exact.high),
            Name.CLAIMED_EPSILON: Metric(value=claimed),
            Name.DELTA: Metric(value=at),
            Name.LARGEST_MU_OF_A_ROUND: Metric(value=max(mu, default=0.0)),
        },
        verdict=verdict,
        notes=tuple(_notes(question, certain)),
        series={Column.ROUND: tuple(range(1, len(mu) + 1)), Column.MU: tuple(mu)},
    )


def _notes(question: Question, certain: bool) -> list[str]:
    n_rounds, whole = question.n_rounds, question.game.defense.n_rounds
    notes = [f"the record is agent {question.game.victim}'s", _PROBED]
    if n_rounds < whole and question.in_round is None:
        notes.append(f"the first {n_rounds} of {whole} rounds; the run leaks at least as much")
    if not certain:
        notes.append(
            "a record's effect outlasts its round in this view; the rounds are composed as if it "
            "did not, an approximation"
        )
    return notes + [
        f'round {k}: "{message}" shows the record without noise'
        for k, message in list(question.adversary.leak.unhidden.items())[:1]
    ]
