"""What the attacker knows decides how it attacks, and its own loss how long."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from dpaudit.attack.image_metrics import score
from dpaudit.attack.local_steps import local_steps
from dpaudit.attack.observed import ObservedGradients, Task
from dpaudit.attack.scenario import frame_of
from dpaudit.attacks.gradient_inversion.attack import GradientInversion
from dpaudit.attacks.gradient_inversion.objective import Objective
from dpaudit.attacks.gradient_inversion.plan import capacity, plan
from dpaudit.attacks.gradient_inversion.search import LBFGS, Adam, Problems, minimise
from dpaudit.data.datasets import load_dataset
from dpaudit.errors import DpauditError
from dpaudit.files.local_training import LocalTraining
from dpaudit.models.gradients import Gradients
from dpaudit.models.models import build_network, initial_parameters
from dpaudit.rng import Streams

STREAMS = Streams(20240611)
DIGITS = load_dataset("digits", seed=1)
CONTRAST = float(sum(DIGITS.x_test.diff(dim=side).abs().mean() for side in (-1, -2)) / 2)


def smooth(shape: tuple[int, ...], n_classes: int) -> nn.Module:
    size = math.prod(shape)
    layers = (nn.Linear(size, 32), nn.Sigmoid(), nn.Linear(32, n_classes))
    return nn.Sequential(nn.Flatten(), *layers).to("meta")


def scene(
    module: nn.Module, m: int, batch_size: int, std: float | None, clip_norm: float | None = 2.0
) -> tuple[Task, ObservedGradients, Tensor, Tensor]:
    """What m victims send with noise of this size, and their images and labels."""
    shape = tuple(DIGITS.x.shape[1:])
    task = Task(Gradients(module), shape, 10, DIGITS.value_range, contrast=CONTRAST)
    models = torch.stack([initial_parameters(module, STREAMS("model", i)) for i in range(m)])
    rows = torch.arange(m * batch_size).view(m, batch_size)
    images, labels = DIGITS.x[rows], DIGITS.y[rows]
    sent = task.gradients.clipped_sum(models, images, labels, clip_norm) / batch_size
    noise = torch.randn(sent.shape, generator=STREAMS("noise")) * (std or 0.0)
    known = None if std is None else torch.full((m,), std)
    return (
        task,
        ObservedGradients(sent + noise, models, batch_size, clip_norm, known),
        images,
        labels,
    )


def lenet() -> nn.Module:
    return build_network("lenet", tuple(DIGITS.x.shape[1:]), 10)


TASK = Task(Gradients(lenet()), (1, 8, 8), 10, DIGITS.value_range, contrast=CONTRAST)


def reconstruct(task: Task, observed: ObservedGradients, **options):
    attack = GradientInversion(message="gradient", rounds=(1,), **options)
    return attack.reconstruct(observed, task, STREAMS, lambda done, total: None)


@pytest.mark.parametrize(
    "kinked, std, expected",
    [
        (True, None, ("l1", "adam")),
        (True, 0.0, ("chord", "adam")),
        (False, 0.0, ("euclidean", "lbfgs")),
        (True, 1e-6, ("chord", "adam")),
        (True, 1e-2, ("likelihood", "adam")),
        (False, 1e-2, ("likelihood", "adam")),
    ],
)
def test_what_is_known_of_noise_and_network_decides(kinked, std, expected) -> None:
    module = lenet() if kinked else smooth((1, 8, 8), 10)
    task, observed, _, _ = scene(module, 2, 1, std)
    chosen = plan(observed, task)
    assert (chosen.mismatch, chosen.optimizer) == expected


def test_without_noise_a_smooth_network_gives_the_image() -> None:
    task, observed, images, labels = scene(smooth((1, 8, 8), 10), 3, 1, 0.0)
    found = reconstruct(task, observed)
    assert torch.equal(found.labels, labels)
    assert score(images, found.images, DIGITS.value_range).psnr.min() > 50


def test_the_likelihood_of_the_truth_is_the_noise_power() -> None:
    """The mean over m d squares of standard normals: within 7 standard errors, 1e-11 of a miss."""
    task, observed, images, labels = scene(lenet(), 4, 2, 0.05)
    losses = Objective(observed, task, labels, "likelihood", 0.0)(
        images.flatten(1), torch.arange(4)
    )
    assert abs(float(losses.detach().mean()) - 1) < 7 * math.sqrt(2 / (4 * task.gradients.d))


def test_the_prior_weighs_what_bayes_rule_says() -> None:
    """d / 2 of the loss is -log of likelihood times prior: |s - t|^2 / 2 std^2 + sum |step| / b."""
    task, observed, images, labels = scene(lenet(), 2, 1, 0.05)
    points, victims, b = images.flatten(1), torch.arange(2), 0.25
    plain, both = (
        Objective(observed, task, labels, "likelihood", w)(points, victims) for w in (0.0, 1 / b)
    )
    steps = images.diff(dim=-1).abs().mean((1, 2, 3, 4)) + images.diff(dim=-2).abs().mean(
        (1, 2, 3, 4)
    )
    expected = steps * images[0].numel() / b  # half the value range is 1
    torch.testing.assert_close(
        (both - plain) * task.gradients.d / 2, expected, rtol=1e-3, atol=1e-3
    )


@pytest.mark.slow
@pytest.mark.parametrize("network", [pytest.param("lenet", marks=pytest.mark.slow), "mlp"])
def test_known_noise_is_worth_more_than_unknown_noise(network) -> None:
    """The same noisy gradients: the likelihood and its prior against the L1 mismatch.

    Fixed draws of noise, one to three times as long as the gradient; 8 images under each.
    """
    module = build_network(network, tuple(DIGITS.x.shape[1:]), 10)
    _, quiet, _, _ = scene(module, 8, 1, 0.0)
    length = float(quiet.gradients.norm(dim=1).mean()) / math.sqrt(quiet.gradients.shape[1])
    gains = []
    for times in (1.0, 1.5, 2.0, 3.0):
        task, observed, images, _ = scene(module, 8, 1, times * length)
        deaf = ObservedGradients(observed.gradients, observed.models, 1, 2.0)
        found = [reconstruct(task, o, iterations=60, method="optimised") for o in (observed, deaf)]
        known, unknown = (score(images, f.images, DIGITS.value_range).ssim for f in found)
        gains.append(known.mean() - unknown.mean())
    assert sum(gains) > 0


def test_where_few_bits_get_through_little_is_tried() -> None:
    task, observed, _, _ = scene(lenet(), 2, 1, 100.0)
    steps: list[int] = []
    attack = GradientInversion(message="gradient", rounds=(1,))
    found = attack.reconstruct(observed, task, STREAMS, lambda done, total: steps.append(total))
    assert max(steps) == 20
    assert "bits for each unknown pixel" in found.notes[0]


@pytest.mark.parametrize("batch_size, warned", [(2, False), (50, False), (51, True)])
def test_more_pixels_than_coordinates_are_warned_of(batch_size, warned) -> None:
    """LeNet on 8x8 digits has 156 + 2416 + 650 = 3222 parameters, and 50 images 3200 pixels."""
    task, observed, _, _ = scene(lenet(), 1, batch_size, None)
    assert any("does not determine" in note for note in plan(observed, task).notes) == warned


def test_capacity_is_shannons_within_the_clip_norm() -> None:
    """Gradients of length 1 in noise that is nothing beside them, then clipped to 1/1000."""
    d, std = 4000, 1e-4
    sent = torch.full((1, d), 1 / math.sqrt(d))
    models = torch.zeros(1, d)
    exact = d / 2 * math.log2(1 + 1 / (d * std**2))
    free = capacity(
        ObservedGradients(sent, models, 1, None, torch.tensor([std])), torch.tensor([std])
    )
    assert float(free) == pytest.approx(exact, rel=1e-3)
    bound = d / 2 * math.log2(1 + 1e-6 / (d * std**2))
    clipped = capacity(
        ObservedGradients(sent, models, 1, 1e-3, torch.tensor([std])), torch.tensor([std])
    )
    assert float(clipped) == pytest.approx(bound, rel=1e-3)


@pytest.mark.parametrize("std", [None, 0.0])
def test_the_likelihood_of_unknown_noise_is_refused(std) -> None:
    task, observed, _, _ = scene(lenet(), 1, 1, std)
    with pytest.raises(DpauditError, match=r"attack\.objective.*noise of a known size"):
        reconstruct(task, observed, objective="likelihood")


def test_a_gradient_that_is_not_finite_is_refused() -> None:
    task, observed, _, _ = scene(lenet(), 3, 1, None)
    observed.gradients[1, 5] = torch.nan
    with pytest.raises(DpauditError, match="the gradient of victim 1 of 3 has entries"):
        reconstruct(task, observed)


def test_targets_that_are_no_images_are_refused() -> None:
    task, observed, _, _ = scene(lenet(), 1, 1, None)
    with pytest.raises(DpauditError, match=r"needs images.*got records of shape \[64\]"):
        reconstruct(Task(task.gradients, (64,), 10, task.value_range), observed)


def test_labels_are_found_along_with_the_images() -> None:
    task, observed, images, labels = scene(smooth((1, 8, 8), 10), 2, 1, 0.0)
    found = reconstruct(task, observed, labels="joint")
    assert torch.equal(found.labels, labels)
    assert score(images, found.images, DIGITS.value_range).psnr.min() > 30


def coloured_prior(images: Tensor, frame: float | None = None) -> Tensor:
    """What the prior of weight 1 adds to the loss of images [1, 3, 8, 8], [1]."""
    shape = (3, 8, 8)
    gradients = Gradients(build_network("cnn-dpdl", shape, 10))
    task = Task(gradients, shape, 10, (-1.0, 1.0), frame=frame)
    model = initial_parameters(gradients.module, STREAMS("model"))[None]
    observed = ObservedGradients(torch.ones_like(model), model, 1, None, torch.zeros(1))
    labels, victim = torch.zeros(1, 1, dtype=torch.long), torch.tensor([0])
    plain, both = (Objective(observed, task, labels, "chord", w) for w in (0.0, 1.0))
    point = images.flatten()[None]
    return (both(point, victim) - plain(point, victim)).detach()


def steps_of(picture: Tensor) -> Tensor:
    return sum(picture.diff(dim=side).abs().mean() for side in (-1, -2))[None]


def test_colours_vary_at_three_times_the_price_of_brightness() -> None:
    """A grey picture costs what its one channel does, one in red alone 5/3 as much.

    Its mean channel is a third of that, from which the channels lie 2/3, 1/3 and 1/3 away: it
    costs 1/3 + 3 (4/9).
    """
    picture = DIGITS.x[:1]
    red = picture * torch.tensor([1.0, 0.0, 0.0])[:, None, None]
    torch.testing.assert_close(coloured_prior(picture.expand(1, 3, 8, 8)), steps_of(picture))
    torch.testing.assert_close(coloured_prior(red), 5 / 3 * steps_of(picture))


def test_the_frame_of_public_images_is_a_neighbour() -> None:
    picture = DIGITS.x[:1]
    framed = torch.full((1, 1, 10, 10), -0.5)
    framed[..., 1:-1, 1:-1] = picture
    prior = coloured_prior(picture.expand(1, 3, 8, 8), frame=-0.5)
    torch.testing.assert_close(prior, steps_of(framed))


@pytest.mark.parametrize("side", [(0,), (-1,), (slice(None), 0), (slice(None), -1)])
def test_a_border_is_a_frame_where_it_is_one_value(side: tuple) -> None:
    """One of 20 sides of 8 pixels has other ones; its corners belong to two sides."""
    images = torch.rand(5, 1, 8, 8, generator=STREAMS("images"))
    images[..., (0, -1), :] = 0.25
    images[..., (0, -1)] = 0.25
    assert frame_of(images, 0.0) == 0.25
    images[2, 0][side] += 0.64  # 10 / 160 of it on average
    assert frame_of(images, 0.041) == 0.25
    assert frame_of(images, 0.039) is None


def test_the_prior_grows_with_the_root_of_the_batch() -> None:
    one, four = (plan(scene(lenet(), 1, b, 0.0)[1], TASK) for b in (1, 4))
    assert four.total_variation == pytest.approx(2 * one.total_variation)


def test_a_coloured_record_gets_one_start_and_fewer_steps() -> None:
    _, observed, _, _ = scene(lenet(), 2, 1, 0.0)
    grey = plan(observed, TASK)
    coloured = plan(observed, replace(TASK, shape=(3, 8, 8)))
    assert (coloured.restarts, coloured.n_steps) == (1, 150)
    assert (grey.restarts, grey.n_steps) == (2, 300)


def test_local_steps_are_searched_without_signs() -> None:
    _, observed, _, _ = scene(lenet(), 2, 1, 0.0)
    local = local_steps(LocalTraining(optimizer="sgd", learning_rate=0.1), (1,))
    played = replace(observed, local=local)
    assert not plan(played, TASK).signed
    assert (plan(played, TASK).n_steps, plan(played, TASK).restarts) == (300, 2)
    coloured = plan(played, replace(TASK, shape=(3, 8, 8)))
    assert (coloured.n_steps, coloured.restarts) == (200, 1)
    assert plan(played, TASK, "l1").signed
    many = plan(replace(played, batch_size=10), TASK)
    assert (many.signed, many.n_steps) == (True, 150)
    assert plan(replace(played, local=local._replace(is_adaptive=True)), TASK).signed
    assert plan(observed, TASK).signed


@pytest.mark.slow
def test_a_batch_of_32_is_nearer_than_the_mean_of_public_images() -> None:
    """Optimised, on one draw of a perceptron. The mean gives 11.3 dB, and every label is told."""
    task, observed, images, labels = scene(build_network("mlp", (1, 8, 8), 10), 1, 32, 0.0)
    found = reconstruct(task, observed, iterations=60, method="optimised")
    blind = DIGITS.x_test.mean(0).expand_as(images)
    ours, theirs = (score(images, x, DIGITS.value_range).psnr for x in (found.images, blind))
    assert ours > theirs + 1
    assert torch.equal(found.labels.sort().values, labels.sort().values)


def bowls(points: Tensor, problems: Tensor) -> Tensor:
    """Minima of 0, 1, 2, ... at the origin."""
    return points.square().sum(1) + problems


def test_half_of_the_restarts_go_on_and_the_better_ones() -> None:
    seen: list[list[int]] = []

    def watched(points: Tensor, problems: Tensor) -> Tensor:
        seen.append(problems.tolist())
        return bowls(points, problems)

    groups = torch.tensor([0, 0, 0, 0, 1])
    problems = Problems(watched, torch.full((5, 2), 0.5), (-1.0, 1.0), -1.0, groups)
    minimise(problems, Adam(0.01, False), 8, lambda done, total: None)
    assert [seen[4], seen[5], seen[-1]] == [[0, 1, 2, 3, 4], [0, 1, 4], [0, 4]]


def test_a_group_with_a_solved_restart_is_left_alone() -> None:
    start = torch.tensor([[0.0, 0.0], [0.5, 0.5], [0.5, 0.5]])
    seen: list[list[int]] = []

    def watched(points: Tensor, problems: Tensor) -> Tensor:
        seen.append(problems.tolist())
        return points.square().sum(1) + 1e-3 * (problems == 2)

    problems = Problems(watched, start, (-1.0, 1.0), 1e-9, torch.tensor([0, 0, 1]))
    minimise(problems, Adam(0.01, False), 3, lambda done, total: None)
    assert seen == [[0, 1, 2], [2], [2], [2]]


def test_a_search_that_gains_nothing_ends() -> None:
    """|x|^4 over a floor of 1: L-BFGS gains less than 1% in 50 steps well before 1,000."""
    steps: list[int] = []
    floor = Problems(lambda x, i: 1 + x.pow(4).sum(1), torch.full((1, 3), 0.9), (-1.0, 1.0), 0.0)
    minimise(floor, LBFGS(), 1000, lambda done, total: steps.append(done))
    assert len(steps) <= 102  # and the last report, of all steps
