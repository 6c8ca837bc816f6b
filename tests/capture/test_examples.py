"""The simulations in ``examples``: the planted fault is found, and the twin of the page is right."""

from pathlib import Path

import pytest

from dpaudit.capture.audit import run_captured
from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.finding import Name, Role
from dpaudit.files.verdict import Verdict

ROOT = Path(__file__).parents[2]
TORCH = ROOT / "examples" / "torch-gossip"


@pytest.mark.parametrize("name", ["numpy-gossip", "torch-gossip"])
def test_the_tapped_example_has_four_more_lines(name: str) -> None:
    unchanged, tapped = (
        (ROOT / "examples" / name / file).read_text().partition('"""\n\nimport')[2].splitlines()
        for file in ("gossip.py", "tapped.py")
    )
    assert [line for line in tapped if "tap" not in line] == unchanged
    assert len(tapped) == len(unchanged) + 4


def measured(tmp_path: Path, text: str) -> tuple[float | None, Verdict]:
    """The largest mu of a round, and the verdict without short runs."""
    here = text.replace("from dpaudit_recorder import tap", "from dpaudit import tap")
    (tmp_path / "tapped.py").write_text(here)
    asked = (TORCH / "captured.toml").read_text().replace("runs = 100", "runs = 0")
    (tmp_path / "captured.toml").write_text(asked)
    config = CapturedConfig.from_toml(tmp_path / "captured.toml")
    result = run_captured(config, tmp_path / "out", cores=1)
    [found] = [f for f in result.findings if f.role is Role.MEASURED]
    return found.value(Name.LARGEST_MU_OF_A_ROUND), result.verdict


@pytest.mark.slow
def test_clipping_by_layer_is_found_in_pytorch(tmp_path: Path) -> None:
    """Four layers of norm 1 at most have a norm of 2 at most together."""
    mu, verdict = measured(tmp_path, (TORCH / "tapped.py").read_text())
    assert mu is not None
    assert 1.5 < mu <= 2.0 + 1e-6
    assert verdict is Verdict.UNSUPPORTED


@pytest.mark.slow
def test_the_twin_of_the_page_is_right_in_pytorch(tmp_path: Path) -> None:
    text, page = (TORCH / "tapped.py").read_text(), (ROOT / "docs" / "own-script.md").read_text()
    fault = text[text.index("def clipped") : text.index("def gradient")]
    lines = page[page.index("    def clipped") :].partition("\n\n")[0].splitlines()
    right = "\n".join(line[4:] for line in lines) + "\n\n\n"
    mu, verdict = measured(tmp_path, text.replace(fault, right))
    assert mu == pytest.approx(1.0, abs=1e-5)
    assert verdict is not Verdict.UNSUPPORTED
