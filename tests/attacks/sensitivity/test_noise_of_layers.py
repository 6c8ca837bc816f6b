"""Layers that are noised apart: a record is held to the noise of each."""

import pytest
import torch

from dpaudit.defense import Round, broadcast, clip
from dpaudit.files.finding import Name
from dpaudit.files.verdict import Verdict

from .test_declared import ETA, B, C, Plain, State, TwoReleases, found  # noqa: F401


class OneClip(Plain):
    """One clip of the whole gradient; two draws of one scale make its noise."""

    clips: str = "both"

    def summed(self, gradient, X):
        if self.clips == "both":
            return super().summed(gradient, X)
        parts = halves(gradient.per_record(X))
        return torch.cat([clip(part, C) for part in parts], -1).sum(-2)

    def noised(self, S, noise):
        parts = zip("ab", halves(S), strict=True)
        return S + torch.cat([noise.gaussian(name, self.sigma * C, S) for name, S in parts], -1)


class Apart(TwoReleases):
    """Each of two parts is clipped to a norm of its own and has noise of its own."""

    norms: tuple[float, float] = (C, C / 4)
    times: tuple[float, float] = (1.0, 1.0)  # as far as a part's noise is made for

    def summed(self, gradient, X):
        parts = zip(halves(gradient.per_record(X)), self.norms, self.times, strict=True)
        return torch.cat([clip(part, norm * times) for part, norm, times in parts], -1).sum(-2)

    def noised(self, S, noise):
        parts = zip("ab", halves(S), self.norms, strict=True)
        return S + torch.cat([noise.gaussian(n, self.sigma * c, S) for n, S, c in parts], -1)


class OneDraw(Apart):
    """The same, with one draw whose scale is a vector."""

    def noised(self, S, noise):
        scales = [
            torch.full_like(s[0], self.sigma * c)
            for s, c in zip(halves(S), self.norms, strict=True)
        ]
        return S + noise.gaussian("x", torch.cat(scales, -1), S)


class TwoMessages(OneClip):
    """Two parts of a model, each in a message of its own."""

    messages = {"a": "a part", "b": "the others"}
    quiet: bool = False  # the noise of the first part is half of what is declared

    def step(self, state, k, graph, gradient, noise):
        X, M = state
        T = self.noised(self.summed(gradient, X), noise)
        a, b = halves(X - ETA * T / B)
        mixed = torch.cat([graph.mix(a), graph.mix(b)], -1)
        return Round(State(mixed, M), {"a": broadcast(graph, a), "b": broadcast(graph, b)})

    def noised(self, S, noise):
        scale = self.sigma * C
        a, b = halves(S)
        first = noise.gaussian("a", scale / 2 if self.quiet else scale, a)
        return S + torch.cat([first, noise.gaussian("b", scale, b)], -1)


class OneDrawSentTwice(TwoMessages):
    def noised(self, S, noise):
        return Plain.noised(self, S, noise)


def halves(values):
    half = values.shape[-1] // 3
    return values.split([half, values.shape[-1] - half], -1)


@pytest.mark.parametrize("defense", [OneClip(), Apart(), OneDraw()])
def test_right_noise_of_layers_bounds_a_record(found, defense) -> None:  # noqa: F811
    x, beside = found(defense)
    assert x.verdict is beside.verdict is None
    assert 0.99 < x.value(Name.MEASURED_OVER_STATED) < 1 + 1e-6
    assert any("count for less" in note for note in x.notes) == isinstance(defense, Apart)


@pytest.mark.parametrize(
    ("defense", "times"),
    [
        (OneClip(clips="each"), 2**0.5),
        (Apart(times=(1.0, 2.0)), (5 / 2) ** 0.5),
        pytest.param(Apart(times=(2.0, 1.0)), (5 / 2) ** 0.5, marks=pytest.mark.slow),
        (OneDraw(times=(1.0, 2.0)), (5 / 2) ** 0.5),
        (Apart(norms=(C / 100, C), times=(3.0, 1.0)), 5**0.5),
    ],
)
def test_a_layer_that_moves_too_far_is_found(found, defense, times) -> None:  # noqa: F811
    """Lengths in units of the noise of each part: sqrt(2) where both are right."""
    x, _ = found(defense)
    assert x.verdict is Verdict.UNSUPPORTED
    assert 0.99 * times < x.value(Name.MEASURED_OVER_STATED) < times * (1 + 1e-6)


@pytest.mark.parametrize("kind", [TwoMessages, OneDrawSentTwice])
def test_messages_that_move_too_far_together_are_found(found, kind) -> None:  # noqa: F811
    """Each within its bound, and both sqrt(2) times as far as their noise is made for."""
    findings = found(kind(clips="each"))
    [x] = [finding for finding in findings if finding.verdict]
    assert x.message == "all that is sent"
    assert x.value(Name.MEASURED_OVER_STATED) == pytest.approx(2**0.5, rel=0.01)
    assert not any(finding.verdict for finding in found(kind()))


def test_a_message_that_moves_too_far_is_named_first(found) -> None:  # noqa: F811
    against, *_ = [finding for finding in found(TwoMessages(quiet=True)) if finding.verdict]
    assert against.message == "a"
    assert 1.5 < against.value(Name.MEASURED_OVER_STATED) < 2 + 1e-6
