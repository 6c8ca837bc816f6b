"""Programs that send by sockets, HTTP, WebSocket, gRPC and ZeroMQ, audited by what these carry."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from dpaudit.capture.audit import run_captured
from dpaudit.errors import RunError
from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.finding import Name, Role
from dpaudit.files.verdict import Verdict

WIRES = Path(__file__).parent / "programs" / "wires.py"
NEEDS = {
    **{how: how for how in ("zmq", "grpc", "requests", "httpx", "aiohttp", "websockets", "ray")},
    "mpi": "mpi4py",
}  # beside the standard library


def draws() -> str:
    """The line that draws noise, at which a round begins."""
    lines = enumerate(WIRES.read_text().splitlines(), 1)
    [number] = [i for i, line in lines if "rng.normal(0.0, SIGMA" in line]
    return f"wires.py:{number}"


def config(
    how: str,
    python: Path,
    *fault: str,
    rounds: tuple[int, ...] = (1, 2),
    victims: tuple[int, ...] = (0, 1),
) -> CapturedConfig:
    """Of a right program one agent is audited: of all, hundreds of runs would examine premises."""
    launcher = ("mpiexec", "-n", "2") if how == "mpi" else ()
    program = {"command": (*launcher, "python", "wires.py", how, *fault), "folder": WIRES.parent}
    return CapturedConfig.model_validate(
        {
            "program": {**program, "python": python, "ranks": 2},
            "messages": {"round_starts_at": draws()},
            "noise": {"sites": (draws(),)},
            "record": {
                "victims": victims if fault else (0,),
                "rounds": rounds,
                "candidates": ("present",),
            },
            "certify": {"runs": 0},
            "claim": ({"text": "a round", "mu": 1.0, "scope": "round"},),
        }
    )


def assert_measured(given: CapturedConfig, out: Path, mu: float) -> None:
    """Of each victim: a record of norm 1, over noise of standard deviation 1 / mu."""
    result = run_captured(given, out, cores=1)
    [measured] = [f for f in result.findings if f.role is Role.MEASURED]
    assert measured.value(Name.LARGEST_MU_OF_A_ROUND) == pytest.approx(mu, rel=1e-9)
    assert (result.verdict is Verdict.UNSUPPORTED) == (mu > 1)
    assert len(result.notes) == 1  # no message was left out
    assert result.graph is not None
    assert {(0, 1), (1, 0)} <= {tuple(link) for link in result.graph.links}


@pytest.mark.slow
def test_a_fault_is_found_by_the_bytes_of_sockets(tmp_path: Path, numpy_alone: Path) -> None:
    given = config("socket", numpy_alone, "halved", rounds=(1,), victims=(0,))
    assert_measured(given, tmp_path / "out", 2.0)


def test_an_agent_seen_only_by_receivers_is_no_victim(tmp_path: Path, numpy_alone: Path) -> None:
    with pytest.raises(RunError, match="messages of agent 0 were seen where they are received"):
        run_captured(config("foreign", numpy_alone), tmp_path / "out", cores=1)


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "mu"), [((), 1.0), (("halved",), 2.0)], ids=["right", "halved"])
@pytest.mark.parametrize("how", ["socket", "asyncio", "http", *NEEDS])
def test_a_transport_shows_what_is_measured(
    how: str, fault: tuple[str, ...], mu: float, tmp_path: Path
) -> None:
    if how in NEEDS and find_spec(NEEDS[how]) is None:
        pytest.skip(f"needs {NEEDS[how]}: tests/environments.py has it")
    assert_measured(config(how, Path(sys.executable), *fault), tmp_path / "out", mu)
