"""Cells of benchmarks in forks of this process, but in slow tests."""

import pytest

from tests.material.forks import fork_orders


@pytest.fixture(autouse=True)
def _forked_cells(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.node.get_closest_marker("slow"):
        fork_orders(monkeypatch)
