"""What a script imports that is imported once, before its runs are forked."""

import ast
from collections.abc import Iterator
from pathlib import Path

LARGE = ("numpy", "opacus", "pandas", "scipy", "sklearn", "torch", "torchvision")  # slow to import


def large_imports(script: Path) -> Iterator[str]:
    """What a script imports that takes seconds, which every rank of every world would spend."""
    text = script.read_text(errors="replace")
    beside = {path.stem for path in script.parent.iterdir()}
    if "optim" in text:  # whose first step imports it
        yield "torch._dynamo"
    try:
        parts = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):
        return
    for part in parts:
        named = [alias.name for alias in part.names] if isinstance(part, ast.Import) else []
        if isinstance(part, ast.ImportFrom) and part.module and not part.level:
            named = [part.module]
        for name in named:
            package = name.partition(".")[0]
            if package in LARGE and package not in beside:
                yield name
