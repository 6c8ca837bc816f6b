"""Who may import whom, and what must not be loaded before it is needed."""

import ast
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.sources import nodes, parsed

ROOT = Path(__file__).parents[1]
FAMILIES = ("attacks", "defenses", "reports")  # at the top of the repository, dpaudit.* to import
BESIDE = (*FAMILIES, "recorder")
FLOORS = {  # a room imports rooms of lower floors
    "commands": 11,
    "benchmark": 10,
    "check": 10,
    "papers": 10,
    "selftest": 10,
    "capture": 9,
    "mechanism": 8,
    "pipeline": 7,
    "attacks": 7,
    "attack": 6,
    "conformance": 6,
    "training": 5,
    "defenses": 5,
    "game": 5,
    "defense": 4,
    "models": 4,
    "data": 3,
    "graphs": 3,
    "inputs": 3,
    "lint": 3,
    "statistics": 3,
    "reports": 3,
    "files": 2,
    "accounting": 2,
    "ledger": 3,
    "verify": 2,
    "information": 2,
    "recorder": 0,
}
GAME = ("probing", "filtering", "network", "estimating", "worst_case", "runs")  # from below
GROUND, FACE = 1, 12  # modules beside the rooms; the package itself
HEAVY = ("torch", "scipy", "pandas", "seaborn", "matplotlib", "sklearn")
MOST_LINES = {"function": 60, "module": 500}  # as CONTRIBUTING.md has it
TWO_NAMES = "recorder"  # the room that programs import by another name, and so relatively alone
RENDERED = "commands"  # the room that renders what the library found, and so names a report


Import = tuple[Path, tuple[str, ...], list[tuple[int, int, tuple[str, ...]]]]


def sources() -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Every file of the packages, and the parts of the name by which it is imported."""
    for top in ("dpaudit", *BESIDE):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if "build" in parts:  # of pip, which installs the recorder from its folder
                continue
            named = parts if top == "dpaudit" else ("dpaudit", *parts)
            yield path, named[:-1] if path.stem == "__init__" else named


def room(name: tuple[str, ...]) -> str:
    """The room of a module; "" of what lies on the ground, and of the package itself."""
    return name[1] if len(name) > 1 and name[1] in FLOORS else ""


def floor(name: tuple[str, ...]) -> int:
    return FLOORS[room(name)] if room(name) else FACE if len(name) == 1 else GROUND


def imports(path: Path, name: tuple[str, ...]) -> Iterator[tuple[int, int, tuple[str, ...]]]:
    """Line, level and absolute name of each import of ours, those inside functions too."""
    package = name if path.stem == "__init__" else name[:-1]
    for node in statements(parsed(path)):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else ()
            module = (*base, *(node.module.split(".") if node.module else ()))
            for alias in node.names:
                yield node.lineno, node.level, (*module, alias.name)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, 0, tuple(alias.name.split("."))


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All that stand below a node, at any depth."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield child
            yield from statements(child)


@cache
def every() -> list[Import]:
    return [(path, name, list(imports(path, name))) for path, name in sources()]


def test_every_folder_of_modules_is_a_room_with_a_floor() -> None:
    folders = {path.parent.relative_to(ROOT).parts for path, _, _ in every()}
    rooms = {parts[1] if parts[0] == "dpaudit" else parts[0] for parts in folders - {("dpaudit",)}}
    assert rooms == set(FLOORS)
    for path, name, _ in every():
        assert (path.parent / "__init__.py").exists(), path
        if path.stem == "__init__":
            said = ast.get_docstring(parsed(path))
            assert said, f"{'.'.join(name)} does not say its purpose"


def upward(every: Iterable[Import]) -> list[str]:
    """The imports that do not go down, as file and line."""
    return [
        f"{path.relative_to(ROOT)}:{line} imports {'.'.join(target)}"
        for path, name, found in every
        for line, _, target in found
        if target[:1] == ("dpaudit",)
        and room(target) != room(name)
        and floor(target) >= floor(name)
    ]


def test_imports_between_rooms_go_down() -> None:
    assert upward(every()) == []


def test_packages_of_the_game_import_those_below_them() -> None:
    for path, name, found in every():
        if name[:2] == ("dpaudit", "game") and len(name) > 3:
            used = {target[2] for _, _, target in found if target[:2] == name[:2]} & {*GAME}
            assert used <= {*GAME[: GAME.index(name[2]) + 1]}, path


@pytest.mark.parametrize(
    "code",
    [
        "from dpaudit.pipeline import run",
        "def f():\n    import dpaudit.graphs.graph",
        "from dpaudit import attacks",
        "from ..training import train",
    ],
)
def test_the_rule_sees_what_goes_up_or_beside(code: str, tmp_path: Path) -> None:
    path = tmp_path / "planted.py"
    path.write_text(code)
    name = ("dpaudit", "data", "planted")
    planted = (ROOT / "dpaudit" / "data" / "planted.py", name, list(imports(path, name)))
    assert len(upward([planted])) == 1


def test_a_neighbour_is_imported_relatively() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}"
        for path, name, found in every()
        for line, level, target in found
        if (level > 1 and room(name) != TWO_NAMES)
        or (level == 0 and len(name) > 2 and target[:-2] == name[:-1])
    ]
    assert wrong == []


def test_a_class_name_stands_for_one_class() -> None:
    """But for the state of each defense, and what the recorder, which imports nothing, has anew."""
    files = [path for path, parts in sources() if not {"defenses", "recorder"} & {*parts}]
    where = defaultdict(list)
    for path in files:
        for node in nodes(path):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where[node.name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in where.items() if len(paths) > 1} == {}


def too_long(path: Path) -> Iterator[str]:
    """What of a file has more lines than a reader should need to keep in mind."""
    text = path.read_text("utf-8")
    if len(text.splitlines()) > MOST_LINES["module"]:
        yield path.name
    for node in nodes(path):
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if is_function and node.end_lineno - node.lineno >= MOST_LINES["function"]:
            yield f"{path.name}:{node.lineno}: {node.name}"


def test_functions_and_modules_are_short() -> None:
    assert [found for path, _ in sources() for found in too_long(path)] == []


@pytest.mark.parametrize("lines, found", [(59, []), (60, ["one.py:1: f"])])
def test_a_function_of_one_line_too_many_is_found(lines, found, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("def f():\n" + "    pass\n" * lines)
    assert list(too_long(tmp_path / "one.py")) == found


def test_a_test_says_its_fact_in_under_60_characters() -> None:
    names = (
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)
    )
    assert [name for name in names if len(name) >= 60] == []


def test_the_recorder_imports_nothing_of_dpaudit_by_name() -> None:
    absolute = [
        f"{path.relative_to(ROOT)}:{line}"
        for path, name, found in every()
        for line, level, target in found
        if room(name) == TWO_NAMES and level == 0 and target[0] == "dpaudit"
    ]
    assert absolute == []


def test_families_are_never_imported_as_bare_names() -> None:
    bare = [
        f"{path.relative_to(ROOT)}:{line}"
        for path, _, found in every()
        for line, level, target in found
        if level == 0 and target[0] in BESIDE
    ]
    assert bare == []


def test_the_core_names_no_plug_in() -> None:
    """It finds the families through the registry, but for the page that a command renders and
    the detectors of the self-test, which are what the attacks are."""
    for path, name, found in every():
        if name[:1] == ("dpaudit",) and room(name) not in FAMILIES:
            named = {room(target) for _, _, target in found if target[:1] == ("dpaudit",)}
            named &= {*FAMILIES}
            allowed = {RENDERED: {"reports"}, "selftest": {"attacks"}}.get(room(name), set())
            assert named <= allowed, path


def test_the_files_room_has_no_torch() -> None:
    """By what is loaded: each of its modules in a process of its own."""
    modules = [".".join(name) for _, name, _ in every() if room(name) == "files"]
    assert_light(modules)


def test_what_help_waits_for_loads_nothing_heavy() -> None:
    rooms = [".".join(name) for _, name, _ in every() if room(name) == "check"]
    assert_light(["dpaudit", "dpaudit.commands.cli", "dpaudit.commands.terminal", *rooms])


def test_help_waits_for_no_model_of_a_file() -> None:
    """Building them takes as long as all the rest of it; rendering it, a third of the rest."""
    assert_light(["dpaudit.commands.cli"], ("pydantic", "rich.markdown", "rich.panel"))


def assert_light(modules: list[str], heavy: Iterable[str] = HEAVY) -> None:
    code = (
        "import importlib, sys\n"
        f"for module in {modules}:\n"
        "    importlib.import_module(module)\n"
        f"    assert not (loaded := set({[*heavy]}) & set(sys.modules)), (module, loaded)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_installed_entry_points_are_those_of_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for group, written in project["entry-points"].items():
        installed = {
            ep.name: ep.value for ep in entry_points(group=group) if ep.dist.name == "dpaudit"
        }
        assert installed == written, "install the project again: its entry points have changed"


def test_the_listed_packages_are_the_folders() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    there = {".".join(name) for path, name, _ in every() if path.stem == "__init__"}
    assert set(listed) == there
    assert len(listed) == len(there)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_knows_contracts_and_not_who_runs_it(family: str) -> None:
    allowed = {
        "reports": {"files"},
        "defenses": {"defense", "accounting", "files", "graphs"},
        "attacks": set(FLOORS) - {"commands", "check", "papers", "selftest", "pipeline"},
    }[family]
    for path, name, found in every():
        if room(name) == family:
            used = {room(target) for _, _, target in found if target[:1] == ("dpaudit",)}
            assert used - {"", family} <= allowed, path
