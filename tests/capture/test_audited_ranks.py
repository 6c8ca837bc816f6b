"""Programs of torch.distributed, audited whole: a right one, planted faults, and what is refused."""

import socket
import sys
from math import inf
from pathlib import Path
from typing import Any

import pytest

from dpaudit.capture import program
from dpaudit.capture.audit import run_captured
from dpaudit.errors import DpauditError
from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.finding import Name, Role
from dpaudit.files.result import AuditResult
from dpaudit.files.verdict import Verdict

from .sheets import GUESTS
from .test_refusals import SECOND_FAILS_FIRST

CLAIM = {"text": "a round", "mu": 1.0, "scope": "round"}
TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node", "2")
PARTS: dict[str, dict[str, Any]] = {
    "record": {"victims": (0,), "candidates": ("present", "scaled")},
    "certify": {"runs": 0},
}


def line(script: Path, text: str) -> str:
    """The call site of the only line of a script that has a text."""
    [number] = [i for i, said in enumerate(script.read_text().splitlines(), 1) if text in said]
    return f"{script.name}:{number}"


def audited(
    out: Path,
    command: tuple[str, ...],
    folder: Path = GUESTS,
    sites: tuple[str, ...] = (),
    claim: dict[str, Any] = CLAIM,
    seconds: float = 120.0,
    **parts: dict[str, Any],
) -> AuditResult:
    config = CapturedConfig.model_validate(
        {
            "program": {"command": command, "folder": folder, "ranks": 2, "seconds": seconds},
            "noise": {"sites": sites},
            "claim": (claim,),
            **PARTS,
            **parts,
        }
    )
    return run_captured(config, out, cores=1)


def gossip(out: Path, fault: str, *arguments: str, runs: int = 0, **more: Any) -> AuditResult:
    text = "Laplace(" if "--laplace" in arguments else "randn_like"
    command = (*TORCHRUN, "dp_gossip.py", "--fault", fault, *arguments)
    parts = {"sites": (line(GUESTS / "dp_gossip.py", text),), "certify": {"runs": runs}, **more}
    return audited(out, command, **parts)


def measured(result: AuditResult, name: Name = Name.LARGEST_MU_OF_A_ROUND) -> float:
    [finding] = [f for f in result.findings if f.role is Role.MEASURED]
    return finding.value(name) or 0.0


@pytest.mark.slow
@pytest.mark.parametrize("victims", [(0,), (0, 1)])
def test_a_right_program_is_measured_at_its_claim(tmp_path: Path, victims: tuple) -> None:
    record = {"victims": victims, "candidates": ("present", "scaled")}
    result = gossip(tmp_path, "none", runs=8, record=record)
    assert measured(result) == pytest.approx(1.0, abs=1e-3)
    assert result.verdict is Verdict.UNDERPOWERED
    assert "does not contradict it" in result.claims[0].reason
    assert not (tmp_path / "worlds").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "said", "least", "most"),
    [
        ("halved", "what was measured of a record and the noise gives", 1.999, 2.001),
        ("no-clip", "what was measured of a record and the noise gives", 100, 10_000),
        ("clip-of-the-batch", "what was measured of a record and the noise gives", 5, 20),
        ("same-noise", "draws repeat an earlier one", 0.999, 1.001),
        ("one-link", "of round 1 from agent 1 to 0 moves with the record, and no noise", inf, inf),
    ],
)
def test_a_fault_is_measured_and_named(
    tmp_path: Path, fault: str, said: str, least: float, most: float
) -> None:
    record = {"victims": (0, 1), "rounds": (1, 3), "candidates": ("present", "negated")}
    result = gossip(tmp_path, fault, record=record)
    assert result.verdict is Verdict.UNSUPPORTED
    assert said in result.claims[0].reason
    assert least <= measured(result) <= most


@pytest.mark.slow
def test_laplace_noise_is_measured_in_its_own_units(tmp_path: Path) -> None:
    """The change of a record of L2 norm 1 has an L1 norm between 1 and the root of 11."""
    claim = {"text": "a round", "epsilon": 3.5, "delta": 0, "scope": "round"}
    result = gossip(tmp_path, "none", "--laplace", claim=claim)
    [finding] = [f for f in result.findings if f.role is Role.MEASURED]
    assert 1 < (finding.metrics[Name.EPSILON].low or 0) < 11**0.5
    assert measured(result) == 0.0
    assert "does not contradict it" in result.claims[0].reason


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "refuted"), [("none", False), ("halved", True)])
def test_short_runs_refute_halved_noise_alone(tmp_path: Path, fault: str, refuted: bool) -> None:
    """Both seeds are fixed; a tight claim is refuted with probability 5% at most by another."""
    record = {"victims": (0, 1), "candidates": ("present", "scaled")}
    result = gossip(tmp_path, fault, runs=500, record=record)
    [test] = [f for f in result.findings if f.role is Role.TEST]
    assert (result.verdict is Verdict.REFUTED) == refuted
    assert (test.metrics[Name.P_VALUE].value < 0.01) == refuted


SCRIPT = """
import os, sys
import numpy as np, torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from dpaudit import tap

def work(rank):
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(rank)
    data = TensorDataset(torch.ones(8, 3) / 3**0.5)
    for (x,) in LOADER:
        torch.randn(1)  # a round begins
        parts = [x[:, i].sum() for i in range(3)]
        message = [part + NOISE for part in parts]
        total = torch.stack(message)
        stack = torch.zeros(2, 3)
        stack[rank] = total
        EXCHANGE

work(int(os.environ["RANK"]))
"""
LAYERS = """for part in message:  # one line sends every layer
            got = torch.empty(())
            request = dist.isend(part, 1 - rank)
            dist.recv(got, 1 - rank)
            request.wait()"""

GATHER = "dist.all_gather([total + 0, total + 0], total)"


def script(
    folder: Path,
    noise: str = "torch.normal(0.0, 1.0, ())",
    exchange: str = LAYERS,
    loader: str = "DataLoader(data, 4)",
) -> Path:
    folder.mkdir(exist_ok=True)
    text = SCRIPT.replace("LOADER", loader).replace("NOISE", noise)
    (folder / "train.py").write_text(text.replace("EXCHANGE", exchange))
    return folder / "train.py"


def played(tmp_path: Path, at: str = "message = [", **kinds: Any) -> AuditResult:
    parts = {key: kinds.pop(key) for key in ("messages", "seconds") if key in kinds}
    path = script(tmp_path / "program", **kinds)
    sites = (line(path, at),) if at else ()
    return audited(tmp_path / "out", (*TORCHRUN, "train.py"), path.parent, sites, **parts)


@pytest.mark.slow
def test_layers_that_one_line_sends_are_messages_of_one_round(tmp_path: Path) -> None:
    """Three numbers of 1 / sqrt(3) with noise of 1 each, of a record that may be ten times it."""
    begins = line(script(tmp_path / "program"), "a round begins")
    result = played(tmp_path, messages={"round_starts_at": begins})
    assert measured(result) == pytest.approx(10.0, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reductions", "exchange", "low", "most"),
    [
        ("contributions", "dist.all_reduce(total)", 10.0, 10.0),
        ("rows of a padded stack", "dist.all_reduce(stack)", 10.0, 10.0),
        ("sum only", "dist.all_reduce(total)", 0.0, 10 / 2**0.5),
    ],
)
def test_what_a_reduction_shows(
    tmp_path: Path, reductions: str, exchange: str, low: float, most: float
) -> None:
    """In a sum the noise of both ranks hides the record: an upper figure, which refutes nothing."""
    result = played(tmp_path, messages={"reductions": reductions}, exchange=exchange)
    assert measured(result) == pytest.approx(most, rel=1e-3)
    [finding] = [f for f in result.findings if f.role is Role.MEASURED]
    assert ((finding.metrics[Name.EPSILON].low or 0.0) > 0) == (low > 0)


@pytest.mark.slow
def test_a_diagnostic_message_is_left_out_and_named(tmp_path: Path) -> None:
    """What it shows, the record without noise, is judged only where it is not ignored."""
    mean = "dist.all_reduce(x.mean(0))  # for the log"
    exchange = f"{GATHER}\n        {mean}"
    site = line(script(tmp_path / "program", exchange=exchange), "# for the log")
    result = played(tmp_path, exchange=exchange, messages={"ignore": (site,)})
    assert measured(result) == pytest.approx(10.0, rel=1e-3)
    assert f"Messages of {site} were left out as diagnostics" in result.notes[1]
    assert site in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.slow
def test_what_is_no_diagnostic_is_judged(tmp_path: Path) -> None:
    exchange = f"{GATHER}\n        dist.all_reduce(x.mean(0))"
    assert measured(played(tmp_path, exchange=exchange)) == inf


@pytest.mark.slow
def test_the_tap_shows_what_ranks_do_otherwise(tmp_path: Path) -> None:
    """Noise of NumPy, batches without a loader, and messages that torch.distributed never sees."""
    path = script(
        tmp_path / "program",
        noise="tap.noise(rank, 'numpy', np.random.normal(), 1.0)",
        exchange="tap.send(rank, 1 - rank, 'stack', total)\n        dist.barrier()",
        loader="(tap.batch(rank, (data.tensors[0][:4],)) for _ in range(2))",
    )
    result = audited(tmp_path / "out", (*TORCHRUN, "train.py"), path.parent, ("numpy",))
    assert measured(result) == pytest.approx(10.0, rel=1e-3)
    assert {f.role for f in result.findings} >= {Role.MEASURED, Role.NOISE}


WITHOUT_TORCH = """
import multiprocessing, sys
import numpy as np
from dpaudit import tap

def agent(i, pipe):
    np.random.seed(i)
    for _ in range(2):
        x = tap.batch(i, np.full((4, 2), 0.5**0.5))
        noise = tap.noise(i, "z", np.random.normal(size=2), 1.0)
        pipe.send(tap.send(i, 1 - i, "x", x.sum(0) + noise))
        pipe.recv()

if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    each = [context.Process(target=agent, args=one) for one in enumerate(context.Pipe())]
    for one in each:
        one.start()
    for one in each:
        one.join()
    sys.exit(any(one.exitcode for one in each))
"""


@pytest.mark.slow
def test_processes_without_torch_are_shown_by_the_tap(tmp_path: Path) -> None:
    """They seed themselves after dpaudit has: no draw of one is that of the other."""
    (tmp_path / "program.py").write_text(WITHOUT_TORCH)
    record = {"victims": (0,), "candidates": ("present",)}
    result = audited(tmp_path / "out", (sys.executable, "program.py"), tmp_path, record=record)
    assert measured(result) == pytest.approx(1.0, abs=1e-3)
    assert "does not contradict it" in result.claims[0].reason


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "mu"), [("none", 1.0), ("halved", 2.0)])
def test_a_program_that_starts_its_ranks_itself_is_started_anew(
    tmp_path: Path, fault: str, mu: float
) -> None:
    with socket.create_server(("localhost", 0)) as free:
        port = str(free.getsockname()[1])
    command = (sys.executable, "dp_gossip.py", "--fault", fault, "--rounds", "2", "--port", port)
    sites = (line(GUESTS / "dp_gossip.py", "randn_like"),)
    record = {"victims": (0,), "candidates": ("present",)}
    result = audited(tmp_path, command, sites=sites, record=record)
    assert measured(result) == pytest.approx(mu, abs=1e-3)
    assert (result.verdict is Verdict.UNSUPPORTED) == (fault == "halved")


REFUSED = [
    ({"at": "import numpy"}, 'noise.sites: "train.py:3" is never reached'),
    ({"noise": "torch.empty(()).exponential_()"}, "draws by exponential_(1.0,); expected"),
    ({"noise": "torch.rand(())"}, "draws by uniform_(0.0, 1.0); expected of a line of noise"),
    ({"loader": "DataLoader(data, 4, num_workers=1)"}, "a DataLoader with 1 workers"),
    ({"noise": "os.getpid() * torch.normal(0.0, 1.0, ())"}, "differs between runs that share"),
    ({"noise": "os.urandom(1)[0] * torch.normal(0.0, 1.0, ())"}, "draws by os.urandom; expected"),
    ({"exchange": "sys.exit('no data here')"}, "ended with status 1; it said last:\nno data here"),
    ({"exchange": "import time; time.sleep(60)", "seconds": 2.0}, "not done after 2 s"),
    (
        {"exchange": "pass"},
        "no message seen; expected a program that sends by a transport of the table",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kinds", "said"), REFUSED)
def test_what_cannot_be_audited_says_why(tmp_path: Path, kinds: dict[str, Any], said: str) -> None:
    with pytest.raises(DpauditError) as error:
        played(tmp_path, **{"exchange": GATHER, **kinds})
    assert said in str(error.value)


@pytest.mark.slow
def test_ranks_of_a_module_that_fail_tell_the_first_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "__main__.py").write_text(SECOND_FAILS_FIRST)
    monkeypatch.setenv("STORE", str(tmp_path / "store"))
    with pytest.raises(DpauditError) as error:
        audited(tmp_path / "out", (sys.executable, "-m", "train"), tmp_path)
    assert str(error.value).endswith("ended with status 1: ValueError: no such record")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("begins", "said"),
    [(None, "the messages have no period"), ("train.py:1", '"train.py:1" sends and draws nothing')],
)
def test_a_program_without_rounds_is_asked_to_name_a_line(
    tmp_path: Path, begins: str | None, said: str
) -> None:
    with pytest.raises(DpauditError, match="no rounds were found") as error:
        played(
            tmp_path,
            exchange=f"[{GATHER.replace('total', 'total[:i]')} for i in (1, 2, 3)]",
            loader="DataLoader(data, 8)",
            messages={"round_starts_at": begins},
        )
    assert said in str(error.value)
    assert "messages.round_starts_at" in error.value.problems[0].help


def test_more_than_may_be_kept_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "MOST_BYTES", 10)
    with pytest.raises(DpauditError, match="the transcript is larger than"):
        gossip(tmp_path, "none")


@pytest.mark.slow
def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("localhost", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = (sys.executable, "dp_gossip.py", "--port", port)
        with pytest.raises(DpauditError, match="the port is in use: end what holds it"):
            audited(tmp_path, command, seconds=60.0)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("torchrun", "--nproc-per-node", "3", "dp_gossip.py"), "ranks: 2; the command starts 3"),
        ((*TORCHRUN, "gone.py"), "gone.py: no such file"),
        (("sleep", "1"), "names no program"),
        (("no-such-launcher", "dp_gossip.py"), "no-such-launcher: cannot be started: No such file"),
    ],
)
def test_a_command_that_cannot_be_run_is_refused(
    tmp_path: Path, command: tuple[str, ...], said: str
) -> None:
    with pytest.raises(DpauditError) as error:
        audited(tmp_path, command)
    assert said in str(error.value)
