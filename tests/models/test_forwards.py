"""Networks that use their layers, or look at what these give, in ways of their own."""

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from dpaudit.errors import ConfigError
from dpaudit.models.gradients import Gradients
from dpaudit.models.models import architecture, parameters_of


class _Otherwise(nn.Module):
    """A network that uses its layers otherwise than once each."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.layer, self.head, self.unused = nn.Linear(4, 4), nn.Linear(4, 3), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x).tanh()
        if self.how == "tied":
            x = x @ self.layer.weight
        return self.head(self.layer(x) if self.how == "twice" else x)


@pytest.mark.parametrize("how", ["twice", "tied", "unused"])
def test_layers_used_otherwise_than_once_follow_autograd(
    how: str,
) -> None:
    module = _Otherwise(how)
    x, y = torch.randn(3, 4), torch.tensor([0, 2, 2])
    parameters = list(module.parameters())
    loss = cross_entropy(module(x), y, reduction="sum")
    parts = torch.autograd.grad(loss, parameters, allow_unused=True)
    expected = torch.cat(
        [
            torch.zeros(p.numel()) if g is None else g.flatten()
            for p, g in zip(parameters, parts, strict=True)
        ]
    )
    X = nn.utils.parameters_to_vector(parameters).detach()[None]
    found = Gradients(module.to("meta"), (4,)).clipped_sum(X, x[None], y[None], None)
    torch.testing.assert_close(found[0], expected)


class _Overwrites(nn.Module):
    """A network that overwrites what a layer gave, as ``inplace=True`` does."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.first, self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.clips = nn.Hardtanh(-0.1, 0.1, inplace=True)
        self.leaks = nn.LeakyReLU(0.1, inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        before = self.first(x).tanh()
        x = self.layer(before)
        if self.how == "rectified":
            x.relu_()
        elif self.how == "added":
            x += before
        elif self.how == "multiplied":
            x *= before
        else:
            x = self.clips(x) if self.how == "clipped" else self.leaks(x)
        return self.head(x)


@pytest.mark.parametrize("how", ["rectified", "leaky", "clipped", "added", "multiplied"])
def test_a_network_that_overwrites_outputs_follows_autograd(how: str) -> None:
    module = _Overwrites(how)
    x, y = torch.randn(3, 4), torch.tensor([0, 2, 2])
    loss = cross_entropy(module(x), y, reduction="sum")
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, [*module.parameters()])])
    X = nn.utils.parameters_to_vector(module.parameters()).detach()[None]
    gradients = Gradients(module.to("meta"), (4,))
    found = gradients.clipped_sum(X, x[None], y[None], None)
    torch.testing.assert_close(found[0], expected)
    each = gradients.per_record(X, x[None], y[None])[0]
    torch.testing.assert_close(each.sum(0), expected)


def _shared() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    module[2].weight = module[0].weight
    return module


def _frozen(*names: str) -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    for name in names:
        module.get_parameter(name).requires_grad_(False)
    return module


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "module",
    [_shared(), _frozen("0.weight", "0.bias"), _frozen("0.bias"), _frozen("2.weight", "2.bias")],
    ids=["shared", "first", "bias", "last"],
)
def test_shared_and_frozen_weights_of_a_perceptron(module: nn.Module, dtype: torch.dtype) -> None:
    """In a precision other than that of what is frozen, too."""
    x, y = torch.randn(3, 4), torch.tensor([0, 2, 2])
    trained = [p for p in module.parameters() if p.requires_grad]
    loss = cross_entropy(module(x), y, reduction="sum")
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, trained)])
    X = nn.utils.parameters_to_vector(trained).detach()[None].to(dtype)
    gradients = Gradients(architecture(module, (4,), 3), (4,))
    found = gradients.clipped_sum(X, x[None].to(dtype), y[None], None)
    torch.testing.assert_close(found[0].float(), expected)
    assert found.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_network_of_another_precision_computes_in_float32(dtype: torch.dtype) -> None:
    given = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).to(dtype)
    given[1].weight.requires_grad_(False)
    copy = architecture(given, (4,), 2)
    assert {t.dtype for t in (*copy.parameters(), *copy.buffers())} == {torch.float32}
    assert {t.dtype for t in given.parameters()} == {dtype}
    normed = nn.Sequential(nn.Conv2d(1, 2, 1), nn.InstanceNorm2d(2, track_running_stats=True))
    with pytest.raises(ConfigError, match="keeps state"):
        architecture(normed.to(dtype), (1, 2, 2), 2)


def test_logits_are_taken_out_of_a_dictionary() -> None:
    class Named(nn.Linear):
        def forward(self, x: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
            return {"logits": super().forward(x), "inputs": x}

    X, x = torch.randn(1, 15), torch.randn(1, 2, 4)
    found = Gradients(architecture(Named(4, 3), (4,), 3), (4,))
    same = Gradients(architecture(nn.Linear(4, 3), (4,), 3), (4,))
    y = torch.tensor([[0, 2]])
    torch.testing.assert_close(found.per_record(X, x, y), same.per_record(X, x, y))


class _Viewed(nn.Module):
    """A forward that views an image's features as a row, which needs them in that order."""

    def __init__(self, features: nn.Sequential, n_features: int) -> None:
        super().__init__()
        self.features, self.head, self.n_features = features, nn.Linear(n_features, 4), n_features

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).view(-1, self.n_features))


def _viewed(kind: str) -> tuple[nn.Module, int]:
    """And the channels of its images."""
    if kind == "pooled":
        layers = nn.Conv2d(3, 5, 3), nn.ReLU(), nn.MaxPool2d(2)
        return _Viewed(nn.Sequential(*layers), 5 * 9), 3
    if kind == "one convolution of many channels":
        return _Viewed(nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU()), 16 * 36), 1
    if kind == "pooled with places":
        return _Places(), 3
    tail = nn.Flatten(), nn.Linear(16 * 4, 4)
    layers = nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 3)
    return nn.Sequential(*layers, *tail), 3


class _Places(nn.Module):
    """Its pooling gives two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.pool = nn.Conv2d(3, 5, 3), nn.MaxPool2d(2, return_indices=True)
        self.head = nn.Linear(5 * 9, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.first(x))[0].flatten(1))


@pytest.mark.parametrize(
    "kind", ["pooled", "one convolution of many channels", "pooled with places", "sequential"]
)
def test_however_a_forward_looks_gradients_follow_autograd(
    kind: str,
) -> None:
    torch.manual_seed(0)
    module, channels = _viewed(kind)
    x, y = torch.rand(2, 3, channels, 8, 8), torch.tensor([[0, 2, 2], [1, 3, 0]])
    X = 0.3 * torch.randn(2, sum(p.numel() for p in module.parameters()))
    X.requires_grad_()
    losses = torch.stack(
        [
            cross_entropy(
                functional_call(module, parameters_of(module, X_i), (x_i,)), y_i, reduction="none"
            )
            for X_i, x_i, y_i in zip(X, x, y, strict=True)
        ]
    )
    each = [torch.autograd.grad(loss, X, retain_graph=True)[0].sum(0) for loss in losses.flatten()]
    expected, X = torch.stack(each).view(2, 3, -1), X.detach()
    gradients = Gradients(module.to("meta"), (channels, 8, 8))
    torch.testing.assert_close(gradients.per_record(X, x, y), expected)
    torch.testing.assert_close(gradients.clipped_sum(X, x, y, None), expected.sum(1))
    torch.testing.assert_close(gradients.evaluate(X, x, y)[0], losses.detach().mean(1))


class _Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.EmbeddingBag(6, 4), nn.Linear(4, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.words(ids))


def test_a_layer_that_no_map_takes_at_once_says_nothing() -> None:
    """Torch's warning counted as what a step says, which depended on the data."""
    module = _Bag()
    ids, y = torch.randint(0, 6, (1, 3, 5)), torch.tensor([[0, 2, 2]])
    loss = cross_entropy(module(ids[0]), y[0], reduction="sum")
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, [*module.parameters()])])
    X = nn.utils.parameters_to_vector(module.parameters()).detach()[None]
    gradients = Gradients(module.to("meta"), (5,), torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = gradients.clipped_sum(X, ids, y, None)
    torch.testing.assert_close(found[0], expected)


class _Reversed(nn.Module):
    """A layer that has the records of a batch in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x.flip(0)).flip(0).tanh())


def _hooked(before: bool) -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    if before:
        module[2].register_forward_pre_hook(lambda layer, given: (given[0] / 2,))
    else:
        module[0].register_forward_hook(lambda layer, given, output: 2 * output)
    return module


class _SequenceFirst(nn.Module):
    """Takes numbers of a record as a sequence, in front of the batch, as torch does by default."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.head = nn.Linear(1, 4), nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.layer(x.T.unsqueeze(-1))).tanh().mean(0))


def _weight_normed() -> nn.Module:
    with warnings.catch_warnings():  # which say that there is another way, for years
        warnings.simplefilter("ignore", FutureWarning)
        layer = nn.utils.weight_norm(nn.Linear(4, 4))
    return nn.Sequential(layer, nn.Tanh(), nn.Linear(4, 3))


@pytest.mark.parametrize(
    "module",
    [
        _Reversed(),
        _hooked(before=True),
        _hooked(before=False),
        _weight_normed(),
        _SequenceFirst(),
    ],
    ids=["reversed", "hook before", "hook behind", "weight norm", "sequence first"],
)
def test_what_a_network_does_beside_its_layers_follows_autograd(module: nn.Module) -> None:
    x, y = torch.randn(3, 4), torch.tensor([0, 2, 2])
    trained = [*module.parameters()]
    each = [
        torch.autograd.grad(cross_entropy(module(x)[i : i + 1], y[i : i + 1]), trained)
        for i in range(3)
    ]
    expected = torch.stack([torch.cat([g.flatten() for g in one]) for one in each])
    X = nn.utils.parameters_to_vector(trained).detach()[None]
    with torch.no_grad():
        module(x)  # old weight normalisation keeps a weight with its graph
    gradients = Gradients(architecture(module, (4,), 3), (4,))
    torch.testing.assert_close(gradients.per_record(X, x[None], y[None])[0], expected)
    clip = float(expected.norm(dim=1).median())
    clipped = expected * (clip / expected.norm(dim=1, keepdim=True)).clamp(max=1)
    found = gradients.clipped_sum(X, x[None], y[None], clip)
    torch.testing.assert_close(found[0], clipped.sum(0))
