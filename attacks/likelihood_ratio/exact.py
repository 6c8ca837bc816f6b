"""What a view leaks by the protocol's own algebra, without a single run."""

from math import inf

from dpaudit.files.finding import Column, Finding, Metric, Name, Role
from dpaudit.files.verdict import Verdict
from dpaudit.game.adversary import Leak
from dpaudit.game.worst import record_note, worst_epsilon

from .question import Question, is_pure

_PROBED = (
    "from the defense's own step, probed with unit noise around a run without records; exact for "
    "defenses that are linear in their noise"
)


def exact_leak(question: Question) -> Finding:
    """The leak of the strongest adversary; a verdict only where it is proven for this run."""
    if question.algebra is None:
        return _no_figure(question)
    leak, claimed, delta = question.algebra.leak, question.claimed, question.delta
    at = delta if delta > 0 or is_pure(question.mechanism) else 1e-5
    exact = worst_epsilon(question.mechanism, question.worst, at, question.adjacency)
    certain = leak.separate or question.in_round is not None
    verdict = None
    if leak.unhidden:
        verdict = Verdict.REFUTED
    elif certain and exact.low > claimed:
        verdict = Verdict.UNSUPPORTED
    high = exact.high if question.nonlinear is None else inf
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
            Name.EPSILON: Metric(value=min(exact.high, high), low=exact.low, high=high),
            Name.CLAIMED_EPSILON: Metric(value=claimed),
            Name.DELTA: Metric(value=at),
            Name.LARGEST_MU_OF_A_ROUND: Metric(value=max(mu, default=0.0)),
        },
        verdict=verdict,
        notes=tuple(_notes(question, leak, certain)),
        series={Column.ROUND: tuple(range(1, len(mu) + 1)), Column.MU: tuple(mu)},
    )


def _no_figure(question: Question) -> Finding:
    """The algebra says nothing of a step that is not linear, but of what no noise reaches."""
    nonlinear = question.nonlinear
    assert nonlinear is not None
    bare = nonlinear.bare
    shown = () if bare is None else (f'round {bare[0]}: "{bare[1]}" shows the record bare',)
    return Finding(
        role=Role.EXACT_LEAK,
        kind="accounting",
        title="exact leak of the view",
        claim=question.index,
        attack="likelihood-ratio",
        threat_model=question.threat_model.name,
        message=None if bare is None else bare[1],
        rounds=(1, question.n_rounds),
        verdict=None if bare is None else Verdict.REFUTED,
        notes=(nonlinear.note, *shown),
    )


def _notes(question: Question, leak: Leak, certain: bool) -> list[str]:
    n_rounds, whole = question.n_rounds, question.game.defense.n_rounds
    notes = [f"the record is agent {question.game.victim}'s", _PROBED]
    record = record_note(question.game)
    if record is not None:
        notes.append(record)
    if question.nonlinear is not None:
        notes.append(question.nonlinear.note)
    if n_rounds < whole and question.in_round is None:
        notes.append(f"the first {n_rounds} of {whole} rounds; the run leaks at least as much")
    if not certain:
        notes.append(
            "a record's effect outlasts its round in this view; the rounds are composed as if it "
            "did not, an approximation"
        )
    return notes + [
        f'round {k}: "{message}" shows the record without noise'
        for k, message in list(leak.unhidden.items())[:1]
    ]
