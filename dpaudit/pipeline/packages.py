"""Packages that only some defenses need: which of them are not installed, said before any work."""

from importlib import import_module

from dpaudit.defense.contract import Defense
from dpaudit.errors import MissingPackage


def missing_package(name: str, defense: Defense) -> str | None:
    """What the defense of this name needs and cannot import, in a line; None: nothing."""
    for module, installed_by in defense.packages.items():
        try:
            import_module(module)
        except ImportError:
            return f'{name} needs the package {module}: pip install "{installed_by}"'
    return None


def refuse_missing_packages(name: str, defense: Defense) -> None:
    """Raises MissingPackage: the defense of this name cannot be played here."""
    if (line := missing_package(name, defense)) is not None:
        raise MissingPackage("DPA023", line)
