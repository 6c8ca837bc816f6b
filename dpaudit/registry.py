"""Plug-ins by name, from entry points: ours and those of other installed packages alike."""

from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from .errors import ConfigError, nearest
from .strict import Strict

PluginFamily = Literal["defenses", "attacks", "reports"]


def installed(family: PluginFamily) -> dict[str, EntryPoint]:
    """Every installed plug-in of a family by name, in order; none is imported yet."""
    found = entry_points(group=f"dpaudit.{family}")
    return {ep.name: ep for ep in sorted(found, key=lambda ep: ep.name)}


def load_plugin(family: PluginFamily, name: str) -> Any:
    """Import one plug-in: an installed one by its name, or a class as "module:Class".

    Raises:
        ConfigError: there is none of this name, or its module cannot be imported.
    """
    plugins = installed(family)
    if ":" in name:
        plugins[name] = EntryPoint(name, name, f"dpaudit.{family}")
    if name not in plugins:
        raise ConfigError(f'no {family[:-1]} is called "{name}"{nearest(name, plugins)}')
    try:
        return _checked(plugins[name].load(), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f'{family[:-1]} "{name}" ({plugins[name].value}): {error}') from error
    except Exception as error:  # whatever a module of someone else's does when it is imported
        what = f"{type(error).__name__}: {error}"
        raise ConfigError(f'{family[:-1]} "{name}" cannot be imported: {what}') from error


def _checked(plugin: Any, name: str) -> Any:
    """A class named as "module:Class" may be anything; what is installed was meant to be one."""
    if ":" in name and not (isinstance(plugin, type) and issubclass(plugin, Strict)):
        raise ImportError("not a class of dpaudit's plug-ins")
    return plugin
