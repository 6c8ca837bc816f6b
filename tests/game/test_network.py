"""Network accounting from a mixing matrix: check values, and what must hold of any view."""

import itertools
from collections.abc import Callable
from math import inf, sqrt

import networkx as nx
import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor

from dpaudit.accounting.families import gaussian_epsilon, gaussian_mu
from dpaudit.errors import ConfigError
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.leak import certified
from dpaudit.game.network import accounting as network
from dpaudit.game.network.accounting import network_mu
from dpaudit.game.network.gossip import Innovations, Participation, StackedView, gossip_of, workload

EAVESDROPPER = ThreatModel(name="every link")


def with_self_loops(graph: nx.Graph) -> Tensor:
    """D^-1 (A + I), the self-loop counted in the degree; nodes in the order of the graph."""
    A = nx.to_numpy_array(graph, weight=None) + np.eye(len(graph))
    return torch.from_numpy(A / A.sum(1, keepdims=True))


def agents(*them: int) -> ThreatModel:
    kind = "curious" if len(them) == 1 else "colluding"
    return ThreatModel(name=f"agents {them}", kind=kind, agents=them)  # type: ignore[arg-type]


def of_hop(graph: nx.Graph, values: Tensor) -> dict[int, list[float]]:
    """By distance from node 0."""
    found: dict[int, list[float]] = {}
    for v, hops in nx.single_source_shortest_path_length(graph, 0).items():
        found.setdefault(hops, []).append(float(values[v]))
    return found


FLORENTINE = nx.convert_node_labels_to_integers(nx.florentine_families_graph())


def erdos_renyi() -> nx.Graph:
    """100 nodes, p = ln n / n, the first connected one from seed 42,000 on."""
    p = np.log(100) / 100
    drawn = (nx.erdos_renyi_graph(100, p, seed=42_000 + k) for k in range(100))
    return next(graph for graph in drawn if nx.is_connected(graph))


def test_florentine_node_by_node() -> None:
    found = network_mu(with_self_loops(FLORENTINE), 10, adversaries=[agents(0)])
    expected = [9.3986, 0.130092, 0.0603585, 0.159175, 0.332486, 0.508956, 0.53639, 0.436508]
    expected += [0.455921, 0.127873, 0.0647522, 0.251773, 0.0676243, 0.0212464]
    for end in (found.low, found.high):
        assert end[0, 1:].square().tolist() == pytest.approx(expected, rel=6e-6)
    assert found.low[0].isnan().tolist() == [True] + [False] * 14
    spent = {1: 7.2368, 7: 1.4102, 14: 0.24137}
    for v, epsilon in spent.items():
        mu = float(found.high[0, v]) / 2  # sigma = 2
        assert gaussian_epsilon(1e-5, mu) == pytest.approx(epsilon, rel=3e-5)


def test_florentine_by_distance_for_one_use_and_for_all() -> None:
    W = with_self_loops(FLORENTINE)
    every = of_hop(FLORENTINE, network_mu(W, 10, adversaries=[agents(0)]).high[0].square())
    expected = {2: (0.45405, 0.33249, 0.53639), 3: (0.14731, 0.067624, 0.25177)}
    expected[4] = (0.048786, 0.021246, 0.064752)
    for hops, (mean, least, most) in expected.items():
        values = every[hops]
        assert np.mean(values) == pytest.approx(mean, rel=5e-5)
        assert (min(values), max(values)) == pytest.approx((least, most), rel=5e-5)
    once = of_hop(FLORENTINE, network_mu(W, 10, "once", adversaries=[agents(0)]).high[0].square())
    means = [np.mean(once[hops]) for hops in (1, 2, 3, 4)]
    assert means == pytest.approx([1, 0.023012, 0.0056707, 0.0024039], rel=5e-5)


def test_a_cycle_of_twenty() -> None:
    found = network_mu(with_self_loops(nx.cycle_graph(20)), 10, adversaries=[agents(0)])
    expected = [9.3312, 2.0678, 0.54222, 0.11777, 0.019926, 0.0024746, 0.00020945]
    for end in (found.low, found.high):
        assert end[0, 1:8].square().tolist() == pytest.approx(expected, rel=3e-5)


def test_a_hundred_nodes_at_random() -> None:
    graph = erdos_renyi()
    found = of_hop(
        graph, network_mu(with_self_loops(graph), 10, adversaries=[agents(0)]).high[0] ** 2
    )
    expected = {
        2: (11, 0.59985, 0.49738, 0.99433),
        3: (29, 0.054115, 0.022341, 0.20145),
        4: (42, 0.0069531, 0, 1),
        5: (13, 0.001034, 0, 1),
    }
    for hops, (n, mean, least, most) in expected.items():
        values = found[hops]
        assert len(values) == n
        assert np.mean(values) == pytest.approx(mean, rel=6e-5)
        if hops < 4:
            assert (min(values), max(values)) == pytest.approx((least, most), rel=6e-5)
    assert len(found[1]) == 4
    assert max(found[1]) < 9.8799  # sums of absolute values give 9.805 to 9.8799


def test_published_sums_exceed_what_all_links_tell() -> None:
    """Of neighbours alone: 10.490 on the cycle, 9.805 to 9.8799 at random, of 10 in all."""
    schema = Participation.of("every-round", 10)
    for graph, mean, ends in (
        (nx.cycle_graph(20), 10.490, (10.490, 10.490)),
        (erdos_renyi(), 9.8447, (9.805, 9.8799)),
    ):
        gossip = gossip_of(with_self_loops(graph), 10, 1.0, None)
        (H,) = Innovations.of(gossip, agents(0)).grams(schema, list(graph.neighbors(0)))
        sums = H.abs().sum((1, 2))
        assert float(sums.mean()) == pytest.approx(mean, rel=6e-5)
        assert (float(sums.min()), float(sums.max())) == pytest.approx(ends, rel=6e-5)


def test_a_chain_of_seven_and_a_path_of_three_for_one_use() -> None:
    chain = network_mu(with_self_loops(nx.path_graph(7)), 14, "once", adversaries=[agents(0)])
    expected = [1, 0.11486, 0.021859, 0.0065558, 0.0029186, 0.00095066]
    assert chain.high[0, 1:].square().tolist() == pytest.approx(expected, rel=3e-5)
    W = with_self_loops(nx.path_graph(3))
    for n_rounds, mu in ((2, 0.316228), (5, 0.352642), (10, 0.352888), (20, 0.352888)):
        found = network_mu(W, n_rounds, "once", adversaries=[agents(0)])
        assert float(found.high[0, 2]) == pytest.approx(mu, abs=6e-7)


def strategy(name: str, n_rounds: int) -> Tensor | None:
    """M, so that the noise of the rounds is M^-1 z."""
    columns = {"anti-pgd": np.ones(n_rounds), "square-root": np.ones(n_rounds)}
    if name not in columns:
        return None
    t = np.arange(1, n_rounds)
    columns["square-root"][1:] = np.cumprod((2 * t - 1) / (2 * t))
    at = np.arange(n_rounds)
    lower = at[:, None] >= at
    return torch.from_numpy(np.where(lower, columns[name][np.abs(at[:, None] - at)], 0.0))


@pytest.mark.parametrize(
    "name, every, mus, everything",
    [
        ("none", 6, (1, 0.34523, 0.1539), 1),
        ("none", 3, (1.36932, 0.51377, 0.21015), 1.41421),
        ("anti-pgd", 6, (2.17901, 1.03041, 0.43606), 2.44949),
        ("anti-pgd", 3, (3.37421, 1.43686, 0.51063), 3.87298),
        ("square-root", 6, (1.21866, 0.55382, 0.26116), 1.27421),
        ("square-root", 3, (1.83317, 0.83133, 0.32821), 2.02417),
    ],
)
def test_noise_that_is_correlated_over_rounds(name, every, mus, everything) -> None:
    """A path of four, six rounds, a record used every so many of them."""
    W, schema = with_self_loops(nx.path_graph(4)), (6 // every, every)
    adversaries = [agents(0), EAVESDROPPER]
    found = network_mu(W, 6, schema, adversaries=adversaries, strategy=strategy(name, 6))
    assert found.high[0, 1:].tolist() == pytest.approx(mus, rel=3e-5)
    assert found.low[0, 1:].tolist() == pytest.approx(mus, rel=3e-5)
    assert float(found.high[1, 3]) == pytest.approx(everything, rel=1e-5)


def test_published_multipliers_of_nodes_that_take_local_steps() -> None:
    """20 rounds of 20 steps, batches in turn of which an epoch has 16; weights 1 / max degree."""
    published = [0.7940, 0.7698, 0.7725, 0.7940, 0.7767, 0.7851, 0.7751, 0.7752, 0.7670, 0.7851]
    published += [0.7940, 0.7748, 0.7518, 0.7940, 0.7940]
    A = nx.to_numpy_array(FLORENTINE, weight=None)
    W = A / np.maximum(A.sum(1)[:, None], A.sum(1))
    W += np.diag(1 - W.sum(1))
    uses = torch.zeros(16, 20, dtype=torch.float64)  # of a round, by the batch a record is in
    for batch in range(16):
        for k in range(25):
            uses[batch, (batch + 16 * k) // 20] += 1
    assert float((uses**2).sum(1).max()) / 20 == 1.75
    uses = uses.unique(dim=0)
    base, gossip = 1 / gaussian_mu(8, 1e-5), gossip_of(torch.from_numpy(W), 20, 1.0, None)
    found = torch.zeros(15, 15)
    schema = Participation.of("every-round", 20)
    for a in range(15):
        victims = [v for v in range(15) if v != a]
        (grams,) = Innovations.of(gossip, agents(a)).grams(schema, victims)
        for v, H in zip(victims, grams, strict=True):
            worst = max(certified(H * z[:, None] * z).high for z in uses) / 20
            found[a, v] = sqrt(worst) * base
    # the published code prints four digits of its own optimisation's values
    assert found.amax(0).tolist() == pytest.approx(published, abs=1.01e-4)
    averaged = (found.square().sum(1) / 14).amax().sqrt()  # over victims: no guarantee of any
    assert float(averaged) == pytest.approx(0.5639, abs=1.01e-4)
    alone = [4.9356, 2.6377, 1.8396, 1.4303, 1.1798, 1.0102, 0.8873, 0.7940, 0.7206, 0.6613]
    ours = [sqrt(1.75) / gaussian_mu(epsilon, 1e-5) for epsilon in range(1, 11)]
    assert ours == pytest.approx(alone, rel=1e-4)  # where the published search for mu stops


@pytest.mark.parametrize("schema", ["every-round", "once", (2, 3), (3, 2)])
@pytest.mark.parametrize("reader", [agents(0), agents(1, 4), EAVESDROPPER])
def test_innovations_are_the_stacked_formula_on_varying_graphs(schema, reader) -> None:
    generator = torch.Generator().manual_seed(3)
    varying = [with_self_loops(nx.gnp_random_graph(6, 0.5, seed=s)) for s in (1, 5, 9)]
    noise = 0.5 + torch.rand(6, generator=generator, dtype=torch.float64)
    gossip = gossip_of(varying, 7, noise, None)
    victims = [v for v in range(6) if v not in reader.agents]
    kind = Participation.of(schema, 7)
    quick = Innovations.of(gossip, reader).grams(kind, victims)
    slow = StackedView.of(gossip, reader).grams(kind, victims)
    assert len(quick) == len(slow)
    for H, K in zip(quick, slow, strict=True):
        torch.testing.assert_close(H, K, rtol=1e-9, atol=1e-12)


def mu_of(W: Tensor, *adversaries: ThreatModel, schema="every-round", noise: float | Tensor = 1.0):
    return network_mu(W, 8, schema, noise, adversaries=adversaries).high.nan_to_num(0.0)


def test_a_part_tells_no_more_than_all_and_more_agents_no_less() -> None:
    """Coalitions that grow, and at last every link: data processing."""
    W = with_self_loops(nx.gnp_random_graph(7, 0.4, seed=4))
    for schema in ("every-round", (2, 4), "once"):
        found = mu_of(W, agents(0), agents(0, 3), agents(0, 3, 5), schema=schema)
        for less, more in itertools.pairwise(found):
            there = more > 0
            assert (less[there] <= more[there] * (1 + 1e-6)).all()
        everything = mu_of(W, EAVESDROPPER, schema=schema)
        assert (found <= everything * (1 + 1e-6)).all()
    links = [(1, 0), (2, 1), (3, 2), (4, 3)]
    path = with_self_loops(nx.path_graph(5))
    some = [ThreatModel(name="some", links=tuple(links[:m])) for m in range(1, 5)]
    found = mu_of(path, *some, EAVESDROPPER)
    assert (found[:-1] <= found[1:] * (1 + 1e-6)).all()


def test_rows_may_be_recombined_and_own_noise_struck_out() -> None:
    """From B: an invertible recombination, and own noise as further rows or as missing columns."""
    n, T, a = 5, 4, 0
    gossip = gossip_of(with_self_loops(nx.cycle_graph(n)), T, 1.0, None)
    struck = StackedView.of(gossip, agents(a))
    rows = [t * n + j for t in range(T) for j in (4, 0, 1)]
    L = workload(gossip, n)
    own = torch.eye(T * n, dtype=torch.float64)[[t * n + a for t in range(T)]]
    B = torch.cat([L[rows], own])
    M = torch.randn(len(B), len(B), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for stacked in (B, M @ B):
        H = stacked.mT @ torch.linalg.pinv(stacked @ stacked.mT, hermitian=True) @ stacked
        for v in (1, 2, 3):
            (K,) = struck.grams(Participation.of("every-round", T), [v])
            columns = [t * n + v for t in range(T)]
            torch.testing.assert_close(H[columns][:, columns], K[0], rtol=1e-8, atol=1e-10)


def test_a_matrix_of_low_rank() -> None:
    """Everybody hears everybody: what is left of earlier rounds is one known mean."""
    n = 6
    W = torch.full((n, n), 1 / n, dtype=torch.float64)
    found = network_mu(W, 5, adversaries=[agents(0), EAVESDROPPER])
    assert found.high[:, 1:].square() == pytest.approx(torch.full((2, n - 1), 5.0), rel=1e-9)
    assert found.noiseless == {}
    blocks = torch.block_diag(W[:3, :3] * 2, W[:3, :3] * 2)
    apart = network_mu(blocks, 5, adversaries=[agents(0)]).high[0]
    assert apart[1:3].square().tolist() == pytest.approx([5, 5])
    assert apart[3:].tolist() == [0, 0, 0]


def test_an_agent_without_noise_is_shown_by_its_own_message() -> None:
    noise = torch.ones(5, dtype=torch.float64)
    noise[2] = 0.0
    W = with_self_loops(nx.path_graph(5))
    for M in (None, torch.eye(6, dtype=torch.float64)):
        found = network_mu(W, 6, noise=noise, adversaries=[agents(1), EAVESDROPPER], strategy=M)
        assert found.high[0, 2] == found.high[1, 2] == inf
        assert found.noiseless[0, 2] == (1, 2)  # round 1, the message of agent 2
        assert all(v == 2 for _, v in found.noiseless)
        assert found.high[0, [0, 3, 4]].isfinite().all()


def test_a_matched_filter_errs_as_mu_says_for_every_pair() -> None:
    """AUC = Phi(mu / sqrt 2) on 1e5 runs of either world: 30 pairs within 4 standard errors.

    A correct program fails at most 30 x 6.4e-5 = 0.2% of fresh seeds.
    """
    n, T, runs = 6, 5, 100_000
    graph = nx.path_graph(n)
    graph.add_edge(1, 4)
    W, rng = with_self_loops(graph), torch.Generator().manual_seed(7)
    gossip = gossip_of(W, T, 1.0, None)
    L = workload(gossip, n)
    found = network_mu(W, T, "once")  # the worst round is the first
    z = torch.randn(runs, T * n, dtype=torch.float64, generator=rng)
    messages = z @ L.mT
    for a in range(n):
        rows = [t * n + j for t in range(T) for j in gossip.heard(0, agents(a))]
        own = [t * n + a for t in range(T)]
        held = torch.cat([messages[:, rows], z[:, own]], dim=1)
        B = torch.cat([L[rows], torch.eye(T * n, dtype=torch.float64)[own]])
        for v in (v for v in range(n) if v != a):
            shift = torch.cat([L[rows, v], torch.zeros(len(own), dtype=torch.float64)])  # round 1
            filtered = torch.linalg.pinv(B @ B.mT, hermitian=True) @ shift
            scores, moved = held @ filtered, float(filtered @ shift)
            without, with_record = scores[: runs // 2], scores[runs // 2 :] + moved
            m = runs // 2
            ranks = torch.cat([without, with_record]).argsort().argsort()[m:].double() + 1
            auc = float((ranks.sum() - m * (m + 1) / 2) / (m * m))
            expected = norm.cdf(float(found.high[a, v]) / sqrt(2))
            q1, q2 = expected / (2 - expected), 2 * expected**2 / (1 + expected)
            spread = expected * (1 - expected) + (m - 1) * (q1 + q2 - 2 * expected**2)
            assert abs(auc - expected) <= 4 * sqrt(spread) / m


def shared_secrets(graph: nx.Graph, own: float, pair: float) -> tuple[Tensor, list[list[int]]]:
    """Noise of variance ``own`` at each agent, and of ``pair`` that two neighbours cancel."""
    n, edges = len(graph), list(graph.edges)
    F = torch.zeros(n, n + len(edges), dtype=torch.float64)
    F[:, :n] = sqrt(own) * torch.eye(n, dtype=torch.float64)
    for e, (i, j) in enumerate(edges, start=n):
        F[i, e], F[j, e] = sqrt(pair), -sqrt(pair)
    return F, [[i] for i in range(n)] + [list(edge) for edge in edges]


@pytest.mark.parametrize(
    "make, own, expected",
    [
        (lambda: nx.cycle_graph(16), 1.0, (0.15821, 0.27021, 1.0)),
        (lambda: nx.cycle_graph(16), 0.1, (0.75224, 1.05631, 10.0)),
        (
            lambda: nx.convert_node_labels_to_integers(nx.grid_2d_graph(4, 4, periodic=True)),
            1.0,
            (0.08842, 0.10145, 1.0),
        ),
        (lambda: nx.complete_graph(16), 1.0, (0.06832, 0.07285, 1.0)),
    ],
)
def test_secrets_that_a_coalition_holds_hide_nothing_from_it(
    make: Callable[[], nx.Graph], own: float, expected: tuple[float, ...]
) -> None:
    """mu^2 of a round to an outsider, to one neighbour's colleagues, to all neighbours at once.

    The figures are of who reads every message; a coalition reads its neighbours' alone, so all
    agents are linked by a weight that carries no secret.
    """
    graph = make()
    F, known_to = shared_secrets(graph, own, 10.0)
    everybody = torch.full((16, 16), 1 / 16, dtype=torch.float64)
    around = tuple(graph.neighbors(0))
    adversaries = [EAVESDROPPER, agents(around[0]), agents(*around)]
    found = network_mu(everybody, 3, noise=F, adversaries=adversaries, known_to=known_to)
    assert (found.high[:, 0].square() / 3).tolist() == pytest.approx(expected, abs=6e-6)
    ignorant = network_mu(everybody, 3, noise=F, adversaries=adversaries)
    assert float(ignorant.high[1, 0]) < float(found.high[1, 0])


def test_a_published_noise_of_pairs_over_a_run() -> None:
    """Ring of 16, variances (900, 9000), a user of norm 1 replaced, 1,000 rounds, delta 1e-5."""
    F, known_to = shared_secrets(nx.cycle_graph(16), 900.0, 9000.0)
    everybody = torch.full((16, 16), 1 / 16, dtype=torch.float64)
    adversaries = [EAVESDROPPER, agents(1), agents(1, 15)]
    mu = network_mu(everybody, 10, noise=F / 2, adversaries=adversaries, known_to=known_to).high[
        :, 0
    ]
    epsilons = [gaussian_epsilon(1e-5, float(m) * sqrt(100)) for m in mu]
    assert float(mu[0]) * 10 == pytest.approx(0.83855, abs=6e-6)
    assert epsilons == pytest.approx([3.5741, 4.8683, 10.670], rel=1e-4)


RING = with_self_loops(nx.cycle_graph(5))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"participation": (3, 4)}, "participation: 3 times every 4 rounds takes 9 rounds of 6"),
        ({"participation": (0, 4)}, "expected at least 1 of each"),
        ({"participation": "twice"}, 'participation: "twice" is no schema'),
        ({"n_rounds": 0}, "expected at least 1 of each"),
        ({"adversaries": [agents(0, 1, 2, 3, 4)]}, "holds every agent, the victim among them"),
        ({"adversaries": [agents(9)]}, "agent 9; expected 0 to 4"),
        (
            {"adversaries": [ThreatModel(name="deaf", links=((0, 2),))]},
            'adversary "deaf": reads no message in 6 rounds',
        ),
        ({"W": RING * float("nan")}, "W 1: not all weights are finite"),
        ({"W": RING[:3]}, r"W 1: shape \(3, 5\); expected \[n, n\]"),
        ({"W": [RING, RING[:4, :4]]}, r"W 2: shape \(4, 4\)"),
        ({"W": []}, "W: no matrix"),
        ({"noise": torch.full((5,), inf)}, "noise: shape"),
        ({"noise": torch.ones(4)}, r"noise: shape \(4, 4\)"),
        ({"known_to": [[0]]}, "known_to: 1 entries for 5 draws"),
        ({"strategy": torch.ones(5, 5)}, r"strategy: shape \(5, 5\)"),
        ({"strategy": torch.ones(6, 6)}, "noise of later rounds"),
        ({"strategy": torch.zeros(6, 6)}, "strategy: is singular"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(options, message) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        network_mu(**({"W": RING, "n_rounds": 6} | options))
    assert "\n" not in str(error.value)


def test_more_memory_than_there_is_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(network, "available", lambda: 10**5)
    with pytest.raises(ConfigError, match=r"takes .* are free, enough for \d+ agents"):
        network_mu(with_self_loops(nx.cycle_graph(20)), 50)


def test_an_agent_s_own_noise_reveals_what_others_share_of_it() -> None:
    """Agent 0 has z0 + z1 and agent 1 z1 + z2: to agent 1 half of z1's variance is left open."""
    F = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]])
    gossip = gossip_of(torch.full((2, 2), 0.5), 1, F, None)
    assert gossip.unknown(()).tolist() == [[2.0, 1.0], [1.0, 2.0]]
    expected = torch.tensor([[1.5, 0.0], [0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(gossip.unknown((1,)), expected)
    shared = gossip_of(torch.full((2, 2), 0.5), 1, F, [[0], [0, 1], [1]])
    assert shared.unknown((1,)).tolist() == [[1.0, 0.0], [0.0, 0.0]]
