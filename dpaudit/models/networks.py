"""The networks of the papers, and small ones to start with.

Where a paper gives no number, the docstring says which was taken. Max pooling comes before ReLU:
the two commute, and ReLU then sees a quarter of the values. Normalisation is by groups of channels
unless the name says otherwise, because batch normalisation leaves a record no gradient of its own.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import (
    AvgPool2d,
    Conv2d,
    Flatten,
    GroupNorm,
    LayerNorm,
    Linear,
    MaxPool2d,
    ReLU,
    Sequential,
)
from torch.nn import functional as F

from dpaudit.errors import ConfigError

Shape = tuple[int, ...]  # channels, height, width of one image; or the number of features
Build = Callable[[Shape, int], nn.Module]


@torch.no_grad()
def outputs(
    module: nn.Module, shape: Shape, dtype: torch.dtype = torch.float32, entry: int = 0
) -> Tensor:
    """Outputs for two records of one entry, all parameters 0: for their shape, or the error.

    On the CPU: the meta device would import torch's compiler, which takes longer than all this.
    """
    named = (*module.named_parameters(), *module.named_buffers())
    zeros = {name: torch.zeros(t.shape, dtype=t.dtype, device="cpu") for name, t in named}
    records = torch.full((2, *shape), entry, dtype=dtype, device="cpu")
    found: Tensor = call(module, zeros, records)
    return found


def call(module: nn.Module, tensors: Mapping[str, Tensor], inputs: Tensor) -> Any:
    """What a network gives with these parameters and buffers in the place of its own.

    One that several layers have is given once, by the first name. (``functional_call`` alone leaves
    a layer that has two names with the numbers that it was called with, torch 2.13.) Buffers that
    are not given, such as frozen weights, are taken in the precision of what is.
    """
    precision = next((t.dtype for t in tensors.values() if t.is_floating_point()), None)
    others = {
        name: b.to(precision)
        for name, b in module.named_buffers()
        if name not in tensors and b.is_floating_point() and precision not in (None, b.dtype)
    }
    tensors = {**tensors, **others}
    kinds = module.named_parameters, module.named_buffers
    first = {id(t): name for kind in kinds for name, t in kind() if name in tensors}
    every = {
        f"{path}.{name}".lstrip("."): tensors[first[id(t)]]
        for path, layer in module.named_modules()
        for own in (layer._parameters, layer._buffers)
        for name, t in own.items()
        if id(t) in first
    }
    return functional_call(module, every, (inputs,), tie_weights=False)


def logits_of(output: Any, at_positions: bool = False) -> Tensor:
    """What a network gives, as logits [b, n_classes].

    Those of ``transformers`` have them as a field, others in a dictionary; of a logit for each
    position, [b, t, n_classes], the last position's are taken, which predict the next token; all of
    them if ``at_positions``.
    """
    is_named = isinstance(output, Mapping) and "logits" in output
    logits: Tensor = output["logits"] if is_named else getattr(output, "logits", output)
    of_last = isinstance(logits, Tensor) and logits.ndim == 3 and not at_positions
    return logits[:, -1] if of_last else logits


def _cnn(
    convolutions: Sequence[tuple[int, int, int]],
    widths: Sequence[int],
    norm: Callable[[int], nn.Module] | None,
    shape: Shape,
    n_classes: int,
) -> Sequential:
    """Convolutions, given as channels, kernel and padding, and linear layers of these widths.

    Each convolution is normalised, pooled and rectified; ReLU stands between linear layers, of
    which the last gives the logits.
    """
    layers, before = list[nn.Module](), shape[0]
    for channels, kernel, padding in convolutions:
        layers.append(Conv2d(before, channels, kernel, padding=padding))
        layers += [norm(channels)] if norm else []
        layers += [MaxPool2d(2), ReLU()]
        before = channels
    before = outputs(Sequential(*layers), shape)[0].numel()
    layers.append(Flatten())
    for i, width in enumerate((*widths, n_classes)):
        layers += [ReLU()] if i else []
        layers.append(Linear(before, width))
        before = width
    return Sequential(*layers)


def _lenet(widths: Sequence[int], shape: Shape, n_classes: int) -> nn.Module:
    """Two 5x5 convolutions, padded for images under 16x16, which would vanish otherwise."""
    padding = 2 if min(shape[1:]) < 16 else 0
    return _cnn([(6, 5, padding), (16, 5, padding)], widths, None, shape, n_classes)


def _cnn_dimitrov(shape: Shape, n_classes: int) -> Sequential:
    """Two 3x3 convolutions, each rectified and then averaged, and two linear layers.

    Sizes are those of the network "cnn" in the authors' code, eth-sri/fedavg_leakage.
    """
    layers, before = list[nn.Module](), shape[0]
    for channels in (32, 64):
        layers += [Conv2d(before, channels, 3, padding=1), ReLU(), AvgPool2d(2)]
        before = channels
    before = outputs(Sequential(*layers), shape)[0].numel()
    return Sequential(*layers, Flatten(), Linear(before, 100), ReLU(), Linear(100, n_classes))


def _cnn_adp_vrsgp(shape: Shape, n_classes: int) -> nn.Module:
    """`cnn-dyn-d2p` on grey images, three convolutions and two linear layers on colour."""
    if shape[0] == 1:
        return NETWORKS["cnn-dyn-d2p"](shape, n_classes)
    return _cnn([(32, 3, 1), (64, 3, 1), (128, 3, 1)], [256], None, shape, n_classes)


class MLPPartPSP(nn.Module):
    """Zhou, Xue and Chen, MNIST: three linear layers with tanh, and skips as in their code.

    They differ by split: ``split`` 1 is h = tanh(L1 x), h + tanh(L3 tanh(L2 h)), and ``split`` 2 is
    h = x + tanh(L2 tanh(L1 x)), tanh(L3 h).
    """

    def __init__(self, split: int, shape: Shape, n_classes: int) -> None:
        super().__init__()
        width = math.prod(shape)
        self.split = split
        self.first = Linear(width, n_classes)
        self.second = Linear(n_classes, width)
        self.third = Linear(width, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        h = torch.tanh(self.first(x))
        back = torch.tanh(self.second(h))
        if self.split == 1:
            return h + torch.tanh(self.third(back))
        return torch.tanh(self.third(x + back))


class RGB(nn.Module):
    """Repeats a grey image three times."""

    def forward(self, x: Tensor) -> Tensor:
        return x.expand(-1, 3, -1, -1)


def resnet_18(shape: Shape, n_classes: int) -> nn.Module:
    """torchvision's ResNet-18 with groups of channels normalised, 32 groups; random, not trained.

    Raises:
        ConfigError: images are neither grey nor RGB.
    """
    if shape[0] not in (1, 3):
        raise ConfigError("DPA034", f"resnet-18 needs grey or RGB images, got {shape[0]} channels")
    from dpaudit.data.vision import torchvision

    torchvision()
    from torchvision.models import resnet18

    resnet = resnet18(num_classes=n_classes, norm_layer=lambda c: GroupNorm(min(32, c), c))
    return Sequential(OrderedDict(rgb=RGB() if shape[0] == 1 else nn.Identity(), resnet=resnet))


class ClassToken(nn.Module):
    """A learned token before the others, [b, t, width] to [b, t + 1, width]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.token.expand(len(x), 1, -1), x], dim=1)


class PositionEmbedding(nn.Module):
    """A learned offset for each token."""

    def __init__(self, n_tokens: int, width: int) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.zeros(n_tokens, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.offset[: x.shape[1]]


class Attention(nn.Module):
    """Multi-head self-attention; if ``causal``, a token attends to those before it alone."""

    def __init__(self, width: int, n_heads: int, causal: bool = False) -> None:
        super().__init__()
        self.n_heads, self.causal = n_heads, causal
        self.qkv = Linear(width, 3 * width)
        self.out = Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = heads  # [b, n_heads, t, width / n_heads]
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if self.causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(-2))


class EncoderLayer(nn.Module):
    """Attention and a perceptron, each on normalised tokens and added to them."""

    def __init__(self, width: int, n_heads: int, hidden: int, causal: bool = False) -> None:
        super().__init__()
        self.norm_1, self.attention = LayerNorm(width), Attention(width, n_heads, causal)
        self.norm_2, self.up = LayerNorm(width), Linear(width, hidden)
        self.down = Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class VisionTransformer(nn.Module):
    """Dosovitskiy et al. 2021, arXiv:2010.11929, with patches of 4 and 4 heads.

    By default in the size of Zhou, Xue and Chen, for CIFAR-10: 4 layers, width 128, perceptron
    1024. Departures: random instead of trained on CIFAR-10, and no dropout, whose masks would be
    drawn outside the audit's streams.

    Raises:
        ConfigError: the sides of an image are not multiples of 4.
    """

    def __init__(
        self,
        shape: Shape,
        n_classes: int,
        name: str = "vit",
        width: int = 128,
        hidden: int = 1024,
        n_layers: int = 4,
    ) -> None:
        super().__init__()
        if shape[1] % 4 or shape[2] % 4:
            raise ConfigError(
                "DPA034", f"{name} needs sides that are multiples of 4, got {shape[1]}x{shape[2]}"
            )
        patch, n_heads = 4, 4
        n_tokens = 1 + (shape[1] // patch) * (shape[2] // patch)
        self.patches = Conv2d(shape[0], width, patch, stride=patch)
        self.class_token = ClassToken(width)
        self.encoder = Sequential(
            PositionEmbedding(n_tokens, width),
            *(EncoderLayer(width, n_heads, hidden) for _ in range(n_layers)),
            LayerNorm(width),
        )
        self.head = Linear(width, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        return self.head(self.encoder(self.class_token(tokens))[:, 0])


# cnn-xie with 4 channels a group, in the place of the batch normalisation that is published;
# cnn-xie-batchnorm has it: statistics are the batch's own, no running ones are kept.
_XIE = [(16, 5, 2), (32, 5, 2)]
_FOURS, _BATCH = lambda c: GroupNorm(c // 4, c), partial(nn.BatchNorm2d, track_running_stats=False)

NETWORKS: dict[str, Build] = {
    "cnn-adp-vrsgp": _cnn_adp_vrsgp,  # ADP-VRSGP; all sizes are our choice
    "cnn-dimitrov": _cnn_dimitrov,  # Dimitrov et al. (Data Leakage in Federated Averaging), FEMNIST
    # Yuan et al. (DPDL), CIFAR-10; 32 channels behind the second convolution, ReLU: our choice
    "cnn-dpdl": partial(_cnn, [(16, 3, 1), (32, 3, 1)], [], None),
    # Dyn-D2P, FashionMNIST: two convolutions, two linear layers; all sizes are our choice
    "cnn-dyn-d2p": partial(_cnn, [(16, 5, 0), (32, 5, 0)], [128], None),
    # Xie, Liu and Chai, MNIST; our choice: 16 and 32 channels, padding 2, ReLU
    "cnn-xie": partial(_cnn, _XIE, [], _FOURS),
    "cnn-xie-batchnorm": partial(_cnn, _XIE, [], _BATCH),
    # Yuan et al. (DPDL), MNIST: two convolutions and one linear layer; ReLU is our choice
    "lenet": partial(_lenet, []),
    "lenet-5": partial(_lenet, [120, 84]),  # the three linear layers of LeCun et al. 1998
    "logistic": partial(_cnn, [], [], None),  # softmax regression
    "mlp": partial(_cnn, [], [64], None),
    "mlp-partpsp-1": partial(MLPPartPSP, 1),
    "mlp-partpsp-2": partial(MLPPartPSP, 2),
    "resnet-18": resnet_18,
    "vit": VisionTransformer,
    "vit-tiny": partial(VisionTransformer, name="vit-tiny", width=64, hidden=128, n_layers=2),
}
# The others take images, [channels, height, width].
OF_ANY_SHAPE = frozenset({"logistic", "mlp", "mlp-partpsp-1", "mlp-partpsp-2"})
