"""Scores of a .npy file, and the one line that is said of any other file."""

from pathlib import Path

import numpy as np
import pytest

from dpaudit.errors import DataError
from dpaudit.files.score_file import read_scores


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "uint8"])
def test_numbers_are_read_whatever_holds_them(tmp_path: Path, dtype: str) -> None:
    np.save(path := tmp_path / "scores.npy", np.array([3, 1], dtype))
    assert read_scores(path).tolist() == [3.0, 1.0]
    np.save(path, np.array([np.inf, -np.inf]))
    assert read_scores(path).tolist() == [np.inf, -np.inf]


@pytest.mark.parametrize(
    "scores, said",
    [
        (np.array([1.0]), "expected 2 to 100,000,000 scores, got 1"),
        (np.ones((2, 1)), "expected one list of scores [n], got shape [2, 1]"),
        (np.ones(2, "float16"), "expected float32, float64 or integers, got float16"),
        (np.ones(2, bool), "expected float32, float64 or integers, got bool"),
        (np.array([1.0, np.nan, np.nan]), "2 of 3 scores are NaN"),
        (np.array([1.0, None]), "not a .npy file of numbers: it holds Python objects"),
    ],
)
def test_another_array_is_one_line(tmp_path: Path, scores: np.ndarray, said: str) -> None:
    np.save(path := tmp_path / "scores.npy", scores, allow_pickle=True)
    with pytest.raises(DataError) as refused:
        read_scores(path)
    assert str(refused.value).startswith(f"{path}: {said}")


def test_a_text_and_an_empty_file_are_no_scores(tmp_path: Path) -> None:
    """Of an empty file NumPy says why itself."""
    (path := tmp_path / "scores.npy").write_text("1.0\n2.0\n")
    with pytest.raises(DataError, match="not a .npy file of numbers: it does not begin as one"):
        read_scores(path)
    path.write_text("")
    with pytest.raises(DataError, match="not a .npy file of numbers: ") as refused:
        read_scores(path)
    assert "does not begin" not in str(refused.value)
