"""Run by Python as it starts, in every process of a recorded program, which has it on its path.

It leaves the path at once, so that its neighbours hide no module of the program, and runs the
``sitecustomize`` that it stands before, if there is one.
"""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder
from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = "_dpaudit_inside"


def _begin() -> None:
    place = os.path.join(_HERE, "__init__.py")
    spec = importlib.util.spec_from_file_location(
        PACKAGE, place, submodule_search_locations=[_HERE]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules[PACKAGE] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    importlib.import_module(f"{PACKAGE}.start").start()


def _go_on() -> ModuleType | None:
    """The next ``sitecustomize`` on the path, in the place of this one."""
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return None
    sys.modules["sitecustomize"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "sitecustomize":
    sys.path[:] = [place for place in sys.path if not place or os.path.abspath(place) != _HERE]
    if "DPAUDIT_CAPTURE" in os.environ:
        _begin()
    _go_on()
