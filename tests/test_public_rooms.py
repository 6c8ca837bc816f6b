"""What the public rooms name is there, and costs nothing before it is asked for."""

import subprocess
import sys
from importlib import import_module

import pytest

ROOMS = ("defense", "attack", "conformance", "statistics", "information", "accounting", "ledger")


@pytest.mark.parametrize("room", ROOMS)
def test_every_name_of_a_public_room_can_be_imported(room: str) -> None:
    package = import_module(f"dpaudit.{room}")
    assert package.__all__
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError):
        package.no_such_name  # noqa: B018 (asked for on purpose)


def test_the_room_of_statistics_waits_for_scipy_only_when_asked() -> None:
    code = (
        "import sys, dpaudit.statistics, dpaudit.statistics.p_values\n"
        "assert 'scipy' not in sys.modules\n"
        "from dpaudit.statistics import clopper_pearson\n"
        "assert 'scipy' in sys.modules and 0 < clopper_pearson(1, 10, 0.05) < 1"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
