"""What an audit needs here: a device that torch sees, and packages that some defenses import."""

from importlib import import_module

import torch

from dpaudit.defense.contract import Defense
from dpaudit.errors import ConfigError, MissingPackage


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


def torch_device(name: str | torch.device, option: str) -> torch.device:
    """The device of this name.

    Args:
        option: how the caller asked for it, as the first words of the error.

    Raises:
        ConfigError: there is no such device, or it is a CUDA device, and this torch sees none.
    """
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        expected = "expected cpu, cuda, or cuda:1 and so on"
        raise ConfigError("DPA024", f"{option}: no device of torch; {expected}") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("DPA024", f"{option}: this torch sees no CUDA device")
    return device
