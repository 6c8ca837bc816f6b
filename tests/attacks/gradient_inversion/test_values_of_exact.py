"""How records of a batch are separated exactly, step by step and by hand."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dpaudit.attack as da
from dpaudit.attacks.gradient_inversion import (
    exact,
)
from dpaudit.attacks.gradient_inversion.exact import _Pool, _Problem


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def problem(rows: Any, noise: float = 0.01, **of: Any) -> _Problem:
    rows = torch.tensor(rows, dtype=torch.float64)
    m, b = rows.shape
    about = {
        "rows": rows, "noise": torch.full((m,), noise).double(), "units": torch.arange(m),
        "L": rows, "R": torch.eye(b, b + 1).double(), "T": torch.eye(b).double(),
    }  # fmt: skip
    return _Problem(**{**about, **of})


def test_a_zero_is_within_eight_deviations() -> None:
    own = problem([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    q = torch.tensor([[0.079, 1.0], [0.081, 1.0]]).double()
    q = q / q.norm(dim=1, keepdim=True)
    assert own.is_zero(q).tolist() == [[True, False, False], [False, False, False]]
    assert own.is_zero(q, 0.011).tolist()[1] == [True, False, False]
    doubled = own._replace(T=2 * own.T)
    assert doubled.is_zero(q).tolist()[1] == [True, False, False]


def test_directions_with_more_zeros_than_chance_are_kept() -> None:
    """Of ten rows any direction has one zero, and a tenth more is beyond chance: three or more."""
    rows = [[1.0, 0.0]] * 3 + [[0.0, 1.0]] * 2 + [[0.6, 0.8]] * 5
    own, directions = problem(rows), [[0.0, 1.0], [1.0, 0.0], [0.8, -0.6]]
    found = exact._promising(own, torch.tensor(directions, dtype=torch.float64))
    assert found.q.tolist() == [[0.0, 1.0], [0.8, -0.6]]
    assert found.zeros.tolist() == [0.3, 0.5]
    pool = exact._sparsest(found, _Pool(torch.tensor([[0.0, -1.0]]).double(), vector(0.9)))
    assert pool.zeros.tolist() == [0.9, 0.5]
    assert pool.q.tolist() == [[0.0, -1.0], [0.8, -0.6]]
    near = _Pool(torch.tensor([[1.0, 0.0], [1.0, 9e-4], [1.0, 2e-3]]).double(), vector(3, 2, 1))
    assert exact._sparsest(near).zeros.tolist() == [3.0, 1.0]


def test_a_sum_of_two_columns_is_parted() -> None:
    """q = p + 0.5 r has the quotient 1 at the rows that r is orthogonal to."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(40, 3, generator=generator).double()
    p, r = torch.eye(3).double()[:2]
    rows[:20, 1] = 0.0
    own = problem(rows.tolist())
    q = (p + 0.5 * r)[None]
    [found] = exact._without(own, q, _Pool(p[None], vector(0.5)))
    torch.testing.assert_close(found.abs(), r)


def test_inputs_are_rows_up_to_their_last_entry() -> None:
    own = problem([[1.0, 0.0], [0.0, 1.0]], R=torch.tensor([[2.0, 4.0, 2.0], [3.0, 6.0, -3.0]]).double())  # fmt: skip
    q = torch.eye(2).double()
    assert exact._inputs(own, q).tolist() == [[1.0, 2.0], [-1.0, -2.0]]
    linear = SimpleNamespace(
        parameters={"weight": torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]).double(), "bias": vector(-1.0, 2.0, 0.0)}
    )  # fmt: skip
    ahead: Any = SimpleNamespace(linear=linear)
    some = own._replace(units=torch.tensor([2, 0]))
    off = exact._off(ahead, some, torch.tensor([[1.0, -1.0], [0.5, 3.0]]).double())
    assert off.tolist() == [[True, True], [False, True]]


@pytest.mark.parametrize(("wrong", "found"), [((0, 1), True), ((0, 3), False), ((3, 3), False)])
def test_each_record_explains_where_its_units_are_off(monkeypatch, wrong, found) -> None:
    """Of 100 units, 98 at least; a record that agrees with all does not make up for another."""
    zero = torch.arange(100) % 2 == torch.tensor([[0], [1]])
    off = zero.clone()
    for i, n in enumerate(wrong):
        off[i, :n] ^= True
    inputs = torch.tensor([[1.0, 2.0], [3.0, 5.0]]).double()
    monkeypatch.setattr(exact, "_inputs", lambda problem, q: inputs)
    monkeypatch.setattr(exact, "_off", lambda front, problem, rows: off)
    problem: Any = SimpleNamespace(R=torch.zeros(2, 3), is_zero=lambda q: zero)
    slopes = torch.tensor([[1.0, -2.0], [0.5, 3.0], [0.0, 1.0]]).double()
    front: Any = SimpleNamespace(augmented=slopes @ torch.cat([inputs, torch.ones(2, 1)], dim=1))
    pool = _Pool(torch.eye(2).double(), vector(0.5, 0.5))
    separated = exact._separated(front, problem, pool)
    assert (separated is not None) == found
    if separated is not None:
        torch.testing.assert_close(separated.slopes, slopes)
    assert exact._separated(front, problem, _Pool(pool.q[:1], vector(0.5))) is None


def test_rows_are_made_alike_in_all_directions() -> None:
    """Rows at unit length then have the same mean square along every direction."""
    generator = torch.Generator().manual_seed(0)
    L = torch.randn(60, 3, generator=generator).double() * torch.tensor([9.0, 1.0, 0.1])
    T = exact._alike(L)
    assert float(T.norm()) == pytest.approx(1.0)
    rows = nn.functional.normalize(L @ T)
    torch.testing.assert_close(rows.T @ rows / 60, torch.eye(3).double() / 3, atol=2e-3, rtol=0)


@pytest.mark.parametrize(("first", "off", "said"), [(False, 0.5, "comes first"), (True, 0.09, "no ReLU"), (True, 0.1, None)])  # fmt: skip
def test_a_batch_is_separated_behind_a_relu(monkeypatch, first: bool, off: float, said) -> None:
    """Of random images of the range, a tenth of the units are off; there are a hundred."""
    seen: list[Tensor] = []

    def answers(task: Any, model: Any, ahead: Any, images: Tensor) -> Tensor:
        seen.append(images)
        slopes = torch.ones(2, 3, 100)
        slopes[:, 0, : round(100 * off)] = 0.0
        return slopes

    monkeypatch.setattr(exact, "_answers", answers)
    task: Any = SimpleNamespace(value_range=(2.0, 6.0), shape=(1, 2, 2))
    ahead: Any = SimpleNamespace(is_first=first)
    model = vector(0.0)
    if said is None:
        exact._require_first_with_relu(task, model, ahead)
    else:
        with pytest.raises(da.NotObservable, match=said):
            exact._require_first_with_relu(task, model, ahead)
    if first:
        z = torch.rand((2, 1, 2, 2), generator=torch.Generator().manual_seed(0)).double()
        torch.testing.assert_close(seen[0], 2 + 4 * z)
