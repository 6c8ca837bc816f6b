"""What samples of mutual information take, in memory and time, before any of it is spent."""

from dpaudit.attack.contract import AttackContext
from dpaudit.attack.victims import VIEW
from dpaudit.defense.contract import Defense, Setting
from dpaudit.defense.footprint import Footprint
from dpaudit.training.classification import Classification
from dpaudit.training.costs import PATIENCE, Pace, gradient_bytes, seconds_of
from dpaudit.training.trials import TrialProblem, run_trials

from .samples import FEWEST, Question, blocks, last_round, read_of, span_of

COPIES = 3  # of the messages of a window: as sent, as read, as observations in a row
CHECKPOINT = 2  # copies of what is kept of a block, while it is written
ESTIMATOR = 64 * 10**6  # bytes: code that is compiled when it is first used
SOON = 2 * 10**6  # numbers of models that are soon played


def samples_bytes(
    question: Question, defense: Defense, problem: TrialProblem, setting: Setting, trials: int
) -> int:
    """Bytes of the largest block of runs, and of the columns that are kept of all of them."""
    step, d, size = Footprint.of(defense, setting), setting.d, max(blocks(trials, setting))
    names, last = read_of(question.message, defense), max(question.rounds)
    kept = size * len(span_of(question.message, defense, last)) * step.recorded(names, d)
    kept *= COPIES if question.message == VIEW else 1
    playing = step.round(d, size)
    if isinstance(problem, Classification):
        playing += gradient_bytes(problem, defense, setting, step.gradients, size)
    rows = max(1, step.recorded(names, d) // (4 * d * setting.n_agents))  # of one victim
    reducing = 4 * 8 * size * rows * d
    writing = CHECKPOINT * (kept + int(4 * size * step.state * d))
    columns = question.components + question.view_components
    columns = (rows + 1) * d if question.reduction == "none" else columns
    found = 6 * 8 * trials * len(question.rounds) * columns
    return ESTIMATOR + kept + playing + reducing + writing + found


def runs_seconds(question: Question, context: AttackContext, trials: int, pace: Pace) -> float:
    """Of the runs of one world, by one round of as many at once as are soon played."""
    defense, setting = context.defense, context.setting
    own = context.streams.child("pace")
    n = min(trials, max(FEWEST, SOON // (setting.n_agents * setting.d)))
    n = min(n, max(blocks(trials, setting)))

    def play() -> object:
        block = context.problem.for_trials(own, own, n, question.victim)
        return run_trials(defense, block, setting, own, n, lambda k, round: None, 1)

    one = pace.round if pace.round > PATIENCE else seconds_of(play) / n
    return last_round(question, defense) * trials * one
