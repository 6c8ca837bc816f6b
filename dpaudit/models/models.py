"""Networks by name, and their parameters to and from one flat vector [d].

A module built here is an architecture: it lives on the meta device and holds no numbers. Its
parameters are vectors, one per agent and trial, so that gossip is a matrix product; they meet the
architecture again in `gradients`.
"""

import math
from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from dpaudit.errors import ConfigError, nearest

from .networks import NETWORKS, OF_ANY_SHAPE, PositionEmbedding, Shape, outputs

_LARGEST = 64  # pixels; the sides tried when an image is too small
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_GROUPS = 32  # of a GroupNorm at most, as Wu and He 2018, arXiv:1803.08494, have it


def build_network(name: str, shape: Shape, n_classes: int) -> nn.Module:
    """The network of this name, on the meta device: images [b, *shape] to logits [b, n_classes].

    Raises:
        ConfigError: no such network, or it cannot take records of this shape.
    """
    refuse_unknown_network(name)
    if name not in OF_ANY_SHAPE and len(shape) != 3:
        raise ConfigError(
            "DPA034",
            f"{name} takes images, not records of shape {list(shape)}; expected records [channels, "
            f"height, width], or one of the models {', '.join(sorted(OF_ANY_SHAPE))}",
        )
    if not shape or 0 in shape:
        raise ConfigError(
            "DPA034", f"{name} takes records of at least one number, not of shape {list(shape)}"
        )
    try:
        return _attempt(name, shape, n_classes)
    except (RuntimeError, ValueError):  # a layer finds less than its kernel, or nothing to average
        sides = range(1, _LARGEST)
        least = next((s for s in sides if _fits(name, (shape[0], s, s), n_classes)), _LARGEST)
    raise ConfigError(
        "DPA034", f"{name} needs images of at least {least}x{least}, got {shape[1]}x{shape[2]}"
    )


def refuse_unknown_network(name: str) -> None:
    """Raises ConfigError: no network has this name."""
    if name not in NETWORKS:
        known = f"{nearest(name, NETWORKS)}; known: {', '.join(NETWORKS)}"
        raise ConfigError("DPA006", f'no network is called "{name}"{known}')


def architecture(module: nn.Module, shape: Shape, n_classes: int) -> nn.Module:
    """A caller's own network without its numbers: a copy on the meta device.

    Raises:
        ConfigError: it keeps buffers, or has no parameters or some that are not trained, or does
            not turn images into one logit for each class.
    """
    name = type(module).__qualname__
    if buffers := [key for key, _ in module.named_buffers()]:
        raise ConfigError(
            "DPA036",
            f"{name} keeps state beside its parameters ({buffers[0]}), which agents cannot share; "
            "GroupNorm in the place of BatchNorm keeps none: give fix_model=True, or --fix-model",
        )
    if not n_parameters(module):
        raise ConfigError(
            "DPA035", f"{name} has no parameters; expected some, which agents train and send"
        )
    if frozen := [key for key, p in module.named_parameters() if not p.requires_grad]:
        raise ConfigError(
            "DPA035",
            f"{name} has parameters that are not to be trained ({frozen[0]}); defenses train and "
            "send all: leave them out, or call requires_grad_() on it",
        )
    copy = deepcopy(module).to("meta")
    try:
        logits = outputs(copy, shape)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            "DPA034", f"{name} cannot take records of shape {list(shape)}: {reason}"
        ) from None
    if not isinstance(logits, Tensor):
        raise ConfigError(
            "DPA035", f"{name} gives a {type(logits).__name__}; expected a tensor of logits"
        )
    if tuple(logits.shape) != (2, n_classes):
        raise ConfigError(
            "DPA035",
            f"{name} turns two records into {list(logits.shape)}; expected [2, {n_classes}], one "
            "logit for each class",
        )
    return copy


def with_group_norm(module: nn.Module) -> tuple[nn.Module, tuple[str, ...]]:
    """A copy of a network with a GroupNorm for each BatchNorm, and what was replaced.

    Channels are divided into as many groups as possible, at most 32, of two channels at least where
    their number allows it. Scale and offset of a layer are kept, its statistics are not.

    Returns:
        The copy, and for each layer "NAME: BatchNorm2d(16) by GroupNorm(8, 16)".
    """
    copy = deepcopy(module)
    replaced = []
    for path, layer in list(copy.named_modules()):
        if isinstance(layer, _BATCH_NORMS):
            norm = _group_norm(layer)
            if not path:
                copy = norm
            else:
                parent, _, name = path.rpartition(".")
                setattr(copy.get_submodule(parent), name, norm)
            n, kind = layer.num_features, type(layer).__name__
            where = path or "the network"
            replaced.append(f"{where}: {kind}({n}) by GroupNorm({norm.num_groups}, {n})")
    return copy, tuple(replaced)


def _group_norm(layer: Any) -> nn.GroupNorm:
    n = layer.num_features
    n_groups = max((g for g in range(1, _GROUPS + 1) if n % g == 0 and n >= 2 * g), default=1)
    device = None if layer.weight is None else layer.weight.device
    norm = nn.GroupNorm(n_groups, n, eps=layer.eps, affine=layer.affine, device=device)
    if layer.affine and not layer.weight.is_meta:
        with torch.no_grad():
            norm.weight.copy_(layer.weight)
            norm.bias.copy_(layer.bias)
    return norm.to(layer.weight.dtype) if layer.affine else norm


def n_parameters(module: nn.Module) -> int:
    """d, the length of the network's parameter vector."""
    return sum(p.numel() for p in module.parameters())


def parameters_of(module: nn.Module, vectors: Tensor) -> dict[str, Tensor]:
    """The named parameters [..., *shape of each] inside vectors [..., d]: views, no copies."""
    sizes = [p.numel() for p in module.parameters()]
    parts = vectors.split(sizes, dim=-1)
    return {
        name: part.unflatten(-1, p.shape)
        for (name, p), part in zip(module.named_parameters(), parts, strict=True)
    }


def initial_parameters(module: nn.Module, generator: torch.Generator) -> Tensor:
    """One float32 vector [d] from PyTorch's default distributions, on the generator's device.

    Weights and biases of linear and convolutional layers are uniform within 1/sqrt(fan in),
    normalisations start as the identity, class tokens at 0, position embeddings at N(0, 0.02^2).
    """
    vector = torch.zeros(n_parameters(module), device=generator.device)
    parameters = parameters_of(module, vector)
    for path, layer in module.named_modules():
        own = {name: parameters[f"{path}.{name}".lstrip(".")] for name in _own(layer)}
        if isinstance(layer, nn.Linear | nn.Conv2d):
            bound = 1 / math.sqrt(layer.weight[0].numel())
            for tensor in own.values():
                tensor.uniform_(-bound, bound, generator=generator)
        elif isinstance(layer, PositionEmbedding):
            own["offset"].normal_(std=0.02, generator=generator)
        elif "weight" in own:
            own["weight"].fill_(1)
    return vector


def shared_layers(module: nn.Module, split: int) -> tuple[str, ...]:
    """The layers, by name, that PartPSP-1 (``split`` 1) and PartPSP-2 (2) share.

    The first convolutional blocks of a ResNet, stem included; the patch embedding of a vision
    transformer, then its encoder; the first layers of any other network, each with the
    normalisation behind it. Source: Zhou, Xue and Chen, section 5.2.
    """
    children = dict(module.named_children())
    if "resnet" in children:
        return tuple(f"resnet.{name}" for name in ("conv1", "bn1", "layer1", "layer2")[: split + 2])
    if "class_token" in children:
        return ("patches", "class_token", "encoder")[: split + 1]
    shared, depth = [], 0
    for name, layer in module.named_modules():
        depth += isinstance(layer, nn.Linear | nn.Conv2d)
        if _own(layer) and depth <= split:
            shared.append(name)
    return tuple(shared)


def coordinates(module: nn.Module, layers: Iterable[str]) -> Tensor:
    """Which coordinates of a parameter vector belong to these layers, [d] of bool.

    A layer is named by module or parameter: "0" is "0.weight" and "0.bias".

    Raises:
        ConfigError: the network has no parameters of such a name.
    """
    sizes = {name: p.numel() for name, p in module.named_parameters()}
    chosen = set()
    for layer in layers:
        inside = {name for name in sizes if name == layer or name.startswith(f"{layer}.")}
        if not inside:
            raise ConfigError("DPA006", f'the network has no layer "{layer}": {", ".join(sizes)}')
        chosen |= inside
    return torch.cat([torch.full((size,), name in chosen) for name, size in sizes.items()])


def _attempt(name: str, shape: Shape, n_classes: int) -> nn.Module:
    with torch.device("meta"):
        module = NETWORKS[name](shape, n_classes)
    outputs(module, shape)
    return module


def _fits(name: str, shape: Shape, n_classes: int) -> bool:
    try:
        _attempt(name, shape, n_classes)
    except (RuntimeError, ValueError, ConfigError):
        return False
    return True


def _own(layer: nn.Module) -> list[str]:
    return [name for name, _ in layer.named_parameters(recurse=False)]
