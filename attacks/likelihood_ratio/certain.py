"""Whether noise is as declared, where a step is not linear in it: runs with the record drawn.

No algebra tells the noise of such a step, and runs in which a record is seldom in a batch tell
little of it. So it is in the batch of one round for certain. Whatever the step makes of what is
released there, no test tells the two worlds apart better than as many of the declared releases as
there are for each round, of batches that are not drawn by chance.
"""

from math import ceil

from dpaudit.accounting.releases import Mechanism
from dpaudit.defense.contract import CHANGED_RECORDS, Defense
from dpaudit.errors import DpauditError
from dpaudit.files.finding import Finding, Metric, Name, Role
from dpaudit.files.verdict import Verdict
from dpaudit.game.play import Worlds
from dpaudit.game.reacting import with_every_link
from dpaudit.statistics.bounds import family_from_scores
from dpaudit.statistics.noise_factor import noise_factor_bound, noise_p_value

from .controls import DIFFERENT
from .question import Question
from .runs import Score

FEW = 4  # distinct releases at most, which are composed again and again


def declared_of_a_draw(question: Question) -> Mechanism | None:
    """What is declared of a record that is drawn for certain, at most; None: nothing to be tested.

    To who reads every link. Of all releases those with the least noise count.
    """
    game, everybody = question.game, with_every_link(question.threat_model)
    if question.nonlinear is None or question.nonlinear.quiet:
        return None
    if game.adjacency not in CHANGED_RECORDS:  # more than a record is what the game moves
        return None
    defense: Defense = game.defense
    try:
        declared = defense.mechanism(game.setting, everybody, game.victim).most
    except DpauditError:  # it says nothing of such a view
        return None
    n = ceil(sum(release.count for release in declared) / defense.n_rounds)
    first = []
    for release in sorted(declared, key=lambda release: release.noise_multiplier):
        count = min(n, release.count)
        n -= count
        update = {
            "count": count,
            "sampling": "none",
            "sampling_rate": 1.0,
            "noise_multiplier": release.noise_multiplier / game.displacement,
        }
        first += [release.model_copy(update=update)] if count else []
    usable = 0 < len(first) <= FEW and first[0].noise_multiplier > 0
    return first if usable else None


def noise_by_runs(question: Question, declared: Mechanism, drawn: Worlds, score: Score) -> Finding:
    """Whether runs with the record in the batch are told apart better than is declared."""
    alpha, adjacency = DIFFERENT, question.adjacency
    found = family_from_scores(*score(drawn), question.alpha, score.choosing)
    counts = found.fp, found.fn, found.n0, found.n1
    p = noise_p_value(*counts, declared, adjacency)
    factor = noise_factor_bound(*counts, question.delta, alpha, declared, adjacency).noise_factor
    assert question.nonlinear is not None
    notes = (
        question.nonlinear.note,
        f"{found.n0} runs of each world, with the record in the batch of one round for certain; no "
        "test tells them apart better than as many declared releases as there are for each round",
    )
    return question.finding(
        Role.NOISE,
        "noise really drawn",
        world="defense",
        metrics={
            Name.P_VALUE: Metric(value=p, n=found.n0 + found.n1),
            Name.NOISE_FACTOR: Metric(value=factor),
        },
        verdict=Verdict.UNSUPPORTED if p < DIFFERENT else None,
        notes=notes,
    )
