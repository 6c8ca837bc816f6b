"""What a view leaks by the protocol's own algebra, without a single run."""

from collections.abc import Iterator
from dataclasses import replace
from math import inf

from dpaudit.accounting.releases import Interval, epsilon, epsilon_where_batches_meet
from dpaudit.files.finding import Column, Finding, Metric, Name, Role
from dpaudit.files.threat import ThreatModel
from dpaudit.files.verdict import Verdict
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.filtering.gradient_reaction import reacting_note, with_every_link
from dpaudit.game.worst_case.real_dimension import Wider
from dpaudit.game.worst_case.record import record_note, worst_epsilon

from .question import Question, is_pure

KNOWN = {"knows_draws": True}
ONCE = {"count": 1}
EVERY_LINK = ThreatModel(name="every link")
_PROBED = "from the defense's own step, probed with unit noise around a run without records"
_EXACT = "exact for steps linear in noise: the view tells every model that a gradient is taken at"


def exact_leak(question: Question) -> Finding:
    """The leak of the strongest adversary; a verdict only where it is proven for this run."""
    if question.algebra is None:
        return _no_figure(question)
    leak, claimed, at = question.algebra.leak, question.claimed, _at(question)
    found = _interval(question, at)
    exact = question.algebra.reacts is None and found.high < inf and not question.meet
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
        },
        verdict=verdict,
        notes=tuple(_notes(question, found)),
        series={Column.ROUND: tuple(range(1, len(mu) + 1)), Column.MU: tuple(mu)},
    )


def _at(question: Question) -> float:
    """The delta of its epsilon."""
    return question.delta if question.delta > 0 or is_pure(question.mechanism) else 1e-5


def _interval(question: Question, delta: float) -> Interval:
    """Epsilon of the view, from both sides.

    Where gradients react to what the view hides, the algebra gives the lower end (others may have
    no gradients), and that of who reads every link gives the upper one, if no gradient reacts then.
    """
    assert question.algebra is not None
    given = _of_given_gradients(question, delta)
    if question.algebra.reacts is None:
        return given
    if question.nonlinear is not None:
        return Interval(given.low, inf)
    everybody = with_every_link(question.threat_model).model_copy(update=KNOWN)
    game = replace(question.game, spread=1)
    algebra = Adversary(game, everybody, question.n_rounds)
    reads_all = replace(question, threat_model=everybody, adversary=algebra, algebra=algebra)
    high = inf if algebra.reacts else _of_given_gradients(reads_all, delta).high
    return Interval(given.low, max(given.low, high))


def _of_given_gradients(question: Question, delta: float) -> Interval:
    """Epsilon of the view where gradients do not depend on what it hides.

    The lower end is attained by a record whose gradients have directions of their own wherever they
    are taken: uses of one inclusion as ``directions`` has it, uses of different inclusions on
    coordinates of their own, so that their leaks compose; without a coordinate for each, that of
    one inclusion. Where effects of different inclusions meet in one round, a record of one
    direction may show more (``_of_one_direction``), and the upper end is that of releases of which
    the view is a part (``uses``), or of which the view of every link is one, whichever is less;
    none is proven of Laplace noise there. Nor is one where a view has Laplace draws that it does
    not recover, whose loss is that of all draws at most.
    """
    assert question.algebra is not None
    leak, game, in_round = question.algebra.leak, question.game, question.in_round
    if game.held is not None:
        return Interval(0.0, inf)  # how many of the user's records a batch has is random
    if not leak.is_proven:
        return Interval(0.0, _pure_loss_of_all(question))
    if question.guesses:
        known = replace(question, threat_model=question.threat_model.model_copy(update=KNOWN))
        return Interval(0.0, _of_given_gradients(known, delta).high)
    low, high = (leak.mechanism(game, in_round, high=end) for end in (False, True))
    apart = not question.meet
    if not apart and game.directions < len(leak.by_use):  # no coordinate for each inclusion
        low = low[:1] and (min(low, key=lambda r: r.noise_multiplier).model_copy(update=ONCE),)
    d = question.worst if apart else 1  # inclusions that meet take a coordinate each
    least = worst_epsilon(low, d, delta, question.adjacency).low
    most = worst_epsilon(high, d, delta, question.adjacency).high
    if not apart:
        least = max(least, _of_one_direction(question, delta))
        most = min(_of_part(question, delta), _of_every_link(question, delta))
    if question.wider is not None:
        return Interval(max(least, _of_one_message(question.wider, delta, question)), inf)
    alone = question.telling is None or question.telling.alone
    return Interval(least, most if question.nonlinear is None and alone else inf)


def _of_one_direction(question: Question, delta: float) -> float:
    """The lower end of uses that meet, of a record of one direction in each round or in all."""
    assert question.algebra is not None
    ways = question.algebra.leak.meetings(question.game, question.in_round)
    found = (epsilon_where_batches_meet(way, delta, question.adjacency) for way in ways)
    return max(found, default=0.0)


def _of_part(question: Question, delta: float) -> float:
    """The upper end of uses that meet, by releases that tell no less."""
    assert question.algebra is not None
    leak = question.algebra.leak
    if leak.has_laplace:
        return inf
    mechanism = leak.mechanism(question.game, question.in_round, high=True)
    return worst_epsilon(mechanism, 1, delta, question.adjacency).high


def _of_every_link(question: Question, delta: float) -> float:
    """The upper end of who reads every link and knows what this adversary knows."""
    everybody = with_every_link(question.threat_model)
    if everybody == question.threat_model:
        return inf
    algebra = Adversary(question.game, everybody, question.n_rounds)
    return _of_part(replace(question, algebra=algebra), delta)


def _of_one_message(wider: Wider, delta: float, question: Question) -> float:
    """What a message of the first round tells by itself at the model's own dimension."""
    if wider.release is None:
        return 0.0
    return epsilon([wider.release], delta, question.adjacency).low


def _pure_loss_of_all(question: Question) -> float:
    """What the record's release costs an eavesdropper who is told every draw's sum, at delta 0."""
    adversary = question.adversary
    if question.worst > 1 or question.nonlinear is not None:
        return inf
    everything = Adversary(question.game, EVERY_LINK, adversary.n_rounds)
    leak = everything.leak
    if not leak.is_pure or leak.noiseless:
        return inf
    losses = leak.mechanism(question.game, question.in_round)
    return epsilon(losses, 0.0, question.adjacency).high if losses else 0.0


def _no_figure(question: Question) -> Finding:
    """The algebra says nothing of a step that is not linear, but of what no noise reaches."""
    nonlinear = question.nonlinear
    assert nonlinear is not None
    noiseless = nonlinear.noiseless
    shown = (
        ()
        if noiseless is None
        else (f'round {noiseless[0]}: "{noiseless[1]}" shows the record without noise',)
    )
    return question.finding(
        Role.EXACT_LEAK,
        "exact leak of the view",
        message=None if noiseless is None else noiseless[1],
        rounds=(1, question.n_rounds),
        verdict=None if noiseless is None else Verdict.REFUTED,
        notes=(nonlinear.note, *shown),
    )


def _notes(question: Question, found: Interval) -> Iterator[str]:
    assert question.algebra is not None
    leak, n_rounds, whole = question.algebra.leak, question.n_rounds, _whole(question)
    yield f"the record is agent {question.game.victim}'s"
    yield from _scope(question)
    played = question.game if question.nonlinear is None else replace(question.game, spread=1)
    record = record_note(played)
    if record is not None:
        yield record
    if question.nonlinear is not None:
        yield question.nonlinear.note
    if question.wider is not None:
        yield question.wider.note
    if question.guesses:
        yield (
            "who knows the graphs that were drawn learns at most this; for an adversary that does "
            "not, no lower end is proven"
        )
    if n_rounds < whole and question.in_round is None:
        yield f"the first {n_rounds} of {whole} rounds; the run leaks at least as much"
    if question.telling is not None and not question.telling.alone:
        yield (
            f"what is used in round {question.in_round} alone, where a message tells of it first: "
            "rounds tell of several rounds' gradients, and no upper end is proven"
        )
    if question.game.held is not None:
        yield (
            "a Poisson batch has a random number of the user's records, and the algebra is of a "
            "fixed one: no figure; the runs draw it"
        )
    elif not leak.is_proven:
        yield (
            "this view does not recover every Laplace draw, so its mu is no epsilon: no lower end, "
            "and the loss of all draws together caps it"
        )
    elif question.meet:
        yield _of_which_record(question, found)
    if leak.shown is not None:
        k, message = leak.shown
        yield f'round {k}: "{message}" shows the record without noise'


def _of_which_record(question: Question, found: Interval) -> str:
    """Whose leak the ends are where uses meet, and why these do."""
    assert question.algebra is not None
    why, direction = "a record's effect outlasts its round in this view", "another in each batch"
    if question.algebra.leak.batches > 1:
        why = "several batches meet in one message"
    if found.low <= _of_one_direction(question, _at(question)):
        direction = "one wherever they meet"
    upper = "" if question.algebra.reacts else f"; {_upper(question, found)}"
    return f"{why}: the lower end is that of a record whose direction is {direction}{upper}"


def _upper(question: Question, found: Interval) -> str:
    """Which upper end was proven of effects that outlast their rounds."""
    if found.high == inf:
        return "no upper end is proven"
    if found.high < _of_part(question, _at(question)):
        return "the upper end is that of who reads every link and knows the same"
    return "the upper end is that of independent releases of which the view is a part"


def _scope(question: Question) -> Iterator[str]:
    """For which gradients of other agents the figure is what it is called."""
    assert question.algebra is not None
    yield _PROBED
    if question.algebra.reacts is None:
        yield _EXACT
        return
    yield reacting_note(question.algebra.reacts)


def _whole(question: Question) -> int:
    return question.game.defense.n_rounds
