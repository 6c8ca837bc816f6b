"""Images that follow from a gradient by equations: exact where the message has no noise."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from dpaudit.attack.observed import ObservedGradients, Task
from dpaudit.errors import NotObservable
from dpaudit.models.models import parameters_of
from dpaudit.rng import Streams

from .recursion import Front, front, image_before, input_of_linear
from .sparse import separate

_OFF = 0.1  # least share of units that a random image leaves off, where there is a ReLU


class Recovered(NamedTuple):
    """One victim's batch."""

    images: Tensor  # [batch_size, *shape], within the value range
    labels: Tensor  # [batch_size]


def recover(
    observed: ObservedGradients, task: Task, streams: Streams
) -> list[Recovered | NotObservable]:
    """Each victim's batch, or why it does not follow from the gradient.

    One record is read off the first linear layer with bias, and taken back through the layers
    before that (`recursion`); a batch is told apart at a first linear layer with ReLU (`sparse`).
    Neither needs labels, the clip norm or the factor of the message. Noise is not refused where
    equations can still be solved: whether the images fit is for the attacker's loss to say.
    """
    batches: list[Recovered | NotObservable] = []
    for gradient, model in zip(observed.gradients, observed.models, strict=True):
        try:
            batches.append(_recover(observed.batch_size, task, gradient, model, streams))
        except NotObservable as reason:
            batches.append(reason)
    return batches


def _recover(b: int, task: Task, gradient: Tensor, model: Tensor, streams: Streams) -> Recovered:
    ahead = front(task, gradient, model)
    if b == 1:
        signal = input_of_linear(ahead)
        images, slopes = image_before(ahead, signal), ahead.augmented[:, -1:]
    else:
        _require_first_with_relu(task, model, ahead)
        images, slopes = separate(ahead, b, streams("attack", "exact"))
    images = images.view(b, *task.shape).clamp(*task.value_range).to(gradient)
    return Recovered(images, _labels(task, model, ahead, images, slopes))


def _labels(task: Task, model: Tensor, ahead: Front, images: Tensor, slopes: Tensor) -> Tensor:
    """The class with which each image answers most like the slopes seen of it, [b]."""
    answers = _answers(task, model, ahead, images).to(slopes)
    return F.cosine_similarity(answers, slopes.T[:, None], dim=2).argmax(1)


def _answers(task: Task, model: Tensor, ahead: Front, images: Tensor) -> Tensor:
    """The slopes that the first linear layer's units have at images, by their label, [b, c, m]."""
    outputs: list[Tensor] = []

    def begin_here(layer: nn.Module, inputs: tuple[Tensor, ...], z: Tensor) -> Tensor:
        outputs.append(z.detach().requires_grad_())
        return outputs[0]

    module = task.gradients.module
    hook = ahead.linear.layer.register_forward_hook(begin_here)
    try:
        with torch.enable_grad():
            logits = functional_call(module, parameters_of(module, model), (images,))
            totals = -logits.log_softmax(1).sum(0)
    finally:
        hook.remove()
    slopes = [torch.autograd.grad(t, outputs[0], retain_graph=True)[0] for t in totals]
    return torch.stack(slopes, dim=1)


def _require_first_with_relu(task: Task, model: Tensor, ahead: Front) -> None:
    if not ahead.is_first:
        raise NotObservable(
            "DPA055",
            "a batch is told apart at a linear layer that comes first; here other layers come "
            "before it",
        )
    low, high = task.value_range
    generator = torch.Generator(model.device).manual_seed(0)
    z = torch.rand((2, *task.shape), generator=generator, device=model.device).to(model)
    off = (_answers(task, model, ahead, low + (high - low) * z)[:, 0] == 0).double().mean()
    if off < _OFF:
        raise NotObservable(
            "DPA055",
            "a batch is told apart by the units of the first layer that a record leaves off; "
            "this network has no ReLU behind that layer",
        )
