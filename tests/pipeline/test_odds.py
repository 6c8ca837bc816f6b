"""How far odds can rise, in words: one number where both ends are written alike."""

from math import inf, log

import pytest

from dpaudit.pipeline.rules import _between


@pytest.mark.parametrize(
    "least, most, said",
    [
        (log(7.35), log(7.35), "7.35-fold"),
        (log(7.349), log(7.351), "7.35-fold"),
        (log(7.35), log(9.0), "7.35-fold or more, and 9-fold at most"),
        (log(7.35), inf, "7.35-fold or more"),
        (log(7.35), log(7.0), "7.35-fold or more"),  # a measured end above a falsified bound
        (15.0, 16.0, "more than a million-fold"),
        (15.0, inf, "more than a million-fold"),
        (log(7.35), 16.0, "7.35-fold or more, and e^16-fold at most"),
    ],
)
def test_both_ends_are_said_once_where_they_are_alike(least, most, said) -> None:
    assert _between(least, most) == said
