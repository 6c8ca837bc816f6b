"""What `dpaudit list` shows: everything installed, built in or from other packages."""

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel

from dpaudit.data import datasets as data
from dpaudit.defense.contract import Defense
from dpaudit.errors import ConfigError
from dpaudit.files.config import SENSORS
from dpaudit.graphs import mixing
from dpaudit.models.networks import NETWORKS
from dpaudit.models.token_networks import TOKEN_NETWORKS
from dpaudit.papers.declared import EXPERIMENTS, described
from dpaudit.registry import PluginFamily, contested, installed, load_plugin

Listing = dict[str, str]


class Catalogue(NamedTuple):
    """What there is of one kind, and a line for each plug-in that cannot be used."""

    entries: list[Listing]
    problems: list[str]


_SWITCHES = {"allow_outside_theory", "noise_free"}
_SENSORS = "each agent measures one unknown vector; no network; sensors = { m, p, scale }"


def catalogue(kind: str) -> Catalogue:
    """Entries of one kind, each with its name and what there is to say about it.

    Args:
        kind: "defenses", "attacks", "graphs", "datasets", "models" or "experiments".
    """
    match kind:
        case "defenses":
            return _plugins("defenses", _defense)
        case "attacks":
            return _plugins(
                "attacks",
                lambda attack: {"does": (attack.__doc__ or "").strip().partition("\n")[0]},
            )
        case "models":
            of_tokens = {name: {"takes": "token ids"} for name in TOKEN_NETWORKS}
            facts: dict[str, Listing] = {name: {} for name in NETWORKS} | of_tokens
        case "experiments":
            facts = {name: described(one) for name, one in EXPERIMENTS.items()}
        case _:
            sets = {**data.dataset_names(), SENSORS: _SENSORS}
            names = mixing.graph_names() if kind == "graphs" else sets
            facts = {name: {"is": text} for name, text in names.items()}
    return Catalogue([{"name": name, **about} for name, about in facts.items()], [])


def markdown(entries: list[dict[str, str]]) -> str:
    """The page docs/defenses.md: one row for each defense."""
    rows = "".join(
        f"| `{e['name']}` | {_cell(e['paper'])} | {_cell(e['claims'])} | {_cell(e['variants'])} | "
        f"{_cell(e['messages'])} | {_cell(e['reconstructed'].removeprefix('reconstructed: '))} |\n"
        for e in entries
    )
    return f"{_PAGE}{rows}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


_PAGE = """# Choose a built-in defense

Written by `dpaudit list defenses --markdown docs/defenses.md`. What is reconstructed is not the
authors' own: no available text gives it, and the class's docstring says how it is read here. Run
one with `name` in `[defense]` of an audit file; its options are the fields of its class.
[How to add one](write-a-defense.md), [what stands of their claims](findings.md), [what they cost in
accuracy](training.md).

| name | paper | claims | variants | messages | reconstructed |
|---|---|---|---|---|---|
"""


def _plugins(family: PluginFamily, described: Callable[[Any], Listing]) -> Catalogue:
    found = Catalogue([], [*contested(family).values()])
    for name, entry_point in installed(family).items():
        try:
            facts = {key: str(fact) for key, fact in described(load_plugin(family, name)).items()}
        except ConfigError as problem:
            found.problems.append(str(problem))
        except Exception as error:  # a plug-in of someone else's must not hide the others
            what = " ".join(f"{type(error).__name__}: {error}".split())
            said = ConfigError("DPA042", f'{family[:-1]} "{name}" cannot be described: {what}')
            found.problems.append(str(said))
        else:
            package = entry_point.dist.name if entry_point.dist is not None else ""
            found.entries.append({"name": name, **facts, "package": package})
    return found


def _defense(defense: type[Defense]) -> Listing:
    return {
        "paper": defense.paper,
        "claims": defense.claims,
        "variants": "; ".join(sorted(_variants(defense))),
        "messages": ", ".join(defense.messages),
        "reconstructed": f"reconstructed: {defense.reconstructed}" if defense.reconstructed else "",
    }


def _variants(options: type[BaseModel]) -> Iterator[str]:
    """The options that choose between algorithms or readings, and the names they choose from.

    What every defense has is left out, and the switches that turn noise or refusals off.
    """
    for name in options.model_fields.keys() - Defense.model_fields.keys() - _SWITCHES:
        annotation = options.model_fields[name].annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from (f"{name}.{variant}" for variant in _variants(annotation))
        elif annotation is bool:
            yield name
        elif choices := _choices(annotation):
            yield f"{name} = {' | '.join(choices)}"


def _choices(annotation: Any) -> list[str]:
    """The names in an annotation, and dots for what else it takes; none if it takes no name."""
    parts = [annotation] if get_origin(annotation) is Literal else get_args(annotation)
    names = [n for part in parts if get_origin(part) is Literal for n in get_args(part)]
    others = any(get_origin(part) is not Literal for part in parts)
    return [str(name) for name in names] + (["..."] if names and others else [])
