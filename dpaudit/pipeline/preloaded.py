"""Imported by the server of forks: what workers use, which no collection of garbage looks at."""

import gc
from importlib import import_module

from .fork_server import imports

with imports():
    import_module("dpaudit.pipeline.run")
    gc.freeze()
