"""The commented audit.toml that `dpaudit init` writes."""

from pathlib import Path
from typing import Any

from jinja2 import Template
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticUndefined

from dpaudit.registry import load_plugin

_PAGE = Path(__file__).with_name("starter.toml.j2")
# What an audit needs beside a defense's own defaults.
_GIVEN: dict[str, Any] = {"n_rounds": 60, "batch_size": 16, "epsilon": 0.5}


def starter(name: str) -> str:
    """An audit file for the defense of this name, valid as it stands.

    It claims nothing of a defense without noise, which is its own twin without noise.

    Raises:
        ConfigError: no such defense.
    """
    defense = load_plugin("defenses", name)
    chosen = _with_options(defense)
    page = Template(_PAGE.read_text("utf-8"), trim_blocks=True, keep_trailing_newline=True)
    return page.render(
        name=name,
        defense=defense,
        options=_options(defense),
        packages={} if chosen is None else chosen.packages,
        noiseless=chosen is not None and chosen.without_noise() == chosen,
        graph=_graph(defense),
        promised=_promised(defense),
        published=_published(defense),
        toml=_toml,
    )


def missing_package(name: str) -> str | None:
    """What the audit of ``starter`` needs and is not installed, in a line; None: nothing."""
    from dpaudit.pipeline import requirements

    chosen = _with_options(load_plugin("defenses", name))
    return None if chosen is None else requirements.missing_package(name, chosen)


def _promised(defense: Any) -> dict[str, str]:
    """Scope, adjacency and delta of what a defense claims, in the words that it says it in."""
    said = defense.claims.replace("agent identity", "agent-identity")
    scope = "message" if "of one message" in said else "round" if "of each round" in said else "run"
    others = ("function", "agent-identity", "user")
    adjacency = next((change for change in others if change in said), "add-remove")
    return {"scope": scope, "adjacency": adjacency, "delta": "0" if "pure" in said else "1e-5"}


def _graph(defense: Any) -> str:
    """The complete one, unless the defense needs a server."""
    from dpaudit.graphs.graph import build_graph

    needed = defense.needs_graph
    return "complete" if needed is None or needed.holds(build_graph("complete", 4)) else "server"


def _published(defense: Any) -> dict[str, float]:
    """By option, the epsilon of a round of a published default, where the file has another."""
    fields = {name: info.default for name, info in defense.model_fields.items()}
    return {name: value.claimed_epsilon(1) for name, value in fields.items() if _is_budget(value)}


def _is_budget(value: object) -> bool:
    """Whether an option is a table that holds the budget of a round."""
    return isinstance(value, BaseModel) and "epsilon" in type(value).model_fields


def _options(defense: Any) -> dict[str, Any]:
    """What the file says of a defense: its own defaults, but for what an audit needs beside."""
    given = {"epsilon": _GIVEN["epsilon"]}
    values = {name: _GIVEN.get(name, info.default) for name, info in defense.model_fields.items()}
    values = {n: v.model_copy(update=given) if _is_budget(v) else v for n, v in values.items()}
    unset = (None, PydanticUndefined)
    return {name: value for name, value in values.items() if not any(value is u for u in unset)}


def _with_options(defense: Any) -> Any:
    """The defense of these options; None if it has an option without a default."""
    try:
        return defense(**_options(defense))
    except ValidationError:
        return None


def _toml(value: object) -> str:
    """A default as TOML: tables inline, options without a value left out."""
    if isinstance(value, BaseModel):
        value = value.model_dump()
    if isinstance(value, dict):
        pairs = (f"{key} = {_toml(v)}" for key, v in value.items() if v is not None)
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(v) for v in value)}]"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)
