"""Networks by name: their sizes, their parameters as one vector, what they refuse."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call

from dpaudit.errors import ConfigError
from dpaudit.models.models import (
    architecture,
    build_network,
    coordinates,
    initial_parameters,
    n_parameters,
    parameters_of,
    shared_layers,
)
from dpaudit.models.networks import NETWORKS
from dpaudit.rng import Streams

GREY, COLOUR, SMALL = (1, 28, 28), (3, 32, 32), (1, 8, 8)


@pytest.mark.parametrize(
    "name, shape, d",
    [
        ("lenet", GREY, 6 * 25 + 6 + 16 * 150 + 16 + 256 * 10 + 10),
        ("lenet-5", GREY, 156 + 2416 + 256 * 120 + 120 + 120 * 84 + 84 + 84 * 10 + 10),
        ("cnn-dpdl", COLOUR, 16 * 27 + 16 + 32 * 144 + 32 + 2048 * 10 + 10),
        ("cnn-xie", GREY, 16 * 25 + 16 + 32 + 32 * 400 + 32 + 64 + 32 * 49 * 10 + 10),
        ("cnn-xie-batchnorm", GREY, 16 * 25 + 16 + 32 + 32 * 400 + 32 + 64 + 32 * 49 * 10 + 10),
        ("cnn-dyn-d2p", GREY, 416 + 32 * 400 + 32 + 512 * 128 + 128 + 1290),
        ("cnn-adp-vrsgp", GREY, 416 + 32 * 400 + 32 + 512 * 128 + 128 + 1290),
        ("cnn-dimitrov", GREY, 320 + 18_496 + 3136 * 100 + 100 + 1010),
        ("cnn-adp-vrsgp", COLOUR, 896 + 18_496 + 73_856 + 2048 * 256 + 256 + 2570),
        ("mlp-partpsp-1", GREY, 7850 + 8624 + 7850),  # as the paper's code has them
        ("mlp-partpsp-2", GREY, 7850 + 8624 + 7850),
        ("logistic", SMALL, 65 * 10),
        ("mlp", SMALL, 65 * 64 + 65 * 10),
        ("resnet-18", GREY, 11_689_512 - 513_000 + 5130),  # He et al.'s, with a head of 10
    ],
)
def test_networks_have_the_parameters_of_their_papers(name: str, shape, d: int) -> None:
    assert n_parameters(build_network(name, shape, 10)) == d


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("shape", [GREY, COLOUR])
def test_every_network_maps_a_batch_to_finite_logits(name: str, shape) -> None:
    module = build_network(name, shape, 7)
    x = initial_parameters(module, Streams(1)("initialisation"))
    assert x.dtype == torch.float32
    assert all(p.is_meta for p in module.parameters())
    logits = functional_call(module, parameters_of(module, x), (torch.rand(3, *shape),))
    assert logits.shape == (3, 7)
    assert logits.isfinite().all()
    assert logits.std() > 0


@pytest.mark.parametrize("name", ["lenet", "cnn-xie", "resnet-18", "vit"])
def test_initial_parameters_depend_on_their_generator_alone(name: str) -> None:
    before = torch.get_rng_state()
    draws = []
    for seed in (3, 3, 4):
        module = build_network(name, (1, 16, 16), 10)
        draws.append(initial_parameters(module, Streams(seed)("initialisation")))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert torch.equal(torch.get_rng_state(), before)


def test_initial_parameters_are_torchs_defaults() -> None:
    """Uniform within 1 / sqrt(fan in): 12,800 draws reach 0.995 of it, but for 1e-13 of seeds."""
    module = build_network("cnn-xie", GREY, 10)
    x = parameters_of(module, initial_parameters(module, Streams(0)("initialisation")))
    for name, fan_in in (("0.weight", 25), ("4.weight", 400), ("9.weight", 1568), ("4.bias", 400)):
        bound = fan_in**-0.5
        assert x[name].abs().max() <= bound
        if x[name].numel() > 10_000:
            assert x[name].max() > 0.995 * bound
            assert x[name].min() < -0.995 * bound
    assert torch.equal(x["1.weight"], torch.ones(16))
    assert torch.equal(x["1.bias"], torch.zeros(16))


def test_parameters_are_views_of_their_vector_and_come_back() -> None:
    module = build_network("lenet", GREY, 10)
    X = torch.randn(2, 3, n_parameters(module))
    parameters = parameters_of(module, X)
    assert {n: p.shape[2:] for n, p in parameters.items()} == {
        n: p.shape for n, p in module.named_parameters()
    }
    assert torch.equal(torch.cat([p.flatten(2) for p in parameters.values()], dim=-1), X)
    parameters["0.weight"].zero_()
    assert not X[..., :150].any()
    assert X[..., 150:].all()


def test_lenet_pools_and_rectifies_in_either_order() -> None:
    module = build_network("lenet", GREY, 10)
    published = nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip
    x = initial_parameters(module, Streams(1)("initialisation"))
    torch.nn.utils.vector_to_parameters(x, published.parameters())
    images = torch.rand(4, *GREY)
    logits = functional_call(module, parameters_of(module, x), (images,))
    torch.testing.assert_close(logits, published(images))


@pytest.mark.parametrize("split", [1, 2])
def test_the_perceptrons_of_partpsp_skip_as_their_code_does(split: int) -> None:
    module = build_network(f"mlp-partpsp-{split}", SMALL, 10)
    x = initial_parameters(module, Streams(1)("initialisation"))
    images = torch.rand(4, *SMALL)
    p = parameters_of(module, x)

    def layer(name: str, v: torch.Tensor) -> torch.Tensor:
        return torch.tanh(v @ p[f"{name}.weight"].T + p[f"{name}.bias"])

    flat = images.flatten(1)
    if split == 1:
        h = layer("first", flat)
        expected = h + layer("third", layer("second", h))
    else:
        expected = layer("third", flat + layer("second", layer("first", flat)))
    torch.testing.assert_close(functional_call(module, p, (images,)), expected)


@pytest.mark.parametrize("name", ["cnn-xie", "resnet-18", "vit", "lenet"])
def test_no_logit_depends_on_another_record(name: str) -> None:
    module = build_network(name, (1, 16, 16), 10)
    p = parameters_of(module, initial_parameters(module, Streams(1)("initialisation")))
    images = torch.rand(3, 1, 16, 16)
    alone = functional_call(module, p, (images[:1],))
    torch.testing.assert_close(functional_call(module, p, (images,))[:1], alone)


@pytest.mark.parametrize(
    "name, split, layers, d_shared",
    [
        ("mlp-partpsp-1", 1, ("first",), 7850),
        ("mlp-partpsp-2", 2, ("first", "second"), 7850 + 8624),
        ("lenet", 1, ("0",), 156),
        ("cnn-xie", 2, ("0", "1", "4", "5"), 416 + 32 + 12_832 + 64),
        ("resnet-18", 1, ("resnet.conv1", "resnet.bn1", "resnet.layer1"), 157_504),
        ("vit", 1, ("patches", "class_token"), 16 * 128 + 128 + 128),
    ],
)
def test_partpsp_shares_the_layers_of_its_paper(name: str, split: int, layers, d_shared) -> None:
    module = build_network(name, GREY, 10)
    assert shared_layers(module, split) == layers
    mask = coordinates(module, layers)
    assert mask.shape == (n_parameters(module),)
    assert int(mask.sum()) == d_shared


def test_a_second_split_of_a_transformer_keeps_only_the_head() -> None:
    module = build_network("vit", COLOUR, 10)
    mask = coordinates(module, shared_layers(module, 2))
    assert torch.equal(~mask, coordinates(module, ["head"]))


def test_a_layer_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match='no layer "layer9"'):
        coordinates(build_network("lenet", GREY, 10), ["0", "layer9"])


@pytest.mark.parametrize(
    "name, shape, message",
    [
        ("lenet", (1, 3, 8), "lenet needs images of at least 4x4, got 3x8"),
        ("cnn-dyn-d2p", SMALL, "cnn-dyn-d2p needs images of at least 16x16, got 8x8"),
        ("cnn-xie-batchnorm", (1, 2, 2), "cnn-xie-batchnorm needs images of at least 4x4, got 2x2"),
        ("vit", (1, 30, 28), "vit needs sides that are multiples of 4, got 30x28"),
        ("resnet-18", (2, 28, 28), "resnet-18 needs grey or RGB images, got 2 channels"),
    ],
)
def test_what_a_network_cannot_take_is_refused_in_one_line(name: str, shape, message) -> None:
    with pytest.raises(ConfigError) as error:
        build_network(name, shape, 10)
    assert str(error.value) == message


def test_a_name_that_is_not_there_is_told_the_names_that_are() -> None:
    with pytest.raises(ConfigError) as error:
        build_network("lenett", GREY, 10)
    said = 'no network is called "lenett" (did you mean "lenet"?); known: cnn-adp-vrsgp, '
    assert str(error.value).startswith(said)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_least_size_named_in_a_refusal_is_taken(name: str) -> None:
    try:
        build_network(name, (1, 1, 1), 10)
    except ConfigError as error:
        if "at least" in str(error):
            side = int(str(error).split("at least ")[1].split("x")[0])
            build_network(name, (1, side, side), 10)
            with pytest.raises(ConfigError):
                build_network(name, (1, side - 1, side - 1), 10)


class _Told(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"scores": self.layer(x)}


@pytest.mark.parametrize(
    ("kind", "said"),
    [(tuple, "the logits alone"), (list, "the logits alone"), (dict, "under the key logits")],
)
def test_outputs_that_are_no_logits_are_helped(kind: type, said: str) -> None:
    class Told(_Told):
        def forward(self, x: torch.Tensor) -> Any:
            logits = self.layer(x)
            return {"scores": logits} if kind is dict else kind([logits])

    with pytest.raises(ConfigError, match=f"Told gives a {kind.__name__}") as refused:
        architecture(Told(), (4,), 3)
    assert said in refused.value.problems[0].help


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (nn.Identity(), "Identity has no parameters"),
        (_Told(), "_Told gives a dict; expected a tensor of logits"),
        (
            nn.Linear(4, 3).requires_grad_(False),
            "Linear has no parameters to be trained; expected some",
        ),
    ],
)
def test_an_own_network_that_cannot_be_trained_is_refused(module: nn.Module, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        architecture(module, (4,), 3)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(
    "shape",
    [(), (0,), (1,), (5,), (4, 4), (28, 28), (1, 2, 3, 4), (0, 8, 8), (1, 0, 8), (1, 90, 1)],
)
def test_records_of_any_shape_are_taken_or_refused_in_a_line(
    name: str, shape: tuple[int, ...]
) -> None:
    try:
        built = build_network(name, shape, 3)
    except ConfigError as refused:
        built, lines = None, str(refused).splitlines()
    if built is None:
        assert [name in line for line in lines] == [True]
    else:
        assert 0 not in shape
        assert n_parameters(built) > 0


def test_a_model_of_images_names_those_that_take_vectors() -> None:
    expected = r"lenet takes images, not records of shape \[5\]; .* logistic, mlp, "
    with pytest.raises(ConfigError, match=expected):
        build_network("lenet", (5,), 3)
