"""Figures of statistics for fixed scores: each limit, tail and factor of it changes one of them."""

from math import inf
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtri

from dpaudit.accounting.families import GAUSSIAN, LAPLACE
from dpaudit.accounting.releases import Interval
from dpaudit.files.finding import Metric
from dpaudit.release import Release
from dpaudit.statistics import (
    betting,
    bounds,
    density_ratio,
    guesses,
    noise_tests,
    p_values,
    successes,
    sums,
)
from tests.pinned import hold


def normal(n: int, step: int = 7, mean: float = 0.0) -> np.ndarray:
    """Quantiles of N(mean, 1), in an order of their own: step and n have no common divisor."""
    return mean + ndtri((np.arange(n) * step % n + 0.5) / n)


FEW, SHIFTED = normal(101), normal(97, 5, 1.4)
CHOOSING = normal(203, 11), normal(199, 13, 1.4)
NOISE = normal(391, 17).reshape(23, 17)
ROUNDED = np.round(FEW, 1), np.round(normal(101, 5, 1.4), 1)
ENDLESS = np.array([0.5, 0.7, inf]), np.array([0.4, 0.6, -inf])
RELEASE = Release(family="gaussian", noise_multiplier=2.0, count=2)
EPSILON, MU = successes.EpsilonPromise(0.8, 1e-3), successes.MuPromise(0.9)
KINDS = (
    Metric(value=1.5, n=9, standard_error=0.3),
    Metric(value=1.5, n=2, low=0.5, high=4.0),
    Metric(value=1.5, n=1, standard_error=0.3),
    Metric(value=1.5, n=5, standard_error=0.0),
    Metric(value=1.5, low=1.2, high=1.8),
    Metric(value=1.5, low=1.2),
    Metric(value=1.0, n=4, low=0.7, high=inf),
    Metric(value=inf, n=4, low=0.7, high=inf),
    Metric(value=1.0),
)
SIDES: tuple[Any, ...] = ("above", "below")


def wagers(at: list[betting.Point]) -> list[Any]:
    on = betting.bets(at, (np.round(CHOOSING[0], 1), np.round(CHOOSING[1], 1)))
    path = betting.log_wealth(on, ROUNDED)
    packed = betting.packed([on, betting.bets(at[:1], CHOOSING)], ROUNDED)
    where = on.points, on.thresholds, on.above, on.log_weights
    return [where, path[::20], path[-1], betting.anytime_p_value(path), packed._replace(places=())]


def canaries(rate: float, scale: Interval = sums.KNOWN) -> list[Any]:
    sizes = np.array([0.5, 0.0, 0.7, 0.5])
    own = sums.CanarySum(sizes, rate, 11, 9, scale)
    included = np.arange(20) % 2 == 0
    included[1] = True
    value = own.statistic(normal(80, 7, 0.3).reshape(20, 4), sizes, included)
    tails = [own.tail(v, f) for v, f in ((value, 0.0), (-0.2, 1.0), (50.0, 1.0), (-50.0, 0.0))]
    asked = [(1.1, 0.0), (-9.0, 0.05)] if rate < 1 else [(1.1, 0.05), (0.0, 0.05), (1.1, 0.0)]
    largest = [own.largest_refuted(v, a) for v, a in asked]
    return [own.mu, own.sizes, own.uses, value, tails, own.mean(), own.mean(0.5), largest]


def shifted_scores() -> list[Any]:
    silent = np.stack([4 + normal(600), 2 * normal(600, 11) ** 3, np.zeros(600)], axis=1)
    shifts = np.array([0.1, 0.0, 0.0]), np.array([0.6, 1.0, 0.0])
    x = np.array([[4.3, 0.2, 0.0], [13.0, -4.0, 0.0], [2.0, 0.0, 0.0]])
    return [score(x) for score in noise_tests.scores_of_a_shift(silent, shifts)]


def kinds_of_noise() -> dict[str, Any]:
    laplace = np.sign(NOISE) * NOISE**2
    drawn = lambda: np.random.default_rng(5)  # noqa: E731
    parallel = np.stack([NOISE[0], NOISE[1], -2 * NOISE[0], 0 * NOISE[0]])
    return {
        "scale": [p[:5] for p in noise_tests.scale_p_values(np.abs(NOISE))],
        "sign": noise_tests.sign_p_value(np.array([0.0, 5.0, 9.0]), np.array([4, 20, 0])),
        "lag": noise_tests.lag_p_values(NOISE),
        "parallel": noise_tests.parallel_pairs(parallel, drawn()),
        "draws": [noise_tests.size_of_draws(30.0, 25, f, 0.01) for f in ("gaussian", "laplace")],
        "white": [p.ravel()[:6] for p in noise_tests.white_noise_p_values(NOISE.T).values()],
        "striking": noise_tests.white_noise_test(1.1 * NOISE),
        "statistics": [s[:3] for _, s in noise_tests._statistics(NOISE)],
        "distances": [
            noise_tests._distances(np.sort(NOISE, 0), f)[:3] for f in ("gaussian", "laplace")
        ],
        "two": noise_tests._distance_of_two(FEW, SHIFTED),
        "dkw": noise_tests._dkw(np.array([0.01, 0.3]), 20),
        "standardised": noise_tests._standardised(np.c_[laplace, np.zeros(23)])[:2, -3:],
        "whitening": noise_tests._whitening(np.c_[NOISE[:, :2], NOISE[:, :1]]).shape,
        "law": noise_tests.law_p_value(NOISE, "laplace", drawn())[1],
        "no law": noise_tests.law_p_value(np.zeros((5, 2)), "gaussian", drawn()),
    }


CASES = {
    "clopper pearson": lambda: bounds.clopper_pearson([0, 3, 9, 10], 10, 0.05),
    "epsilon and mu": lambda: [
        bounds.epsilon_lower_bound([0, 3, 40, 97], [5, 20, 0, 99], 100, 120, 0.01, 0.05),
        bounds.family_lower_bound([0, 3, 40, 97], [5, 20, 0, 99], 100, 120, 0.05),
        bounds.family_lower_bound([0, 3], [5, 20], 100, 120, 0.05, LAPLACE),
        bounds.ceiling(100, 1e-3, 0.05),
    ],
    "from scores": lambda: [
        bounds.from_scores(FEW, SHIFTED, 1e-3, 0.05, CHOOSING),
        bounds.from_scores(-FEW, -SHIFTED, 1e-3, 0.05, (-CHOOSING[0], -CHOOSING[1])),
        bounds.from_scores(FEW, SHIFTED, 0.0, 0.05, np.random.default_rng(3)),
        bounds.from_scores(FEW, SHIFTED, 0.0, 0.05, CHOOSING, decimals=0),
        bounds.from_scores(FEW * 1e-12, SHIFTED * 1e-12, 0.0, 0.05, CHOOSING),
        bounds.from_scores(FEW * 1e-12, SHIFTED * 1e-12, 0.0, 0.05, CHOOSING, decimals=None),
        bounds.from_scores(*ENDLESS, 0.0, 0.05, ENDLESS),
        bounds.family_from_scores(FEW, SHIFTED, 0.05, CHOOSING),
        bounds.family_from_scores(FEW, SHIFTED, 0.05, CHOOSING, LAPLACE, decimals=0),
    ],
    "tenths": lambda: [
        bounds._tenth(np.arange(float(n)), np.random.default_rng(1)) for n in (3, 20, 21)
    ],
    "thresholds": lambda: [
        bounds.thresholds_between(np.array([-inf, 0.0, 1.0, 4.0, inf])),
        bounds.thresholds_between(np.arange(10_000.0))[::17],
        bounds._counts(FEW, SHIFTED, np.array([FEW[0], 0.3]))[:2],
    ],
    "p-values of counts": lambda: [
        bounds.p_value(3, 20, 100, 120, 0.01, 1.0),
        bounds.p_value(50, 60, 100, 120, 0.01, 1.0),
        bounds.mu_p_value(3, 20, 100, 120, 2.0),
        bounds.noise_p_value(3, 20, 100, 120, [RELEASE]),
        bounds.smallest_alpha(lambda alpha: alpha > 1e-200),
    ],
    "what is expected": lambda: (
        [
            bounds.expected_bound(n, 1e-3, 0.05, lambda r: GAUSSIAN.false_negative_rate(2.0, r))
            for n in (50, 20_000)
        ]
        + [
            bounds.expected_family_bound(50, 0.05, lambda r: GAUSSIAN.false_negative_rate(2.0, r)),
            bounds.bound_error(3, 20, 100, 120, lambda a, b: a / 100 + b / 50),
            bounds._quantiles(3_600, np.array([[0.4], [0.6]]))[:, ::5],
            [bounds.trials_needed(c, lambda n: 1 - n**-0.5) for c in (0.1, 0.9, 0.99997, 1.0)],
        ]
    ),
    "noise factor": lambda: [
        bounds.noise_factor_bound(0, 10, 100, 120, 1e-3, 0.05, [RELEASE], a)
        for a in ("add-remove", "replace-one")
    ],
    "no noise factor": lambda: bounds.noise_factor_bound(50, 60, 100, 120, 1e-3, 0.05, [RELEASE]),
    "fitted worlds": lambda: [
        worlds.rates(np.array([-0.4, 0.0, 0.7, *FEW[:2]]), above)
        for worlds in (
            density_ratio.fit(FEW, SHIFTED),
            density_ratio.fit(*ROUNDED),
            density_ratio.fit(FEW / 9, SHIFTED / 9),
        )
        if worlds is not None
        for above in (True, False)
    ],
    "worlds apart": lambda: density_ratio.fit(np.arange(3.0), 9 + np.arange(4.0)),
    "bets": lambda: [
        wagers([betting.Point(0.5, 1e-3), betting.Point(1.5, 0.0)]),
        wagers(betting.gaussian_curve(0.4)),
        [betting.gaussian_curve(mu) for mu in (0.02, 1.0)],
        [betting.digits_in_a_number(n) for n in (2, 3, 9, 100)],
        betting.anytime_p_value(np.array([])),
        [betting.epsilon_from_bets(ROUNDED, d, 0.05, CHOOSING) for d in (0.0, 0.05)],
        betting.epsilon_from_bets((FEW[:1], SHIFTED[:1]), 0.0, 0.05, CHOOSING),
    ],
    "guesses": lambda: [
        guesses.epsilon_from_guesses(60, 30, 27, 1e-3, 0.05),
        guesses.shift_from_guesses(60, 30, 27, 0.05),
        guesses.shift_from_guesses(60, 30, 27, 0.05, LAPLACE),
        guesses.mu_from_ranked_guesses(60, 30, 27, 0.05),
        guesses.mu_from_ranked_guesses(60, 60, 50, 0.05),
        guesses.epsilon_from_guesses(60, 60, 60, 0.0, 1 - 1e-12),
        guesses.correct_guesses(np.ones(100), np.arange(100) % 3 == 0, 31),
        guesses.correct_guesses(np.array([0.0, -0.0, 2.0, -2.0]), np.array([1, 0, 1, 1]), 4),
    ],
    "canaries": lambda: [canaries(1.0), canaries(0.4, Interval(0.9, 1.2))],
    "channels": lambda: [
        sums.mu_from_sums(0.9, 12, 20, 0.05),
        sums.noise_scale(NOISE, 1e-3),
        sums.channel_noise_test(NOISE, np.linspace(0.5, 1, 17)),
        sums.channel_noise_test(np.abs(NOISE[:1]), np.ones(17)),
        sums.channel_noise_test(NOISE[:, :1] ** 3, np.ones(1)),
        sums._normality(NOISE),
    ],
    "noise": kinds_of_noise,
    "scores of a shift": shifted_scores,
    "p-values of metrics": lambda: [
        [p_values.p_beyond(m, limit, s) for m in KINDS for limit in (1.3, 1.9) for s in SIDES],
        [p_values.p_worse(a, b, s) for a in KINDS for b in KINDS for s in SIDES],
        p_values.p_worse(Metric(value=1 + 5e-10), Metric(value=1.0), "above"),
        p_values.p_worse(Metric(value=1 + 5e-9), Metric(value=1.0), "above"),
    ],
    "holm": lambda: p_values.holm([0.02, 0.3, 0.01, 0.2, 0.004]),
    "successes": lambda: [
        (
            [successes.Successes(k, 40, 0.1, a).p_value(p) for k in (0, 1, 12, 40)],
            [successes.Successes(k, 40, 0.1, a).bound(p, 0.05) for k in (0, 12, 40)],
            successes.Successes(12, 40, 0.1, a).ceiling(p, 0.05),
            successes.Successes(12, 40, 0.1, a).expected(p, 0.05, 0.3),
            [successes.needed(p, kappa, 0.05) for kappa in (0.0, 1e-6, 0.1, 1.0)],
        )
        for p in (EPSILON, MU)
        for a in (True, False)
    ],
}
# fmt: off
EXPECTED: dict[str, list[Any]] = {
    "clopper pearson": [0.2588655509, 0.6066242161, 0.9948838031, 1],
    "epsilon and mu": [
        3.207796422, 2.167858148, 2.778438178, 0, 3.109578469, 2.059474651, 1.86980115, 0,
        4.290474199, 2.48079152, 3.280308233,
    ],
    "from scores": [
        0.9818642472, 1.398253995, True, 8, 48, 101, 97, 0.9818642472, -1.398253995, False, 8,
        48, 101, 97, 0.7456682203, 0.4678637665, True, 28, 16, 91, 88, 0.9673998344, 1, True, 7,
        52, 101, 97, 0, 1.398253995, True, 0, 97, 101, 97, 0, 1.398253995, True, 0, 97, 101, 97,
        0, 0.65, False, 1, 0, 3, 3, 0.8608962329, 0.69980261, True, 24, 23, 101, 97,
        0.9673998344, 1, True, 7, 52, 101, 97,
    ],
    "tenths": [
        0, 1, 2, 1, 10, 18, 16, 7, 11, 12, 17, 15, 2, 3, 4, 5, 8, 0, 9, 14, 13, 6, 19, 1, 11, 20,
        15, 7, 12, 18, 17, 16, 2, 10, 3, 4, 5, 8, 0, 9, 14, 13, 6, 19,
    ],
    "thresholds": [
        -inf, 0.5, 4, inf, 0.5, 19.5, 86.5, 377.5, 1632.5, 6138.5, 9106.5, 9793.5, 9952.5,
        9989.5, 100, 39, 0, 13,
    ],
    "p-values of counts": [1.364164514e-07, 1, 0.03221624205, 1.017071594e-10, 1.000000429e-200],
    "what is expected": [
        1.250969534, 4.784445907, 1.141046444, 0.08481597727, 1385, 1428, 1452, 1495, 2105, 2148,
        2172, 2215, 2, 102, None, None,
    ],
    "noise factor": [0.2489867068, 12.13705053, 0.4979734136, 12.13705053],
    "no noise factor": [inf, 0],
    "fitted worlds": [
        0.6574124931, 0.4944561083, 0.2411449188, 0.990191537, 0.9230412107, 0.03503794208,
        0.08185662406, 0.2407800835, 9.634865801e-05, 0.002341925659, 0.3425875069, 0.4982528726,
        0.7588550812, 0, 0.06749949817, 0.9649620579, 0.9208609774, 0.7592199165, 1,
        0.9981179933, 0.6344389638, 0.4760972832, 0.226859756, 0.9901950281, 0.9326080035,
        0.04037955786, 0.08995866939, 0.2565627263, 9.601824768e-05, 0.001914934167,
        0.3247808165, 0.4734912697, 0.7434372737, 0.009804971851, 0.06739199653, 0.9683451729,
        0.9289368142, 0.773140244, 0.9999039818, 0.9980850658, 1, 0.4944561083, 0, 1, 1, 0,
        0.08185662406, 1, 0, 0, 0, 0.4982528726, 1, 0, 0, 1, 0.9208609774, 0, 1, 1,
    ],
    "worlds apart": [
        0, 1, 2, 9, 10, 11, 12, 0, 0.3331353306, 0.6660795408, 0.9981007807, 0.9996096183,
        0.999922133, 0.9999866774, 1, 0, 3.73311497e-05, 0.0002181142224, 0.001091664265,
        0.2500426195, 0.4998915158, 0.7499265348, 1,
    ],
    "bets": [
        0.5, 0.001, 0.5, 0.001, 1.5, 0, 1.5, 0, 1.5, 0.2, 1.9, -0.45, 1, -1, 1, -1,
        -0.6580558607, -4.025351691, -4.025351691, -4.025351691, -4.025351691, -4.025351691,
        -4.025351691, -4.025351691, -4.025351691, -4.025351691, -4.025351691, -4.025351691,
        -4.025351691, -4.025351691, -4.025351691, -4.025351691, -4.025351691, -4.025351691,
        -4.025351691, -4.025351691, -4.025351691, -4.025351691, -4.025351691, -4.025351691,
        -4.025351691, -4.025351691, -4.025351691, -4.025351691, -0.03931231058, 2.532063414,
        4.226009324, 4.909038988, 8.046808989, 8.982468648, 8.982468648, 0.000125592421, 0, 0, 0,
        0, 1, 1, 9, 5, 11, 1, 7, 3, 0, -1, -1, -1, 0, -1, 13, 0, 0.1585194189, 0, 0.1585194189,
        0.1565978935, 0.1, 0.1565978935, 0.1, 0.6822029499, 0.01, 0.6822029499, 0.01,
        1.035707671, 0.001, 1.035707671, 0.001, 1.554981692, 1e-05, 1.554981692, 1e-05, 0.6, 0.7,
        0.8, 0.6, 1.2, 0.2, 1.5, -0.3, 2.2, -0.85, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1,
        -4.941642423, -0.6789625456, -4.941642423, -4.941642423, -4.941642423, -4.941642423,
        -4.941642423, -4.941642423, -4.941642423, -4.941642423, -4.941642423, -4.941642423,
        -4.941642423, -4.941642423, -4.941642423, -4.941642423, -4.941642423, -4.941642423,
        -4.941642423, -4.941642423, -4.941642423, -4.941642423, -4.941642423, -4.941642423,
        -4.941642423, -4.941642423, -4.941642423, -4.941642423, -4.941642423, -4.941642423,
        -4.941642423, -4.941642423, -4.941642423, -4.941642423, -4.941642423, -4.941642423,
        -4.941642423, -4.941642423, -4.941642423, -4.941642423, -4.941642423, -4.941642423,
        -4.941642423, -4.941642423, -4.941642423, -4.941642423, -4.941642423, -4.941642423,
        -4.941642423, -4.941642423, -4.941642423, -4.941642423, -4.941642423, -4.941642423,
        -4.941642423, -4.941642423, -4.941642423, -4.941642423, -4.941642423, -4.941642423,
        -4.941642423, -4.941642423, -4.941642423, -4.941642423, -4.941642423, -4.941642423,
        -4.941642423, -4.941642423, -4.941642423, -4.941642423, -0.0692434416, 2.814747508,
        6.629558603, 6.964024276, 10.00880907, 10.58792449, 10.58792449, 2.043402045e-05, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 7, 11, 13, 7, 15, 5, 17, 3, 19, 1, 9, 9, 1, -1, -1, -1, -1,
        -1, -1, -1, -1, -1, 1, -1, 21, 0, 0.007978712629, 0.02523174915, 0.001, 0.05863225531,
        1e-05, 0, 0.3829249225, 1.160333853, 0.1, 2.31778904, 0.01, 3.138670549, 0.001,
        4.377178096, 1e-05, 26, 16, 8, 3, 1, 1.025582337, 0.8790705746, 0,
    ],
    "guesses": [
        1.08377561, 0.5835391581, 1.143592596, 0.8728936315, 1.248139888, 31.71952069, 11, 2,
    ],
    "canaries": [
        0.9949874371, 0.5, 0.7, 2, 1, 0.1657645918, 0.3554450598, 0.9961036368, 0, 1, 0.99,
        0.495, 0.3680782318, 0, 0, 0.9949874371, 0.5, 0.7, 2, 1, 0.05578558994, 0.3954410275,
        0.9838504492, 0, 1, 0.1614593565, 0.07668984073, 0, 0,
    ],
    "channels": [
        0.2993843765, 0.9570826592, 1.194353316, "signs of different canaries", 8.380431987e-63,
        "its distribution", 0.01081951498, "signs of different canaries", 0.009989167245,
        0.4892542686,
    ],
    "noise": [
        "scale", 0.459118757, 0.6186782093, 0.7020293895, 0.7519910991, 0.7838646401,
        0.459118757, 0.6186782093, 0.7020293895, 0.7519910991, 0.7838646401, "sign", 1, 1,
        5.153514218e-18, "lag", 5.871498627e-55, 2.735474572e-32, 2.030783567e-16,
        1.936402077e-06, 0.191153424, 1, 0.008724366438, 2.620635235e-07, 3.439922843e-13,
        1.590427866e-19, 2.087642367e-25, 3.042414747e-21, 2.437927811e-11, 3.268507684e-05,
        0.05909600525, 1, "parallel", 0, 2, "draws", 1.095445115, 0.7995490522, 1.688728911, 1.2,
        0.7548121305, 2.143565372, "white", 0.07311245342, 0.7798213769, 0.1681489672,
        0.212183086, 0.0362047487, 0.4804334406, 0.1586806417, 0.02124611031, 0.3011090512,
        0.969599076, 0.3969731709, 0.04442218862, 0.3843173862, 0.3458093829, 0.3613198203,
        0.01683908703, 0.1369025306, 0.2808169049, 0.4740617286, "striking", "its size",
        0.0005313891486, "statistics", 17.98305444, 25.49951063, 24.51549824, 3.016448717,
        3.016448717, 3.016448717, 12.32730272, 17.4590669, 16.18206295, -9.497912558,
        -4.263530341, -0.1571362212, "distances", 0.04219948849, 0.04219948849, 0.04219948849,
        0.1041636114, 0.1041636114, 0.1041636114, "two", 0.5256711238, "dkw", 1, 0.05464744489,
        "standardised", 0.2125873162, 0.2482447227, 0.2987143848, 0.1079067585, 0.1427665876,
        0.1649558369, "whitening", 3, 2, "law", "all coordinates", "no law", 1, "",
    ],
    "scores of a shift": [
        0.151317301, 4.394289659, -0.9894180906, -0.2586735031, 0.05549095245, -1.077014133,
        -1.288857145, -0.279056509, -2.214681733,
    ],
    "p-values of metrics": [
        0.2618712178, 1, 1, 0.1095691803, 0.1193336729, 1, 1, 0.1455106207, 1, 1, 1, 1, 0, 1, 1,
        0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1,
        1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
        1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
        1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
        1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
        1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 0, 1, 0, 1, 0, 1, 0, 1, 1, 1,
        1, 1, 1, 1, 0,
    ],
    "holm": [0.06, 0.4, 0.04, 0.4, 0.02],
    "successes": [
        1, 0.9999597794, 0.1649596282, 9.447241453e-27, 0, 0.5995026012, 2.522431465,
        2.522431465, 0.5656774125, 1, 1, 2, inf, 1, 1, 0.7451803095, 0.2235540928, 0, 0, 0, 0,
        0.5656774125, 1, 1, 2, inf, 1, 0.9999999699, 0.7998990922, 6.79082239e-19, 0,
        0.3780175457, 2.741460698, 2.741460698, 0.3671772135, 1, 1, 3, inf, 1, 1, 1, 0.351397008,
        0, 0, 0, 0, 0.3671772135, 1, 1, 3, inf,
    ],
}
# fmt: on


def test_a_score_on_a_threshold_is_on_neither_side_of_it() -> None:
    """The bet on scores above 1, and that on scores below 1, of one share of 0.9."""
    weights = np.log(np.eye(7)[:1].repeat(2, axis=0) / 2 + 1e-300)
    on = betting.Bets(np.zeros((2, 2)), np.ones(2), np.array([1.0, -1.0]), weights)
    scores = np.array([0.0, 1.0, 2.0, 1.0]), np.array([0.0, 1.0, 1.0, 2.0])
    won = np.array([[0, 0, -1, 1], [0, 0, 0, 0]])  # by pair; below 1 both worlds have the first
    wealth = np.log(np.exp(np.cumsum(np.log1p(0.9 * won), axis=1)).mean(axis=0))
    assert betting.log_wealth(on, scores) == pytest.approx(wealth, rel=1e-12, abs=1e-12)
    digits = (0, 0, 1, 1, 2, 1, 1, 2)  # of each pair, 1 on the threshold and 2 above it
    packed = sum(digit * 3**i for i, digit in enumerate(digits))
    assert betting.packed([on], scores).places == (packed,)


@pytest.mark.parametrize("name", CASES)
def test_figures_of_fixed_scores_stay(name: str) -> None:
    hold(CASES[name](), EXPECTED[name])
