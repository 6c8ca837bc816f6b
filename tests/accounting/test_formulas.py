"""What published tools compute, against the numbers that they give themselves.

Figures of Opacus 1.6.0: ``a = RDPAccountant(); a.history = [(s, q, n)]; a.get_epsilon(delta)``, and
the same of ``PRVAccountant``. Of tensorflow-privacy 0.9.0 with dp-accounting 0.4.3:
``compute_dp_sgd_privacy_lib._compute_dp_sgd_example_privacy(n * q, s, delta, microbatching, p)``
with p = None and p = q, from which its statement is made. Of NVFlare 2.9.0:
``svt_privacy._compute_release_epsilon(n_upload=50, noise_var=0.1)``.
"""

from math import inf, log, sqrt

import pytest
from dp_accounting import dp_event, rdp

from dpaudit.accounting import Release, epsilon
from dpaudit.accounting.formulas import DP_ACCOUNTING_ORDERS, claimed, renyi_epsilon
from dpaudit.errors import ConfigError

OPACUS = [  # noise, rate, rounds, delta, RDP, PRV
    (1.1, 0.01, 1_000, 1e-5, 1.7117700912203435, 1.525472649316146),
    (1.0, 0.001, 10_000, 1e-6, 0.9795416255105658, 0.5651829293585005),
    (0.6, 0.05, 200, 1e-5, 17.529537692236918, 15.472829507703539),
    (4.0, 0.2, 500, 1e-5, 5.56840298527184, 5.156414827553173),
    (2.0, 1.0, 10, 1e-5, 8.079406222420491, 7.521641007073685),
]
STATEMENTS = [  # noise, rate, rounds, delta, once per epoch and Poisson: without, with microbatches
    (1.1, 0.01, 1_000, 1e-5, 16.856677599575107, 1.7117700912203437, 42.59755939957128, 11.392660672790413),
    (0.8, 0.004, 15_000, 1e-6, 96.03397861104409, 5.394954741963865, 287.46081724286245, 60.826727276254495),
]  # fmt: skip


def gaussian(noise: float, rate: float = 1.0, count: int = 1, drawn: str = "poisson") -> Release:
    sampling = drawn if rate < 1 else "none"
    return Release(
        family="gaussian",
        noise_multiplier=noise,
        sampling=sampling,
        sampling_rate=rate,
        count=count,
    )


@pytest.mark.parametrize("noise, rate, count, delta, by_rdp, by_prv", OPACUS)
def test_opacus_gives_the_same(noise, rate, count, delta, by_rdp, by_prv) -> None:
    ours = claimed("opacus", [gaussian(noise, rate, count)], delta)
    assert ours[0].epsilon == pytest.approx(by_rdp, rel=1e-9)
    assert ours[1].epsilon == pytest.approx(by_prv, abs=1e-4)  # of its grid


@pytest.mark.parametrize("noise, rate, count, delta, once, poisson, twice, doubled", STATEMENTS)
def test_tf_privacy_gives_the_same(
    noise, rate, count, delta, once, poisson, twice, doubled
) -> None:
    ours = claimed("tf-privacy", [gaussian(noise, rate, count)], delta)
    expected = [once, poisson, twice, doubled]
    assert [formula.epsilon for formula in ours] == pytest.approx(expected, rel=1e-9)


def test_nvflare_gives_the_same() -> None:
    """A noise_var of 0.1 is Laplace noise of 20 times the clip."""
    release = Release(family="laplace", noise_multiplier=20.0, count=50)
    [ledger] = claimed("nvflare", [release], 1e-5)
    assert ledger.epsilon == pytest.approx(5.0)
    assert epsilon([release], 0.0, "replace-one").high == pytest.approx(5.0)


def test_renyi_of_several_releases_is_that_of_dp_accounting() -> None:
    accountant = rdp.RdpAccountant()
    releases = [gaussian(1.3, 0.02, 300), gaussian(0.7, 0.001, 50), gaussian(9.0, 1.0, 4)]
    for r in releases:
        event = dp_event.GaussianDpEvent(r.noise_multiplier)
        sampled = dp_event.PoissonSampledDpEvent(r.sampling_rate, event)
        accountant.compose(sampled if r.sampling_rate < 1 else event, r.count)
    ours = renyi_epsilon(releases, 1e-5, DP_ACCOUNTING_ORDERS)
    assert ours == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-9)


def test_a_bound_that_assumes_what_runs_is_above_the_exact() -> None:
    releases = [gaussian(1.1, 0.01, 1_000)]
    exact = epsilon(releases, 1e-5)
    assert all(f.epsilon > exact.high for f in claimed("opacus", releases, 1e-5))


def test_batches_of_fixed_size_give_more_than_opacus_claims() -> None:
    releases = [gaussian(1.1, 0.01, 1_000, "fixed")]
    found = claimed("opacus", releases, 1e-5)
    assert all("as if batches were Poisson samples" in f.words for f in found)
    assert all(f.epsilon < epsilon(releases, 1e-5).low / 5 for f in found)


LAPLACE = Release(family="laplace", noise_multiplier=2.0)


@pytest.mark.parametrize(
    "tool, release, delta, expected",
    [
        ("flower", gaussian(4.0), 1e-5, sqrt(2 * log(1.25e5)) / 4),
        ("p2pfl", gaussian(4.0), 1e-5, sqrt(2 * log(1.25e5)) / 4),
        ("p2pfl", LAPLACE, 0.0, 0.5),
        ("p2pfl", LAPLACE.model_copy(update={"noise_multiplier": 0.0}), 0.0, inf),
        ("nvflare", LAPLACE, 0.0, 1.0),
        ("opacus", gaussian(0.019, 0.01), 1e-5, inf),  # of too many points to integrate
    ],
)
def test_figures_of_one_call(tool, release, delta, expected) -> None:
    assert claimed(tool, [release], delta)[0].epsilon == pytest.approx(expected)


def test_whole_batches_are_poisson_samples_already() -> None:
    assert claimed("opacus", [gaussian(2.0)], 1e-5)[0].words == "its RDP accountant"


@pytest.mark.parametrize(
    "tool, mechanism, delta",
    [
        ("opacus", [LAPLACE], 1e-5),
        ("flower", [LAPLACE], 1e-5),
        ("nvflare", [gaussian(1.0)], 1e-5),
        ("nvflare", [LAPLACE, gaussian(1.0)], 1e-5),
        ("opacus", [gaussian(1.0)], 0.0),
        *((tool, [gaussian(1.0)] * 2, 1e-5) for tool in ("p2pfl", "flower", "tf-privacy")),
    ],
)
def test_a_tool_without_a_formula_is_one_line(tool, mechanism, delta) -> None:
    with pytest.raises(ConfigError, match="^--like: "):
        claimed(tool, mechanism, delta)


def test_no_noise_has_no_epsilon() -> None:
    for tool in ("opacus", "tf-privacy", "flower"):
        assert claimed(tool, [gaussian(0.0, 0.5)], 1e-5)[0].epsilon == float("inf")
