"""What a program draws by torch, and the batches that its data loaders hand out.

Every call that fills a tensor with random numbers is recorded on its way to the backend.
``torch.randn``, ``torch.normal``, distributions, dropout and initial weights all come down to the
few operators here, whoever calls them. Parameters are those of the operator. Uniform draws are
those that torch.distributions.Laplace makes its noise from, u on (-1, 1). They are kept as that
noise, t = -sign(u) log(1 - |u|). Truncated normal numbers, which torch.nn.init makes of others, are
a draw of a law of their own.

A torch whose dispatcher cannot be asked has its Python functions replaced instead: what C++ draws,
such as dropout, is then not seen.
"""

from __future__ import annotations

import functools
import inspect
import math
import threading
from typing import TYPE_CHECKING, Any

import torch

from ..values import dtype_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..log import Log, Sites
    from ..player import Player

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
TRUNCATED = "trunc_normal_"  # a function of torch.nn.init, and an operator
NEAR = 1e-4  # a bound of a uniform draw is -1 or 1, but for what single precision leaves out
# By Python's names: the defaults of parameters, and the operator that a function comes down to.
FILLING: dict[str, tuple[float, ...]] = {
    "normal_": (0.0, 1.0),
    "uniform_": (0.0, 1.0),
    "exponential_": (1.0,),
}
FILLING.update(cauchy_=(0.0, 1.0), log_normal_=(1.0, 2.0), geometric_=(), bernoulli_=(0.5,))
FILLING.update(random_=())
MAKING: dict[str, tuple[str, tuple[float, ...]]] = {
    "randn": ("normal_", (0.0, 1.0)),
    "randn_like": ("normal_", (0.0, 1.0)),
}
MAKING.update(rand=("uniform_", (0.0, 1.0)), rand_like=("uniform_", (0.0, 1.0)))
MAKING.update({name: ("random_", ()) for name in ("randint", "randint_like", "randperm")})
MAKING.update({name: (name, ()) for name in ("bernoulli", "poisson", "binomial", "multinomial")})
_LIBRARIES: list[Any] = []  # keeps the registered kernels alive


def dispatches() -> bool:
    """Whether this torch lets a kernel stand before the backend, and hand its call on."""
    given = inspect.signature(torch.library.Library.impl).parameters if _has_library() else ()
    return (
        "with_keyset" in given
        and hasattr(torch.ops.aten.normal_.default, "redispatch")
        and hasattr(torch._C, "_dispatch_keyset_full_after")
    )


def _has_library() -> bool:
    return hasattr(torch, "library") and hasattr(torch.library, "Library")


class TorchDraws:
    """Records draws, and replays those at lines of noise.

    Args:
        player: of a world of an audit, which has noise of its own; None: draws are left alone.
    """

    def __init__(self, log: Log, sites: Sites, player: Player | None) -> None:
        self._log, self._sites, self._player = log, sites, player
        self._inside = threading.local()  # a function of torch that draws by others

    def hook(self) -> None:
        """Put a kernel in the place of each operator, or a function in that of each function."""
        initial = torch.nn.init
        if hasattr(initial, TRUNCATED):  # torch 1.5 or newer
            setattr(initial, TRUNCATED, self._whole(getattr(initial, TRUNCATED), TRUNCATED))
        if dispatches():
            library = torch.library.Library("aten", "IMPL")
            _LIBRARIES.append(library)
            for name in OPERATORS:
                library.impl(name, self._kernel(name), "BackendSelect", with_keyset=True)
            return
        self._log.unseen(
            f"torch {torch.__version__} has no dispatcher that can be asked: draws of C++, such as "
            "dropout, are not recorded"
        )
        for name, defaults in FILLING.items():
            own = getattr(torch.Tensor, name)
            setattr(torch.Tensor, name, self._function(own, name, 1, defaults))
        for name, (operator, parameters) in MAKING.items():
            setattr(torch, name, self._function(getattr(torch, name), operator, None, parameters))
        torch.normal = self._function(torch.normal, "normal", 0, (0.0, 1.0))

    def _kernel(self, name: str) -> Callable[..., Any]:
        family, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, family), overload or "default")
        first = 0 if family == "normal" else 1  # first argument that is a parameter
        defaults = [a.default_value for a in op._schema.arguments if not a.kwarg_only]
        below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)

        def handed_on(keys: Any, *given: Any, **named: Any) -> Any:
            result = op.redispatch(keys & below, *given, **named)
            if result.device.type != "meta":
                parameters = [*given[first:], *defaults[max(len(given), first) :]]
                self._drawn(family, result, parameters)
            return result

        return handed_on

    def _function(
        self, own: Any, operator: str, first: int | None, defaults: Sequence[float]
    ) -> Callable[..., Any]:
        """Draws as a function of Python's does.

        Args:
            first: of its arguments that is a parameter; None: it has none, and draws by defaults.
        """
        names: tuple[str, ...] = ("mean", "std") if "normal" in operator else ("from", "to")
        if len(defaults) == 1:
            names = ("lambd",) if operator == "exponential_" else ("p",)

        def drawn(*given: Any, **named: Any) -> Any:
            result = own(*given, **named)
            if not isinstance(result, torch.Tensor) or result.device.type == "meta":
                return result
            parameters = list(defaults)
            if first is not None:
                for i, name in enumerate(names[: len(defaults)]):
                    if name in named:
                        parameters[i] = named[name]
                    elif first + i < len(given):
                        parameters[i] = given[first + i]
            self._drawn(operator, result, parameters)
            return result

        return drawn

    def _whole(self, own: Any, operator: str) -> Callable[..., Any]:
        """Draws as a function does that makes another law of the numbers that it draws."""

        @functools.wraps(own)
        def drawn(*given: Any, **named: Any) -> Any:
            self._inside.is_drawing = True
            try:
                result = own(*given, **named)
            finally:
                self._inside.is_drawing = False
            if result.device.type != "meta":
                self._drawn(operator, result, ())
            return result

        return drawn

    def _drawn(self, family: str, result: Any, parameters: Sequence[Any]) -> None:
        if getattr(self._inside, "is_drawing", False):
            return
        site = self._sites.here()
        with self._log.lock:
            record = self._log.begun("drawn", family, site, ("drawn", site))
            record["shape"], record["dtype"] = tuple(result.shape), dtype_name(result.dtype)
            record["parameters"] = list(map(_number, parameters))
            record["purpose"] = self._sites.purpose(self._player is not None)
            if self._player is None or not self._player.is_noise(site):
                self._log.write(record)
            else:
                replay(self._player, record, result, parameters)


def replay(player: Player, record: dict[str, Any], result: Any, parameters: Sequence[Any]) -> None:
    """Replace a draw at a line of noise by that of this world."""
    site, operator = record["site"], record["operator"]
    mean, factor, scale, family = 0.0, 1.0, 1.0, "gaussian"
    if is_laplace(operator, parameters):
        u = result.detach().double()
        own, family = -u.sign() * torch.log1p(-u.abs()), "laplace"
    elif operator in ("normal_", "normal"):
        mean, std = parameters[:2]
        scale, factor = (std, 1.0) if isinstance(std, (float, int)) else (1.0, std)
        own = (result.detach() - mean) / factor
    else:
        player.refuse(
            f"{site} draws by {operator}{tuple(record['parameters'])}; expected of a line of "
            "noise a normal draw, or the uniform one on (-1, 1) of torch.distributions.Laplace"
        )
    value = player.at_line(record, own, float(scale), family)
    if family == "laplace":
        u = (-torch.expm1(-value.abs())).clamp(max=1 - torch.finfo(result.dtype).eps)
        value = value.sign() * u
    with torch.no_grad():
        result.copy_(value * factor + mean)


def is_laplace(operator: str, parameters: Sequence[float | None]) -> bool:
    """Whether a draw is the uniform one that torch.distributions.Laplace makes its noise from."""
    if operator != "uniform_":  # its parameters may be tensors
        return False
    low, high = (end or 0.0 for end in parameters)
    return abs(low + 1) < NEAR and abs(high - 1) < NEAR


def _number(value: Any) -> float | None:
    finite = isinstance(value, (int, float)) and math.isfinite(value)
    return float(value) if finite else None
