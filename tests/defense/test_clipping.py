"""Clipping: the bound, the vectors it leaves alone, and zero."""

import pytest
import torch

from dpaudit.defense.clipping import clip, norms


@pytest.mark.parametrize("norm", [1, 2])
def test_long_vectors_get_the_clip_norm_and_short_ones_pass(norm) -> None:
    vectors = torch.randn(200, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    clipped = clip(vectors, 2.0, norm)
    before, after = vectors.norm(p=norm, dim=1), clipped.norm(p=norm, dim=1)
    assert (before > 2).any()
    assert (before < 2).any()
    torch.testing.assert_close(after, before.clamp(max=2.0), rtol=1e-14, atol=0)
    assert torch.equal(clipped[before <= 2], vectors[before <= 2])
    directions = (clipped * vectors).sum(1) / (clipped.norm(dim=1) * vectors.norm(dim=1))
    torch.testing.assert_close(directions, torch.ones_like(directions))


@pytest.mark.parametrize("norm", [1, 2])
def test_norms_are_those_of_the_vectors(norm) -> None:
    vectors = torch.randn(3, 4, 50, generator=torch.Generator().manual_seed(1))
    expected = torch.linalg.vector_norm(vectors.double(), norm, dim=-1, keepdim=True)
    torch.testing.assert_close(norms(vectors, norm).double(), expected, rtol=1e-6, atol=0)


def test_zero_stays_zero_and_an_infinite_norm_clips_nothing() -> None:
    assert torch.equal(clip(torch.zeros(2, 3), 1.0), torch.zeros(2, 3))
    vectors = torch.tensor([[1e20, 0.0], [3.0, 4.0]])
    assert torch.equal(clip(vectors, float("inf")), vectors)


def test_a_clip_norm_that_is_not_positive_is_refused() -> None:
    for wrong in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="positive"):
            clip(torch.ones(2, 2), wrong)
