"""GroupNorm in the place of BatchNorm: which layers, which groups, which numbers."""

import pytest
import torch
from torch import nn

from dpaudit.models.gradients import Gradients
from dpaudit.models.models import architecture, build_network, with_group_norm


def own_network() -> nn.Sequential:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU())
    network = nn.Sequential(inner, nn.Flatten(), nn.Linear(6 * 4, 3), nn.BatchNorm1d(3))
    with torch.no_grad():
        inner[1].weight.uniform_()
        inner[1].bias.uniform_()
    return network


def test_every_batch_norm_is_replaced_and_named() -> None:
    given = own_network()
    fixed, replaced = with_group_norm(given)
    assert replaced == (
        "0.1: BatchNorm2d(6) by GroupNorm(3, 6)",
        "3: BatchNorm1d(3) by GroupNorm(1, 3)",
    )
    assert not list(fixed.buffers())
    assert torch.equal(fixed[0][1].weight, given[0][1].weight)
    assert torch.equal(fixed[0][1].bias, given[0][1].bias)
    assert isinstance(given[0][1], nn.BatchNorm2d)  # the caller's own is left alone


@pytest.mark.parametrize(
    "channels, groups", [(1, 1), (2, 1), (3, 1), (4, 2), (16, 8), (64, 32), (512, 32), (7, 1)]
)
def test_groups_divide_the_channels(channels: int, groups: int) -> None:
    _, [said] = with_group_norm(nn.BatchNorm2d(channels))
    assert said.endswith(f"by GroupNorm({groups}, {channels})")


def test_a_fixed_network_has_a_gradient_for_each_record() -> None:
    fixed, _ = with_group_norm(own_network())
    gradients = Gradients(architecture(fixed, (1, 4, 4), 3))
    x, y = torch.rand(1, 5, 1, 4, 4), torch.arange(5)[None] % 3
    X = nn.utils.parameters_to_vector(fixed.parameters()).detach()[None]
    one_by_one = gradients.per_record(X, x, y)[0]
    alone = torch.cat([gradients.mean(X, x[:, i : i + 1], y[:, i : i + 1]) for i in range(5)])
    torch.testing.assert_close(one_by_one, alone)


def test_layers_without_scale_have_none_afterwards() -> None:
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, affine=False))
    fixed, _ = with_group_norm(network)
    assert len(list(fixed.parameters())) == 2


def test_a_network_on_the_meta_device_stays_there() -> None:
    fixed, replaced = with_group_norm(build_network("cnn-xie-batchnorm", (1, 8, 8), 4))
    assert len(replaced) == 2
    assert all(p.is_meta for p in fixed.parameters())


def test_without_batch_norm_nothing_is_replaced() -> None:
    assert with_group_norm(nn.Linear(3, 2))[1] == ()
