"""Run by Python as it starts, in every child process of a run, which has this folder on its path.

It leaves the path at once, starts what the environment asks for, and runs the ``sitecustomize``
that it stands before, if there is one. What it starts needs nothing but the standard library,
because the child may be of another environment: the recorder of inputs, and the hooks of a captured
program, a package that is loaded from its folder.
"""

import importlib
import importlib.util
import json
import os
import sys
from importlib.machinery import PathFinder

_HERE = os.path.dirname(os.path.abspath(__file__))
_RECORDER = "dpaudit.inputs.recorder"  # the name under which dpaudit itself finds it again
_HOOKS = "_dpaudit_inside"


def _run(name: str, spec: "importlib.machinery.ModuleSpec | None") -> None:
    if spec is not None and spec.loader is not None:
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    sys.path[:] = [place for place in sys.path if not place or os.path.abspath(place) != _HERE]
    if "DPAUDIT_INPUTS" in os.environ:
        _file = os.path.join(os.path.dirname(_HERE), "recorder.py")
        _run(_RECORDER, importlib.util.spec_from_file_location(_RECORDER, _file))
        sys.modules[_RECORDER].follow()
    if _inside := json.loads(os.environ.get("DPAUDIT_CAPTURE", "{}")).get("inside"):
        _file = os.path.join(_inside, "__init__.py")
        _spec = importlib.util.spec_from_file_location(
            _HOOKS, _file, submodule_search_locations=[_inside]
        )
        _run(_HOOKS, _spec)
        importlib.import_module(f"{_HOOKS}.start").start()
    _run("sitecustomize", PathFinder.find_spec("sitecustomize", sys.path))
