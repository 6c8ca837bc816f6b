"""Every benchmark starts, with its smallest sizes: they are run by hand, and must not rot."""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from dpaudit.files.published import ResultTables
from tests.some_fast import fast_if

FOLDER = Path(__file__).parents[1] / "benchmarks"
SMALL = {  # arguments, and constants of the module that no argument sets
    "accounting": ("--rounds 2 --dyn-rounds 20", {}),
    "clipped_gradients": ("--repeats 1 --only logistic", {}),
    "dpdl_training": ("--agents 2 --graph complete --rounds 1", {"BATCH": 4}),
    "exact_inversion": ("--batches 2 --repeats 1 --threads 1", {}),
    "full_runs": ("--trials 2 --repeats 1 --processes 0", {}),
    "inversion": ("--images 8 --peer 0", {}),  # and no images: its header alone
    "limits": ("", {}),
    "lint": ("tests/lint", {}),
    "mutual_information": ("--rounds 1 --trials 50 --workers 1", {}),
    "network_accounting": ("--readers 1", {"SIZES": ((16, 8),)}),
    "partpsp": ("--rounds 1 --repeats 1", {}),
    "performance": ("--pairs 1 --only network", {"GOSSIP": (16, 8), "LEAST": 1}),
    "power": ("--seeds 2 --runs 100", {}),
    "scores": ("--seeds 1", {"SIZES": (100,), "SHIFTS": (1.0,)}),
    "sensor_fusion": (
        "--trials 2 --block 1 --table-trials 2 --loop-trials 1",
        {"ROUNDS": 3, "RECORDED": (0, 3)},
    ),
    "shadow_models": ("--runs 1", {"ROUNDS": 2, "NOISES": ()}),
    "sparse_vector": ("--runs 200", {}),
    "text_gradients": ("--repeats 1", {}),
    "training": ("--data-root . --only", {}),  # no method: its header alone
    "unmixing": ("--agents 3 --rounds 3", {}),
}
SECONDS = (  # they take some; with make slow
    *("accounting", "clipped_gradients", "dpdl_training", "mutual_information", "partpsp"),
    *("performance", "sensor_fusion"),
)
APART = {  # in a process of their own
    "many_agents": "--agents 300 --rounds 2 --region 2 --dense 60",
    "load": "--help",
    "local_steps": "--help",
    "mechanism_peers": "--help",
    "scale": "--part 1 --agents 10 --batch 2 --rounds 1",
}
LONG = {
    "backends": "--cells 1 --trials 200 --workers 1",
    "capture": "",
    "each_record": "--repeats 1 --only fedan",
    "leaderboard": "2",
}
NEEDS = {
    "accounting": "dp_accounting",
    "backends": "ray",
    "full_runs": "opacus",
    "text_gradients": "opacus",
}


def module_of(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None  # noqa: PT018
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)  # which pickle asks for
    spec.loader.exec_module(module)
    return module


def started(name: str, arguments: str) -> str:
    """What a process of its own prints."""
    command = [sys.executable, str(FOLDER / f"{name}.py"), *arguments.split()]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize("name", fast_if(lambda name: name not in SECONDS, SMALL))
def test_it_runs_with_its_smallest_sizes(name, monkeypatch, capsys) -> None:
    pytest.importorskip(NEEDS.get(name, "torch"))
    arguments, constants = SMALL[name]
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setattr(sys, "argv", [name, *arguments.split()])
    module = module_of(name)
    for constant, value in constants.items():
        monkeypatch.setattr(module, constant, value)
    module.main()
    printed = capsys.readouterr().out
    assert printed
    assert "nan" not in printed


@pytest.mark.usefixtures("_one_thread")
def test_performance_names_what_is_missing_in_a_line(monkeypatch, capsys) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    performance = module_of("performance")
    assert performance.peer("no-such-peer", "no-such-peer>=2") is None
    assert capsys.readouterr().out == (
        "no-such-peer is not installed: pip install 'no-such-peer>=2'\n"
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["performance", "--device", "cuda"])
    with pytest.raises(SystemExit) as ended:
        performance.main()
    assert str(ended.value) == "error: --device cuda: this torch sees no CUDA device"


@pytest.mark.slow
@pytest.mark.parametrize("name", APART)
def test_it_starts(name) -> None:
    assert started(name, APART[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_the_long_ones_run(name) -> None:
    pytest.importorskip(NEEDS.get(name, "torch"))
    assert started(name, LONG[name])


def test_every_table_of_training_is_written_by_a_script() -> None:
    written = "".join(path.read_text() for path in FOLDER.glob("*.py"))
    tables = ResultTables.read(FOLDER.parent / "docs" / "results" / "training.json").tables
    assert [table.title for table in tables if f'"{table.title}"' not in written] == []


def test_none_is_forgotten() -> None:
    scripts = {path.stem for path in FOLDER.glob("*.py")} - {"published"}  # which others import
    assert scripts == {*SMALL, *APART, *LONG}
