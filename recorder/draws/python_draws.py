"""What a program draws by NumPy and by Python's ``random``.

NumPy's classes of generators are replaced by subclasses, and so is the global state, which SciPy
draws from as well. A call draws the numbers that it would have drawn: only its result is read, or,
at a line of noise in a world of an audit, replaced.
"""

from __future__ import annotations

import functools
import math
import sys
import threading
import zlib
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from ..log import MOST_AT_A_SITE, NOWHERE
from ..player import OF_LIBRARIES
from ..values import dtype_of, is_number, library, shape_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..log import Log, Sites
    from ..player import Player


class Law(NamedTuple):
    """What a function draws: its operator, and its parameters by name, with defaults."""

    operator: str
    parameters: tuple[tuple[str, float | None], ...] = ()


NORMAL, LAPLACE = "normal", "laplace"
_ENDS = (("low", 0.0), ("high", 1.0))
_BELOW = Law("integers", (("low", 0.0), ("high", None)))  # without a high end, low is that
NUMPY = {
    "normal": Law(NORMAL, (("loc", 0.0), ("scale", 1.0))),
    "standard_normal": Law(NORMAL),
    "randn": Law(NORMAL),
    "laplace": Law(LAPLACE, (("loc", 0.0), ("scale", 1.0))),
    "uniform": Law("uniform", _ENDS),
    "exponential": Law("exponential", (("scale", 1.0),)),
    "gamma": Law("gamma", (("shape", 1.0), ("scale", 1.0))),
    "lognormal": Law("lognormal", (("mean", 0.0), ("sigma", 1.0))),
    "poisson": Law("poisson", (("lam", 1.0),)),
    "binomial": Law("binomial", (("n", 1.0), ("p", 0.5))),
    "geometric": Law("geometric", (("p", 0.5),)),
    "logistic": Law("logistic", (("loc", 0.0), ("scale", 1.0))),
    "gumbel": Law("gumbel", (("loc", 0.0), ("scale", 1.0))),
    "rayleigh": Law("rayleigh", (("scale", 1.0),)),
    "integers": _BELOW,
    "randint": _BELOW,
    "random_integers": _BELOW,
    "permutation": Law("permutation"),
    "permuted": Law("permutation"),
    "shuffle": Law("permutation"),
    "choice": Law("choice"),
    **{name: Law("uniform") for name in ("random", "random_sample", "rand", "ranf", "sample")},
    **{
        name: Law(name)
        for name in ("beta", "chisquare", "dirichlet", "standard_cauchy", "standard_exponential")
    },
    **{name: Law(name) for name in ("standard_gamma", "standard_t", "vonmises", "wald")},
    **{name: Law(name) for name in ("bytes", "f", "hypergeometric", "logseries", "multinomial")},
    **{name: Law(name) for name in ("multivariate_hypergeometric", "negative_binomial", "pareto")},
    **{name: Law(name) for name in ("noncentral_chisquare", "noncentral_f", "power", "tomaxint")},
    **{name: Law(name) for name in ("triangular", "weibull", "zipf")},
}
PYTHON = {
    "gauss": Law(NORMAL, (("mu", 0.0), ("sigma", 1.0))),
    "normalvariate": Law(NORMAL, (("mu", 0.0), ("sigma", 1.0))),
    "random": Law("uniform"),
    "uniform": Law("uniform", (("a", 0.0), ("b", 1.0))),
    "expovariate": Law("exponential", (("lambd", 1.0),)),
    "lognormvariate": Law("lognormal", (("mu", 0.0), ("sigma", 1.0))),
    "gammavariate": Law("gamma", (("alpha", 1.0), ("beta", 1.0))),
    "triangular": Law("triangular"),
    "betavariate": Law("beta"),
    "randrange": Law("integers", (("start", 0.0), ("stop", None))),
    "randint": Law("integers", (("a", 0.0), ("b", None))),
    "choice": Law("choice"),
    "choices": Law("choice"),
    "sample": Law("choice"),
    "shuffle": Law("permutation"),
    "getrandbits": Law("bits", (("k", 0.0),)),
    "randbytes": Law("bytes"),
}
OF_SYSTEM = Law("bits", (("k", 0.0),))
SYSTEM = {"random": PYTHON["random"], "getrandbits": OF_SYSTEM}  # SystemRandom's own
ENTROPY = Law("urandom")
OF_A_SEED = 64  # bits, at least: NumPy asks for 128 by Python's secrets
IN_WORLDS = 100  # times as many draws of a line are written down in runs of an audit


class PythonDraws:
    """Records the draws of a process, each with the line that asked for it.

    Args:
        player: of a world of an audit, which has noise of its own; None: draws are left alone.
    """

    def __init__(self, log: Log, sites: Sites, player: Player | None) -> None:
        self._log, self._sites, self._player = log, sites, player
        self._inside = threading.local()  # functions of random call each other
        self._written: defaultdict[str, int] = defaultdict(int)

    def hook_numpy(self, numpy_random: Any) -> None:
        """Replace the classes and the global state of ``numpy.random``.

        ``multivariate_normal`` is made of standard normal draws, which are what is recorded of it.
        """
        for kind in ("Generator", "RandomState"):
            own_kind = getattr(numpy_random, kind, None)
            if own_kind is None:
                continue  # NumPy before 1.17 has no Generator
            new = self._subclass(own_kind, NUMPY, "numpy")
            for module in (numpy_random, library("numpy.random._pickle")):
                if module is not None and hasattr(module, kind):
                    setattr(module, kind, new)
        _replace_state(numpy_random)
        if hasattr(numpy_random, "default_rng"):
            made, new = numpy_random.default_rng, numpy_random.Generator

            @functools.wraps(made)
            def default_rng(*given: Any, **named: Any) -> Any:
                rng = made(*given, **named)
                return rng if type(rng) is new else new(rng.bit_generator)

            numpy_random.default_rng = default_rng

    def hook_random(self, random: Any) -> None:
        """Replace the methods of ``random.Random``, and the functions of the global one."""
        shared, kind = random._inst, random.Random
        for name, law in PYTHON.items():
            if hasattr(kind, name):
                setattr(kind, name, self._drawing(getattr(kind, name), law, "random", True))
                setattr(random, name, getattr(shared, name))
        for name, law in SYSTEM.items():
            own = getattr(random.SystemRandom, name)
            setattr(random.SystemRandom, name, self._drawing(own, law, "random", True))

    def hook_entropy(self, os_module: Any) -> None:
        """Replace ``os.urandom``, but where a library of Python's asks for it."""
        own, drawn = os_module.urandom, self._drawing(os_module.urandom, ENTROPY, "os", False)

        @functools.wraps(own)
        def urandom(size: int) -> bytes:
            asked_by = str(sys._getframe(1).f_globals.get("__name__", ""))
            return bytes((own if asked_by.partition(".")[0] in OF_LIBRARIES else drawn)(size))

        os_module.urandom = urandom

    def _subclass(self, own: type, laws: dict[str, Law], prefix: str) -> type:
        """A class in the place of another one, of which it takes each instance for its own."""

        class OfEither(type):
            def __instancecheck__(cls, value: object) -> bool:
                return isinstance(value, own)

            def __subclasscheck__(cls, other: type) -> bool:
                return issubclass(other, own)

        methods = {
            name: self._drawing(getattr(own, name), law, prefix, True)
            for name, law in laws.items()
            if hasattr(own, name)
        }
        about = {"__doc__": own.__doc__, "__module__": own.__module__}
        return OfEither(own.__name__, (own,), {**methods, **about})

    def _drawing(self, own: Any, law: Law, prefix: str, is_method: bool) -> Callable[..., Any]:
        """A function that draws as its own does."""

        @functools.wraps(own)
        def drawn(*given: Any, **named: Any) -> Any:
            if getattr(self._inside, "is_drawing", False):
                return own(*given, **named)
            self._inside.is_drawing = True
            try:
                result = own(*given, **named)
            finally:
                self._inside.is_drawing = False
            return self._recorded(law, prefix, result, given[1:] if is_method else given, named)

        return drawn

    def _recorded(
        self, law: Law, prefix: str, result: Any, given: Sequence[Any], named: dict[str, Any]
    ) -> Any:
        site = self._sites.here()
        if site == NOWHERE or self._sites.is_of_libraries():  # Python's own, and names
            return result
        noise = self._player is not None and self._player.is_noise(site)
        parameters = [
            named.get(name, given[i] if i < len(given) else default)
            for i, (name, default) in enumerate(law.parameters)
        ] or ([0.0, 1.0] if law.operator in (NORMAL, LAPLACE) else [])
        if law is OF_SYSTEM and (parameters[0] or 0) >= OF_A_SEED:
            return result
        with self._log.lock:
            self._written[site] += 1
            most = MOST_AT_A_SITE if self._player is None else IN_WORLDS * MOST_AT_A_SITE
            if not noise and self._written[site] > most:
                self._log.unseen(f"{site}: draws after the first {most} of this line")
                return result
            about = self._log.begun("drawn", f"{prefix}.{law.operator}", site, ("drawn", site))
            holds_numbers = result is not None and (is_number(result) or hasattr(result, "dtype"))
            about["shape"] = shape_of(result) if holds_numbers else ()
            about["dtype"] = dtype_of(result) if holds_numbers else ""
            about["parameters"] = [_number(one) for one in parameters]
            about["purpose"] = self._sites.purpose(self._player is not None)
            if not noise:
                if self._player is not None and (holds_numbers or isinstance(result, bytes)):
                    about["crc32"] = _crc32(result)
                self._log.write(about)
                return result
            return self._replayed(about, law, result, parameters)

    def _replayed(
        self, about: dict[str, Any], law: Law, result: Any, parameters: Sequence[Any]
    ) -> Any:
        """What this world has in the place of a draw at a line of noise."""
        assert self._player is not None
        if law.operator not in (NORMAL, LAPLACE):
            self._player.refuse(
                f"{about['site']} draws by {about['operator']}; expected of a line of noise a "
                "normal or a Laplace draw"
            )
        family = "laplace" if law.operator == LAPLACE else "gaussian"
        mean, spread = parameters
        if is_number(spread) or not getattr(spread, "shape", ()):
            scale, factor = float(spread), 1.0
        else:
            scale, factor = 1.0, spread
        own = (result - mean) / factor
        value = self._player.at_line(about, own, scale, family) * factor + mean
        if getattr(result, "shape", ()):
            result[...] = value  # it may be the program's own array, given as ``out``
            return result
        return value


def _replace_state(numpy_random: Any) -> None:
    """Give the global state, and all functions that are its methods, the class that records."""
    mtrand = numpy_random.mtrand
    old = mtrand._rand
    new = numpy_random.RandomState(getattr(old, "_bit_generator", 0))  # a new one asks for entropy
    new.set_state(old.get_state())
    mtrand._rand = new
    for module in (numpy_random, mtrand):
        for name, function in list(vars(module).items()):
            if getattr(function, "__self__", None) is old:
                setattr(module, name, getattr(new, function.__name__))
    stats = library("scipy.stats")  # its distributions keep the state they had at import
    for kept in [] if stats is None else list(vars(stats).values()):
        if getattr(kept, "_random_state", None) is old:
            kept._random_state = new


def _crc32(drawn: Any) -> int:
    return zlib.crc32(drawn.tobytes() if hasattr(drawn, "tobytes") else repr(drawn).encode())


def _number(value: Any) -> float | None:
    try:
        finite = float(value)
    except (TypeError, ValueError):
        return None
    return finite if math.isfinite(finite) else None
