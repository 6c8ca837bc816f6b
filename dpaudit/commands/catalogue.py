"""What `dpaudit list` shows: everything installed, built in or from other packages."""

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from dpaudit.data import datasets as data
from dpaudit.defense.contract import Defense
from dpaudit.files.config import SENSORS
from dpaudit.graphs import mixing
from dpaudit.models import models
from dpaudit.papers.reproductions import REPRODUCTIONS
from dpaudit.registry import installed, load_plugin

Listing = dict[str, str]

_SWITCHES = {"allow_outside_theory", "noise_free"}
_SENSORS = "each agent measures one unknown vector; no network; sensors = { m, p, scale }"


def catalogue(kind: str) -> list[Listing]:
    """Entries of one kind, each with its name and what there is to say about it.

    Args:
        kind: "defenses", "attacks", "graphs", "datasets", "models" or "experiments".
    """
    return {
        "defenses": _defenses,
        "attacks": _attacks,
        "graphs": lambda: _described(mixing.graph_names()),
        "datasets": lambda: _described({**data.dataset_names(), SENSORS: _SENSORS}),
        "models": lambda: [{"name": name} for name in models.model_names()],
        "experiments": lambda: _described({n: r.description for n, r in REPRODUCTIONS.items()}),
    }[kind]()


def _defenses() -> list[Listing]:
    entries = []
    for name, entry_point in installed("defenses").items():
        defense = load_plugin("defenses", name)
        entries.append(
            {
                "name": name,
                "paper": defense.paper,
                "claims": defense.claims,
                "variants": "; ".join(sorted(_variants(defense))),
                "messages": ", ".join(defense.messages),
                "package": _package(entry_point),
            }
        )
    return entries


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


def _attacks() -> list[Listing]:
    return [
        {
            "name": name,
            "does": (load_plugin("attacks", name).__doc__ or "").strip().splitlines()[0],
            "package": _package(entry_point),
        }
        for name, entry_point in installed("attacks").items()
    ]


def _described(names: dict[str, str]) -> list[Listing]:
    return [{"name": name, "is": line} for name, line in names.items()]


def _package(entry_point: EntryPoint) -> str:
    return entry_point.dist.name if entry_point.dist is not None else ""
