"""The commented audit.toml that `dpaudit init` writes."""

from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticUndefined

from dpaudit.registry import load_plugin

_HEAD = """\
# One file is one audit: dpaudit audit {file}
# Every key is checked; an unknown one is an error that names the nearest known one.
seed = 7

[data]
name = "digits"                    # dpaudit list datasets; or path = "my.npz" with x and y
partition = {{ kind = "even" }}     # or {{ kind = "dirichlet", alpha = 0.5 }}
n_agents = 10

[graph]
name = "complete"                  # dpaudit list graphs

[model]
name = "lenet"                     # dpaudit list models

"""

_CLAIM = """\

[[claim]]                          # what is promised
text = "{paper}"
epsilon = 0.5
delta = 1e-5
scope = "run"                      # message | round | run
adjacency = "add-remove"           # add-remove | replace-one | function | agent-identity | user
"""

_NO_CLAIM = """\

# No [[claim]]: this defense declares no noise, so there is no epsilon that it could promise.
"""

_PACKAGE = '# Needs the package {package}: pip install "{installed_by}"\n'

_TAIL = """\

[[threat_model]]
name = "eavesdropper"
kind = "external"                  # reads every link; links = [[0, 1]] for some

[[threat_model]]
name = "agent 3"
kind = "curious"                   # colluding with two or more agents
agents = [3]

[[attack]]
name = "likelihood-ratio"          # tells runs with and without one record apart
trials = 1000                      # runs of each world; more certify more

[[attack]]
name = "sensitivity"               # messages of neighbouring worlds against the stated bounds
rounds = [1, 20]                   # by default ten, up to the last one
restarts = 4                       # by default 16
steps = 20                         # by default 40
"""

_ATTACK = """
[[attack]]
name = "gradient-inversion"
message = "{message}"    # {description}
rounds = [{round}]
targets = 2                        # victims in each round; by default 8
"""

# What an audit needs beside a defense's own defaults.
_GIVEN: dict[str, Any] = {"n_rounds": 200, "batch_size": 16, "epsilon": 0.5}


def starter(name: str) -> str:
    """An audit file for the defense of this name, valid as it stands.

    It claims nothing of a defense without noise, which is its own twin without noise.

    Raises:
        ConfigError: no such defense.
    """
    defense = load_plugin("defenses", name)
    lines = [f"[defense]                          # {defense.paper}", f'name = "{name}"']
    options = _options(defense)
    for field in defense.model_fields:
        known = field in options
        lines.append(f"{field} = {_toml(options[field])}" if known else f"# {field} =")
    attacks = [
        _ATTACK.format(message=message, description=seen.description, round=_GIVEN["n_rounds"])
        for message, seen in defense.observables.items()
    ]
    chosen = _with_options(defense)
    packages = {} if chosen is None else chosen.packages
    needed = "".join(_PACKAGE.format(package=p, installed_by=by) for p, by in packages.items())
    noiseless = chosen is not None and chosen.without_noise() == chosen
    claim = _NO_CLAIM if noiseless else _CLAIM.format(paper=f"{defense.paper}: {defense.claims}")
    head = _HEAD.format(file="audit.toml") + needed
    return head + "\n".join(lines) + "\n" + claim + _TAIL + "".join(attacks)


def missing_package(name: str) -> str | None:
    """What the audit of ``starter`` needs and is not installed, in a line; None: nothing."""
    from dpaudit.pipeline import requirements

    chosen = _with_options(load_plugin("defenses", name))
    return None if chosen is None else requirements.missing_package(name, chosen)


def _options(defense: Any) -> dict[str, Any]:
    """What the file says of a defense: its own defaults, but for what an audit needs beside."""
    values = {name: _GIVEN.get(name, info.default) for name, info in defense.model_fields.items()}
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
