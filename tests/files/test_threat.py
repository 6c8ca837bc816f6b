"""Which agents a kind of threat model may have."""

import pytest
from pydantic import ValidationError

from dpaudit.errors import ConfigError
from dpaudit.files.threat import Region, ThreatModel

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


PATH = [(i, j) for i in range(9) for j in (i - 1, i + 1) if 0 <= j < 9]  # a path of nine agents


@pytest.mark.parametrize(
    "around, hops, agents",
    [
        ((4,), 0, {4}),
        ((4,), 2, {2, 3, 4, 5, 6}),
        ((0, 8), 1, {0, 1, 7, 8}),
        ((1,), 99, set(range(9))),
    ],
)
def test_an_eavesdropper_of_a_region_reads_its_agents_links(around, hops, agents) -> None:
    spy = ThreatModel(name="spy", region=Region(around=around, hops=hops)).within(PATH)
    assert set(spy.links or ()) == {link for link in PATH if agents & {*link}}
    assert all(spy.sees(*link) is bool(agents & {*link}) for link in PATH)


def test_links_of_one_direction_reach_both_ways() -> None:
    assert Region(around=(2,), hops=1).agents([(0, 1), (1, 2), (2, 3), (3, 4)]) == {1, 2, 3}


def test_a_region_says_which_links_it_means() -> None:
    def said(*around: int, hops: int = 0) -> str:
        return ThreatModel(name="a", region=Region(around=around, hops=hops)).sentence()

    begins = "An external eavesdropper reads all messages on all links "
    assert said(3).startswith(begins + "that agent 3 has. ")
    assert said(3, 5).startswith(begins + "that agents 3, 5 have. ")
    assert said(3, hops=1).startswith(begins + "of agents within 1 hop of agent 3. ")
    assert "8, 9 and 20 more. " in said(*range(30), hops=2)


@pytest.mark.parametrize(
    "options, said",
    [
        ({"kind": "curious", "agents": (1,), "region": {"around": [1]}}, "region belongs to kind"),
        ({"links": ((0, 1),), "region": {"around": [1]}}, "give either links or region"),
        ({"region": {"around": []}}, "at least 1 item"),
        ({"region": {"around": [1, 1]}}, "agent 1 is there twice"),
        ({"region": {"around": [1], "hops": -1}}, "greater than or equal to 0"),
    ],
)
def test_a_region_that_is_none_is_refused(options: dict, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        ThreatModel.model_validate({"name": "a", **options})


def test_a_region_without_a_graph_has_no_links() -> None:
    spy = ThreatModel(name="a", region=Region(around=(1,)))
    with pytest.raises(ConfigError, match="depends on the graph"):
        spy.sees(0, 1)
    assert "region" not in ThreatModel(name="a").model_dump()
