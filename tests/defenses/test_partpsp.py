"""PartPSP against its pseudo-code agent by agent, and its shared and local layers."""

from dataclasses import replace

import pytest
import torch

from dpaudit.defense.contract import Gradient, Target
from dpaudit.defense.footprint import Footprint
from dpaudit.defense.noise import Noise
from dpaudit.defenses.dpps import DPPS, Protocol
from dpaudit.defenses.partpsp import PartPSP
from dpaudit.errors import ConfigError, NotObservable
from dpaudit.files.options import graph_options
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.game import Game
from dpaudit.graphs.graph import build_graph


@pytest.fixture
def partpsp_setting(setting_of):
    """A directed d-out graph, and the names and sizes of the model's parameter tensors."""

    def make(n_agents, network="mlp", d=3):
        problem, setting = setting_of("complete", n_agents, network)
        parameters = problem.gradients.module.named_parameters()
        layers = tuple((name, p.numel()) for name, p in parameters)
        graph = build_graph(graph_options("d-out", d=d), n_agents)
        return problem, replace(setting, network=graph, layers=layers)

    return make


def part(layers, share):
    """Positions of the parameters that ``share`` names, or whose module it names."""
    positions, offset = [], 0
    for name, size in layers:
        if name in share or name.split(".")[0] in share:
            positions += range(offset, offset + size)
        offset += size
    return positions


@pytest.mark.parametrize(
    "share", [("1",), ("3",), ("1", "3"), ("1.bias",), ("1.weight", "3.weight")]
)
@pytest.mark.parametrize("C", [0.7, None])
def test_six_rounds_equal_the_pseudo_code_agent_by_agent(
    partpsp_setting, record_gradients, streams, share, C
) -> None:
    problem, setting = partpsp_setting(4)
    n, B, gamma_s, gamma_l, gamma_n, b = 4, 3, 0.2, 0.3, 0.05, 2.0
    protocol = Protocol(noise_rate=gamma_n, budget=b, sync_interval=4, decay_at=(3,))
    defense = PartPSP(
        protocol=protocol, share=share, learning_rate=gamma_s, local_learning_rate=gamma_l,
        l1_clip_norm=C, batch_size=B,
    ).calibrate(setting)  # fmt: skip
    X = problem.initial(streams).double()
    here = part(setting.layers, share)
    home = [c for c in range(setting.d) if c not in here]
    state = defense.start(X, setting)
    s, own, S, noise_norm = [x[here] for x in X], [x[home] for x in X], [0.0] * n, [0.0] * n

    def mean_gradient(i, batch):
        x = torch.empty(setting.d, dtype=torch.float64)
        x[here], x[home] = s[i], own[i]  # a_i = 1 on this graph
        return sum(record_gradients(problem, x, batch, i)) / B

    for t in range(6):
        batch, rate = problem.batch(streams, t + 1, B), 0.1 if t >= 2 else 1.0
        like = torch.empty(n, len(here), dtype=torch.float64)
        z, h = Noise(streams, t + 1).laplace("m", 1.0, like), []
        for i in range(n):
            own[i] = own[i] - gamma_l * rate * mean_gradient(i, batch)[home]
            g = mean_gradient(i, batch)[here]
            if C is not None:
                g = g / max(1.0, g.abs().sum().item() / C)
            eps = -gamma_s * rate * g
            first = t % 4 == 0
            carried = 0.0 if first else 0.55 * S[i] + 2 * 0.95 * 0.55 * noise_norm[i]
            S[i] = carried + 2 * 0.95 * eps.abs().sum()
            h.append(s[i] + eps)
        noise = [gamma_n * rate * max(S) / b * z[i] for i in range(n)]
        noise_norm = [x.abs().sum() for x in noise]
        m = [h[i] + noise[i] for i in range(n)]
        W = setting.network.at(t + 1).W
        W = torch.full_like(W, 1 / n) if (t + 1) % 4 == 0 else W
        s = [sum(W[i, j] * m[j] for j in range(n) if W[i, j] > 0) for i in range(n)]
        oracle = problem.gradient(streams, t + 1, B)
        played = defense.step(
            state, t + 1, setting.network.at(t + 1), oracle, Noise(streams, t + 1)
        )
        torch.testing.assert_close(played.sent["m"].payload, torch.stack(m), rtol=1e-11, atol=1e-12)
        state = played.state
    torch.testing.assert_close(state.S, torch.stack(s), rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(state.L, torch.stack(own), rtol=1e-11, atol=1e-12)
    models = defense.models(state)
    torch.testing.assert_close(models[:, here], state.S / state.a, rtol=0, atol=0)
    torch.testing.assert_close(models[:, home], state.L, rtol=0, atol=0)


def test_messages_have_the_shared_coordinates_alone(partpsp_setting, streams, view_of_run) -> None:
    problem, setting = partpsp_setting(4)
    defense = PartPSP(share=("1",), batch_size=4, protocol=Protocol(sync_interval=2))
    _, rounds = view_of_run(defense, problem, setting, streams, 2)
    d_s = sum(size for name, size in setting.layers if name.startswith("1."))
    sent = rounds[2].sent
    widths = {name: message.payload.shape[-1] for name, message in sent.items()}
    assert widths == {"m": d_s, "a": 1, "sens": 1}
    S, L = rounds[2].state.S, rounds[2].state.L
    torch.testing.assert_close(S, S[:1].expand_as(S), rtol=0, atol=1e-14)  # a round of sync
    assert (L - L[:1]).abs().max() > 1e-4
    assert rounds[2].private["gradient"].shape == (4, setting.d)


class Asked(Gradient):
    """Another oracle, and which coordinates it is asked for; it leaves out no other."""

    def __init__(self, of: Gradient) -> None:
        self.of, self.batch_size, self.parts = of, of.batch_size, []

    def __call__(self, X, holders=None):
        return self.of(X, holders)

    def clipped_sum(self, X, clip_norm, holders=None, norm=2):
        raise AssertionError

    def part(self, X, coordinates):
        self.parts.append((coordinates.start, coordinates.stop))
        return super().part(X, coordinates)


@pytest.mark.parametrize("share", [("1",), ("3",), ("1.bias",), "all"])
def test_each_gradient_is_asked_for_its_own_coordinates(partpsp_setting, streams, share) -> None:
    problem, setting = partpsp_setting(4)
    defense = PartPSP(share=share, batch_size=3)
    here = range(setting.d) if share == "all" else part(setting.layers, share)
    home = sorted({*range(setting.d)} - {*here})
    asked = Asked(problem.gradient(streams, 1, 3))
    state = defense.start(problem.initial(streams).double(), setting)
    rest = 1, setting.network.at(1)
    given = defense.step(state, *rest, asked, Noise(streams, 1))
    spans = [(p[0], p[-1] + 1) for p in (home, here) if p]  # step 4, then step 5
    assert asked.parts == spans
    own = defense.step(state, *rest, problem.gradient(streams, 1, 3), Noise(streams, 1))
    torch.testing.assert_close(given.state, own.state, rtol=1e-13, atol=1e-15)


def test_clipping_bounds_the_l1_norm_of_shared_gradients(
    partpsp_setting, streams, view_of_run
) -> None:
    problem, setting = partpsp_setting(4)
    defense = PartPSP(share=("3",), batch_size=4, l1_clip_norm=0.01)
    _, rounds = view_of_run(defense, problem, setting, streams, 1)
    here = part(setting.layers, ("3",))
    home = part(setting.layers, ("1",))
    G = rounds[1].private["gradient"]
    torch.testing.assert_close(G[:, here].abs().sum(1), torch.full((4,), 0.01).double())
    raw = problem.gradient(streams, 1, 4)(problem.initial(streams).double())
    torch.testing.assert_close(G[:, home], raw[:, home], rtol=1e-12, atol=1e-14)


def test_sharing_all_layers_is_dpps_on_clipped_gradients(
    partpsp_setting, streams, view_of_run
) -> None:
    problem, setting = partpsp_setting(4)
    protocol = Protocol(estimator="real", noise_rate=0.1)
    dpps = DPPS(protocol=protocol, batch_size=4)
    for share in ("all", ("1", "3")):
        sgpdp = PartPSP(protocol=protocol, share=share, batch_size=4, l1_clip_norm=None)
        _, ours = view_of_run(sgpdp, problem, setting, streams, 5)
        _, theirs = view_of_run(dpps, problem, setting, streams, 5)
        models = sgpdp.models(ours[5].state), dpps.models(theirs[5].state)
        torch.testing.assert_close(*models, rtol=0, atol=0)


def test_sharing_all_without_noise_is_clipped_decentralized_sgd(
    partpsp_setting, streams, view_of_run
) -> None:
    problem, setting = partpsp_setting(5)
    defense = PartPSP(
        batch_size=4, l1_clip_norm=2.0, protocol=Protocol(sync_interval=0)
    ).without_noise()
    _, rounds = view_of_run(defense, problem, setting, streams, 4)
    X = problem.initial(streams).double()
    for k in range(1, 5):
        G = problem.gradient(streams, k, 4)(X)
        G = G * (2.0 / G.abs().sum(1, keepdim=True)).clamp(max=1.0)
        X = setting.network.at(k).mix(X - 0.1 * G)
    torch.testing.assert_close(defense.models(rounds[4].state), X, rtol=1e-12, atol=1e-14)


def test_trials_in_leading_dimensions_are_independent_runs(partpsp_setting, streams) -> None:
    problem, setting = partpsp_setting(4)
    defense = PartPSP(share=("1",), batch_size=3).without_noise()
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(2, 4, setting.d, dtype=torch.float64, generator=generator)
    args = 1, setting.network.at(1), problem.gradient(streams, 1, 3), Noise(streams, 1)
    together = defense.models(defense.step(defense.start(X, setting), *args).state)
    for trial in range(2):
        alone = defense.models(defense.step(defense.start(X[trial], setting), *args).state)
        torch.testing.assert_close(together[trial], alone, rtol=1e-12, atol=1e-14)


def test_an_eavesdropper_derives_gradients_of_shared_layers(
    partpsp_setting, streams, view_of_run
) -> None:
    problem, setting = partpsp_setting(4)
    full = PartPSP(batch_size=4, l1_clip_norm=0.5).without_noise()
    view, rounds = view_of_run(full, problem, setting, streams, 3)
    derived = full.observables["noisy-gradient"].derive(full, view, setting, Target(3, 1, 2))
    G = rounds[3].private["gradient"][1]
    torch.testing.assert_close(derived.gradient, G, rtol=1e-9, atol=1e-12)
    part_of_it = PartPSP(batch_size=4, share=("1",))
    view, _ = view_of_run(part_of_it, problem, setting, streams, 3)
    with pytest.raises(NotObservable, match="local layers are never sent"):
        part_of_it.observables["noisy-gradient"].derive(part_of_it, view, setting, Target(3, 1, 2))


def test_the_sensitivity_is_released_without_noise_each_round(partpsp_setting) -> None:
    _, setting = partpsp_setting(4)
    defense = PartPSP(l1_clip_norm=100.0, learning_rate=0.1, share=("1",))
    bracket = defense.mechanism(setting, ThreatModel(name="e"), 0)
    assert bracket.least[0].noise_multiplier == 0
    assert bracket.least[0].sampling_rate == 1.0  # a batch of 32 from the 22 records here


def test_layers_that_the_model_has_not_are_refused(partpsp_setting) -> None:
    _, setting = partpsp_setting(4)
    for share in (("1", "2"), ("1.wei",)):
        with pytest.raises(ConfigError, match="the model has no layer"):
            PartPSP(share=share).calibrate(setting)
    assert PartPSP(share=("1.weight",)).calibrate(setting).share == ("1.weight",)
    ring = replace(setting, network=build_graph("star", 4))
    assert PartPSP().calibrate(ring).protocol.budget == 5.0


def test_what_is_evaluated_is_the_mean_of_what_is_shared(partpsp_setting, streams) -> None:
    problem, setting = partpsp_setting(4)
    defense = PartPSP(share=("1",), batch_size=3, protocol=Protocol(sync_interval=0))
    defense = defense.calibrate(setting)
    state = defense.start(problem.initial(streams).double(), setting)
    oracle, graph = problem.gradient(streams, 1, 3), setting.network.at(1)
    state = defense.step(state, 1, graph, oracle, Noise(streams, 1)).state
    models, evaluated = defense.models(state), defense.evaluated(state)
    here = part(setting.layers, ("1",))
    home = [c for c in range(setting.d) if c not in here]
    assert not torch.equal(models[0, here], models[1, here])
    assert torch.allclose(evaluated[:, here], models[:, here].mean(0).expand(4, -1))
    assert torch.equal(evaluated[:, home], models[:, home])


def test_what_plays_few_coordinates_takes_them_for_shared(partpsp_setting) -> None:
    """Games, probes and memory estimates have no layers of the model that ``share`` could name."""
    _, setting = partpsp_setting(4)
    defense = PartPSP(share=("1",), batch_size=3).calibrate(setting)
    assert Footprint.of(defense, setting).messages["m"] == 4
    adversary = Adversary(
        Game.of(defense, setting, 0, "add-remove"), ThreatModel(name="every link"), 2
    )
    assert adversary.leak.shown is not None  # S_i is sent without noise
    with pytest.raises(ConfigError, match='no layer "7"'):
        PartPSP(share=("7",), batch_size=3).calibrate(setting)
