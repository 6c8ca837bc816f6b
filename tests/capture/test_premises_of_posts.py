"""The premises of agents that post npz to each other's server of HTTP, at ports of the system."""

import sys
from pathlib import Path
from typing import Any

import pytest

from dpaudit.capture.audit import run_captured
from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.result import JudgedClaim
from dpaudit.files.verdict import Verdict

PROGRAM = Path(__file__).parent / "programs" / "posting.py"


def audited(folder: Path, noise: str, *victims: int) -> JudgedClaim:
    text = PROGRAM.read_text()
    (folder / "posting.py").write_text(text)
    [draws] = [i for i, line in enumerate(text.splitlines(), 1) if "rng.normal(0, 1.0" in line]
    content: dict[str, Any] = {
        "program": {
            "command": ("python", "posting.py", noise),
            "python": Path(sys.executable),
            "ranks": 3,
            "folder": folder,
        },
        "noise": {"sites": (f"posting.py:{draws}",)},
        "record": {
            "victims": victims,
            "candidates": ("present",),
            "rounds": (1, 2),
            "sampling": "none",
        },
        "certify": {"runs": 0},
        "claim": ({"text": "a round", "mu": 1.0, "scope": "round"},),
    }
    [claim] = run_captured(CapturedConfig.model_validate(content), folder / "out", cores=2).claims
    return claim


@pytest.mark.slow
def test_agents_that_post_to_each_other_are_supported(tmp_path: Path) -> None:
    claim = audited(tmp_path, "right", 0, 1)
    assert claim.verdict is Verdict.SUPPORTED, claim.reason


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["half", "none"])
def test_posts_with_too_little_noise_are_unsupported(tmp_path: Path, noise: str) -> None:
    claim = audited(tmp_path, noise, 0)
    assert claim.verdict is Verdict.UNSUPPORTED, claim.reason
