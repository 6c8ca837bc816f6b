"""Whether noise is as declared, where a step is not linear in it: runs with the record drawn.

No algebra tells the noise of such a step, and runs in which a record is seldom in a batch tell
little of it. So it is in the batch of one round for certain. Whatever the step makes of what is
released there, no test tells the two worlds apart better than as many of the declared releases as
there are for each round, of batches that are not drawn by chance.

That holds of any round. It is tried of the first, and of the one that asks for the least noise or,
where all ask for as much, of the last. A step size that decays has less noise and hides as much, so
what is asked for says where to look, and the runs say what is so.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from dpaudit.accounting.releases import Mechanism
from dpaudit.files.finding import Finding, Metric, Name, Role
from dpaudit.files.verdict import Verdict
from dpaudit.game.filtering.gradient_reaction import with_every_link
from dpaudit.game.probing.chosen_noise import RecordedNoise
from dpaudit.game.runs.noise_law import declared_of_a_round
from dpaudit.rng import Streams
from dpaudit.statistics.bounds import family_from_scores
from dpaudit.statistics.noise_factor import noise_factor_bound, noise_p_value

from .controls import DIFFERENT
from .question import Question
from .runs import DrawnRuns

LESS = 0.99  # times the noise of the first round, from which on it is less


def declared_of_a_draw(question: Question) -> Mechanism | None:
    """What is declared of a record that is drawn for certain, at most; None: nothing to be tested.

    To an adversary that reads every link.
    """
    if question.nonlinear is None or question.nonlinear.quiet:
        return None
    return declared_of_a_round(question.game, with_every_link(question.threat_model))


def rounds_of_a_draw(question: Question, streams: Streams) -> list[int]:
    """The first round that uses the record, and the one that asks for least noise, or the last."""
    game = question.game
    if question.in_round is not None:
        return [question.in_round]
    asked = {k: stds for k, stds in _asked(question, streams) if game.uses(k)}
    usual = asked[game.first]

    def part(k: int) -> float:
        """Of the noise of the first round, the draw that is the smallest part of it.

        Of a round with other draws nothing is said: it may have more releases.
        """
        if asked[k].keys() != usual.keys():
            return 1.0
        parts = (std / usual[name] for name, std in asked[k].items() if usual[name])
        return min(parts, default=1.0)

    least = min(asked, key=part)
    other = least if part(least) < LESS else max(asked)
    return list(dict.fromkeys([game.first, other]))


def _asked(question: Question, streams: Streams) -> Iterator[tuple[int, dict[str, float]]]:
    """Each round, and the mean standard deviation of its draws by name; no record is in the run."""
    game = question.game
    nobody = torch.zeros(2, dtype=torch.float64, device=streams.device)
    state: Any = game.start(len(nobody), torch.float64, streams.device, game.played)
    for k in range(1, question.adversary.n_rounds + 1):
        noise = RecordedNoise(streams, k)
        with torch.inference_mode():
            state = game.step(state, k, game.played_gradient(nobody), noise).state
        yield k, {name: std.mean().item() for name, std in noise.stds.items()}


def noise_by_runs(question: Question, declared: Mechanism, drawn: Iterable[DrawnRuns]) -> Finding:
    """Whether runs with the record in the batch are told apart better than is declared."""
    adjacency, every = question.adjacency, [*drawn]
    tests = []
    for k, worlds, score in every:
        found = family_from_scores(*score(worlds), question.alpha, score.choosing)
        counts = found.fp, found.fn, found.n0, found.n1
        tests.append((noise_p_value(*counts, declared, adjacency), k, counts))
    least, k, counts = min(tests)
    p, alpha = min(1.0, len(every) * least), DIFFERENT / len(every)
    factor = noise_factor_bound(*counts, question.delta, alpha, declared, adjacency).noise_factor
    assert question.nonlinear is not None
    n0, n1 = counts[2:]
    notes = (
        question.nonlinear.note,
        f"{n0} runs of each world, with the record in the batch of round {k} for certain; no "
        "test tells them apart better than as many declared releases as there are for each round",
        *(
            f"the same of round {other}, p = {p_other:.2g}: p-values are of {len(every)} tests"
            for p_other, other, _ in tests
            if other != k
        ),
    )
    return question.finding(
        Role.NOISE,
        "noise really drawn",
        world="defense",
        metrics={
            Name.P_VALUE: Metric(value=p, n=n0 + n1),
            Name.NOISE_FACTOR: Metric(value=factor),
        },
        verdict=Verdict.UNSUPPORTED if p < DIFFERENT else None,
        notes=notes,
    )
