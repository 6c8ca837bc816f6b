"""Exact attacks: the very images from one gradient, or one line that says why not."""

import math
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from dpaudit.attack.observed import ObservedGradients, Reconstruction, Task
from dpaudit.attacks.gradient_inversion import exact as sparse
from dpaudit.attacks.gradient_inversion.attack import GradientInversion
from dpaudit.attacks.gradient_inversion.exact import ExactBatch, recover
from dpaudit.attacks.gradient_inversion.recursion import front, input_of_linear
from dpaudit.data.datasets import load_dataset
from dpaudit.errors import NotObservable
from dpaudit.models.gradients import Gradients
from dpaudit.models.models import architecture, build_network, initial_parameters
from dpaudit.rng import Streams

STREAMS = Streams(20240611)
DIGITS = load_dataset("digits", seed=1)
MNIST_SIZE = (1, 28, 28)


def perceptron(
    shape: tuple[int, ...] = (1, 8, 8), width: int = 300, activation: type[nn.Module] = nn.ReLU
) -> nn.Module:
    first = nn.Linear(math.prod(shape), width)
    rest = (activation(), nn.Linear(width, width), activation(), nn.Linear(width, 10))
    return nn.Sequential(nn.Flatten(), first, *rest)


def convolutions(activation: nn.Module, *channels: int, kernel: int = 3) -> nn.Module:
    layers = [
        layer
        for before, after in pairwise((1, *channels))
        for layer in (nn.Conv2d(before, after, kernel, padding=kernel // 2), activation)
    ]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * channels[-1], 10))


def send(
    network: nn.Module,
    batch_size: int,
    shape: tuple[int, ...] = (1, 8, 8),
    m: int = 1,
    clip_norm: float | None = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[ObservedGradients, Task, Tensor, Tensor]:
    """What m victims send about embedded digits, or about noise images of another shape."""
    rng = torch.Generator().manual_seed(20240611)
    rows = torch.arange(m * batch_size).view(m, batch_size)
    images, labels = DIGITS.x[rows], DIGITS.y[rows]
    if shape != (1, 8, 8):
        images = 2 * torch.rand((m, batch_size, *shape), generator=rng) - 1
    task = Task(Gradients(network.to("meta"), shape), shape, 10, (-1.0, 1.0))
    models = torch.stack([initial_parameters(network, rng) for _ in range(m)]).to(dtype)
    images = images.to(dtype)
    gradients = task.gradients.clipped_sum(models, images, labels, clip_norm) / batch_size
    return ObservedGradients(gradients, models, batch_size, clip_norm), task, images, labels


def altered(observed: ObservedGradients, gradients: Tensor) -> ObservedGradients:
    return ObservedGradients(gradients, observed.models, observed.batch_size, observed.clip_norm)


def noisy(observed: ObservedGradients, relative: float) -> ObservedGradients:
    g = observed.gradients
    z = torch.randn(g.shape, generator=STREAMS("noise"), dtype=g.dtype)
    return altered(observed, g + relative * g.norm() / z.norm() * z)


def assert_recovered(
    sent: tuple[ObservedGradients, Task, Tensor, Tensor], least_psnr: float
) -> None:
    """Every image of every batch at least so near, in dB without a cap, with its own label."""
    observed, task, images, labels = sent
    for found, x, y in zip(recover(observed, task, STREAMS), images, labels, strict=True):
        assert isinstance(found, ExactBatch), found
        errors = (x.double()[:, None] - found.images.double()).flatten(2).square().mean(2)
        nearest = errors.min(dim=1)
        assert len(nearest.indices.unique()) == len(x)
        assert 10 * torch.log10(4 / nearest.values.clamp(min=1e-40)).min() > least_psnr
        assert torch.equal(found.labels[nearest.indices], y)


def reason(observed: ObservedGradients, task: Task) -> str:
    (answer,) = recover(observed, task, STREAMS)
    assert isinstance(answer, NotObservable), answer
    assert "\n" not in str(answer)
    return str(answer)


@pytest.mark.parametrize("batch_size", [2, 8, 12])
def test_a_batch_of_digits_is_told_apart_to_the_last_bit(batch_size: int) -> None:
    assert_recovered(send(perceptron(), batch_size, m=2), least_psnr=200)


def test_sixteen_images_of_the_size_of_mnist_are_told_apart() -> None:
    assert_recovered(send(perceptron(MNIST_SIZE, 400), 16, MNIST_SIZE), least_psnr=200)


@pytest.mark.slow
@pytest.mark.parametrize("dtype, least_psnr", [(torch.float64, 100), (torch.float32, 40)])
def test_twenty_images_of_the_size_of_mnist_are_told_apart(
    dtype: torch.dtype, least_psnr: float
) -> None:
    sent = send(perceptron(MNIST_SIZE, 400), 20, MNIST_SIZE, dtype=dtype)
    assert_recovered(sent, least_psnr)


@pytest.mark.parametrize("batch_size", [1, 8, 12])
def test_messages_in_single_precision_are_enough(batch_size: int) -> None:
    assert_recovered(send(perceptron(), batch_size, dtype=torch.float32), least_psnr=100)


@pytest.mark.parametrize("batch_size", [1, 8])
def test_neither_clipping_nor_a_factor_helps_the_victim(batch_size: int) -> None:
    """Clipped, each record counts by a factor of its own."""
    observed, task, images, labels = send(perceptron(), batch_size, m=2, clip_norm=1.0)
    lengths = task.gradients.norms(observed.models, images, labels)
    assert lengths.min() > 1.0
    assert (lengths.max() > 1.1 * lengths.min()) or batch_size == 1
    scaled = altered(observed, 7.5 * observed.gradients)
    assert_recovered((scaled, task, images, labels), least_psnr=200)


@pytest.mark.parametrize("batch_size", [1, 8])
def test_units_that_overwrite_their_input_change_nothing(batch_size: int) -> None:
    """``inplace=True``, as in the networks of torchvision."""
    network = perceptron()
    for layer in network:
        if isinstance(layer, nn.ReLU):
            layer.inplace = True
    assert_recovered(send(network, batch_size), least_psnr=200)
    leaky = convolutions(nn.LeakyReLU(0.2, inplace=True), 8)
    assert_recovered(send(leaky, 1), least_psnr=100)


class _ByRows(nn.Module):
    """Reads an image row by row; its recurrent layer gives several tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.head = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rows(x[:, 0])[0][:, -1])


def test_layers_that_give_several_tensors_are_no_chain() -> None:
    images = torch.rand(1, 1, 1, 8, 8)
    task = Task(Gradients(_ByRows().to("meta"), (1, 8, 8)), (1, 8, 8), 10, (-1.0, 1.0))
    models = 0.1 * torch.randn(1, task.gradients.d, generator=STREAMS("lstm"))
    gradients = task.gradients.clipped_sum(models, images, torch.tensor([[3]]), None)
    said = reason(ObservedGradients(gradients, models, 1, None), task)
    assert said.endswith("the Linear here is not the output of the layer before it")


@pytest.mark.parametrize("kept", ["1.weight", "1.bias"])
def test_a_layer_that_is_partly_frozen_gives_no_equations(kept: str) -> None:
    """No gradient of what is frozen is sent; the next layer's equations hold all the same."""
    network = perceptron(width=20)
    network.get_parameter(kept).requires_grad_(False)
    task = Task(Gradients(architecture(network, (1, 8, 8), 10)), (1, 8, 8), 10, (-1.0, 1.0))
    start = [p.detach() for p in network.parameters() if p.requires_grad]
    models = nn.utils.parameters_to_vector(start)[None]
    gradients = task.gradients.clipped_sum(models, DIGITS.x[None, :1], DIGITS.y[None, :1], None)
    said = reason(ObservedGradients(gradients, models, 1, None), task)
    assert said.startswith("the recursion through layers cannot invert Linear")


@pytest.mark.parametrize("batch_size, draws", [(8, 4_000), (12, 20_000)])
def test_no_more_searches_are_needed_than_random_kernels(
    batch_size: int, draws: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many draws of b - 1 rows found all columns at 784-400-400-10."""
    monkeypatch.setattr(sparse, "_MOST_DRAWS", draws)
    network = perceptron(MNIST_SIZE, 400)
    assert_recovered(send(network, batch_size, MNIST_SIZE), least_psnr=200)


def test_the_columns_found_are_the_slopes_of_the_records() -> None:
    """And about half of each is 0: 46 to 52% at this network, as measured beforehand."""
    observed, task, images, labels = send(perceptron(MNIST_SIZE, 400), 8, MNIST_SIZE)
    ahead = front(task, observed.gradients[0], observed.models[0])
    found = sparse.separate(ahead, 8, STREAMS("test"))
    each = task.gradients.per_record(observed.models, images, labels)[0]
    truth = each[:, 400 * 784 : 400 * 785] / 8  # of the first bias
    order = torch.cdist(images[0].flatten(1), found.inputs).argmin(1)
    torch.testing.assert_close(found.slopes.T[order], truth, rtol=1e-9, atol=1e-14)
    share = (truth == 0).double().mean(1)
    assert share.min() > 0.4
    assert share.max() < 0.6


def test_noise_far_below_the_gradient_costs_decibels() -> None:
    observed, task, images, labels = send(perceptron(MNIST_SIZE, 400), 8, MNIST_SIZE)
    assert_recovered((noisy(observed, 1e-3), task, images, labels), least_psnr=40)


def test_the_same_streams_give_the_same_images() -> None:
    observed, task, *_ = send(perceptron(), 8)
    first, second = (recover(observed, task, STREAMS)[0] for _ in range(2))
    assert isinstance(first, ExactBatch)
    assert isinstance(second, ExactBatch)
    assert torch.equal(first.images, second.images)


@pytest.mark.parametrize("network", ["logistic", "mlp", "mlp-partpsp-1", "mlp-partpsp-2"])
def test_one_record_is_read_off_a_first_linear_layer(network: str) -> None:
    assert_recovered(send(build_network(network, (1, 8, 8), 10), 1, m=3), least_psnr=200)


def test_all_rows_tell_a_record_better_than_the_longest() -> None:
    """The longest row is the best single one; the median error over 20 draws of noise is compared.

    With 150 rows alike the error is about a tenth of one row's, so a correct program fails this
    less than once in 1e9 seeds (10 of 20 draws would have to be ten times off).
    """
    observed, task, images, _ = send(perceptron(), 1)
    truth, ours, longest = images.flatten(), [], []
    for i in range(20):
        z = torch.randn(observed.gradients.shape, generator=STREAMS("z", i), dtype=truth.dtype)
        gradient = (observed.gradients + 1e-4 * z)[0]
        ahead = front(task, gradient, observed.models[0])
        row = ahead.augmented[ahead.augmented[:, -1].abs().argmax()]
        ours.append((input_of_linear(ahead).value - truth).norm())
        longest.append((row[:-1] / row[-1] - truth).norm())
    assert torch.stack(ours).median() < 0.5 * torch.stack(longest).median()


@pytest.mark.parametrize("activation", [nn.Sigmoid(), nn.Tanh(), nn.LeakyReLU(0.2), nn.ReLU()])
@pytest.mark.parametrize("channels", [(4,), (8, 8)])
def test_an_image_is_taken_back_through_convolutions(
    activation: nn.Module, channels: tuple[int, ...]
) -> None:
    assert_recovered(send(convolutions(activation, *channels), 1, m=2), least_psnr=100)


def test_strides_and_single_precision_are_no_obstacle() -> None:
    network = nn.Sequential(
        *(nn.Conv2d(1, 12, 5, stride=2, padding=2), nn.Sigmoid()),
        *(nn.Conv2d(12, 12, 5, padding=2), nn.Sigmoid()),
        *(nn.Flatten(), nn.Linear(192, 10)),
    )
    assert_recovered(send(network, 1, m=2, clip_norm=0.5), least_psnr=100)
    assert_recovered(send(network, 1, m=2, dtype=torch.float32), least_psnr=40)


def test_a_layer_that_determines_less_says_how_much() -> None:
    network = nn.Sequential(
        *(nn.Conv2d(1, 2, 3, stride=4), nn.Sigmoid(), nn.Flatten(), nn.Linear(8, 10))
    )
    observed, task, *_ = send(network, 1)
    assert "Conv2d determine at most 26 of the 64 values" in reason(observed, task)  # 8 z, 18 dW


def refusals() -> Iterator[tuple[str, nn.Module, int, str]]:
    yield "tanh", perceptron(activation=nn.Tanh), 4, "no ReLU behind that layer"
    yield "convolution", convolutions(nn.ReLU(), 4), 4, "other layers come before it"
    yield "wide batch", perceptron(width=12), 12, "cannot be told apart by a layer of 12 units"
    yield "pooling", build_network("lenet", (1, 8, 8), 10), 1, "cannot invert"
    yield "group norm", build_network("cnn-xie", (1, 8, 8), 10), 1, "cannot invert"
    yield "no chain", build_network("vit", (1, 8, 8), 10), 2, "chain of layers"
    unbiased = nn.Sequential(nn.Flatten(), nn.Linear(64, 10, bias=False))
    yield "no bias", unbiased, 1, "linear layer with bias; this network has none"


@pytest.mark.parametrize(
    "network, batch_size, why", [pytest.param(*case, id=name) for name, *case in refusals()]
)
def test_what_a_network_does_not_allow_is_said(
    network: nn.Module, batch_size: int, why: str
) -> None:
    assert why in reason(*send(network, batch_size)[:2])


def test_what_a_message_does_not_allow_is_said() -> None:
    observed, task, *_ = send(perceptron(), 4)
    assert "no rank of 4" in reason(noisy(observed, 10.0), task)
    other = ObservedGradients(observed.gradients, observed.models, 3, None)
    assert "no rank of 3" in reason(other, task)
    other = ObservedGradients(observed.gradients, observed.models, 5, None)
    assert "no rank of 5" in reason(other, task)
    holed = observed.gradients.clone()
    holed[0, 7] = torch.nan
    assert "finite gradient" in reason(altered(observed, holed), task)
    none = altered(send(perceptron(), 1)[0], torch.zeros_like(observed.gradients))
    assert "no unit answered" in reason(
        ObservedGradients(none.gradients, none.models, 1, None), task
    )


def test_one_victim_out_of_reach_leaves_the_others_theirs() -> None:
    observed, task, images, labels = send(perceptron(), 8, m=3)
    gradients = observed.gradients.clone()
    gradients[1] = torch.inf
    found = recover(altered(observed, gradients), task, STREAMS)
    assert isinstance(found[1], NotObservable)
    rest = ObservedGradients(gradients[[0, 2]], observed.models[[0, 2]], 8, None)
    assert_recovered((rest, task, images[[0, 2]], labels[[0, 2]]), least_psnr=200)


def test_a_batch_not_found_is_said_after_so_many_searches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sparse, "_MOST_DRAWS", 512)
    observed, task, *_ = send(perceptron(width=60), 30)
    assert "512 searches found 0 directions" in reason(observed, task)


def inverted(observed: ObservedGradients, task: Task, **options: object) -> Reconstruction:
    attack = GradientInversion(message="x", rounds=(1,), iterations=5, **options)
    return attack.reconstruct(observed, task, STREAMS, lambda done, total: None)


def test_the_attack_takes_the_exact_batch_where_there_is_one() -> None:
    observed, task, images, _ = send(perceptron(), 4, m=2)
    exact = [found.images for found in recover(observed, task, STREAMS)]
    for method in ("auto", "exact"):
        assert torch.equal(inverted(observed, task, method=method).images, torch.stack(exact))
    optimised = inverted(observed, task, method="optimised").images
    assert (optimised - images).abs().max() > 0.1


@pytest.mark.slow
def test_the_attack_takes_what_explains_a_victim_better() -> None:
    """The second of two victims sends noise, in which no batch is found."""
    observed, task, *_ = send(perceptron(), 4, m=2)
    noise = noisy(observed, 10.0).gradients[1:]
    observed = altered(observed, torch.cat([observed.gradients[:1], noise]))
    first, second = recover(observed, task, STREAMS)
    assert isinstance(first, ExactBatch)
    assert isinstance(second, NotObservable)
    found = inverted(observed, task)
    assert torch.equal(found.images[0], first.images)
    assert torch.equal(found.labels[0], first.labels)
    assert torch.equal(found.images[1], inverted(observed, task, method="optimised").images[1])
    with pytest.raises(NotObservable, match="no rank of 4"):
        inverted(observed, task, method="exact")
