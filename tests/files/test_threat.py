"""Which agents a kind of threat model may have."""

import pytest
from pydantic import ValidationError

from dpaudit.files.threat import ThreatModel

ALLOWED = {"external": {0}, "curious": {1}, "colluding": {2, 3}}


@pytest.mark.parametrize("kind", ALLOWED)
@pytest.mark.parametrize("n", range(4))
def test_a_kind_takes_its_number_of_agents(kind: str, n: int) -> None:
    options = {"name": "a", "kind": kind, "agents": tuple(range(n))}
    if n in ALLOWED[kind]:
        assert ThreatModel.model_validate(options).agents == tuple(range(n))
    else:
        with pytest.raises(ValidationError, match="takes agents"):
            ThreatModel.model_validate(options)


def test_colluding_agents_are_distinct() -> None:
    with pytest.raises(ValidationError, match="two or more distinct"):
        ThreatModel(name="a", kind="colluding", agents=(1, 1, 2))
