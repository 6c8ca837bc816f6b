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
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy

from dpaudit.errors import ConfigError, nearest

from .networks import NETWORKS, OF_ANY_SHAPE, PositionEmbedding, Shape, call, logits_of, outputs
from .token_networks import N_HEADS, TOKEN_NETWORKS, WIDTH, Decoder

_SAME = 1e-3  # relative to the largest logit: less is rounding
_LARGEST = 64  # pixels; the sides tried when an image is too small
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_WITHOUT_STATE = {  # key: whether the state is that of a BatchNorm
    True: "GroupNorm in the place of BatchNorm keeps none: give fix_model=True, or --fix-model",
    False: "expected a network whose forward changes no buffer of it",
}
_EXACT = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_GROUPS = 32  # most groups of a GroupNorm, as in Wu and He 2018, arXiv:1803.08494


def build_network(
    name: str,
    shape: Shape,
    n_classes: int,
    n_tokens: int = 0,
    width: int | None = None,
    at_positions: bool = False,
) -> nn.Module:
    """The network of this name, on the meta device: records [b, *shape] to logits [b, n_classes].

    Args:
        n_tokens: the size of the vocabulary, if records are token ids; 0: they are numbers.
        width: of the embeddings of ``bert-tiny`` and ``gpt-tiny``.
        at_positions: logits at every position of a record, [b, length, n_classes].

    Raises:
        ConfigError: no such network, or it cannot take records of this shape.
    """
    refuse_unknown_network(name)
    if (name in TOKEN_NETWORKS) != bool(n_tokens):
        takes, are = ("numbers", "token ids") if n_tokens else ("token ids", "numbers")
        fitting = sorted(TOKEN_NETWORKS) if n_tokens else [*NETWORKS]
        raise ConfigError(
            "DPA034",
            f"{name} takes {takes}, and these data are {are}; expected one of the models "
            f"{', '.join(fitting)}",
        )
    if width is not None and (name not in TOKEN_NETWORKS or width % N_HEADS):
        raise ConfigError(
            "DPA005",
            f"model.width: {name} has {N_HEADS} heads; expected a multiple of {N_HEADS}"
            if name in TOKEN_NETWORKS
            else f"model.width: {name} has none to choose; {' and '.join(TOKEN_NETWORKS)} have",
        )
    if n_tokens:
        sizes = n_tokens, shape[0], width or WIDTH, n_classes
        with torch.device("meta"):
            return _decoder(name, *sizes) if at_positions else TOKEN_NETWORKS[name](*sizes)
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


def _decoder(name: str, n_tokens: int, length: int, width: int, n_classes: int) -> nn.Module:
    """A decoder with logits at every position. Raises ConfigError: this network is none."""
    if TOKEN_NETWORKS[name] is not Decoder:
        raise ConfigError(
            "DPA034",
            f"{name} reads the tokens that it would have to predict at each position; expected a "
            "decoder for labels at every position",
            'set model.name = "gpt-tiny", or data.text.labels = "record"',
        )
    return Decoder(n_tokens, length, width, n_classes, at_positions=True)


def refuse_unknown_network(name: str) -> None:
    """Raises ConfigError: no network has this name."""
    names = [*NETWORKS, *TOKEN_NETWORKS]
    if name not in names:
        known = f"{nearest(name, names)}; known: {', '.join(names)}"
        raise ConfigError("DPA006", f'no network is called "{name}"{known}')


def architecture(
    module: nn.Module,
    shape: Shape,
    n_classes: int,
    dtype: torch.dtype = torch.float32,
    largest: int = 0,
    positions: int = 0,
) -> nn.Module:
    """A caller's own network without its numbers: a copy on the meta device.

    On token ids, of which the data have some up to ``largest``, it may have more classes than the
    data have, as a language model has a logit for every token. Where a record has labels at so many
    ``positions``, it has logits at each of them.

    Parameters that are not to be trained are buffers of the copy, which keep their numbers: they
    are public constants, and no part of what agents clip and send. Parameters that are one keep
    being one. Whatever its precision is, the copy computes in float32, as agents do.

    Raises:
        ConfigError: it keeps state beside its parameters, has none to be trained, draws masks, or
            does not turn records into one logit for each class.
    """
    name = type(module).__qualname__
    module = _in_float32(module, name)
    if state := _state(module, shape, dtype):
        raise ConfigError(
            "DPA036",
            f"{name} keeps state beside its parameters ({state}), which agents cannot share; "
            + _WITHOUT_STATE[_has_batch_norm(module)],
        )
    if lazy := [path for path, p in module.named_parameters() if is_lazy(p)]:
        raise ConfigError(
            "DPA035",
            f"{name} has parameters of no shape yet ({lazy[0]}); expected numbers",
            "call it on a record before the audit",
        )
    if not (trained := trained_parameters(module)):
        raise ConfigError(
            "DPA035",
            f"{name} has no parameters to be trained; expected some, which agents train and send",
        )
    _refuse_masks(module, name)
    copy = _copy(
        module, name, {id(p): nn.Parameter(torch.empty_like(p, device="meta")) for p in trained}
    )
    _freeze(copy)
    _refuse_outputs(copy, name, shape, n_classes, dtype, largest, positions)
    return copy


def _copy(module: nn.Module, name: str, memo: dict[int, Any]) -> nn.Module:
    """A deep copy; ``memo``: what takes the place of objects, by id. Raises ConfigError."""
    try:
        return deepcopy(module, dict(memo))
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            "DPA035", f"{name} cannot be copied: {_why_not(module, reason)}"
        ) from None


def _in_float32(module: nn.Module, name: str) -> nn.Module:
    """The network, or a copy of one with numbers of another precision. Raises ConfigError."""
    tensors = (t for kind in (module.parameters(), module.buffers()) for t in kind)
    if all(is_lazy(t) or t.dtype in (torch.float32, *_EXACT) for t in tensors):
        return module
    return _copy(module, name, {}).float()


def _refuse_outputs(
    copy: nn.Module,
    name: str,
    shape: Shape,
    n_classes: int,
    dtype: torch.dtype,
    largest: int,
    positions: int,
) -> None:
    """Raises ConfigError: it does not turn records into one logit for each class."""
    try:
        logits = outputs(copy, shape, dtype, largest)
        if not (dtype.is_floating_point and isinstance(logits, Tensor)):
            logits = logits_of(logits, positions > 0)
    except Exception as error:  # a caller's code may raise anything
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        ids = f" with token ids up to {largest}" if largest else ""
        raise ConfigError(
            "DPA034", f"{name} cannot take records of shape {list(shape)}{ids}: {reason}"
        ) from None
    if not isinstance(logits, Tensor):
        inside = "under the key logits" if isinstance(logits, dict) else "alone"
        raise ConfigError(
            "DPA035",
            f"{name} gives a {type(logits).__name__}; expected a tensor of logits",
            f"let its forward return the logits {inside}, or wrap it in a network that does",
        )
    each = " at every position" if positions else ""
    expected = (2, positions) if positions else (2,)
    spare = not dtype.is_floating_point and logits.shape[-1] > n_classes
    if tuple(logits.shape[:-1]) != expected or not (logits.shape[-1] == n_classes or spare):
        raise ConfigError(
            "DPA035",
            f"{name} turns two records into {list(logits.shape)}; expected "
            f"{[*expected, n_classes]}, one logit for each class{each}",
        )


def refuse_impure(name: str, module: nn.Module, vector: Tensor, records: Tensor) -> None:
    """Refuse a caller's network whose logits of a record are no function of it and the parameters.

    Args:
        module: its architecture.
        vector: [d], its parameters.
        records: [2, *shape].

    Raises:
        ConfigError: they are no numbers, draw by chance, depend on other records of the batch, or
            on no parameter; or it fails on these records.
    """
    if not vector.isfinite().all():
        raise ConfigError("DPA035", f"{name} has parameters that are no finite numbers")

    def logits(some: Tensor) -> Tensor:
        try:
            return logits_of(call(module, parameters_of(module, vector), some), at_positions=True)
        except Exception as error:  # a caller's code may raise anything
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            said = f"{name} fails on records of the data: {reason}"
            raise ConfigError("DPA035", said) from None

    with torch.no_grad():
        both, again, alone = logits(records), logits(records), logits(records[:1])
    near = _SAME * float(both.abs().max())
    if not both.isfinite().all():
        fault = "gives logits that are no finite numbers"
    elif (both - again).abs().max() > near:
        fault = "draws numbers, outside of the audit's random streams"
    elif (both[:1] - alone).abs().max() > near:
        fault = (
            "gives a record other logits in a batch than alone, so that no record has a gradient"
        )
    else:
        vector = vector.clone().requires_grad_()
        if logits(records).requires_grad:
            return
        fault = "gives logits that depend on no parameter, as with detach()"
    raise ConfigError("DPA036", f"{name} {fault}; expected logits of the record alone")


def _refuse_masks(module: nn.Module, name: str) -> None:
    for path, layer in module.named_modules():
        if isinstance(layer, _DropoutNd) and layer.training and layer.p:
            raise ConfigError(
                "DPA036",
                f"{name} draws dropout masks ({path}), outside of the audit's random streams: call "
                "eval() on it, or set its dropout to 0",
            )


def trained_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Parameters that are not frozen, in order, each once."""
    return [p for p in module.parameters() if p.requires_grad]


def _freeze(module: nn.Module) -> None:
    """Make buffers of the parameters that are not to be trained."""
    for layer in module.modules():
        for name, p in list(layer.named_parameters(recurse=False, remove_duplicate=False)):
            if not p.requires_grad:
                delattr(layer, name)
                layer.register_buffer(name, p.detach(), persistent=False)


@torch.no_grad()
def _state(module: nn.Module, shape: Shape, dtype: torch.dtype) -> str | None:
    """The first buffer that a forward changes, or that batch normalisation has; None: no such.

    Others are constants, as positions and masks are.
    """
    for path, layer in module.named_modules():
        if isinstance(layer, _BATCH_NORMS):
            for name, _ in layer.named_buffers():
                return f"{path}.{name}".lstrip(".")
    before = {name: b.detach().cpu() for name, b in module.named_buffers() if not b.is_meta}
    if not before:
        return None
    zeros = {n: torch.zeros(p.shape, dtype=p.dtype) for n, p in module.named_parameters()}
    after = {name: b.clone() for name, b in before.items()}
    try:
        call(module, zeros | after, torch.ones(2, *shape).to(dtype))
    except Exception:  # `architecture` reports it in one line
        return None
    return next((name for name, b in before.items() if not torch.equal(b, after[name])), None)


def _has_batch_norm(module: nn.Module) -> bool:
    return any(isinstance(layer, _BATCH_NORMS) for layer in module.modules())


def _why_not(module: nn.Module, reason: str) -> str:
    """Why a module cannot be copied, and what to do where that is known."""
    hooks = (hook for layer in module.modules() for hook in layer._forward_pre_hooks.values())
    if any(type(hook).__name__ == "WeightNorm" for hook in hooks):
        return (
            "torch.nn.utils.weight_norm keeps a weight that is computed; use "
            "torch.nn.utils.parametrizations.weight_norm in its place"
        )
    return reason


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
    normalisations start as the identity, class tokens at 0, embeddings of tokens and positions at
    N(0, 0.02^2).
    """
    vector = torch.zeros(n_parameters(module), device=generator.device)
    parameters = parameters_of(module, vector)
    for path, layer in module.named_modules():
        own = {name: parameters[f"{path}.{name}".lstrip(".")] for name in _own(layer)}
        if isinstance(layer, nn.Linear | nn.Conv2d):
            bound = 1 / math.sqrt(layer.weight[0].numel())
            for tensor in own.values():
                tensor.uniform_(-bound, bound, generator=generator)
        elif isinstance(layer, PositionEmbedding | nn.Embedding):
            for tensor in own.values():
                tensor.normal_(std=0.02, generator=generator)
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
