"""GroupNorm in the place of BatchNorm, which leaves a record no gradient of its own."""

from copy import deepcopy
from typing import Any

import torch
from torch import nn

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_GROUPS = 32  # at most, as Wu and He 2018, arXiv:1803.08494, have it


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
