"""The contract of a defense: one private decentralized algorithm on stacked tensors."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from types import FunctionType
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import PositiveInt
from torch import Tensor

from dpaudit.accounting.releases import Mechanism, Release
from dpaudit.errors import ConfigError, DpauditError, OutsideTheory, PluginError
from dpaudit.files.claim import Adjacency
from dpaudit.files.threat import ThreatModel
from dpaudit.graphs.graph import Graph, Network
from dpaudit.registry import PluginFamily
from dpaudit.strict import Strict

from .contract_checks import (
    kind,
    other_state,
    unchanged_settings,
    wrong_messages,
    wrong_models,
    wrong_state,
)
from .graph_conditions import GraphCondition
from .local_simulation import LocalSimulation
from .noise import Noise
from .transcript import Messages
from .view import View


@dataclass(frozen=True)
class Setting:
    """What is public about a run beside the defense's own options."""

    network: Network
    sizes: tuple[int, ...]  # records that each agent holds, D_i
    d: int  # model dimension
    layers: tuple[tuple[str, int], ...] = ()  # name and size of each parameter tensor, in order
    stands_in: bool = False  # whether a few coordinates play the part of all that agents share

    @property
    def n_agents(self) -> int:
        return len(self.sizes)

    def stand_in(self, d: int) -> "Setting":
        """The same with a model of ``d`` coordinates, all of them sent, as games play it."""
        return replace(self, d=d, layers=(("all", d),), stands_in=True)

    @property
    def layer_sizes(self) -> list[int]:
        """How many coordinates each layer has; one layer where the model names none."""
        return [size for _, size in self.layers] or [self.d]

    @property
    def holders(self) -> tuple[int, ...]:
        """The agents that hold data: all but a server."""
        return tuple(i for i, size in enumerate(self.sizes) if size > 0)


class Gradient(ABC):
    """The stochastic gradient oracle of one round: each agent's batch is drawn and fixed.

    An agent without data has the gradient 0. A defense that draws several batches in a round
    (``Defense.batches_per_round``) takes each by ``at_step``.
    """

    batch_size: int  # public: what sums are divided by, whatever number of records was drawn

    @abstractmethod
    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        """Gradient of agent holders[m]'s batch at each row of X [..., m, d], without clipping: the
        sum over its records divided by ``batch_size``."""

    def part(self, X: Tensor, coordinates: slice) -> Tensor:
        """The coordinates from ``start`` to ``stop`` of this gradient at X [..., n_agents, d].

        An oracle may leave out what others need; unless it says how, it computes them all.
        """
        return self(X)[..., coordinates]

    @abstractmethod
    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        """Sum over agent holders[m]'s batch of per-record clipped gradients at X [..., m, d]."""

    def per_record(self, X: Tensor, holders: Tensor | None = None, own: bool = False) -> Tensor:
        """The gradient of each record of agent holders[m]'s batch, [..., m, b, d].

        It holds m b d numbers; ``clipped_sum`` does without. Records that pad a batch have the
        gradient 0, and b may differ from ``batch_size``.

        Args:
            X: [..., m, d]; with ``own`` a model for each record, [..., m, b, d].

        Raises:
            DpauditError: an agent's cost is one function, not a sum over records.
        """
        raise DpauditError(
            "DPA036",
            "this problem has no records, so there is no gradient of each",
            "use a defense that takes whole gradients",
        )

    def in_parts(
        self,
        X: Tensor,
        what: Callable[[Tensor, Tensor | None], Tensor],
        holders: Tensor | None = None,
    ) -> Tensor:
        """``what(X, holders)``, [..., m, q], where each of its rows needs its row of X alone.

        An oracle may ask for some rows after the other, so that what a row takes, such as
        ``per_record``, is not held of all at once; unless it says how, it asks for all.
        """
        return what(X, holders)

    def at_step(self, s: int) -> "Gradient":
        """The oracle of local step s = 0, 1, ..., with a batch of its own; that of 0 is this one.

        Where an agent's cost is one function, all are this one.
        """
        return self


class Models(NamedTuple):
    """The state of a method whose agents keep nothing but a model."""

    X: Tensor  # [..., n_agents, d]


class Round(NamedTuple):
    """What one step of all agents leaves behind."""

    state: Any  # a NamedTuple of tensors [..., n_agents, ...], the defense's own
    sent: Messages
    private: Mapping[str, Tensor] = {}  # quantities [..., n_agents, d] that attacks are after


class Deferred(Mapping[str, Tensor]):
    """Private quantities that are computed when one is read, which hardly any round's are."""

    def __init__(self, quantities: Mapping[str, Callable[[], Tensor]]) -> None:
        self._quantities = quantities

    def __getitem__(self, name: str) -> Tensor:
        return self._quantities[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._quantities)

    def __len__(self) -> int:
        return len(self._quantities)


class Target(NamedTuple):
    """The agent whose batch is attacked, and the link on which its answer was seen."""

    round: int
    victim: int
    receiver: int


class ObservedGradient(NamedTuple):
    """A victim's gradient as an adversary derives it from its view, and the model it is of."""

    gradient: Tensor  # [d]
    model: Tensor  # [d]


class Observable(NamedTuple):
    """Something about a victim's gradient that intercepted messages give away by known algebra."""

    description: str
    needs: Mapping[str, tuple[int, ...]]  # message -> rounds, as offsets from the attacked round
    links: str  # the message whose links say which (victim, receiver) can be attacked
    differs_by_link: bool  # whether each link of one victim gives another gradient
    derive: Callable[[Any, View, Setting, Target], ObservedGradient]  # a method of the defense
    # a method (defense, setting, round), where a message holds several local steps; None: one
    local: Callable[[Any, Setting, int], LocalSimulation] | None = None


class Combination(NamedTuple):
    """What the messages of all rounds so far, and of a few after it, say together about a round.

    Unlike an observable it needs the whole past, so it is for runs that keep it: many trials of a
    small problem.
    """

    description: str
    messages: tuple[str, ...]
    delay: int  # rounds after the one it is about that must have been heard
    derive: Callable[[Any, View, Setting, Target], Tensor]  # a method; [..., n_rows, d]


class Bracket(NamedTuple):
    """The mechanism that an adversary faces, from both sides, where it is not known exactly."""

    least: Mechanism  # reveals no more than what the view reveals
    most: Mechanism  # reveals at least what the view reveals
    assumptions: tuple[str, ...]


class Stated(NamedTuple):
    """A bound on how far a message moves, given all messages before it; 0: it does not."""

    norm: Literal[1, 2]
    value: float


# How many records' gradients differ between the batches of adjacent data sets.
CHANGED_RECORDS: Mapping[Adjacency, int] = {"add-remove": 1, "replace-one": 2}


class Defense(Strict, ABC):
    """A private decentralized algorithm; its fields are the options of ``[defense]``.

    Rows of every tensor are agents; leading dimensions are independent trials. Whoever calls a
    method of ``RETURNED`` is given what the contract says, or a PluginError.
    """

    plugin_family: ClassVar[PluginFamily] = "defenses"

    paper: ClassVar[str]
    claims: ClassVar[str]  # kind of claim, for `dpaudit list`
    # name -> what it depends on and what noise hides it. Messages of one kind that an edge carries
    # several times in a round are sent as "name/1", "name/2", ...
    messages: ClassVar[Mapping[str, str]]
    observables: ClassVar[Mapping[str, Observable]] = {}
    combinations: ClassVar[Mapping[str, Combination]] = {}
    protects: ClassVar[Literal["record", "user"]] = "record"  # the unit that releases protect
    waits: ClassVar[bool] = False  # whether agents that are not active in a round take no step
    delays: ClassVar[bool] = False  # whether its steps mix messages that come rounds later
    cyclic: ClassVar[bool] = False  # whether batches are parts of an agent's records, in turn
    reconstructed: ClassVar[str | None] = None  # parts that no available text describes
    private: ClassVar[Mapping[str, str]] = {}  # name -> what each of ``Round.private`` is
    state: ClassVar[type[Any]] = Models  # a NamedTuple; models first, and all else is 0 at first
    needs_graph: ClassVar[GraphCondition | None] = None  # without which it cannot be run
    theory_graph: ClassVar[GraphCondition | None] = None  # without which no theory holds

    n_rounds: PositiveInt = 100
    batch_size: PositiveInt = 32  # records of a batch; expected records under Poisson sampling
    sampling: Literal["fixed", "poisson"] = "fixed"  # how batches are drawn from an agent's records
    allow_outside_theory: bool = False  # run what ``calibrate`` would refuse as outside the theory

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, wrong in RETURNED.items():
            owner = next(base for base in cls.__mro__ if name in vars(base))
            method = vars(owner)[name]
            own = owner is cls or not issubclass(owner, Defense)
            if own and isinstance(method, FunctionType):
                setattr(cls, name, _held(name, method, wrong))

    def __setattr__(self, name: str, value: Any) -> None:
        """Raises ConfigError for all but private attributes that a class declares."""
        if name not in self.__private_attributes__:
            raise ConfigError(
                "DPA044",
                f'defense: {type(self).__name__} sets "{name}" on itself, which cannot be played '
                "again; expected options before the audit, and all that a round leaves to the "
                "next in the state",
            )
        super().__setattr__(name, value)

    def start(self, X: Tensor, setting: Setting) -> Any:
        """The state before round 1, from initial models X [..., n_agents, d]."""
        return self.state(X, *(torch.zeros_like(X) for _ in self.state._fields[1:]))

    @abstractmethod
    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        """Round k = 1, 2, ... of all agents."""

    def models(self, state: Any) -> Tensor:
        """The models [..., n_agents, d] that would be used now: the first field of the state."""
        models: Tensor = state[0]
        return models

    def evaluated(self, state: Any) -> Tensor:
        """The models whose accuracy the paper reports, [..., n_agents, d]: some give the mean's."""
        return self.models(state)

    @property
    def drawing(self) -> str:
        """How a batch is made of an agent's records: ``sampling``, or "cyclic"."""
        return "cyclic" if self.cyclic else self.sampling

    @property
    def batches_per_round(self) -> int:
        """How many batches an agent draws in a round, as many as it takes local steps."""
        return 1

    @property
    def packages(self) -> Mapping[str, str]:
        """Modules that it imports and that come with no dpaudit, with what pip installs for each.

        Such as ``{"cvxpy": "dpaudit[whisper]"}``. An audit without one of them is refused before
        it begins.
        """
        return {}

    def calibrate(self, setting: Setting) -> Self:
        """The same defense with its noise set from its budget by the paper's own formula.

        Raises:
            OutsideTheory: as ``check_theory``, unless ``allow_outside_theory``.
            ConfigError: it cannot be run at all, such as without ``needs_graph``.
        """
        if self.needs_graph is not None:
            self.needs_graph.check(setting.network)
        if not self.allow_outside_theory:
            self.check_theory(setting)
        return self

    def check_theory(self, setting: Setting) -> None:
        """Raises OutsideTheory: the paper's theory does not allow this setting."""
        if self.theory_graph is not None:
            self.theory_graph.check(setting.network)

    def sampling_rate(self, size: int) -> float:
        """The probability that a batch holds one given record of an agent with this many."""
        return min(1.0, self.batch_size / size)

    def clip_norm_in(self, k: int) -> float | None:
        """The L2 norm to which round k clips each record's gradient; None: it clips none so."""
        return None

    def outside_theory(self, setting: Setting) -> str | None:
        """The condition that ``calibrate`` refuses, if ``allow_outside_theory`` lets it pass."""
        if not self.allow_outside_theory:
            return None
        try:
            self.model_copy(update={"allow_outside_theory": False}).calibrate(setting)
        except OutsideTheory as refusal:
            return str(refusal)
        return None

    @abstractmethod
    def without_noise(self) -> Self:
        """The no-defense twin: the same algorithm, its noise off."""

    @abstractmethod
    def mechanism(self, setting: Setting, threat_model: ThreatModel, victim: int) -> Bracket:
        """What the run really released to this adversary about one record of the victim."""

    def sensitivity(
        self, k: int, setting: Setting, adjacency: Adjacency, victim: int, sent: Messages
    ) -> Mapping[str, Stated]:
        """What the theory states for the victim's messages of round k, before noise.

        Messages without an entry are measured and held against nothing. ``sent`` is for bounds that
        the agents compute as they go; "agent-identity" bounds the distance between two agents'.
        Of records, it is what ``moved_by_record`` says.
        """
        n = CHANGED_RECORDS.get(adjacency)
        if n is None:
            return {}
        moved = self.moved_by_record(k, setting, victim)
        return {message: Stated(self.moved_norm, n * most) for message, most in moved.items()}

    @property
    def moved_norm(self) -> Literal[1, 2]:
        """The norm of ``moved_by_record``: L2, or L1."""
        return 2

    def moved_by_record(self, k: int, setting: Setting, victim: int) -> Mapping[str, float]:
        """How far one record moves the victim's messages of round k, before noise."""
        return {}

    def function_distance(self) -> float | None:
        """L1 distance between the gradients of adjacent functions; None: there is no such claim."""
        return None


def named(defense: Defense) -> str:
    """How an error calls a defense: by its class, as an audit file may name it."""
    return f'defense "{type(defense).__module__}:{type(defense).__qualname__}"'


def step_as_written(defense: Defense) -> Callable[..., Round]:
    """The method ``step`` of its class, whose answer is not held against the contract."""
    step = type(defense).step
    written: Callable[..., Round] = getattr(step, "__wrapped__", step)
    return written


def refuse_changed_forms(defense: Defense, k: int, sent: Messages, forms: dict[str, str]) -> None:
    """Hold the messages of round k against those of the rounds before.

    A message keeps its width and precision from round to round; how many agents send it may vary,
    and it may stay away.

    Args:
        forms: of the messages so far, by name; those of this round are added.

    Raises:
        PluginError: a message has another width or precision than before.
    """
    for name, message in sent.items():
        *trials, _, width = message.payload.shape
        size = ", ".join(map(str, [*trials, "rows", width]))
        form = f"[{size}] of {message.payload.dtype}"
        if forms.setdefault(name, form) != form:
            raise PluginError(
                "DPA043",
                f'{named(defense)}: step of round {k} sends message "{name}" as {form}, and as '
                f"{forms[name]} in a round before; expected the same width and precision in all "
                "rounds: pad it with zeros",
            )


def _wrong_round(played: Any, state: Any, k: int, graph: Graph, *_: Any) -> str | None:
    if not isinstance(played, Round):
        return f"returns {kind(played)}; expected Round(state, sent)"
    wrong = other_state(played.state, state) or wrong_messages(played.sent, graph)
    return wrong or _wrong_private(played.private)


def _wrong_private(private: Any) -> str | None:
    """Quantities that are deferred are not computed for it."""
    if isinstance(private, Deferred):
        return None
    values = private.values() if isinstance(private, Mapping) else [private]
    wrong = [value for value in values if not isinstance(value, Tensor)]
    if not wrong:
        return None
    return f"gives {kind(wrong[0])} as private; expected a mapping from names to tensors"


def _wrong_stated(stated: Any, *_: Any) -> str | None:
    if isinstance(stated, Mapping) and all(isinstance(one, Stated) for one in stated.values()):
        return None
    found = next((v for v in stated.values()), None) if isinstance(stated, Mapping) else stated
    return f"returns {kind(found)}; expected a mapping from messages to Stated(norm, value)"


def _wrong_defense(found: Any, *_: Any) -> str | None:
    return None if isinstance(found, Defense) else f"returns {kind(found)}; expected a Defense"


def _wrong_bracket(found: Any, *_: Any) -> str | None:
    if not isinstance(found, Bracket):
        return f"returns {kind(found)}; expected Bracket(least, most, assumptions)"
    for end in (found.least, found.most):
        if not (isinstance(end, tuple | list) and all(isinstance(one, Release) for one in end)):
            return (
                f"gives {kind(end)} as an end of its bracket; expected what releases(...) returns"
            )
    return None


# What is wrong with the value that a method returned to these arguments, for each method.
RETURNED: Mapping[str, Callable[..., str | None]] = {
    "start": lambda state, *_: wrong_state(state),
    "step": _wrong_round,
    "models": lambda models, *_: wrong_models(models),
    "evaluated": lambda models, *_: wrong_models(models),
    "calibrate": _wrong_defense,
    "without_noise": _wrong_defense,
    "mechanism": _wrong_bracket,
    "sensitivity": _wrong_stated,
}


def _held(name: str, method: FunctionType, wrong: Callable[..., str | None]) -> Callable[..., Any]:
    """The method of a subclass, its answer held against the contract where it is the last word."""

    @wraps(method)
    def held(self: Any, *arguments: Any, **options: Any) -> Any:
        if getattr(type(self), name) is not held:  # called by the method of a subclass
            return method(self, *arguments, **options)
        given = arguments
        if options:
            given = inspect.signature(method).bind(self, *arguments, **options).args[1:]
        where = f" of round {given[1]}" if name == "step" else ""
        by = f"{named(self)}: {name}{where}"
        with unchanged_settings(by):
            answer = method(self, *arguments, **options)
        if (problem := wrong(answer, *given)) is not None:
            raise PluginError("DPA043", f"{by} {problem}")
        return answer

    return held
