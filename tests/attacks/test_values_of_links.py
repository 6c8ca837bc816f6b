"""Who is heard on which links, and what is seen of models there, by hand."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import dpaudit.attack as da
from dpaudit.attacks.shadow_models import attack
from dpaudit.attacks.shadow_models.attack import ShadowModels
from dpaudit.attacks.shadow_models.shadows import RecordAssignment, deal, models_seen
from dpaudit.attacks.topology import attack as topology
from dpaudit.attacks.topology import observer_view, scores
from dpaudit.attacks.topology.attack import Topology
from dpaudit.attacks.topology.observer_view import ObservedModels, linked, overhear
from dpaudit.defense.contract import Setting
from dpaudit.defense.transcript import Message, Transcript, broadcast
from dpaudit.files.threat import ThreatModel
from dpaudit.graphs.graph import build_graph

NOTHING: Any = None
EAVESDROPPER = ThreatModel(name="eavesdropper", kind="external")
PATH = build_graph("path", 4).at(1)


def curious(*agents: int) -> ThreatModel:
    kind: Any = "curious" if len(agents) == 1 else "colluding"
    return ThreatModel(name="some", kind=kind, agents=agents)


def sent(*rows: list[float]) -> Message:
    return broadcast(PATH, torch.tensor(rows))


class Ordered:
    """Coordinates in the order 2, 0, 1, as long as there are three."""

    def permutation(self, n: int) -> np.ndarray:
        return np.array([2, 0, 1])[:n]


def test_messages_of_others_are_read_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agent 1 reads agents 0 and 2; of x/2 and x/10 in that order, and of no other message."""
    X = [[float(10 * i + c) for c in range(3)] for i in range(4)]
    rounds = {
        1: {"x/10": sent(*([c + 200 for c in row] for row in X)), "x/2": sent(*X), "y": sent(*X)},
        2: {"x": sent(*([c + 300 for c in row] for row in X))},
        3: {"y": sent(*X)},
    }
    rng: Any = Ordered()
    found = overhear(curious(1), Transcript(rounds), "x", range(1, 4), rng)
    assert found is not None
    assert found.agents == (0, 2)
    assert found.sends.tolist() == [[True, True]] * 3
    expected = [[[c + more for c in X[i]] for i in (0, 2)] for more in (0, 200, 300)]
    assert found.models.tolist() == expected
    assert (found.models.dtype, found.rounding) == (torch.float64, torch.finfo(torch.float32).eps)
    monkeypatch.setattr(
        observer_view, "MOST_NUMBERS", 2 * 3 * 2 * 2
    )  # rounds, messages and senders
    some = overhear(curious(1), Transcript(rounds), "x", range(1, 4), rng)
    assert some is not None
    assert some.models[0].tolist() == [[0.0, 2.0], [20.0, 22.0]]  # coordinates 2 and 0
    monkeypatch.setattr(observer_view, "MOST_NUMBERS", 1)
    one = overhear(curious(1), Transcript(rounds), "x", range(1, 4), rng)
    assert one is not None
    assert one.models[0].tolist() == [[2.0], [22.0]]
    assert overhear(curious(0), Transcript(rounds), "x", range(1, 4), rng) is None  # agent 1 alone
    assert overhear(curious(1), Transcript(rounds), "z", range(1, 4), rng) is None


def test_an_agent_that_is_silent_has_its_last_model() -> None:
    """Or its first one, where it has sent none yet."""
    one, two = torch.tensor([1.0]), torch.tensor([2.0])
    found = observer_view._without_gaps([None, one, None, two, None])
    assert found.flatten().tolist() == [1.0, 1.0, 1.0, 2.0, 2.0]


def test_agents_are_linked_in_either_direction() -> None:
    setting = Setting(build_graph("directed-ring", 4), (10,) * 4, 1)
    assert linked(setting, (0, 1, 2, 3), range(1, 3)).astype(int).tolist() == [
        [0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0],
    ]  # fmt: skip
    assert linked(setting, (3, 1, 0), range(1, 2)).astype(int).tolist() == [
        [0, 0, 1], [0, 0, 1], [1, 1, 0],
    ]  # fmt: skip
    tapped = ThreatModel(name="tap", links=((0, 1), (5, 3), (3, 0)))
    assert observer_view.known(tapped, (3, 1, 0)).astype(int).tolist() == [
        [0, 0, 1], [0, 0, 1], [1, 1, 0],
    ]  # fmt: skip
    assert not observer_view.known(EAVESDROPPER, (3, 1, 0)).any()


def test_links_are_those_of_the_rounds_that_are_read() -> None:
    """Of graphs in turn, from the first round read; a period is looked at once."""
    asked: list[int] = []

    def at(k: int) -> Any:
        asked.append(k)
        return SimpleNamespace(links=[(0, 1)] if k % 3 == 1 else [(1, 2)] if k % 3 == 2 else [])

    setting: Any = SimpleNamespace(network=SimpleNamespace(at=at, period=3))
    for rounds, looked, pairs in (
        (range(1, 2), [1], [(0, 1)]),
        (range(1, 3), [1, 2], [(0, 1), (1, 2)]),
        (range(1, 51), [1, 2, 3], [(0, 1), (1, 2)]),
        (range(2, 4), [2, 3], [(1, 2)]),
    ):
        asked.clear()
        found = np.triu(linked(setting, (0, 1, 2), rounds))
        assert (asked, [tuple(pair) for pair in np.argwhere(found).tolist()]) == (looked, pairs)


def a_context(n: int = 4, graph: str = "path", n_rounds: int = 6) -> Any:
    setting = Setting(build_graph(graph, n), (10,) * n, 1)
    defense = SimpleNamespace(n_rounds=n_rounds, messages={"x": "models", "y": "more"})
    return SimpleNamespace(setting=setting, defense=defense)


def test_links_are_scored_where_some_pairs_have_none() -> None:
    def refuse(graph: str, n: int, **of: Any) -> None:
        context = a_context(n, graph)
        Topology(**of).refuse(NOTHING, context.setting)
        Topology(**of).refuse_too_large(context, EAVESDROPPER)

    refuse("path", 3)
    refuse("path", 4, message="y")
    for graph, n, of, said in (
        ("path", 2, {}, "2 agents; expected 3"),
        ("ring", 3, {}, "all pairs of the 3 agents share a link in the 6 rounds"),
        ("complete", 5, {"n_rounds": 2}, "all pairs of the 5 agents share a link in the 2 rounds"),
        ("path", 4, {"message": "z"}, 'no message is called "z".*models, of x, y'),
    ):
        with pytest.raises(da.ConfigError, match=said):
            refuse(graph, n, **of)
    many: Any = SimpleNamespace(n_agents=topology.MOST + 1)
    with pytest.raises(da.ConfigError, match=f"{topology.MOST + 1} agents"):
        Topology().refuse(NOTHING, many)
    most: Any = SimpleNamespace(n_agents=topology.MOST, network=SimpleNamespace(server=None))
    Topology().refuse(NOTHING, most)
    most.network.server = 0
    with pytest.raises(da.ConfigError, match="all links are those of the server"):
        Topology().refuse(NOTHING, most)


def test_two_rounds_are_read_at_least_and_fifty_by_default() -> None:
    assert [len(Topology()._rounds(n)) for n in (6, topology.READ, 99)] == [
        6,
        topology.READ,
        topology.READ,
    ]
    assert list(Topology(n_rounds=3)._rounds(9)) == [1, 2, 3]
    for n_rounds, run, invalid in ((None, 2, 0), (None, 1, 1), (1, 9, 1), (2, 9, 0), (10, 9, 1)):
        found = list(Topology(n_rounds=n_rounds).validate_options(run, 4))
        assert [option for option, _ in found] == ["n_rounds"] * invalid
    defense: Any = SimpleNamespace(n_rounds=2)
    assert Topology(message="y").recording(defense).messages == {1: {"y"}, 2: {"y"}}


@pytest.mark.parametrize(
    ("agents", "links", "titles", "said"),
    [
        (
            (0, 1, 2, 3),
            None,
            ["a method"],
            "3 linked pairs against 3 others, of 4 agents in 6 rounds",
        ),
        ((0, 1, 2, 3), ((0, 1),), ["a method"], "2 linked pairs against 3 others"),
        ((0, 1), None, [], "can score 1 pairs, all of which are linked"),
        ((0, 2), None, [], "can score 1 pairs, none of which are linked"),
        (None, None, [], "it reads fewer than two other agents"),
        ((0, 1, 3), None, [], "all models are the same up to rounding"),
    ],
)
def test_pairs_are_scored_that_the_adversary_does_not_know(
    monkeypatch, agents, links, titles, said
) -> None:
    context = a_context()
    context.name, context.part = "topology", SimpleNamespace(world="defense")
    context.streams = SimpleNamespace(device=None, numpy=lambda *name: name)
    context.run = SimpleNamespace(transcript=lambda *_: "transcript")
    heard = agents and SimpleNamespace(agents=agents, models=torch.zeros(6, len(agents), 1234))
    monkeypatch.setattr(topology, "overhear", lambda *_: heard)
    is_same = agents == (0, 1, 3)
    monkeypatch.setattr(
        topology, "_scored", lambda heard: iter([] if is_same else [("a method", "scores", ("how",))])
    )  # fmt: skip
    asked: list[Any] = []

    def metrics(given: Any, linked: Any, scored: Any, rng: Any) -> dict[Any, Any]:
        asked.append((given, int(np.triu(linked & scored).sum()), int(np.triu(scored).sum()), rng))
        assert not scored.diagonal().any()
        return {}

    monkeypatch.setattr(topology, "edge_metrics", metrics)
    steps: list[tuple[int, int]] = []
    view = ThreatModel(name="tap", links=links) if links else EAVESDROPPER
    found = Topology().measure(context, view, lambda *s: steps.append(s))
    assert [one.title for one in found] == (titles or ["links"])
    assert said in " ".join(found[0].notes)
    if titles:
        n_links = 2 if links else 3
        assert asked == [("scores", n_links, n_links + 3, ("relabelled", view.name, "defense"))]
        assert found[0].notes[0] == "how"
        assert "by 1,234 coordinates" in found[0].notes[2]
        assert steps == [(1, 1)]
    assert found[0].rounds == (1, 2, 3, 4, 5, 6)


def test_models_that_are_alike_give_no_links_but_by_times() -> None:
    sends = torch.tensor([[True, True], [True, False]])
    rng = np.random.default_rng(0)
    models = torch.from_numpy(rng.normal(size=(3, 2, 5)))

    def titles(models: Tensor, sends: Tensor, rounding: float) -> list[str]:
        heard = ObservedModels((0, 1), models, sends, rounding)
        return [title for title, *_ in topology._scored(heard)]

    times = ["links by the times of messages"]
    every = ["links by regression", "links by sparse regression", "links by the cosine of models"]
    assert titles(models, sends, 1e-7) == times + every
    assert titles(models, sends | True, 1e-7) == every
    alike = models[:, :1].expand(-1, 2, -1).clone()
    assert titles(alike, sends, 1e-7) == times
    nearly = alike.clone()
    nearly[:, 1] *= 1 + 1e-9
    assert titles(nearly, sends, 1e-7) == times
    assert titles(nearly, sends, 1e-16) == times + every


def test_rows_are_brought_to_the_simplex() -> None:
    rows = torch.tensor([[0.2, 0.3, 0.5], [2.0, 0.0, 0.0], [0.5, 0.5, 0.3], [-1.0, -1.0, -1.0]])
    found = scores.on_simplex(rows.double())
    third = 1 / 10
    expected = [
        [0.2, 0.3, 0.5],
        [1.0, 0.0, 0.0],
        [0.5 - third, 0.5 - third, 0.3 - third],
        [1 / 3] * 3,
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-6)
    far = scores.on_simplex(torch.tensor([[1.5, 1.0, -3.0]]).double())
    np.testing.assert_allclose(far, [[0.75, 0.25, 0.0]], atol=1e-12)


def test_agents_that_send_at_once_correlate() -> None:
    sends = np.array([[1, 1, 0, 1], [0, 0, 1, 1], [1, 1, 0, 1], [0, 1, 1, 1]]).astype(bool)
    found = scores.by_times(sends)
    assert found is not None
    half = 1 / 3**0.5
    expected = [[1, half, -1, 0], [half, 1, -half, 0], [-1, -half, 1, 0], [0, 0, 0, 0]]
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert scores.by_times(np.ones((4, 2), dtype=bool)) is None
    models = torch.tensor(
        [[[3.0, 4.0], [4.0, 3.0], [0.0, 0.0]], [[1.0, 0.0], [0.0, 2.0], [1.0, 0.0]]]
    ).double()
    cosines = [[1.0, 0.48, 0.5], [0.48, 1.0, 0.0], [0.5, 0.0, 0.5]]
    np.testing.assert_allclose(scores.by_cosine(models), cosines, rtol=1e-6, atol=1e-7)


def test_a_pair_s_weight_is_pooled_by_its_errors() -> None:
    """Weights 0.3 and 0.6 with variances 2 * 4 and 1 * 9: (0.3 / 8 + 0.6 / 9) / sqrt(1/8 + 1/9)."""
    W = torch.tensor([[0.7, 0.3], [0.6, 0.4]]).double()
    of: Any = SimpleNamespace(
        W=W, covariance=torch.tensor([[9.0, 1.0], [1.0, 4.0]]).double(),
        variance=torch.tensor([2.0, 1.0]).double(),
    )  # fmt: skip
    found = scores.by_regression(of)
    assert found[0, 1] == found[1, 0] == pytest.approx((0.3 / 8 + 0.6 / 9) / (1 / 8 + 1 / 9) ** 0.5)


def seen_of(view: ThreatModel, k: int = 1, message: str = "x", **of: Any) -> Any:
    """Two runs; agents i hold the models 10 i and 10 i + 1."""
    X = torch.tensor([[[10.0 * i + run] for i in range(4)] for run in (0, 1)])
    played: Any = SimpleNamespace(state="state", sent={"x": of.get("sent", broadcast(PATH, X))})
    defense: Any = SimpleNamespace(n_rounds=3, models=lambda state: X)
    found = models_seen(defense, view, message, k, played)
    return None if found is None else found[:, 0].tolist()


def test_a_sequence_of_models_is_the_mean_of_those_read() -> None:
    """Of others than the adversary's own agents, and once each."""
    assert seen_of(EAVESDROPPER) == [15.0, 16.0]
    assert seen_of(curious(1)) == [10.0, 11.0]  # of agents 0 and 2
    assert seen_of(curious(0, 1)) == [20.0, 21.0]
    assert seen_of(ThreatModel(name="tap", links=((3, 2),))) == [30.0, 31.0]
    assert seen_of(curious(1), message="y") is None
    assert seen_of(curious(0, 1, 2, 3)) is None
    end = ThreatModel(name="end", kind="final-model")
    assert [seen_of(end, k) for k in (1, 2, 3)] == [None, None, [15.0, 16.0]]
    assert seen_of(ThreatModel(name="end", kind="final-model", model_of=2), 3) == [20.0, 21.0]
    X = torch.arange(8.0).view(2, 4, 1)
    secret = Message(X, PATH.senders, PATH.receivers, PATH.senders, PATH.receivers)
    assert seen_of(EAVESDROPPER, sent=secret) is None  # encrypted for its receiver
    assert seen_of(curious(3), sent=secret) == [2.0, 6.0]


def problem_of(
    held: list[list[int]], labels: list[int], tests: list[int], positions: int = 0
) -> Any:
    data = SimpleNamespace(
        x=torch.zeros(len(labels), 1), x_test=torch.zeros(len(tests), 1), n_positions=positions,
        y=torch.tensor(labels), y_test=torch.tensor(tests),
    )  # fmt: skip
    places = torch.tensor(held)
    return SimpleNamespace(dataset=data, held=(places, places >= 0))


def test_records_are_dealt_anew_within_their_class() -> None:
    """Agents 0 and 1 hold records of two classes each; half of the test set takes part."""
    labels, tests = [0, 1, 0, 1, 0, 1], [0, 0, 1, 1, 0, 1, 0, 1]
    problem = problem_of([[0, 1, 2], [3, 4, -1], [5, -1, -1]], labels, tests)
    every = labels + tests
    rng = np.random.default_rng(0)
    found = deal(problem, 40, (2,), rng)
    assert isinstance(found, RecordAssignment)
    assert found.held.shape == (40, 3, 3)
    assert len(found.public) == 4
    assert sorted([*found.records, *found.public, 5]) == list(range(14))
    assert (found.held[:, 2] == torch.tensor([5, -1, -1])).all()  # its own agent's
    assert (found.held[:, 1, 2] == -1).all()
    for t in range(40):
        here = [*found.held[t, 0].tolist(), *found.held[t, 1, :2].tolist()]
        assert len(set(here)) == 5
        assert [every[i] for i in here] == [0, 1, 0, 1, 0]  # each place keeps its class
        assert sorted(found.records[found.included[t]].tolist()) == sorted(here)
    assert {int(i) for i in found.held[:, 0, 0]} == {
        int(i) for i in found.records if every[int(i)] == 0
    }
    part = found.part(slice(3, 5))
    assert torch.equal(part.held, found.held[3:5])
    assert (part.included == found.included[3:5]).all()
    of_text = deal(problem_of([[0, 1, 2], [3, 4, 5]], labels, tests, 2), 40, (), rng)
    assert {every[int(i)] for i in of_text.held[:, 0, 0]} == {0, 1}  # labels are not looked at


def test_reference_runs_need_records_and_a_message() -> None:
    def refuse(n_test: int = 100, n_records: int = 50, **of: Any) -> None:
        data = SimpleNamespace(x_test=torch.zeros(n_test, 1))
        learned: Any = SimpleNamespace(dataset=data, n_records=n_records)
        ShadowModels(**of).refuse(learned, NOTHING)

    refuse()
    refuse(n_test=attack.FEWEST_RECORDS)
    with pytest.raises(da.DataError, match="this data set has 1 test records"):
        refuse(n_test=1)
    with pytest.raises(da.DataError, match=f"has {attack.FEWEST_RECORDS - 1} test"):
        refuse(n_test=attack.FEWEST_RECORDS - 1)
    nothing: Any = SimpleNamespace(dataset=None)
    with pytest.raises(da.DataError, match="these data are no records"):
        ShadowModels().refuse(nothing, NOTHING)
    of = {"shadows": 8, "targets": 2}
    most = int(attack.MOST_PAIRS / (10 * attack.SEQUENCE))
    refuse(n_records=most, **of)
    with pytest.raises(da.ConfigError, match="10 runs with"):
        refuse(n_records=most + 1, **of)
    context: Any = SimpleNamespace(defense=SimpleNamespace(messages={"y": "", "z": ""}))
    ShadowModels(message="z").refuse_too_large(context, EAVESDROPPER)
    ShadowModels().refuse_too_large(context, ThreatModel(name="end", kind="final-model"))
    with pytest.raises(da.ConfigError, match='no message is called "x"; .* of y, z'):
        ShadowModels().refuse_too_large(context, EAVESDROPPER)
