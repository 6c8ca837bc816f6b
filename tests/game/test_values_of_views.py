"""What an adversary can read, and around what its rounds are played, by hand."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dpaudit.errors import ConfigError
from dpaudit.files.threat import ThreatModel
from dpaudit.game.estimating.window import WIDTH, ProbedWindow
from dpaudit.game.filtering.adversary import Reaction, reaction
from dpaudit.game.network.gossip import Gossip, refuse_adversary
from dpaudit.game.probing.probed_round import NOISELESS, Effects, ProbedRound
from dpaudit.game.probing.sparse_probe import _StepProbe
from dpaudit.game.worst_case.layers import _NotPlayed, _OneByOne
from dpaudit.graphs.graph import build_graph


def effects(seen: list[list[float]], models: list[list[float]], state: float = 0.0) -> Effects:
    n = len(seen)
    return Effects(np.reshape(seen, (n, -1)), np.full((n, 1), state), np.reshape(models, (n, -1)))


def reacting(record: list[float], earlier: list[float], **of: Any) -> Reaction | None:
    """Of models that a noise moves by 4, beside a message that it moves by 2 and the record by 1.

    A second noise, which no message shows, moves the second model by ``hidden``.
    """
    seen, models = [[2.0, 1.0], [0.0, 0.0]], [of.get("noise", [4.0, 0.0]), [0.0, 0.0]]
    models[1][1] = of.get("hidden", 0.0)
    out = ProbedRound(
        5, [("x", 0), ("y", 1)], effects(seen, models, of.get("state", 0.0)), 0,
        torch.zeros(2, dtype=torch.bool), effects([[1.0, 0.0]], [record]), [0],
        effects([[3.0, 0.0]], [earlier]), list(of.get("askers", (0, 1))), of.get("scale", 1.0), 9.0,
    )  # fmt: skip
    shows, before = of.get("shows", [True, True]), np.array([True, False])
    view = ThreatModel(name="view", kind="curious", agents=of.get("agents", (2,)))
    return reaction(view, out, lambda: (np.array(shows), before))


@pytest.mark.parametrize(
    ("record", "earlier", "of", "asker"),
    [
        ([2.0, 0.0], [6.0, 0.0], {}, None),  # as the message shows of it
        ([3.0, 0.0], [6.0, 0.0], {}, 0),
        ([2.0, 0.0], [5.0, 0.0], {}, 0),
        ([2.0, 1.0], [6.0, 0.0], {}, 1),
        ([2.0, 1.0], [6.0, 0.0], {"shows": [True, False]}, None),
        ([2.0, 1.0], [6.0, 0.0], {"agents": (1,)}, None),
        ([3.0, 1.0], [6.0, 0.0], {"shows": [False, True]}, 1),
        ([2.0, 2 * NOISELESS], [6.0, 0.0], {}, 1),
        ([2.0, 2 * NOISELESS], [6.0, 0.0], {"scale": 10.0}, None),
        ([0.0, 0.0], [0.0, 0.0], {"noise": [0.0, 0.0]}, None),
        ([3.0, 0.0], [6.0, 0.0], {"askers": (2, 0)}, None),
        ([2.0, 0.0], [6.0, 0.0], {"hidden": 5 * NOISELESS}, 1),
        ([2.0, 0.0], [6.0, 0.0], {"hidden": -5 * NOISELESS}, 1),
        ([2.0, 0.0], [6.0, 0.0], {"hidden": 3 * NOISELESS}, None),  # of noise of 4 in all
        ([2.0, 0.0], [6.0, 0.0], {"hidden": 5 * NOISELESS, "state": -10.0}, None),
    ],
)
def test_a_gradient_reacts_to_what_a_view_does_not_show(record, earlier, of, asker) -> None:
    assert reacting(record, earlier, **of) == (None if asker is None else Reaction(5, asker))


def test_gradients_are_as_large_as_the_clip_norm_of_the_round() -> None:
    """A mean of squares of 2,000 normal numbers is 25% off with a probability below 1e-12."""
    of: Any = SimpleNamespace(_per_coordinate=0.5)
    found = {}
    for clip in (3.0, 1.0, None):
        of._defense = SimpleNamespace(clip_norm_in=lambda k, clip=clip: clip)
        found[clip] = ProbedWindow._typical(of, 4, 2000 // WIDTH)
    assert found[None].shape == (2000 // WIDTH, WIDTH)
    torch.testing.assert_close(found[3.0], 3 * found[None])
    assert torch.equal(found[1.0], found[None])
    assert found[None].square().mean().item() == pytest.approx(0.25, rel=0.25)
    assert not torch.equal(ProbedWindow._typical(of, 5, 2000 // WIDTH), found[None])


@pytest.mark.parametrize(
    ("known_to", "makers"),
    [
        (None, [0, 0, 1, 1, 2, 2]),
        (torch.zeros(3, 0, dtype=torch.long), [0, 0, 1, 1, 2, 2]),
        (torch.tensor([[2], [0], [1]]), [2, 2, 0, 0, 1, 1]),
        (torch.tensor([[2, 1], [0, 2], [1, 0]]), [2, 2, 0, 0, 1, 1]),
    ],
)
def test_a_shared_draw_is_made_by_the_first_that_knows_it(known_to: Any, makers: Any) -> None:
    asked = SimpleNamespace(
        draws={"x": SimpleNamespace(shape=(1, 3, 2))},
        known_to={} if known_to is None else {"x": known_to},
    )
    of: Any = SimpleNamespace(_asked=asked, _graph=build_graph("ring", 3))
    assert _StepProbe._makers(of, "x").tolist() == makers


def test_each_trial_has_noise_on_a_coordinate_of_its_own() -> None:
    """Rows have sizes between half and one and a half; draws beside the first may be negative."""
    like, rows = torch.zeros(3, 2, 3).double(), torch.zeros(2, 3).double()
    sizes: dict[int, list[float]] = {}
    for turning in (0, 1):
        noise = _OneByOne(3, turning)
        first, second, again = (noise.gaussian(name, 2.0, like) for name in ("x", "y", "x"))
        own = first[0, :, 0]
        assert ((own.abs() >= 1) & (own.abs() <= 3)).all()
        assert own[0] != own[1]
        assert torch.equal(first, own[:, None] * torch.eye(3).double()[:, None])
        assert torch.equal(again, first)
        assert torch.equal(second, -first if turning else first)
        assert torch.equal(noise.gaussian("x", 2.0, rows), first)
        sizes[turning] = own.tolist()
        with pytest.raises(_NotPlayed):
            noise.gaussian("x", 2.0, like[..., :2])
    assert sizes[0] == sizes[1]


def test_an_adversary_reads_a_message_of_rounds_that_are_played() -> None:
    """Agents 0 and 1 meet in round 1, 1 and 2 in round 2: agent 2 hears nobody before."""
    first, second = torch.eye(3), torch.eye(3)
    first[0, 1] = first[1, 0] = second[1, 2] = second[2, 1] = 0.5
    view = ThreatModel(name="view", kind="curious", agents=(2,))
    for n_rounds in (2, 3):
        refuse_adversary(Gossip((first, second), n_rounds, torch.eye(3), ()), view)
    with pytest.raises(ConfigError, match="reads no message in 1 rounds"):
        refuse_adversary(Gossip((first, second), 1, torch.eye(3), ()), view)
    refuse_adversary(Gossip((second,), 1, torch.eye(3), ()), view)
