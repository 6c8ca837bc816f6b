"""Gradients of stacked models against plain autograd, one record and one model at a time."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from dpaudit.errors import ConfigError, DpauditError
from dpaudit.models.gradients import Gradients
from dpaudit.models.models import build_network, initial_parameters, parameters_of
from dpaudit.models.networks import NETWORKS
from dpaudit.rng import Streams

ROUNDING = {"rtol": 1e-9, "atol": 1e-11}  # float64

SLOW = pytest.mark.slow


class Case:
    """m models of one network in float64, and b records of each of n holders."""

    def __init__(self, module: nn.Module, shape=(1, 8, 8), m=3, n=3, b=4, seed=0) -> None:
        streams = Streams(seed)
        rng = streams("data")
        self.module = module
        self.gradients = Gradients(module)
        self.X = torch.stack([initial_parameters(module, streams("x", i)) for i in range(m)])
        self.X = (self.X + 0.1 * torch.randn(self.X.shape, generator=streams("y"))).double()
        self.inputs = torch.rand(n, b, *shape, generator=rng, dtype=torch.float64) * 2 - 1
        self.labels = torch.randint(4, (n, b), generator=rng)

    def per_record(self, holders=None) -> Tensor:
        """[m, b, d], by one backward pass for each model and record."""
        rows = range(len(self.X)) if holders is None else holders.tolist()
        return torch.stack(
            [
                torch.stack(
                    [
                        record_gradient(self.module, x, a, y)
                        for a, y in zip(self.inputs[row], self.labels[row], strict=True)
                    ]
                )
                for x, row in zip(self.X, rows, strict=True)
            ]
        )


def record_gradient(module: nn.Module, x: Tensor, record: Tensor, label: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    logits = functional_call(module, parameters_of(module, x), (record[None],))
    return torch.autograd.grad(cross_entropy(logits, label[None]), x)[0]


def clipped_sum(G: Tensor, C: float, norm: int, weights=1.0) -> Tensor:
    lengths = torch.linalg.vector_norm(G, norm, dim=-1, keepdim=True)
    return (G * weights * (C / lengths).clamp(max=1)).sum(1)


def sequential(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers).to("meta")


LAYERS = {
    "linear": lambda: sequential(nn.Flatten(), nn.Linear(64, 4)),
    "linear without bias": lambda: sequential(nn.Flatten(), nn.Linear(64, 4, bias=False)),
    "two linear": lambda: sequential(nn.Flatten(), nn.Linear(64, 5), nn.Tanh(), nn.Linear(5, 4)),
    "convolution": lambda: sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(108, 4)),
    "two convolutions": lambda: sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 5, (2, 3), padding=1),
        nn.Tanh(), nn.Flatten(), nn.Linear(60, 4),
    ),
    "strided convolutions without bias": lambda: sequential(
        nn.Conv2d(1, 3, 3, stride=2, bias=False), nn.Tanh(),
        nn.Conv2d(3, 2, 2, stride=(1, 2), padding=(0, 1), bias=False), nn.Flatten(), nn.Linear(8, 4),
    ),
    "wide convolution on few positions": lambda: sequential(
        nn.Conv2d(1, 8, 3, stride=3), nn.Tanh(), nn.Conv2d(8, 20, 2), nn.Flatten(), nn.Linear(20, 4)
    ),
    "dilated convolutions": lambda: sequential(
        nn.Conv2d(1, 3, 3, dilation=(1, 2), padding=(0, 2)), nn.Tanh(),
        nn.Conv2d(3, 20, 2, stride=(3, 4), dilation=2, bias=False), nn.Flatten(), nn.Linear(80, 4),
    ),
    "convolutions of one by one": lambda: sequential(
        nn.Conv2d(1, 4, 1), nn.Tanh(), nn.Conv2d(4, 20, 1, stride=4, bias=False), nn.Flatten(),
        nn.Linear(80, 4),
    ),
    "grouped convolution": lambda: sequential(
        nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Conv2d(4, 6, 3, groups=2), nn.Flatten(), nn.Linear(96, 4)
    ),
    "normalisation without parameters": lambda: sequential(
        nn.Conv2d(1, 8, 3, stride=4, bias=False), nn.GroupNorm(2, 8, affine=False),
        nn.Conv2d(8, 12, 2, padding=1), nn.Flatten(), nn.Linear(108, 4),
    ),
    "group normalisation": lambda: sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(36, 4),
    ),
    "group normalisation first": lambda: sequential(
        nn.GroupNorm(1, 1), nn.Flatten(), nn.Linear(64, 4)
    ),
}  # fmt: skip


@pytest.fixture(params=LAYERS)
def case(request) -> Case:
    return Case(LAYERS[request.param]())


@pytest.mark.parametrize(
    "norm, holders",
    [
        (1, None),
        (2, [0, 1, 0]),
        *(pytest.param(1, h, marks=SLOW) for h in ([0, 1, 0], [2, 2, 2], [1, 0, 2])),
        *(pytest.param(2, h, marks=SLOW) for h in (None, [2, 2, 2], [1, 0, 2])),
    ],
)
def test_clipped_sums_are_those_of_plain_autograd(case: Case, norm: int, holders) -> None:
    holders = None if holders is None else torch.tensor(holders)
    G = case.per_record(holders)
    C = float(torch.linalg.vector_norm(G, norm, dim=-1).median())
    actual = case.gradients.clipped_sum(case.X, case.inputs, case.labels, C, norm, holders=holders)
    torch.testing.assert_close(actual, clipped_sum(G, C, norm), **ROUNDING)


def test_per_record_gradients_are_those_of_autograd(case: Case) -> None:
    holders = torch.tensor([1, 0, 1])
    G = case.per_record(holders)
    data = (case.X, case.inputs, case.labels)
    torch.testing.assert_close(case.gradients.per_record(*data, holders), G, **ROUNDING)
    for norm in (1, 2):
        lengths = torch.linalg.vector_norm(G, norm, dim=-1)
        actual = case.gradients.norms(*data, norm, holders)
        torch.testing.assert_close(actual, lengths, **ROUNDING)


def test_many_records_take_the_other_convolution() -> None:
    case = Case(LAYERS["two convolutions"](), m=3, n=2, b=20)
    holders = torch.tensor([1, 0, 1])
    G = case.per_record(holders)
    actual = case.gradients.clipped_sum(case.X, case.inputs, case.labels, 1.0, holders=holders)
    torch.testing.assert_close(actual, clipped_sum(G, 1.0, 2), **ROUNDING)


ZOO = [
    (name, (channels, side, side))
    for name in NETWORKS
    for channels in (1, 3)
    for side in (16,)
    if name not in ("cnn-xie-batchnorm", "resnet-18", "vit")
] + [("vit", (1, 8, 8)), pytest.param("resnet-18", (1, 8, 8), marks=pytest.mark.slow)]


@pytest.mark.parametrize("name, shape", ZOO)
def test_every_network_has_the_gradients_of_plain_autograd(name: str, shape) -> None:
    case = Case(build_network(name, shape, 4), shape, m=2, n=2, b=2)
    holders = torch.tensor([1, 1])
    G = case.per_record(holders)
    for norm in (1, 2):
        C = float(torch.linalg.vector_norm(G, norm, dim=-1).median())
        actual = case.gradients.clipped_sum(
            case.X, case.inputs, case.labels, C, norm, holders=holders
        )
        torch.testing.assert_close(actual, clipped_sum(G, C, norm), **ROUNDING)


@pytest.mark.parametrize(
    "engine", ["linear", "two convolutions", "wide convolution on few positions", "vmap"]
)
@pytest.mark.parametrize("dtype", [torch.bool, torch.float64])
def test_weights_multiply_clipped_gradients(engine: str, dtype: torch.dtype) -> None:
    case = Case(_any_network() if engine == "vmap" else LAYERS[engine]())
    weights = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [0, 1, 1, 0]]).to(dtype)
    weights = weights * 0.3 if dtype == torch.float64 else weights
    holders = torch.tensor([2, 0, 1])
    data = (case.X, case.inputs, case.labels)
    factors = weights[holders].double().unsqueeze(-1)
    G = case.per_record(holders)
    actual = case.gradients.clipped_sum(*data, 0.7, 2, weights, holders)
    torch.testing.assert_close(actual, clipped_sum(G, 0.7, 2, factors), **ROUNDING)
    mean = (G * factors).sum(1) / factors.sum(1).clamp(min=1e-300)
    actual = case.gradients.mean(*data, weights, holders)
    torch.testing.assert_close(actual, mean, **ROUNDING)
    assert not actual[2].any()  # the holder without records


@pytest.mark.parametrize("name", ["two convolutions", "dilated convolutions", "linear"])
def test_a_batch_of_no_records_has_no_gradient(name: str) -> None:
    case = Case(LAYERS[name](), b=0)
    data = (case.X, case.inputs, case.labels)
    assert not case.gradients.clipped_sum(*data, 1.0).any()
    assert not case.gradients.mean(*data, holders=torch.tensor([0, 0, 1])).any()
    assert case.gradients.norms(*data).shape == (3, 0)


@pytest.mark.parametrize("side", [(5, 7), (9, 6)])
@pytest.mark.parametrize("C", [1e-3, 1e3])  # all records are clipped; none is
def test_odd_sides_where_every_record_or_none_is_clipped(side: tuple[int, int], C: float) -> None:
    module = sequential(
        nn.Conv2d(2, 6, 3, stride=2, padding=1), nn.GroupNorm(3, 6), nn.ReLU(inplace=True),
        nn.Conv2d(6, 12, (2, 3), padding=(1, 0)), nn.MaxPool2d(2, ceil_mode=True),
        nn.Conv2d(12, 16, 1, bias=False), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4),
    )  # fmt: skip
    case = Case(module, (2, *side))
    for holders in (None, torch.tensor([0, 0, 2])):
        G = case.per_record(holders)
        actual = case.gradients.clipped_sum(case.X, case.inputs, case.labels, C, holders=holders)
        torch.testing.assert_close(actual, clipped_sum(G, C, 2), **ROUNDING)


def test_float32_clip_factors_are_right_to_six_digits() -> None:
    """Norms from Gram matrices, of records from large to tiny and of a uniform one.

    Behind the normalisation the output gradients of a uniform image sum to 0 over positions where
    the inputs are all alike: what is left of the norm is small beside the terms of the sum.
    """
    module = sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1, bias=False), nn.GroupNorm(4, 8), nn.ReLU(),
        nn.Conv2d(8, 32, 3, padding=1, bias=False), nn.GroupNorm(8, 32), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.GroupNorm(8, 64), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 4),
    )  # fmt: skip
    case = Case(module, m=1, n=1, b=6)
    case.inputs *= torch.tensor([1, 1e-2, 1e-4, 1e-6, 1, 1]).double()[:, None, None, None]
    case.inputs[0, 4:] = 1
    soft = nn.functional.one_hot(case.labels, 4) + 0.0
    certain = soft.clone()  # of which the network is all but certain: hardly any gradient
    logits = functional_call(module, parameters_of(module, case.X[0]), (case.inputs[0, 5:],))
    certain[0, 5] = logits.softmax(1)[0] + 1e-5 * torch.tensor([1, -1, 0, 0])
    single = [v.float() for v in (case.X, case.inputs, certain)]
    X, inputs, labels = (v.double() for v in single)
    exact = [
        torch.linalg.vector_norm(record_gradient(module, X[0], a, y))
        for a, y in zip(inputs[0], labels[0], strict=True)
    ]
    actual = case.gradients.norms(*single)[0].double() / torch.stack(exact)
    assert exact[5] < 1e-3 * exact[4]
    assert (actual[:5] - 1).abs().max() < 1e-6, actual
    # softmax minus label is known to one rounding of the softmax, here 1e-7 of 1e-5
    assert (actual[5] - 1).abs() < 2e-2, actual


@pytest.mark.parametrize("C", [None, pytest.param(float("inf"), marks=SLOW), 1e9])
def test_no_clipping_is_the_gradient_of_the_batch(case: Case, C: float | None) -> None:
    x = case.X.clone().requires_grad_()
    for i in range(3):
        logits = functional_call(case.module, parameters_of(case.module, x[i]), (case.inputs[i],))
        cross_entropy(logits, case.labels[i], reduction="sum").backward()
    data = (case.X, case.inputs, case.labels)
    torch.testing.assert_close(case.gradients.clipped_sum(*data, C), x.grad, **ROUNDING)
    torch.testing.assert_close(case.gradients.mean(*data), x.grad / 4, **ROUNDING)


@pytest.mark.parametrize("engine", ["linear", "two convolutions", "vmap"])
def test_probabilities_of_one_class_are_its_index(engine: str) -> None:
    case = Case(_any_network() if engine == "vmap" else LAYERS[engine]())
    soft = torch.nn.functional.one_hot(case.labels, 4).double()
    by_index = case.gradients.clipped_sum(case.X, case.inputs, case.labels, 0.5)
    by_probability = case.gradients.clipped_sum(case.X, case.inputs, soft, 0.5)
    torch.testing.assert_close(by_probability, by_index, **ROUNDING)


@pytest.mark.parametrize(
    "engine", ["two linear", "two convolutions", "group normalisation", "vmap"]
)
@pytest.mark.parametrize(
    "norm, holders",
    [
        (1, None),
        (2, [0, 1, 0]),
        pytest.param(2, None, marks=SLOW),
        pytest.param(1, [0, 1, 0], marks=SLOW),
    ],
)
def test_clipped_sums_differentiate_as_plain_autograd_does(engine: str, norm: int, holders) -> None:
    case = Case(_any_network() if engine == "vmap" else LAYERS[engine](), b=3)
    holders = None if holders is None else torch.tensor(holders)
    soft = torch.rand(3, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    leaves = [v.clone().requires_grad_() for v in (case.X, case.inputs, soft.softmax(-1))]
    C = 0.6 if norm == 2 else 5.0
    target = torch.randn(case.X.shape, dtype=torch.float64, generator=Streams(2)("target"))
    actual = case.gradients.clipped_sum(*leaves, C, norm, holders=holders, create_graph=True)
    expected = clipped_sum(_per_record_graph(case.module, *leaves, holders), C, norm)
    torch.testing.assert_close(actual, expected, **ROUNDING)
    derivatives = [torch.autograd.grad((v * target).sum(), leaves) for v in (actual, expected)]
    for a, e in zip(*derivatives, strict=True):
        assert e.abs().max() > 1e-3
        torch.testing.assert_close(a, e, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("engine", ["two convolutions", "vmap"])
def test_unclipped_sums_differentiate_as_plain_autograd_does(engine: str) -> None:
    case = Case(_any_network() if engine == "vmap" else LAYERS[engine](), b=2)
    leaves = [v.clone().requires_grad_() for v in (case.X, case.inputs)]
    actual = case.gradients.differentiable_sum(*leaves, case.labels)
    expected = _per_record_graph(case.module, *leaves, case.labels, None).sum(1)
    torch.testing.assert_close(actual, expected, **ROUNDING)
    derivatives = [torch.autograd.grad(v.pow(3).sum(), leaves) for v in (actual, expected)]
    torch.testing.assert_close(*derivatives, rtol=1e-8, atol=1e-10)


def test_clipped_sums_of_a_vision_transformer_differentiate() -> None:
    case = Case(build_network("vit", (1, 4, 4), 4), (1, 4, 4), m=1, n=1, b=2)
    leaves = [v.requires_grad_() for v in (case.X, case.inputs)]
    actual = case.gradients.clipped_sum(*leaves, case.labels, 0.5, create_graph=True)
    G = _per_record_graph(case.module, *leaves, case.labels, None)
    derivatives = [
        torch.autograd.grad(v.square().sum(), leaves) for v in (actual, clipped_sum(G, 0.5, 2))
    ]
    torch.testing.assert_close(*derivatives, rtol=1e-8, atol=1e-10)


def test_derivatives_of_clipped_sums_are_finite_differences() -> None:
    case = Case(LAYERS["group normalisation"](), m=1, n=1, b=2)

    def message(inputs: Tensor) -> Tensor:
        return case.gradients.clipped_sum(case.X, inputs, case.labels, 0.5, create_graph=True)

    assert torch.autograd.gradcheck(message, case.inputs.requires_grad_(), fast_mode=True)


def test_a_record_without_gradient_adds_nothing() -> None:
    module = sequential(nn.Flatten(), nn.Linear(4, 3, bias=False))
    inputs = torch.zeros(1, 2, 1, 2, 2, dtype=torch.float64)
    inputs[0, 1] = 1
    inputs.requires_grad_()
    X, labels = torch.ones(1, 12, dtype=torch.float64), torch.zeros(1, 2, dtype=torch.long)
    gradients = Gradients(module)
    for norm in (1, 2):
        total = gradients.clipped_sum(X, inputs, labels, 0.1, norm, create_graph=True)
        assert float(torch.linalg.vector_norm(total.detach(), norm)) == pytest.approx(0.1)
        (derivative,) = torch.autograd.grad(total.square().sum(), inputs)
        assert derivative.isfinite().all()


@pytest.mark.parametrize(
    "holders, weighted",
    [
        (None, False),
        ([0, 1, 0], True),
        pytest.param(None, True, marks=SLOW),
        pytest.param([0, 1, 0], False, marks=SLOW),
    ],
)
def test_a_part_is_what_the_whole_has_there(case: Case, holders, weighted: bool) -> None:
    holders = None if holders is None else torch.tensor(holders)
    weights = torch.tensor([[1.0, 0.0, 1.0, 0.5]] * 3) if weighted else None
    data, how = (case.X, case.inputs, case.labels), {"weights": weights, "holders": holders}
    whole, d = case.gradients.clipped_sum(*data, None, **how), case.gradients.d
    for start, stop in ((0, d), (0, 1), (d - 5, d), (d - 4, d - 1), (3, d - 6), (2, 5)):
        part = case.gradients.part(*data, slice(start, stop), **how)
        torch.testing.assert_close(part, whole[:, start:stop], **ROUNDING)


def test_a_part_of_no_record_is_zero() -> None:
    case = Case(LAYERS["two linear"](), b=0)
    part = case.gradients.part(case.X, case.inputs, case.labels, slice(2, 5))
    assert torch.equal(part, torch.zeros(3, 3, dtype=torch.float64))


def test_chunks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(LAYERS["two convolutions"](), m=7, n=4, b=9)
    holders = torch.tensor([3, 0, 3, 1, 1, 3, 0])
    arguments = (case.X, case.inputs, case.labels, 0.8)
    weights = torch.rand(4, 9, generator=Streams(5)("weights")).double()
    whole = [
        case.gradients.clipped_sum(*arguments, weights=weights, holders=holders),
        case.gradients.part(*arguments[:3], slice(20, 50), weights, holders),
        case.gradients.norms(*arguments[:3], holders=holders),
        *case.gradients.evaluate(*arguments[:3], holders),
    ]
    for chunk, records in ((1, 1), (30_000, 2), (100_000, 4)):
        monkeypatch.setattr("dpaudit.models.gradients._CHUNK", chunk)
        monkeypatch.setattr("dpaudit.models.gradients._RECORDS", records)
        monkeypatch.setattr("dpaudit.models.layers._PIECE", chunk)
        parts = [
            case.gradients.clipped_sum(*arguments, weights=weights, holders=holders),
            case.gradients.part(*arguments[:3], slice(20, 50), weights, holders),
            case.gradients.norms(*arguments[:3], holders=holders),
            *case.gradients.evaluate(*arguments[:3], holders),
        ]
        torch.testing.assert_close(parts, whole, **ROUNDING)


def test_evaluation_is_loss_and_accuracy_of_each_model(case: Case) -> None:
    holders = torch.tensor([1, 1, 0])
    loss, accuracy = case.gradients.evaluate(case.X, case.inputs, case.labels, holders)
    for i, row in enumerate(holders):
        parameters = parameters_of(case.module, case.X[i])
        logits = functional_call(case.module, parameters, (case.inputs[row],))
        torch.testing.assert_close(loss[i], cross_entropy(logits, case.labels[row]), **ROUNDING)
        assert accuracy[i] == (logits.argmax(1) == case.labels[row]).double().mean()


def test_batch_normalisation_is_refused_where_records_count() -> None:
    case = Case(build_network("cnn-xie-batchnorm", (1, 8, 8), 4))
    data = (case.X, case.inputs, case.labels)
    for refused in (
        lambda: case.gradients.clipped_sum(*data, 1.0),
        lambda: case.gradients.norms(*data),
        lambda: case.gradients.per_record(*data),
        lambda: case.gradients.mean(*data, weights=torch.ones(3, 4)),
    ):
        with pytest.raises(DpauditError, match="batch normalisation"):
            refused()
    x = case.X.clone().requires_grad_()
    for i in range(3):
        logits = functional_call(case.module, parameters_of(case.module, x[i]), (case.inputs[i],))
        cross_entropy(logits, case.labels[i]).backward()
    torch.testing.assert_close(case.gradients.mean(*data), x.grad, **ROUNDING)


def test_results_carry_no_graph_unless_asked_for(case: Case) -> None:
    inputs = case.inputs.requires_grad_()
    assert not case.gradients.clipped_sum(case.X, inputs, case.labels, 1.0).requires_grad
    assert not case.gradients.per_record(case.X, inputs, case.labels).requires_grad


def test_bad_arguments_are_refused() -> None:
    case = Case(LAYERS["linear"]())
    for C in (0.0, -1.0, float("nan")):
        with pytest.raises(ConfigError, match="clip norm must be positive"):
            case.gradients.clipped_sum(case.X, case.inputs, case.labels, C)
    with pytest.raises(ValueError, match="say whose"):
        case.gradients.mean(case.X[:2], case.inputs, case.labels)


def test_a_layer_that_runs_twice_is_refused() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = nn.Linear(64, 64), nn.Linear(64, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.layer(self.layer(x.flatten(1))))

    case = Case(Twice().to("meta"))
    with pytest.raises(DpauditError, match="each layer once"):
        case.gradients.clipped_sum(case.X, case.inputs, case.labels, 1.0)


def _any_network() -> nn.Module:
    """A network with a layer that has no stacked counterpart."""
    return sequential(nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, 5), nn.PReLU(), nn.Linear(5, 4))


def _per_record_graph(module: nn.Module, X: Tensor, inputs: Tensor, labels: Tensor, holders):
    """[m, b, d], with the graph of every step."""
    rows = range(len(X)) if holders is None else holders.tolist()
    G = []
    for x, row in zip(X, rows, strict=True):
        for record, label in zip(inputs[row], labels[row], strict=True):
            logits = functional_call(module, parameters_of(module, x), (record[None],))
            loss = cross_entropy(logits, label[None])
            G.append(torch.autograd.grad(loss, x, create_graph=True)[0])
    return torch.stack(G).view(len(X), inputs.shape[1], -1)
