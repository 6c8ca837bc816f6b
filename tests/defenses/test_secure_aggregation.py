"""Secure aggregation: the sum is right, and every view reveals what matrices by hand say."""

from itertools import combinations

import numpy as np
import pytest
import torch

from dpaudit.defense.contract import Setting
from dpaudit.defense.noise import Noise
from dpaudit.defenses.secure_aggregation import SecureAggregation
from dpaudit.errors import ConfigError
from dpaudit.files.options import graph_options
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.game import Game
from dpaudit.graphs.graph import build_graph
from dpaudit.rng import Streams

N, VICTIM, SIGMA, MASK = 6, 2, 0.8, 1000.0  # agents with the server, which is agent 0
HOLDERS = range(1, N)
SERVER = ThreatModel(name="server", kind="curious", agents=(0,))
PAIR = ThreatModel(name="server and agent 4", kind="colluding", agents=(0, 4))
AGENT = ThreatModel(name="agent 4", kind="curious", agents=(4,))
EVERY_LINK = ThreatModel(name="every link")


def setting_of(participation: float = 1.0, n_rounds: int = 3, seed: int = 0) -> Setting:
    options = graph_options("server", participation=participation)
    network = build_graph(options, N, np.random.default_rng(seed), n_rounds)
    return Setting(network, (0, *(20,) * (N - 1)), 2)


def defense(**options: object) -> SecureAggregation:
    common = {"n_rounds": 3, "noise_multiplier": SIGMA, "batch_size": 4, "sampling": "poisson"}
    return SecureAggregation(**common | options)


def mu_of(
    defense: SecureAggregation, setting: Setting, view: ThreatModel, victim: int = VICTIM
) -> list[float]:
    game = Game.of(defense, setting, victim, "add-remove", "poisson")
    leak = Adversary(game, view, defense.n_rounds).leak
    assert not leak.noiseless
    return leak.by_round.tolist()


def by_hand(
    defense: SecureAggregation, setting: Setting, own: tuple[int, ...], victim: int = VICTIM
) -> list[float]:
    """mu of each round to an adversary with the server, from the covariance of all it reads.

    Draws of a round: z_i, b_i, and one for each pair of agents. Messages of rounds are independent
    where masks are fresh; where they are reused, b and pairs have the columns of round 1.
    """
    T, t = defense.n_rounds, defense.threshold_of(N - 1)
    pairs = list(combinations(HOLDERS, 2))
    width = N + N + len(pairs)
    rows, uses = [], []
    for k in range(1, T + 1):
        graph = setting.network.at(k)
        U = defense.in_time(graph, k)
        masks = 0 if defense.masks == "reused" else k - 1

        def column(kind: str, of: object, k: int = k, masks: int = masks) -> np.ndarray:
            row = np.zeros((T, width))
            if kind == "z":
                row[k - 1, of] = SIGMA / t**0.5
            elif kind == "b":
                row[masks, N + of] = MASK
            else:
                row[masks, 2 * N + pairs.index(of)] = MASK
            return row

        def P(i: int, j: int, column=column) -> np.ndarray:
            return column("p", (i, j)) if i < j else -column("p", (j, i))

        read = []
        for i in graph.active:
            y = column("z", i) + column("b", i) + sum(P(i, j) for j in HOLDERS if j != i)
            read.append((y, float(i == victim)))
        if defense.is_recovered(len(U), N - 1):
            others = [i for i in HOLDERS if i not in U]
            late = [i for i in others if i in graph.active]
            both = late if defense.recovery == "both-masks" else []
            read += [(column("b", i), 0.0) for i in [*U, *both]]
            for i in others:
                read += [(P(i, j), 0.0) for j in U if j != U[0]]
                rest = sum(P(i, j) for j in [U[0], *others] if j != i)
                read.append((rest, 0.0))
        for row, use in read:
            for i in own:
                row[:, i] = row[:, N + i] = 0
                row[:, [2 * N + p for p, pair in enumerate(pairs) if i in pair]] = 0
            rows.append(row.ravel())
            uses.append([use if s == k else 0.0 for s in range(1, T + 1)])
    B, A = np.array(rows), np.array(uses)
    scale = np.linalg.norm(B, axis=1)
    known = scale < 1e-9  # of nothing but what the adversary's own agents know
    assert not np.abs(A[known]).any()
    B, A = B[~known], A[~known]
    U_, S, _ = np.linalg.svd(B, full_matrices=False)
    kept = 1e-9 * S.max() < S
    white = (U_[:, kept] / S[kept]).T @ A
    assert np.abs(A - U_[:, kept] @ (U_[:, kept].T @ A)).max() < 1e-6
    return np.sqrt((white**2).sum(0)).tolist()


CASES = [
    {},
    {"late": 1},
    {"late": 2, "threshold": 3},
    {"late": 1, "recovery": "both-masks"},
    {"masks": "reused"},
    {"late": 1, "masks": "reused"},
    {"threshold": 5, "late": 2},
    {"threshold": 5, "late": 2, "recovery": "no-threshold"},
]


@pytest.mark.parametrize("participation", [pytest.param(1.0, marks=pytest.mark.slow), 0.8])
@pytest.mark.parametrize("options", CASES, ids=lambda o: "-".join(map(str, o.values())) or "right")
@pytest.mark.parametrize("view", [SERVER, PAIR], ids=lambda view: view.kind)
def test_the_leak_is_that_of_the_covariance_by_hand(view, options, participation) -> None:
    setting, played = setting_of(participation), defense(**options)
    expected = by_hand(played, setting, view.agents)
    assert mu_of(played, setting, view) == pytest.approx(expected, rel=1e-5, abs=2e-5)


def test_the_server_learns_a_sum_and_nothing_of_who_was_late() -> None:
    setting = setting_of()
    summed = 3**0.5 / (SIGMA * 5**0.5)  # threshold 3 of 5: more in time, more noise
    assert mu_of(defense(), setting, SERVER) == pytest.approx([summed] * 3, rel=1e-5)
    late = mu_of(defense(late=1), setting, SERVER)  # agent 2 is late in round 2
    assert late[1] == pytest.approx(1 / MASK, rel=1e-2)
    wrong = mu_of(defense(late=1, recovery="both-masks"), setting, SERVER)
    assert wrong[1] == pytest.approx(3**0.5 / SIGMA, rel=1e-5)  # all but its own part of the noise
    assert wrong[0] == pytest.approx(late[0], rel=1e-5)


def test_reused_masks_show_differences() -> None:
    setting = setting_of()
    assert max(mu_of(defense(masks="reused"), setting, SERVER)) > 1.2 * max(
        mu_of(defense(), setting, SERVER)
    )
    few = {"threshold": 5, "late": 4}
    assert mu_of(defense(**few), setting, SERVER)[0] == pytest.approx(0.0, abs=2 / MASK)
    exposed = mu_of(defense(**few, recovery="no-threshold"), setting, SERVER)
    assert max(exposed) <= 2 / MASK or max(exposed) == pytest.approx(5**0.5 / SIGMA, rel=1e-4)
    alone = [defense(**few).in_time(setting.network.at(k), k) for k in (1, 2, 3)]
    victim = alone[0][0]
    shown = mu_of(defense(**few, recovery="no-threshold"), setting, SERVER, victim)
    assert shown[0] == pytest.approx(5**0.5 / SIGMA, rel=1e-4)


def test_who_reads_links_without_the_server_reads_masks() -> None:
    setting = setting_of()
    for view in (EVERY_LINK, AGENT):
        found = mu_of(defense(), setting, view)
        assert max(found) <= 3**0.5 / (SIGMA * 4**0.5) + 1e-5
        assert found[-1] <= 2 / MASK  # the last sum is sent to nobody


@pytest.mark.parametrize("late", [0, 1])
def test_masks_cancel_in_the_sum(late) -> None:
    setting = setting_of(0.8)
    played = defense(late=late, noise_multiplier=1e-6, mask=10.0, threshold=2)
    state = played.start(torch.zeros(1, N, 1, dtype=torch.float64), setting.stand_in(1))
    game = Game.of(played, setting, VICTIM, "add-remove", "poisson")
    for k in (1, 2, 3):
        graph, before = setting.network.at(k), state.X[0, 0]
        oracle = game.drawn_alike(1.0)
        state = played.step(state, k, graph, oracle, Noise(Streams(1), k)).state
        U = played.in_time(graph, k)
        moved = -0.05 * played.clip_norm / (4 * len(U)) * float(VICTIM in U)
        assert (state.X[0, 0] - before).item() == pytest.approx(moved, abs=1e-5)


def test_declared_ends_hold_the_leak_of_every_view() -> None:
    for options in CASES:
        setting, played = setting_of(0.8), defense(**options)
        for view in (SERVER, PAIR, EVERY_LINK):
            bracket = played.mechanism(setting, view, VICTIM)
            squares = [
                sum(r.count / r.noise_multiplier**2 for r in end)
                for end in (bracket.least, bracket.most)
            ]
            leak = sum(mu**2 for mu in mu_of(played, setting, view))
            assert squares[0] <= leak * (1 + 1e-5) + 1e-9
            assert leak <= squares[1] * (1 + 1e-5) + 1e-9


@pytest.mark.parametrize("wrong", [{"recovery": "both-masks"}, {"masks": "reused"}])
def test_a_wrong_form_leaks_more_than_the_right_one_declares(wrong) -> None:
    setting = setting_of()
    declared = defense(late=1).mechanism(setting, SERVER, VICTIM).most
    leak = sum(mu**2 for mu in mu_of(defense(late=1, **wrong), setting, SERVER))
    assert leak > 1.2 * sum(r.count / r.noise_multiplier**2 for r in declared)


def test_without_a_server_or_enough_agents_it_is_one_line() -> None:
    ring = Setting(build_graph("ring", 5), (20,) * 5, 2)
    with pytest.raises(ConfigError, match="secure aggregation needs a server"):
        defense().calibrate(ring)
    with pytest.raises(ConfigError, match=r"defense.threshold: 6 agents of 5"):
        defense(threshold=6).calibrate(setting_of())
