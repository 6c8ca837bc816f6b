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


@pytest.mark.parametrize(
    "options, said",
    [
        ({"kind": "final-model", "agents": (1,)}, "takes agents: no agents; model_of is the agent"),
        ({"kind": "final-model", "links": ((0, 1),)}, 'links belong to kind "external"'),
        ({"model_of": 1}, 'model_of and access belong to kind "final-model"'),
        ({"kind": "curious", "agents": (1,), "access": "black-box"}, "model_of and access belong"),
    ],
)
def test_a_final_model_is_read_without_agents_or_links(options: dict, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        ThreatModel.model_validate({"name": "a", **options})


def test_an_adversary_with_a_final_model_says_what_it_sees() -> None:
    mean = ThreatModel(name="a", kind="final-model")
    one = ThreatModel(name="a", kind="final-model", model_of=3, access="black-box")
    assert mean.sentence().startswith("This adversary sees the parameters of the mean of all")
    assert one.sentence().startswith("This adversary sees only the losses of the model of agent 3")
    assert not mean.sees(0, 1)
