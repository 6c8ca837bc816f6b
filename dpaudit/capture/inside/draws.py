"""What a program draws, and the batches that its data loaders hand out.

Every call that fills a tensor with random numbers is recorded on its way to the backend.

``torch.randn``, ``torch.normal``, distributions, dropout and initial weights all come down to the
few operators here, whoever calls them. Parameters are those of the operator.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.library import Library
from torch.utils.data import dataloader

from .log import Log, Sites

OPERATORS = (
    "normal_",
    "normal.Tensor_float",
    "normal.float_Tensor",
    "normal.Tensor_Tensor",
    "uniform_",
    "exponential_",
    "cauchy_",
    "log_normal_",
    "geometric_",
    "bernoulli_.float",
    "bernoulli_.Tensor",
    "random_",
    "random_.to",
    "random_.from",
    "poisson",
    "binomial",
    "_standard_gamma",
)
_LIBRARY = Library("aten", "IMPL")
_BELOW = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)

_ONE: Any = dataloader._SingleProcessDataLoaderIter
_SEVERAL: Any = dataloader._MultiProcessingDataLoaderIter
WORKERS = (
    "a DataLoader with {} workers: what they draw and take cannot be named; expected "
    "num_workers = 0 where a program is audited"
)


def record(log: Log, sites: Sites, player: Any = None) -> None:
    """Put a kernel in the place of each operator.

    Args:
        player: of a world of an audit, which has noise of its own; None: draws are left alone.
    """
    for name in OPERATORS:
        kernel = _kernel(name, log, sites, player)
        _LIBRARY.impl(name, kernel, "BackendSelect", with_keyset=True)


def _kernel(name: str, log: Log, sites: Sites, player: Any) -> Callable[..., Any]:
    family, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, family), overload or "default")
    first = 0 if family == "normal" else 1  # of its arguments that is a parameter
    defaults = [a.default_value for a in op._schema.arguments if not a.kwarg_only]

    def handed_on(keys: Any, *given: Any, **named: Any) -> Any:
        result = op.redispatch(keys & _BELOW, *given, **named)
        if result.device.type == "meta":
            return result
        parameters, site = [*given[first:], *defaults[max(len(given), first) :]], sites.here()
        with log.lock:
            record = log.begun("drawn", family, site, ("drawn", site)) | {
                "shape": tuple(result.shape),
                "dtype": str(result.dtype).removeprefix("torch."),
                "parameters": list(map(_number, parameters)),
            }
            if player is None or not player.is_noise(site):
                log.write(record)
            else:
                player.drawn(record, result, parameters)
        return result

    return handed_on


def _number(value: Any) -> float | None:
    finite = isinstance(value, int | float) and math.isfinite(value)
    return float(value) if finite else None


def hook_loaders(player: Any) -> None:
    """Show every batch to a player before the program has it; loaders with workers are refused."""
    own = _ONE._next_data

    def next_data(iterator: Any) -> Any:
        return player.loaded(own(iterator))

    def refused(iterator: Any, loader: Any) -> None:
        player.refuse(WORKERS.format(loader.num_workers))

    _ONE._next_data = next_data
    _SEVERAL.__init__ = refused
