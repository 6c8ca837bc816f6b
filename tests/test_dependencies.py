"""What pyproject.toml declares is what the packages import, and nothing else."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from dpaudit.pipeline.content import DECIDING
from dpaudit.pipeline.provenance import PACKAGES
from tests.sources import parsed

ROOT = Path(__file__).parents[1]
TOPS = ("dpaudit", "attacks", "defenses", "recorder", "reports")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OTHER_NAMES = {
    "scikit-learn": "sklearn",
    "scikit-image": "skimage",
    "pyyaml": "yaml",
    "ipython": "IPython",
    "pyzmq": "zmq",
}
PARTS = {  # of packages that ask for the version which they need
    "pydantic_core": "pydantic",
    "llvmlite": "numba",
}
LOADED_LAST = {  # modules that need an extra to be imported, and what imports them
    "dpaudit.commands.pytest_plugin": "pytest, by its entry point",
    "dpaudit.information.neighbours_compiled": "neighbours, which does without numba",
    "dpaudit.models.lockstep_compiled": "lockstep, without which gradients are computed as well",
}
OURS = {"dpaudit", *sys.stdlib_module_names}


def module_of(requirement: str) -> str:
    """The name by which a distribution is imported: "npeet-plus>=0.2" is npeet_plus."""
    name = re.split(r"[^\w.-]", requirement)[0].lower()
    return OTHER_NAMES.get(name, name.replace("-", "_"))


RUNTIME = {module_of(requirement) for requirement in PROJECT["dependencies"]}
EXTRAS = {
    name: {module_of(requirement) for requirement in requirements}
    for name, requirements in PROJECT["optional-dependencies"].items()
}


def third_party(node: ast.AST, for_types: bool) -> Iterator[str]:
    """Top-level modules of others that this code imports, by statement or by ``import_module``.

    Args:
        for_types: whether imports count that only a type checker sees.
    """
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and not for_types and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += reversed(node.orelse)
        else:
            waiting += reversed([*ast.iter_child_nodes(node)])
        if not isinstance(node, ast.Import | ast.ImportFrom | ast.Call):
            continue
        found: list[str] = []
        match node:
            case ast.Import(names=names):
                found = [alias.name for alias in names]
            case ast.ImportFrom(module=str(module), level=0):
                found = [module]
            case ast.Call(
                func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(module))],
            ):
                found = [module]
        tops = [name.split(".")[0] for name in found]
        yield from (PARTS.get(top, top) for top in tops if top not in OURS)


@cache
def modules_of(path: Path, for_types: bool) -> tuple[str, ...]:
    """What a file imports; for types it imports more only where it says so."""
    if not for_types and "TYPE_CHECKING" not in path.read_text("utf-8"):
        return modules_of(path, True)
    return (*third_party(parsed(path), for_types),)


@cache
def imported(for_types: bool) -> dict[str, set[str]]:
    """Third-party modules of the packages, and the files that import each."""
    found: dict[str, set[str]] = {}
    for top in TOPS:
        for path in sorted((ROOT / top).rglob("*.py")):
            for module in modules_of(path, for_types):
                found.setdefault(module, set()).add(path.relative_to(ROOT).as_posix())
    return found


def test_every_import_is_declared() -> None:
    declared = RUNTIME.union(*EXTRAS.values())
    assert {m: files for m, files in imported(for_types=True).items() if m not in declared} == {}


def test_every_dependency_is_imported() -> None:
    assert RUNTIME - imported(for_types=False).keys() == set()


@pytest.mark.parametrize("extra", ["fast", "paillier", "parquet"])
def test_every_extra_of_the_packages_is_imported_and_tested(extra: str) -> None:
    assert EXTRAS[extra] <= imported(for_types=False).keys()
    assert EXTRAS[extra] <= EXTRAS["test"]


def test_all_can_be_imported_without_the_extras() -> None:
    """Each module but those of ``LOADED_LAST``, in a process that has the dependencies alone."""
    modules = [
        ".".join(("dpaudit", *parts) if parts[0] != "dpaudit" else parts)
        for top in ("dpaudit", "attacks", "defenses", "reports")
        for path in sorted((ROOT / top).rglob("*.py"))
        if path.stem != "__init__"
        for parts in [path.relative_to(ROOT).with_suffix("").parts]
    ]
    assert set(modules) > LOADED_LAST.keys()
    missing = set().union(*EXTRAS.values()) - RUNTIME
    code = (
        "import importlib, sys\n"
        f"sys.modules.update(dict.fromkeys({sorted(missing)}))\n"  # None: not to be found
        "failed = {}\n"
        f"for module in {modules}:\n"
        "    try:\n"
        "        importlib.import_module(module)\n"
        "    except ImportError as error:\n"
        "        failed[module] = str(error)\n"
        f"assert failed.keys() == set({sorted(LOADED_LAST)}), failed"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("names", [PACKAGES, DECIDING], ids=["provenance", "cache"])
def test_versions_are_recorded_of_installed_packages(names: tuple) -> None:
    assert {module_of(name) for name in names} <= RUNTIME


@pytest.mark.parametrize(
    "code, modules",
    [
        ("import a.b, os", ["a"]),
        ("def f():\n    from a.b import c", ["a"]),
        ("from . import a", []),
        ("import dpaudit.rng", []),
        ("importlib.import_module('a.b')", ["a"]),
        ("try:\n    import_module('a')\nexcept ImportError:\n    import b", ["a", "b"]),
        ("if TYPE_CHECKING:\n    import a\nelse:\n    import b", ["b"]),
        ("from pydantic_core import x", ["pydantic"]),
    ],
)
def test_the_search_sees_imports_wherever_they_stand(code: str, modules: list[str]) -> None:
    assert list(third_party(ast.parse(code), for_types=False)) == modules
