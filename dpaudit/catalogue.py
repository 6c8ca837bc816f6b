"""What `dpaudit list` shows: everything installed, built in or from other packages."""

from importlib.metadata import EntryPoint

from dpaudit import data, mixing, models, registry
from dpaudit.config import SENSORS
from dpaudit.reproductions import REPRODUCTIONS

Entry = dict[str, str]

_SENSORS = "each agent measures one unknown vector; no network; sensors = { m, p, scale }"


def catalogue(kind: str) -> list[Entry]:
    """Entries of one kind, each with its name and what there is to say about it.

    Args:
        kind: "defenses", "attacks", "graphs", "datasets", "models" or "experiments".
    """
    return {
        "defenses": _defenses,
        "attacks": _attacks,
        "graphs": lambda: _described(mixing.names()),
        "datasets": lambda: _described({**data.names(), SENSORS: _SENSORS}),
        "models": lambda: [{"name": name} for name in models.names()],
        "experiments": lambda: _described({n: r.description for n, r in REPRODUCTIONS.items()}),
    }[kind]()


def _defenses() -> list[Entry]:
    entries = []
    for name, entry_point in registry.available("defenses").items():
        defense = registry.load("defenses", name)
        entries.append(
            {
                "name": name,
                "paper": defense.paper,
                "claims": defense.claims,
                "messages": ", ".join(defense.messages),
                "package": _package(entry_point),
            }
        )
    return entries


def _attacks() -> list[Entry]:
    return [
        {
            "name": name,
            "does": (registry.load("attacks", name).__doc__ or "").strip().splitlines()[0],
            "package": _package(entry_point),
        }
        for name, entry_point in registry.available("attacks").items()
    ]


def _described(names: dict[str, str]) -> list[Entry]:
    return [{"name": name, "is": line} for name, line in names.items()]


def _package(entry_point: EntryPoint) -> str:
    return entry_point.dist.name if entry_point.dist is not None else ""
