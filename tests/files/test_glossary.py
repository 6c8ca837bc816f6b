"""The glossary has what configs and reports say."""

from typing import get_args

import pytest

from dpaudit.files.claim import Adjacency
from dpaudit.files.glossary import ENTRIES, entry_of
from dpaudit.files.verdict import Verdict

ASKED = [*Verdict, *get_args(Adjacency), "threat model", "epsilon", "certified bound", "exact leak"]


@pytest.mark.parametrize("term", [*ASKED, "canary", "M-NMI", "expected bound", "ceiling"])
def test_every_word_of_a_verdict_has_an_entry(term: str) -> None:
    assert entry_of(term) is not None


@pytest.mark.parametrize(
    "term, name",
    [
        ("amplification", "amplification"),
        ("Poisson", "Poisson sampling"),
        ("poisson-sampling", "Poisson sampling"),
        ("nats", "nats"),
        ("nat", "nats"),
        ("gdp", "GDP"),
        ("Gaussian differential privacy", "GDP"),
        ("void", "void"),
    ],
)
def test_words_of_the_field_have_an_entry(term: str, name: str) -> None:
    found = entry_of(term)
    assert found is not None
    assert found[0] == name


def test_entries_are_sentences_under_different_names() -> None:
    assert len({name.lower().replace("-", " ") for name in ENTRIES}) == len(ENTRIES)
    assert all(text.endswith(".") for text in ENTRIES.values())
