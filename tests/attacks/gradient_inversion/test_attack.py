"""Gradient inversion finds a planted leak, finds nothing in noise, and looks at its own loss alone."""

import copy
import math
from functools import partial

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import one_hot

from dpaudit.attack.image_metrics import blind, score
from dpaudit.attack.observed import ObservedGradients, Task
from dpaudit.attacks.gradient_inversion.attack import GradientInversion
from dpaudit.attacks.gradient_inversion.objective import Objective
from dpaudit.attacks.gradient_inversion.search import LBFGS, Adam, Problems, minimise
from dpaudit.data.datasets import Dataset, load_dataset
from dpaudit.errors import NotObservable
from dpaudit.models.gradients import Gradients
from dpaudit.models.models import build_network, initial_parameters
from dpaudit.rng import Streams

STREAMS = Streams(20240611)
SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits", seed=1)


def task_of(dataset: Dataset, network: str) -> Task:
    shape = tuple(dataset.x.shape[1:])
    gradients = Gradients(build_network(network, shape, dataset.n_classes))
    return Task(gradients, shape, dataset.n_classes, dataset.value_range)


def observe(
    task: Task, dataset: Dataset, m: int, batch_size: int, std: float = 0.0
) -> tuple[ObservedGradients, Tensor, Tensor]:
    """What m victims at m initial models send, with their images and labels."""
    module = task.gradients.module
    models = torch.stack([initial_parameters(module, STREAMS("model", i)) for i in range(m)])
    rows = torch.arange(m * batch_size).view(m, batch_size)
    images, labels = dataset.x[rows], dataset.y[rows]
    sums = task.gradients.clipped_sum(models, images, labels, 2.0)
    noise = std * torch.randn(sums.shape, generator=STREAMS("noise"))
    return ObservedGradients((sums + noise) / batch_size, models, batch_size, 2.0), images, labels


def attack(**options) -> GradientInversion:
    return GradientInversion(message="cross_gradient", rounds=(1,), **options)


def reconstruct(task, observed, **options):
    return attack(**options).reconstruct(observed, task, STREAMS, lambda done, total: None)


@pytest.mark.parametrize(
    "network, options",
    [
        pytest.param("lenet", {"iterations": 200}, marks=SLOW),
        (
            "mlp",
            {"optimizer": "lbfgs", "objective": "cosine", "total_variation": 0.0, "iterations": 60},
        ),
        pytest.param(
            *("mlp", {"objective": "cosine", "total_variation": 1e-3, "iterations": 200}),
            marks=SLOW,
        ),
    ],
)
def test_an_image_is_read_off_its_gradient_if_there_is_no_noise(digits, network, options) -> None:
    task = task_of(digits, network)
    observed, images, labels = observe(task, digits, m=4, batch_size=1)
    found = reconstruct(task, observed, **options)
    assert torch.equal(found.labels, labels)
    assert score(images, found.images, digits.value_range).ssim.mean() > 0.8
    assert found.images.min() >= -1
    assert found.images.max() <= 1


def test_an_unknown_factor_does_not_help_the_victim(digits) -> None:
    task = task_of(digits, "mlp")
    observed, images, _ = observe(task, digits, m=3, batch_size=1)
    scaled = ObservedGradients(7.5 * observed.gradients, observed.models, 1, 2.0)
    found = reconstruct(task, scaled, iterations=200)
    assert score(images, found.images, digits.value_range).ssim.mean() > 0.8


def test_pure_noise_gives_no_better_than_a_blind_guess(digits) -> None:
    """The gradient is 1e-3 of the noise: an attack that scored above blind here would be cheating.

    The noise is one fixed draw; SSIM of an image that is independent of the truth has mean near 0,
    against 0.4 and more of the mean image, which is how far this is from failing.
    """
    task = task_of(digits, "mlp")
    observed, images, labels = observe(task, digits, m=8, batch_size=1, std=100.0)
    found = reconstruct(task, observed, iterations=60)
    guess = blind(labels, digits.x_test, digits.y_test, STREAMS("blind")).mean_image
    ours = score(images, found.images, digits.value_range).ssim.mean()
    assert ours < score(images, guess, digits.value_range).ssim.mean()


@pytest.mark.slow
def test_the_restart_is_chosen_by_the_attackers_own_loss(digits) -> None:
    task = task_of(digits, "lenet")
    observed, _, _ = observe(task, digits, m=3, batch_size=1)
    found = reconstruct(task, observed, restarts=3, iterations=40)
    assert found.losses.shape == (3, 3)
    loss = Objective(observed, task, found.labels, "l1", 0.02)
    losses = loss(found.images.flatten(1), torch.arange(3))
    torch.testing.assert_close(losses, found.losses.amin(1), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("objective", ["l1", "cosine", "chord", "euclidean"])
def test_the_truth_has_no_loss(digits, objective) -> None:
    task = task_of(digits, "lenet")
    observed, images, labels = observe(task, digits, m=3, batch_size=4)
    loss, victims = Objective(observed, task, labels, objective, 0.0), torch.arange(3)
    assert loss(images.flatten(1), victims).max() < 1e-5
    assert loss(images.roll(1, 0).flatten(1), victims).min() > 0.1  # of another victim


def test_total_variation_is_the_mean_step_between_neighbours(digits) -> None:
    task = task_of(digits, "lenet")
    observed, images, labels = observe(task, digits, m=2, batch_size=3)
    both, points = torch.arange(2), images.flatten(1)
    plain, smooth = (Objective(observed, task, labels, "l1", w)(points, both) for w in (0.0, 0.5))
    x = images.numpy()
    steps = [np.abs(np.diff(x, axis=a)).mean(axis=(1, 2, 3, 4)) for a in (-1, -2)]
    np.testing.assert_allclose((smooth - plain).detach(), 0.5 * (steps[0] + steps[1]), rtol=1e-3)


def test_the_images_do_not_depend_on_how_problems_are_chunked(digits, monkeypatch) -> None:
    task = task_of(digits, "lenet")
    observed, _, _ = observe(task, digits, m=3, batch_size=1)
    options = {"restarts": 2, "iterations": 10, "objective": "euclidean", "signed": False}
    whole = reconstruct(task, observed, **options)
    monkeypatch.setattr("dpaudit.attacks.gradient_inversion.local._MEMORY", 1)
    steps: list[tuple[int, int]] = []
    one_by_one = attack(**options).reconstruct(observed, task, STREAMS, lambda *s: steps.append(s))
    torch.testing.assert_close(one_by_one.images, whole.images, rtol=1e-3, atol=1e-3)
    assert steps == sorted(steps)
    assert steps[-1] == (30, 30)


def test_every_problem_stops_at_rounding(digits) -> None:
    task = task_of(digits, "mlp")
    observed, images, _ = observe(task, digits, m=1, batch_size=1)
    evaluations = 0

    class Counted(Gradients):
        def clipped_sum(self, *args, **kwargs) -> Tensor:
            nonlocal evaluations
            evaluations += 1
            return super().clipped_sum(*args, **kwargs)

    task = Task(Counted(task.gradients.module), task.shape, task.n_classes, task.value_range)
    options = {"optimizer": "lbfgs", "objective": "cosine", "total_variation": 0.0}
    found = reconstruct(task, observed, iterations=5000, restarts=1, **options)
    assert found.losses.max() < 1e-11
    assert evaluations < 1000
    assert score(images, found.images, digits.value_range).ssim > 0.99


@pytest.mark.slow
def test_labels_the_last_layer_hides_are_searched_too(digits) -> None:
    torch.manual_seed(3)
    module = torch.nn.Sequential(torch.nn.Conv2d(1, 10, 8), torch.nn.Flatten())
    task, observed = observed_of(module, digits)
    found = reconstruct(task, observed)
    assert torch.equal(found.labels, digits.y[:1, None])
    assert score(digits.x[None, :1], found.images, digits.value_range).ssim > 0.5
    assert any("ends in Conv2d: they were searched" in note for note in found.notes)
    with pytest.raises(NotObservable, match="last linear layer; this network ends in Conv2d\n"):
        reconstruct(task, observed, method="optimised", labels="inferred")


@pytest.mark.parametrize(
    "after",
    [
        torch.nn.Tanh(),
        *(pytest.param(f, marks=SLOW) for f in (torch.nn.Sigmoid(), torch.nn.ReLU())),
    ],
)
def test_labels_follow_from_a_last_layer_without_a_bias(after, digits) -> None:
    torch.manual_seed(3)
    module = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 32), after, torch.nn.Linear(32, 10, bias=False),
        torch.nn.LogSoftmax(dim=1),
    )  # fmt: skip
    task = Task(Gradients(module.to("meta")), (1, 8, 8), 10, digits.value_range)
    for m, batch_size, right in ((40, 1, 40), (10, 4, 38)):  # by chance 0.1 and 0.3 of them
        observed, _, labels = observe(task, digits, m, batch_size)
        found = reconstruct(task, observed, method="optimised", iterations=1).labels
        by_class = [one_hot(each, 10).sum(1) for each in (found, labels)]
        assert torch.minimum(*by_class).sum() >= right


def observed_of(module: torch.nn.Module, digits: Dataset) -> tuple[Task, ObservedGradients]:
    x, y = digits.x[:1], digits.y[:1]
    torch.nn.functional.cross_entropy(module(x), y).backward()
    gradient = torch.cat([p.grad.flatten() for p in module.parameters()])[None]
    model = torch.nn.utils.parameters_to_vector(module.parameters()).detach()[None]
    task = Task(Gradients(copy.deepcopy(module).to("meta")), (1, 8, 8), 10, digits.value_range)
    return task, ObservedGradients(gradient, model, 1, None)


class _Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = torch.nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x[:, 0]
        return self.head(self.attention(rows, rows, rows, need_weights=False)[0].mean(1))


def test_images_of_a_network_with_attention_are_searched(digits, recwarn) -> None:
    """torch's fast attention has no second derivatives, which the search takes, and no batches."""
    task, observed = observed_of(_Attention(), digits)
    found = reconstruct(task, observed, iterations=3, restarts=1)
    assert found.images.isfinite().all()
    assert not [w for w in recwarn if "performance drop" in str(w.message)]


def test_labels_of_single_records_are_exact_without_noise(digits) -> None:
    task = task_of(digits, "lenet")
    observed, _, labels = observe(task, digits, m=12, batch_size=1)
    assert torch.equal(reconstruct(task, observed, iterations=1).labels, labels)


@pytest.mark.slow
def test_most_labels_of_a_batch_are_counted_right_without_noise(digits) -> None:
    task = task_of(digits, "mlp")
    observed, _, labels = observe(task, digits, m=5, batch_size=8)
    guessed = reconstruct(task, observed, iterations=1).labels
    counts = [torch.stack([r.bincount(minlength=10) for r in rows]) for rows in (guessed, labels)]
    found = torch.minimum(*counts).sum(1).float() / 8
    assert found.mean() > 0.8  # by chance, with 10 classes, about 0.45


def quadratic(H: Tensor, c: Tensor, points: Tensor, problems: Tensor) -> Tensor:
    d = points - c[problems]
    return (d * torch.einsum("kij,kj->ki", H[problems], d)).sum(1)


@pytest.mark.parametrize(
    "minimise",
    [
        partial(minimise, method=LBFGS(), n_steps=30, on_step=lambda d, t: None),
        partial(minimise, method=Adam(0.1, False), n_steps=30, on_step=lambda d, t: None),
    ],
)
def test_problems_solved_together_are_solved_as_if_alone(minimise) -> None:
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(5, 6, 6, generator=generator, dtype=torch.float64)
    H, c = A @ A.mT + torch.eye(6), torch.randn(5, 6, generator=generator, dtype=torch.float64)
    start, box = torch.zeros(5, 6, dtype=torch.float64), (-5.0, 5.0)
    together = minimise(Problems(partial(quadratic, H, c), start, box, 1e-14))
    for i in range(5):
        one = Problems(partial(quadratic, H[i : i + 1], c[i : i + 1]), start[:1], box, 1e-14)
        alone = minimise(one)
        torch.testing.assert_close(together.points[i], alone.points[0], rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(together.losses[i], alone.losses[0], rtol=1e-6, atol=1e-13)


@pytest.mark.parametrize("box", [(-5.0, 5.0), (-1.0, 0.3)])
def test_lbfgs_finds_the_minimum_that_scipy_finds_in_the_box(box) -> None:
    generator = torch.Generator().manual_seed(1)
    A = torch.randn(4, 6, 6, generator=generator, dtype=torch.float64)
    H = A @ A.mT + torch.eye(6)
    c = torch.rand(4, 6, generator=generator, dtype=torch.float64)
    start = torch.full((4, 6), -0.5, dtype=torch.float64)
    problems = Problems(partial(quadratic, H, c), start, box, 0.0)
    found = minimise(problems, LBFGS(), 200, lambda d, t: None)
    for i in range(4):
        h, k = H[i].numpy(), c[i].numpy()
        reference = minimize(
            lambda x, h=h, k=k: ((x - k) @ h @ (x - k), 2 * h @ (x - k)),
            start[i].numpy(),
            jac=True,
            method="L-BFGS-B",
            bounds=[box] * 6,
            options={"ftol": 1e-15, "gtol": 1e-12},
        )
        np.testing.assert_allclose(found.points[i], reference.x, atol=1e-5)
        assert found.losses[i] <= reference.fun + 1e-9


@pytest.mark.parametrize("signed", [False, True])
def test_adam_is_that_of_pytorch_with_cosine_and_projection(signed) -> None:
    generator = torch.Generator().manual_seed(2)
    H = torch.eye(3, dtype=torch.float64)[None] * torch.tensor([1.0, 5.0, 0.2])
    c = torch.randn(1, 3, generator=generator, dtype=torch.float64)
    start, n, box = torch.zeros(1, 3, dtype=torch.float64), 25, (-0.6, 0.6)
    problems = Problems(partial(quadratic, H, c), start, box, 0.0)
    found = minimise(problems, Adam(0.3, signed), n, lambda d, t: None)
    x = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([x], lr=0.3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, n)
    best, at = math.inf, start
    for _ in range(n + 1):
        optimizer.zero_grad()
        loss = quadratic(H, c, x, torch.tensor([0])).sum()
        if loss < best:
            best, at = loss.item(), x.detach().clone()
        loss.backward()
        if signed:
            x.grad.sign_()
        optimizer.step()
        scheduler.step()
        with torch.no_grad():
            x.clamp_(*box)
    torch.testing.assert_close(found.points, at)
    assert found.losses.item() == pytest.approx(best)


def test_a_loss_that_is_no_number_does_not_win() -> None:
    def sometimes_nan(points: Tensor, problems: Tensor) -> Tensor:
        loss = (points**2).sum(1)
        return torch.where(points[:, 0] < 0.5, loss * torch.nan, loss)

    start = torch.full((2, 3), 0.9, dtype=torch.float64)
    problems = Problems(sometimes_nan, start, (-1.0, 1.0), 0.0)
    found = minimise(problems, Adam(0.2, True), 40, lambda d, t: None)
    assert torch.isfinite(found.losses).all()
    assert (found.points[:, 0] >= 0.5).all()


@pytest.mark.slow
def test_the_same_streams_give_the_same_images(digits) -> None:
    task = task_of(digits, "mlp")
    observed, _, _ = observe(task, digits, m=2, batch_size=2)
    first, second = (reconstruct(task, observed, iterations=5) for _ in range(2))
    assert torch.equal(first.images, second.images)
