"""Gradients of agents far away on a line, told apart by when they arrive."""

from typing import Any

import pytest
import torch
from torch import Tensor

from dpaudit.defense import Gradient, Noise, Setting, ThreatModel
from dpaudit.defense.transcript import Transcript
from dpaudit.defense.view import View
from dpaudit.errors import NotObservable
from dpaudit.game.estimating.estimate import Mixture, UnmixedGradients
from dpaudit.graphs.graph import build_graph
from dpaudit.registry import load_plugin
from dpaudit.rng import Streams

N, T, D = 31, 45, 200
AT_THE_END = ThreatModel(name="the end", kind="curious", agents=(0,))


class Steady(Gradient):
    batch_size = 8

    def __init__(self, gradients: Tensor) -> None:
        self.gradients = gradients

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        return self.gradients.clone()

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        return 8 * self.gradients


def truth(dtype: torch.dtype) -> Tensor:
    return torch.randn(N, D, generator=torch.Generator().manual_seed(1), dtype=dtype)


def unmixed(name: str, dtype: torch.dtype, **options: Any) -> UnmixedGradients:
    setting = Setting(build_graph("path", N), (40,) * N, D)
    made = load_plugin("defenses", name)(n_rounds=T, learning_rate=1e-4, batch_size=8, **options)
    defense = made.calibrate(setting)
    X = torch.randn(D, generator=torch.Generator().manual_seed(3), dtype=dtype)
    state: Any = defense.start(X.expand(N, D).clone(), setting)
    captures = {}
    for k in range(1, T + 1):
        graph, noise = setting.network.at(k), Noise(Streams(2), k)
        state, captures[k], *_ = defense.step(state, k, graph, Steady(truth(dtype)), noise)
    view = View.of(AT_THE_END, Transcript(captures), set(captures))
    return Mixture(defense, setting, AT_THE_END, T).unmixed(view, X)


def errors(found: UnmixedGradients, dtype: torch.dtype) -> Tensor:
    return (found.gradients - truth(dtype).double()).square().mean(dim=1).sqrt()


def test_without_noise_a_line_is_read_for_twenty_hops() -> None:
    found = unmixed("d-psgd", torch.float64)
    assert float(errors(found, torch.float64)[1:21].max()) < 0.2
    assert float(found.shares[1:21].min()) > 0.98
    assert float(found.shares[30]) < 0.8


def test_rounding_of_float32_ends_it_sooner() -> None:
    found = unmixed("d-psgd", torch.float32)
    assert float(errors(found, torch.float32)[1:5].max()) < 0.1
    assert float(found.shares[8]) < 0.7


@pytest.mark.parametrize("multiplier, told", [(1e-6, 9), (1e-2, 1)])
def test_noise_ends_it_where_its_deviation_says(multiplier: float, told: int) -> None:
    """Over 200 coordinates an error is within a quarter of its deviation, or of tau where it is all:
    the chance that one of those looked at is not is below 1e-5."""
    found = unmixed("dp-dpsgd", torch.float64, noise_multiplier=multiplier)
    off = errors(found, torch.float64)
    looked = [j for j in range(1, N) if float(found.stds[j]) > 1e-3 and found.shares[j] > 0.01]
    for j in looked:
        assert float(off[j]) == pytest.approx(float(found.stds[j]), rel=0.3), j
    assert int((found.shares[1:] > 0.99).sum()) >= told
    assert float(found.shares[20]) < 0.5


def test_a_round_that_was_not_recorded_is_named() -> None:
    setting = Setting(build_graph("path", 4), (40,) * 4, D)
    defense = load_plugin("defenses", "d-psgd")(n_rounds=T).calibrate(setting)
    with pytest.raises(NotObservable, match='"x" of round 1 was not recorded'):
        Mixture(defense, setting, AT_THE_END, 3).unmixed(
            View.of(AT_THE_END, Transcript({}), set()), torch.zeros(D)
        )
