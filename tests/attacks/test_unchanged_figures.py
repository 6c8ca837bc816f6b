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
from dpaudit.attacks.sensitivity.message_move import Row, lesser
from dpaudit.attacks.shadow_models import scores as shadow
from dpaudit.attacks.text import sequences, slopes, span
from dpaudit.attacks.topology import ranking
from dpaudit.attacks.topology import scores as topology
from dpaudit.attacks.weather import _FINDING, Bound, WeatherAttack, WeatherLeak
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
    attacked, public = numbers(2, 3, k, step=5), numbers(2, 29, k, step=5)
    of_references = numbers(5, 29, k, step=7)
    return {
        "online": shadow.lira_online(attacked, references),
        "own": shadow.lira_online(attacked, references, "own"),
        "offline": shadow.lira_offline(attacked, references),
        "offline own": shadow.lira_offline(attacked, references, "own"),
        "rmia": shadow.rmia(attacked, references, public, of_references),
        "rmia offline": shadow.rmia(attacked, references, public, of_references, 0.3),
        "offline weights": [shadow._offline(np.array([0.2]), a) for a in (0.0, 0.3, 1.0)],
        "ratios": shadow._log_ratios(attacked, np.full((3, k), 0.4)),
        "weights": shadow.OFFLINE_WEIGHTS,
        "scored": shadow.is_scored(INCLUDED),
        "scored by few": shadow.is_scored(INCLUDED[:3]),
        "constant": shadow.pooled_covariance(np.zeros((4, k)), 3, 4) * 1e24,
    }


def topology_scores() -> dict[str, Any]:
    models = torch.from_numpy(np.random.default_rng(4).normal(size=(5, 4, 6)))
    found = [
        topology._least_squares(models - models.mean(1, True), rho, 1e-6) for rho in (0.0, 0.5)
    ]
    two = topology.fitted(models[:2], 1e-15)
    best = topology.fitted(models, 1e-15)
    return {
        "least squares": [(f.W, f.variance, f.loss, f.rho) for f in (*found, two, best)],
        "rhos": topology.RHO,
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
    own = canaries.SumStatistic.expected(np.array([0.5, 0.5]), 1.0, 41)
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
    guessing = canaries.GuessPlan(40, 20, 0.05)
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
        0.3978508081, 0.5716290785, -0.6849826276, -0.3978508081, "rmia", 0.1034482759,
        0.7931034483, 0.6206896552, 0.4827586207, 0.2068965517, 0.1724137931, "rmia offline",
        0.1034482759, 0.8965517241, 0.7931034483, 0.5172413793, 0.3103448276, 0.2068965517,
        "offline weights", 0.6, 0.48, 0.2, "ratios", -0.6905078652, 0.6924862619, 0.5045677228,
        0.3228329169, 0.1124045226, -0.1699220274, "weights", 0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6,
        0.7, 0.8, 0.9, 1, "scored", True, True, True, "scored by few", False, False, False,
        "constant", 1,
    ],
    "shadow models, three statistics": [
        "online", -1.571452041, 1.208335389, 2.326990686, -3.222639766, 0.5119219312,
        -3.30588246, "own", -0.2799095523, -7.071071537, 16.80710283, -5.760911155, 1.684315354,
        -5.766923832, "offline", -1.176436074, -1.058153475, -0.1673584147, -0.3136866654,
        0.5962114744, 0.02068027721, "offline own", -1.599920767, 0.1370473559, -3.065765965,
        -0.3183071312, 0.4406920377, 1.180047753, "rmia", 0.1724137931, 0.3448275862,
        0.5862068966, 0.2068965517, 0.3793103448, 0.2068965517, "rmia offline", 0.2413793103,
        0.4827586207, 0.7931034483, 0.275862069, 0.5172413793, 0.4137931034, "offline weights",
        0.6, 0.48, 0.2, "ratios", -0.2919905509, 0.09254002196, 0.3514224291, 0.04358879908,
        0.3691149912, 0.1315076482, "weights", 0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1,
        "scored", True, True, True, "scored by few", False, False, False, "constant", 1, 0, 0, 0,
        1, 0, 0, 0, 1,
    ],
    "topology": [
        "least squares", 0.3018389441, 0.3252293449, 0.2687038735, 0.1042278375, 0.2650633475,
        0.4405695232, 0.1533187029, 0.1410484265, 0.4497044603, 0.3192372037, 0.05351992995,
        0.177538406, -0.01660675189, -0.0850360717, 0.5244574937, 0.5771853299, 0.2414015627,
        0.5796157014, 0.3676956937, 0.3661349371, -0.5391831605, 0, 0.0233885062, 0.4955473896,
        0.265996286, 0.2150678182, 0.4129194433, -0.2875967144, 0.07951006646, 0.7951672047,
        0.4392585448, 0.6610882754, -0.0334500961, -0.06689672409, 0.1244335057, 0.1309610494,
        0.6879437436, 0.05666170124, 0.2148872659, 0.4072834953, 0.3983186413, 0.2974873832,
        -0.5883231881, 0.5, 0.1266188913, -1.003961721, 0.4423218686, 1.435020961, 0.2777856751,
        0.9276162389, 0.4086643906, -0.6140663046, 0.2974531562, 0.5831722591, 0.08923255771,
        0.03014202706, 0.2981422774, 0.4931732226, 0.05978118311, 0.1489033169, 0.01636382118,
        0.01570958792, 0.06284433578, 0.06524476431, -3.114855644, 0, 0.0233885062, 0.4955473896,
        0.265996286, 0.2150678182, 0.4129194433, -0.2875967144, 0.07951006646, 0.7951672047,
        0.4392585448, 0.6610882754, -0.0334500961, -0.06689672409, 0.1244335057, 0.1309610494,
        0.6879437436, 0.05666170124, 0.2148872659, 0.4072834723, 0.3983186413, 0.2974873832,
        -0.5883231881, 0.5, "rhos", 0, 0.5, 1, "exact", -690.7755279, "regression", 3.362435588,
        3.483771299, 3.331151073, 0.6243440532, 3.483771299, 3.986154585, 2.575033934,
        -0.147763725, 3.331151073, 2.575033934, 0.4325707164, 2.857181802, 0.6243440532,
        -0.147763725, 2.857181802, 5.523320129, "simplex", 0.6036778881, 0.5902926924,
        0.7184083339, 0.1042278375, 0.5902926924, 0.8811390463, 0.4725559065, 0.1410484265,
        0.7184083339, 0.4725559065, 0.1070398599, 0.6704980243, 0.1042278375, 0.1410484265,
        0.6704980243, 1.014080763, "on a simplex", 0.3000000119, 0.6999999881, 0, 0.200000003,
        0.3000000119, 0.5,
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
    noise = 0.1 * torch.linalg.svdvals(
        torch.from_numpy(np.random.default_rng(3).normal(size=(20, 30)))
    )
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
    assert own.outside(rows[:, None]).flatten().tolist() == pytest.approx([0.8, 0.0])
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


def test_different_sequences_are_given_nearest_first() -> None:
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


def test_a_row_beyond_its_tolerance_speaks_against_the_stated() -> None:
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


def test_the_highest_score_is_named_and_ties_by_chance() -> None:
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
def test_the_leak_over_weathers_is_median_95_percent_and_worst(n, median, of_95) -> None:
    learned = [WeatherLeak(float(k), None) for k in reversed(range(1, n + 1))]
    schema = Participation.of("once", 4)
    finding = WeatherAttack()._finding(_FINDING, learned, Bound(9.0, "why"), 4, schema, ["dropped"])
    values = [finding.metrics[name] for name in (Name.MEDIAN_MU, Name.MU_OF_95, Name.WORST_MU)]
    assert [(m.value, m.n) for m in values] == [(median, n), (of_95, n), (n, n)]
    assert finding.metrics[Name.MU_OF_ANY_WEATHER].value == 9.0
    assert "in the worst round, from 4 rounds, under" in finding.notes[0]
    none = WeatherAttack(victim=2)._finding(_FINDING, learned, Bound(None, "why"), 4, schema, [])
    assert Name.MU_OF_ANY_WEATHER not in none.metrics
    assert "of agent 2" in none.notes[0]
    assert WeatherAttack(n_rounds=3)._rounds(9, 4) == 3
    assert [WeatherAttack()._rounds(k, 4) for k in (5, 8, 9)] == [5, 8, 8]


def test_the_factor_at_which_a_claim_is_reached_is_rounded_up() -> None:
    for factor in (0.3, 1.0, 5.0, 63.0):
        found = canaries._least_beyond(lambda x, at=factor: x - at)
        assert factor <= found <= factor * (1 + 1e-3) + 1e-3
    assert canaries._least_beyond(lambda x: -1.0) == 64.0


def test_no_number_of_canaries_that_is_considered_may_do(monkeypatch) -> None:
    claim: Any = SimpleNamespace(epsilon=30.0, delta=1e-5, mu=None)
    monkeypatch.setattr(canaries, "MOST_CANARIES", 40)
    assert canaries.GuessPlan(40, 20, 0.05).power(claim)[Name.TRIALS_NEEDED].value == inf
