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


def test_agents_are_drawn_by_the_seed_and_the_adversarys_name() -> None:
    asked = ThreatModel(name="a", kind="colluding", drawn=3)
    drawn = [asked.with_agents(seed, 20) for seed in range(200)]
    assert {len(set(one.agents)) for one in drawn} == {3}
    assert all(one.agents == tuple(sorted(one.agents)) for one in drawn)
    assert {agent for one in drawn for agent in one.agents} == set(range(20))  # misses one: 2e-13
    assert drawn[0] == asked.with_agents(0, 20) != drawn[1]
    assert asked.model_copy(update={"name": "b"}).with_agents(0, 20).agents != drawn[0].agents
    assert ThreatModel(name="a").with_agents(0, 20) == ThreatModel(name="a")
    for kind, n in (("curious", 2), ("colluding", 1), ("external", 1), ("curious", 0)):
        with pytest.raises(ValidationError, match="drawn"):
            ThreatModel(name="a", kind=kind, drawn=n)


def test_a_name_is_a_part_of_a_files_name() -> None:
    named = [
        ThreatModel(name=name) for name in ("Agent 3/x", "\uff41gent 3.X ", "é" * 60, "é" * 61)
    ]
    assert [one.slug for one in named[:3]] == ["Agent-3-x", "\uff41gent-3-X-", "é" * 60]
    assert [one.likeness for one in named[:2]] == ["agent-3-x", "agent-3-x"]
    assert named[3].slug.startswith("é" * 24 + "-")
    assert len(named[3].slug) == 24 + 1 + 16


@pytest.mark.parametrize(
    "links, said",
    [((), "links is empty"), (((1, 1),), "sends itself"), (((0, 1), (1, 0), (0, 1)), "is there")],
)
def test_links_are_distinct_and_between_two(links, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        ThreatModel(name="a", links=links)


def test_an_adversary_says_which_links_it_reads() -> None:
    some = ThreatModel(name="a", links=((0, 1), (1, 0)), knows_draws=False)
    assert "all messages on 2 of the links. It knows" in some.sentence()
    assert some.sentence().endswith(
        "It does not know what of the graph is drawn anew in every round."
    )
    curious = ThreatModel(name="a", kind="curious", agents=(3,))
    both = ThreatModel(name="a", kind="colluding", agents=(3, 4))
    assert [one.sentence().split(" and")[0] for one in (curious, both)] == [
        "Agent 3 follows the protocol",
        "Agents 3, 4 follow the protocol",
    ]
    readers = [ThreatModel(name="a"), some, curious]
    assert [one.reads_every_link for one in readers] == [True, False, False]
