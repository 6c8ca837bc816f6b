"""Data sets as tensors: records x [n, ...] and labels y [n] int64, for training and test.

Labels of text may be [n, positions].

Images are [n, channels, height, width] in [-1, 1], as in the reconstruction studies (so that
PSNR = 10 log10(4 / MSE)); features of a user's own file are left as they are. Records are float32,
or token ids [n, length], int64.
"""

import math
import os
import stat
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from hashlib import blake2b, sha256
from importlib.metadata import distribution
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpaudit.errors import DataError, nearest
from dpaudit.files.config import TEXT
from dpaudit.files.data_folders import DATA_FOLDERS, DATA_ROOT, root_folder
from dpaudit.rng import Streams

from .vision import torchvision

Array = NDArray[Any]

_UNREADABLE = (  # errors of torchvision on missing or damaged files
    OSError,
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    AssertionError,
    EOFError,
    MemoryError,
    OverflowError,
)
MOST_EXPANSION = 200  # times; pixels and one-hot features expand less
SMALL = 2**26  # bytes that an array may take whatever it expands from
_VERSIONS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_BROKEN = (  # errors on damaged archives
    OSError,
    ValueError,
    EOFError,
    RuntimeError,
    MemoryError,
    TypeError,
    SyntaxError,
    OverflowError,
    NotImplementedError,
    tokenize.TokenError,  # raised for a header since Python 3.12
    zipfile.BadZipFile,
    zlib.error,
)
_CHANNELS = (1, 3, 4)  # grey, colour, colour and transparency
TEST_SHARE = 0.2  # share of every class, if a data set has no test part


@dataclass(frozen=True, eq=False)
class Dataset:
    """A classification data set.

    Args:
        name: as the audit file names it.
        x, x_test: [n, channels, height, width] or [n, features] float32, or token ids [n, length]
            int64.
        y, y_test: [n] int64 in ``range(len(class_names))``; [n, positions] where a record of token
            ids has a label at each position, as for a language model the token that follows.
        class_names: in the order of the labels.
        value_range: lowest and highest value that an entry of x can have; for features, has.
        vocabulary: of token ids, how each is written; empty of numbers.
    """

    name: str
    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    class_names: tuple[str, ...]
    value_range: tuple[float, float] = (-1.0, 1.0)
    vocabulary: tuple[str, ...] = ()

    @property
    def n_tokens(self) -> int:
        """The size of the vocabulary; 0 where records are numbers."""
        return len(self.vocabulary)

    @property
    def n_positions(self) -> int:
        """At how many positions of a record there is a label; 0 where a record has one label."""
        return self.y.shape[1] if self.y.ndim > 1 else 0

    @property
    def is_image(self) -> bool:
        return self.x.ndim == 4

    @property
    def n_classes(self) -> int:
        return len(self.class_names)

    def in_units(self) -> "Dataset":
        """The same images with pixels in [0, 1].

        Raises:
            DataError: it holds features, which are kept as they are.
        """
        if not self.is_image or self.value_range != (-1.0, 1.0):
            raise DataError(
                "DPA005",
                f'data.scale: "unit" is of images that are scaled to [-1, 1]; {self.name} is kept '
                "as it is",
            )
        x, x_test = ((t + 1) / 2 for t in (self.x, self.x_test))
        return replace(self, x=x, x_test=x_test, value_range=(0.0, 1.0))

    @cached_property
    def n_distinct(self) -> int:
        """How many different records there are for training, whatever their labels."""
        return len(set(_digests(self.x)))

    @cached_property
    def n_copied(self) -> int:
        """How many test records are copies of records for training, whatever their labels."""
        known = set(_digests(self.x))
        return sum(digest in known for digest in _digests(self.x_test))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of shapes and bytes of the four tensors, in hexadecimal."""
        digest = sha256()
        for tensor in (self.x, self.y, self.x_test, self.y_test):
            digest.update(repr(tuple(tensor.shape)).encode())
            digest.update(tensor.contiguous().numpy().data)
        return digest.hexdigest()


def _digests(x: Tensor) -> Iterator[bytes]:
    """Digests of records [n, ...], equal if two records are the same bit for bit."""
    return (blake2b(row.tobytes(), digest_size=16).digest() for row in x.flatten(1).numpy())


def load_dataset(
    data: str | Path, *, data_root: str | Path | None = None, download: bool = False, seed: int = 0
) -> Dataset:
    """The data set of this name, or in this ``.npz`` file.

    A file holds arrays ``x`` and ``y`` (or ``x_train`` and ``y_train``) and optionally ``x_test``
    and ``y_test``. uint8 images [n, height, width] or [n, height, width, channels] are scaled to
    [-1, 1]; float arrays [n, features] or [n, channels, height, width] are kept as they are. Labels
    are integers or strings, one per record. Nothing is unpickled.

    Args:
        data: a name of ``dataset_names()``, or a path that ends in ``.npz``.
        data_root: where torchvision's data sets are; the environment's ``DPAUDIT_DATA`` if None.
        download: fetch one of those if it is not there; nothing else is ever downloaded.
        seed: of the split in training and test part where the data set comes without one.

    Raises:
        DataError: no such data set, or its files are missing or damaged.
    """
    refuse_unknown_data(data)
    rng = Streams(seed).numpy("data", "test split")
    if str(data) == TEXT:
        from .text import load_text

        return load_text(None, seed=seed)
    if str(data) in _EMBEDDED:
        return _EMBEDDED[str(data)](rng)
    if str(data) in DATA_FOLDERS:
        return _torchvision(str(data), root_folder(data_root), download)
    return _from_arrays(str(data), Path(data).name, _arrays(Path(data)), rng)


def refuse_unknown_data(data: str | Path) -> None:
    """Raises DataError: no data set has this name, or no file is there."""
    if str(data) in dataset_names():
        return
    if not str(data).endswith(".npz"):
        raise DataError(
            "DPA006",
            f'no data set "{data}"{nearest(str(data), dataset_names())}: '
            f"{', '.join(dataset_names())}, or a .npz file",
        )
    if not Path(data).exists():
        raise DataError("DPA007", f"{data}: no such file")


def from_arrays(x: Array | Tensor, y: Array | Tensor, *, seed: int = 0) -> Dataset:
    """A data set from a caller's own arrays, shaped as ``load_dataset`` describes.

    Raises:
        DataError: they are of other shapes or types.
    """
    arrays = {"x": array_of(x, "x"), "y": array_of(y, "y")}
    return _from_arrays("data", "arrays", arrays, Streams(seed).numpy("data", "test split"))


def array_of(values: Any, what: str) -> Array:
    """Numbers of a list, an array or a tensor. Raises DataError: they are no array."""
    try:
        if isinstance(values, torch.Tensor):
            values = values.detach().to_dense() if values.is_sparse else values.detach()
            values = values.float() if values.dtype == torch.bfloat16 else values
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError("DPA030", f"data: {what} is no array of numbers: {reason}") from None


def dataset_names() -> dict[str, str]:
    """Every data set by name, with one line about it."""
    embedded = {name: (read.__doc__ or "").splitlines()[0] for name, read in _EMBEDDED.items()}
    text = {TEXT: "records of your text files, or of an embedded corpus; [data.text] says how"}
    return embedded | text | {name: data.line for name, data in DATA_FOLDERS.items()}


def _digits(rng: np.random.Generator) -> Dataset:
    """1,797 handwritten digits, 8x8 grey; comes with scikit-learn"""
    path = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    try:
        table = _table_of_digits(str(path))
    except (OSError, ValueError) as error:
        said = f"data set digits: scikit-learn's file is damaged: {error}"
        raise DataError("DPA029", said) from None
    images, labels = table[:, :-1], table[:, -1]
    x = images.reshape(-1, 1, 8, 8) / 8 - 1  # grey levels are 0 to 16
    return _with_test_part("digits", x, labels, tuple("0123456789"), rng)


@lru_cache(maxsize=1)
def _table_of_digits(path: str) -> Array:
    """[1797, 65] grey levels and, last, the digit; without the package's import, of a second."""
    table = np.loadtxt(path, delimiter=",")
    table.flags.writeable = False
    return table


def _lfw(rng: np.random.Generator) -> Dataset:
    """200 grey 25x25 crops of photographs, half of them faces; comes with scikit-image"""
    from skimage.data import lfw_subset

    try:
        images = lfw_subset()  # scikit-image looks elsewhere only if its own file is damaged
    except (ModuleNotFoundError, OSError) as error:
        said = f"data set lfw: scikit-image's file is damaged: {error}"
        raise DataError("DPA029", said) from None
    x = images[:, None] * 2 - 1  # grey levels are 0 to 1
    return _with_test_part("lfw", x, np.repeat([0, 1], 100), ("face", "background"), rng)


_EMBEDDED: dict[str, Callable[[np.random.Generator], Dataset]] = {"digits": _digits, "lfw": _lfw}


def _torchvision(name: str, root: Path | None, download: bool) -> Dataset:
    """MNIST and its likes are plain arrays. CIFAR-10 is pickled: torchvision checks the published
    MD5 of every file before it unpickles the first."""
    if root is None:
        raise DataError(
            "DPA028", f"data set {name} needs a folder: pass --data-root FOLDER or set {DATA_ROOT}"
        )
    kind = getattr(torchvision().datasets, DATA_FOLDERS[name].torchvision)
    try:
        train, test = (kind(root, train=part, download=download) for part in (True, False))
    except _UNREADABLE as error:
        reason = " ".join(str(error).split()).split(" You can use")[0] or "a file is damaged"
        raise DataError(
            "DPA028",
            f"data set {name} in {root}: {reason.rstrip('.')}",
            f"name the folder with --data-root or {DATA_ROOT}, or pass --download to fetch it",
        ) from None
    class_names = tuple(str(c).split(" - ")[0] for c in train.classes)  # MNIST's are "0 - zero"
    train, test = ((_scaled(np.asarray(p.data)), np.asarray(p.targets)) for p in (train, test))
    fault = ""
    if any(len(x) != len(y) or not x.size for x, y in (train, test)):
        fault = "images and labels differ in number"
    elif any(y.min() < 0 or y.max() >= len(class_names) for _, y in (train, test)):
        fault = f"a label is not below {len(class_names)}"
    elif train[0].shape[1:] != test[0].shape[1:]:
        fault = "training and test images differ in size"
    if fault:
        raise DataError("DPA029", f"data set {name} in {root}: {fault}")
    return _dataset(name, train, test, class_names)


def _from_arrays(
    where: str, name: str, arrays: dict[str, Array], rng: np.random.Generator
) -> Dataset:
    x, value_range = _records(f"{where}: x", arrays["x"])
    y = _labels(f"{where}: y", arrays["y"], len(x))
    classes, labels = np.unique(y, return_inverse=True)
    fault = ""
    if len(classes) < 2:
        fault = f"y has the single class {classes[0]}, nothing can be learned"
    elif len(classes) > max(2, len(y) // 2):
        fault = f"y has {len(classes)} classes among {len(y)} records"
    elif (x == x[0]).all():
        fault = f"x has {len(x)} records that are all the same; expected others"
    if fault:
        raise DataError("DPA031", f"{where}: {fault}")
    class_names = tuple(str(c) for c in classes)
    if "x_test" not in arrays:
        return _with_test_part(name, x, labels, class_names, rng, value_range)

    x_test, _ = _records(f"{where}: x_test", arrays["x_test"])
    one, other = (f"{a.dtype} {a.shape[1:]}" for a in (arrays["x"], arrays["x_test"]))
    if one != other:
        raise DataError(
            "DPA030", f"{where}: x_test must be like x, a record of it {one}, got {other}"
        )
    y_test = _labels(f"{where}: y_test", arrays["y_test"], len(x_test))
    if not (known := np.isin(y_test, classes)).all():
        raise DataError(
            "DPA030", f"{where}: y_test has the class {y_test[~known][0]}, which y has not"
        )
    test = x_test, np.searchsorted(classes, y_test)
    return _dataset(name, (x, labels), test, class_names, value_range)


def _arrays(path: Path) -> dict[str, Array]:
    """x, y and, if it has them, x_test, y_test of an .npz archive.

    Nothing is unpickled, and no array is larger than what is really in the file.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ValueError("not a regular file")
        with zipfile.ZipFile(path) as archive:
            there = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            keys = _keys(path, set(there))
            return {name: _array(archive, key, there[key]) for name, key in keys.items()}
    except FileNotFoundError:
        raise DataError("DPA007", f"{path}: no such file") from None
    except _BROKEN as error:
        what = " ".join(str(error).split()) or type(error).__name__
        said = f"{path}: not a readable .npz of plain arrays: {what}"
        raise DataError("DPA029", said) from None


def _array(archive: zipfile.ZipFile, name: str, info: zipfile.ZipInfo) -> Array:
    if info.file_size > SMALL + MOST_EXPANSION * info.compress_size:
        raise ValueError(f"{name} expands from {info.compress_size} to {info.file_size} bytes")
    with archive.open(info) as stream:
        _refuse_untrue_header(name, stream, info.file_size)
    with archive.open(info) as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


def _refuse_untrue_header(name: str, stream: IO[bytes], n_bytes: int) -> None:
    """Raises ValueError unless the array that a header announces has the bytes that follow it."""
    version = np.lib.format.read_magic(stream)
    if version not in _VERSIONS:
        raise ValueError(f"{name} is of the unknown version {version}")
    shape, _, dtype = _VERSIONS[version](stream)
    if dtype.hasobject or not dtype.itemsize:
        raise ValueError(f"{name} is an array of {dtype}; expected numbers or text")
    announced, there = math.prod(shape) * dtype.itemsize, n_bytes - stream.tell()
    if announced != there or any(length < 0 for length in shape):
        raise ValueError(f"{name} announces {announced} bytes of data, and has {there}")


def _keys(path: Path, found: set[str]) -> dict[str, str]:
    suffix = "_train" if "x_train" in found else ""
    keys = {"x": "x" + suffix, "y": "y" + suffix}
    if found & {"x_test", "y_test"}:
        keys |= {"x_test": "x_test", "y_test": "y_test"}
    if missing := sorted(set(keys.values()) - found):
        raise DataError(
            "DPA030",
            f"{path}: no array {', '.join(missing)}, only {', '.join(sorted(found)) or 'none'}; "
            "expected x and y (or x_train and y_train), optionally x_test and y_test",
        )
    return keys


def _records(what: str, x: Array) -> tuple[Array, tuple[float, float]]:
    if x.size == 0:
        raise DataError("DPA030", f"{what} is empty, its shape is {x.shape}")
    if x.dtype == np.uint8 and (x.ndim == 3 or (x.ndim == 4 and x.shape[-1] in _CHANNELS)):
        if x.max() <= 1:
            raise DataError(
                "DPA030",
                f"{what} is uint8, of which 255 is white, and has nothing above {x.max()}; "
                "expected images times 255, or as float [n, channels, height, width]",
            )
        return _scaled(x), (-1.0, 1.0)
    if x.dtype.kind != "f" or x.ndim not in (2, 4):
        raise DataError(
            "DPA030",
            f"{what} is {x.dtype} {x.shape}; expected uint8 [n, height, width] or [n, height, "
            "width, channels], or float [n, features] or [n, channels, height, width]",
            "make them float; token ids are taken from a data set of pairs"
            if x.dtype.kind in "iu" and x.ndim == 2
            else "",
        )
    if x.ndim == 4 and x.shape[-1] in _CHANNELS and x.shape[1] > max(_CHANNELS):
        raise DataError(
            "DPA030",
            f"{what} is {x.dtype} {x.shape}, as images [n, height, width, channels] are; expected "
            "float images as [n, channels, height, width]",
            "pass x.transpose(0, 3, 1, 2); if it has the channels first already, turn its images "
            "by 90 degrees",
        )
    with np.errstate(over="ignore"):
        x = x.astype(np.float32)
    if not np.isfinite(x).all():
        raise DataError("DPA030", f"{what} has entries that are not finite numbers in float32")
    return x, (float(x.min()), float(x.max()))


def _labels(what: str, y: Array, n: int) -> Array:
    if y.shape != (n,):
        raise DataError(
            "DPA030",
            f"{what} has shape {y.shape}; expected one label for each of {n} records",
            _help_with(y),
        )
    if y.dtype.kind == "O" and all(isinstance(label, str) for label in y):
        y = y.astype(str)  # like a column of pandas
    if y.dtype.kind not in "iubU":
        said = f"{what} is {y.dtype}; expected integers or strings"
        raise DataError("DPA030", said, _help_with(y))
    return y


ONE_HOT = "these labels are one-hot: give the class of each record, y.argmax(-1)"


def is_one_hot(y: Array) -> bool:
    """Whether each row [..., n_classes] is 1 for one of several classes, and 0 for the others."""
    if y.dtype.kind not in "iufb" or not y.ndim or y.shape[-1] < 2 or not y.size:
        return False
    return bool(((y == 0) | (y == 1)).all() and (y.sum(-1) == 1).all())


def _help_with(y: Array) -> str:
    """What to do with labels that are no classes; "" if only their number is wrong."""
    if y.ndim == 1 and y.dtype.kind in "iubUO":
        return ""
    if is_one_hot(y):
        return ONE_HOT
    if y.ndim == 2 and y.shape[-1] == 1:
        return "give the labels without their last axis, y.reshape(-1)"
    if y.dtype.kind == "f" and y.ndim == 1 and (y == np.floor(y)).all():
        return "these are whole numbers: give them as integers, y.astype(int)"
    return "audits are of classification: give the class of each record as an integer or a name"


def _scaled(x: Array) -> Array:
    """uint8 images [n, height, width(, channels)] as [n, channels, height, width] in [-1, 1]."""
    channels_last = x if x.ndim == 4 else x[..., None]
    return channels_last.transpose(0, 3, 1, 2).astype(np.float32) / np.float32(127.5) - 1


def _with_test_part(
    name: str,
    x: Array,
    y: Array,
    class_names: tuple[str, ...],
    rng: np.random.Generator,
    value_range: tuple[float, float] = (-1.0, 1.0),
) -> Dataset:
    """Hold ``TEST_SHARE`` of every class back, drawn at random; both parts keep their order."""
    of_class = [rng.permutation(np.flatnonzero(y == c)) for c in range(len(class_names))]
    held_back = np.concatenate([i[: round(len(i) * TEST_SHARE)] for i in of_class])
    if not len(held_back):
        raise DataError(
            "DPA032", f"data set {name}: {len(y)} records are too few to hold some back as test"
        )
    test = np.isin(np.arange(len(y)), held_back)
    return _dataset(name, (x[~test], y[~test]), (x[test], y[test]), class_names, value_range)


def _dataset(
    name: str,
    train: tuple[Array, Array],
    test: tuple[Array, Array],
    class_names: tuple[str, ...],
    value_range: tuple[float, float] = (-1.0, 1.0),
) -> Dataset:
    x, x_test = (torch.from_numpy(np.ascontiguousarray(x, np.float32)) for x, _ in (train, test))
    y, y_test = (torch.from_numpy(np.ascontiguousarray(y, np.int64)) for _, y in (train, test))
    return Dataset(name, x, y, x_test, y_test, class_names, value_range)
