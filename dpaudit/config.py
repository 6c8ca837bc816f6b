"""AuditConfig: one TOML file is one audit. Every problem in it is found at once, one line each."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, model_validator

from dpaudit import registry
from dpaudit.claim import Claim
from dpaudit.errors import ConfigError, nearest
from dpaudit.options import EvenPartition, GraphOptions, PartitionOptions
from dpaudit.strict import Strict
from dpaudit.threat import ThreatModel
from dpaudit.toml_lines import line_of

Key = tuple[str | int, ...]
Problem = tuple[Key, str]


class DataConfig(Strict):
    """Which data set, and how it is split between the agents."""

    name: str | None = None
    path: Path | None = None  # an .npz file; relative to the file that names it
    partition: PartitionOptions = EvenPartition()
    n_agents: PositiveInt = 10

    @model_validator(mode="after")
    def _name_or_path(self) -> Self:
        if (self.name is None) == (self.path is None):
            raise ValueError("give either name or path")
        return self


class ModelConfig(Strict):
    """Which network."""

    name: str


class Plugin(BaseModel):
    """A plug-in's name, and beside it the options that are its own fields."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    def create(self, family: registry.Family) -> Any:
        """The plug-in itself, with these options."""
        return registry.load(family, self.name)(**self.options)


class AuditConfig(Strict):
    """Everything that decides the outcome of an audit, seed included."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    data: DataConfig
    graph: GraphOptions
    model: ModelConfig
    defense: Plugin
    claim: tuple[Claim, ...] = ()
    threat_model: Annotated[tuple[ThreatModel, ...], Field(min_length=1)] = (
        ThreatModel(name="eavesdropper", kind="external"),
    )
    attack: tuple[Plugin, ...] = ()

    @classmethod
    def from_toml(cls, path: Path, seed: int | None = None) -> "AuditConfig":
        """Read an audit file; ``seed`` replaces the one in it.

        Raises:
            ConfigError: one line for each problem, with file, line and key.
        """
        try:
            text = path.read_text(encoding="utf-8")
            content = tomllib.loads(text)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from None
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"{path}: not valid TOML: {error}") from None
        if seed is not None:
            content["seed"] = seed
        config, problems = _validated(content)
        if problems:
            lines = (_line(path, text, key, message) for key, message in problems)
            raise ConfigError("\n".join(lines))
        assert config is not None
        return config._with_data_path_relative_to(path.parent)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "AuditConfig":
        """The same from a dictionary, for code. Raises ConfigError."""
        config, problems = _validated(content)
        if problems:
            raise ConfigError("\n".join(f"{_dotted(key)}: {text}" for key, text in problems))
        assert config is not None
        return config

    def _with_data_path_relative_to(self, folder: Path) -> "AuditConfig":
        if self.data.path is None or self.data.path.is_absolute():
            return self
        data = self.data.model_copy(update={"path": (folder / self.data.path).resolve()})
        return self.model_copy(update={"data": data})


def _validated(content: dict[str, Any]) -> tuple[AuditConfig | None, list[Problem]]:
    try:
        config = AuditConfig.model_validate(content)
    except ValidationError as error:
        return None, list(_problems(error, AuditConfig, content))
    config, problems = _with_plugin_defaults(config)
    problems += _cross_checks(config) if not problems else []
    return config, problems


def _with_plugin_defaults(config: AuditConfig) -> tuple[AuditConfig, list[Problem]]:
    """Every plug-in's options checked by its own class and completed with its defaults."""
    problems: list[Problem] = []

    def completed(plugin: Plugin, family: registry.Family, at: Key) -> Plugin:
        try:
            options_class = registry.load(family, plugin.name)
            options = options_class.model_validate(plugin.options)
            return Plugin(name=plugin.name, **options.model_dump(mode="json"))
        except ValidationError as error:
            found = _problems(error, options_class, plugin.options)
            problems.extend(((*at, *key), text) for key, text in found)
        except ConfigError as error:
            problems.append(((*at, "name"), str(error)))
        return plugin

    attacks = tuple(
        completed(plugin, "attacks", ("attack", i)) for i, plugin in enumerate(config.attack)
    )
    defense = completed(config.defense, "defenses", ("defense",))
    return config.model_copy(update={"defense": defense, "attack": attacks}), problems


def _cross_checks(config: AuditConfig) -> list[Problem]:
    """What no single table can know: names and numbers that must fit one another."""
    return [
        *_repeated_names(config),
        *_agents_that_do_not_exist(config),
        *_unknown_threat_models(config),
        *_attacks_that_do_not_fit(config),
    ]


def _repeated_names(config: AuditConfig) -> Iterator[Problem]:
    seen: set[str] = set()
    for i, model in enumerate(config.threat_model):
        if model.name in seen:
            yield ("threat_model", i, "name"), f'another threat model is called "{model.name}"'
        seen.add(model.name)


def _agents_that_do_not_exist(config: AuditConfig) -> Iterator[Problem]:
    n = config.data.n_agents
    for i, model in enumerate(config.threat_model):
        named = {*model.agents, *(agent for link in model.links or () for agent in link)}
        for agent in sorted(a for a in named if not 0 <= a < n):
            yield (
                ("threat_model", i, "agents" if model.agents else "links"),
                f"there is no agent {agent}; with n_agents = {n} they are 0 to {n - 1}",
            )


def _unknown_threat_models(config: AuditConfig) -> Iterator[Problem]:
    known = {model.name for model in config.threat_model}
    for i, claim in enumerate(config.claim):
        if claim.threat_model is not None and claim.threat_model not in known:
            yield (
                ("claim", i, "threat_model"),
                f'no threat model is called "{claim.threat_model}"'
                f"{nearest(claim.threat_model, known)}",
            )
    for i, attack in enumerate(config.attack):
        for name in attack.options.get("threat_models") or ():
            if name not in known:
                yield (
                    ("attack", i, "threat_models"),
                    f'no threat model is called "{name}"{nearest(name, known)}',
                )


def _attacks_that_do_not_fit(config: AuditConfig) -> Iterator[Problem]:
    observables = registry.load("defenses", config.defense.name).observables
    n_rounds = config.defense.options["n_rounds"]
    for i, attack in enumerate(config.attack):
        message = attack.options.get("message")
        if message is not None and message not in observables:
            yield (
                ("attack", i, "message"),
                f'{config.defense.name} offers no "{message}"{nearest(message, observables)}; '
                f"it offers {', '.join(observables) or 'none'}",
            )
        for late in (r for r in attack.options.get("rounds", ()) if r > n_rounds):
            yield ("attack", i, "rounds"), f"round {late} is beyond the run of {n_rounds} rounds"


def _problems(
    error: ValidationError, model: type[BaseModel], content: dict[str, Any]
) -> Iterator[Problem]:
    for problem in error.errors(include_url=False):
        key = _key_in(content, problem["loc"])
        text = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            siblings = _siblings(model, problem["loc"][:-1])
            text = f"unknown key{nearest(str(problem['loc'][-1]), siblings)}"
            text += f"; known here: {', '.join(siblings)}" if siblings else ""
        elif problem["type"] == "union_tag_invalid":
            key = (*key, problem["ctx"]["discriminator"].strip("'"))
            known = [tag.strip("' ") for tag in problem["ctx"]["expected_tags"].split(",")]
            tag = problem["ctx"]["tag"]
            text = f'"{tag}" is not known{nearest(tag, known)}; known: {", ".join(known)}'
        elif problem["type"] != "missing" and not isinstance(problem["input"], dict):
            text += f", got {problem['input']!r}"
        yield key, text


def _key_in(content: Any, location: Key) -> Key:
    """The part of pydantic's location that is in the file: without tags of unions."""
    key: list[str | int] = []
    for part in location:
        inside = (isinstance(content, dict) and part in content) or (
            isinstance(content, list) and isinstance(part, int)
        )
        if inside:
            content = content[part]
            key.append(part)
    missing = bool(location) and (not key or location[-1] != key[-1])
    return (*key, location[-1]) if missing and isinstance(content, dict) else tuple(key)


def _siblings(model: type[BaseModel], location: Key) -> list[str]:
    """The keys that are known at a location: those of the last model met on the way to it."""
    current: Any = model
    for part in location:
        current = _step(current, part)
    fields = getattr(current, "model_fields", {})
    return list(fields)


def _step(annotation: Any, part: str | int) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        field = annotation.model_fields.get(str(part))
        return field.annotation if field is not None else annotation
    candidates = _models_in(annotation)
    tagged = [m for m in candidates if str(part) in _tags(m)]
    return tagged[0] if tagged else (candidates[0] if len(candidates) == 1 else annotation)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    arguments = getattr(annotation, "__args__", ())
    return [model for argument in arguments for model in _models_in(argument)]


def _tags(model: type[BaseModel]) -> set[str]:
    """The values of a model's fields that are literals, by which a union tells its members."""
    return {
        str(value)
        for field in model.model_fields.values()
        for value in getattr(field.annotation, "__args__", ())
        if isinstance(value, str)
    }


def _dotted(key: Key) -> str:
    text = ""
    for part in key:
        text += f"[{part + 1}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _line(path: Path, text: str, key: Key, message: str) -> str:
    line = line_of(text, key)
    where = f"{path}:{line}" if line else str(path)
    return f"{where}: {_dotted(key)}: {message}" if key else f"{where}: {message}"
