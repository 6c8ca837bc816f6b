"""Images of vision transformers follow from one record's gradient, in closed form."""

import pytest
import torch

from dpaudit.attack.observed import ObservedGradients, Task
from dpaudit.attacks.gradient_inversion.attack import GradientInversion
from dpaudit.attacks.gradient_inversion.exact import recover
from dpaudit.attacks.gradient_inversion.patches import image_of_patches
from dpaudit.errors import NotObservable
from dpaudit.models.gradients import Gradients
from dpaudit.models.models import build_network, initial_parameters
from dpaudit.rng import Streams

STREAMS = Streams(20261126)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 16, 16)])
def test_an_image_follows_from_a_vision_transformer(shape) -> None:
    module = build_network("vit-tiny", shape, 10)
    task = Task(Gradients(module), shape, 10, (-1.0, 1.0))
    x = initial_parameters(module, STREAMS("model"))
    image = 2 * torch.rand(1, 1, *shape, generator=STREAMS("image")) - 1
    g = task.gradients.clipped_sum(x[None], image, torch.tensor([[7]]), 0.01)  # a factor cancels
    observed = ObservedGradients(g, x[None], 1, 0.01)
    (found,) = recover(observed, task, STREAMS)
    assert not isinstance(found, NotObservable)
    torch.testing.assert_close(found.images[None], image, atol=2e-3, rtol=0)
    assert found.labels.tolist() == [7]
    attack = GradientInversion(message="gradient", rounds=(1,), method="exact")
    assert attack.reconstruct(observed, task, STREAMS, lambda done, total: None).labels[0] == 7


def test_networks_without_position_embeddings_are_left_out() -> None:
    for name in ("lenet", "mlp"):
        module = build_network(name, (1, 8, 8), 10)
        task = Task(Gradients(module), (1, 8, 8), 10, (-1.0, 1.0))
        assert image_of_patches(task, torch.ones(task.gradients.d)) is None


def test_patches_of_one_gradient_are_refused_in_a_line() -> None:
    module = build_network("vit-tiny", (1, 8, 8), 10)
    task = Task(Gradients(module), (1, 8, 8), 10, (-1.0, 1.0))
    gradient = torch.zeros(task.gradients.d)
    sizes = {name: p.numel() for name, p in module.named_parameters()}
    first = 0
    for name, size in sizes.items():
        if name == "patches.bias":
            gradient[first : first + size] = 4.0
        elif name.endswith("offset"):
            gradient[first : first + size] = 1.0
        first += size
    with pytest.raises(NotObservable, match="4 patches of an image receive gradients of rank 1"):
        image_of_patches(task, gradient)
