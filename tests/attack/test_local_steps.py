"""Simulated local training: torch's optimisers, their derivatives, and the outer step undone."""

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from dpaudit.attack.local_steps import DummyGradient, local_steps, outer_gradients
from dpaudit.files.local_training import LocalTraining
from dpaudit.models.gradients import Gradients
from dpaudit.models.models import build_network, initial_parameters, parameters_of

SIZES = (2, 1, 3)
OPTIMIZERS = [
    {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.01, "learning_rate": 0.1},
    {"optimizer": "sgd", "momentum": 0.9, "nesterov": True, "learning_rate": 0.1},
    {"optimizer": "adamw", "weight_decay": 0.1, "learning_rate": 0.01},
]


def problem() -> tuple[Gradients, Tensor, Tensor, Tensor]:
    """Two agents with six records each."""
    network = build_network("logistic", (1, 4, 4), 3)
    generator = torch.Generator().manual_seed(1)
    models = [initial_parameters(network, generator).double() for _ in range(2)]
    images = torch.rand(2, 6, 1, 4, 4, generator=generator).double()
    labels = torch.randint(3, (2, 6), generator=generator)
    return Gradients(network), torch.stack(models), images, labels


def by_torch(training: LocalTraining, gradients: Gradients, x: Tensor, images, labels) -> Tensor:
    x, module = x.clone().requires_grad_(), gradients.module
    options = {"lr": training.learning_rate, "weight_decay": training.weight_decay}
    if training.optimizer == "sgd":
        momentum, nesterov = training.momentum, training.nesterov
        chosen = torch.optim.SGD([x], momentum=momentum, nesterov=nesterov, **options)
    else:
        chosen = torch.optim.AdamW([x], **options)
    for a, y in zip(images.split(SIZES), labels.split(SIZES), strict=True):
        chosen.zero_grad()
        cross_entropy(functional_call(module, parameters_of(module, x), (a,)), y).backward()
        chosen.step()
    return x.detach()


@pytest.mark.parametrize("options", OPTIMIZERS)
def test_steps_are_those_of_the_optimizers_of_torch(options) -> None:
    gradients, X, images, labels = problem()
    training = LocalTraining(**options)
    oracle = DummyGradient(gradients, images, labels, SIZES)
    played = X - local_steps(training, SIZES).moved(oracle, X)
    for i in range(2):
        expected = by_torch(training, gradients, X[i], images[i], labels[i])
        torch.testing.assert_close(played[i], expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("options", OPTIMIZERS)
@pytest.mark.parametrize("clip_norm", [None, 0.3])
def test_slopes_through_all_steps_are_exact_both_ways(options, clip_norm) -> None:
    """Kept or computed again, they are the central difference along a direction."""
    gradients, X, images, labels = problem()
    simulation = local_steps(LocalTraining(**options), SIZES, clip_norm)
    along, V = torch.randn(images.shape).double(), torch.randn(X.shape).double()

    def what(images: Tensor, keeps: bool) -> Tensor:
        oracle = DummyGradient(gradients, images, labels, SIZES, keeps)
        return (simulation.mean_gradient(oracle, X) * V).sum()

    h, slopes = 1e-5, []
    for keeps in (True, False):
        dummies = images.clone().requires_grad_()
        slopes.append(torch.autograd.grad(what(dummies, keeps), dummies)[0])
    torch.testing.assert_close(*slopes, rtol=1e-10, atol=1e-12)
    difference = what(images + h * along, True) - what(images - h * along, True)
    expected = difference / (2 * h)
    torch.testing.assert_close((slopes[0] * along).sum(), expected, rtol=1e-5, atol=1e-7)


def test_the_factor_is_how_far_a_steady_gradient_moves() -> None:
    class Steady(DummyGradient):
        def clipped_sum(self, X, *arguments, **options):
            return self.batch_size * torch.ones_like(X)

    gradients, X, images, labels = problem()
    for options in OPTIMIZERS:
        training = LocalTraining(**{**options, "weight_decay": 0.0})
        steps = local_steps(training, SIZES)
        mean = steps.mean_gradient(Steady(gradients, images, labels, SIZES), X)
        torch.testing.assert_close(mean, torch.ones_like(X), rtol=1e-6, atol=0.0)


def test_outer_nesterov_steps_are_undone_to_rounding() -> None:
    """Those of ``torch.optim.SGD``, from its models alone."""
    generator = torch.Generator().manual_seed(2)
    along = torch.randn(6, 30, generator=generator).double()
    x = torch.randn(30, generator=generator).double().requires_grad_()
    outer = torch.optim.SGD([x], lr=0.7, momentum=0.9, nesterov=True)
    models = [x.detach().clone()]
    for one in along:
        x.grad = one.clone()
        outer.step()
        models.append(x.detach().clone())
    heard = torch.stack(models)
    torch.testing.assert_close(outer_gradients(heard, 0.7, 0.9), along, rtol=1e-12, atol=1e-13)
    late = (outer_gradients(heard[1:], 0.7, 0.9) - along[1:]).norm(dim=1)  # m is not 0 there
    torch.testing.assert_close(late[1:] / late[:-1], torch.full((4,), 0.9 / 1.9).double())


def test_options_of_another_optimizer_are_refused() -> None:
    for options, said in (
        ({"optimizer": "adamw", "momentum": 0.9}, 'momentum is no option of optimizer = "adamw"'),
        ({"optimizer": "sgd", "eps": 1e-8}, 'eps is no option of optimizer = "sgd"'),
        ({"optimizer": "sgd", "nesterov": True}, "nesterov needs a momentum"),
        ({"optimizer": "lion"}, "'sgd' or 'adamw'"),
    ):
        with pytest.raises(ValidationError, match=said):
            LocalTraining(learning_rate=0.1, **options)
