"""Every promise of the contract: kept by the built-in defenses, and caught where it is broken."""

import random
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from dpaudit.accounting.releases import Release
from dpaudit.conformance.promises import PROMISES, BrokenPromise, check_defense
from dpaudit.defense.contract import (
    Bracket,
    Combination,
    Defense,
    Observable,
    ObservedGradient,
    Round,
    Setting,
    Stated,
)
from dpaudit.defense.transcript import broadcast, unicast
from dpaudit.files.options import graph_options
from dpaudit.registry import load_plugin

SMALL = {"n_rounds": 6, "batch_size": 4}
SYNC = {"beyond_graph": ("m", "a", "sens")}  # rounds of synchronisation are on the complete graph
BUILT_IN = [  # name, options, exceptions that its algorithm needs
    ("adp2sgd", {"noise_multiplier": 2.0, "staleness": 2}, {}),
    ("adp-vrsgp", {"epsilon": 1.0, "tau": 2, "clip_norm": 0.5}, {}),
    ("cga", {}, {}),
    ("correlated-randomness", {}, {"weights": ("lambda", "C", "B")}),
    ("d-psgd", {}, {}),
    ("decor", {"noise_multiplier": 2.0}, {}),
    ("dgd", {}, {}),
    ("diadsp", {"epsilon": 1.0}, {}),
    ("diff-tv-ab", {"epsilon": 1.0}, {}),
    ("dp-dgd", {"variant": "true-consensus"}, {}),
    ("dp-cga", {"noise_multiplier": 2.0}, {}),
    ("dp-dfedsam", {"noise_multiplier": 2.0, "local_steps": 1, "gossip_steps": 2}, {}),
    ("dp-dpsgd", {"noise_multiplier": 2.0}, {}),
    ("dp-netfleet", {"noise_multiplier": 2.0, "local_steps": 2}, {}),
    ("dpdl", {"epsilon": 1.0}, {}),
    ("dpop", {"radius": 2.0}, {}),
    ("dpps", {}, SYNC),
    ("dyn-d2p", {"epsilon": 1.0}, {}),
    ("fed-cdp", {"noise_multiplier": 2.0, "schedule": "decay"}, {}),
    ("feddpa", {"noise_multiplier": 2.0}, {}),
    ("fedan", {"noise_multiplier": 2.0}, {}),
    ("gradient-tracking", {}, {}),
    ("mapa", {"noise_multiplier": 2.0}, {}),
    ("muffliato", {"noise_multiplier": 2.0}, {}),
    ("net-fleet", {"local_steps": 2}, {}),
    ("mafalda", {"noise_multiplier": 2.0}, {}),
    ("paillier-consensus", {}, {"weights": ("weights",)}),
    ("partpsp", {"share": ["1.bias"]}, SYNC),
    ("pp-doagt", {"epsilon": 1.0}, {}),
    ("pedfl", {}, {}),
    ("ppsgd", {"noise_multiplier": 2.0}, {}),
    (
        "secure-aggregation",
        {"noise_multiplier": 2.0, "late": 1},
        {"graph": graph_options("server", participation=0.8)},
    ),
    ("sensitivity-reduced", {}, {}),
    ("sgp", {"momentum": 0.5}, {}),
    ("sgpdp", {}, SYNC),
    ("wang-nedic", {"epsilon": 1.0}, {}),
    ("wang-nedic-tracking", {"epsilon": 1.0}, {}),
    ("whisper", {"noise_multiplier": 2.0}, {}),
    ("xuan-wang", {"epsilon": 1.0}, {}),
    ("zip-dl", {"noise_multiplier": 2.0, "self_noise": True}, {"graph": graph_options("ring")}),
]


def built_in(name: str, **options: Any) -> Defense:
    return load_plugin("defenses", name)(**SMALL, **options)


def test_every_built_in_defense_is_checked(own_defense: str) -> None:
    assert own_defense in {name for name, _, _ in BUILT_IN}


OF_EACH_KIND = (  # other defenses: make slow
    "correlated-randomness",
    "decor",
    "dp-dpsgd",
    "dpps",
    "fed-cdp",
    "mafalda",
    "partpsp",
    "sgp",
    "wang-nedic",
    "zip-dl",
)


@pytest.mark.parametrize(
    "name, options, exceptions",
    [pytest.param(*b, marks=[pytest.mark.slow] * (b[0] not in OF_EACH_KIND)) for b in BUILT_IN],
    ids=[name for name, *_ in BUILT_IN],
)
def test_built_in_defenses_keep_every_promise(name, options, exceptions) -> None:
    for promise in PROMISES:
        if (name, promise) != (
            "partpsp",
            "observables",
        ):  # local layers hide the model: NotObservable
            check_defense(built_in(name, **options), promise, **exceptions)


@pytest.mark.parametrize("name, options", [("sgp", {}), ("dyn-d2p", {"epsilon": 1.0}),
                                           ("adp-vrsgp", {"epsilon": 1.0})])  # fmt: skip
def test_push_sum_methods_keep_them_on_a_directed_graph_too(name, options) -> None:
    for promise in PROMISES.keys() - {"mechanism"}:  # the accounting of a graph is tested elsewhere
        graph = graph_options("uniform-out", p=0.3)
        check_defense(built_in(name, **options), promise, graph=graph)


def test_feddpa_keeps_them_with_a_server_that_is_waited_for() -> None:
    for promise in PROMISES.keys() - {"mechanism"}:
        graph = graph_options("server", participation=0.6)
        check_defense(built_in("feddpa", noise_multiplier=2.0), promise, graph=graph)


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name, options, exceptions", BUILT_IN, ids=[name for name, *_ in BUILT_IN])
def test_built_in_defenses_keep_them_on_a_cuda_device(name, options, exceptions) -> None:
    for promise in PROMISES:
        if (name, promise) != ("partpsp", "observables"):
            check_defense(built_in(name, **options), promise, device="cuda", **exceptions)


class State(NamedTuple):
    X: Tensor  # [..., n_agents, d]


class Gossip(Defense):
    """X <- W Z - alpha G(X) with Z = X + N(0, sigma^2) sent: keeps every promise."""

    paper: ClassVar[str] = "none"
    claims: ClassVar[str] = "none"
    messages: ClassVar[Mapping[str, str]] = {"z": "the model under Gaussian noise"}
    private: ClassVar[Mapping[str, str]] = {"gradient": "of the batch"}

    n_rounds: int = 6
    batch_size: int = 4
    sigma: float = 0.5

    def start(self, X, setting):
        return State(X)

    def step(self, state, k, graph, gradient, noise):
        Z = state.X + noise.gaussian("z", self.sigma, state.X)
        G = gradient(state.X)
        return Round(State(graph.mix(Z) - 0.1 * G), {"z": broadcast(graph, Z)}, {"gradient": G})

    def models(self, state):
        return state.X

    def without_noise(self):
        return self.model_copy(update={"sigma": 0.0})

    def mechanism(self, setting, threat_model, victim):
        agents = range(setting.n_agents)
        seen = any(threat_model.sees(victim, i) for i in agents if i != victim)
        releases = (Release(family="gaussian", noise_multiplier=self.sigma, count=self.n_rounds),)
        return Bracket(releases if seen else (), releases, ())

    def sensitivity(self, k, setting, adjacency, victim, sent):
        return {"z": Stated(2, 0.0)}  # given all messages before it, the model before the round

    def _all(self, view, setting, target):
        rounds = range(1, target.round + 2)
        return torch.stack([view.sent_by("z", k, target.victim) for k in rounds])

    combinations: ClassVar[Mapping[str, Combination]] = {
        "history": Combination("all that was sent", ("z",), 1, _all)
    }

    def _sent(self, view, setting, target):
        Z = view.sent_by("z", target.round, target.victim)
        return ObservedGradient(Z - view.sent_by("z", target.round - 1, target.victim), Z)

    observables: ClassVar[Mapping[str, Observable]] = {
        "difference": Observable("change of the message", {"z": (-1, 0)}, "z", False, _sent)
    }


def test_an_honest_defense_keeps_every_promise() -> None:
    check_defense(Gossip())
    check_defense(Gossip(sampling="poisson"), graph=graph_options("exponential"))


def resent(round: Round, graph, Z: Tensor) -> Round:
    return round._replace(sent={"z": broadcast(graph, Z)})


class NoPaper(Gossip):
    paper: ClassVar[str] = ""


class ForgetsAnOption(Gossip):
    def model_dump(self, **options):
        return {**super().model_dump(**options), "sigma": 0.25}


class KeepsANumber(Gossip):
    def start(self, X, setting):
        return NamedTuple("State", [("X", Tensor), ("k", int)])(X, 1)

    def step(self, state, k, graph, gradient, noise):
        round = super().step(state, k, graph, gradient, noise)
        return round._replace(state=state._replace(X=round.state.X, k=k))


class KeepsADictionary(Gossip):
    def start(self, X, setting):
        return {"X": X}


class SendsUnnamed(Gossip):
    def step(self, state, k, graph, gradient, noise):
        round = super().step(state, k, graph, gradient, noise)
        return round._replace(sent={**round.sent, "g": broadcast(graph, state.X)})


class NamesUnsent(Gossip):
    messages: ClassVar[Mapping[str, str]] = {"z": "sent", "y": "never sent"}


class SendsToAll(Gossip):
    def step(self, state, k, graph, gradient, noise):
        from dpaudit.graphs.graph import build_graph

        complete = build_graph("complete", graph.n_agents).at(1)
        round = super().step(state, k, graph, gradient, noise)
        return resent(round, complete, round.sent["z"].payload)


class SendsARowTooFew(Gossip):
    def step(self, state, k, graph, gradient, noise):
        round = super().step(state, k, graph, gradient, noise)
        Z = round.sent["z"].payload[..., 1:, :]
        return round._replace(sent={"z": unicast(graph, Z)})


class SendsAttached(Gossip):
    def step(self, state, k, graph, gradient, noise):
        round = super().step(state, k, graph, gradient, noise)
        return resent(round, graph, round.sent["z"].payload.clone().requires_grad_())


class WritesInPlace(Gossip):
    def step(self, state, k, graph, gradient, noise):
        round = super().step(state, k, graph, gradient, noise)
        state.X.mul_(0.5)
        return round


class Counts(Gossip):
    _steps: list[int] = []

    def step(self, state, k, graph, gradient, noise):
        self._steps.append(k)
        scaled = state._replace(X=state.X * (1 + len(self._steps)))
        return super().step(scaled, k, graph, gradient, noise)


class RemembersWhereItIs(Gossip):
    """The same from the start on, another when it starts in the middle."""

    _last: list[Any] = [None]

    def step(self, state, k, graph, gradient, noise):
        momentum = 0.0 if k == 1 or self._last[0] is None else self._last[0]
        round = super().step(state, k, graph, gradient, noise)
        self._last[0] = round.private["gradient"]
        return round._replace(state=State(round.state.X - 0.1 * momentum))


class DrawsGlobally(Gossip):
    def step(self, state, k, graph, gradient, noise):
        round = super().step(state, k, graph, gradient, noise)
        return resent(round, graph, round.sent["z"].payload + torch.randn_like(state.X))


class DrawsFromPython(Gossip):
    def step(self, state, k, graph, gradient, noise):
        round = super().step(state, k, graph, gradient, noise)
        return resent(round, graph, round.sent["z"].payload + random.random())


class DrawsFromNumpy(Gossip):
    def step(self, state, k, graph, gradient, noise):
        round = super().step(state, k, graph, gradient, noise)
        return resent(round, graph, round.sent["z"].payload + np.random.rand())


class MixesTrials(Gossip):
    """Normalises by a norm over everything in front, trials too."""

    def step(self, state, k, graph, gradient, noise):
        scaled = State(state.X / state.X.norm())
        return super().step(scaled, k, graph, gradient, noise)


class TakesOneTrial(Gossip):
    def models(self, state):
        return state.X.reshape(-1, state.X.shape[-1])[-8:]


class Doubles(Gossip):
    def models(self, state):
        return state.X.double()


class NoisesInSingle(Gossip):
    def step(self, state, k, graph, gradient, noise):
        round = super().step(state, k, graph, gradient, noise)
        return resent(round, graph, round.sent["z"].payload.float())


class CentresOnTheMean(Gossip):
    """Uses the mean gradient of all agents, which no message carries."""

    def step(self, state, k, graph, gradient, noise):
        round = super().step(state, k, graph, gradient, noise)
        G = round.private["gradient"]
        return round._replace(state=State(round.state.X + 0.1 * G.mean(dim=-2, keepdim=True)))


class ScalesByAll(Gossip):
    """Scales its message by the largest gradient of this round."""

    def step(self, state, k, graph, gradient, noise):
        round = super().step(state, k, graph, gradient, noise)
        largest = round.private["gradient"].norm(dim=-1).amax(dim=-1)[..., None, None]
        return resent(round, graph, round.sent["z"].payload / largest)


class TakesMoreBatches(Gossip):
    def step(self, state, k, graph, gradient, noise):
        played = super().step(state, k, graph, gradient, noise)
        return played._replace(state=State(played.state.X - 0.1 * gradient.at_step(1)(state.X)))


class TakesFewerBatches(Gossip):
    @property
    def batches_per_round(self):
        return 2


class StepsWhileItWaits(Gossip):
    """On pairs of agents, of which one takes a step."""

    waits: ClassVar[bool] = True


class SharesWithNobodyThereIs(Gossip):
    def step(self, state, k, graph, gradient, noise):
        V = noise.shared("v", 0.1, state.X, torch.full((graph.n_agents, 1), graph.n_agents))
        played = super().step(state, k, graph, gradient, noise)
        return played._replace(state=State(played.state.X + V))


class SharesARowTooFew(Gossip):
    def step(self, state, k, graph, gradient, noise):
        V = noise.shared("v", 0.1, state.X, torch.zeros(3, 2, dtype=torch.long))
        played = super().step(state, k, graph, gradient, noise)
        return played._replace(state=State(played.state.X + V))


class DrawsASecretAgain(Gossip):
    def step(self, state, k, graph, gradient, noise):
        played = super().step(state, k, graph, gradient, noise)
        V = noise.shared("z", self.sigma, state.X, torch.zeros(graph.n_agents, 1).long())
        return played._replace(state=State(played.state.X + V))


class HalvesAgain(Gossip):
    def calibrate(self, setting: Setting):
        return self.model_copy(update={"sigma": self.sigma / 2})


class SwapsItsBracket(Gossip):
    def mechanism(self, setting, threat_model, victim):
        least, most, notes = super().mechanism(setting, threat_model, victim)
        return Bracket((*least, *least), most, notes)


class LeaksToTheDeaf(Gossip):
    def mechanism(self, setting, threat_model, victim):
        _, most, notes = super().mechanism(setting, threat_model, victim)
        return Bracket(most, most, notes)


class NoisyTwin(Gossip):
    def without_noise(self):
        return self


class TwinThatDeclaresNoise(Gossip):
    quiet: bool = False

    def step(self, state, k, graph, gradient, noise):
        plain = Gossip(sigma=0.0 if self.quiet else self.sigma)
        return plain.step(state, k, graph, gradient, noise)

    def without_noise(self):
        return self.model_copy(update={"quiet": True})


class StatesAnother(Gossip):
    def sensitivity(self, k, setting, adjacency, victim, sent):
        return {"y": Stated(2, 1.0)}


class StatesNothing(Gossip):
    def sensitivity(self, k, setting, adjacency, victim, sent):
        return {"z": Stated(2, float("nan"))}


class ClipsToAnother(Gossip):
    def step(self, state, k, graph, gradient, noise):
        gradient.clipped_sum(state.X, 1.0 + k)
        return super().step(state, k, graph, gradient, noise)

    def clip_norm_in(self, k):
        return 2.0


class HidesPrivately(Gossip):
    private: ClassVar[Mapping[str, str]] = {}


class NamesPrivately(Gossip):
    private: ClassVar[Mapping[str, str]] = {"gradient": "of the batch", "h": "never there"}


class NeedsTheFuture(Gossip):
    combinations: ClassVar[Mapping[str, Combination]] = {
        "history": Gossip.combinations["history"]._replace(delay=0)
    }


def with_observable(**changed: Any) -> type[Gossip]:
    class Observed(Gossip):
        observables: ClassVar[Mapping[str, Observable]] = {
            "difference": Gossip.observables["difference"]._replace(**changed)
        }

    return Observed


FAULTS = [
    (NoPaper, "options", "class variable paper is missing"),
    (ForgetsAnOption, "options", "sigma=0.25"),
    (KeepsANumber, "state", "k of the state is no tensor"),
    (KeepsADictionary, "state", "KeyError|AttributeError|not a NamedTuple"),
    (TakesOneTrial, "trials", r"models of trial 0 in round 1|models .*\[8, 18\]"),
    (SendsUnnamed, "messages", 'it sends "g", which messages does not name'),
    (NamesUnsent, "messages", 'names "y", never sent'),
    (SendsToAll, "links", '"z" in round 1: travels 0 -> 2, where the graph has no edge'),
    (SendsARowTooFew, "links", r"a link names a row that its payload \[7\] has not"),
    (SendsAttached, "links", "payload is not detached"),
    (WritesInPlace, "untouched", "round 1 changes X of its state in place"),
    (Counts, "determined", "differs between two runs with the same streams"),
    (RemembersWhereItIs, "resumed", "differs when round 2 is played from a checkpoint"),
    (DrawsGlobally, "global generators", 'message "z" changes with the seed of a global'),
    (DrawsFromPython, "global generators", 'message "z" changes with the seed of a global'),
    (DrawsFromNumpy, "global generators", 'message "z" changes with the seed of a global'),
    (MixesTrials, "trials", "in round 1 differs from the one that was played alone"),
    (Doubles, "precision and device", "models is torch.float64 where .* are torch.float32"),
    (NoisesInSingle, "precision and device", "torch.float32 where .* are torch.float64"),
    (CentresOnTheMean, "reached by messages", r"X of agent \d after round 1 changes with the batch"),
    (ScalesByAll, "reached by messages", r'"z" on \d -> \d in round 1 changes with the batch of agent 0'),
    (HalvesAgain, "calibration", "a second calibrate gives"),
    (SwapsItsBracket, "mechanism", "eavesdropper: least has epsilon"),
    (LeaksToTheDeaf, "mechanism", "least counts 1 releases to an adversary who reads no link"),
    (NoisyTwin, "twin", "X of the state depends on noise after without_noise"),
    (TwinThatDeclaresNoise, "twin", "declares a noise multiplier of 0.5, not 0"),
    (StatesAnother, "sensitivity", 'it states one of "y", never sent in round 1'),
    (StatesNothing, "sensitivity", r"z in round 1, .*nan\) bounds nothing"),
    (ClipsToAnother, "clip norms", "round 2 clips to 3, clip_norm_in says 2.0"),
    (HidesPrivately, "private", 'its rounds hold "gradient", which private names not'),
    (NamesPrivately, "private", 'private names "h", which no round holds'),
    (TakesMoreBatches, "batches", "round 1 takes the batch of local step 1; batches_per_round is 1"),
    (TakesFewerBatches, "batches", "batches_per_round is 2, but the batch of local step 1 is never"),
    (SharesWithNobodyThereIs, "secrets", 'shared noise "v" in round 1 is known to an agent that'),
    (SharesARowTooFew, "secrets", r'"v" in round 1 has 8 rows, known to \[3, 2\]'),
    (DrawsASecretAgain, "secrets", 'round 1 draws "z" both shared and by itself'),
    (NeedsTheFuture, "combinations", 'does not see "z" of agent 0 in round 3'),
    (with_observable(needs={"z": (0,)}), "observables", 'does not see "z" of agent 0 in round'),
    (with_observable(differs_by_link=True), "observables", "differs_by_link is True, but"),
    (with_observable(derive=lambda d, v, s, t: ObservedGradient(torch.ones(3), torch.ones(18))),
     "observables", r"derived \[3\], expected finite \[18\]"),
]  # fmt: skip


@pytest.mark.parametrize("defense, promise, line", FAULTS, ids=[f[0].__name__ for f in FAULTS])
def test_a_planted_fault_is_caught_in_one_clear_line(defense, promise, line) -> None:
    with pytest.raises(BrokenPromise, match=line) as caught:
        check_defense(defense(), promise)
    assert str(caught.value).startswith(f"{defense.__name__}: {promise}: ")
    assert len(str(caught.value).splitlines()) == 1


def test_an_agent_that_waits_and_takes_a_step_is_caught() -> None:
    pairs = graph_options("pairwise")
    check_defense(Gossip(), "waiting", graph=pairs)  # which an audit refuses to run there
    with pytest.raises(BrokenPromise, match="changes with the data of agent .*, which takes no"):
        check_defense(StepsWhileItWaits(), "waiting", graph=pairs)


def test_all_promises_are_checked_where_none_is_named() -> None:
    with pytest.raises(BrokenPromise, match="LeaksToTheDeaf: mechanism: "):
        check_defense(LeaksToTheDeaf())


def test_every_promise_has_a_fault_that_breaks_it() -> None:
    assert {promise for _, promise, _ in FAULTS} | {"waiting"} == set(PROMISES)


def test_checks_leave_global_generators_as_they_were() -> None:
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    check_defense(Gossip(), "global generators")
    after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


def test_a_promise_that_does_not_exist_is_named() -> None:
    with pytest.raises(ValueError, match='no promise is called "link": options, state'):
        check_defense(Gossip(), "link")
