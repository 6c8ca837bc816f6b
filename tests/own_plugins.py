"""The defenses of this repository, whatever other packages are installed beside it."""

from dpaudit.registry import installed

OWN = sorted(
    name for name, plugin in installed("defenses").items() if plugin.dist.name == "dpaudit"
)
