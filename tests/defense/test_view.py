"""What an adversary holds: exactly the messages on the links it reads, and never the secret."""

import gc
from dataclasses import replace
from types import FunctionType, ModuleType

import pytest
import torch
from torch import Tensor

from dpaudit.defense.noise import Noise
from dpaudit.defense.transcript import Message, Transcript, broadcast, unicast
from dpaudit.defense.view import View
from dpaudit.defenses.dpdl import DPDL
from dpaudit.errors import NotObservable
from dpaudit.files.threat import ThreatModel

EAVESDROPPER = ThreatModel(name="e")
CURIOUS = ThreatModel(name="c", kind="curious", agents=(2,))
COLLUDING = ThreatModel(name="s", kind="colluding", agents=(0, 2))
ONE_LINK = ThreatModel(name="l", links=((1, 0),))


@pytest.fixture
def transcript(setting_of, streams) -> Transcript:
    """Three rounds of DPDL on a ring of five."""
    problem, setting = setting_of("ring", 5)
    defense = DPDL(noise_multiplier=1.0, batch_size=4)
    state, captures = defense.start(problem.initial(streams).double(), setting), {}
    for k in (1, 2, 3):
        gradient = problem.gradient(streams, k, 4)
        graph = setting.network.at(k)
        state, captures[k], _ = defense.step(state, k, graph, gradient, Noise(streams, k))
    return Transcript(captures)


@pytest.mark.parametrize(
    "model, seen",
    [
        (EAVESDROPPER, lambda s, r: True),
        (CURIOUS, lambda s, r: 2 in (s, r)),
        (COLLUDING, lambda s, r: {0, 2} & {s, r}),
        (ONE_LINK, lambda s, r: (s, r) == (1, 0)),
    ],
)
def test_a_view_holds_the_messages_on_its_links(transcript, model, seen) -> None:
    view = View.of(model, transcript, {1, 2})
    for name, sent in transcript.rounds[2].items():
        links = list(zip(sent.senders.tolist(), sent.receivers.tolist(), strict=True))
        assert view.edges(name, 2) == [link for link in links if seen(*link)]
        for sender, receiver in links:
            if seen(sender, receiver):
                held = view.on_edge(name, 2, sender, receiver)
                assert torch.equal(held, sent.on_edge(sender, receiver))
            else:
                with pytest.raises(NotObservable):
                    view.on_edge(name, 2, sender, receiver)
    with pytest.raises(NotObservable, match="round 3 was not recorded"):
        view.on_edge("x", 3, 1, 0)


def test_a_broadcast_is_read_on_any_tapped_link_and_on_no_other(transcript) -> None:
    view = View.of(CURIOUS, transcript, {1})
    x = transcript.rounds[1]["x"]
    assert torch.equal(view.sent_by("x", 1, 1), x.payload[1])
    assert torch.equal(view.sent_by("x", 1, 2), x.payload[2])  # its own state
    with pytest.raises(NotObservable, match='does not see "x" of agent 4'):
        view.sent_by("x", 1, 4)


def reachable_tensors(root: object) -> list[Tensor]:
    """Every tensor that any chain of references leads to from an object."""
    found, seen, queue = [], set(), [root]
    while queue:
        thing = queue.pop()
        if id(thing) in seen or isinstance(thing, type | ModuleType | FunctionType):
            continue
        seen.add(id(thing))
        if isinstance(thing, Tensor):
            found.append(thing)
        queue.extend(gc.get_referents(thing))
    return found


@pytest.mark.parametrize("model", [EAVESDROPPER, CURIOUS, COLLUDING, ONE_LINK])
def test_no_reference_leads_from_a_view_to_anything_else(
    transcript, setting_of, streams, model
) -> None:
    problem, _ = setting_of("ring", 5)
    view = View.of(model, transcript, {1, 2, 3})
    allowed = {
        id(t)
        for capture in view.transcript.rounds.values()
        for s in capture.values()
        for t in (s.payload, s.senders, s.receivers, s.rows)
    }
    reached = reachable_tensors(view)
    assert len(reached) >= 4
    assert {id(t) for t in reached} <= allowed
    storages = {t.untyped_storage().data_ptr() for t in reached if t.numel()}
    full = [s.payload for capture in transcript.rounds.values() for s in capture.values()]
    secrets = [*full, problem.dataset.x, problem.dataset.y]
    assert not storages & {t.untyped_storage().data_ptr() for t in secrets}
    assert not any(t.requires_grad for t in reached)


@pytest.mark.parametrize("model", [CURIOUS, COLLUDING, ONE_LINK])
def test_a_view_keeps_when_what_it_may_not_read_changes(transcript, model) -> None:
    def scrambled(sent: Message) -> Message:
        links = zip(sent.senders.tolist(), sent.receivers.tolist(), strict=True)
        visible = torch.tensor([model.sees(*link) for link in links])
        payload = torch.full_like(sent.payload, torch.nan)
        rows = sent.rows[visible]
        payload[rows] = sent.payload[rows]
        return Message(payload, sent.senders, sent.receivers, sent.rows)

    other = Transcript(
        {k: {n: scrambled(s) for n, s in c.items()} for k, c in transcript.rounds.items()}
    )
    mine, theirs = View.of(model, transcript, {2}), View.of(model, other, {2})
    for name in ("x", "cross_gradient", "v", "x_tilde"):
        a, b = mine.transcript.rounds[2][name], theirs.transcript.rounds[2][name]
        assert torch.equal(a.payload, b.payload)
        assert torch.equal(a.rows, b.rows)


@pytest.mark.parametrize("model", [EAVESDROPPER, CURIOUS, COLLUDING, ONE_LINK])
@pytest.mark.parametrize("reader", ["senders", "receivers"])
def test_an_encrypted_message_is_held_by_who_has_the_key(setting_of, model, reader) -> None:
    graph = setting_of("ring", 5)[1].network.at(1)
    payload = torch.arange(2.0 * graph.n_edges).reshape(-1, 2)
    sealed = unicast(graph, payload, readers=getattr(graph, reader))
    other = torch.full_like(payload, torch.nan)
    held = [int(r) in model.agents for r in getattr(graph, reader)]
    other[held] = payload[held]
    scrambled = unicast(graph, other, readers=getattr(graph, reader))

    view = View.of(model, Transcript({1: {"cipher": sealed}}), {1})
    links = list(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True))
    assert view.edges("cipher", 1) == [link for link, key in zip(links, held, strict=True) if key]
    left = view.transcript.rounds[1]["cipher"]
    assert torch.equal(left.payload, payload[held])
    assert left.readers.tolist() == [
        r for r in getattr(graph, reader).tolist() if r in model.agents
    ]
    same = View.of(model, Transcript({1: {"cipher": scrambled}}), {1})
    assert torch.equal(same.transcript.rounds[1]["cipher"].payload, left.payload)


def test_broadcast_repeats_a_row_and_unicast_has_one_each(setting_of) -> None:
    _, setting = setting_of("star", 4)
    graph = setting.network.at(1)
    X = torch.arange(8.0).reshape(4, 2)
    for link, (s, r) in enumerate(zip(graph.senders, graph.receivers, strict=True)):
        assert torch.equal(broadcast(graph, X).on_edge(int(s), int(r)), X[s])
        E = torch.arange(2.0 * graph.n_edges).reshape(-1, 2)
        assert torch.equal(unicast(graph, E).on_edge(int(s), int(r)), E[link])


def test_nothing_recorded_leads_back_through_the_training_run(setting_of) -> None:
    """Neither a view, a copy of what it may read, nor the transcript that the core holds."""
    graph = setting_of("ring", 5)[1].network.at(1)
    X = torch.arange(10.0).reshape(5, 2).requires_grad_()
    E = torch.arange(2.0 * graph.n_edges).reshape(-1, 2).requires_grad_()
    recorded = Transcript({1: {"x": broadcast(graph, 2 * X), "cross_gradient": unicast(graph, E)}})
    for name in ("x", "cross_gradient"):
        assert not recorded.on_edge(name, 1, 1, 2).requires_grad
        assert not recorded.on_edge(name, 1, 1, 2).requires_grad
        view = View.of(CURIOUS, recorded, {1})
        for held in (
            view.transcript.rounds[1][name].payload,
            view.sent_by(name, 1, 1),
            view.all_sent_by(name, 1, 2),
            view.on_edge(name, 1, 1, 2),
        ):
            assert not held.requires_grad
            assert held.grad_fn is None
        assert torch.equal(view.sent_by(name, 1, 1), recorded.on_edge(name, 1, 1, 2))


def test_momentum_is_available_to_who_holds_the_messages(transcript, setting_of) -> None:
    from dpaudit.defense.contract import Target

    _, setting = setting_of("ring", 5)
    defense, target = DPDL(noise_multiplier=1.0, batch_size=4), Target(2, 1, 0)
    everything = View.of(EAVESDROPPER, transcript, {1, 2})
    for name in ("momentum-difference", "momentum-exact", "momentum-stripped", "cross_gradient"):
        derived = defense.observables[name].derive(defense, everything, setting, target)
        assert derived.gradient.shape == derived.model.shape == (setting.d,)
    curious = View.of(CURIOUS, transcript, {1, 2})
    difference = defense.observables["momentum-difference"]
    difference.derive(defense, curious, setting, Target(2, 1, 2))
    with pytest.raises(NotObservable, match='does not see "v" of agent 0'):
        defense.observables["momentum-exact"].derive(defense, curious, setting, Target(2, 1, 2))


def test_exact_momentum_is_the_aggregate(setting_of, streams) -> None:
    from dpaudit.defense.contract import Target

    problem, setting = setting_of("ring", 5)
    plain = DPDL(noise_multiplier=1.0, batch_size=4, momentum=0.0)
    heavy = plain.model_copy(update={"momentum": 0.7})
    graph, captures = setting.network.at(1), {}
    state = heavy.start(problem.initial(streams).double(), setting)
    for k in (1, 2):
        gradient = problem.gradient(streams, k, 4)
        before = state
        state, captures[k], _ = heavy.step(state, k, graph, gradient, Noise(streams, k))
    aggregate = plain.step(before, 2, graph, gradient, Noise(streams, 2)).sent["v"].payload
    view = View.of(EAVESDROPPER, Transcript(captures), {1, 2})
    for victim in range(5):
        target = Target(2, victim, (victim + 1) % 5)
        exact = heavy.observables["momentum-exact"].derive(heavy, view, setting, target)
        torch.testing.assert_close(exact.gradient, aggregate[victim], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(exact.model, before.X[victim])
        weak = heavy.observables["momentum-difference"].derive(heavy, view, setting, target)
        assert not torch.allclose(weak.gradient, aggregate[victim], rtol=1e-3)


def test_threat_models_refuse_agents_that_do_not_fit_their_kind() -> None:
    for wrong in (
        {"kind": "curious"},
        {"kind": "curious", "agents": (1, 2)},
        {"kind": "colluding", "agents": (1,)},
        {"kind": "colluding", "agents": (1, 1)},
        {"kind": "external", "agents": (1,)},
        {"kind": "curious", "agents": (1,), "links": ((0, 1),)},
    ):
        with pytest.raises(ValueError, match=r"takes agents|links belong"):
            ThreatModel(name="x", **wrong)


@pytest.mark.parametrize("model", [EAVESDROPPER, CURIOUS, COLLUDING, ONE_LINK])
def test_all_read_of_a_sender_is_its_rows_on_the_links(transcript, model) -> None:
    view, sent = View.of(model, transcript, {2}), transcript.rounds[2]["cross_gradient"]
    for sender in range(5):
        links = [link for link in view.edges("cross_gradient", 2) if link[0] == sender]
        if not links:
            with pytest.raises(NotObservable, match=f"agent {sender} in round 2"):
                view.all_sent_by("cross_gradient", 2, sender)
            continue
        expected = torch.stack([sent.on_edge(*link) for link in links])
        assert torch.equal(view.all_sent_by("cross_gradient", 2, sender), expected)
        assert torch.equal(view.all_sent_by("x", 2, sender)[0], view.sent_by("x", 2, sender))
        assert len(view.all_sent_by("x", 2, sender)) == 1  # a broadcast, whatever the links


def test_views_of_several_trials_hold_those_of_each(transcript) -> None:
    """Leading dimensions pass through every way to read a view."""
    both = {
        k: {name: replace(s, payload=torch.stack([s.payload, -s.payload])) for name, s in c.items()}
        for k, c in transcript.rounds.items()
    }
    one, two = (View.of(CURIOUS, t, {1, 2}) for t in (transcript, Transcript(both)))
    for read in (
        lambda view: view.sent_by("x", 2, 1),
        lambda view: view.all_sent_by("cross_gradient", 1, 2),
        lambda view: view.transcript.on_edge("v", 2, 1, 2),
    ):
        assert torch.equal(read(two), torch.stack([read(one), -read(one)]))
