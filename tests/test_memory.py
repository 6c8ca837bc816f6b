"""Sizes as people write them, what is free, and tensors that are counted."""

from pathlib import Path

import pytest
import torch

from dpaudit.errors import ConfigError, is_out_of_memory
from dpaudit.memory import _of_groups, available, bytes_of, resident, size_text
from dpaudit.tensor_memory import TensorBytes, counted


@pytest.mark.parametrize(
    "text, size",
    [("8GB", 8 * 10**9), ("1.5 gb", 1_500_000_000), ("512MiB", 2**29), ("7", 7), ("2K", 2000)],
)
def test_a_size_is_read_as_people_write_it(text: str, size: int) -> None:
    assert bytes_of(text, "--max-memory") == size


@pytest.mark.parametrize("text", ["", "0", "-1GB", "8 apples", "nan", "GB", "1e9"])
def test_what_is_no_size_is_refused_with_the_option(text: str) -> None:
    with pytest.raises(ConfigError, match="--max-memory: .*expected one like 8GB"):
        bytes_of(text, "--max-memory")


def test_a_size_is_told_in_the_unit_that_fits() -> None:
    assert [size_text(s) for s in (64.4e9, 12e6, 3.2e12, 900)] == [
        "64.4 GB",
        "12 MB",
        "3.2 TB",
        "0.9 kB",
    ]


def test_the_least_limit_of_the_control_groups_counts(tmp_path: Path) -> None:
    """The group's own limit is loose, that of the group above it is tight; cache is given back."""
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    for folder, limit in ((inner, "max"), (inner.parent, "1000")):
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text("700\n")
        (folder / "memory.stat").write_text("anon 5\ninactive_file 200\n")
    own = tmp_path / "cgroup"
    own.write_text("0::/outer/inner\n")
    assert _of_groups(tmp_path, own) == [500]
    own.write_text("4:memory:/x\n0::/\n")
    (tmp_path / "memory" / "x").mkdir(parents=True)
    (tmp_path / "memory" / "x" / "memory.limit_in_bytes").write_text("100")
    (tmp_path / "memory" / "x" / "memory.usage_in_bytes").write_text("30")
    assert _of_groups(tmp_path, own) == [70]


def test_the_machine_tells_what_is_free_and_what_is_held() -> None:
    free = available()
    assert free is None or free > 0
    assert resident() >= 0


def test_the_most_that_lives_at_once_is_counted() -> None:
    x = torch.zeros(1000)
    with TensorBytes() as count:
        y = x + 1  # 4 kB
        z = y.view(10, 100)[2:].mul_(2)
        del y, z
        w = x.double()  # 8 kB
    assert (count.live, count.peak, count.whole) == (8000, 8000, 12000)
    del w
    assert count.live == 0


def test_on_the_meta_device_the_same_is_counted() -> None:
    def product(size: int, device: str) -> object:
        a = torch.zeros(size, size, device=device)
        return (a @ a + 1).sum()

    assert counted(lambda: product(50, "meta")) == counted(lambda: product(50, "cpu"))
    assert counted(lambda: product(10**6, "meta")) >= 2 * 4 * 10**12


def test_a_failed_allocation_is_told_from_other_errors() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("shapes do not match"))
    assert not is_out_of_memory(ValueError("out of memory"))
