"""What losses and equations of gradient inversion give, by hand."""

from dataclasses import dataclass
from math import sqrt
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpaudit.attacks.gradient_inversion import attack, local, objective, patches, recursion
from dpaudit.attacks.gradient_inversion.attack import ExactBatch
from dpaudit.attacks.gradient_inversion.objective import Objective
from dpaudit.attacks.gradient_inversion.recursion import Equations, Signal
from dpaudit.errors import DpauditError, NotObservable


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


S, T = vector(3.0, 4.0)[None], vector(4.0, 3.0)[None]


@pytest.mark.parametrize(
    ("mismatch", "s", "t", "loss"),
    [
        ("cosine", S, T, 1 - 24 / 25),
        ("cosine", S, -S, 2.0),
        ("cosine", 7 * S, S, 0.0),
        ("chord", S, T, sqrt(2 * (1 - 24 / 25))),
        ("chord", S, -S, 2.0),
        ("euclidean", S, 2 * T, (5**2 + 2**2) / 100),
        ("euclidean", S, S, 0.0),
        ("likelihood", S, T, 1 / 0.25),
        ("l1", S, T, (abs(0.8 - 0.96 * 0.6) + abs(0.6 - 0.96 * 0.8)) / 1.4),
        ("l1", S, -S, 1.0),
        ("l1", S, 9 * S, 0.0),
    ],
)
def test_a_mismatch_is_its_formula(mismatch: Any, s: Tensor, t: Tensor, loss: float) -> None:
    observed: Any = SimpleNamespace(gradients=torch.cat([9 * t, t]), std=vector(9.0, 0.5))
    own = Objective(observed, None, None, mismatch, 0.0)  # type: ignore[arg-type]
    found = own._mismatch(s, torch.tensor([1]))
    assert found.tolist() == pytest.approx([loss], abs=2e-6)


def test_steps_of_colours_count_three_times() -> None:
    grey = torch.tensor([[[[[0.0, 1.0], [0.0, 4.0]]]]])
    assert objective._total_variation(grey).tolist() == [(1 + 4) / 2 + (0 + 3) / 2]
    alike = grey.expand(1, 1, 3, 2, 2)
    assert objective._total_variation(alike).tolist() == [4.0]
    coloured = torch.cat([grey, 0 * grey, -grey], dim=2)  # of mean 0, so of colour alone
    assert objective._total_variation(coloured).tolist() == [pytest.approx(3 * 4.0 * 2 / 3)]


def test_a_prior_weighs_as_much_as_bayes_rule_gives_it() -> None:
    task: Any = SimpleNamespace(gradients=SimpleNamespace(d=50), frame=None, value_range=(0, 1))
    images = torch.zeros(7, 2, 1, 3, 3)
    assert Objective(None, task, None, "chord", 0.4)._weight(images) == 0.4  # type: ignore[arg-type]
    own = Objective(None, task, None, "likelihood", 0.4)  # type: ignore[arg-type]
    assert own._weight(images) == pytest.approx(2 * 0.4 * 18 / 50)


def test_images_stand_in_the_frame_of_public_ones() -> None:
    task: Any = SimpleNamespace(frame=0.5)
    own = Objective(None, task, None, "chord", 0.4)  # type: ignore[arg-type]
    framed = own._framed(torch.ones(1, 1, 1, 2, 2))
    assert framed.shape == (1, 1, 1, 4, 4)
    assert framed.sum() == 4 + 12 * 0.5
    assert framed[0, 0, 0, 1:3, 1:3].tolist() == [[1, 1], [1, 1]]


def test_logits_start_at_the_likely_label() -> None:
    task: Any = SimpleNamespace(value_range=(-1.0, 3.0))
    found = objective.first_logits(torch.tensor([[[1.0, 0.0]]]), task)
    assert found.tolist() == [pytest.approx([1.4, 0.6])]


def test_a_logit_crosses_twelve_over_the_range() -> None:
    task: Any = SimpleNamespace(value_range=(-1.0, 3.0), n_classes=2, shape=(1, 1, 1))
    observed: Any = SimpleNamespace(batch_size=1, local=None)
    own = Objective(observed, task, None, "chord", 0.0)
    found = own.labels_of(torch.tensor([[9.0, -1.0, 3.0]]), torch.tensor([0]))
    assert found.log().diff(dim=-1).flatten().tolist() == [pytest.approx(12.0, rel=1e-4)]
    known = Objective(observed, task, torch.tensor([[4], [5]]), "chord", 0.0)
    assert known.labels_of(torch.zeros(1, 1), torch.tensor([1])).tolist() == [[5]]


def test_a_point_meets_each_gradient_of_its_secret() -> None:
    observed: Any = SimpleNamespace(secrets=torch.tensor([0, 1, 0]))
    own = Objective(observed, None, None, "chord", 0.0)  # type: ignore[arg-type]
    of, rows = own._pairs(torch.tensor([1, 0]))
    assert (of.tolist(), rows.tolist()) == ([0, 1, 1], [1, 0, 2])
    observed.secrets = None
    of, rows = own._pairs(torch.tensor([1, 0]))
    assert (of.tolist(), rows.tolist()) == ([0, 1], [1, 0])


@pytest.mark.parametrize(
    ("layer", "plain"),
    [
        (nn.Conv2d(2, 2, 3), True),
        (nn.Conv2d(2, 2, 3, padding=1), True),
        (nn.Conv2d(2, 2, 3, padding="same"), False),
        (nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), False),
        (nn.Conv2d(2, 2, 3, groups=2), False),
    ],
)
def test_a_plain_convolution_has_one_group_and_zeros(layer: nn.Conv2d, plain: bool) -> None:
    assert recursion._is_plain(layer) is plain


X = vector(0.5, -1.0, 2.0, 0.0)


@pytest.mark.parametrize(
    ("layer", "derivative"),
    [
        (nn.Sigmoid(), X.sigmoid() * (1 - X.sigmoid())),
        (nn.Tanh(), 1 - X.tanh() ** 2),
        (nn.LeakyReLU(0.25), vector(1.0, 0.25, 1.0, 0.25)),
        (nn.ReLU(), vector(1.0, 0.0, 1.0, 0.0)),
    ],
)
def test_an_activation_is_undone_by_its_inverse(layer: nn.Module, derivative: Tensor) -> None:
    call: Any = SimpleNamespace(layer=layer)
    slope = vector(1.0, 2.0, 3.0, 4.0)
    found = recursion._before_activation(call, Signal(layer(X), slope, 2 * torch.ones(4)))
    sure = derivative > 0
    torch.testing.assert_close(found.value[sure], X[sure])
    torch.testing.assert_close(found.slope, slope * derivative)
    torch.testing.assert_close(found.known, 2 * derivative)


def test_what_has_no_inverse_is_refused() -> None:
    for layer in (nn.LeakyReLU(0.0), nn.MaxPool2d(2), nn.GELU()):
        with pytest.raises(NotObservable, match="cannot invert"):
            recursion._before_activation(
                SimpleNamespace(layer=layer), Signal(X, X, X)  # type: ignore[arg-type]
            )  # fmt: skip


@pytest.mark.parametrize(("stride", "padding", "determined"), [(1, 1, True), (3, 0, False)])
def test_equations_of_a_convolution_give_its_input(stride, padding, determined) -> None:
    generator = torch.Generator().manual_seed(1)
    layer = nn.Conv2d(2, 3, 3, stride=stride, padding=padding).double()
    W = torch.randn(layer.weight.shape, generator=generator).double()
    x = torch.randn(1, 2, 5, 5, generator=generator).double()
    z = nn.functional.conv2d(x, W, stride=stride, padding=padding)
    slope = torch.randn(z.shape[1:], generator=generator).double()
    g = nn.grad.conv2d_weight(x, W.shape, slope[None], stride, padding)
    call: Any = SimpleNamespace(layer=layer, parameters={"weight": W}, input=x)
    equations = Equations.of(call, slope, torch.ones_like(z[0]))
    if determined:
        torch.testing.assert_close(equations.solve(z[0], g), x[0])
        torch.testing.assert_close(equations._by_qr(z[0], g.transpose(0, 1).flatten(1)), x[0])
    else:
        with pytest.raises(NotObservable, match="at most"):
            equations.solve(z[0], g)
    back = nn.grad.conv2d_input(x.shape, W, slope[None], stride, padding)
    torch.testing.assert_close(equations.back(slope), back)


def test_the_first_linear_layer_shows_what_it_was_fed() -> None:
    x, slope, W = vector(1.0, -2.0, 0.5), vector(0.3, -0.7), torch.ones(2, 3).double()
    augmented = torch.outer(slope, torch.cat([x, torch.ones(1)]))
    linear = SimpleNamespace(parameters={"weight": W})
    found = recursion.input_of_linear(SimpleNamespace(augmented=augmented, linear=linear))  # type: ignore[arg-type]
    torch.testing.assert_close(found.value, x)
    torch.testing.assert_close(found.slope, W.T @ slope)
    augmented[:, -1] = 0.0
    with pytest.raises(NotObservable, match="bias is 0"):
        recursion.input_of_linear(SimpleNamespace(augmented=augmented, linear=linear))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("layer", "found"),
    [
        (nn.Conv2d(1, 4, 2, stride=2), True),
        (nn.Conv2d(1, 4, 2, stride=1), False),
        (nn.Conv2d(1, 4, 1, stride=1), False),
        (nn.Conv2d(1, 4, 2, stride=2, padding=1), False),
        (nn.Conv2d(1, 4, (2, 3), stride=(2, 3)), False),
        (nn.Conv2d(2, 4, 2, stride=2, groups=2), False),
        (nn.Conv2d(1, 4, 2, stride=2, bias=False), False),
    ],
)
def test_patches_are_read_by_a_convolution_without_overlap(layer, found) -> None:
    module = nn.Sequential(nn.Identity(), layer, nn.Conv2d(4, 4, 2, stride=2))
    assert (patches._projection(module) is not None) is found


def reconstruction(losses: list[list[float]], value: float) -> Any:
    n = len(losses)
    images, labels = torch.full((n, 1, 1, 1, 1), value), torch.full((n, 1), int(value))
    return attack.da.Reconstruction(images, labels, torch.tensor(losses), ())


def test_the_lesser_loss_is_taken_victim_by_victim() -> None:
    exact = reconstruction([[0.1], [0.9], [0.5]], 1.0)
    optimised = reconstruction([[0.2, 0.3], [0.8, 0.95], [0.5, 0.6]], 2.0)
    found = attack._better(exact, optimised)
    assert found.images.flatten().tolist() == [1.0, 2.0, 2.0]
    assert found.labels.flatten().tolist() == [1, 2, 2]
    assert found.losses[0].tolist() == pytest.approx([0.2, 0.3, 0.1])
    nothing = reconstruction([[float("inf")]] * 3, 1.0)
    assert attack._better(nothing, optimised) is optimised


def test_what_equations_do_not_give_has_an_infinite_loss(monkeypatch) -> None:
    def loss(points: Tensor, victim: Tensor) -> Tensor:
        return points.sum(1) + 10 * victim

    monkeypatch.setattr(attack, "_objective", lambda *_: loss)
    observed: Any = SimpleNamespace(batch_size=1, gradients=torch.zeros(3, 2))
    task: Any = SimpleNamespace(shape=(1, 1, 2))
    chosen: Any = SimpleNamespace(notes=("n",))
    image = torch.tensor([[[[1.0, 2.0]]]])
    given: Any = [
        ExactBatch(image, torch.tensor([4])),
        NotObservable("DPA055", "none"),
        ExactBatch(image * torch.nan, torch.tensor([5])),
    ]
    found = attack._scored(given, observed, task, chosen)
    assert found.losses.flatten().tolist() == [3.0, float("inf"), float("inf")]
    assert found.labels.flatten().tolist() == [4, 0, 5]


@pytest.mark.parametrize(
    ("shape", "gradients", "models", "said"),
    [
        ((1, 2, 2), [[1.0], [2.0]], [[1.0], [2.0]], None),
        ((4,), [[1.0], [2.0]], [[1.0], [2.0]], "needs images"),
        ((1, 2, 2), [[1.0], [float("nan")]], [[1.0], [2.0]], "gradient of victim 1 of 2"),
        ((1, 2, 2), [[1.0], [2.0]], [[float("inf")], [2.0]], "model of victim 0 of 2"),
    ],
)
def test_only_images_and_finite_numbers_are_attacked(shape, gradients, models, said) -> None:
    observed: Any = SimpleNamespace(gradients=torch.tensor(gradients), models=torch.tensor(models))
    task: Any = SimpleNamespace(shape=shape)
    if said is None:
        attack._check(observed, task)
    else:
        with pytest.raises(DpauditError, match=said):
            attack._check(observed, task)


@pytest.mark.parametrize(
    ("sizes", "n", "steps"),
    [([3, 3, 3], 7, [3, 3, 1]), ([3, 3], 6, [3, 3]), ([4], 2, [2]), ([2, 2, 2, 2], 4, [2, 2])],
)
def test_the_first_pass_takes_each_record_once(sizes, n, steps) -> None:
    assert local.one_pass(SimpleNamespace(sizes=sizes), n) == steps  # type: ignore[arg-type]


def test_labels_are_dealt_out_over_steps() -> None:
    observed: Any = SimpleNamespace(local=SimpleNamespace(sizes=[2, 2, 1]), batch_size=5)
    labels = torch.tensor([[0, 1, 2, 3, 4]])
    assert local.dealt(labels, observed).tolist() == [[0, 3, 1, 4, 2]]
    observed.local = None
    assert local.dealt(labels, observed) is labels


def test_few_records_are_tried_in_all_orders() -> None:
    assert len(list(local._changes([2, 1]))) == 6
    many = local._changes([2, 2, 2])  # of which 720 orders there are: exchanges between steps
    first = [next(many) for _ in range(12)]
    assert first[0] == [2, 1, 0, 3, 4, 5]
    assert all(sorted(order) == list(range(6)) for order in first)
    assert [1, 0, 2, 3, 4, 5] not in first
    assert next(many) == first[0]  # twelve pairs are of different steps


def test_orders_within_a_step_are_one() -> None:
    tried = torch.tensor([[0, 1, 2], [1, 0, 2], [0, 2, 1], [2, 1, 0]])
    found = local._distinct(tried, [2, 1])
    assert found.tolist() == [[0, 1, 2], [0, 2, 1], [2, 1, 0]] + [[0, 1, 2]] * 5


def test_memory_is_of_records_and_of_steps(monkeypatch) -> None:
    model = torch.zeros(10, dtype=torch.float64)  # 80 bytes, of 8 copies for each record
    observed: Any = SimpleNamespace(models=model[None], batch_size=3, local=None)
    assert local._graph(observed, 3) == 80 * 24
    observed.local = SimpleNamespace(sizes=[3, 2])
    assert local._graph(observed, 3) == 80 * (24 + 16)
    monkeypatch.setattr(local, "_MEMORY", 80 * (40 + 16) * 3)
    assert local.at_once(observed, 1) == 3
    assert local.at_once(observed, 3) == 1
    assert local.at_once(observed, 4) == 1  # of a step at a time: 40 for each
    with pytest.raises(DpauditError, match="2 local steps of up to 3"):
        local.at_once(observed, 5)
    observed.local = None
    assert local.at_once(observed, 100) == 1


def test_passes_disagree_by_their_mean_images() -> None:
    images = torch.tensor([[1.0, 3.0, 2.0, 6.0]])[..., None]  # of means 2 and 4
    assert local.disagreement(images, 2).tolist() == [1.0]
    assert local.disagreement(images, 1).tolist() == [0.0]


def test_passes_are_matched_within_a_label() -> None:
    images = torch.tensor([[0.0, 10.0, 9.0, 1.0]])[..., None, None, None]
    alike, apart = torch.tensor([[5, 5, 5, 5]]), torch.tensor([[5, 6, 5, 6]])
    assert local.merged(images, alike, 2).flatten().tolist() == [0.5, 9.5]
    assert local.merged(images, apart, 2).flatten().tolist() == [4.5, 5.5]


@dataclass(frozen=True)
class Observed:
    models: Any
    gradients: Any
    local: Any


def test_halfway_is_half_of_all_steps_back() -> None:
    own: Any = Observed(vector(1.0), vector(3.0), SimpleNamespace(factor=0.5))
    assert local.halfway(own).models.tolist() == [0.25]
    assert local.halfway(own).local is None
    still: Any = Observed(vector(1.0), vector(3.0), None)
    assert local.halfway(still) is still
