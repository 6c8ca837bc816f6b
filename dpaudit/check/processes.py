"""The audits of a check, side by side, each stopped when its time is up."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

from dpaudit.errors import Problem, RunError
from dpaudit.files.claims_file import ClaimsFile
from dpaudit.pipeline.processes import Ended, Order, Waiting, side_by_side

from .one_audit import AuditJob


def run_all(
    command: Sequence[str],
    file: ClaimsFile,
    jobs: Mapping[str, AuditJob],
    cores: int,
    waiting: Waiting,
) -> dict[str, float]:
    """Run jobs by the name of their check, as many at once as there are cores; seconds of each.

    Args:
        command: what is started, and reads jobs from stdin.

    Raises:
        DpauditError: one could not be run, or not in its time; all others are finished, and a line
            says what is wrong with each.
    """
    share = max(1, cores // max(1, len(jobs)))
    index = {check.name: i for i, check in enumerate(file.claims.check)}

    def order(job: AuditJob) -> Order:
        return Order(job.model_copy(update={"cores": share}).model_dump_json(), job.progress)

    def budget(name: str) -> float:
        return file.claims.check[index[name]].seconds

    took: dict[str, float] = {}
    problems: list[Problem] = []
    orders = {name: order(job) for name, job in jobs.items()}
    with closing(side_by_side(command, orders, [{}] * cores, waiting, budget)) as over:
        for ended in over:
            took[ended.name] = ended.seconds
            problems += _problems(file, index[ended.name], ended)
    if problems:
        raise RunError.of(problems)
    return took


def _problems(file: ClaimsFile, i: int, ended: Ended) -> Iterator[Problem]:
    """What went wrong with the audit of a check, with its line in the file."""
    if ended.out_of_time:
        budget = file.claims.check[i].seconds
        late = Problem(
            "DPA070",
            f'"{ended.name}": not finished after {budget:g} s, so there is no verdict; what was '
            "done is kept, and the next check goes on",
            "give it more seconds, or the audit fewer rounds, trials or attacks",
        )
        yield file.located(("check", i, "seconds"), late)
    for one in ended.problems:
        yield file.located(("check", i), one._replace(text=f'"{ended.name}": {one.text}'))
