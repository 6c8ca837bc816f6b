"""What is derived of one batch several times: averaged at one model, the surest, by secret."""

import pytest
import torch

from dpaudit.attack import ObservedGradients


def observed(
    std: list[float] | None, secrets: list[int] | None, models: list[float]
) -> ObservedGradients:
    m = torch.tensor(models)[:, None] * torch.ones(4)
    gradients = torch.arange(4.0 * len(models)).view(-1, 4)
    known = None if std is None else torch.tensor(std)
    return ObservedGradients(
        gradients, m, 1, None, known, None if secrets is None else torch.tensor(secrets)
    )


def test_gradients_at_one_model_are_weighted_by_variances() -> None:
    sent = observed([1.0, 2.0, 0.5, 1.0], [0, 0, 1, 0], [3.0, 3.0, 3.0, 5.0])
    pooled = sent.pooled()
    assert pooled.secrets is not None
    assert pooled.std is not None
    assert pooled.secrets.tolist() == [0, 1, 0]
    assert pooled.models[:, 0].tolist() == [3.0, 3.0, 5.0]
    g = sent.gradients
    torch.testing.assert_close(pooled.gradients[0], (4 * g[0] + g[1]) / 5)
    torch.testing.assert_close(pooled.gradients[1:], g[2:])
    assert pooled.std.tolist() == pytest.approx([(1 / (1 + 1 / 4)) ** 0.5, 0.5, 1.0])


def test_the_variance_of_r_averaged_gradients_is_an_rth() -> None:
    """Noise alone, 20,000 coordinates: a relative deviation of 6% is 6 standard deviations."""
    r, d = 5, 20_000
    noise = torch.randn(r, d, generator=torch.Generator().manual_seed(0))
    sent = ObservedGradients(noise, torch.ones(r, d), 1, None, torch.ones(r), torch.zeros(r).long())
    pooled = sent.pooled()
    assert pooled.gradients.shape == (1, d)
    assert pooled.gradients.var().item() == pytest.approx(1 / r, rel=0.06)
    assert pooled.std is not None
    assert pooled.std.item() == pytest.approx(r**-0.5)


def test_bare_gradients_outweigh_noisy_ones() -> None:
    unknown = observed(None, [0, 0], [1.0, 1.0])
    torch.testing.assert_close(unknown.pooled().gradients[0], unknown.gradients.mean(0))
    bare = observed([0.0, 1.0, 0.0], [0, 0, 0], [1.0, 1.0, 1.0]).pooled()
    assert bare.gradients[0].tolist() == [4.0, 5.0, 6.0, 7.0]
    assert bare.std is not None
    assert bare.std.tolist() == [0.0]


def test_the_surest_gradient_of_each_secret_is_alone() -> None:
    surest = observed([2.0, 1.0, 1.0, 3.0], [1, 0, 1, 0], [1.0, 2.0, 3.0, 4.0]).surest()
    assert surest.secrets is None
    assert surest.models[:, 0].tolist() == [2.0, 3.0]
    unknown = observed(None, [1, 0, 1, 0], [1.0, 2.0, 3.0, 4.0]).surest()
    assert unknown.models[:, 0].tolist() == [2.0, 1.0]


def test_where_nothing_is_joined_all_is_as_it_was() -> None:
    sent = observed([1.0, 2.0], None, [1.0, 1.0])
    assert sent.pooled() is sent
    assert sent.surest() is sent
    assert sent.by_secret(sent.gradients) is sent.gradients
    assert (sent.n_secrets, sent.most_joined) == (2, 1)
