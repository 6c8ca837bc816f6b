"""Figures of accounting for fixed releases: each limit, tail and factor of it changes one of them."""

from math import inf
from typing import Any

import numpy as np
import pytest

from dpaudit.accounting import binomial, families, filters, formulas, privacy_loss, reconstruction
from dpaudit.accounting import releases as accounting
from dpaudit.accounting.composition import _overlap, compose, least_epsilon
from dpaudit.accounting.families import TradeoffFamily
from dpaudit.release import Release
from tests.pinned import hold


def release(family: str = "gaussian", noise: float = 2.0, **more: Any) -> Release:
    return Release.model_validate({"family": family, "noise_multiplier": noise, **more})


def poisson(rate: float = 0.1, **more: Any) -> Release:
    return release(sampling="poisson", sampling_rate=rate, **more)


def fixed(rate: float = 0.1, **more: Any) -> Release:
    return release(sampling="fixed", sampling_rate=rate, **more)


FEW = [poisson(0.1, noise=1.5, count=5), poisson(0.1, noise=2.5, count=3), fixed(0.2, noise=4.0)]
LAPLACE = [poisson(0.3, family="laplace", noise=5.0, count=4), release("laplace", 9.0, count=2)]
RATES = np.array([0.0, 1e-6, 0.01, 0.3, 0.5, 0.9, 1.0])
MEETINGS = [
    accounting.Meeting(poisson(0.2, count=2), 2),
    accounting.Meeting(poisson(0.1, noise=1.5), 3),
]


def bounds(pairs: privacy_loss.Pairs) -> list[Any]:
    """Both discretisations of a pair on a few losses, and what is known of its losses."""
    losses = np.array([-2.0, -0.7, -0.1, 0.0, 0.2, 0.9, 2.5])
    known = (privacy_loss.reach, privacy_loss.largest_loss)
    return [
        privacy_loss.above(pairs, losses),
        privacy_loss.beneath(pairs, losses),
        privacy_loss.least_outcome(pairs, 0.01),
        *(one(pairs) for one in known),
        privacy_loss.loss_error(pairs) * 1e12,
    ]


def pairs(family: Any, kind: Any, draws: int = 1, n: int = 2, rate: float = 0.2) -> Any:
    scale = np.linspace(0.8, 1.7, n)[:, None]
    return privacy_loss.Pairs(family, kind, scale, np.full((n, 1), rate), draws)


def composed(mechanism: list[Release], bound: Any, adjacency: Any = "add-remove") -> Any:
    rounds = accounting._rounds(mechanism, adjacency, "remove", bound)
    found = compose(rounds, bound, 1e-8)
    where = found.losses[[0, -1]], found.low_losses[[0, -1]], len(found.losses)
    return where, found.slack * 1e9, found.blur * 1e12, found.power(RATES[1:-1])


def on_few_levels(bound: Any) -> list[Any]:
    many = [poisson(0.1, noise=1 + 0.01 * k) for k in range(30)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpaudit.accounting.composition.MAX_LEVELS", 8)
        (found,) = accounting._rounds(many, "add-remove", "remove", bound)
    return [found.levels.scale, found.level, found.weight, found.counts]


ADJACENCIES: tuple[Any, ...] = ("add-remove", "replace-one")
CASES = {
    "epsilon": lambda: [
        accounting.epsilon(FEW, 1e-5),
        accounting.epsilon(LAPLACE, 1e-5, "replace-one"),
    ],
    "epsilon of large losses": lambda: accounting.epsilon([poisson(noise=0.02, count=2)], 1e-5),
    "epsilon of hardly any noise": lambda: accounting.epsilon([poisson(noise=1e-7)], 1e-5),
    "epsilon in closed form": lambda: [
        accounting.epsilon(m, d, a)
        for m, d in (
            ([release(count=4)], 1e-5),
            ([release(clipped="whole")], 1e-5),
            (LAPLACE, 0.0),
            ([release(), release(noise=0.0)], 1e-5),
        )
        for a in ADJACENCIES
    ],
    "epsilon at most": lambda: [
        accounting.epsilon_at_most(m, d, "replace-one")
        for m, d in (
            ([release(count=4)], 1e-5),
            ([release("laplace")], 0.0),
            ([poisson(noise=1e-7)], 1e-5),
            ([poisson(), release(noise=0.0)], 1e-5),
        )
    ],
    "delta": lambda: [
        accounting.delta(m, e)
        for m, e in ((LAPLACE, 0.3), (LAPLACE, 9.0), ([release()], 0.0), ([release(noise=0)], 1.0))
    ],
    "false negatives": lambda: [
        accounting.false_negative_rate(m, RATES) for m in (FEW[:1], [release(noise=0)], [release()])
    ],
    "true positives": lambda: [
        accounting.true_positive_rate(m, RATES, bound)
        for bound in ("upper", "lower")
        for m in (FEW[1:2], [poisson()], [fixed(family="laplace")], [poisson(noise=1e-7, count=2)])
    ],
    "batches that meet": lambda: [
        accounting.epsilon_where_batches_meet(MEETINGS, 1e-5),
        accounting.epsilon_where_batches_meet([], 1e-5),
        accounting.power_where_batches_meet(MEETINGS, RATES),
        accounting.power_where_batches_meet([], RATES),
    ],
    "kinds of pairs": lambda: [
        accounting._kind(r, a, d, b)
        for r in (release(), poisson(), fixed(), poisson(clipped="whole"))
        for a in ADJACENCIES
        for d in ("remove", "add")
        for b in ("upper", "lower")
    ],
    "shifts": lambda: [
        accounting._shift(r, a)
        for r in (release(), poisson(), fixed(), fixed(clipped="whole"))
        for a in ADJACENCIES
    ],
    "windows": lambda: [composed(FEW[:2], b) for b in ("upper", "lower")],
    "few levels": lambda: [on_few_levels("upper"), on_few_levels("lower")],
    "overlaps": lambda: [_overlap(f, np.array([0.5, 2.0])) for f in ("gaussian", "laplace")],
    "least epsilon": lambda: [
        least_epsilon(accounting._rounds(m, "add-remove", "remove", "lower"), 1e-6)
        for m in ([poisson(0.9, noise=0.1, count=3)], FEW)
    ],
    "losses of pairs": lambda: [
        bounds(pairs(f, k))
        for f in ("gaussian", "laplace")
        for k in ("remove", "add", "replace", "switch")
    ],
    "losses without sampling": lambda: [
        bounds(pairs(f, "remove", rate=1.0)) for f in ("gaussian", "laplace")
    ],
    "losses of several draws": lambda: bounds(pairs("gaussian", "remove", draws=3)),
    "losses of many pairs": lambda: bounds(pairs("gaussian", "remove", n=40))[1][::8],
    "gaussian": lambda: [
        [families.gaussian_delta(e, mu) for e in (0.0, 0.5, 3.0) for mu in (0.0, 0.5, 3.0)],
        [families.gaussian_epsilon(d, mu) for d in (1e-6, 0.1) for mu in (0.0, 0.1, 2.0, inf)],
        [families.gaussian_mu(e, d) for e in (0.0, 0.5, 30.0) for d in (1e-6, 0.1)],
        families.clt_mu(0.1, np.array([0.5, 1.0])),
    ],
    "curves": lambda: [
        (
            f.false_negative_rate(0.7, RATES[1:-1]),
            f.shift_between(np.array([0.01, 0.2, 0.6]), np.array([0.5, 0.9, 0.2])),
            [f.epsilon(1.3, d) for d in (1e-5, 0.1, 0.3)],
        )
        for f in (TradeoffFamily(n, q) for n in ("gaussian", "laplace") for q in (1.0, 0.3))
    ],
    "filters": lambda: [
        filters.ORDERS,
        [filters.gaussian_cost(r, a) for r in (release(count=3), poisson()) for a in ADJACENCIES],
        [
            filters.renyi_cost(r, a, 4.0)
            for r in (release(count=3), fixed(count=2), *LAPLACE, release(noise=0.0))
            for a in ADJACENCIES[1:]
        ],
        [filters.renyi_cost_of_epsilon(e, 3.0) for e in (0.0, 0.4, 5.0)],
        [filters.renyi_epsilon(x, 1e-5, 8.0) for x in (0.0, 0.5)],
        [filters.renyi_epsilon(0.0, 0.9, 2.0), filters.renyi_budget(1.0, 1e-5, 8.0)],
        [filters.best_order(e, 1e-5, release(), "replace-one") for e in (0.5, 8.0)],
    ],
    "formulas": lambda: [
        (formulas.OPACUS_ORDERS[::20], formulas.DP_ACCOUNTING_ORDERS[-5:]),
        formulas.claimed("opacus", [fixed(count=3)], 1e-5),
        next(iter(formulas.claimed("opacus", [poisson(count=3)], 1e-5))),
        formulas.claimed("tf-privacy", [fixed(0.15, count=9)], 1e-5),
        formulas.claimed("nvflare", LAPLACE[1:], 0.0),
        formulas.claimed("flower", [release()], 1e-5),
        formulas.claimed("p2pfl", LAPLACE[1:], 0.0),
        formulas.sampled_gaussian_divergence(poisson(noise=0.01), [2.0]),
        formulas.sampled_gaussian_divergence(poisson(noise=0.5), [1.5, 7.0]),
        formulas.renyi_epsilon([release(count=2)], 1e-5, [2.0, 9.0]),
    ],
    "binomial": lambda: [
        (binomial.at_most(k, 9, 0.3), binomial.more_than(k, 9, 0.3), binomial.log_mass(k, 9, 0.3))
        for k in range(-1, 11)
    ],
    "binomial quantiles": lambda: binomial.quantile([0.05, 0.5, 0.99], [9, 90, 900], 0.3),
    "reconstruction": lambda: [
        reconstruction.under_epsilon([0.0, 0.1, 0.9], 0.7, 1e-3),
        reconstruction.under_mu([0.1, 0.9], 0.7),
        reconstruction.accounted([0.1, 0.9], [poisson()]),
        [reconstruction.least_epsilon(s, 0.1, 1e-3) for s in (0.05, 0.3, 0.95, 1.0)],
        [reconstruction.least_mu(s, 0.1) for s in (0.05, 0.3)],
        [reconstruction.matching_success(lambda r: r**0.5, m) for m in (2, 10)],
    ],
}
# fmt: off
EXPECTED: dict[str, list[Any]] = {
    "epsilon": [1.151602333, 1.151607455, 0.9242082794, 0.9242399699],
    "epsilon of large losses": [1200.063196, 2800.602374],
    "epsilon of hardly any noise": [600.0158475, inf],
    "epsilon in closed form": [
        4.377178096, 4.377178096, 9.997256146, 9.997256146, 1.993091404, 1.993091404,
        1.993091404, 1.993091404, 0.4794543034, 0.4794543034, 0.9253377279, 0.9253377279, inf,
        inf, inf, inf,
    ],
    "epsilon at most": [9.997256146, 1, inf, inf],
    "delta": [0.005291770095, 0.005291779365, 0, 0, 0.1974126514, 0.1974126514, 1, 1],
    "false negatives": [
        0.9999999985, 0.9999956133, 0.9825620955, 0.6401091724, 0.4389745038, 0.07927789801, 0,
        0, 0, 0, 0, 0, 0, 0, 1, 0.9999894737, 0.9661010609, 0.5097334303, 0.3085375387,
        0.0374111944, 0,
    ],
    "true positives": [
        1.444519937e-12, 1.777889777e-06, 0.01265700925, 0.3261122086, 0.5277864112, 0.910285256,
        1, 0, 1.952630603e-06, 0.01238989391, 0.319026657, 0.5191462461, 0.9062588806, 1, 0,
        1.171828183e-06, 0.01171828183, 0.3393433799, 0.5316060279, 0.9063212056, 1, 1, 1, 1, 1,
        1, 1, 1, 1e-307, 1.77788508e-06, 0.01265700741, 0.3261122018, 0.5277864044, 0.9102852508,
        1, 0, 1.952630603e-06, 0.01238989391, 0.319026657, 0.5191462461, 0.9062588806, 1, 0,
        1.171828183e-06, 0.01171828183, 0.3393433799, 0.5316060279, 0.9063212056, 1,
        0.001014232042, 0.1900007958, 0.197958327, 0.4287498107, 0.5879163513, 0.9062494323, 1,
    ],
    "batches that meet": [
        2.629979945, 0, 1e-307, 2.19006529e-05, 0.03112171328, 0.4355473049, 0.6323608106,
        0.9416066731, 1, 0, 1e-06, 0.01, 0.3, 0.5, 0.9, 1,
    ],
    "kinds of pairs": [
        "remove", "remove", "add", "add", "remove", "remove", "add", "add", "remove", "remove",
        "add", "add", "replace", "replace", "replace", "replace", "remove", "remove", "add",
        "add", "switch", "remove", "switch", "add", "remove", "remove", "add", "add", "switch",
        "remove", "switch", "add",
    ],
    "shifts": [1, 2, 1, 1, 2, 2, 1, 1],
    "windows": [
        4.837404896e-05, 2.585012428, -0.5851808703, 0, 53438, 17.66662685, 4.045419802,
        4.512442532e-06, 0.01787258025, 0.3654443342, 0.5673923407, 0.923506838, 4.837404896e-05,
        2.585012428, -0.5851808703, 0, 53438, 17.67220058, 4.045419802, 4.477094355e-06,
        0.01787253952, 0.365444277, 0.5673922838, 0.9235067919,
    ],
    "few levels": [
        1, 1.037047216, 1.075466929, 1.115309985, 1.156629115, 1.199479004, 1.243916362, 1.29, 0,
        0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 5, 6, 6, 6, 6, 6, 0,
        0.2762738477, 0.5477886911, 0.8146594541, 0.07917744176, 0.3443928026, 0.6051667402,
        0.8616041857, 0.11709833, 0.3723396056, 0.6234244379, 0.8704488281, 0.1168531226,
        0.3630867338, 0.6054200195, 0.8439410111, 0.08109864156, 0.3191876993, 0.5536070185,
        0.7844375173, 0.01211658503, 0.242833765, 0.4700892049, 0.6939574704, 0.9145110952,
        0.1359026158, 0.3566676503, 0.5742278272, 0.7886501902, 0.999999999, 1, 1, 1, 1, 1, 1, 1,
        1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1.037047216,
        1.075466929, 1.115309985, 1.156629115, 1.199479004, 1.243916362, 1.29, 1, 2, 3, 4, 5, 6,
        7, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 5, 5,
    ],
    "overlaps": [0.3173105079, 0.8025873486, 0.3678794412, 0.7788007831],
    "least epsilon": [126.8447559, 0.01070124511],
    "losses of pairs": [
        0, 0.03841481764, 0.5197507447, 0.1762069633, 0.1667672718, 0.08441263034, 0.01349171746,
        0, 0.006938133066, 0.3730389372, 0.4013445389, 0.2026130986, 0.01604913379,
        1.615830157e-05, 0.0009558546838, 5.129749958e-12, 0, 0, 0.7124397989, 0, 0.2330411905,
        0.05356315588, 0.0009558546838, 0, 0, 0.242790115, 0.616345068, 0.140864817, 0,
        5.129749958e-12, -0.2164227758, -0.214104429, -0.223143015, 11.42182086, inf, inf,
        0.5685452109, 0.5076077966, 0.003153011447, 0.05573335997, 0.152357322, 0.2764354997,
        0.5105307748, 0.001790031993, 0, 1.57235336e-05, 0.02150468443, 0.2316753375,
        0.491569685, 0.2552340347, 5.349107348e-07, 0, 0, 0, 0, 0.01744397564, 0, 0.8685153444,
        0.1137285838, 0, 0, 0, 1.737138576e-05, 0, 0.9998854697, 9.715865141e-05, 0, 0, 0, 0,
        -11.42182086, 0.223143015, inf, inf, 0.5685452109, 0.5076077966, 0.005038530526,
        0.09608175204, 0.2523844963, 0.1948471267, 0.2858842122, 0.1426179569, 0.02148067591,
        9.013047543e-05, 0.05498246863, 0.3081712108, 0.2661268506, 0.3184468531, 0.0520782162,
        0.0001042700501, 0.001665249462, 7.190246701e-11, 0, 0.06733713824, 0.4610212056, 0,
        0.3846140994, 0.08484803657, 0.001665249462, 0, 0.002739698727, 0.6227544379, 0,
        0.3735677458, 0.0009381151472, 7.190246701e-11, 0, 0, -11.6449643, 11.6449643, inf, inf,
        0.5685452109, 0.5076077966, 0.003153011447, 0.05573335997, 0.152357322, 0.5231288322,
        0.1667672718, 0.08441263034, 0.01349171746, 1.57235336e-05, 0.02150468443, 0.2316753375,
        0.5281258638, 0.2026130986, 0.01604913379, 1.615830157e-05, 0.0009558546838,
        5.129749958e-12, 0, 0.04194199187, 0.3970953566, 0.08352698386, 0.4761677168, 0,
        0.0009558546838, 0, 0.0004981194018, 0.2188317325, 0.6509200327, 0.1297501153, 0,
        5.129749958e-12, 0, 0, -11.42182086, 11.42182086, inf, inf, 0.5685452109, 0.5076077966,
        0, 0.03324427475, 0.5633329236, 0.09213966855, 0.2226729858, 0.08861014727, 0, 0, 0,
        0.4845658622, 0.2342930316, 0.2811411062, 0, 0, 0, 0, 0, 0, 0.6328345989, 0,
        0.3671654011, 0, 0, 0, 0, 2.345790229e-12, 1, 0, 0, 0, -0.1536590611, -0.09296099991,
        -0.1539662446, 0.4041766732, 0.4041766728, 0.1485592564, 0.5457856389, 0.5446101086, 0,
        0.07458122503, 0.1648820398, 0.2477762098, 0.5127605254, 0, 0, 0, 0.01750021554,
        0.3158795827, 0.3854790956, 0.2811411062, 0, 0, 0, 0, 0, 0, 2.388644837e-12, 1, 0, 0, 0,
        0, 0, 2.575606395e-12, 1, 0, 0, 0, 0, 0, -0.4041766732, 0.1539662446, 0.4041766728,
        0.1485592564, 0.5457856389, 0.5446101086, 0, 0.1189513416, 0.2102462964, 0.2494560798,
        0.260433672, 0.1609126102, 0, 0, 0.05329298801, 0.3319626296, 0.1856237472, 0.4020624019,
        0.02705823329, 0, 0, 0, 0, 0, 0.6328345989, 0, 0.3671654011, 0, 0, 0, 0, 0.6328345989, 0,
        0.3671654011, 0, 0, 0, 0, -0.5581429176, 0.5581429176, 0.558142917, 0.2417043796,
        0.5457856389, 0.5446101086, 0, 0.07458122503, 0.1648820398, 0.4492536021, 0.2226729858,
        0.08861014727, 0, 0, 0.01750021554, 0.3158795827, 0.3854790956, 0.2811411062, 0, 0, 0, 0,
        0, 0, 0.6328345989, 0, 0.3671654011, 0, 0, 0, 0, 4.518163621e-12, 1, 0, 0, 0, 0, 0,
        -0.4041766732, 0.4041766732, 0.4041766728, 0.1485592564, 0.5457856389, 0.5446101086,
    ],
    "losses without sampling": [
        0.04090008199, 0.1276723948, 0.08429634145, 0.03929194403, 0.1227939843, 0.2892610524,
        0.2112184786, 0.008613341206, 0.1541513492, 0.189179374, 0.0966674939, 0.2567518562,
        0.2639907076, 0.0306077516, 0.08456572235, 3.812634111e-05, 0, 0.2887048489, 0, 0, 0,
        0.6136888097, 0.08456572235, 0, 0.148874941, 0.2337634262, 0, 0.4608942355, 0.156318945,
        3.812634111e-05, 0, 0, -13.03125001, 13.03125001, inf, inf, 0.5685452109, 0.5076077966,
        0.04472824309, 0.1719470818, 0.04426601506, 0.02005976987, 0.06601566581, 0.4518276313,
        0.201155593, 0, 0.2383984996, 0.1248829888, 0.02792713127, 0.2583069938, 0.3504843865, 0,
        0, 0, 0, 0.3692363114, 0, 0, 0, 0.6307636886, 0, 0, 0, 0.6328345989, 0, 0.3671654011, 0,
        0, -1.249975124, -0.5882104184, -1.250000001, 1.250000001, 1.25, 0.5882352941,
        0.5457856389, 0.5446101086,
    ],
    "losses of several draws": [
        0, 0.2229911548, 0.2761591594, 0.06537907954, 0.1289374931, 0.1623278161, 0.08034996568,
        0, 0.09501013665, 0.3661534684, 0.1536203441, 0.2382067426, 0.1334528984, 0.01319441098,
        0.06385533146, 0.0003619988846, 0, 0, 0.8834529695, 0, 0, 0.05269169901, 0.06385533146,
        0, 0, 0.7199329615, 0, 0.2198388542, 0.05986618544, 0.0003619988846, -0.6621597055,
        -0.6601745259, -0.6694290498, 38.95296259, inf, inf, 0.796140931, 0.6133286881,
    ],
    "losses of many pairs": [
        0, 0, 0.7124397989, 0, 0.2330411905, 0.05356315588, 0.0009558546838, 0, 0, 0.6627652889,
        0, 0.3164788787, 0.02070119394, 5.463844069e-05, 0, 0, 0.5842808668, 0.07673175238,
        0.3389855536, 0, 1.827261029e-06, 0, 0, 0.4302487271, 0.320124666, 0.2496265713, 0,
        3.563693068e-08, 0, 0, 0.3173401484, 0.4985417233, 0.1841181279, 0, 4.040671318e-10,
    ],
    "gaussian": [
        -0, 0.1974126514, 0.8663855975, -0, 0.05244032329, 0.8299958099, -0, 3.400911736e-10,
        0.5667379991, 0, 0.3968573776, 10.99715121, inf, 0, 0, 3.807884542, inf, 2.506628275e-06,
        0.2513226937, 0.124106149, 0.6425546346, 4.408865713, 6.684823499, 0.1415029062,
    ],
    "curves": [
        0.9999747633, 0.9480621636, 0.4303043026, 0.2419636522, 0.02376472631, 2.326347874,
        -0.439930332, 0.5882741304, 5.948461561, 1.836702486, 0.7346305696, 0.999991729,
        0.9774186491, 0.6190912908, 0.4225890957, 0.07712941789, inf, -inf, inf, 4.379477635,
        0.2182135475, 0, 0.9999979862, 0.9798624729, 0.4138210865, 0.2482926519, 0.04965853038,
        3.912023005, -0.6931471806, 0.6931471806, 1.29998, 1.089278969, 0.5866501121,
        0.9999986959, 0.9869587419, 0.6141463259, 0.4244877956, 0.08489755911, inf, -inf, inf,
        0.5881841501, 0.173314074, 0,
    ],
    "filters": [
        1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128,
        256, 512, 0.75, 3, inf, inf, 6, 0, 0.1325377056, 1.126166156e-23, 0.09890118717, 0,
        0.1693385475, 0, inf, 0, 0, 0.2069563793, 4.996642326, 1.214109168, 1.714109168, 0,
        -0.2141091678, 32, 4,
    ],
    "formulas": [
        1.1, 3.1, 5.1, 7.1, 9.1, 13, 33, 53, 63, 128, 256, 512, 1024, 0.6504257909,
        "its RDP accountant, as if batches were Poisson samples", 0.5207743138,
        "its PRV accountant, as if batches were Poisson samples", 0.6504257909,
        "its RDP accountant", 3.188991563,
        "its statement for each example once per epoch, without microbatches", 1.336965012,
        "its statement for Poisson sampling, without microbatches", 7.077391578,
        "its statement for each example once per epoch, with microbatches, its default",
        4.479691964, "its statement for Poisson sampling, with microbatches, its default",
        0.4444444444, "its ledger at delta 0, without the epsilon of its selections",
        2.422402631, "its formula for one call", 0.1111111111, "its formula for one call", inf,
        0.1459270897, 11.31365073, 3.296679575,
    ],
    "binomial": [
        0, 1, -inf, 0.040353607, 0.959646393, -3.210074495, 0.196003234, 0.803996766,
        -1.860147778, 0.462831166, 0.537168834, -1.321151278, 0.729659098, 0.270340902,
        -1.321151278, 0.90119134, 0.09880866, -1.76298403, 0.974705158, 0.025294842, -2.61028189,
        0.995709106, 0.004290894, -3.863044859, 0.999566974, 0.000433026, -5.55764058,
        0.999980317, 1.9683e-05, -7.791232801, 1, 0, -10.83575524, 1, 0, -inf,
    ],
    "binomial quantiles": [1, 27, 302],
    "reconstruction": [
        0.001, 0.2023752707, 0.9508380549, 0.2804343877, 0.9762352737, 0.111723908, 0.9062588806,
        0, 1.095273387, 2.889260029, inf, 0, 0.7571510528, 0.6666666667, 0.2837731928,
    ],
}
# fmt: on


def test_masses_of_cells_are_no_less_than_0_on_either_side() -> None:
    losses = np.linspace(-40, 40, 161)
    for side in (1, -1):
        for family in ("gaussian", "laplace"):
            cells = privacy_loss._cells(pairs(family, "remove"), losses, side)
            assert min(cells.p.min(), cells.q.min()) == 0


@pytest.mark.parametrize("name", CASES)
def test_figures_of_fixed_releases_stay(name: str) -> None:
    hold(CASES[name](), EXPECTED[name])
