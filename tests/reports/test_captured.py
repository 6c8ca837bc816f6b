"""The page of a recording: all of its text escaped, who sent what to whom."""

from dpaudit.reports.captured import MOST_ROWS, render
from tests.reports.pages import DRAW, EVENT, HOSTILE


def test_the_page_says_who_sent_what_to_whom_in_which_round() -> None:
    page = render("torchrun train.py", [EVENT, EVENT], [DRAW])
    for text in ("0, 1", "bfloat16 [2, 5]", "(0, ?) float32 [10]", "train.py:63"):
        assert text in page
    assert 'data-ends="2 0"' in page
    assert "Inconsistent" in page
    assert "0.04 kB" in page


def test_the_page_escapes_what_files_are_called() -> None:
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
