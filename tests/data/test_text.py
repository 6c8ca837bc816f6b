"""Text as token ids, from files or the embedded corpus, and data sets of other packages."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from dpaudit.data import text
from dpaudit.data.datasets import load_dataset
from dpaudit.data.partition import split
from dpaudit.data.records import from_records
from dpaudit.data.text import load_text
from dpaudit.errors import DataError
from dpaudit.files.options import DirichletPartition, TextOptions

WORDS = "One two; three two one. " * 6  # 7 tokens each time


def test_words_are_rows_of_ids_and_the_next_is_the_label(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(WORDS)
    data = load_text(tmp_path, TextOptions(length=6))
    assert data.vocabulary == ("<unk>", "one", "two", ".", ";", "three")
    rows = torch.cat([data.x, data.x_test])
    assert rows.tolist() == [[1, 2, 4, 5, 2, 1]] * 6
    assert torch.cat([data.y, data.y_test]).tolist() == [3] * 6
    assert (rows.dtype, data.n_classes, len(data.x_test)) == (torch.int64, 6, 1)


def test_labels_at_positions_are_the_tokens_behind(tmp_path: Path) -> None:
    """Also where folders could be classes; a split by class has none to go by."""
    for name in ("good", "bad"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(WORDS)
    data = load_text(tmp_path, TextOptions(length=6, labels="position"))
    assert torch.cat([data.x, data.x_test]).tolist() == [[1, 2, 4, 5, 2, 1]] * 12
    assert torch.cat([data.y, data.y_test]).tolist() == [[2, 4, 5, 2, 1, 3]] * 12
    assert (data.n_positions, data.class_names) == (6, data.vocabulary)
    assert split(data.y, 2, "even", np.random.default_rng(0)).n_agents == 2
    by_class = DirichletPartition(kind="dirichlet", alpha=1.0)
    with pytest.raises(DataError, match="a label at each of 6 positions; expected one label"):
        split(data.y, 2, by_class, np.random.default_rng(0))


def test_rare_words_are_unknown_and_bytes_need_no_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(WORDS)
    assert load_text(tmp_path, TextOptions(vocabulary=3)).vocabulary == ("<unk>", "one", "two")
    data = load_text(tmp_path, TextOptions(tokens="bytes", length=4))
    assert data.n_tokens == 256
    assert [data.vocabulary[i] for i in data.x[0]] == ["O", "n", "e", "<20>"]


def test_folders_in_the_folder_are_classes(tmp_path: Path) -> None:
    for name in ("good", "bad"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(f"{name} words {WORDS}")
    data = load_text(tmp_path, TextOptions(length=7))
    assert data.class_names == ("bad", "good")
    assert len(data.x) + len(data.x_test) == 12


def test_the_embedded_corpus_gives_190_records() -> None:
    data = load_dataset("text")
    assert (data.x.shape, data.n_tokens) == ((190, 16), 607)
    assert data.fingerprint == load_text(None).fingerprint


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "0 files, and no text in them"),
        (b"  \n", "1 files, and no text in them"),
        (b"\x89PNG\r\n\x1a\n\x00", "a.txt: not text in UTF-8"),
        (b"text\x00text", "a.txt: not text in UTF-8"),
        (b"too few words", "3 tokens are too few for records of 16"),
    ],
)
def test_folders_without_text_are_refused_in_a_line(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    if content is not None:
        (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(DataError, match=said):
        load_text(tmp_path)
    with pytest.raises(DataError, match="not a folder"):
        load_text(tmp_path / "absent")


def test_links_to_nothing_and_more_text_than_fits_are_refused(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbf" + WORDS.encode())
    assert load_text(tmp_path, TextOptions(length=6)).vocabulary[1] == "one"  # no byte order mark
    (tmp_path / "b.txt").symlink_to(tmp_path / "gone")
    with pytest.raises(DataError, match="b.txt: a link to nothing"):
        load_text(tmp_path)
    (tmp_path / "b.txt").unlink()
    monkeypatch.setattr(text, "MOST_TEXT", 100)
    with pytest.raises(DataError, match="more than 0.1 kB of text up to this file"):
        load_text(tmp_path)


def test_classes_without_a_record_are_refused(tmp_path: Path) -> None:
    for name, content in (("good", WORDS), ("bad", "word")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(content)
    with pytest.raises(DataError, match="bad: no record of 6 tokens"):
        load_text(tmp_path, TextOptions(length=6))


class Items(list):
    """As a data set of Hugging Face: a length, and dictionaries by index."""


def test_data_sets_of_pytorch_and_hugging_face_are_taken() -> None:
    x, y = torch.arange(60.0).view(20, 3), torch.arange(20) % 2
    pairs = from_records(TensorDataset(x, y))
    dicts = from_records(
        Items({"features": list(a), "label": int(b)} for a, b in zip(x, y, strict=True))
    )
    assert pairs.x.dtype == torch.float32
    assert pairs.fingerprint == dicts.fingerprint
    ids = np.arange(60).reshape(20, 3) % 7
    tokens = from_records(Items({"input_ids": r.tolist(), "labels": r.tolist()} for r in ids))
    assert (tokens.x.dtype, tokens.n_tokens, tokens.n_classes) == (torch.int64, 7, 7)
    assert {(*r.tolist(), int(z)) for r, z in zip(tokens.x, tokens.y, strict=True)} <= {
        *map(tuple, ids.tolist())
    }
    labels = Items({"input_ids": r.tolist(), "label": i % 2} for i, r in enumerate(ids))
    labelled = from_records(labels)
    assert labelled.x.shape[1] == 3
    following = TensorDataset(torch.from_numpy(ids[:, :-1]), torch.from_numpy(ids[:, 1:]))
    language = from_records(following)
    assert (language.n_positions, language.n_tokens, language.n_classes) == (2, 7, 7)
    assert language.x[:, 1:].equal(language.y[:, :-1])


@pytest.mark.parametrize(
    ("items", "said"),
    [
        ([], "an empty data set"),
        ([{"a": 1, "b": 2}], "item 0 has the keys a, b; expected input_ids"),
        ([3], "item 0 is a int; expected a pair"),
        ([([1, 2], 0), ([1], 1)], "records of the shapes"),
        ([("text", 0)], "item 0 has a record of <U4; expected numbers"),
        ([([1, -2], 0)], "a token id or label is -2"),
        ([([1, 2], [1, 2, 3])], r"labels of shape \(3,\) on a record of shape \(2,\)"),
        ([([1, 2], [1.0, 2.5])], "item 0 has labels of float64; expected integers"),
        ([([1, 2], 0), ([1, 2], [2, 1])], "some records have one label, others"),
        ([([1, 2], 0.5)], "labels of float64; expected integers"),
        ([([1, 2], [2, -100])], "a token id or label is -100, under 0"),
        ([{"input_ids": []}] * 2, r"records of shape \(0,\) are empty"),
        ([([1, 2**40], 0)] * 2, r"label is 1099511627776; expected at most 1048575"),
        ([([1, 2], 2**40)] * 2, r"label is 1099511627776; expected at most 1048575"),
        ([([1, 2], 0), ([2, 1], 0)], "labels are all 0; expected two classes"),
        ([([[1], [1, 2]], 0)], "item 0 has a record that is no array of numbers: setting an"),
        ([([1, 2], [[1], [1, 2]])], "item 0 has a label that is no array of numbers"),
        ([{"input_ids": [1, 2]}], "one record; expected two at least"),
        ([{"input_ids": [1]}] * 2, "records of one token; expected two at least"),
    ],
)
def test_data_sets_of_other_forms_are_refused_in_a_line(items: list, said: str) -> None:
    with pytest.raises(DataError, match=said):
        from_records(Items(items))


def test_tensors_are_taken_whatever_their_layout_and_gradient() -> None:
    x, y = torch.eye(8) + torch.arange(8.0), torch.arange(8) % 2
    plain = from_records(TensorDataset(x, y))
    for other in (x.to_sparse(), x.clone().requires_grad_(), x.bfloat16()):
        assert from_records(Items(zip(other, y, strict=True))).fingerprint == plain.fingerprint
    with pytest.raises(DataError, match="data: a list_iterator; expected arrays"):
        from_records(iter([1, 2]))


class FromOne:
    """Items whose indices begin at 1."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, i: int) -> Any:
        return {1: ([1.0, 2.0], 0), 2: ([1.0, 3.0], 1)}[i]


@pytest.mark.parametrize(
    ("given", "said", "help"),
    [
        ("digits", "data: a str; expected", 'data = { name = "digits" }'),
        ({"train": [], "test": []}, "data: a dict; expected", "as data['train'], or a tuple"),
        (DataLoader([(1, 0)]), "data: a DataLoader; expected", "give what it loads, its .dataset"),
        (FromOne(), "item 0 of 2 in this FromOne cannot be had: KeyError: 0; expected items", ""),
    ],
)
def test_what_is_no_data_set_is_refused_with_help(given: Any, said: str, help: str) -> None:
    with pytest.raises(DataError, match=said) as error:
        from_records(given)
    assert help in error.value.problems[0].help
