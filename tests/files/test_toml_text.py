"""Text of TOML files: what is written is read again."""

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from dpaudit.files.documents import toml_text

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | TEXTS,
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(TEXTS, inside, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(TEXTS, VALUES, max_size=4))
def test_what_is_written_is_read_again(content: dict) -> None:
    assert tomllib.loads(toml_text(content)) == content


def test_tables_are_sections_and_what_is_none_is_left_out() -> None:
    content = {"claim": [{"text": "a", "mu": None}], "seed": 1, "graph": {"name": "ring"}}
    assert toml_text(content) == ('seed = 1\n\n[[claim]]\ntext = "a"\n\n[graph]\nname = "ring"\n')
