"""Every call that fills a tensor with random numbers, recorded on its way to the backend.

``torch.randn``, ``torch.normal``, distributions, dropout and initial weights all come down to the
few operators here, whoever calls them. Parameters are those of the operator.
"""

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.library import Library

from .log import Log
from .sites import Sites

OPERATORS = (
    "normal_",
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


def record(log: Log, sites: Sites) -> None:
    """Put a kernel in the place of each operator."""
    for name in OPERATORS:
        _LIBRARY.impl(name, _kernel(name, log, sites), "BackendSelect", with_keyset=True)


def _kernel(name: str, log: Log, sites: Sites) -> Callable[..., Any]:
    family, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, family), overload or "default")
    defaults = [a.default_value for a in op._schema.arguments[1:] if not a.kwarg_only]

    def handed_on(keys: Any, tensor: Tensor, *given: Any, **named: Any) -> Any:
        if tensor.device.type != "meta":
            site = sites.here()
            with log.lock:
                log.write(
                    {
                        "kind": "drawn",
                        "sequence": log.number(),
                        "time": time.time(),
                        "operator": family,
                        "site": site,
                        "occurrence": log.count(("drawn", site)),
                        "shape": tuple(tensor.shape),
                        "dtype": str(tensor.dtype).removeprefix("torch."),
                        "parameters": list(map(_number, (*given, *defaults[len(given) :]))),
                    }
                )
        return op.redispatch(keys & _BELOW, tensor, *given, **named)

    return handed_on


def _number(value: Any) -> float | None:
    finite = isinstance(value, int | float) and math.isfinite(value)
    return float(value) if finite else None
