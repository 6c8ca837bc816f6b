"""What an exception in a job is called: the config's doing, or a bug that keeps its trace."""

import pytest

from dpaudit.defenses.dpsgd import DPDPSGD
from dpaudit.errors import RunError
from dpaudit.pipeline.jobs import faults_in_a_line

MEANT = DPDPSGD(noise_multiplier=1.0)
LARGE = DPDPSGD(noise_multiplier=1e200)


def test_a_bug_whose_text_speaks_of_overflow_keeps_its_trace() -> None:
    with pytest.raises(RuntimeError, match="stack overflow"), faults_in_a_line("x", MEANT):
        raise RuntimeError("stack overflow")


@pytest.mark.parametrize(
    "error, options",
    [(RuntimeError("whatever torch says"), (MEANT, LARGE)), (OverflowError("of Python"), (MEANT,))],
)
def test_numbers_beyond_float32_are_a_line(error, options) -> None:
    with (
        pytest.raises(RunError, match="training: numbers exceed what float32 holds"),
        faults_in_a_line("training", *options),
    ):
        raise error
