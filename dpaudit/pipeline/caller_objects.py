"""A caller's own objects, each in the place of what an audit file would name."""

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .fork_server import importing_only_what_is_sent

if TYPE_CHECKING:
    from torch import nn

    from dpaudit.data.datasets import Dataset
    from dpaudit.defense.contract import Defense


@dataclass(frozen=True, eq=False)
class CallerObjects:
    """What a caller brings instead of naming it; None is what the config names.

    A network starts from its own parameters.
    """

    defense: "Defense | None" = None
    data: "Dataset | None" = None
    model: "nn.Module | None" = None

    def fill(self, content: dict[str, Any]) -> dict[str, Any]:
        """An audit's content with these objects written where a config would name them."""
        content = dict(content)
        if self.defense is not None:
            name = type(self.defense).__qualname__
            content["defense"] = {"name": name, **self.defense.model_dump(mode="json")}
        if self.data is not None:
            data = {key: value for key, value in content.get("data", {}).items() if key != "path"}
            content["data"] = {**data, "name": self.data.name}
        if self.model is not None:
            model = {key: value for key, value in content.get("model", {}).items() if key == "fix"}
            content["model"] = {**model, "name": type(self.model).__qualname__}
        return content

    @property
    def travels(self) -> bool:
        """Whether another process can be given these: they pickle, and by importable classes."""
        objects = [o for o in (self.defense, self.data, self.model) if o is not None]
        try:
            with importing_only_what_is_sent():  # not from a notebook or a script
                pickle.dumps(objects)
        except Exception:  # a caller's object may raise anything, as a scripted network does
            return False
        return True


NOTHING = CallerObjects()
