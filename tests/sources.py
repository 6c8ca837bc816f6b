"""Modules of this repository as trees, each made once for all tests that read them."""

import ast
import gc
from functools import cache
from pathlib import Path


@cache
def parsed(path: Path) -> ast.Module:
    """Kept, so no garbage: to look for some in all trees takes three times as long as to make them."""
    gc.disable()
    try:
        return ast.parse(path.read_text("utf-8"))
    finally:
        gc.freeze()
        gc.enable()
