"""Whether a program draws numbers beside those that it shows as noise.

Such a number may decide, once in thousands of runs, that noise is left out: no run of an audit
would show it. So every number that is drawn after an agent has taken its first batch must be one
that is shown. Left out are orders, draws of several records out of many, and what torch draws for
its own loaders and for dropout: those make batches and gradients, which are examined as they are.
"""

from collections.abc import Iterable
from itertools import takewhile
from math import inf, prod

from dpaudit.files.recorded import RecordedDraw

from .runs import FAMILIES, ProgramRun

ORDER, CHOICE = "permutation", "choice"  # suffixes of operators
LIBRARIES = frozenset(("jax", "numpy", "os", "random"))
EXPONENTIAL = frozenset(("exponential", "exponential_", "standard_exponential"))
SEEDS = 10**6  # values of a whole number, from which more numbers can be made than it is
# What makes no noise by itself: whole numbers, bytes and choices.
DISCRETE = frozenset(
    (
        *("bernoulli", "bernoulli_", "binomial", "bits", "bytes", "categorical", "choice"),
        *("integers", "multinomial", "permutation", "randint", "random_", "randperm", "urandom"),
    )
)
# Whose numbers, one by one, are no normal and no Laplace numbers, and of which none are made.
OTHER_LAWS = frozenset(
    (
        *("bernoulli", "bernoulli_", "beta", "binomial", "cauchy_", "dirichlet", "f", "geometric"),
        *("geometric_", "gumbel", "hypergeometric", "log_normal_", "logistic", "lognormal"),
        *("logseries", "multinomial", "negative_binomial", "noncentral_chisquare", "noncentral_f"),
        *("pareto", "poisson", "power", "standard_cauchy", "standard_t", "triangular"),
        *("trunc_normal_", "vonmises", "wald", "weibull", "zipf"),
    )
)


def other_draws(run: ProgramRun, sites: tuple[str, ...], sampled: bool = False) -> str:
    """What is drawn and not shown, or shown and not seen to be drawn, as a clause; "" if nothing.

    Noise that the tap is shown is taken for the numbers that its process has drawn last. Their law
    must be one of which normal and Laplace numbers are made: tests of a few thousand numbers do not
    tell a t distribution of 30 degrees from a normal one.

    Args:
        run: in which draws are the program's own.
        sites: lines of noise, whose draws are noise by themselves.
        sampled: numbers for all records, drawn directly before a batch, are those that draw it.
    """
    began: dict[int, float] = {}
    for batch in run.taken:
        began[batch.process] = min(batch.sequence, began.get(batch.process, inf))
    for process, first in began.items():
        left, unseen = not_shown(run, sites, process)
        if unseen:
            return unseen
        of_batches = before_batches(run, process) if sampled else frozenset()
        for draw, rest in left:
            if draw.sequence in of_batches:
                continue
            if draw.sequence > first or rest < prod(draw.shape):
                return f"{said_of(draw)}: no run shows what they decide once in thousands of runs"
    return ""


def draws_beside(run: ProgramRun, sites: tuple[str, ...]) -> bool:
    """Whether numbers are drawn after the first batch that are not shown as noise, of any kind."""
    for process in {batch.process for batch in run.taken}:
        first = min(batch.sequence for batch in run.taken if batch.process == process)
        left = [draw for draw, _ in not_shown(run, sites, process)[0]]
        for draw in (*left, *(d for d in run.all_draws if _is_of_batches(d))):
            if draw.process == process and draw.sequence > first:
                return True
    return False


def not_shown(
    run: ProgramRun, sites: tuple[str, ...], process: int
) -> tuple[list[tuple[RecordedDraw, int]], str]:
    """What a process draws, with how many numbers of it are not shown as noise; and the reverse."""
    left, said = list[tuple[RecordedDraw, int]](), ""
    draws = [draw for draw in run.all_draws if draw.process == process]
    ordered = sorted(draws, key=lambda one: one.sequence)
    for i, draw in enumerate(ordered):
        n = prod(draw.shape)
        if draw.operator not in FAMILIES:
            left += [] if _is_of_batches(draw) else [(draw, n)]
        elif draw.call_site not in sites:
            n *= _made_of(left, takewhile(lambda d: d.operator == "laplace", ordered[i:]))
            while n and left:
                drawn, rest = left.pop()
                if {*drawn.operator.split(".")} & OTHER_LAWS:
                    said = said or (
                        f'"{draw.call_site}" is noise of another law than is stated: '
                        f"{drawn.call_site} draws it by {drawn.operator}"
                    )
                left += [(drawn, rest - n)] if rest > n else []
                n = max(0, n - rest)
            if n and not said:
                said = f'{n:,} numbers of "{draw.call_site}" were not seen when they were drawn'
    return left, said


def _made_of(left: list[tuple[RecordedDraw, int]], shown: Iterable[RecordedDraw]) -> int:
    """How many drawn numbers make one number that the program shows.

    Laplace noise is the difference of two exponential numbers, or one of these with a sign.

    Args:
        shown: Laplace noise that is shown after these draws, one after the other.
    """
    last = takewhile(lambda one: kind_of(one[0]) in EXPONENTIAL, reversed(left))
    n_shown = sum(prod(draw.shape) for draw in shown)
    return 2 if 0 < 2 * n_shown <= sum(n for _, n in last) else 1


def before_batches(run: ProgramRun, process: int) -> frozenset[int]:
    """When a process draws numbers for more records than the batch has that follows directly."""
    own = [batch for batch in run.taken if batch.process == process]
    sizes = {batch.sequence: batch.records for batch in own}
    sent = [sequence for of, sequence in run.id_of if of == process]
    draws = {d.sequence: prod(d.shape) for d in run.all_draws if d.process == process}
    found, waiting = set[int](), list[int]()
    for at in sorted({*sizes, *sent, *draws}):
        if at in sizes:
            found |= {w for w in waiting if draws[w] > max(1, sizes[at])}
        waiting = [*waiting, at] if at in draws and at not in sizes else []
    return frozenset(found)


def may_be_seed(draw: RecordedDraw) -> bool:
    """Whether it is whole numbers, or bytes, of so many values that noise may be made of one."""
    given = [value for value in draw.parameters if value is not None]
    match kind_of(draw):
        case "bytes" | "urandom":
            return True
        case "bits":
            return 2.0 ** min(given[0], 64.0) >= SEEDS
        case "integers" | "random_":
            return not given or (given[-1] - given[0] if given[1:] else given[0]) >= SEEDS
    return False


def kind_of(draw: RecordedDraw) -> str:
    """What is drawn, without the library's name before it or the name of torch's overload."""
    library, _, kind = draw.operator.partition(".")
    return kind if library in LIBRARIES else library


def said_of(draw: RecordedDraw) -> str:
    return f"{draw.call_site} draws numbers that are not shown as noise ({draw.operator})"


def _is_of_batches(draw: RecordedDraw) -> bool:
    """Whether it makes batches, or what a model does to its inputs."""
    several = draw.operator.endswith(CHOICE) and prod(draw.shape) > 1
    return draw.purpose is not None or draw.operator.endswith(ORDER) or several
