"""The published bound beside the exact value: its check values, and that it bounds."""

import networkx as nx
import numpy as np
import pytest
import torch

from dpaudit.game.network.accounting import muffliato_mu_squared, network_mu
from tests.game.test_network import FLORENTINE, agents, erdos_renyi, of_hop, with_self_loops

RAW_MEANS = [98.3, 60.6, 35.5, 16.7]  # Florentine, from hop 1 on


def test_the_published_means_by_distance() -> None:
    """Clipped at the ten rounds, it says of most pairs what every link tells."""
    W = with_self_loops(FLORENTINE)
    raw = of_hop(FLORENTINE, muffliato_mu_squared(W, 10)[0])
    assert [np.mean(raw[h]) for h in (1, 2, 3, 4)] == pytest.approx(RAW_MEANS, abs=0.05)
    assert all(np.minimum(raw[h], 10).min() == 10 for h in (1, 2, 3, 4))
    cycle = muffliato_mu_squared(with_self_loops(nx.cycle_graph(20)), 10)[0].clamp(max=10)
    assert cycle[1:8].tolist() == pytest.approx([10] * 4 + [5.2449, 1.4637, 0.33194], rel=2e-5)
    drawn = erdos_renyi()
    random = of_hop(drawn, muffliato_mu_squared(with_self_loops(drawn), 10)[0].clamp(max=10))
    assert [np.mean(random[h]) for h in (1, 2, 3, 4, 5)] == pytest.approx([10] * 5)


@pytest.mark.parametrize("graph", [FLORENTINE, nx.cycle_graph(20), nx.path_graph(7)])
def test_it_is_no_less_than_the_exact_value(graph: nx.Graph) -> None:
    W = with_self_loops(graph)
    exact = network_mu(W, 10, noise=2.0, adversaries=[agents(0), agents(5)]).high.square()
    published = muffliato_mu_squared(W, 10, noise=2.0)[[0, 5]].clamp(max=10 / 4)
    for a, row in ((0, 0), (5, 1)):
        others = [v for v in range(len(graph)) if v != a]
        assert (exact[row, others] <= published[row, others] * (1 + 1e-9)).all()


def test_noise_divides_it() -> None:
    W = with_self_loops(nx.cycle_graph(6))
    torch.testing.assert_close(
        muffliato_mu_squared(W, 5, noise=2.0), muffliato_mu_squared(W, 5) / 4
    )
