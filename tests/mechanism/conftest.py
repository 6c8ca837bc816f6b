"""Seeds among which noise far out is looked for."""

import pytest

from dpaudit.mechanism import rare


@pytest.fixture
def few_far_seeds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of an audit's, for noise of which they show nothing; slow tests have all."""
    if not request.node.get_closest_marker("slow"):
        monkeypatch.setattr(rare, "MOST_NUMBERS", 2 * 10**5)
