"""Eigenvalues of many agents' mixing matrices, against closed forms and dense algebra."""

import numpy as np
import pytest
import scipy.sparse as sparse

from dpaudit.files.options import graph_options
from dpaudit.graphs import spectrum
from dpaudit.graphs.graph import build_graph
from dpaudit.graphs.mixing import Matrix, metropolis
from dpaudit.graphs.spectrum import second_largest, smallest


def matrix(name: str, n: int, **options: object) -> Matrix:
    return build_graph(graph_options(name, **options), n, np.random.default_rng(3)).at(1).sparse


def test_the_spectrum_of_large_rings_and_paths_is_closed_form() -> None:
    n = 10_000
    ring = (1 + 2 * np.cos(2 * np.pi * np.arange(n) / n)) / 3
    assert second_largest(matrix("ring", n), True) == pytest.approx(ring[1], abs=1e-13)
    assert smallest(matrix("ring", n)) == pytest.approx(ring.min(), abs=1e-13)
    path = 1 - 2 / 3 * (1 - np.cos(np.pi * np.arange(n) / n))  # I - L / 3, L the path's Laplacian
    assert second_largest(matrix("path", n), True) == pytest.approx(path[1], abs=1e-13)
    assert smallest(matrix("path", n)) == pytest.approx(path.min(), abs=1e-13)


@pytest.mark.parametrize(
    ("name", "symmetric", "options"),
    [
        ("ring", True, {}),
        ("path", True, {}),
        ("star", True, {}),
        ("k-regular", True, {"k": 4}),
        ("erdos-renyi", True, {"p": 0.1}),
        ("uniform-out", False, {"p": 0.2}),
        ("exponential", False, {}),
        ("d-out", False, {"d": 4}),
    ],
)
def test_many_agents_have_what_dense_algebra_finds(
    monkeypatch: pytest.MonkeyPatch, name: str, symmetric: bool, options: dict[str, object]
) -> None:
    W = matrix(name, 90, **options)
    dense = second_largest(W, symmetric), smallest(W) if symmetric else None
    monkeypatch.setattr(spectrum, "DENSE", 0)
    assert second_largest(W, symmetric) == pytest.approx(dense[0], abs=1e-7)
    if symmetric:
        assert smallest(W) == pytest.approx(dense[1], abs=1e-7)


def test_a_slowly_mixing_graph_has_the_gap_of_its_powers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two cliques with one link between them, and so a gap that is next to nothing."""
    block = np.ones((40, 40), dtype=bool)
    links = np.block([[block, np.zeros_like(block)], [np.zeros_like(block), block]])
    links[39, 40] = links[40, 39] = True
    W = metropolis(sparse.csr_array(links))
    true = np.sort(np.abs(np.linalg.eigvalsh(W.toarray())))[-2]
    monkeypatch.setattr(spectrum, "DENSE", 0)

    def endless(*args: object, **options: object) -> None:
        raise spectrum.ArpackNoConvergence("%s", np.zeros(0), np.zeros(0))

    monkeypatch.setattr(spectrum, "eigsh", endless)
    assert second_largest(W, True) == pytest.approx(true, abs=1e-6)
    assert second_largest(W, True) <= true + 1e-12


def test_an_eigenvalue_beyond_lanczos_is_that_of_powers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    W = matrix("k-regular", 90, k=4)
    true = smallest(W)
    monkeypatch.setattr(spectrum, "DENSE", 0)

    def endless(*args: object, **options: object) -> None:
        raise spectrum.ArpackNoConvergence("%s", np.zeros(0), np.zeros(0))

    monkeypatch.setattr(spectrum, "eigsh", endless)
    assert true - 1e-12 <= smallest(W) <= true + 1e-4
