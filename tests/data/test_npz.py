"""Archives whose headers announce what is not in them: one line each, and nothing is allocated."""

import io
import json
import re
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from dpaudit.data.datasets import load_dataset
from dpaudit.errors import DataError

LABELS = np.arange(40) % 2
FEATURES = np.random.default_rng(3).random((40, 5))


def header(shape: str, descr: str = "'<f8'", fortran: str = "False") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}"
    text += " " * (63 - (10 + len(text)) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def member(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def archive(folder: Path, x: bytes, y: bytes, packing: int = zipfile.ZIP_STORED) -> Path:
    path = folder / "my.npz"
    with zipfile.ZipFile(path, "w", packing) as file:
        file.writestr("x.npy", x)
        file.writestr("y.npy", y)
    return path


@pytest.mark.parametrize(
    "x, said",
    [
        (header("(131072, 1048576)") + b"\0" * 200, "x announces 1099511627776 bytes of data"),
        (header(f"({2**62}, {2**62})") + b"\0" * 200, "announces"),
        (header("(40, -5)") + b"\0" * 200, "announces -1600 bytes"),
        (header("(-40, -5)") + b"\0" * 1600, "announces 1600 bytes"),
        (header("(0, 5)"), "x is empty"),
        (header("(40, 5)", "'|O'") + b"\0" * 1600, "x is an array of object"),
        (header(f"({10**15},)", "'<U0'"), "x is an array of <U0"),
        (header("(40, 5)", "[('a', '|O')]") + b"\0" * 1600, "x is an array of"),
        (header("[40, 5]") + b"\0" * 1600, "shape is not valid"),
        (header("(40, 5)", "'nonsense'") + b"\0" * 1600, "descr is not a valid dtype"),
        (header("(" * 3000 + ")" * 3000) + b"\0" * 1600, "not a readable .npz"),
        (b"\x93NUMPY\x09\x00" + b"\0" * 100, "unknown version (9, 0)"),
        (b"PK\x03\x04 no array", "not a readable .npz"),
        (b"", "not a readable .npz"),
    ],
    ids=range(14),
)
def test_a_header_that_lies_is_refused_in_one_line(tmp_path: Path, x: bytes, said: str) -> None:
    with pytest.raises(DataError, match=re.escape(said)) as refused:
        load_dataset(archive(tmp_path, x, member(LABELS)))
    assert "\n" not in str(refused.value)


def test_a_small_file_does_not_become_a_large_one(tmp_path: Path) -> None:
    bomb = header("(10000, 2000)") + b"\0" * 160_000_000
    with pytest.raises(DataError, match=r"x expands from \d+ to 160000\d+ bytes"):
        load_dataset(archive(tmp_path, bomb, member(LABELS), zipfile.ZIP_DEFLATED))


def test_order_and_packing_do_not_matter(tmp_path: Path) -> None:
    plain = load_dataset(archive(tmp_path, member(FEATURES), member(LABELS)))
    for x in (np.asfortranarray(FEATURES), FEATURES.astype(">f8")):
        packed = archive(tmp_path, member(x), member(LABELS), zipfile.ZIP_DEFLATED)
        assert load_dataset(packed).fingerprint == plain.fingerprint


def test_labels_that_are_no_classes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="y has 40 classes among 40 records"):
        load_dataset(archive(tmp_path, member(FEATURES), member(np.arange(40))))


def test_a_label_of_idx_that_is_no_class_is_refused(tmp_path: Path) -> None:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part in ("train", "t10k"):
        images = struct.pack(">IIII", 0x803, 4, 28, 28) + b"\7" * 4 * 28 * 28
        (raw / f"{part}-images-idx3-ubyte").write_bytes(images)
        labels = struct.pack(">II", 0x801, 4) + bytes([0, 1, 2, 10])
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(labels)
    with pytest.raises(DataError, match="a label is not below 10"):
        load_dataset("mnist", data_root=tmp_path)
    terabyte = struct.pack(">IIII", 0x803, 2**31 - 1, 2**31 - 1, 2**31 - 1)
    for content in (terabyte, struct.pack(">II", 0xA03, 1), json.dumps({}).encode()):
        (raw / "train-images-idx3-ubyte").write_bytes(content + b"\0" * 100)
        with pytest.raises(DataError, match="mnist in"):
            load_dataset("mnist", data_root=tmp_path)
