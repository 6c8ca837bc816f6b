"""What a network does to an image up to its first linear layer, seen by running it once."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from dpaudit.attack.observed import Task
from dpaudit.errors import NotObservable
from dpaudit.models.models import parameters_of


class Call(NamedTuple):
    """One layer at work on two images, with its parameters and their observed gradient."""

    layer: nn.Module
    input: Tensor  # [2, ...]
    output: Tensor  # [2, ...]
    parameters: dict[str, Tensor]  # those of this layer, as "weight" and "bias"
    gradient: dict[str, Tensor]


class Front(NamedTuple):
    """The layers before the first linear layer, in order, and that layer."""

    before: list[Call]
    linear: Call
    is_first: bool  # nothing but reshaping comes before it

    @property
    def augmented(self) -> Tensor:
        """The observed gradient of the linear layer's weight with its bias beside it, [m, n + 1].

        It is the sum over records of outer products of dL/dz [m] and (x, 1) [n + 1].
        """
        g = self.linear.gradient
        return torch.cat([g["weight"], g["bias"][:, None]], dim=1)


def front(task: Task, gradient: Tensor, model: Tensor) -> Front:
    """The front of the network, in float64.

    Args:
        gradient, model: [d].

    Raises:
        NotObservable: the gradient is not finite, no linear layer has a bias, or what comes before
            the first that has is no chain of layers, each fed with the output of the last.
    """
    if not gradient.isfinite().all():
        raise NotObservable(
            "DPA046", "an exact attack needs a finite gradient, got NaN or infinity"
        )
    images, calls = _run(task, gradient.double(), model.double())
    before: list[Call] = []
    fed = images
    for call in calls:
        if not _same(fed, call.input):
            raise NotObservable(
                "DPA055",
                f"an exact attack needs a chain of layers up to the first linear one; what feeds "
                f"the {type(call.layer).__name__} here is not the output of the layer before it",
            )
        if isinstance(call.layer, nn.Linear) and "bias" in call.parameters and call.input.ndim == 2:
            return Front(before, call, _same(images, call.input))
        before.append(call)
        fed = call.output
    raise NotObservable(
        "DPA055", "an exact attack starts at a linear layer with bias; this network has none"
    )


def _run(task: Task, gradient: Tensor, model: Tensor) -> tuple[Tensor, list[Call]]:
    """Two random images (batch normalisation needs two), and every layer at work, in order."""
    module = task.gradients.module
    values, slopes = parameters_of(module, model), parameters_of(module, gradient)
    calls: list[Call] = []

    def note(path: str, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        own = [name for name, _ in layer.named_parameters()]
        mine = ({n: flat[f"{path}.{n}".lstrip(".")] for n in own} for flat in (values, slopes))
        calls.append(Call(layer, inputs[0], output, *mine))

    leaves = [(p, m) for p, m in module.named_modules() if not any(True for _ in m.children())]
    hooks = [
        leaf.register_forward_hook(lambda layer, x, y, path=path: note(path, layer, x, y))
        for path, leaf in leaves
    ]
    generator = torch.Generator(model.device).manual_seed(0)
    images = torch.rand(
        (2, *task.shape), generator=generator, device=model.device, dtype=model.dtype
    )
    try:
        with torch.no_grad():
            functional_call(module, values, (images,))
    finally:
        for hook in hooks:
            hook.remove()
    return images, calls


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same numbers in the same order, whatever their shape."""
    return a.numel() == b.numel() and torch.equal(a.flatten(), b.flatten())
