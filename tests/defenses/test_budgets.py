"""Every defense whose noise follows from a budget: it is set, or refused in a line."""

from itertools import product

import numpy as np
import pytest
from pydantic import ValidationError

from dpaudit.defense.budget import GaussianDefense
from dpaudit.defense.contract import Setting
from dpaudit.graphs.graph import build_graph
from dpaudit.registry import load_plugin
from tests.own_plugins import OWN

SETTING = Setting(build_graph("complete", 4), (400,) * 4, 10)
WITH_DELTA = sorted(
    name for name in OWN if {"epsilon", "delta"} <= {*load_plugin("defenses", name).model_fields}
)
WITH_EPSILON = sorted(
    name for name in OWN if "epsilon" in load_plugin("defenses", name).model_fields
)

BY_FORMULA = [  # the others follow from exact accounting, which refuses some budgets
    name for name in WITH_DELTA if not issubclass(load_plugin("defenses", name), GaussianDefense)
]


def test_the_defenses_here_are_those_with_a_budget() -> None:
    assert {"adp-vrsgp", "dp-dpsgd", "dpdl", "dyn-d2p"} <= {*WITH_DELTA}


@pytest.mark.parametrize("epsilon", [1e-300, 1e-7, 1e7, 1e300])
@pytest.mark.parametrize("name", WITH_EPSILON)
def test_an_epsilon_that_nobody_means_is_refused(name, epsilon) -> None:
    with pytest.raises(ValidationError, match="epsilon"):
        load_plugin("defenses", name)(epsilon=epsilon)


@pytest.mark.parametrize("delta", [5e-324, 1e-301, 1.0])
@pytest.mark.parametrize("name", WITH_DELTA)
def test_a_delta_that_cannot_be_computed_with_is_refused(name, delta) -> None:
    with pytest.raises(ValidationError, match="delta"):
        load_plugin("defenses", name)(epsilon=1.0, delta=delta)


@pytest.mark.parametrize("name", BY_FORMULA)
def test_every_other_budget_sets_noise_that_is_finite(name) -> None:
    for epsilon, delta in product([1e-6, 1.0, 1e6], [1e-300, 1e-20, 0.5, 0.999, 1 - 1e-16]):
        defense = load_plugin("defenses", name)(
            epsilon=epsilon, delta=delta, n_rounds=20, batch_size=2, allow_outside_theory=True
        )
        options = defense.calibrate(SETTING).model_dump()
        noise = np.array(options.get("noise_multiplier") or options["noise_multipliers"])
        assert np.isfinite(noise).all(), (epsilon, delta)
        assert (noise > 0).all(), (epsilon, delta)
