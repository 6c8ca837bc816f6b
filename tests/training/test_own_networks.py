"""A caller's network that has no numbers, or no gradients, is refused before anything is run."""

import pytest
import torch
from torch import Tensor, nn

from dpaudit.data import partition
from dpaudit.data.datasets import Dataset
from dpaudit.errors import ConfigError
from dpaudit.rng import Streams
from dpaudit.training.classification import Classification

X, Y = torch.arange(36).view(12, 3) % 7, torch.arange(12) % 2
WORDS = tuple(map(str, range(7)))


class Own(nn.Module):
    """The mean embedding of tokens; ``hooked``: with one that asks for the slopes of its output."""

    def __init__(self, hooked: bool) -> None:
        super().__init__()
        self.tokens, self.head, self.hooked = nn.Embedding(7, 4), nn.Linear(4, 2), hooked
        self.scale = nn.Parameter(torch.ones(2))  # which makes it run by itself

    def forward(self, ids: Tensor) -> Tensor:
        embedded = self.tokens(ids)
        if self.hooked and torch.is_grad_enabled():
            embedded.requires_grad_(True)
        return self.head(embedded.mean(1)) * self.scale


def learned(network: nn.Module) -> Classification:
    data = Dataset("own", X[:8], Y[:8], X[8:], Y[8:], ("0", "1"), (0.0, 6.0), WORDS)
    parts = partition.split(data.y, 2, "even", Streams(0).numpy("partition"))
    return Classification(data, parts, network, torch.device("cpu"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("network", "said"),
    [
        (Own(False).to("meta"), "Own is on the meta device; expected numbers"),
        (
            nn.Sequential(nn.Sequential(Own(True)), nn.Identity()),
            "gradients of Sequential cannot be computed: You are attempting to call",
        ),
    ],
)
def test_networks_without_numbers_or_gradients_are_refused(network: nn.Module, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        learned(network)


def test_a_plain_one_starts_as_it_was_given() -> None:
    network = Own(False)
    start = nn.utils.parameters_to_vector(network.parameters()).detach()
    assert learned(network).initial(Streams(1))[1].equal(start)
