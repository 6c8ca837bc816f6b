"""Run by Python as it starts, in every child process of a run, which has this folder on its path.

It leaves the path at once, starts the recorder, and runs the ``sitecustomize`` that it stands
before, if there is one. The recorder needs nothing but the standard library, because the child may
be of another environment.
"""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder

_HERE = os.path.dirname(os.path.abspath(__file__))
_RECORDER = "dpaudit.inputs.recorder"  # the name under which dpaudit itself finds it again


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
    _run("sitecustomize", PathFinder.find_spec("sitecustomize", sys.path))
