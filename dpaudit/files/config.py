"""AuditConfig: one TOML file is one audit. Every problem in it is found at once, one line each."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, model_validator

from dpaudit.errors import MOST_LINES, ConfigError, Problem, nearest
from dpaudit.registry import PluginFamily, load_plugin
from dpaudit.strict import Strict

from .claim import Claim
from .documents import reason, text_of, toml_from
from .file_problems import FileKey, FileProblem, dotted, problems_of, refusal
from .options import EvenPartition, GraphOptions, PartitionOptions, SensorOptions, TextOptions
from .threat import ThreatModel

LARGEST = 1e100  # largest float, so that its cube is finite
SMALLEST = 1e-100  # smallest float other than 0
LARGEST_COUNT = 10**9  # largest integer; memory and time end long before
MOST_ROUNDS = 10**6
MOST_AGENTS = 16384  # agents of one audit
MOST = 100  # claims, threat models or attacks of one audit
_Model = TypeVar("_Model", bound=BaseModel)
TEXT = "text"  # records are token ids, from a folder or, without a path, of an embedded corpus
SENSORS = "sensor-fusion"  # data without records: agents measure, and there is no network
FileKind = Literal["audit", "program", "mechanism", "claims", "benchmark"]

_READ_BY: Mapping[FileKind, tuple[str, str]] = {  # kind -> its name, and the command that reads it
    "audit": ("an audit file", "audit"),
    "program": ("the audit of a program", "audit"),
    "mechanism": ("the audit of a function", "audit"),
    "claims": ("a claims file", "check"),
    "benchmark": ("a benchmark file", "benchmark"),
}
_OF_AUDITS = {"data", "graph", "model", "defense", "claim", "threat_model", "attack"}
_OF_BENCHMARKS = {"axis", "cell", "exclude", "seeds", "audit"}
_LEAST = 2  # keys that make a file an audit; a single one may be misplaced


class DataConfig(Strict):
    """Which data set, and how it is split between the agents."""

    name: str | None = None
    path: Path | None = None  # an .npz file, or a folder of text, relative to the audit file
    scale: Literal["symmetric", "unit"] = "symmetric"  # range of pixels: [-1, 1] or [0, 1]
    partition: PartitionOptions = EvenPartition()
    n_agents: Annotated[int, Field(gt=0, le=MOST_AGENTS)] = 10
    sensors: SensorOptions | None = None  # only for sensor-fusion
    text: TextOptions | None = None  # only for text

    @model_validator(mode="after")
    def _name_or_path(self) -> Self:
        if (self.name is None) == (self.path is None) and self.name != TEXT:
            raise ValueError("give either name or path")
        if self.text is not None and self.name != TEXT:
            raise ValueError(f'text belongs to name = "{TEXT}"')
        if self.sensors is not None and self.name != SENSORS:
            raise ValueError(f'sensors belongs to name = "{SENSORS}"')
        return self


class ModelConfig(Strict):
    """Which network."""

    name: str
    fix: bool = False  # replace each BatchNorm by a GroupNorm
    width: PositiveInt | None = None  # width of the embeddings of bert-tiny and gpt-tiny; None: 64


class Plugin(BaseModel):
    """A plug-in's name, and beside it the options that are its own fields."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    def create(self, family: PluginFamily) -> Any:
        """The plug-in itself, with these options."""
        return load_plugin(family, self.name)(**self.options)


class AuditConfig(Strict):
    """Everything that decides the outcome of an audit, seed included."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    data: DataConfig
    graph: GraphOptions
    model: ModelConfig | None = None  # None only for sensor-fusion
    defense: Plugin
    claim: Annotated[tuple[Claim, ...], Field(max_length=MOST)] = ()
    threat_model: Annotated[tuple[ThreatModel, ...], Field(min_length=1, max_length=MOST)] = (
        ThreatModel(name="eavesdropper", kind="external"),
    )
    attack: Annotated[tuple[Plugin, ...], Field(max_length=MOST)] = ()

    @classmethod
    def from_toml(
        cls, path: Path, seed: int | None = None, fix_model: bool = False
    ) -> "AuditConfig":
        """Read an audit file; ``seed`` replaces the one in it, ``fix_model`` sets model.fix.

        Raises:
            ConfigError: one line for each problem, with file, line and key.
        """
        content, text = read_toml(path)
        refuse_other_kind(path, content, "audit")
        if seed is not None:
            content["seed"] = seed
        content = with_fixed_model(content, "--fix-model") if fix_model else content
        return cls.from_table(content, path, text, ())

    @classmethod
    def from_table(
        cls, content: dict[str, Any], path: Path, text: str, at: FileKey, defense: Any = None
    ) -> "AuditConfig":
        """The audit written at a key of a TOML file. Raises ConfigError as ``from_toml``.

        Args:
            defense: in the place of the one that ``content`` names and describes.
        """
        config, problems = validated(content, defense)
        if problems:
            raise refusal(path, text, problems, at)
        assert config is not None
        if config.data.path is None or config.data.path.is_absolute():
            return config
        data = config.data.model_copy(update={"path": (path.parent / config.data.path).resolve()})
        return config.model_copy(update={"data": data})

    @classmethod
    def from_dict(cls, content: dict[str, Any], defense: Any = None) -> "AuditConfig":
        """The same from a dictionary, for code. Raises ConfigError."""
        config, problems = validated(content, defense)
        if problems:
            found = (one._replace(text=f"{dotted(key)}: {one.text}") for key, one in problems)
            raise ConfigError.of(found)
        assert config is not None
        return config


def with_fixed_model(content: dict[str, Any], asked_by: str) -> dict[str, Any]:
    """An audit's content with model.fix set. Raises ConfigError if there is no network."""
    if not isinstance(content.get("model"), dict):
        raise ConfigError("DPA013", f"{asked_by}: this audit has no [model] to fix")
    return {**content, "model": {**content["model"], "fix": True}}


def kind_of(keys: Collection[str]) -> FileKind | None:
    """What a file with these keys is meant to be; None if that is unclear."""
    if "program" in keys:
        return "program"
    if "mechanism" in keys:
        return "mechanism"
    if len(_OF_AUDITS & {*keys}) >= _LEAST:
        return "audit"
    if "check" in keys:
        return "claims"
    return "benchmark" if _OF_BENCHMARKS & {*keys} else None


def refuse_other_kind(path: Path, content: Mapping[str, Any], *expected: FileKind) -> None:
    """Raises ConfigError: another command reads the file, and the line names it."""
    found = kind_of(content.keys())
    if found is not None and found not in expected:
        what, command = _READ_BY[found]
        raise ConfigError("DPA009", f"{path}: this is {what}: dpaudit {command} {path}")


def read_toml(path: Path) -> tuple[dict[str, Any], str]:
    """Content and text of a TOML file. Raises ConfigError."""
    try:
        text = text_of(path)
        return toml_from(text), text
    except OSError as error:
        raise ConfigError("DPA007", f"{path}: {reason(error)}") from None
    except ValueError as error:
        hint = "; it is named as JSON, which commands write" if path.suffix == ".json" else ""
        raise ConfigError("DPA008", f"{path}: not valid TOML: {reason(error)}{hint}") from None


def read_checked(
    path: Path,
    kind: FileKind,
    model: type[_Model],
    cross_checks: Callable[[_Model, Path], Iterable[FileProblem]],
) -> tuple[_Model, str]:
    """A TOML file of one kind and its text. Raises ConfigError with a line for each problem.

    Args:
        cross_checks: given the content and the file's folder.
    """
    content, text = read_toml(path)
    refuse_other_kind(path, content, kind)
    try:
        found = model.model_validate(content)
        problems = list(cross_checks(found, path.parent))
    except ValidationError as error:
        problems = list(problems_of(error, model, content))
    if problems:
        raise refusal(path, text, problems)
    return found, text


def validated(
    content: dict[str, Any], defense: Any = None
) -> tuple[AuditConfig | None, list[FileProblem]]:
    """The audit of this content, complete, and what is wrong with it; None with some problems."""
    missing = list(_model_problems(content))
    try:
        config = AuditConfig.model_validate(content)
    except ValidationError as error:
        return None, [*problems_of(error, AuditConfig, content), *missing]
    config, problems = _with_plugin_defaults(config, defense)
    named = {key for key, _ in problems}  # each number is refused once
    problems += [one for one in extreme_numbers(config.model_dump()) if one[0] not in named]
    problems += missing
    problems += _cross_checks(config, defense) if not problems else []
    return _with_drawn_agents(config), problems


def _with_drawn_agents(config: AuditConfig) -> AuditConfig:
    """The agents of adversaries whose number alone is given, drawn from the seed."""
    n = config.data.n_agents
    models = tuple(model.with_agents(config.seed, n) for model in config.threat_model)
    return config.model_copy(update={"threat_model": models})


def _model_problems(content: dict[str, Any]) -> Iterator[FileProblem]:
    """A network is trained on records; sensors have none."""
    data = content.get("data")
    sensors = isinstance(data, dict) and data.get("name") == SENSORS
    if sensors and content.get("model") is not None:
        yield ("model",), Problem("DPA013", f"{SENSORS} trains no network; leave [model] out")
    if not sensors and content.get("model") is None:
        yield ("model",), Problem("DPA002", "Field required")


def _with_plugin_defaults(
    config: AuditConfig, own_defense: Any
) -> tuple[AuditConfig, list[FileProblem]]:
    """Every plug-in's options checked by its own class and completed with its defaults."""
    problems: list[FileProblem] = []

    def completed(plugin: Plugin, family: PluginFamily, at: FileKey) -> Plugin:
        try:
            options_class = load_plugin(family, plugin.name)
            options = options_class.model_validate(plugin.options)
            return Plugin(name=plugin.name, **options.model_dump(mode="json"))
        except ValidationError as error:
            found = problems_of(error, options_class, plugin.options)
            problems.extend(((*at, *key), problem) for key, problem in found)
        except ConfigError as error:
            problems.append(((*at, "name"), error.problems[0]))
        return plugin

    attacks = tuple(
        completed(plugin, "attacks", ("attack", i)) for i, plugin in enumerate(config.attack)
    )
    defense = config.defense
    if own_defense is None:
        defense = completed(config.defense, "defenses", ("defense",))
    return config.model_copy(update={"defense": defense, "attack": attacks}), problems


def _cross_checks(config: AuditConfig, defense: Any) -> Iterator[FileProblem]:
    """What no single table can know: names and numbers that must fit one another."""
    n, known = config.data.n_agents, [model.name for model in config.threat_model]
    alike: dict[str, str] = {}  # names that a reader, or a file's name, cannot distinguish
    for i, model in enumerate(config.threat_model):
        other = alike.setdefault(model.likeness, model.name)
        if model.name in known[:i]:
            text = f'another threat model is called "{model.name}"'
            yield ("threat_model", i, "name"), Problem("DPA005", text)
        elif other != model.name:
            text = f'"{model.name}" differs from "{other}" by case, spaces or signs alone; '
            text += "expected names that nobody confuses"
            yield ("threat_model", i, "name"), Problem("DPA005", text)
        if model.drawn is not None and model.drawn >= n:
            text = f"draws {model.drawn} of {n} agents, which leaves nobody to attack; expected "
            text += f"{n - 1} at most"
            yield ("threat_model", i, "drawn"), Problem("DPA005", text)
        agents = {*model.agents, *(agent for link in model.links or () for agent in link)}
        agents |= set() if model.model_of is None else {model.model_of}
        agents |= set() if model.region is None else {*model.region.around}
        for agent in sorted(a for a in agents if not 0 <= a < n):
            text = f"there is no agent {agent}; with n_agents = {n} they are 0 to {n - 1}"
            key = "agents" if model.agents else "links" if model.links else "model_of"
            place: FileKey = ("region", "around") if model.region else (key,)
            yield ("threat_model", i, *place), Problem("DPA006", text)
    if (late := config.graph.never_arrives(config.defense.options["n_rounds"])) is not None:
        yield ("graph", "delay"), Problem("DPA005", late, "lower delay, or raise defense.n_rounds")
    for i, claim in enumerate(config.claim):
        if claim in config.claim[:i]:
            first = config.claim.index(claim) + 1
            text = f"says what claim[{first}] says; a claim is tested once"
            yield ("claim", i), Problem("DPA005", text)
        if claim.threat_model is not None and claim.threat_model not in known:
            text = f'no threat model is called "{claim.threat_model}"'
            text += nearest(claim.threat_model, known)
            yield ("claim", i, "threat_model"), Problem("DPA006", text)
    for i, attack in enumerate(config.attack):
        named = dict.fromkeys(attack.options.get("threat_models") or ())
        for j, name in enumerate(name for name in named if name not in known):
            hint = nearest(name, known) if j < MOST_LINES else ""  # only for lines that are shown
            text = f'no threat model is called "{name}"{hint}'
            yield ("attack", i, "threat_models"), Problem("DPA006", text)
    yield from _attacks_that_do_not_fit(config, defense)


def _attacks_that_do_not_fit(config: AuditConfig, own_defense: Any) -> Iterator[FileProblem]:
    defense = own_defense or load_plugin("defenses", config.defense.name)
    named = {
        "messages": defense.messages,
        "observables": defense.observables,
        "combinations": defense.combinations,
        "private": ("gradient", *defense.private),  # "gradient": what agents get, if none is named
        "views": ("view",),
        "mixtures": ("unmixed",),
    }
    n_rounds, n = config.defense.options["n_rounds"], config.data.n_agents
    for i, attack in enumerate(config.attack):
        plugin, named_models = load_plugin("attacks", attack.name), attack.options["threat_models"]
        for model in (m for m in config.threat_model if m.has_final_model):
            asked = named_models is None or model.name in named_models
            if asked and plugin.per_threat_model and model.access not in plugin.final_model:
                others = [m.name for m in config.threat_model if not m.has_final_model]
                needs = "parameters" if plugin.final_model else "messages"
                has = "losses of a final model" if plugin.final_model else "a final model"
                said = f'{attack.name} reads {needs}, and "{model.name}" has {has} alone; '
                said += f"expected some of {', '.join(others)}" if others else "remove this attack"
                yield ("attack", i, "threat_models"), Problem("DPA052", said)
        for option, tables in plugin.chooses.items():
            chosen = attack.options.get(option)
            offered = list(dict.fromkeys(name for t in tables for name in named[t]))
            if chosen is not None and chosen not in offered:
                said = f'{config.defense.name} offers no "{chosen}"{nearest(chosen, offered)}; '
                said += f"it offers {', '.join(offered) or 'none'}"
                yield ("attack", i, option), Problem("DPA006", said)
        for option, why in attack.create("attacks").validate_options(n_rounds, n):
            yield ("attack", i, option), Problem("DPA005", why)


def extreme_numbers(value: Any, at: FileKey = ()) -> Iterator[FileProblem]:
    """The numbers inside of a table whose size cannot be meant; a seed may be of any."""
    if isinstance(value, dict):
        inside: list[tuple[str | int, Any]] = [*value.items()]
    else:
        inside = [*enumerate(value)] if isinstance(value, list | tuple) else []
    for key, child in inside:
        if key != "seed":
            yield from extreme_numbers(child, (*at, key))
    if isinstance(value, bool):
        return
    most = MOST_ROUNDS if at[-1:] == ("n_rounds",) else LARGEST_COUNT
    if isinstance(value, int) and abs(value) > most:
        yield at, Problem("DPA004", f"expected an integer of at most {most:,}, got {value}")
    if isinstance(value, float) and value != 0 and not SMALLEST <= abs(value) <= LARGEST:
        said = f"expected 0 or a number of size {SMALLEST:g} to {LARGEST:g}, got {value!r}"
        yield at, Problem("DPA004", said)
