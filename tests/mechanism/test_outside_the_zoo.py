"""Functions that the audit was not written with: none that is wrong is supported."""

import pytest

from dpaudit import mechanism
from dpaudit.errors import DpauditError
from dpaudit.files.verdict import AGAINST, Verdict
from tests.mechanism.outside_the_zoo import RIGHT, WRONG

UNRECOGNISED = {"projected_afterwards"}  # it is no value with noise any more
CLAIM = {"epsilon": 1.0, "delta": 1e-5}


def verdict_on(function) -> Verdict | str:
    """The verdict, or the code of what stopped the audit."""
    rows = function.__code__.co_varnames[0] == "rows"
    options = {"records": True, "output_shape": (5,)} if rows else {}
    shape = (8, 5) if rows else (20,)
    try:
        found = mechanism.audit(function, CLAIM, shape, "add-remove", runs=1500, **options)
    except DpauditError as error:
        return error.code
    assert found.verdict is not None
    return found.verdict


@pytest.mark.slow  # 5 s each; a right function is refuted with probability at most 5%: fixed seed
@pytest.mark.parametrize("function", RIGHT, ids=lambda one: one.__name__)
def test_a_right_function_is_not_accused(function) -> None:
    expected = Verdict.NOT_REFUTED if function.__name__ in UNRECOGNISED else Verdict.SUPPORTED
    assert verdict_on(function) is expected


@pytest.mark.slow
@pytest.mark.parametrize("function", WRONG, ids=lambda one: one.__name__)
def test_a_wrong_function_is_found(function) -> None:
    found = verdict_on(function)
    assert found == "DPA076" if "seeded" in function.__name__ else found in AGAINST
