"""The premises of clients whose updates a server averages, and sends on in the same round."""

import sys
from pathlib import Path
from typing import Any

import pytest

from dpaudit.capture.audit import run_captured
from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.result import JudgedClaim
from dpaudit.files.verdict import Verdict

PROGRAM = Path(__file__).parent / "programs" / "averaging.py"


def audited(folder: Path, words: str, mu: float, *victims: int) -> JudgedClaim:
    text = PROGRAM.read_text()
    (folder / "averaging.py").write_text(text)
    [draws] = [i for i, line in enumerate(text.splitlines(), 1) if "rng.normal(0, 1.0" in line]
    content: dict[str, Any] = {
        "program": {
            "command": ("python", "averaging.py", *words.split()),
            "python": Path(sys.executable),
            "ranks": 3,
            "folder": folder,
        },
        "messages": {"round_starts_at": f"averaging.py:{draws}"},
        "noise": {"sites": (f"averaging.py:{draws}",)},
        "record": {"victims": victims, "candidates": ("present",), "rounds": (1, 2)},
        "certify": {"runs": 0},
        "claim": ({"text": "a round", "mu": mu, "scope": "round"},),
    }
    [claim] = run_captured(CapturedConfig.model_validate(content), folder / "out", cores=2).claims
    return claim


@pytest.mark.slow
def test_clients_of_a_server_that_sends_on_are_supported(tmp_path: Path) -> None:
    claim = audited(tmp_path, "right", 1.0, 0, 1)
    assert claim.verdict is Verdict.SUPPORTED, claim.reason


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["half", "none", "no-clip", "even-rounds"])
def test_faults_of_clients_of_a_server_are_found(tmp_path: Path, fault: str) -> None:
    claim = audited(tmp_path, fault, 1.0, 0)
    assert claim.verdict is Verdict.UNSUPPORTED, claim.reason


@pytest.mark.slow
def test_updates_made_bytes_by_tobytes_are_supported(tmp_path: Path) -> None:
    claim = audited(tmp_path, "right tobytes", 1.0, 0, 1)
    assert claim.verdict is Verdict.SUPPORTED, claim.reason


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["half", "none", "no-clip"])
def test_faults_of_updates_made_bytes_by_tobytes_are_found(tmp_path: Path, fault: str) -> None:
    claim = audited(tmp_path, f"{fault} tobytes", 1.0, 0)
    assert claim.verdict is Verdict.UNSUPPORTED, claim.reason


@pytest.mark.slow
def test_noise_of_one_seed_for_all_clients_is_not_supported(tmp_path: Path) -> None:
    claim = audited(tmp_path, "one-seed", 1.0, 0, 1)
    assert claim.verdict in (Verdict.UNSUPPORTED, Verdict.UNDERPOWERED), claim.reason
