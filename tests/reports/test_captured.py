"""The page of a recording: all of its text escaped, who sent what to whom."""

from dpaudit.files.recorded import Draw, Event, SentTensor
from dpaudit.reports.captured import MOST_ROWS, render

HOSTILE = "<script>alert(1)</script>"
EVENT = Event(
    process=0,
    rank=0,
    sequence=0,
    time=0,
    operator="send",
    call_site=f"{HOSTILE}.py:7",
    occurrence=0,
    group=(0, 1, 2),
    tag=0,
    source=2,
    destinations=(0, 1),
    round=3,
    tensors=(SentTensor(name="0", shape=(2, 5), dtype="bfloat16", file="f", key="0", sha256="0"),),
    inconsistent=True,
)
DRAW = Draw(
    process=0,
    rank=2,
    sequence=1,
    time=0,
    operator="normal_",
    call_site="train.py:63",
    occurrence=0,
    round=3,
    shape=(10,),
    dtype="float32",
    parameters=(0.0, None),
)


def test_the_page_says_who_sent_what_to_whom_in_which_round() -> None:
    page = render("torchrun train.py", [EVENT, EVENT], [DRAW])
    for text in ("0, 1", "bfloat16 [2, 5]", "(0, ?) float32 [10]", "train.py:63"):
        assert text in page
    assert 'data-ends="2 0"' in page
    assert "Inconsistent" in page
    assert "0.04 kB" in page


def test_the_page_has_no_script_of_others_and_escapes_what_files_are_called() -> None:
    page = render(f"python {HOSTILE}", [EVENT], [])
    assert page.count("<script") == 1  # the one of every page
    assert HOSTILE not in page
    assert "&lt;script&gt;" in page
    assert "http://" not in page
    assert "https://" not in page


def test_a_long_recording_is_cut_and_says_so() -> None:
    events = [EVENT.model_copy(update={"round": k + 1}) for k in range(MOST_ROWS + 7)]
    page = render("c", events, [])
    assert "7 more rows" in page
    assert page.count("<tr>") < MOST_ROWS + 20
