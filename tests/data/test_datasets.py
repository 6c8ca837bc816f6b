import gzip
import hashlib
import io
import pickle
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from dpaudit.data.datasets import Dataset, dataset_names, from_arrays, load_dataset
from dpaudit.errors import DataError
from dpaudit.files.data_folders import DATA_FOLDERS

RNG = np.random.default_rng(3)
IMAGES = RNG.integers(0, 256, (20, 6, 5), dtype=np.uint8)
FEATURES = RNG.normal(size=(20, 4))
LABELS = np.tile([0, 1], 10)


def npz(folder: Path, **arrays: object) -> Path:
    np.savez(folder / "my.npz", **arrays)
    return folder / "my.npz"


def idx(path: Path, array: np.ndarray) -> None:
    """The format of the MNIST files: type and rank, then the shape, then the bytes."""
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header + array.tobytes())


def mnist_in(root: Path, name: str = "MNIST") -> Path:
    for part in ("train", "t10k"):
        idx(
            root / name / "raw" / f"{part}-images-idx3-ubyte",
            RNG.integers(0, 256, (6, 28, 28), "u1"),
        )
        idx(root / name / "raw" / f"{part}-labels-idx1-ubyte", np.arange(6, dtype=np.uint8))
    return root


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("a test tried to reach the network")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.delenv("DPAUDIT_DATA", raising=False)


@pytest.mark.parametrize(
    ("name", "shape", "n", "n_test", "n_classes"),
    [("digits", (1, 8, 8), 1797, 359, 10), ("lfw", (1, 25, 25), 200, 40, 2)],
)
def test_embedded_images_are_complete_and_fill_the_range(
    name: str, shape: tuple[int, ...], n: int, n_test: int, n_classes: int
) -> None:
    data = load_dataset(name)
    assert data.x.shape == (n - n_test, *shape)
    assert data.x_test.shape == (n_test, *shape)
    assert data.x.dtype == data.x_test.dtype == torch.float32
    assert data.y.dtype == data.y_test.dtype == torch.int64
    assert data.value_range == (-1, 1) == (data.x.min(), data.x.max())
    assert data.n_classes == n_classes
    assert data.y.unique().tolist() == list(range(n_classes))
    assert data.is_image


def test_digits_keep_their_grey_levels_and_labels() -> None:
    from sklearn.datasets import load_digits

    (images, labels), data = load_digits(return_X_y=True), load_dataset("digits")
    scaled = (images / 8 - 1).astype(np.float32)
    known = {image.tobytes(): label for image, label in zip(scaled, labels, strict=True)}
    x, y = torch.cat([data.x, data.x_test]), torch.cat([data.y, data.y_test])
    assert all(known[image.numpy().tobytes()] == label for image, label in zip(x, y, strict=True))


def test_faces_are_faces() -> None:
    from skimage.data import lfw_subset

    faces = {(image * 2 - 1).astype(np.float32).tobytes() for image in lfw_subset()[:100]}
    data = load_dataset("lfw")
    assert data.class_names == ("face", "background")
    for image, label in zip(data.x, data.y, strict=True):
        assert (image.numpy().tobytes() in faces) == (label == 0)


def test_embedded_data_needs_neither_network_nor_pooch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    monkeypatch.setattr("skimage.data._fetchers._image_fetcher", None)
    assert load_dataset("lfw").n_classes == 2
    assert load_dataset("digits").n_classes == 10


def test_the_test_part_is_a_fifth_of_every_class() -> None:
    first, again, other = (
        load_dataset("digits", seed=1),
        load_dataset("digits", seed=1),
        load_dataset("digits", seed=2),
    )
    total = torch.bincount(torch.cat([first.y, first.y_test]))
    assert torch.equal(torch.bincount(first.y_test), (total * 0.2).round().long())
    assert first.fingerprint == again.fingerprint != other.fingerprint
    together = [sorted(map(bytes, torch.cat([d.x, d.x_test]).numpy())) for d in (first, other)]
    assert together[0] == together[1]


def test_the_fingerprint_sees_every_bit() -> None:
    data = load_dataset("lfw")
    changed = data.x_test.clone()
    changed[7, 0, 3, 3] = torch.nextafter(changed[7, 0, 3, 3], torch.tensor(2.0))
    other = Dataset(data.name, data.x, data.y, changed, data.y_test, data.class_names)
    reshaped = Dataset(
        data.name, data.x.flatten(1), data.y, data.x_test, data.y_test, data.class_names
    )
    assert len({data.fingerprint, other.fingerprint, reshaped.fingerprint}) == 3
    assert len(data.fingerprint) == 64


def test_the_fingerprint_is_the_hash_of_shapes_and_bytes() -> None:
    data = load_dataset("lfw")
    parts = [data.x, data.y, data.x_test, data.y_test]
    text = b"".join(str(tuple(p.shape)).encode() + p.numpy().tobytes() for p in parts)
    assert data.fingerprint == hashlib.sha256(text).hexdigest()


@pytest.mark.parametrize("channels", [None, 1, 3])
def test_bytes_of_images_are_scaled_with_channels_first(
    tmp_path: Path, channels: int | None
) -> None:
    images = IMAGES if channels is None else RNG.integers(0, 256, (20, 6, 5, channels), "u1")
    images[0].flat[:2] = 0, 255
    data = load_dataset(npz(tmp_path, x=images, y=LABELS, x_test=images[:4], y_test=LABELS[:4]))
    assert data.name == "my.npz"
    assert data.x.shape == (20, channels or 1, 6, 5)
    assert data.value_range == (-1, 1) == (data.x.min(), data.x.max())
    first = images[3, 2, 4] if channels is None else images[3, 2, 4, -1]
    assert data.x[3, -1, 2, 4].item() == pytest.approx(int(first) / 127.5 - 1)
    assert torch.equal(data.x_test, data.x[:4])


@pytest.mark.parametrize("shape", [(20, 4), (20, 2, 3, 5)])
def test_floats_are_kept_as_they_are(tmp_path: Path, shape: tuple[int, ...]) -> None:
    x = RNG.normal(size=shape) * 30
    data = load_dataset(npz(tmp_path, x_train=x, y_train=LABELS, x_test=x[:5], y_test=LABELS[:5]))
    np.testing.assert_array_equal(data.x.numpy(), x.astype(np.float32))
    assert data.is_image == (len(shape) == 4)
    assert data.value_range == (np.float32(x).min(), np.float32(x).max())


def test_a_file_without_test_part_is_split(tmp_path: Path) -> None:
    data = load_dataset(npz(tmp_path, x=FEATURES, y=LABELS))
    assert (len(data.x), len(data.x_test)) == (16, 4)
    assert data.y_test.tolist().count(0) == 2


@pytest.mark.parametrize("labels", [LABELS * 5 - 3, np.array(["cat", "dog"])[LABELS], LABELS > 0])
def test_labels_of_any_name_are_numbered(tmp_path: Path, labels: np.ndarray) -> None:
    data = load_dataset(npz(tmp_path, x=FEATURES, y=labels, x_test=FEATURES, y_test=labels))
    assert data.y.tolist() == data.y_test.tolist() == LABELS.tolist()
    assert data.class_names == tuple(str(c) for c in np.unique(labels))


ONE_HOT = np.eye(3)[LABELS % 3]


@pytest.mark.parametrize(
    ("y", "said"),
    [
        (ONE_HOT, "these labels are one-hot"),
        (ONE_HOT.astype(bool), "these labels are one-hot"),
        (ONE_HOT.astype(int), "these labels are one-hot"),
        (2 * ONE_HOT, "audits are of classification"),
        (ONE_HOT / 2 + 1 / 6, "audits are of classification"),
        (np.ones((20, 2)), "audits are of classification"),
        (LABELS[:, None], "give the labels without their last axis"),
        (LABELS.astype(float), "these are whole numbers"),
        (LABELS + 0.5, "audits are of classification"),
        (LABELS[:-1], ""),
    ],
)
def test_labels_that_are_no_classes_are_helped(y: np.ndarray, said: str) -> None:
    with pytest.raises(DataError) as refused:
        from_arrays(FEATURES, y)
    [problem] = refused.value.problems
    assert problem.help.startswith(said)
    assert bool(problem.help) == bool(said)


class Evil:
    def __reduce__(self) -> tuple:
        return (Path.touch, (Path("unpickled"),))


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"images": IMAGES, "y": LABELS}, "no array x, only images, y; expected x and y"),
        ({"x": IMAGES}, "no array y, only x"),
        ({}, "no array x, y, only none"),
        ({"x": IMAGES, "y": LABELS, "x_test": IMAGES}, "no array y_test"),
        (
            {"x": IMAGES, "y": LABELS[:-1]},
            r"y has shape \(19,\); expected one label for each of 20",
        ),
        ({"x": FEATURES, "y": FEATURES}, "expected one label for each"),
        ({"x": FEATURES, "y": LABELS + 0.5}, "y is float64; expected integers or strings"),
        ({"x": FEATURES, "y": LABELS * 0}, "single class 0"),
        ({"x": IMAGES * 0 + 7, "y": LABELS}, "x has 20 records that are all the same"),
        ({"x": FEATURES * 0, "y": LABELS}, "x has 20 records that are all the same"),
        ({"x": np.where(FEATURES > 1, np.nan, FEATURES), "y": LABELS}, "not finite"),
        ({"x": np.where(FEATURES > 1, np.inf, FEATURES), "y": LABELS}, "not finite"),
        ({"x": FEATURES * 1e300, "y": LABELS}, "not finite numbers in float32"),
        ({"x": np.zeros((0, 4)), "y": LABELS[:0]}, r"x is empty, its shape is \(0, 4\)"),
        ({"x": np.zeros((20, 0)), "y": LABELS}, "x is empty"),
        ({"x": FEATURES[0, 0], "y": LABELS}, r"x is float64 \(\); expected"),
        ({"x": FEATURES.astype(int), "y": LABELS}, r"x is int64 \(20, 4\); expected uint8"),
        ({"x": IMAGES[:, None], "y": LABELS}, r"x is uint8 \(20, 1, 6, 5\); expected"),
        ({"x": IMAGES // 128, "y": LABELS}, "255 is white, and has nothing above 1"),
        ({"x": FEATURES + 0j, "y": LABELS}, "x is complex128"),
        ({"x": np.array([Evil()] * 20), "y": LABELS}, "not a readable .npz of plain arrays"),
        ({"x": FEATURES, "y": np.array([Evil()] * 20)}, "not a readable .npz of plain arrays"),
        (
            {"x": FEATURES, "y": LABELS, "x_test": FEATURES[:, :3], "y_test": LABELS},
            "x_test must be like x",
        ),
        (
            {"x": FEATURES, "y": LABELS, "x_test": FEATURES.astype("f4"), "y_test": LABELS},
            r"x_test must be like x, a record of it float64 \(4,\), got float32 \(4,\)",
        ),
        (
            {"x": FEATURES, "y": LABELS, "x_test": FEATURES, "y_test": LABELS + 1},
            "y_test has the class 2, which y has not",
        ),
        ({"x": FEATURES[:2], "y": LABELS[:2]}, "2 records are too few"),
    ],
)
def test_a_file_that_makes_no_data_set_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arrays: dict, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=said) as refused:
        load_dataset(npz(tmp_path, **arrays))
    assert "my.npz" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not Path("unpickled").exists()


def damaged(good: bytes) -> dict[str, bytes]:
    single = io.BytesIO()
    np.save(single, FEATURES)
    flipped = bytearray(good)
    flipped[len(good) // 3] ^= 0xFF
    return {
        "empty": b"",
        "text": b"x,y\n1,2\n",
        "cut short": good[: len(good) // 2],
        "flipped": bytes(flipped),
        "a single array": single.getvalue(),
        "a pickle": pickle.dumps(Evil()),
    }


@pytest.mark.parametrize("damage", damaged(b"none"))
def test_of_a_damaged_file_nothing_is_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = npz(tmp_path, x=FEATURES, y=LABELS)
    path.write_bytes(damaged(path.read_bytes())[damage])
    with pytest.raises(DataError, match=r"my\.npz: not a readable \.npz") as refused:
        load_dataset(path)
    assert "\n" not in str(refused.value)
    assert not Path("unpickled").exists()


def test_a_file_or_a_name_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.npz: no such file"):
        load_dataset(tmp_path / "none.npz")
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(DataError, match=r"not a readable \.npz"):
        load_dataset(tmp_path / "folder.npz")
    with pytest.raises(DataError, match=r'no data set "mnits" \(did you mean "mnist"\?\)'):
        load_dataset("mnits")


@pytest.mark.parametrize(
    ("name", "folder", "first"),
    [("mnist", "MNIST", "0"), ("fashion-mnist", "FashionMNIST", "T-shirt/top")],
)
def test_idx_files_are_read_from_the_folder_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, folder: str, first: str
) -> None:
    assert DATA_FOLDERS[name].folder == folder  # where a check looks for what has changed
    mnist_in(tmp_path, folder)
    data = load_dataset(name, data_root=tmp_path)
    raw = (tmp_path / folder / "raw" / "train-images-idx3-ubyte").read_bytes()[16:]
    expected = np.frombuffer(raw, np.uint8).reshape(6, 1, 28, 28) / np.float32(127.5) - 1
    np.testing.assert_allclose(data.x.numpy(), expected, rtol=0, atol=1e-6)
    assert data.x_test.shape == (6, 1, 28, 28)
    assert data.y.tolist() == data.y_test.tolist() == [0, 1, 2, 3, 4, 5]
    assert data.class_names[0] == first
    assert data.n_classes == 10
    monkeypatch.setenv("DPAUDIT_DATA", str(tmp_path))
    assert load_dataset(name).fingerprint == data.fingerprint


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_missing_files_are_reported_with_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=rf"(?s){name} in {tmp_path}: .*--data-root .*--download"):
        load_dataset(name, data_root=tmp_path)
    with pytest.raises(DataError, match="pass --data-root FOLDER or set DPAUDIT_DATA"):
        load_dataset(name)


def spoil(raw: Path, how: str) -> None:
    images, labels = raw / "train-images-idx3-ubyte", raw / "train-labels-idx1-ubyte"
    if how == "cut short":
        images.write_bytes(images.read_bytes()[:-100])
    elif how == "empty":
        images.write_bytes(b"")
    elif how == "text":
        images.write_bytes(b"<html>not found</html>")
    elif how == "still packed":
        images.write_bytes(gzip.compress(images.read_bytes()))
    else:
        idx(labels, np.arange(5, dtype=np.uint8))


@pytest.mark.parametrize("how", ["cut short", "empty", "text", "still packed", "five labels"])
def test_damaged_idx_files_are_refused_in_one_line(tmp_path: Path, how: str) -> None:
    spoil(mnist_in(tmp_path) / "MNIST" / "raw", how)
    with pytest.raises(DataError, match=rf"mnist in {tmp_path}: ") as refused:
        load_dataset("mnist", data_root=tmp_path)
    assert "\n" not in str(refused.value)


def test_cifar10_is_not_unpickled_before_its_sums_are_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    batches = tmp_path / "cifar-10-batches-py"
    batches.mkdir()
    for name in ["batches.meta", "test_batch", *(f"data_batch_{i}" for i in range(1, 6))]:
        (batches / name).write_bytes(pickle.dumps(Evil()))
    with pytest.raises(DataError, match="not found or corrupted"):
        load_dataset("cifar10", data_root=tmp_path)
    assert not Path("unpickled").exists()


def test_cifar10_is_read_channels_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.datasets import CIFAR10

    pixels = RNG.integers(0, 256, (10, 3 * 32 * 32), dtype=np.uint8)
    assert DATA_FOLDERS["cifar10"].folder == CIFAR10.base_folder
    batches = tmp_path / CIFAR10.base_folder
    batches.mkdir()
    for name, _ in [*CIFAR10.train_list, *CIFAR10.test_list]:
        batch = {"data": pixels, "labels": list(range(10))}
        (batches / name).write_bytes(pickle.dumps(batch))
    meta = {"label_names": [f"thing {i}" for i in range(10)]}
    (batches / "batches.meta").write_bytes(pickle.dumps(meta))
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda path, md5: True)
    data = load_dataset("cifar10", data_root=tmp_path)
    expected = pixels.reshape(10, 3, 32, 32) / np.float32(127.5) - 1
    np.testing.assert_allclose(data.x_test.numpy(), expected, rtol=0, atol=1e-6)
    assert data.x.shape == (50, 3, 32, 32)
    assert data.class_names[9] == "thing 9"


def test_every_data_set_has_a_line_about_it() -> None:
    assert list(dataset_names()) == ["digits", "lfw", "text", "mnist", "fashion-mnist", "cifar10"]
    assert all(len(line) > 20 for line in dataset_names().values())


def test_pixels_are_in_units_if_asked_and_features_are_kept() -> None:
    data = load_dataset("digits")
    units = data.in_units()
    np.testing.assert_allclose(units.x.numpy(), (data.x.numpy() + 1) / 2, atol=1e-7)
    assert units.value_range == (0.0, 1.0)
    assert units.fingerprint != data.fingerprint
    with pytest.raises(DataError, match="data.scale"):
        units.in_units()


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_float_images_with_channels_last_are_refused(channels: int) -> None:
    """They were read as images of 8 channels, a few pixels wide, without a word."""
    x = RNG.random((20, 8, 9, channels), dtype="f4")
    with pytest.raises(DataError, match=r"expected float images as \[n, channels, height, width\]"):
        from_arrays(x, np.arange(20) % 2)
    assert from_arrays(x.transpose(0, 3, 1, 2), np.arange(20) % 2).x.shape[1:] == (channels, 8, 9)
    narrow = RNG.random((20, 3, 9, channels), dtype="f4")
    assert from_arrays(narrow, np.arange(20) % 2).x.shape[1:] == (3, 9, channels)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_with_a_graph_are_taken_as_arrays(dtype: torch.dtype) -> None:
    x = torch.rand((20, 5), requires_grad=True).to(dtype)
    data = from_arrays(x, torch.arange(20) % 2)
    assert {*data.x.flatten().tolist()} <= {*x.detach().float().flatten().tolist()}
    with pytest.raises(DataError, match="x is no array of numbers"):
        from_arrays([[1.0], [1.0, 2.0]], [0, 1])  # type: ignore[arg-type]


def test_labels_of_a_column_of_strings_are_taken() -> None:
    y = np.array(["cat", "dog"] * 10, dtype=object)
    assert from_arrays(RNG.random((20, 5)), y).class_names == ("cat", "dog")
    y[3] = 7
    with pytest.raises(DataError, match="y is object"):
        from_arrays(RNG.random((20, 5)), y)


def test_copies_among_test_records_are_counted() -> None:
    x = np.repeat(RNG.random((5, 4), dtype="f4"), 4, axis=0)
    data = from_arrays(x, np.arange(20) % 2)
    assert (len(data.x_test), data.n_copied, data.n_distinct) == (4, 4, 5)
    assert from_arrays(RNG.random((20, 4)), np.arange(20) % 2).n_copied == 0
