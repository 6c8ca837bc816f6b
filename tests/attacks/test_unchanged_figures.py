"""Values on which attacks decide, one by one: scores, ranks, spans of tokens, bounds of canaries."""

from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import ndtri
from scipy.stats import beta

from dpaudit.attacks.canaries import bound as canaries
from dpaudit.attacks.likelihood_ratio.bound import _share, n_matched
from dpaudit.attacks.sensitivity.row import Row, lesser
from dpaudit.attacks.shadow_models import scores as shadow
from dpaudit.attacks.text import sequences, slopes, span
from dpaudit.attacks.topology import ranking
from dpaudit.attacks.topology import scores as topology
from dpaudit.attacks.weather import _FINDING, Bound, Learned, Weather
from dpaudit.defense import Stated
from dpaudit.files.finding import Name
from dpaudit.game.network.gossip import Participation
from tests.pinned import hold


def numbers(*shape: int, step: int = 7) -> np.ndarray:
    """Quantiles of N(0, 1) in an order of their own."""
    n = int(np.prod(shape))
    return ndtri((np.arange(n) * step % n + 0.5) / n).reshape(shape)


INCLUDED = np.array([[1, 0, 1], [0, 1, 1], [1, 1, 0], [0, 0, 0], [1, 0, 1]], bool)


def shadow_scores(k: int) -> dict[str, Any]:
    references = shadow.References(numbers(5, 3, k, step=11) + INCLUDED[..., None], INCLUDED)
    attacked, public = numbers(2, 3, k, step=5), numbers(2, 4, k, step=3)
    of_references = numbers(5, 4, k, step=9 if k == 1 else 7)
    return {
        "online": shadow.lira_online(attacked, references),
        "own": shadow.lira_online(attacked, references, "own"),
        "offline": shadow.lira_offline(attacked, references),
        "offline own": shadow.lira_offline(attacked, references, "own"),
        "rmia": shadow.rmia(attacked, references, public, of_references),
        "rmia offline": shadow.rmia(attacked, references, public, of_references, 0.3),
        "offline weights": [shadow._offline(np.array([0.2]), a) for a in (0.0, 0.3, 1.0)],
        "ratios": shadow._log_ratios(attacked, np.full((3, k), 0.4)),
        "scored": shadow.is_scored(INCLUDED),
        "scored by few": shadow.is_scored(INCLUDED[:3]),
        "constant": shadow.pooled_covariance(np.zeros((4, k)), 3, 4) * 1e24,
    }


def topology_scores() -> dict[str, Any]:
    models = torch.from_numpy(numbers(5, 4, 6, step=11))
    found = [
        topology._least_squares(models - models.mean(1, True), rho, 1e-6) for rho in (0.0, 0.5)
    ]
    two = topology.fitted(models[:2], 1e-15)
    best = topology.fitted(models, 1e-15)
    return {
        "least squares": [(f.W, f.variance, f.loss, f.rho) for f in (*found, two, best)],
        "exact": topology._least_squares(torch.zeros(3, 3, 2).double(), 0.0, 0.0).loss,
        "regression": topology.by_regression(found[0]),
        "simplex": topology.by_simplex(found[0]),
        "on a simplex": topology.on_simplex(torch.tensor([[0.5, 0.9, -0.2], [0.2, 0.3, 0.5]])),
    }


def ranks() -> dict[str, Any]:
    scores = numbers(6, 6)
    scores = np.round(scores + scores.T, 1)
    links = np.zeros((6, 6), bool)
    links[[0, 1, 2, 3, 0], [1, 2, 3, 4, 5]] = True
    links |= links.T
    pairs = ~np.eye(6, dtype=bool)
    some = pairs.copy()
    some[0, 3] = some[3, 0] = False
    metrics = ranking.edge_metrics(scores, links, some, np.random.default_rng(2))
    star = np.zeros((4, 4), bool)
    star[0, 1:] = star[1:, 0] = True
    every = ~np.eye(4, dtype=bool)
    return {
        "metrics": [(m.value, m.low, m.high, m.n) for m in metrics.values()],
        "jackknifed": [ranking.jackknifed(scores, links, p) for p in (pairs, some)],
        "all right": ranking.jackknifed(links.astype(float), links, pairs),
        "all wrong": ranking.jackknifed(-links.astype(float), links, pairs),
        "no agent to leave out": ranking.jackknifed(star.astype(float), star, every),
        "disjoint": [ranking.disjoint(links), ranking.disjoint(star)],
    }


def summed() -> dict[str, Any]:
    own = canaries.Summed.expected(np.array([0.5, 0.5]), 1.0, 41)
    metrics = own.metrics(0.1, 1e-5, 0.05)
    power = canaries.power_metrics(own.sizes, 1.0, 41, 1e-5, 0.05)
    return {
        "canaries": (own.law.n_present, own.law.n_absent),
        "factor": [own.value, own.factor(0.05), own.factor_error, own.epsilon(0.0, 1e-5)],
        "metrics": [(m.value, m.n, m.standard_error) for m in metrics.values()],
        "power": [(m.value, m.n) for m in power.values()],
        "levels": canaries.LEVELS,
        "evidence": own.evidence(),
    }


def guessed() -> list[Any]:
    guessing = canaries.Guessing(40, 20, 0.05)
    claims: list[Any] = [SimpleNamespace(epsilon=e, delta=1e-5, mu=None) for e in (1.0, 1.9)]
    found = [*(guessing.power(claim) for claim in claims), guessing.counted(15)]
    return [[(m.value, m.n) for m in metrics.values()] for metrics in found]


CASES = {
    "shadow models, one statistic": lambda: shadow_scores(1),
    "shadow models, three statistics": lambda: shadow_scores(3),
    "topology": topology_scores,
    "ranks": ranks,
    "sum of canaries": summed,
    "guesses on canaries": guessed,
}
# fmt: off
EXPECTED: dict[str, list[Any]] = {
    "shadow models, one statistic": [
        "online", -0.8021100492, 0.4362684292, -0.03715326238, -0.1961256898, -0.9404929417,
        -0.8358936616, "own", -0.2871955415, 1.03106601, 1.039641235, -0.6054749136,
        -1.317019201, -3.559221119, "offline", -1.130556084, 1.138703855, 0.6411284468,
        0.384053302, -0.3759055312, -0.6411284468, "offline own", -1.682731874, 2.074969091,
        0.3978508081, 0.5716290785, -0.6849826276, -0.3978508081, "rmia", 0, 0.75, 0.75, 0.25, 0,
        0, "rmia offline", 0.25, 1, 0.75, 0.5, 0.25, 0, "offline weights", 0.6, 0.48, 0.2,
        "ratios", -0.6905078652, 0.6924862619, 0.5045677228, 0.3228329169, 0.1124045226,
        -0.1699220274, "scored", True, True, True, "scored by few", False, False, False,
        "constant", 1,
    ],
    "shadow models, three statistics": [
        "online", -1.571452041, 1.208335389, 2.326990686, -3.222639766, 0.5119219312,
        -3.30588246, "own", -0.2799095523, -7.071071537, 16.80710283, -5.760911155, 1.684315354,
        -5.766923832, "offline", -1.176436074, -1.058153475, -0.1673584147, -0.3136866654,
        0.5962114744, 0.02068027721, "offline own", -1.599920767, 0.1370473559, -3.065765965,
        -0.3183071312, 0.4406920377, 1.180047753, "rmia", 0.25, 0.5, 0.75, 0.25, 0.5, 0.25,
        "rmia offline", 0.25, 0.75, 1, 0.25, 0.5, 0.5, "offline weights", 0.6, 0.48, 0.2,
        "ratios", -0.2919905509, 0.09254002196, 0.3514224291, 0.04358879908, 0.3691149912,
        0.1315076482, "scored", True, True, True, "scored by few", False, False, False,
        "constant", 1, 0, 0, 0, 1, 0, 0, 0, 1,
    ],
    "topology": [
        "least squares", 0.1134704057, 0.2407868553, 0.6148137087, 0.03092903034, 0.1186228647,
        0.2239257332, -0.02814097749, 0.6855923796, 0.155129464, 0.3543067891, 0.4549709044,
        0.03559284247, 0.6127772656, 0.1809806224, -0.04164363557, 0.2478857475, 0.4972302869,
        0.4916905182, 0.8364170266, 0.5049633443, -0.4748940399, 0, -0.1309146605, 0.302085416,
        0.6736113611, 0.1552178834, 0.2960817646, 0.05378141853, 0.04876200648, 0.6013748104,
        0.4821514046, 0.2870365534, 0.06961204633, 0.1611999957, 0.3526814912, 0.3570966121,
        0.2080145861, 0.08220731059, 0.5991388965, 0.6212334415, 0.9412260834, 0.610830715,
        -0.3564530394, 0.5, 0.5003717457, 0.2122630103, 0.3575293333, -0.07016408924,
        0.4010637808, 0.2951149001, -0.3887401344, 0.6925614535, 0.1303225884, 0.1919407645,
        0.8491147297, -0.1713780827, -0.03175811492, 0.3006813251, 0.1820960714, 0.5489807185,
        0.0004482538289, 0.0005581333425, 0.0003967011299, 0.001328541231, -7.443086585, 0,
        0.1134704057, 0.2407868553, 0.6148137087, 0.03092903034, 0.1186228647, 0.2239257332,
        -0.02814097749, 0.6855923796, 0.155129464, 0.3543067891, 0.4549709044, 0.03559284247,
        0.6127772656, 0.1809806224, -0.04164363557, 0.2478857475, 0.4972302869, 0.4916905182,
        0.8364170266, 0.5049633443, -0.4748940399, 0, "exact", -690.7755279, "regression",
        0.7183238884, 1.845535942, 2.852964959, 1.68450421, 1.845535942, 2.418776313, 1.4771498,
        4.054841035, 2.852964959, 1.4771498, 2.495430623, -0.014754324, 1.68450421, 4.054841035,
        -0.014754324, 2.308824019, "simplex", 0.2269408114, 0.334183303, 0.7699431727,
        0.606375691, 0.334183303, 0.4434804474, 0.3543067891, 0.8626097862, 0.7699431727,
        0.3543067891, 0.9099418088, 0.03559284247, 0.606375691, 0.8626097862, 0.03559284247,
        0.4936137636, "on a simplex", 0.3000000119, 0.6999999881, 0, 0.200000003, 0.3000000119,
        0.5,
    ],
    "ranks": [
        "metrics", 0.5888888889, 0, 1, 14, 0.4920587254, 0.1444444444, 0.8111111111, None, 0.32,
        None, None, 999, "jackknifed", 0, 1, 0, 1, "all right", 0.158113883, 1, "all wrong", 0,
        0.841886117, "no agent to leave out", 0.025, 1, "disjoint", 2, 1,
    ],
    "sum of canaries": [
        "canaries", 21, 20, "factor", 0.5, 0, 0.4418563843, 0, "metrics", 0, 41, 1.183551647,
        0.1, None, None, 1e-05, None, None, 0.95, None, None, 0.1140123636, None, None, 41, None,
        None, inf, None, None, 0, 41, None, "power", inf, 41, 0, None, "levels", 0.05, 0.025,
        0.0125, 0.00625, 0.003125, 0.0015625, "evidence", "sizes of uses", 0.5,
        "uses of each size", 2, "rate of uses", 1, "sum", 0.5, "canaries there", 21,
        "mean square", 1,
    ],
    "guesses on canaries": [
        1.821468771, 40, 20, None, 1.821468771, 40, 80, None, 20, None, 15, 20,
    ],
}
# fmt: on


@pytest.mark.parametrize("name", CASES)
def test_figures_of_fixed_statistics_stay(name: str) -> None:
    hold(CASES[name](), EXPECTED[name])


def test_relabellings_in_parts_are_those_at_once(monkeypatch) -> None:
    scores, links = numbers(5, 5), np.eye(5, k=1, dtype=bool) | np.eye(5, k=-1, dtype=bool)
    given = scores + scores.T, links, ~np.eye(5, dtype=bool)
    whole = ranking.edge_metrics(*given, np.random.default_rng(0))
    monkeypatch.setattr(ranking, "AT_ONCE", 70)
    assert ranking.edge_metrics(*given, np.random.default_rng(0)) == whole
    assert whole[Name.P_VALUE].n == 999


@pytest.mark.parametrize(
    "values, rank",
    [
        ([5.0, 4.0, 3.0, 1e-9, 1e-10], 3),
        ([5.0, 4.0, 3.0, 5e-4, 5e-4], 3),  # at a ten-thousandth of the largest
        ([5.0, 4.0, 3.0, 6e-4, 6e-4], None),
        ([5.0, 4.0, 4e-4, 1e-4], 2),
        ([5.0, 3e-3, 4e-4, 4e-4], None),  # a fall of 7.5
        ([5.0, 3.3e-3, 4e-4, 4e-4], 2),
        ([5.0, 0.0], 1),
    ],
)
def test_a_rank_is_where_singular_values_fall_to_rounding(values, rank) -> None:
    assert span._rank_of_exact(torch.tensor(values, dtype=torch.float64)) == rank


def test_a_rank_in_noise_counts_what_exceeds_its_edge() -> None:
    edge = 1.05 * 0.1 * (20**0.5 + 30**0.5)
    S = torch.tensor([3.0, edge * 1.001, edge * 0.999, 0.2], dtype=torch.float64)
    assert span._rank_in_noise(S, 20, 30, 0.1) == 2
    noise = torch.linalg.svdvals(torch.from_numpy(np.random.default_rng(3).normal(size=(20, 30))))
    for r in (0, 1, 3):
        S = torch.cat([torch.full((r,), 50.0, dtype=torch.float64), noise[: 20 - r]])
        assert span._rank_in_noise(S, 20, 30, None) == r
    steps = 2.0 ** -torch.arange(20, dtype=torch.float64)
    assert span._rank_in_noise(steps, 20, 30, None) == 20


def test_a_row_near_a_span_has_the_share_of_its_beta_law() -> None:
    basis, common = torch.eye(5)[:, :2].double(), torch.eye(5)[:, 4:].double()
    own = span.Span(basis, common, 4, False)
    rows = torch.tensor([[3.0, 0.0, 4.0, 0.0, 9.0], [0.0, 1.0, 0.0, 0.0, 2.0]])
    assert own.rank == 2
    assert own.own(rows.double())[0].tolist() == pytest.approx([0.6, 0.0, 0.8, 0.0, 0.0])
    assert own.outside(rows).tolist() == pytest.approx([0.8, 0.0])
    law = beta(1.0, 1.0)
    assert own.p_values(torch.tensor([0.8, 0.3])).tolist() == pytest.approx(
        law.sf([1 - 0.64, 1 - 0.09]).tolist()
    )
    for whole in (own._replace(d=2), own._replace(basis=basis[:, :0])):
        assert whole.p_values(torch.tensor([0.1])).tolist() == [1.0]
    wide = span.Span(basis, common[:, :0], 7, False)
    assert wide.p_values(torch.tensor([0.8])).item() == pytest.approx(beta(1, 2.5).sf(0.36))


def test_tokens_of_a_position_are_those_found_or_the_nearest() -> None:
    outside = torch.tensor([[0.4, 0.1], [0.2, 0.5], [0.3, 0.2], [0.1, 0.3]])
    found = torch.tensor([[True, False], [True, False], [True, False], [False, False]])
    for most, is_exact, tokens in (
        (2, True, [[1, 2, 0], [0, 2]]),
        (2, False, [[1, 2], [0, 2]]),
        (9, False, [[1, 2, 0], [0, 2, 3, 1]]),
    ):
        chosen = sequences.choices(outside, found, most, is_exact)
        assert [one.tokens.tolist() for one in chosen] == tokens
        for p, one in enumerate(chosen):
            assert one.outside.tolist() == outside[one.tokens, p].tolist()


def test_different_sequences_are_given_nearest_first_and_again_if_few() -> None:
    rows, far = torch.tensor([[1, 2], [3, 4], [1, 2], [5, 6]]), torch.tensor([0.3, 0.1, 0.2, 0.4])
    for n, expected in ((2, [[3, 4], [1, 2]]), (4, [[3, 4], [1, 2], [5, 6], [3, 4]])):
        assert sequences._distinct(rows, far, n)[0].tolist() == expected
    assert sequences._distinct(rows, far, 3)[1].tolist() == pytest.approx([0.1, 0.2, 0.4])


def test_sets_of_positions_are_all_or_the_small_ones() -> None:
    assert slopes._subsets(3).sum(1).tolist() == [1, 1, 1, 2, 2, 2, 3]
    assert len(slopes._subsets(5).unique(dim=0)) == 31
    long = slopes._subsets(200)
    assert long.shape[1] == 200
    assert 1 <= long.sum(1).max() < 200


def test_a_row_speaks_against_what_is_stated_beyond_its_tolerance() -> None:
    row = Row("x", 1, 2, {"remove": 1.0, "add": 2.0}, 2.0, 0.1)
    assert row.measured == 2.0
    for stated, exceeds in ((1.91, False), (1.89, True), (None, False)):
        assert row._replace(stated=stated).exceeds is exceeds
    endless = row._replace(moved={"add": inf}, stated=inf)
    assert endless.exceeds
    kinds = [row, row._replace(stated=1.0), row._replace(noiseless=True)]
    assert [one.counts for one in kinds] == [False, True, True]
    assert not row._replace(stated=1.0, processed=True).counts
    one, other = Stated(norm=2, value=2.0), Stated(norm=2, value=1.0)
    assert lesser(one, other) == (other, 2.0)
    assert lesser(other, one) == (other, None)
    assert lesser(one, one) == (one, None)
    assert lesser(one, Stated(norm=1, value=1.0)) == (one, None)
    assert (lesser(None, one), lesser(one, None), lesser(None, None)) == (
        (one, None),
        (one, None),
        (None, None),
    )


def test_the_candidate_with_the_highest_score_is_named_and_one_of_equal_ones_by_chance() -> None:
    others = np.array([[0.0, 1.0], [0.0, 3.0], [2.0, 0.0], [2.0, 2.0], [2.0, 3.0]])

    class Given:
        def random(self, n: int) -> np.ndarray:
            return np.full(n, self.u)

        def __init__(self, u: float) -> None:
            self.u = u

    used = np.full(5, 2.0)
    for u, hits in ((0.0, 3), (0.33, 3), (0.34, 2), (0.49, 2), (0.5, 1), (0.99, 1)):
        assert n_matched(used, others, Given(u)) == hits  # type: ignore[arg-type]
    share = _share(3, 10)
    assert (share.value, share.n) == (0.3, 10)
    assert (share.low, share.high) == pytest.approx((0.06673951, 0.65245285), rel=1e-6)


@pytest.mark.parametrize(
    "n, median, of_95", [(1, 1, 1), (2, 1, 2), (3, 2, 3), (20, 10, 19), (21, 11, 20), (100, 50, 95)]
)
def test_the_leak_over_weathers_is_its_median_95_percent_and_worst(n, median, of_95) -> None:
    learned = [Learned(float(k), None) for k in reversed(range(1, n + 1))]
    schema = Participation.of("once", 4)
    finding = Weather()._finding(_FINDING, learned, Bound(9.0, "why"), 4, schema, ["dropped"])
    values = [finding.metrics[name] for name in (Name.MEDIAN_MU, Name.MU_OF_95, Name.WORST_MU)]
    assert [(m.value, m.n) for m in values] == [(median, n), (of_95, n), (n, n)]
    assert finding.metrics[Name.MU_OF_ANY_WEATHER].value == 9.0
    assert "in the worst round, from 4 rounds, under" in finding.notes[0]
    none = Weather(victim=2)._finding(_FINDING, learned, Bound(None, "why"), 4, schema, [])
    assert Name.MU_OF_ANY_WEATHER not in none.metrics
    assert "of agent 2" in none.notes[0]
    assert Weather(n_rounds=3)._rounds(9, 4) == 3
    assert [Weather()._rounds(k, 4) for k in (5, 8, 9)] == [5, 8, 8]


def test_the_factor_at_which_a_claim_is_reached_is_rounded_up() -> None:
    for factor in (0.3, 1.0, 5.0, 63.0):
        found = canaries._least_beyond(lambda x, at=factor: x - at)
        assert factor <= found <= factor * (1 + 1e-3) + 1e-3
    assert canaries._least_beyond(lambda x: -1.0) == 64.0
