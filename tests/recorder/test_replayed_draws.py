"""What a world of an audit has in the place of a draw at a line of noise."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import laplace

from dpaudit.recorder.draws.python_draws import LAPLACE, NORMAL, Law, PythonDraws
from dpaudit.recorder.draws.torch_draws import is_laplace, replay


class Refused(Exception):
    pass


class Player:
    """Adds 1 to standard noise, and keeps what it was given."""

    given: tuple[Any, float, str]

    def at_line(self, record: dict[str, Any], own: Any, scale: float, family: str) -> Any:
        self.given = own, scale, family
        return own + 1

    def refuse(self, why: str) -> None:
        raise Refused(why)


def record(operator: str, *parameters: float) -> dict[str, Any]:
    return {"site": "a.py:1", "operator": operator, "parameters": parameters}


def test_a_normal_draw_of_torch_is_centred_and_put_back() -> None:
    player, drawn = Player(), torch.tensor([3.0, 5.0])
    replay(player, record("normal_", 1.0, 2.0), drawn, (1.0, 2.0))  # type: ignore[arg-type]
    own, scale, family = player.given
    assert own.tolist() == [2.0, 4.0]  # still of its scale, which is handed over
    assert (scale, family) == (2.0, "gaussian")
    assert drawn.tolist() == [4.0, 6.0]


def test_scales_of_each_number_are_divided_out() -> None:
    player, drawn, std = Player(), torch.tensor([3.0, 5.0]), torch.tensor([2.0, 4.0])
    replay(player, record("normal"), drawn, (1.0, std))  # type: ignore[arg-type]
    own, scale, _ = player.given
    assert own.tolist() == [1.0, 1.0]
    assert scale == 1.0
    assert drawn.tolist() == [1 + 2 * 2.0, 1 + 2 * 4.0]


def test_a_uniform_draw_is_replayed_as_laplace_noise() -> None:
    """torch.distributions.Laplace makes -sign(u) ln(1 - |u|) of u."""
    player, u = Player(), torch.tensor([0.5, -0.25, 0.0], dtype=torch.float64)
    drawn = u.clone()
    replay(player, record("uniform_", -1.0, 1.0), drawn, (-1.0, 1.0))  # type: ignore[arg-type]
    own, scale, family = player.given
    assert own.numpy() == pytest.approx(laplace.ppf((1 + u.numpy()) / 2))
    assert (scale, family) == (1.0, "laplace")
    made = -drawn.sign() * torch.log1p(-drawn.abs())
    assert made.numpy() == pytest.approx(own.numpy() + 1)


def test_laplace_noise_far_out_stays_finite() -> None:
    """1 - e^-40 is 1 in float32, of which the logarithm of 1 - |u| is infinite."""
    player, drawn = Player(), torch.tensor([0.5, -0.5])
    player.at_line = lambda *given: torch.tensor([40.0, -40.0], dtype=torch.float64)  # type: ignore[method-assign]
    replay(player, record("uniform_", -1.0, 1.0), drawn, (-1.0, 1.0))  # type: ignore[arg-type]
    made = -drawn.sign() * torch.log1p(-drawn.abs())
    assert made.isfinite().all()
    assert made.sign().tolist() == [1.0, -1.0]


@pytest.mark.parametrize(
    "operator, ends, expected",
    [
        ("uniform_", (-1.0, 1.0), True),
        ("uniform_", (-0.999999, 1.0), True),
        ("uniform_", (None, 1.0), False),
        ("uniform_", (0.0, 1.0), False),
        ("uniform_", (-1.0, 2.0), False),
        ("normal_", (-1.0, 1.0), False),
    ],
)
def test_only_a_uniform_draw_on_both_sides_is_laplace(operator, ends, expected) -> None:
    assert is_laplace(operator, ends) is expected


def test_another_draw_at_a_line_of_noise_is_refused() -> None:
    for operator in ("uniform_", "exponential_"):
        with pytest.raises(Refused, match="a.py:1 draws by"):
            replay(Player(), record(operator, 0.0, 1.0), torch.zeros(2), (0.0, 1.0))  # type: ignore[arg-type]


@pytest.mark.parametrize("spread", [2.0, np.float64(2.0), np.array([2.0, 4.0])])
def test_a_draw_of_numpy_is_put_back_at_its_scale(spread: Any) -> None:
    player, result = Player(), np.array([3.0, 5.0])
    draws = PythonDraws(None, None, player)  # type: ignore[arg-type]
    made = draws._replayed(record("normal"), Law(NORMAL), result, (1.0, spread))
    own, scale, family = player.given
    each = np.ndim(spread) > 0
    assert own == pytest.approx((np.array([3.0, 5.0]) - 1) / (spread if each else 1.0))
    assert (scale, family) == (1.0 if each else 2.0, "gaussian")
    assert made is result  # which may be the program's own
    assert made == pytest.approx((own + 1) * (spread if each else 1.0) + 1)


def test_a_number_of_numpy_is_a_number_again() -> None:
    player = Player()
    draws = PythonDraws(None, None, player)  # type: ignore[arg-type]
    assert draws._replayed(record("laplace"), Law(LAPLACE), 3.0, (1.0, 2.0)) == 4.0
    assert player.given == (2.0, 2.0, "laplace")
    with pytest.raises(Refused, match="expected of a line of noise a normal or a Laplace draw"):
        draws._replayed(record("gamma"), Law("gamma"), 3.0, (1.0, 2.0))
