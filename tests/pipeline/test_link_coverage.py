"""An adversary whose links are not there: refused if it is a mistake, said if it is chance."""

import pytest

from dpaudit.errors import ConfigError
from dpaudit.files.config import AuditConfig
from dpaudit.files.options import graph_options
from dpaudit.files.threat import ThreatModel
from dpaudit.files.verdict import Verdict
from dpaudit.graphs.graph import build_graph
from dpaudit.pipeline.link_coverage import reads_nothing, refuse_absent_links, with_regions
from dpaudit.pipeline.run import Runtime, prepare, run_audit


def tapping(*links: tuple[int, int]) -> ThreatModel:
    return ThreatModel(name="spy", links=links)


def audited(graph: dict[str, object], *links: tuple[int, int]) -> AuditConfig:
    return AuditConfig.from_dict(
        {
            "seed": 1,
            "data": {"name": "digits", "n_agents": 4},
            "graph": graph,
            "model": {"name": "logistic"},
            "defense": {"name": "dp-dpsgd", "n_rounds": 2, "noise_multiplier": 1.0},
            "claim": [{"text": "Theorem 1", "epsilon": 8.0, "delta": 1e-5}],
            "threat_model": [{"name": "spy", "links": links}],
        }
    )


def test_a_link_that_the_graph_cannot_have_is_one_line() -> None:
    with pytest.raises(ConfigError) as refused:
        prepare(audited({"name": "ring"}, (0, 1), (0, 2), (3, 1)), Runtime())
    assert str(refused.value).splitlines() == [
        'threat_model "spy": links: the graph ring has no link 0 -> 2; agent 0 sends to 1, 3',
        'threat_model "spy": links: the graph ring has no link 3 -> 1; agent 3 sends to 0, 2',
    ]


@pytest.mark.parametrize("n_rounds, refused", [(1, True), (2, False), (9, False)])
def test_a_link_counts_if_some_round_of_the_run_has_it(n_rounds, refused) -> None:
    options, network = graph_options("exponential"), build_graph("exponential", 4)
    model = tapping((0, 2))  # agents send 1 ahead in odd rounds, 2 ahead in even ones
    assert reads_nothing(model, network, n_rounds) is refused
    if refused:
        with pytest.raises(ConfigError, match="no link 0 -> 2 in 1 rounds; agent 0 sends to 1"):
            refuse_absent_links([model], options, network, n_rounds)
    else:
        refuse_absent_links([model], options, network, n_rounds)


def of_region(graph: dict[str, object], **region: object) -> AuditConfig:
    config = audited(graph, (0, 1)).model_dump(mode="json")
    config["data"]["n_agents"] = 8
    config["threat_model"] = [{"name": "spy", "region": region}]
    return AuditConfig.from_dict(config)


def test_a_region_is_the_links_of_its_agents() -> None:
    region = of_region({"name": "ring"}, around=[2], hops=1)
    links = prepare(region, Runtime()).config.threat_model[0].links or ()
    assert {*links} == {(i, i + 1) for i in range(4)} | {(i + 1, i) for i in range(4)}


@pytest.mark.slow
def test_an_audit_of_a_region_is_that_of_its_links(tmp_path) -> None:
    region = of_region({"name": "ring"}, around=[2], hops=1)
    links = prepare(region, Runtime()).config.threat_model[0].links or ()
    listed = region.model_copy(update={"threat_model": (tapping(*links),)})
    found, other = (
        run_audit(c, tmp_path / str(i), Runtime(cores=1)) for i, c in enumerate((region, listed))
    )
    assert [c.reason for c in found.claims] == [c.reason for c in other.claims]
    assert found.findings == other.findings
    assert "agents within 1 hop of agent 2" in found.threat_models[0].sentence


def test_a_region_of_a_varying_graph_has_all_rounds_links() -> None:
    region = of_region({"name": "exponential"}, around=[0])
    (model,) = with_regions(region, build_graph("exponential", 8), 2).threat_model
    assert set(model.links or ()) == {(0, 1), (7, 0), (0, 2), (6, 0)}


def test_a_region_around_nobody_is_one_line() -> None:
    with pytest.raises(
        ConfigError, match=r"region\.around: there is no agent 9; with n_agents = 8"
    ):
        of_region({"name": "ring"}, around=[9])


def test_who_reads_all_links_or_is_an_agent_reads_something() -> None:
    network = build_graph("path", 4)
    curious = ThreatModel(name="end", kind="curious", agents=(3,))
    for model in (ThreatModel(name="all"), curious, tapping((2, 3))):
        assert not reads_nothing(model, network, 5)
        refuse_absent_links([model], graph_options("path"), network, 5)


def test_a_link_that_a_random_graph_lacks_supports_no_claim(tmp_path) -> None:
    random = {"name": "erdos-renyi", "p": 0.3}
    there = set(prepare(audited(random, (0, 1)), Runtime()).graph.links)
    absent = next((0, j) for j in (1, 2, 3) if (0, j) not in there)
    result = run_audit(audited(random, absent), tmp_path / "run", Runtime(cores=1))
    (claim,) = result.claims
    assert claim.verdict is Verdict.UNDERPOWERED
    assert claim.reason.startswith("This adversary reads nothing")
    said = (
        f'The adversary "spy" reads nothing: the graph that was drawn has no link 0 -> {absent[1]}.'
    )
    assert said in result.notes
    both = prepare(audited(random, absent, sorted(there)[0]), Runtime())
    assert any("reads less" in note.text for note in both.notes)
