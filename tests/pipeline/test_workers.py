"""Jobs run in the caller's process or in others, and leave the caller's process as it was."""

from collections.abc import Iterator

import pytest
import torch

from dpaudit.pipeline.workers import Work, run_jobs
from dpaudit.progress import OnProgress

CALLERS = 3  # threads, as a caller may have chosen


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(CALLERS)
    yield
    torch.set_num_threads(before)


def reports_its_threads(fails: bool) -> Work[str]:
    def work(job: str, on_progress: OnProgress) -> None:
        on_progress(job, torch.get_num_threads(), 0)
        if fails:
            raise ZeroDivisionError

    return work


@pytest.mark.parametrize("workers", [1, 2])
def test_a_job_has_one_thread_and_the_caller_its_own_number_again(threads, workers) -> None:
    seen = []
    jobs = ["a", "b"]
    run_jobs(reports_its_threads, (False,), jobs, workers, lambda *report: seen.append(report))
    assert sorted(seen) == [("a", 1, 0), ("b", 1, 0)]
    assert torch.get_num_threads() == CALLERS


def test_a_job_that_fails_leaves_the_number_of_threads_too(threads) -> None:
    with pytest.raises(ZeroDivisionError):
        run_jobs(reports_its_threads, (True,), ["a"], 1, lambda *report: None)
    assert torch.get_num_threads() == CALLERS
