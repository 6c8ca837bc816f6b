"""Compiled sums of clipped gradients against PyTorch's own operations in float64."""

from math import inf

import pytest
import torch
from torch import Tensor, nn

from dpaudit.models import lockstep
from dpaudit.models.gradients import Gradients
from dpaudit.models.lockstep import Lockstep
from dpaudit.models.models import build_network, initial_parameters
from dpaudit.tensor_memory import TensorBytes
from tests.models.test_gradients import sequential

ROUNDING = 3e-6  # of a sum's largest entry, in float32
N_CLASSES = 4

NETWORKS = {
    "strides, padding and kernels of two lengths": lambda: sequential(
        nn.Conv2d(2, 7, (3, 2), stride=(2, 1), padding=(1, 0)), nn.ReLU(),
        nn.Conv2d(7, 6, 3, padding=2, dilation=(1, 2)), nn.Flatten(), nn.Linear(216, N_CLASSES),
    ),
    "no biases, overlapping maxima of padded images": lambda: sequential(
        nn.Conv2d(2, 9, 3, bias=False), nn.MaxPool2d(3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(81, 5, bias=False), nn.ReLU(), nn.Linear(5, N_CLASSES, bias=False),
    ),
    "a convolution of the whole image": lambda: sequential(
        nn.MaxPool2d(1), nn.Conv2d(2, 8, 7), nn.ReLU(), nn.Flatten(), nn.Linear(8, N_CLASSES)
    ),
    "convolutions with one position, of padded images and of a part": lambda: sequential(
        nn.Conv2d(2, 8, 6, stride=2, bias=False), nn.ReLU(), nn.Conv2d(8, 5, 3, padding=1),
        nn.Flatten(), nn.Linear(5, N_CLASSES),
    ),
    "lenet": lambda: build_network("lenet", (2, 7, 7), N_CLASSES),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _compiler():
    if lockstep.compiled() is None:
        pytest.skip("numba, which is optional, is not installed")


def problem(module: nn.Module, m: int, n: int, b: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.stack([initial_parameters(module, generator) for _ in range(m)])
    inputs = torch.randn(n, b, 2, 7, 7, generator=generator)
    return X, inputs, torch.randint(N_CLASSES, (n, b), generator=generator)


def assert_equal_to_plain(module, X, inputs, labels, C, weights=None, holders=None) -> None:
    actual = Lockstep(module).clipped_sum(X, inputs, labels, C, weights, holders)
    exact = Gradients(module, dtype=torch.float64).clipped_sum(
        X.double(), inputs.double(), labels, C, weights=weights, holders=holders
    )
    assert actual.dtype == torch.float32
    assert (actual - exact).abs().max() <= ROUNDING * exact.abs().max()


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("C", [0.5, inf])
def test_networks_agree_with_plain(name: str, C: float) -> None:
    module = NETWORKS[name]()
    X, inputs, labels = problem(module, m=3, n=2, b=19)
    weights = torch.linspace(0, 1, 38).view(2, 19)
    assert_equal_to_plain(module, X, inputs, labels, C, weights, torch.tensor([1, 0, 1]))


@pytest.mark.parametrize("b", [1, 16, 300])
def test_batches_of_all_sizes_agree_with_plain(b: int) -> None:
    module = NETWORKS["lenet"]()
    X, inputs, labels = problem(module, m=2, n=2, b=b)
    assert_equal_to_plain(module, X, inputs, labels, 0.5)


def test_strided_arguments_agree_with_plain() -> None:
    module = NETWORKS["lenet"]()
    X, inputs, labels = problem(module, m=4, n=3, b=40)
    assert_equal_to_plain(module, X[::2].T.contiguous().T, inputs[1:, ::2].mT, labels[1:, ::2], 0.5)


def test_gradients_of_zero_stay_zero() -> None:
    module = NETWORKS["no biases, overlapping maxima of padded images"]()
    X, inputs, labels = problem(module, m=1, n=1, b=3)
    assert not Lockstep(module).clipped_sum(X, 0 * inputs, labels, 0.5, None, None).any()


def test_threads_change_no_bit(monkeypatch) -> None:
    module = NETWORKS["lenet"]()
    X, inputs, labels = problem(module, m=3, n=3, b=300)
    sums = []
    for n_threads in (1, 2, 5):
        monkeypatch.setattr(torch, "get_num_threads", lambda n=n_threads: n)
        sums.append(Lockstep(module).clipped_sum(X, inputs, labels, 0.5, None, None))
    assert torch.equal(sums[0], sums[1])
    assert torch.equal(sums[0], sums[2])


@pytest.mark.parametrize("index", [-1, N_CLASSES])
def test_unknown_classes_are_refused(index: int) -> None:
    module = NETWORKS["lenet"]()
    X, inputs, labels = problem(module, m=1, n=1, b=3)
    with pytest.raises(IndexError, match="from 0 to 3, got"):
        Lockstep(module).clipped_sum(X, inputs, labels.fill_(index), 0.5, None, None)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(2, 2, 3, groups=2),
        nn.Conv2d(2, 2, 3, padding="same"),
        nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.Tanh(),
    ],
)
def test_networks_of_other_layers_are_left(layer: nn.Module) -> None:
    module = nn.Sequential(layer, nn.Flatten(), nn.LazyLinear(4))
    module(torch.zeros(1, 2, 7, 7))
    X, inputs, labels = torch.zeros(2000, 1), torch.zeros(1, 1, 2, 7, 7), torch.zeros(1, 1).long()
    assert not Lockstep(module).takes(X, inputs, labels, None)


def test_only_large_calls_are_taken() -> None:
    module = NETWORKS["lenet"]()
    X, inputs, labels = problem(module, m=4, n=1, b=500)
    some = torch.zeros(4, dtype=torch.long)
    taken = Lockstep(module)
    assert taken.takes(X, inputs, labels, some)
    assert not taken.takes(X, inputs[:, 1:], labels[:, 1:], some)
    assert not taken.takes(X.double(), inputs, labels, some)
    expected = taken.clipped_sum(X, inputs, labels, 0.5, None, some)
    assert torch.equal(
        Gradients(module).clipped_sum(X, inputs, labels, 0.5, holders=some), expected
    )


def test_numba_is_optional(monkeypatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(lockstep, "import_module", missing)
    module = NETWORKS["lenet"]()
    X, inputs, labels = problem(module, m=4, n=4, b=500)
    lockstep.compiled.cache_clear()
    try:
        assert not Lockstep(module).takes(X, inputs, labels, None)
        sums = Gradients(module).clipped_sum(X, inputs, labels, 0.5)
    finally:
        lockstep.compiled.cache_clear()
    monkeypatch.undo()
    compiled = Lockstep(module).clipped_sum(X, inputs, labels, 0.5, None, None)
    assert (sums - compiled).abs().max() <= ROUNDING * sums.abs().max()


def test_who_counts_operations_sees_them() -> None:
    module = NETWORKS["lenet"]()
    X, inputs, labels = problem(module, m=4, n=4, b=500)
    with TensorBytes() as count:
        assert not Lockstep(module).takes(X, inputs, labels, None)
        Gradients(module).clipped_sum(X, inputs, labels, 0.5)
    assert count.peak > inputs.nbytes


def test_models_that_diverged_stay_nan() -> None:
    module = NETWORKS["lenet"]()
    X, inputs, labels = problem(module, m=2, n=2, b=3)
    X[0, 0] = float("nan")
    sums = Lockstep(module).clipped_sum(X, inputs, labels, 0.5, None, None)
    assert sums[0].isnan().any()
    assert not sums[1].isnan().any()
