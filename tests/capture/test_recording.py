"""A recording is read as it was written; what is damaged is one line that says where."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from dpaudit.capture.recording import DRAWS, EVENTS, CaptureFolder
from dpaudit.errors import RunError
from dpaudit.files.recorded import RecordedDraw, RecordedEvent, SentTensor, write_lines

SENT = SentTensor(
    name="0", shape=(2, 2), dtype="bfloat16", file="transcript/a.safetensors", key="7", sha256="0"
)
EVENT = RecordedEvent(
    process=0,
    rank=1,
    sequence=4,
    time=1.5,
    operator="send",
    call_site="train.py:88",
    occurrence=0,
    group=(0, 1),
    tag=3,
    source=1,
    destinations=(0,),
    round=None,
    tensors=(SENT,),
    inconsistent=False,
)
DRAW = RecordedDraw(
    process=0,
    rank=None,
    sequence=1,
    time=0.5,
    operator="normal_",
    call_site="train.py:63",
    occurrence=2,
    round=1,
    shape=(2,),
    dtype="float32",
    parameters=(0.0, None),
)


def test_a_recording_reads_what_was_written(tmp_path: Path) -> None:
    write_lines(tmp_path / EVENTS, [EVENT, EVENT])
    write_lines(tmp_path / DRAWS, [DRAW])
    recording = CaptureFolder(tmp_path)
    assert recording.events == (EVENT, EVENT)
    assert recording.draws == (DRAW,)
    assert recording.ranks == (0, 1)


def test_content_stored_as_bytes_has_its_dtype_and_shape(tmp_path: Path) -> None:
    content = torch.arange(4, dtype=torch.bfloat16).reshape(2, 2)
    (tmp_path / "transcript").mkdir()
    for stored in (content, content.view(torch.uint8).flatten()):
        save_file({"7": stored}, tmp_path / SENT.file)
        found = CaptureFolder(tmp_path).content(SENT)
        assert found.dtype == torch.bfloat16
        assert torch.equal(found, content)


@pytest.mark.parametrize("change", [{"dtype": "nn"}, {"file": "../a.safetensors"}, {"key": "8"}])
def test_content_that_is_not_there_is_one_line(change: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "transcript").mkdir()
    save_file({"7": torch.zeros(4)}, tmp_path / SENT.file)
    with pytest.raises(RunError) as error:
        CaptureFolder(tmp_path).content(SENT.model_copy(update=change))
    assert "\n" not in str(error.value)


def test_a_damaged_line_is_reported_with_its_number(tmp_path: Path) -> None:
    write_lines(tmp_path / EVENTS, [EVENT])
    with (tmp_path / EVENTS).open("a") as file:
        file.write(EVENT.model_dump_json().replace('"source":1', '"source":-1') + "\n")
    with pytest.raises(RunError, match=r"events\.jsonl:2: source: "):
        _ = CaptureFolder(tmp_path).events
    with pytest.raises(RunError, match=r"draws\.jsonl: No such file"):
        _ = CaptureFolder(tmp_path).draws
