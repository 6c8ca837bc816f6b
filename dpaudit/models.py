"""Networks by name, and their parameters to and from one flat vector [d].

A module built here is an architecture: it lives on the meta device and holds no numbers. Its
parameters are vectors, one per agent and trial, so that gossip is a matrix product; they meet the
architecture again in `dpaudit.gradients`.
"""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import Conv2d, Flatten, Linear, MaxPool2d, ReLU, Sequential

from dpaudit.errors import ConfigError, nearest

Shape = tuple[int, int, int]  # channels, height, width of one image


def build(name: str, shape: Shape, n_classes: int) -> nn.Module:
    """The network of this name, on the meta device: images [b, *shape] to logits [b, n_classes].

    Raises:
        ConfigError: no such network, or it cannot take images of this size.
    """
    if name not in _NETWORKS:
        raise ConfigError(f'no network is called "{name}"{nearest(name, _NETWORKS)}')
    with torch.device("meta"):
        return _NETWORKS[name](shape, n_classes)


def names() -> tuple[str, ...]:
    """Every name that `build` takes."""
    return tuple(sorted(_NETWORKS))


def n_parameters(module: nn.Module) -> int:
    """d, the length of the network's parameter vector."""
    return sum(p.numel() for p in module.parameters())


def unflatten(module: nn.Module, vectors: Tensor) -> dict[str, Tensor]:
    """The named parameters [..., *shape of each] inside vectors [..., d]: views, no copies."""
    sizes = [p.numel() for p in module.parameters()]
    parts = vectors.split(sizes, dim=-1)
    return {
        name: part.unflatten(-1, p.shape)
        for (name, p), part in zip(module.named_parameters(), parts, strict=True)
    }


def flatten(module: nn.Module, parameters: Mapping[str, Tensor]) -> Tensor:
    """Vectors [..., d] from named parameters [..., *shape of each]; inverse of `unflatten`."""
    parts = [parameters[n].flatten(-p.ndim) for n, p in module.named_parameters()]
    return torch.cat(parts, dim=-1)


def initial_parameters(module: nn.Module, generator: torch.Generator) -> Tensor:
    """One float32 vector [d] from PyTorch's default distributions, on the generator's device.

    Weights and biases of linear and convolutional layers are uniform within 1/sqrt(fan in).
    """
    vector = torch.empty(n_parameters(module), device=generator.device)
    parameters = unflatten(module, vector)
    for path, layer in module.named_modules():
        names = [name for name, _ in layer.named_parameters(recurse=False)]
        own = {name: parameters[f"{path}.{name}" if path else name] for name in names}
        if isinstance(layer, Linear | Conv2d):
            bound = 1 / math.sqrt(layer.weight[0].numel())
            for tensor in own.values():
                tensor.uniform_(-bound, bound, generator=generator)
        elif own:
            own["weight"].fill_(1)
            own["bias"].zero_()
    return vector


def _lenet(shape: Shape, n_classes: int) -> Sequential:
    padding = 2 if min(shape[1:]) < 16 else 0
    features = Sequential(
        Conv2d(shape[0], 6, 5, padding=padding), ReLU(), MaxPool2d(2),
        Conv2d(6, 16, 5, padding=padding), ReLU(), MaxPool2d(2), Flatten(),
    )  # fmt: skip
    return Sequential(*features, Linear(_width(features, shape), n_classes))


def _logistic(shape: Shape, n_classes: int) -> Sequential:
    return Sequential(Flatten(), Linear(math.prod(shape), n_classes))


def _mlp(shape: Shape, n_classes: int) -> Sequential:
    return Sequential(Flatten(), Linear(math.prod(shape), 64), ReLU(), Linear(64, n_classes))


def _width(features: nn.Module, shape: Shape) -> int:
    return features(torch.empty(1, *shape)).shape[1]


_NETWORKS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "lenet": _lenet,
    "logistic": _logistic,
    "mlp": _mlp,
}
