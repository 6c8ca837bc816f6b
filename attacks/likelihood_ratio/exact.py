"""What a view leaks by the protocol's own algebra, without a single run."""

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from typing import NamedTuple

from dpaudit.accounting.releases import epsilon_where_batches_meet
from dpaudit.attack import Column, Finding, Metric, Name, Role, ThreatModel, Verdict
from dpaudit.defense import Mechanism
from dpaudit.files.finding import known_releases
from dpaudit.game.filtering.adversary import Adversary, reacting_note, with_every_link
from dpaudit.game.filtering.every_release import every_release
from dpaudit.game.worst_case.record import record_note, worst_epsilon
from dpaudit.training.run_directory import RunDirectory

from .question import Question

KNOWN = {"knows_draws": True}
MOST = 4 * 10**5  # entries of the noise of a view that is written; of more it is whitened
LARGE = 10**7  # entries of a record's effects beyond which none are written
ONCE = {"count": 1}


class LeakEnds(NamedTuple):
    """Epsilon of a view from both sides."""

    low: float
    high: float
    least: Mechanism | None = None  # of the lower end; None: no releases
    most: Mechanism | None = None  # of the upper end


def exact_leak(question: Question) -> Finding:
    """The leak of the strongest adversary; a verdict only where it is proven for this run."""
    if question.algebra is None:
        return _no_figure(question)
    leak, claimed, at = question.leak, question.claimed, _at(question)
    found = _interval(question, at)
    exact = question.reacts is None and found.high < inf and not question.meet
    verdict = None
    if leak.noiseless:
        verdict = Verdict.REFUTED
    elif found.low > claimed:
        verdict = Verdict.UNSUPPORTED
    mu = leak.by_round.tolist()
    return question.finding(
        Role.EXACT_LEAK,
        "exact leak of the view" if exact else "leak of the view",
        message=next(iter(leak.noiseless.values()), None),
        rounds=(1, question.n_rounds),
        metrics={
            Name.EPSILON: Metric(
                value=found.high if found.high < inf else found.low, low=found.low, high=found.high
            ),
            Name.CLAIMED_EPSILON: Metric(value=claimed),
            Name.DELTA: Metric(value=at),
            Name.LARGEST_MU_OF_A_ROUND: Metric(value=max(mu, default=0.0)),
            Name.ROUNDS: Metric(value=question.n_rounds, n=question.game.defense.n_rounds),
        },
        releases=known_releases(found.least, found.most),
        verdict=verdict,
        notes=tuple(_notes(question, found)),
        series={Column.ROUND: tuple(range(1, len(mu) + 1)), Column.MU: tuple(mu)},
    )


def with_matrices(finding: Finding, question: Question, run: RunDirectory) -> Finding:
    """The finding, whose lower end others can derive again from the matrices of the view.

    There are none where that end is of other releases than the uses of a record under Gaussian
    noise.
    """
    if question.algebra is None or "least" not in finding.releases:
        return finding
    leak, game, k = question.leak, question.game, question.in_round
    plain = not (leak.has_laplace or leak.noiseless or question.meet)
    if not plain or finding.releases["least"] != leak.mechanism(game, k):
        return finding
    view = question.algebra.linear_view(MOST)
    if k is not None:
        view = view.only(range((k - 1) * leak.batches + 1, k * leak.batches + 1))
    if view.record.size > LARGE:
        return finding
    name, content = view.file(game.displacement, game.filled)
    run.write(name, content)
    return finding.model_copy(update={"artifacts": {"linear view": name}})


def _at(question: Question) -> float:
    """The delta of its epsilon."""
    return question.delta if question.delta > 0 or is_pure(question.mechanism) else 1e-5


def _interval(question: Question, delta: float) -> LeakEnds:
    """Epsilon of the view, from both sides.

    Where gradients react to what the view hides, the algebra gives the lower end (others may have
    no gradients). That of every link gives the upper one, if no gradient reacts there.
    """
    given = _of_given_gradients(question, delta)
    if question.reacts is None:
        return given
    if question.nonlinear is not None:
        return given._replace(high=inf, most=None)
    everybody = with_every_link(question.threat_model).model_copy(update=KNOWN)
    algebra = Adversary(replace(question.game, spread=1), everybody, question.n_rounds)
    reads_all = replace(question, threat_model=everybody, adversary=algebra, algebra=algebra)
    network = question.game.setting.network
    if algebra.reacts and network.weather is not None:  # nobody reads what is lost
        heard = every_release(algebra.game, everybody, question.n_rounds, network.all_heard)
        algebra = algebra if isinstance(heard, str) else heard
        reads_all = replace(reads_all, game=algebra.game, adversary=algebra, algebra=algebra)
    if algebra.reacts:
        return given._replace(high=inf, most=None)
    reads = _of_given_gradients(reads_all, delta)
    return given if reads.high < given.low else given._replace(high=reads.high, most=reads.most)


def _of_given_gradients(question: Question, delta: float) -> LeakEnds:
    """Epsilon of the view where gradients do not depend on what it hides.

    The lower end is attained by a record whose gradients have directions of their own wherever they
    are taken: uses of one inclusion as ``filtering.leak`` has it, uses of different inclusions
    on coordinates of their own, so that their leaks compose; without a coordinate for each, that of
    one inclusion. Where effects of different inclusions meet in one round, a record of one
    direction may show more (``_of_one_direction``). The upper end is then that of releases of which
    the view is a part (``record_uses``), or of which the view of every link is one, whichever is
    less. None is proven of Laplace noise there. Where a view does not recover all Laplace draws,
    its loss is at most that of all draws.
    """
    leak, game, in_round = question.leak, question.game, question.in_round
    if game.held is not None:
        return LeakEnds(0.0, inf)  # how many of the user's records a batch has is random
    if not leak.is_proven:
        return LeakEnds(0.0, _pure_loss_of_all(question))
    if question.guesses:
        known = replace(question, threat_model=question.threat_model.model_copy(update=KNOWN))
        return _of_given_gradients(known, delta)._replace(low=0.0, least=None)
    low, high = (leak.mechanism(game, in_round, high=end) for end in (False, True))
    if question.meet and game.directions < len(leak.by_use):  # no coordinate for each inclusion
        low = low[:1] and (min(low, key=lambda r: r.noise_multiplier).model_copy(update=ONCE),)
    d = 1 if question.meet else question.worst  # inclusions that meet take a coordinate each
    at_least, at_most = (worst_epsilon(end, d, delta, question.adjacency) for end in (low, high))
    ends = LeakEnds(
        at_least.low,
        max(at_least.low, at_most.high),  # rounding may have them the other way round
        low if d == 1 else None,
        high if d == 1 else None,
    )
    if question.meet:
        least = max(ends.low, _of_one_direction(question, delta))
        ends = LeakEnds(least, min(_of_part(question, delta), _of_every_link(question, delta)))
    wider = question.wider
    if wider is not None:  # a message reveals more in the model's own dimension
        own = (wider.release,) if wider.release else ()
        alone = worst_epsilon(own, 1, delta, question.adjacency).low
        ends = LeakEnds(alone, inf, own) if alone > ends.low else ends
    by_itself = question.revealed is None or question.revealed.alone
    if wider is None and question.nonlinear is None and by_itself:
        return ends
    return ends._replace(high=inf, most=None)


def _of_one_direction(question: Question, delta: float) -> float:
    """The lower end of uses that meet, of a record of one direction in each round or in all."""
    ways = question.leak.meetings(question.game, question.in_round)
    found = (epsilon_where_batches_meet(way, delta, question.adjacency) for way in ways)
    return max(found, default=0.0)


def _of_part(question: Question, delta: float) -> float:
    """The upper end of uses that meet, by releases that reveal no less."""
    if question.leak.has_laplace:
        return inf
    mechanism = question.leak.mechanism(question.game, question.in_round, high=True)
    return worst_epsilon(mechanism, 1, delta, question.adjacency).high


def _of_every_link(question: Question, delta: float) -> float:
    """The upper end of an adversary that knows the same and reads every link."""
    everybody = with_every_link(question.threat_model)
    if everybody == question.threat_model:
        return inf
    algebra = Adversary(question.game, everybody, question.n_rounds)
    return _of_part(replace(question, algebra=algebra), delta)


def _pure_loss_of_all(question: Question) -> float:
    """What the record costs against an eavesdropper who is given every draw's sum, at delta 0."""
    if question.worst > 1 or question.nonlinear is not None:
        return inf
    leak = Adversary(question.game, ThreatModel(name="every link"), question.n_rounds).leak
    if not leak.is_pure or leak.noiseless:
        return inf
    losses = leak.mechanism(question.game, question.in_round)
    return worst_epsilon(losses, 1, 0.0, question.adjacency).high


def _no_figure(question: Question) -> Finding:
    """The algebra covers no step that is not linear, but for what no noise reaches."""
    nonlinear = question.nonlinear
    assert nonlinear is not None
    shown, notes = nonlinear.noiseless, [nonlinear.note]
    if shown is not None:
        notes.append(f'round {shown[0]}: "{shown[1]}" shows the record without noise')
    return question.finding(
        Role.EXACT_LEAK,
        "exact leak of the view",
        message=None if shown is None else shown[1],
        rounds=(1, question.n_rounds),
        verdict=None if shown is None else Verdict.REFUTED,
        notes=tuple(notes),
    )


def _notes(question: Question, found: LeakEnds) -> Iterator[str]:
    leak, game, n_rounds = question.leak, question.game, question.n_rounds
    yield f"the record is agent {game.victim}'s"
    yield "from the defense's own step, played with unit noise around a run without records"
    if question.reacts is None:
        yield "exact for steps linear in noise: the view reveals every model of a gradient"
    else:
        yield reacting_note(question.reacts)
    record = record_note(game if question.nonlinear is None else replace(game, spread=1))
    if record is not None:
        yield record
    if question.nonlinear is not None:
        yield question.nonlinear.note
    if question.wider is not None:
        yield question.wider.note
    if question.guesses:
        yield (
            "an adversary that knows the graphs drawn learns at most this; for one that does not, "
            "no lower end is proven"
        )
    if n_rounds < game.defense.n_rounds and question.in_round is None:
        yield (
            f"the first {n_rounds} of {game.defense.n_rounds} rounds; the run leaks at least as "
            "much"
        )
    if question.revealed is not None and not question.revealed.alone:
        yield (
            f"of a record used in round {question.in_round} alone, where a message reveals it "
            "first. Rounds reveal several rounds' gradients, so no upper end is proven"
        )
    if game.held is not None:
        yield (
            "a Poisson batch has a random number of the user's records, and the algebra is of a "
            "fixed one. So there is no figure here; the runs draw the number"
        )
    elif not leak.is_proven:
        yield (
            "this view does not recover every Laplace draw, so its mu is no epsilon. No lower end "
            "is proven; the upper end is the loss of all draws together"
        )
    elif question.meet:
        yield _of_which_record(question, found)
    if leak.shown is not None:
        k, message = leak.shown
        yield f'round {k}: "{message}" shows the record without noise'


def _of_which_record(question: Question, found: LeakEnds) -> str:
    """Say which record the ends of the leak belong to where uses meet, and why they meet."""
    at = _at(question)
    why, direction = "a record's effect outlasts its round in this view", "another in each batch"
    if question.leak.batches > 1:
        why = "several batches meet in one message"
    if found.low <= _of_one_direction(question, at):
        direction = "one wherever they meet"
    upper = ""
    if question.reacts is None and found.high == inf:
        upper = "; no upper end is proven"
    elif question.reacts is None and found.high < _of_part(question, at):
        upper = "; the upper end is that of an adversary that knows the same and reads every link"
    elif question.reacts is None:
        upper = "; the upper end is that of independent releases of which the view is a part"
    return f"{why}: the lower end is that of a record whose direction is {direction}{upper}"


def is_pure(mechanism: Mechanism) -> bool:
    """Whether all noise is Laplace noise, which has an epsilon at delta = 0."""
    return all(release.family == "laplace" for release in mechanism)
