"""Whether a program draws numbers beside those that it shows as noise.

Such a number may decide, once in thousands of runs, that noise is left out: no run of an audit
would show it. So every number that is drawn after an agent has taken its first batch must be one
that is shown. Left out are orders, draws of several records out of many, and what torch draws for
its own loaders and for dropout: those make batches and gradients, which are examined as they are.
"""

from math import inf, prod

from dpaudit.files.recorded import Draw

from .runs import FAMILIES, ProgramRun

ORDER, CHOICE = "permutation", "choice"  # at the end of an operator


def other_draws(run: ProgramRun, sites: tuple[str, ...]) -> str:
    """What is drawn and not shown, or shown and not seen to be drawn, as a clause; "" if nothing.

    Noise that the tap is shown is taken for the numbers that its process has drawn last.

    Args:
        run: in which draws are the program's own.
        sites: lines of noise, whose draws are noise by themselves.
    """
    began: dict[int, float] = {}
    for batch in run.taken:
        began[batch.process] = min(batch.sequence, began.get(batch.process, inf))
    for process, first in began.items():
        left: list[tuple[Draw, int]] = []  # drawn, and how many numbers of it were not shown
        draws = [draw for draw in run.all_draws if draw.process == process]
        for draw in sorted(draws, key=lambda one: one.sequence):
            n = prod(draw.shape)
            if draw.operator not in FAMILIES:
                left += [] if _is_of_batches(draw) else [(draw, n)]
            elif draw.call_site not in sites:
                while n and left:
                    drawn, rest = left.pop()
                    left += [(drawn, rest - n)] if rest > n else []
                    n = max(0, n - rest)
                if n:
                    return f'{n:,} numbers of "{draw.call_site}" were not seen when they were drawn'
        for draw, rest in left:
            if draw.sequence > first or rest < prod(draw.shape):
                return (
                    f"{draw.call_site} draws numbers that are not shown as noise "
                    f"({draw.operator}): no run shows what they decide once in thousands of runs"
                )
    return ""


def _is_of_batches(draw: Draw) -> bool:
    """Whether it makes batches, or what a model does to its inputs."""
    several = draw.operator.endswith(CHOICE) and prod(draw.shape) > 1
    return draw.purpose is not None or draw.operator.endswith(ORDER) or several
