"""What is measured of a defense of three agents, and made of it, number by number."""

from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

from dpaudit.files.threat import ThreatModel
from dpaudit.game.estimating import window
from dpaudit.game.estimating.window import GradientInput, ProbedWindow, System, noise_of
from dpaudit.game.filtering.adversary import Adversary, KalmanFilter, Reaction
from dpaudit.game.probing.observer import Observer
from dpaudit.game.probing.probed_round import DenseProbes, ProbedRound
from dpaudit.game.probing.sparse_probe import SparseProbes
from dpaudit.game.step_inputs import ChosenNoise, flat_state
from tests.game.test_adversary import EAVESDROPPER, curious
from tests.game.three_agents import BEGIN, ONE, ROOT2, trio, weights

W = weights()
ID, NO = np.eye(3), np.zeros((3, 3))
READ = [("y", 0), ("y", 1), ("v", 0), ("v", 1), ("own noise of z", 0), ("own noise of l", 0)]
STATE_SEEN = np.block(
    [[2 * ID[:, :2], np.zeros((3, 4))], [np.zeros((3, 2)), ID[:, :2], np.zeros((3, 2))]]
)
STATE_KEPT = np.block([[2 * W.T, NO], [NO, NO]])
STATE_MODELS = np.block([[ID, 14 * ID], [NO, NO]])
NOISE_SEEN = np.array(
    [
        [3, 0, 0, 0, 1, 0], [0, 3, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0],
        [0, 0, ROOT2, 0, 0, 1], [0, 0, 0, ROOT2, 0, 0], [0, 0, 0, 0, 0, 0],
    ]
)  # fmt: skip
NOISE_KEPT = np.block([[3 * W.T, NO], [NO, NO]])
NOISE_MODELS = np.block([[NO, 21 * ID], [NO, NO]])


def dense(game: Any = None, view: ThreatModel | None = None, n_rounds: int = 2) -> DenseProbes:
    return DenseProbes(Observer(game or trio(), view or curious(0)), n_rounds)


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-9, atol=1e-9)


def refuse_others(out: ProbedRound, factor: np.ndarray, old: np.ndarray) -> None:
    """All matrices of a round before which the state is unknown by a factor, [*, 6] both."""
    assert out.messages == READ
    assert (out.n_states, out.steps, out.askers) == (len(factor), [0, 0], [0, 1, 2] * 2)
    assert out.laplace.tolist() == [False] * 3 + [True] * 3
    close(out.noise.seen, np.concatenate([factor @ STATE_SEEN, NOISE_SEEN]))
    close(out.noise.state, np.concatenate([factor @ STATE_KEPT, NOISE_KEPT]))
    close(out.noise.models, np.concatenate([factor @ STATE_MODELS, NOISE_MODELS]))
    close(out.earlier.seen, old @ STATE_SEEN)
    close(out.earlier.state, old @ STATE_KEPT)
    close(out.earlier.models, old @ STATE_MODELS)
    close(out.record.seen, ONE * np.array([[0, 1, 0, 0, 0, 0], [0] * 6]))
    close(out.record.state, ONE * np.array([[*W[:, 1], 0, 5, 0], [0, 1, 0, 0, 0, 0]]))
    close(out.record.models, ONE * np.array([[0, 0, 0, 0, 7, 0], [0] * 6]))
    assert out.scale == pytest.approx(5 * ONE)  # of what is sent and kept, not of models


def test_dense_probes_find_the_matrices_of_three_agents() -> None:
    probes, rng = dense(), np.random.default_rng(0)
    first = probes.round(1, probes.nothing, probes.nothing)
    refuse_others(first, probes.nothing, probes.nothing)
    assert probes.nothing.shape == (0, 6)
    assert (first.round, first.largest) == (1, 8.0)  # agent 1 sends 2 * -4
    answers = probes.answers(1)
    assert answers.shows.tolist() == [True] * 6  # later rounds show what the state keeps
    assert answers.before.tolist() == [False, False, True, True, True, True]
    for n_old in (2, 6, 7):  # more than the six numbers of the state are moved by its basis
        probes = dense()
        probes.round(1, probes.nothing, probes.nothing)
        factor, old = rng.standard_normal((4, 6)), rng.standard_normal((n_old, 6))
        second = probes.round(2, factor, old)
        refuse_others(second, factor, old)
        assert second.round == 2
        assert second.largest == pytest.approx(np.abs(2 * W @ (2 * np.array(BEGIN)))[:2].max())
    answers = probes.answers(2)
    assert answers.shows.tolist() == [True, True, False, False, False, False]
    assert answers.before.tolist() == [False, False, True, True, True, True]


def test_a_round_of_which_nothing_is_read_has_no_largest_number() -> None:
    """It reads a link that is not there."""
    probes = dense(view=ThreatModel(name="links", links=((2, 0),)), n_rounds=1)
    out = probes.round(1, probes.nothing, probes.nothing)
    assert (out.messages, out.largest, out.scale) == ([], 0.0, pytest.approx(5 * ONE))


@pytest.mark.parametrize("n_agents", [3, 7])
def test_sparse_probes_find_what_dense_ones_do(n_agents: int) -> None:
    """Of the state all but what no later round shows: agent 0 reads those of agents 0 and 1.

    What no noise and no record can have moved is not moved: M of others than agent 1.
    """
    game, width = trio(n_agents, n_rounds=3), 2 * n_agents
    one, other = dense(game, n_rounds=3), SparseProbes(Observer(game, curious(0)), 3)
    live = np.append(np.ones(n_agents), np.arange(n_agents) == 1)
    rng, nothing = np.random.default_rng(1), one.nothing
    assert other.nothing.shape == (0, width)
    for k, reach in ((1, 3), (2, 2), (3, 0)):  # agents whose X shows later
        factor, old = (rng.standard_normal((m, width)) * live for m in (3, 2))
        if k == 1:
            factor = old = nothing
        dense_one = one.round(k, factor, old)
        found = other.round(k, sparse.csr_array(factor), old)
        for name in ("round", "messages", "n_states", "steps", "askers"):
            assert getattr(found, name) == getattr(dense_one, name), name
        assert found.scale == pytest.approx(dense_one.scale)
        assert torch.equal(found.laplace, dense_one.laplace)
        shown = np.arange(n_agents) < np.array([[reach], [min(reach, 2)]])
        for kind in ("noise", "record", "earlier"):
            parts = getattr(dense_one, kind)._replace(
                state=getattr(dense_one, kind).state * shown.ravel()
            )
            for x, y in zip(getattr(found, kind), parts, strict=True):
                close(x.toarray() if sparse.issparse(x) else x, y)
        models = one._before.X.abs().max()  # Y of them is sent, read or not
        assert found.largest == pytest.approx(float(2 * models))
        answers = other.answers(k)
        of_g, of_h = (np.arange(n_agents) < n for n in ((4, 3, 2)[k - 1], reach))
        assert answers.shows.tolist() == [*of_g, *of_h]
        assert answers.before.tolist() == [False, False, True, True, True, True]
        assert one.answers(k).before.tolist() == answers.before.tolist()


def test_the_leak_of_three_agents_is_that_of_their_matrices() -> None:
    """Round 1 shows y by 1/3 of its noise; round 2 shows M, and X with noise of agent 2 in it."""
    hidden = sqrt(9 + (2 * 3 * W[1, 2]) ** 2)
    later = ONE**2 * (25 / 2 + 4 / hidden**2)
    adversary = Adversary(trio(), curious(0), 2)
    first, second = adversary.rounds
    assert adversary.observed == 6
    assert adversary.reacts == Reaction(1, 1)
    H = adversary.leak.by_use
    assert [h.low for h in H] == pytest.approx([ONE**2 / 9 + later, (ONE / hidden) ** 2])
    assert H[1].high == pytest.approx(H[1].low)
    assert not adversary.leak.separate
    uses = {(1, 1, 0): [ONE / 3, 0.0], (1, 1, 1): [0.0, 0.0]}
    for use, of_round in uses.items():
        assert float(first.columns[use].norm()) == pytest.approx(of_round[0])
    G = torch.stack([second.columns[u] for u in ((1, 1, 0), (1, 1, 1), (2, 2, 0), (2, 2, 1))])
    shared = (ONE / hidden) ** 2
    expected = np.zeros((4, 4))
    expected[0, 0] = ONE**2 * 25 / 2
    expected[1, 1], expected[2, 2], expected[1, 2] = 4 * shared, shared, 2 * shared
    expected[2, 1] = expected[1, 2]
    close(G @ G.mT, expected)
    assert (first.exact, second.exact) == (False, False)
    assert (first.noiseless, second.noiseless) == ({}, {})


def test_a_filter_believes_what_three_agents_sent() -> None:
    """Of noise 1, 2, 3 and 4, 5, 6 in round 1, and with a record, it does not see that of agent 2."""
    game = trio()
    adversary = Adversary(game, curious(0), 2)
    state: Any = game.start(2)
    kalman = KalmanFilter(adversary, state)
    noise = {"z": [1.0, 2.0, 3.0], "l": [4.0, 5.0, 6.0]}
    units = {m: torch.tensor(z).double().view(1, 3, 1).expand(2, 3, 1) for m, z in noise.items()}
    gradient = game.gradient(torch.tensor([0.0, 1.0]).double())
    state, sent, *_ = game.step(state, 1, gradient, ChosenNoise(units))
    innovation = kalman.update(1, sent, units)
    raw = np.array([[3, 6, 4 * ROOT2, 5 * ROOT2, 1, 4]] * 2)
    raw[1, 1] += ONE
    close(innovation.raw, raw)
    assert innovation.whitened.shape == (2, 4)  # of four draws, two of which are known twice
    close(innovation.whitened.norm(dim=1) ** 2, [1 + 4 + 16 + 25, 1 + (2 + ONE / 3) ** 2 + 16 + 25])
    Y = np.array([[2 + 3, -8 + 6, 4]] * 2, dtype=float)
    Y[1, 1] += ONE
    close(kalman.believed, np.concatenate([Y @ W.T, np.zeros((2, 3))], axis=1))
    flat = flat_state(state).numpy()
    close(flat[0, :3] - kalman.believed[0, :3].numpy(), 9 * W[:, 2])
    like, believed = kalman.progress()
    again = KalmanFilter(adversary, game.start(2))
    again.resume(like, believed)
    assert torch.equal(again.believed, kalman.believed)


def probed(view: ThreatModel = EAVESDROPPER, rounds: range = range(1, 3)) -> ProbedWindow:
    game = trio()
    return ProbedWindow(game.defense, game.setting, view, rounds, 1.0)


def test_a_window_of_three_agents_has_their_matrices() -> None:
    """Unknowns: X, M and the gradients g, h of each round; noise: z and l of each round."""
    played = probed(curious(0))
    system = System.of(played)
    X, M, g, h, g2, _ = (np.eye(18)[3 * i : 3 * i + 3] for i in range(6))
    z, w, z2, w2 = (np.eye(12)[3 * i : 3 * i + 3] for i in range(4))
    Y, of_Y = 2 * X + g, 3 * z
    X2, of_X2 = W @ Y + h, W @ of_Y
    Y2, of_Y2 = 2 * X2 + g2, 2 * of_X2 + 3 * z2
    assert system.observed == [(k, m, i) for k in (1, 2) for m in "yv" for i in (0, 1)]
    seen = [Y, M, Y2, 5 * g]
    close(system.unknowns, np.concatenate([part[:2] for part in seen]))
    of_noise = [of_Y, ROOT2 * w, of_Y2, ROOT2 * w2]
    close(system.noise, np.concatenate([part[:2] for part in of_noise]))
    close(noise_of(played), system.noise)
    close(system.models, np.concatenate([X, 7 * Y, X2, 7 * Y2]))
    close(system.model_noise, np.concatenate([0 * z, 7 * of_Y, of_X2, 7 * of_Y2]))
    assert system.inputs == [
        GradientInput(k, agent, point) for k in (1, 2) for point in (0, 1) for agent in range(3)
    ]


def test_a_later_window_begins_where_a_run_has_come_to() -> None:
    first, later = System.of(probed()), System.of(probed(rounds=range(3, 5)))
    assert [one.round for one in later.inputs] == [3] * 6 + [4] * 6
    for name in ("unknowns", "noise", "models", "model_noise"):
        close(getattr(later, name), getattr(first, name))


def test_unknowns_of_a_window_are_of_kinds_and_agents() -> None:
    """X and M, both gradients of a round together, and draws; what is read, and models."""
    played = probed(curious(0))
    units, kinds = window._units(played, np.arange(30))
    assert units.agents.tolist() == [0, 1, 2] * 10
    assert units.live.tolist() == list(range(30))
    kind_of = [0, 1, 2, 2, 3, 3, 4, 5, 6, 7]
    assert kinds.tolist() == [kind for kind in kind_of for _ in range(3)]
    assert window._places(played).tolist() == [0, 1] * 4 + [0, 1, 2] * 4
    assert played.shape == (6, 12, 12, 8)
    moved = window._moved(played, [np.array([0]), np.array([0, 12])])
    close(
        moved[0],
        System.of(played).unknowns[:, 0].tolist() + System.of(played).models[:, 0].tolist(),
    )


def test_a_window_of_many_agents_moves_those_of_one_colour() -> None:
    game = trio(40)
    played = ProbedWindow(game.defense, game.setting, curious(3), range(1, 2), 1.0)
    some = np.arange(played.shape.unknowns)
    found = window._of_colours(played, some)
    alone = torch.cat([played.moved(row[None]) for row in torch.eye(len(some)).double()[::7]])
    close(found[::7], alone)
