"""Several noisy gradients of one batch, explained together."""

from dataclasses import replace

import pytest
import torch
from scipy.stats import chi2
from torch import Tensor

from dpaudit.attack.image_metrics import score
from dpaudit.attack.observed import ObservedGradients, Reconstruction, Task
from dpaudit.attacks.gradient_inversion.attack import GradientInversion
from dpaudit.attacks.gradient_inversion.objective import Objective
from dpaudit.attacks.gradient_inversion.plan import capacity, plan
from dpaudit.data.datasets import Dataset, load_dataset
from dpaudit.models.gradients import Gradients
from dpaudit.models.models import build_network, initial_parameters
from dpaudit.rng import Streams

STREAMS = Streams(20250117)
FALSE_FAILURE = 1e-9


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits", seed=1)


def task_of(network: str, value_range: tuple[float, float] = (-1.0, 1.0)) -> Task:
    return Task(Gradients(build_network(network, (1, 8, 8), 10)), (1, 8, 8), 10, value_range)


def reconstruct(task: Task, observed: ObservedGradients, **options: object) -> Reconstruction:
    attack = GradientInversion(message="view", rounds=(1,), **options)
    return attack.reconstruct(observed, task, STREAMS, lambda done, total: None)


def joined(
    task: Task,
    models: Tensor,
    images: Tensor,
    labels: Tensor,
    std: float,
    clip_norm: float | None = 2.0,
) -> ObservedGradients:
    """What r models [r, d] are answered about each of n batches [n, b, ...], batch after batch."""
    n, b, r = *images.shape[:2], len(models)
    secrets = torch.arange(n).repeat_interleave(r)
    at = models.repeat(n, 1)
    sums = task.gradients.clipped_sum(at, images[secrets], labels[secrets], clip_norm)
    noise = std * torch.randn(at.shape, generator=STREAMS("noise"))
    return ObservedGradients(sums / b + noise, at, b, clip_norm, torch.full((n * r,), std), secrets)


def only(observed: ObservedGradients, which: int, r: int) -> ObservedGradients:
    """One gradient of each secret."""
    rows = torch.arange(observed.n_secrets) * r + which
    assert observed.std is not None
    return replace(
        observed,
        gradients=observed.gradients[rows],
        models=observed.models[rows],
        std=observed.std[rows],
        secrets=None,
    )


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.0, 0.3])
def test_the_error_of_a_linear_answer_falls_as_one_over_r(spread: float) -> None:
    """Where W = 0, dL/dW = (softmax(c) - e_y) x' is linear in the image.

    Then least squares has variance std^2 / sum_i |softmax(c_i) - e_y|^2 in each pixel, and the
    sum of squares over 8 images of 64 pixels a chi-squared distribution. ``spread`` of the biases
    c_i: 0 asks all at one model, where gradients are averaged before.
    """
    n, r, std = 8, 4, 0.02
    task = task_of("logistic", (-9.0, 9.0))
    generator = torch.Generator().manual_seed(3)
    images = 0.5 * torch.randn(n, 1, 1, 8, 8, generator=generator)
    labels = torch.randint(10, (n, 1), generator=generator)
    models = torch.zeros(r, task.gradients.d)
    models[:, -10:] = spread * torch.randn(r, 10, generator=generator)
    observed = joined(task, models, images, labels, std, clip_norm=None)
    options = {"method": "optimised", "optimizer": "lbfgs", "total_variation": 0.0}
    slopes = models[:, -10:].softmax(1) - torch.eye(10)[labels]  # [n, r, 10]
    for sent, used in ((observed, r), (only(observed, 0, r), 1)):
        found = reconstruct(task, sent, iterations=20, **options)
        assert torch.equal(found.labels, labels)
        information = slopes[:, :used].square().sum((1, 2)) / std**2
        errors = (found.images - images).square().flatten(1).sum(1)
        statistic = float((errors * information).sum())
        low, high = chi2(n * 64).ppf([FALSE_FAILURE / 2, 1 - FALSE_FAILURE / 2])
        assert low < statistic < high


@pytest.mark.slow
def test_joined_images_beat_the_best_single_gradient(digits: Dataset) -> None:
    """Eight digits, three models near each other, noise of a tenth of the gradient; one seed."""
    n, r = 8, 3
    task = task_of("lenet")
    images, labels = digits.x[:n, None], digits.y[:n, None]
    start = initial_parameters(task.gradients.module, STREAMS("model", 0))
    steps = 0.05 * torch.randn(r, len(start), generator=STREAMS("steps"))
    bare = joined(task, start + steps, images, labels, 0.0)
    std = 0.1 * float(bare.gradients.square().mean().sqrt())
    sent = joined(task, start + steps, images, labels, std)
    options = {"method": "optimised", "iterations": 150, "restarts": 1}
    singles = [reconstruct(task, only(sent, i, r), **options).images for i in range(r)]
    together = reconstruct(task, sent, **options).images
    psnr = [score(images, found, digits.value_range).psnr.mean() for found in (*singles, together)]
    assert psnr[-1] >= max(psnr[:-1])


def test_likelihoods_add_up_and_other_mismatches_are_averaged(digits: Dataset) -> None:
    task = task_of("mlp")
    images, labels = digits.x[:2, None], digits.y[:2, None]
    starts = [initial_parameters(task.gradients.module, STREAMS("model", i)) for i in range(3)]
    sent = joined(task, torch.stack(starts), images, labels, 0.01)
    sent = replace(sent, std=torch.tensor([0.01, 0.02, 0.04, 0.01, 0.01, 0.01]))
    points, victims = images.roll(1, 0).flatten(1), torch.tensor([0, 1])
    for mismatch, share in (("likelihood", 1.0), ("euclidean", 1 / 3), ("l1", 1 / 3)):
        together = Objective(sent, task, labels, mismatch, 0.0)(points, victims)
        alone = [
            Objective(only(sent, i, 3), task, labels, mismatch, 0.0)(points, victims)
            for i in range(3)
        ]
        torch.testing.assert_close(together, share * torch.stack(alone).sum(0))


def test_an_exact_attack_takes_the_least_noisy_gradient(digits: Dataset) -> None:
    task = task_of("mlp")
    images, labels = digits.x[:3, None], digits.y[:3, None]
    starts = [initial_parameters(task.gradients.module, STREAMS("model", i)) for i in range(2)]
    bare = joined(task, torch.stack(starts), images, labels, 0.0)
    loud = bare.gradients + torch.randn(bare.gradients.shape, generator=STREAMS("loud"))
    quiet = torch.tensor([False, True]).repeat(3)
    sent = replace(
        bare,
        gradients=torch.where(quiet[:, None], bare.gradients, loud),
        std=torch.where(quiet, 1e-6, 1.0),
    )
    found = reconstruct(task, sent, method="exact")
    assert torch.equal(found.labels, labels)
    assert score(images, found.images, digits.value_range).psnr.min() > 55


@pytest.mark.slow
def test_labels_of_a_batch_are_counted_over_all_its_gradients(digits: Dataset) -> None:
    """Noise as large as the bias's entries hides labels from one gradient, not from sixteen."""
    task = task_of("mlp")
    images, labels = digits.x[:20, None], digits.y[:20, None]
    starts = [initial_parameters(task.gradients.module, STREAMS("model", i)) for i in range(16)]
    sent = joined(task, torch.stack(starts), images, labels, 0.3)
    options = {"method": "optimised", "iterations": 1, "restarts": 1}
    right = [
        (reconstruct(task, observed, **options).labels == labels).float().mean()
        for observed in (only(sent, 0, 16), sent)
    ]
    assert right[1] == 1
    assert right[0] < 0.9


def test_what_gradients_carry_adds_up_before_giving_up(digits: Dataset) -> None:
    task = task_of("lenet")
    images, labels = digits.x[:1, None], digits.y[:1, None]
    starts = [initial_parameters(task.gradients.module, STREAMS("model", i)) for i in range(8)]
    bare = joined(task, torch.stack(starts), images, labels, 0.0)
    power = bare.gradients.square().mean()
    for times in (2, 4, 8, 16, 32, 64):
        std = torch.full((8,), float(power.sqrt()) * times)
        noise = std[:, None] * torch.randn(bare.gradients.shape, generator=STREAMS("loud"))
        sent = replace(bare, gradients=bare.gradients + noise, std=std)
        bits = capacity(sent, std) / 64
        if bits.max() < 0.1 < bits.sum():
            break
    else:
        pytest.fail("no noise hides an image from each gradient, and not from all")
    assert plan(only(sent, 0, 8), task).notes
    assert not plan(sent, task).notes
