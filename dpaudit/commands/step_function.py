"""A step that is a function, as one writes it in a notebook, and the defense it stands for."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

from pydantic import ValidationError
from torch import Tensor

from dpaudit.defense import Round, Setting, broadcast
from dpaudit.defense.budget import GaussianDefense
from dpaudit.defense.contract_checks import kind
from dpaudit.errors import ConfigError, PluginError, Problem
from dpaudit.files.config import AuditConfig
from dpaudit.files.file_problems import dotted, problems_of

Step = Callable[..., Any]
ARGUMENTS = ("self", "x", "k", "graph", "gradient", "noise")  # arguments of a step
MISSING = {
    "graph": ("ring", "dpaudit list graphs names them"),
    "model": ("logistic", "model= takes a torch module, too; dpaudit list models names them"),
}  # without a default: an example, and what there is


class StepState(NamedTuple):
    X: Tensor  # [..., n_agents, d]


class StepFunction(GaussianDefense):
    """``function(self, x, k, graph, gradient, noise)`` returns the next x and what is sent as "x".

    All are [..., n_agents, d], a row for each agent, and a row is sent to all neighbours. The
    function clips the gradient of each record to ``self.clip_norm``, and adds Gaussian noise of
    ``self.sigma * self.clip_norm`` to their sum: that is what its releases are accounted as.
    """

    paper = "a function"
    messages: ClassVar[Mapping[str, str]] = {"x": "what the function sends"}

    function: ClassVar[Step]

    def start(self, X: Tensor, setting: Setting) -> StepState:
        return StepState(X)

    def step(self, state: StepState, k: int, graph: Any, gradient: Any, noise: Any) -> Round:
        returned = type(self).function(self, state.X, k, graph, gradient, noise)
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise PluginError(
                "DPA043",
                f"{type(self).__name__} returns {kind(returned)}; expected the next x, and what is "
                "sent",
            )
        x, sent = returned
        return Round(StepState(x), {"x": broadcast(graph, sent)})

    def models(self, state: StepState) -> Tensor:
        return state.X


def config_of(step: Step, settings: Mapping[str, Any]) -> tuple[dict[str, Any], StepFunction]:
    """An audit's content, without data and network, and the defense.

    Args:
        settings: the options of ``StepFunction``, such as ``n_rounds``, ``batch_size``,
            ``clip_norm`` and ``noise_multiplier``; ``n_agents``; ``graph`` and ``model`` by name or
            as a table; ``claim`` as one table or several; other keys as in an audit file.

    Raises:
        ConfigError: a line for each option that is wrong.
    """
    name = getattr(step, "__name__", type(step).__name__)  # functools.partial has none
    _refuse_other_arguments(step, name)
    members = {"function": staticmethod(step), "__module__": step.__module__}
    defense = type(name, (StepFunction,), {**members, "__qualname__": name})
    known = {*AuditConfig.model_fields, "n_agents"}
    content = {key: value for key, value in settings.items() if key in known}
    options = {key: value for key, value in settings.items() if key not in known}
    try:
        made = defense(**options)
    except ValidationError as error:
        found = problems_of(error, defense, options)
        lines = (one._replace(text=f"{dotted(key) or name}: {one.text}") for key, one in found)
        raise ConfigError.of(lines) from None
    if "n_agents" in content:
        content["data"] = {"n_agents": content.pop("n_agents")}
    for table in ("graph", "model"):
        if isinstance(content.get(table), str):
            content[table] = {"name": content[table]}
    claims = content.get("claim")
    claims = [claims] if isinstance(claims, Mapping) else claims
    if isinstance(claims, list | tuple):
        content["claim"] = [{"text": name, **c} if isinstance(c, Mapping) else c for c in claims]
    return content, made


def _refuse_other_arguments(step: Step, name: str) -> None:
    """Raises PluginError: it cannot be called as a step is."""
    try:
        own = inspect.signature(step)
    except ValueError:  # a compiled function has no signature
        return
    try:
        own.bind(*ARGUMENTS)
    except TypeError:
        expected = f"expected {name}({', '.join(ARGUMENTS)})"
        said = f"{name}: its arguments are {own}; {expected}"
        raise PluginError(
            "DPA043", said, "self has clip_norm, sigma and the other options"
        ) from None


def refuse_missing(content: Mapping[str, Any]) -> None:
    """Raises ConfigError: an audit of a function names no graph, no network, or has no data."""
    lines = [
        Problem("DPA005", f"{table}: missing; expected a name, as {table}={name!r}", help)
        for table, (name, help) in MISSING.items()
        if table not in content
    ]
    if not {"name", "path"} & content.get("data", {}).keys():
        expected = "expected arrays (x, y) or a data set, after the function"
        help = "dpaudit.audit(step, (x, y), ...)"
        lines.append(Problem("DPA005", f"data: missing; {expected}", help))
    if lines:
        raise ConfigError.of(lines)
