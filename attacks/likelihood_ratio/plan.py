"""How many runs are counted, and of how many rounds, where the audit file leaves that open.

More rounds leak more, and more runs certify more of it. Both together are limited by ``WORK``. For
each number of rounds as many runs are taken as the work allows, and the bound that they can be
expected to certify decides. What it is follows from the leak of these rounds, before any run.
Nothing is timed, so that a config and a seed give the same audit on every machine.
"""

from collections.abc import Iterator
from dataclasses import replace

from dpaudit.attack import Claim, Name
from dpaudit.game.runs.round_shape import GameShape

from .bound import power_of
from .question import WORK, Question, QuestionContext

USUAL = 2000  # runs of each world, where it is not known what they can be expected to certify
FEWEST_PLANNED = 200  # runs of each world
MOST_PLANNED = 50_000  # likewise; so many take 500 MB of memory


def planned(
    asking: QuestionContext, claim: Claim, least: int
) -> tuple[QuestionContext, Question | None]:
    """The question whose runs can be expected to certify most, and how it is asked.

    Args:
        asking: with ``USUAL`` runs of each world.
        least: runs of each world that are needed at any rate.
    """
    asking = replace(asking, trials=max(asking.trials, least))
    usual = asking.question(claim)
    if usual is None or usual.guesses or _expected(usual, asking.trials) is None:
        return asking, usual
    best = _expected(usual, asking.trials) or 0.0, asking, usual
    for n_rounds in _numbers_of_rounds(asking, usual):
        question = usual
        if n_rounds != asking.rounds(usual.game.played):
            question = replace(asking, first_rounds=n_rounds).question(claim) or usual
        runs = max(least, min(MOST_PLANNED, WORK // _work_of_a_run(asking, question)))
        if runs < FEWEST_PLANNED:
            continue
        asked = replace(asking, trials=runs, first_rounds=n_rounds)
        best = max(best, (_expected(question, runs) or 0.0, asked, question), key=lambda p: p[0])
        if runs == MOST_PLANNED:
            break
    return best[1:]


def _numbers_of_rounds(asking: QuestionContext, usual: Question) -> Iterator[int]:
    """All that the algebra follows in moderate time, and by halves fewer of them."""
    n_rounds = asking.context.defense.n_rounds
    if asking.threat_model.has_final_model:
        yield n_rounds
        return
    if asking.first_rounds is not None:
        n_rounds = min(n_rounds, asking.first_rounds)
    shape = GameShape.of(usual.game, usual.threat_model)
    rounds = min(n_rounds, max(asking.rounds(usual.game.played), shape.affordable))
    yield rounds
    while asking.first_rounds is None and rounds > 1:
        rounds = -(-rounds // 2)
        yield rounds


def _work_of_a_run(asking: QuestionContext, question: Question) -> int:
    """Messages of a run of each world."""
    return asking.numbers(question.game.played) // asking.trials * question.n_rounds


def _expected(question: Question, runs: int) -> float | None:
    """Epsilon that so many runs are expected to certify; None where it is not known."""
    metric = power_of(question, runs).get(Name.EXPECTED_BOUND)
    return None if metric is None else metric.value
