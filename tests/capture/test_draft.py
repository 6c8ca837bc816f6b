"""The draft of an audit: what it proposes, and that the audit takes it."""

from pathlib import Path

import pytest

from dpaudit.capture.draft import draft, noise_sites
from dpaudit.capture.recording import CaptureFolder
from dpaudit.capture.run import Options
from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.recorded import DRAFT, DRAWS, EVENTS, write_lines

from .test_rounds import recorded, with_rounds


def recording(folder: Path, lines: str) -> CaptureFolder:
    """Calls of one rank, a letter each: small ones draw, others send."""
    events, draws = with_rounds(*recorded(lines))
    write_lines(folder / EVENTS, events)
    write_lines(folder / DRAWS, draws)
    return CaptureFolder(folder)


def test_noise_is_what_is_drawn_between_the_messages_of_rounds(tmp_path: Path) -> None:
    assert noise_sites(recording(tmp_path, "wInSnSnSe")) == ["train.py:n"]
    assert noise_sites(recording(tmp_path / "none", "wSSSe")) == []


def test_noise_of_a_distribution_is_noise(tmp_path: Path) -> None:
    """torch.distributions.Normal draws by the operator "normal", of two tensors."""
    events, draws = with_rounds(*recorded("nSnSnS"))
    write_lines(tmp_path / EVENTS, events)
    write_lines(tmp_path / DRAWS, [d.model_copy(update={"operator": "normal"}) for d in draws])
    assert noise_sites(CaptureFolder(tmp_path)) == ["train.py:n"]


@pytest.mark.parametrize(
    ("operator", "parameters", "doubted"),
    [
        ("normal_", (0.0, 1.0), False),
        ("uniform_", (-0.9999999, 1.0), False),  # of a Laplace distribution
        ("uniform_", (0.0, 1.0), True),  # a sampler of batches, say
        ("exponential_", (1.0,), True),
    ],
)
def test_a_draw_that_may_be_no_noise_is_proposed_with_a_doubt(
    tmp_path: Path, operator: str, parameters: tuple[float, ...], doubted: bool
) -> None:
    events, draws = with_rounds(*recorded("nSnSnS"))
    changed = {"operator": operator, "parameters": parameters}
    write_lines(tmp_path / EVENTS, events)
    write_lines(tmp_path / DRAWS, [draw.model_copy(update=changed) for draw in draws])
    text = draft(["c"], CaptureFolder(tmp_path), Options())
    assert (f'"train.py:n",  # by {operator}: leave it out if it draws batches' in text) == doubted
    assert '"train.py:n",' in text


def test_the_audit_takes_the_draft_whatever_the_command_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = recording(tmp_path / "out", "wInASBnASBnASB")
    command = ["torchrun", 'tr"ain\x7f\n.py']
    (found.path / DRAFT).write_text(draft(command, found, Options(cpu=True, seconds=300)))
    config = CapturedConfig.from_toml(found.path / DRAFT)
    assert config.program.command == tuple(command)
    assert config.program.folder == tmp_path
    assert (config.program.ranks, config.program.cpu, config.program.seconds) == (2, True, 300)
    assert config.messages.round_starts_at == "train.py:A"
    assert config.noise.sites == ("train.py:n",)
    assert config.record.rounds == (1, 2, 3)


def test_a_recording_without_rounds_asks_for_a_line(tmp_path: Path) -> None:
    text = draft(["c"], recording(tmp_path, "AB"), Options())
    assert 'round_starts_at = ""  # no rounds were found' in text
