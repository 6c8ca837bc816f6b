"""One update of the adversary's Kalman filter, against closed forms; dense and sparse matrices."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

from dpaudit.game.filtering.adversary import Update, kalman_update
from dpaudit.game.matrices import times
from dpaudit.game.probing.probed_round import Effects, ProbedRound

NO_MODELS = np.zeros((0, 0))


@pytest.fixture(params=["dense", "sparse"])
def updated(request: pytest.FixtureRequest) -> Callable[..., Update]:
    def make(
        seen: Any,
        state: Any,
        record: Any,
        record_state: Any,
        n_states: int,
        laplace: list[bool],
        scale: float = 1.0,
    ) -> Update:
        kind = sparse.csr_array if request.param == "sparse" else np.asarray
        noise = Effects(*(kind(np.array(each, dtype=float)) for each in (seen, state)), NO_MODELS)
        of_record = Effects(np.array([record]), np.array([record_state]), NO_MODELS)
        none = Effects(np.zeros((0, len(record))), np.zeros((0, len(record_state))), NO_MODELS)
        return kalman_update(
            ProbedRound(
                round=1,
                messages=[("x", i) for i in range(len(record))],
                noise=noise,
                n_states=n_states,
                laplace=torch.tensor(laplace),
                record=of_record,
                steps=[0],
                earlier=none,
                askers=[],
                scale=scale,
                largest=1.0,
            ),
            [(1, 1, 0)],
        )

    return make


def test_a_scalar_filter_has_the_textbook_gain(updated: Callable[..., Update]) -> None:
    """x + z of x with variance 9 and z with variance 16: gain 9 / 25, left is 9 * 16 / 25."""
    found = updated([[3.0], [4.0]], [[3.0], [0.0]], [1.0], [1.0], 1, [False], scale=1e-7)
    one = torch.ones(1, 1, dtype=torch.float64)
    assert found.stds.tolist() == pytest.approx([5.0])
    assert abs(found.reading.shifts[1].item()) == pytest.approx(1 / 5)
    assert times(times(one, found.reading.whiten), found.reading.gain).item() == pytest.approx(
        9 / 25
    )
    assert found.residuals.item() == pytest.approx(1 - 9 / 25)
    factor = np.asarray(found.factor.todense() if sparse.issparse(found.factor) else found.factor)
    assert (factor.T @ factor).item() == pytest.approx(9 * 16 / 25)
    assert found.reading.noiseless == {}  # no more than 1e-8 of the scale


def test_what_no_noise_reaches_is_noiseless(updated: Callable[..., Update]) -> None:
    found = updated([[2.0, 0.0]], [[0.0]], [1.0, 3.0], [0.0], 0, [False])
    assert found.reading.noiseless == {1: "x"}
    assert found.reading.shown[1].tolist() == [pytest.approx(0.0, abs=1e-12), 1 / 3]
    assert found.reading.shifts[1].norm().item() == pytest.approx(1 / 2)


@pytest.mark.parametrize(("n_states", "exact"), [(0, True), (1, False)])
def test_draws_are_exact_only_where_the_state_is_known(
    updated: Callable[..., Update], n_states: int, exact: bool
) -> None:
    """Both of two numbers are read; the first is a draw, or what is not known of the state."""
    laplace = [True] * (2 - n_states)
    found = updated([[1.0, 0.0], [0.0, 1.0]], [[1.0], [0.0]], [1.0, 1.0], [0.0], n_states, laplace)
    assert (found.reading.exact, found.reading.has_laplace) == (exact, True)


def test_draws_that_are_not_told_apart_are_not_exact(updated: Callable[..., Update]) -> None:
    assert not updated([[1.0], [1.0]], [[0.0], [0.0]], [1.0], [0.0], 0, [True, True]).reading.exact
