"""The checker's mu of linear views against network accounting, the filter and closed forms."""

import hashlib
import io
from pathlib import Path

import numpy as np
import pytest
import torch

from dpaudit.files.threat import ThreatModel
from dpaudit.game.network.accounting import network_mu
from dpaudit.verify import figures
from dpaudit.verify.views import mus, whitened
from tests.verify import test_values as of

Array = np.ndarray


def written(folder: Path, **arrays: Array) -> Path:
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    digest = hashlib.sha256(content.getvalue()).hexdigest()
    file = folder / f"linear-view-{digest}.npz"
    file.write_bytes(content.getvalue())
    return file


def gossip(W: Array, stds: Array, T: int, reader: int, victim: int) -> tuple[Array, Array]:
    """What agent ``reader`` hears in T rounds of linear gossip: effects of uses, and of noise."""
    n = len(W)
    seen_uses, seen_noise = [], []
    uses, noise = np.zeros((n, T)), np.zeros((n, n * T))  # what is in theta of each
    heard = [j for j in range(n) if j != reader and W[reader, j] != 0]
    for t in range(T):
        uses[victim, t] += 1
        noise[:, n * t : n * (t + 1)] += np.diag(stds)
        seen_uses.append(uses[heard])
        seen_noise.append(noise[heard])
        uses, noise = W @ uses, W @ noise
    others = np.tile(np.arange(n) != reader, T)
    return np.concatenate(seen_uses), np.concatenate(seen_noise)[:, others]


@pytest.mark.parametrize("part", range(4))
def test_agrees_with_network_accounting_on_200_views(part: int, tmp_path: Path) -> None:
    for seed in range(50 * part, 50 * (part + 1)):
        rng = np.random.default_rng([44, seed])
        n, T = int(rng.integers(2, 6)), int(rng.integers(1, 6))
        W = rng.random((n, n)) * (rng.random((n, n)) < 0.6) + np.eye(n)
        reader, victim = (int(i) for i in rng.permutation(n)[:2])
        W[reader, victim if seed % 3 else (reader + 1) % n] += 0.5
        W /= W.sum(axis=1, keepdims=True)
        stds = rng.uniform(0.3, 3.0, n)
        A, B = gossip(W, stds, T, reader, victim)
        adversary = ThreatModel(name="reader", kind="curious", agents=(reader,))
        for schema, inclusion in (("once", np.arange(T)), ("every-round", np.zeros(T))):
            noise = torch.from_numpy(stds)
            found = network_mu(torch.from_numpy(W), T, schema, noise, [adversary])
            low, high = found.low[0, victim].item(), found.high[0, victim].item()
            own = mus(written(tmp_path, record=A, noise=B, inclusion=inclusion))
            assert max(lo for lo, _ in own) <= high * (1 + 1e-7)
            assert max(hi for _, hi in own) >= low * (1 - 1e-7)
            if schema == "once":
                assert max(hi for _, hi in own) == pytest.approx(high, rel=1e-7)


def test_two_readings_of_one_number_by_hand(tmp_path: Path) -> None:
    """y1 = r + z1, y2 = r + 2 z2: mu^2 = 1 + 1/4."""
    A, B = np.ones((2, 1)), np.diag([1.0, 2.0])
    ((low, high),) = mus(written(tmp_path, record=A, noise=B, inclusion=np.zeros(1)))
    assert low == pytest.approx(1.25**0.5, abs=1e-12)
    assert high == pytest.approx(1.25**0.5, abs=1e-12)


def test_what_no_noise_hides_is_infinite(tmp_path: Path) -> None:
    """y1 - y2 = r."""
    A, B = np.array([[1.0], [0.0]]), np.ones((2, 1))
    assert mus(written(tmp_path, record=A, noise=B, inclusion=np.zeros(1))) == [(np.inf, np.inf)]


def test_a_residual_widens_the_ends() -> None:
    """a = (1, 1e-8), of which B = (1, 0) leaves 1e-8: w = 1 is off by 1e-8 over 1 at most."""
    w, error = whitened(np.array([[1.0], [1e-8]]), np.array([[1.0], [0.0]]))
    assert w == pytest.approx(np.ones((1, 1)))
    assert error == pytest.approx(np.full(1, 1e-8))


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path, record=np.ones((1, 1)), inclusion=np.zeros(1))
    assert mus(file) == [(1.0, 1.0)]
    other = written(tmp_path, record=np.full((1, 1), 2.0), inclusion=np.zeros(1))
    file.write_bytes(other.read_bytes())
    with pytest.raises(ValueError, match="not what its name says"):
        mus(file)


def seen(folder: Path | None, *counts: tuple[float, int], by_algebra: bool = True) -> list[str]:
    """What is said of a view of three numbers with mu 1, 1/2 and nothing, beside releases."""
    name = None
    if folder is not None:
        (folder / "artifacts").mkdir(exist_ok=True)
        record, noise = np.diag([1.0, 1.0, 0.0]), np.diag([1.0, 2.0, 1.0])
        name = f"artifacts/{written(folder / 'artifacts', record=record, noise=noise, inclusion=np.arange(3)).name}"
    releases = [of.RELEASE | {"noise_multiplier": s, "count": n} for s, n in counts]
    artifacts = {} if name is None else {"linear view": name}
    one = of.finding("exact-leak", releases={"least": releases}, artifacts=artifacts)
    evidence = of.evidence(one, by_algebra=by_algebra)._replace(folder=folder)
    return list(figures._seen(one, evidence))


def test_releases_of_a_view_are_what_its_matrices_give(tmp_path: Path) -> None:
    assert seen(tmp_path, (2.0, 1), (1.0, 1)) == []
    other = ["its releases are not what the matrices of the view give"]
    for releases in ([(2.0, 1)], [(2.0, 2)], [(2.0, 1), (1.0, 2)], [(2.0, 1), (1.01, 1)], [(0, 2)]):
        assert seen(tmp_path, *releases) == other
    assert seen(tmp_path, (1.0, 10**9)) == other
    assert seen(None, (1.0, 1)) == ["missing: the matrices of the view"]
    assert seen(None, (1.0, 1), by_algebra=False) == []
