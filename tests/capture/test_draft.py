"""The draft of an audit: what it proposes, that the audit takes it, and why there is none."""

from pathlib import Path

import pytest

from dpaudit.capture.draft import draft, why_no_draft
from dpaudit.capture.noise_lines import noise_lines
from dpaudit.capture.recording import CaptureFolder
from dpaudit.capture.run import Options
from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.recorded import (
    BATCHES,
    DRAFT,
    DRAWS,
    EVENTS,
    UNSEEN,
    RecordedBatch,
    RecordedDraw,
    write_lines,
)
from dpaudit.recorder.draws.loaders import WORKERS

from .test_rounds import recorded, with_rounds


def recording(folder: Path, lines: str, records: int = 4, **drawn: object) -> CaptureFolder:
    """Calls of one rank, a letter each: "b" takes a batch, other small ones draw, others send.

    Args:
        drawn: fields of all draws.
    """
    events, draws = with_rounds(*recorded(lines))
    taken = [draw for draw in draws if draw.call_site == "train.py:b"]
    write_lines(folder / EVENTS, events)
    others: list[RecordedDraw] = [d.model_copy(update=drawn) for d in draws if d not in taken]
    write_lines(folder / DRAWS, others)
    batches = [
        RecordedBatch(process=0, agent=0, number=i, sequence=d.sequence, records=records)
        for i, d in enumerate(taken, 1)
    ]
    write_lines(folder / BATCHES, batches)
    return CaptureFolder(folder)


def noise_sites(found: CaptureFolder) -> list[str]:
    return [line.site for line in noise_lines(found) if line.why_not is None]


def test_noise_is_what_is_drawn_between_the_messages_of_rounds(tmp_path: Path) -> None:
    assert noise_sites(recording(tmp_path, "wInSnSnSe")) == ["train.py:n"]
    assert noise_sites(recording(tmp_path / "none", "wSSSe")) == []


def test_noise_of_a_distribution_is_noise(tmp_path: Path) -> None:
    """torch.distributions.Normal draws by the operator "normal", of two tensors."""
    assert noise_sites(recording(tmp_path, "nSnSnS", operator="normal")) == ["train.py:n"]


@pytest.mark.parametrize(
    ("drawn", "why"),
    [
        ({"operator": "normal_"}, None),
        ({"operator": "uniform_", "parameters": (-0.9999999, 1.0)}, None),  # of a Laplace one
        ({"operator": "uniform_", "parameters": (0.0, 1.0)}, "draws by uniform_, which an audit"),
        ({"operator": "exponential_"}, "draws by exponential_, which an audit cannot replay"),
        ({"purpose": "model"}, "draws weights, or what a model does to its inputs"),
        ({"purpose": "data"}, "draws what becomes of records"),
    ],
)
def test_a_line_that_is_no_noise_is_named_and_not_proposed(
    tmp_path: Path, drawn: dict[str, object], why: str | None
) -> None:
    text = draft(["c"], recording(tmp_path, "nbSnbSnbS", **drawn), Options())
    assert ('\n    "train.py:n",\n' in text) == (why is None)
    assert why is None or f'\n# "train.py:n" {why}' in text


def test_noise_of_another_size_than_messages_is_doubted(tmp_path: Path) -> None:
    text = draft(["c"], recording(tmp_path, "nbSnbSnbS", shape=(8, 10)), Options())
    assert '"train.py:n",  # draws 80 numbers, and no message has as many: is it noise?' in text
    of_layers = recording(tmp_path / "layers", "nnbS8nnbS8nnbS8")  # 4 numbers twice a round
    assert '    "train.py:n",\n' in draft(["c"], of_layers, Options())


def test_a_line_that_sends_little_is_asked_about(tmp_path: Path) -> None:
    text = draft(["c"], recording(tmp_path, "nbS10L1nbS10L1"), Options())
    assert "\n# train.py:L sends 1 number, and others 10: is it a diagnostic?\n" in text


def test_the_audit_takes_the_draft_whatever_the_command_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = recording(tmp_path / "out", "wInbASBnASBnbASBnbASB")
    command = ["torchrun", "--nproc-per-node=2", 'tr"ain\x7f\n.py']
    (found.path / DRAFT).write_text(draft(command, found, Options(cpu=True, seconds=300)))
    config = CapturedConfig.from_toml(found.path / DRAFT)
    assert config.program.command == tuple(command)
    assert config.program.folder == tmp_path
    assert (config.program.ranks, config.program.cpu, config.program.seconds) == (2, True, 300)
    assert config.messages.round_starts_at == "train.py:A"
    assert config.noise.sites == ("train.py:n",)
    assert config.record.victims == (0,)
    assert config.record.rounds == (1, 3, 4)  # in the second one no batch is taken


@pytest.mark.parametrize(
    ("lines", "records", "unseen", "why"),
    [
        ("bSbSbS", 4, "", None),
        ("bAbB", 4, "", "no rounds were found; give --round-starts-at FILE:LINE"),
        ("SSS", 4, "", "no rank takes a batch before it sends, by a DataLoader or tap.batch"),
        ("bSbSbS", 0, "tap.batch: expected a tensor", "tap.batch: expected a tensor"),
        ("bSbSbS", 4, WORKERS.format(2), "a DataLoader with 2 workers"),
    ],
    ids=["may run", "no rounds", "no batch", "no records", "workers"],
)
def test_a_draft_that_no_audit_can_run_says_why(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lines: str,
    records: int,
    unseen: str,
    why: str | None,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    found = recording(tmp_path, lines, records)
    if unseen:
        (tmp_path / UNSEEN).write_text(f"{unseen}\n")
    said = why_no_draft(["torchrun", "--nproc-per-node", "2", "train.py"], found, Options())
    assert said == why if why is None else why in str(said)


def test_who_takes_batches_and_who_sends_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a server that adds the noise, and of clients that only take batches."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    taken = [one.model_copy(update={"agent": 7}) for one in recording(tmp_path, "bSbSbS").batches]
    write_lines(tmp_path / BATCHES, taken)
    command = ["torchrun", "--nproc-per-node", "2", "train.py"]
    said = why_no_draft(command, CaptureFolder(tmp_path), Options())
    assert str(said).startswith("agent 7 takes batches and sends nothing, and agent 0")


def test_rounds_of_other_lines_than_those_of_agents_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where what agents send has another size in each round, and what starts them has one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    found = recording(tmp_path, "bAbB")
    other = [event.model_copy(update={"source": 5, "round": 1}) for event in found.events[:1]]
    write_lines(tmp_path / EVENTS, [*other, *found.events])
    command = ["torchrun", "--nproc-per-node", "3", "train.py"]
    said = why_no_draft(command, CaptureFolder(tmp_path), Options())
    assert str(said).startswith("rounds were found by what train.py:A sends")


def test_a_line_of_no_message_is_no_noise_beside_one_that_is(tmp_path: Path) -> None:
    """As where a program adds noise to its records too."""
    found = recording(tmp_path, "anbSanbSanbS")
    draws = [
        draw.model_copy(update={"shape": (8, 10) if draw.call_site == "train.py:a" else (4,)})
        for draw in found.draws
    ]
    write_lines(tmp_path / DRAWS, draws)
    assert noise_sites(CaptureFolder(tmp_path)) == ["train.py:n"]


@pytest.mark.parametrize(
    ("command", "anew"),
    [
        (["torchrun", "--nproc-per-node", "2", "train.py"], False),
        (["torchrun", "--log-dir", "logs", "train.py"], True),
        (["python", "train.py"], True),
    ],
)
def test_runs_that_start_anew_are_not_played_by_hundreds(
    tmp_path: Path, command: list[str], anew: bool
) -> None:
    found = recording(tmp_path, "bnSbnS")
    (found.path / DRAFT).write_text(draft(command, found, Options()))
    config = CapturedConfig.from_toml(found.path / DRAFT)
    assert config.certify.runs == (0 if anew else 400)
    assert f"\nruns = {config.certify.runs}  #" in (found.path / DRAFT).read_text()
