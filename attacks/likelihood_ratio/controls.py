"""Whether the auditor is alive, and whether the noise is what the defense asks for."""

from dpaudit.accounting.privacy_loss import Array
from dpaudit.files.finding import Finding, Metric, Name, Role
from dpaudit.files.verdict import Verdict
from dpaudit.rng import Streams
from dpaudit.statistics.bounds import ScoreBound, ceiling, from_scores
from dpaudit.statistics.noise_tests import white_noise_test

from .question import Question

DIFFERENT = 1e-6  # p-value below which noise is not what it should be


def noise_control(question: Question, innovations: Array) -> Finding:
    """Whether what is left of the messages is the noise that the defense asked for.

    Args:
        innovations: [runs, n], of runs without a record.
    """
    test, p = white_noise_test(innovations)
    differs = p < DIFFERENT
    return question.finding(
        Role.NOISE,
        "noise really drawn",
        world="defense",
        metrics={Name.P_VALUE: Metric(value=p, n=len(innovations))},
        verdict=Verdict.UNSUPPORTED if differs else None,
        notes=(
            "what the adversary cannot predict of the messages should be independent noise of "
            f"the scale that the defense asks for; most striking: {test}",
            f"differs from it at p < {DIFFERENT:g}" if differs else "no difference was found",
        ),
    )


def no_noise_test(question: Question, why: str) -> Finding:
    """The noise that was really drawn was not tested against what the defense asks for."""
    return question.finding(Role.NOISE, "noise really drawn", world="defense", notes=(why,))


def null_control(question: Question, scores: Array, streams: Streams) -> Finding:
    """Two worlds that are the same: any bound above 0 is a false alarm."""
    half, rng = len(scores) // 2, streams.numpy("null")
    bound = from_scores(scores[:half], scores[half:], question.delta, question.alpha, rng)
    return _control(
        question,
        Role.NULL_CONTROL,
        bound,
        "both halves are runs of one world, without the record or with its opposite: the bound "
        f"should be 0, and is not with probability {question.alpha:g} at most",
    )


def positive_control(question: Question, silent: tuple[Array, Array], streams: Streams) -> Finding:
    """The noise is off: an auditor that is alive refutes the claim.

    Args:
        silent: scores of runs without noise, without the record and with it.
    """
    bound = from_scores(*silent, question.delta, question.alpha, streams.numpy("positive"))
    return _control(
        question,
        Role.POSITIVE_CONTROL,
        bound,
        "the noise is off: the bound should be near its ceiling",
    )


def _control(question: Question, role: Role, bound: ScoreBound, note: str) -> Finding:
    top = ceiling(min(bound.n0, bound.n1), question.delta, question.alpha)
    return question.finding(
        role,
        role.replace("-", " "),
        world="no-defense" if role is Role.POSITIVE_CONTROL else "defense",
        metrics={
            Name.EPSILON_LOWER_BOUND: Metric(value=bound.value, n=bound.n0 + bound.n1),
            Name.CLAIMED_EPSILON: Metric(value=question.claimed),
            Name.CEILING: Metric(value=top),
        },
        verdict=Verdict.REFUTED if bound.value > question.claimed else None,
        notes=(note,),
    )
