"""Text as records: a folder of files, or the embedded corpus, cut into rows of token ids.

A record is ``length`` tokens that follow each other. Its label is the folder that its file lies in,
if all files lie in two or more folders; else the next token, which a language model predicts. Or it
has a label at each of its positions, the token behind, whose losses are averaged. The vocabulary is
public: it is made of all files, test part included.
"""

import re
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from dpaudit.errors import DataError
from dpaudit.files.config import TEXT
from dpaudit.files.options import TextOptions
from dpaudit.memory import size_text
from dpaudit.rng import Streams
from dpaudit.source import below

from .datasets import TEST_SHARE, Dataset

MOST_TEXT = 2**28  # bytes of all files; their tokens take many times as much
UNKNOWN = "<unk>"  # a word that is not in the vocabulary
_WORD = re.compile(r"\w+|[^\w\s]")  # a word, or a single sign
_BYTES = tuple(chr(b) if 32 < b < 127 else f"<{b:02x}>" for b in range(256))


class _Tokenised(NamedTuple):
    """The tokens of each file, by which class it is of."""

    label: str
    tokens: Sequence[str]


def load_text(folder: Path | None, options: TextOptions | None = None, seed: int = 0) -> Dataset:
    """The text of all files below a folder; of the embedded corpus if there is none.

    Words are lower-cased; signs are words of their own. Of more different words than the
    vocabulary holds, the least frequent are ``<unk>``. Bytes are those of UTF-8.

    Raises:
        DataError: no text is there, a file is not text, or it gives too few records.
    """
    options = options or TextOptions()
    where = "the embedded corpus" if folder is None else str(folder)
    texts = [("", _embedded())] if folder is None else _texts(folder)
    split = _bytes if options.tokens == "bytes" else _words
    tokenised = [_Tokenised(label, split(text)) for label, text in texts]
    vocabulary = _BYTES if options.tokens == "bytes" else _vocabulary(tokenised, options.vocabulary)
    labels = sorted({one.label for one in tokenised})
    at_positions = options.labels == "position"
    by_folder = len(labels) > 1 and "" not in labels and not at_positions
    rows, y = _rows(
        tokenised, vocabulary, options.length, labels if by_folder else None, at_positions
    )
    if len(rows) < 2:
        raise DataError(
            "DPA032",
            f"{where}: {sum(len(one.tokens) for one in tokenised)} tokens are too few for records "
            f"of {options.length}; expected two records at least",
            "add text, or set data.text.length to less",
        )
    if by_folder and (missing := set(range(len(labels))) - set(y)):
        raise DataError(
            "DPA032",
            f"{where}: {labels[min(missing)]}: no record of {options.length} tokens; expected one "
            "at least of each folder, which is a class",
            "add text, or set data.text.length to less",
        )
    order = Streams(seed).numpy("data", "test split").permutation(len(rows))
    n_test = max(1, round(len(rows) * TEST_SHARE))
    test, train = np.sort(order[:n_test]), np.sort(order[n_test:])
    x, labels_of = torch.tensor(rows), torch.tensor(y)
    classes = tuple(labels) if by_folder else vocabulary
    value_range = (0.0, float(len(vocabulary) - 1))
    parts = (x[train], labels_of[train], x[test], labels_of[test])
    return Dataset(TEXT, *parts, classes, value_range, vocabulary)


def _embedded() -> str:
    return files("dpaudit.data").joinpath("corpus.txt").read_text(encoding="utf-8")


def _texts(folder: Path) -> list[tuple[str, str]]:
    """The folder below ``folder`` that each file lies in, "" if it lies in none, and its text."""
    if not folder.is_dir():
        raise DataError("DPA007", f"{folder}: not a folder; expected one that holds text files")
    found, total = [], 0
    for path in below(folder, ""):
        parts = path.relative_to(folder).parts
        if path.is_symlink() and not path.exists():
            raise DataError("DPA007", f"{path}: a link to nothing; expected a text file")
        if path.name[0] == "." or not path.is_file():
            continue
        try:
            if (total := total + path.stat().st_size) > MOST_TEXT:
                raise DataError(
                    "DPA029",
                    f"{path}: more than {size_text(MOST_TEXT)} of text up to this file; expected "
                    f"less below {folder}",
                    "take a part of the text",
                )
            text = path.read_bytes().decode("utf-8").removeprefix("\ufeff")
        except OSError as error:
            raise DataError("DPA007", f"{path}: {error.strerror}") from None
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:
            raise DataError(
                "DPA029",
                f"{path}: not text in UTF-8; expected nothing but text files below {folder}",
                "move the file away, or convert it",
            )
        found.append((parts[0] if len(parts) > 1 else "", text))
    if not any(text.strip() for _, text in found):
        raise DataError(
            "DPA032",
            f"{folder}: {len(found)} files, and no text in them; expected text files in UTF-8",
            "name a folder with text, or leave data.path out for the embedded corpus",
        )
    return found


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _bytes(text: str) -> list[str]:
    return [_BYTES[b] for b in text.encode()]


def _vocabulary(tokenised: Sequence[_Tokenised], size: int) -> tuple[str, ...]:
    """The most frequent words, equally frequent ones by the alphabet, behind ``<unk>``."""
    counts = Counter(token for one in tokenised for token in one.tokens)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return (UNKNOWN, *ranked[: size - 1])


def _rows(
    tokenised: Sequence[_Tokenised],
    vocabulary: tuple[str, ...],
    length: int,
    labels: Sequence[str] | None,
    at_positions: bool,
) -> tuple[list[list[int]], list[int] | list[list[int]]]:
    """Records and their labels: of ``labels``, or the tokens that follow the records.

    ``at_positions``: the tokens that follow each token of a record.
    """
    index = {token: i for i, token in enumerate(vocabulary)}
    rows, y, each = [], [], []
    step = length + (labels is None)
    for one in tokenised:
        ids = [index.get(token, 0) for token in one.tokens]
        for start in range(0, len(ids) - step + 1, step):
            rows.append(ids[start : start + length])
            y.append(ids[start + length] if labels is None else labels.index(one.label))
            each.append(ids[start + 1 : start + length + 1])
    return rows, each if at_positions else y
