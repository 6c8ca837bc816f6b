"""How many draws an audit tries: seeds of noise far out, and pairs of inputs between corners."""

import pytest

from dpaudit.mechanism import rare_outputs, search


@pytest.fixture
def few_far_seeds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of an audit's, for noise of which they show nothing; slow tests have all."""
    if not request.node.get_closest_marker("slow"):
        monkeypatch.setattr(rare_outputs, "MOST_NUMBERS", 2 * 10**5)


@pytest.fixture
def few_pairs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of an audit's, for functions whose worst ones are at corners; slow tests have all."""
    if not request.node.get_closest_marker("slow"):
        monkeypatch.setattr(search, "DRAWN", (20, 40))
