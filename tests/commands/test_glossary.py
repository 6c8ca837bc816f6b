"""`dpaudit explain`: an entry, all names, or the nearest one."""

import pytest
from typer.testing import CliRunner

from dpaudit.commands.cli import app
from dpaudit.files.verdict import MEANING
from tests.said import without_help


def said(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["explain", *arguments])
    return done.exit_code, (done.stdout + without_help(done.stderr)).strip()


@pytest.mark.parametrize("verdict", MEANING)
def test_a_verdict_is_explained_as_after_an_audit(verdict) -> None:
    assert said(verdict) == (0, f"{verdict}: {MEANING[verdict]}")


@pytest.mark.parametrize("written", [["M-NMI"], ["m-nmi"], ["m", "nmi"], ["M_NMI"]])
def test_a_term_is_found_however_it_is_written(written: list[str]) -> None:
    code, text = said(*written)
    assert code == 0
    assert text.startswith("M-NMI: ")


def test_an_unknown_term_names_the_nearest() -> None:
    assert said("cannary") == (
        2,
        'error: the glossary has no "cannary" (did you mean "canary"?)',
    )
    assert said("mnmi")[1].startswith('error: the glossary has no "mnmi" (did you mean "M-NMI"?)')
    assert said("xyzzy") == (2, 'error: the glossary has no "xyzzy"')


def test_a_code_is_explained_in_either_case() -> None:
    for written in ("DPA017", "dpa017"):
        code, text = said(written)
        assert code == 0
        assert text.startswith("# DPA017: Run that cannot be resumed\n")
        assert text.endswith("Run without --resume, or give another folder with --out.")
    assert 'no "DPA999" (did you mean "DPA' in said("DPA999")[1]


def test_without_a_term_all_are_named() -> None:
    code, text = said()
    assert code == 0
    assert "certified bound, " in text
