"""Documents are written in plain sentences: short ones, in the field's words.

A sentence ends at a full stop, an exclamation mark or a question mark. Code counts as one word. This
cannot judge a text; it keeps the worst out.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpaudit.files.glossary import ENTRIES
from tests.sources import nodes
from tests.test_architecture import sources

ROOT = Path(__file__).parents[1]
LONGEST = 35  # words of a sentence
TEN_MINUTES = 2200  # words of a page, without code
FRAGMENTS = "Of|Those|Whose|That|As|With"  # with which no sentence about a thing begins
INVENTED = r"foretell|foretold|unhidden|misfits?|remnants?|hurried"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
MADE = (ROOT / "docs" / "reference", ROOT / "docs" / "glossary.md")  # from the code
WRITTEN = [page for page in PAGES if page.name != "CHANGELOG.md" and MADE[0] not in page.parents]
READ = [page for page in WRITTEN if page not in MADE]


def sentences(text: str) -> Iterator[str]:
    """The prose of a page: no code, tables, headings or formulas."""
    text = re.sub(r"```.*?```|<!--.*?-->", "\n\n", text, flags=re.S)
    text = re.sub(r"^(\||#|    ).*$", "\n", text, flags=re.M)
    text = re.sub(r"^\s*(?:[-*]|\d+\.)\s", "\n\n", text, flags=re.M)
    text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "code", text))
    for paragraph in re.split(r"\n\s*\n", text):
        yield from filter(None, re.split(r"(?<=[.!?])[\"*)]*\s+", " ".join(paragraph.split())))


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_are_short(page: Path) -> None:
    found = [s for s in sentences(page.read_text()) if len(s.split()) > LONGEST]
    assert found == []


def test_no_page_takes_more_than_ten_minutes() -> None:
    code = re.compile(r"^( *)```.*?^\1```|<!--.*?-->", re.S | re.M)
    words = {page.name: len(code.sub("", page.read_text()).split()) for page in READ}
    assert {name: n for name, n in words.items() if n > TEN_MINUTES} == {}


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_documents_use_the_words_of_the_field(page: Path) -> None:
    found = [s for s in sentences(page.read_text()) if re.search(rf"\b(?:{INVENTED})\b", s)]
    assert found == []


def fragments(path: Path) -> Iterator[str]:
    """Docstrings that go on from the name above them, as "Of the noise."."""
    for node in nodes(path):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = (ast.get_docstring(node) or "").partition("\n")[0]
            if re.match(rf"(?:{FRAGMENTS})\b", first):
                yield f"{path.name}: {first}"


def test_docstrings_do_not_go_on_from_a_name() -> None:
    assert [found for path, _ in sources() for found in fragments(path)] == []


def test_a_docstring_that_goes_on_from_a_name_is_found(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text('def std():\n    """Of the noise."""\n')
    assert list(fragments(tmp_path / "one.py")) == ["one.py: Of the noise."]


def test_glossary_entries_are_short_sentences() -> None:
    texts = [sentence for text in ENTRIES.values() for sentence in sentences(text)]
    assert [s for s in texts if len(s.split()) > LONGEST] == []


def test_a_long_sentence_and_an_invented_word_are_found() -> None:
    long = "One " + "word " * LONGEST + "is too many."
    assert [len(s.split()) for s in sentences(f"Short. {long}\n\n| a table |")] == [1, 39]
    assert re.search(rf"\b(?:{INVENTED})\b", "a message is foretold")
