"""Whether the noise that was drawn is what the defense asks for, or what it declares."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dpaudit.accounting.privacy_loss import Array
from dpaudit.accounting.releases import Mechanism
from dpaudit.files.finding import Finding, Metric, Name, Role
from dpaudit.files.verdict import Verdict
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.runs.noise_law import hiding_without
from dpaudit.game.runs.play import play
from dpaudit.statistics.bounds import family_from_scores, noise_factor_bound, noise_p_value
from dpaudit.statistics.noise_tests import white_noise_test

from .question import Question
from .runs import Drawn, Player, Runs, without_record

TITLE = "noise really drawn"
DIFFERENT = 1e-6  # p-value below which noise is not what it should be


def noise_findings(question: Question, runs: Runs, player: Player) -> Iterator[Finding]:
    """The test that the step allows, if there is one."""
    if runs.declared is not None and runs.drawn:
        yield noise_by_runs(question, runs.declared, runs.drawn)
    elif not question.is_followed:
        assert question.nonlinear is not None
        yield no_noise_test(question, question.nonlinear.note)
    elif runs.noiseless.shape[1]:
        found = _noise_control(question, runs.noiseless)
        if found.verdict is not None:
            found = _without_further_noise(question, len(runs.noiseless), player, found) or found
        yield found


def no_noise_test(question: Question, why: str) -> Finding:
    """The noise that was really drawn was not tested against what the defense asks for."""
    return question.finding(Role.NOISE, TITLE, world="defense", notes=(why,))


def noise_by_runs(question: Question, declared: Mechanism, drawn: Sequence[Drawn]) -> Finding:
    """Whether runs with the record in the batch are told apart better than is declared.

    Whatever the step makes of what is released there, no test tells the two worlds apart better
    than as many of the declared releases as there are for each round, of batches that are not drawn
    by chance. That holds of any round.
    """
    adjacency, tests = question.adjacency, []
    for k, scores, choosing in drawn:
        found = family_from_scores(*scores, question.alpha, choosing)
        counts = found.fp, found.fn, found.n0, found.n1
        tests.append((noise_p_value(*counts, declared, adjacency), k, counts))
    least, k, counts = min(tests)
    p, alpha = min(1.0, len(drawn) * least), DIFFERENT / len(drawn)
    factor = noise_factor_bound(*counts, question.delta, alpha, declared, adjacency).noise_factor
    assert question.nonlinear is not None
    n0, n1 = counts[2:]
    notes = (
        question.nonlinear.note,
        f"{n0} runs of each world, with the record in the batch of round {k} for certain; no "
        "test tells them apart better than as many declared releases as there are for each round",
        *(
            f"the same of round {other}, p = {p_other:.2g}: p-values are of {len(drawn)} tests"
            for p_other, other, _ in tests
            if other != k
        ),
    )
    return _tested(question, p, n0 + n1, notes, {Name.NOISE_FACTOR: Metric(value=factor)})


def _noise_control(question: Question, innovations: Array) -> Finding:
    """Whether what is left of the messages is the noise that the defense asked for.

    Args:
        innovations: [runs, n], of runs without a record.
    """
    test, p = white_noise_test(innovations)
    notes = (
        "what the adversary cannot predict of the messages should be independent noise of "
        f"the scale that the defense asks for; most striking: {test}",
        f"differs from it at p < {DIFFERENT:g}" if p < DIFFERENT else "no difference was found",
    )
    return _tested(question, p, len(innovations), notes, {})


def _tested(
    question: Question, p: float, n: int, notes: tuple[str, ...], further: dict[str, Metric]
) -> Finding:
    return question.finding(
        Role.NOISE,
        TITLE,
        world="defense",
        metrics={Name.P_VALUE: Metric(value=p, n=n), **further},
        verdict=Verdict.UNSUPPORTED if p < DIFFERENT else None,
        notes=notes,
    )


def _without_further_noise(
    question: Question, trials: int, player: Player, alarm: Finding
) -> Finding | None:
    """The same test of the defense without draws that come on top of enough noise.

    None: the noise differs whatever draws are left out, or hides too little without them.
    """
    game, n_rounds = question.game, question.n_rounds
    real = replace(game.setting, d=game.coordinates, layers=game.layers)
    for fewer in hiding_without(game.defense, real, [question.threat_model], n_rounds):
        silent = replace(game, defense=fewer)
        adversary = Adversary(silent, question.threat_model, n_rounds)
        own = player.streams.child("without draws")
        played = play(adversary, trials, own, question.in_round, without_record(silent))
        innovations = played.without.features
        found = _noise_control(question, innovations)
        if innovations.shape[1] and found.verdict is None:
            p = alarm.metrics[Name.P_VALUE].value
            notes = (*found.notes, fewer.note, f"with these draws p = {p:.2g}")
            return found.model_copy(update={"notes": notes})
    return None
