"""Run by Python as it starts, in every child process of a run, which has this folder on its path.

It leaves the path at once, starts what the environment asks for, and runs the ``sitecustomize``
that it stands before, if there is one. What it starts needs nothing but the standard library of
Python 3.8, because the child may be of another environment: the recorder of inputs, and the
recorder of programs, a package that is loaded from its folder.
"""

import importlib
import importlib.util
import json
import os
import sys
from importlib.machinery import PathFinder

_HERE = os.path.dirname(os.path.abspath(__file__))
_INPUTS = "dpaudit.inputs.recorder"  # the name under which dpaudit itself finds it again
_PROGRAMS = "dpaudit_recorder"


def _run(name: str, spec: "importlib.machinery.ModuleSpec | None") -> None:
    if spec is not None and spec.loader is not None:
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    sys.path[:] = [place for place in sys.path if not place or os.path.abspath(place) != _HERE]
    if sys.version_info >= (3, 8):  # noqa: UP036  of the child
        if "DPAUDIT_INPUTS" in os.environ:
            _file = os.path.join(os.path.dirname(_HERE), "recorder.py")
            _run(_INPUTS, importlib.util.spec_from_file_location(_INPUTS, _file))
            sys.modules[_INPUTS].follow()
        _options = json.loads(os.environ.get("DPAUDIT_RECORDER", "{}"))
        if _options:
            _file = os.path.join(_options["package"], "__init__.py")
            _spec = importlib.util.spec_from_file_location(
                _PROGRAMS, _file, submodule_search_locations=[_options["package"]]
            )
            _run(_PROGRAMS, _spec)
            if _options["folder"]:  # otherwise a server names it, and starts the hooks
                importlib.import_module(_PROGRAMS + ".start").start()
    _run("sitecustomize", PathFinder.find_spec("sitecustomize", sys.path))
