"""Which agents and coordinates are chosen and weighed, and what a step is asked, by hand."""

from dataclasses import dataclass, replace
from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dpaudit.defense.contract import Round, Setting
from dpaudit.defense.transcript import broadcast
from dpaudit.errors import ConfigError, DpauditError
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering import adversary
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.probing import linearity, replayability, sparse_probe
from dpaudit.game.probing.observer import Observer
from dpaudit.game.runs import play
from dpaudit.game.step_inputs import CanaryGradient, ChosenNoise, WrappedGradient
from dpaudit.game.worst_case import layers, record
from dpaudit.graphs.graph import build_graph
from dpaudit.rng import Streams
from tests.game.test_adversary import EAVESDROPPER, State
from tests.game.test_values_of_laws import Toy, toy


def test_agents_are_compared_in_rounds_that_are_played(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two of a run; of one that has a single round, that one."""
    asked: list[Any] = []

    def adversary(game: Any, threat_model: Any, n_rounds: int) -> Any:
        asked.append((n_rounds, game.sampling_rate))

    def by_agent(adversary: Any, victims: list[int], rounds: Any) -> Any:
        asked.append((victims, rounds.tolist()))
        return SimpleNamespace(H=[torch.eye(1).double()] * len(victims), noiseless={2: "x"})

    monkeypatch.setattr(record, "Adversary", adversary)
    monkeypatch.setattr(record, "leak_by_agent", by_agent)
    for n_rounds, rounds in ((1, [1]), (2, [1, 2]), (6, [1, 2])):
        asked.clear()
        game = replace(toy(4, n_rounds=n_rounds), sampling_rate=0.25)
        chosen = record.of_worst_agent(game, EAVESDROPPER, 1e-5, "add-remove")
        assert chosen.victim == 2  # which shows its record without noise
        assert asked == [(len(rounds), 1.0), ([1, 0, 2, 3], rounds)]
    asked.clear()
    alone = replace(toy(4), held=2)
    assert record.of_worst_agent(alone, EAVESDROPPER, 1e-5, "add-remove") is alone
    only, others = toy(3), ThreatModel(name="others", kind="colluding", agents=(0, 2))
    assert record.of_worst_agent(only, others, 1e-5, "add-remove") is only
    monkeypatch.setattr(record, "SPARSE_FROM", 4)
    many = toy(4)
    assert record.of_worst_agent(many, EAVESDROPPER, 1e-5, "add-remove") is many
    assert asked == []


def test_the_agent_that_leaks_most_must_exceed_its_declaration(monkeypatch) -> None:
    """An adversary of all links sees all; one of some may see more later than in the first rounds."""
    links = ThreatModel(name="links", links=((1, 0), (2, 1), (3, 2)))
    leaks = {1: 1.0, 0: 1.5, 2: 3.0, 3: 2.0}

    def by_agent(adversary: Any, victims: list[int], rounds: Any) -> Any:
        H = torch.stack([torch.eye(2).double() * leaks[v] for v in victims])
        return SimpleNamespace(H=H, noiseless={})

    monkeypatch.setattr(record, "Adversary", lambda *_: None)
    monkeypatch.setattr(record, "leak_by_agent", by_agent)
    monkeypatch.setattr(record, "_leaked", lambda game, H: float(H[0, 0]))
    monkeypatch.setattr(record, "_epsilon", lambda leak, *_: SimpleNamespace(low=leak))
    monkeypatch.setattr(record, "_of_whole_run", lambda game, *_: game)
    for declared, all_links, some in ((0.0, 2, 2), (2.99, 2, 2), (3.0, 2, 1), (9.0, 2, 1)):
        monkeypatch.setattr(record, "_declared", lambda *_, d=declared: d)
        for model, victim in ((EAVESDROPPER, all_links), (links, some)):
            assert record.of_worst_agent(toy(4), model, 1e-5, "add-remove").victim == victim
    leaks[1] = 0.0
    assert record.of_worst_agent(toy(4), EAVESDROPPER, 1e-5, "add-remove").victim == 1
    leaks[1] = 1.0
    noise = {1: 1, 0: 1, 2: 2, 3: 1}
    monkeypatch.setattr(record, "_noise", lambda game, model: noise[game.victim])
    assert record.of_worst_agent(toy(4), EAVESDROPPER, 1e-5, "add-remove").victim == 3


@pytest.mark.parametrize(
    ("X", "payload", "defined"),
    [(0.0, 0.0, True), (float("nan"), 0.0, False), (0.0, float("nan"), False), (inf, inf, False)],
)
def test_a_step_is_defined_where_all_are_numbers(X: float, payload: float, defined: bool) -> None:
    class Odd(Toy):
        def step(self, state: Any, k: int, graph: Any, gradient: Any, noise: Any) -> Round:
            return Round(State(state.X + X), {"y": broadcast(graph, state.X + payload)})

    game = linearity.wide(replace(toy(3), defense=Odd()))
    assert linearity._is_defined(game, 1) is defined


@pytest.mark.parametrize(("d", "narrowed"), [(2, 2), (5, 5), (9, 9)])
def test_a_step_is_narrowed_to_what_it_needs(d: int, narrowed: int) -> None:
    class Several(Toy):
        def step(self, state: Any, k: int, graph: Any, gradient: Any, noise: Any) -> Round:
            if state.X.shape[-1] != d:
                raise ValueError("of another width")
            return super().step(state, k, graph, gradient, noise)

    setting = Setting(build_graph("ring", 3), (40,) * 3, d)
    assert replayability._narrowed(Toy(), setting).d == replayability.COORDINATES
    assert replayability._narrowed(Several(), setting).d == narrowed
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replayability, "PLAYED", 4)
        assert replayability._narrowed(Several(), setting).d == narrowed
        patch.setattr(replayability, "ENTRIES", 3 * d - 1)
        few = replayability._narrowed(Several(), setting)
        assert few.d == replayability.COORDINATES


def test_a_row_that_is_no_number_is_not_weighed() -> None:
    """The record overflows in what agent 0 sends, and noise in what agent 1 sends."""

    class Odd(Toy):
        def step(self, state: Any, k: int, graph: Any, gradient: Any, noise: Any) -> Round:
            G, Z = gradient(state.X), noise.gaussian("y", 1.0, state.X)
            Y = state.X + G + Z
            bad = torch.zeros_like(Y)
            for row, of in enumerate((G, Z)):
                there = (of != 0).flatten(-2).any(-1, keepdim=True)
                bad[..., row, :] = torch.where(there, inf, 0.0)
            return Round(State(Y), {"y": broadcast(graph, Y + bad)})

    plain = layers._shown(toy(3), EAVESDROPPER, 1)
    assert {row for _, row in plain} == {0, 1, 2}
    assert {row for _, row in layers._shown(replace(toy(3), defense=Odd()), EAVESDROPPER, 1)} == {2}
    unit = toy(3).length / 8
    assert plain["y", 1] == (pytest.approx(unit), True)
    laplace = layers._shown(toy(3, family="laplace"), EAVESDROPPER, 1)
    assert laplace["y", 1][1] is False


def test_noise_on_all_coordinates_has_signs_and_sizes() -> None:
    asked = ChosenNoise()
    asked.gaussian("a", 1.0, torch.zeros(1, 2, 40))
    asked.gaussian("b", 1.0, torch.zeros(1, 2, 40))
    alike, signed, turned = (
        layers._everywhere(asked, t, s) for t, s in ((0, False), (0, True), (1, False))
    )
    for units in (alike, signed, turned):
        sizes = units["a"][0].abs()
        assert bool((sizes == sizes[:, :1]).all())
        assert bool(((sizes >= 0.5) & (sizes <= 1.5)).all())
        assert sizes[0, 0] != sizes[1, 0]
    assert torch.equal(alike["a"], alike["b"])
    assert bool((alike["a"] > 0).all())
    assert torch.equal(turned["b"], -alike["b"])
    signs = signed["a"][0].sign()
    assert {*signs.flatten().tolist()} == {-1.0, 1.0}
    assert torch.equal(signs[0], signs[1])
    assert torch.equal(signed["a"].abs(), alike["a"])


def test_questions_are_noted_with_their_norm() -> None:
    """0 of what is not clipped; a clip is in L2 unless it is said otherwise."""
    asked: list[Any] = []

    @dataclass(eq=False)
    class Noted(WrappedGradient):
        def note(self, X: Any, holders: Any, norm: int) -> None:
            asked.append((tuple(X.shape), norm))

        def changed(self, gradients: torch.Tensor) -> torch.Tensor:
            return gradients + 1

    canary = CanaryGradient(1, 6.0, torch.tensor([2.0]), batch_size=5, spread=4)
    noted, X = Noted(canary), torch.zeros(1, 2, 4)
    assert torch.equal(noted(X), canary(X) + 1)
    assert torch.equal(noted.clipped_sum(X, 2.0), canary.clipped_sum(X, 2.0, norm=2) + 1)
    assert torch.equal(noted.clipped_sum(X, 2.0, norm=1), canary.clipped_sum(X, 2.0, norm=1) + 1)
    own = torch.zeros(1, 2, 3, 4)
    assert torch.equal(noted.per_record(own, own=True), canary.per_record(own, own=True) + 1)
    assert torch.equal(noted.per_record(X), canary.per_record(X) + 1)
    assert asked == [((1, 2, 4), n) for n in (0, 2, 1, 0, 0)]
    assert noted.batch_size == 5


def test_the_largest_number_of_a_sparse_step_has_either_sign() -> None:
    class Shifted(Toy):
        """What is sent has an offset."""

        offset: float = 0.0

        def step(self, state: Any, k: int, graph: Any, gradient: Any, noise: Any) -> Round:
            played = super().step(state, k, graph, gradient, noise)
            y = played.sent["y"]
            return played._replace(sent={"y": replace(y, payload=y.payload + self.offset)})

    for offset in (-7.0, 0.0, 5.0):
        game = replace(toy(8), defense=Shifted(offset=offset))
        [step] = sparse_probe.steps_of(Observer(game, EAVESDROPPER), 1)
        assert step.alone.largest == abs(offset)


def test_what_is_left_of_a_covariance_is_above_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a number whose size is 100, and of one whose size is 1; S says what was lost."""
    limits: list[float] = []

    def compressed(matrix: np.ndarray, least: float) -> np.ndarray:
        limits.append(least)
        return matrix

    monkeypatch.setattr(adversary.matrices, "compressed", compressed)
    C, left = np.array([[60.0, 1.0, 0.0], [80.0, 0.0, 0.0]]), np.array([[50.0, 0.5, 0.25]])
    steep = 10 * adversary.ROUNDING / adversary.LOST
    for S, least in (
        (np.array([1.0, 1.0]), max(adversary.ROUNDING, adversary.LOST)),
        (np.array([steep, 1.0]), 10 * adversary.ROUNDING),
        (np.zeros(0), max(adversary.ROUNDING, adversary.LOST)),
    ):
        found = adversary._unknown(C, left, S)
        assert found.tolist() == [pytest.approx([50.0, 0.5, 0.25])]
        assert limits[-1] == pytest.approx(least)


def test_runs_that_give_no_number_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them is enough."""
    scores = np.zeros(20)
    monkeypatch.setattr(play._RatiosOfRuns, "scores", lambda self, in_round: scores)
    own = Adversary(toy(3, n_rounds=1), EAVESDROPPER, 1)
    assert play.play(own, 10, Streams(1)).without.scores.tolist() == [0.0] * 10
    scores[13] = float("nan")
    with pytest.raises(DpauditError, match='1 of 20 runs played against "eavesdropper" have NaN'):
        play.play(own, 10, Streams(1))


def test_leaks_of_agents_are_of_the_rounds_of_their_uses() -> None:
    """Noise of the deviation 1, and from the second round on what is kept of w beside it."""
    game = replace(toy(4, n_rounds=3), sampling_rate=1.0)
    own, unit = Adversary(game, EAVESDROPPER, 3), game.length / 8
    for rounds in ([1, 2, 3], [3, 1]):
        found = adversary.leak_by_agent(own, [0, 2], torch.tensor(rounds))
        assert (len(found.H), found.noiseless) == (2, {})
        expected = [unit**2 / (1.0 if k == 1 else 1.25) for k in rounds]
        for H in found.H:
            assert H.tolist() == [
                pytest.approx([e if i == j else 0.0 for j in range(len(rounds))], abs=1e-3)
                for i, e in enumerate(expected)
            ]


@pytest.mark.parametrize(("below", "refused"), [(True, True), (False, False)])
def test_messages_of_opposite_gradients_are_the_same(below: bool, refused: bool) -> None:
    class Odd(Toy):
        """Of a sum of gradients below 0, or of one that is no number, it sends something else."""

        def step(self, state: Any, k: int, graph: Any, gradient: Any, noise: Any) -> Round:
            played = super().step(state, k, graph, gradient, noise)
            total = gradient(state.X).sum()
            other = bool(total < 0) if below else bool(total.isnan())
            return played._replace(sent={"z" if other else "y": played.sent["y"]})

    if not refused:
        assert replayability.refuse_unless_replayable(Odd(), toy(3).setting) > 0
        return
    with pytest.raises(ConfigError):
        replayability.refuse_unless_replayable(Odd(), toy(3).setting)


def test_a_held_record_is_played_on_no_other_coordinates(monkeypatch) -> None:
    played: list[int] = []

    def shown(game: Any, threat_model: Any, d: int) -> dict[Any, Any]:
        played.append(d)
        return {("y", 0): (1.0 if d == 1 else 2.0, False)}

    monkeypatch.setattr(layers, "_shown", shown)
    game = replace(toy(3), coordinates=50)
    found = layers._by_mixing(game, EAVESDROPPER)
    assert found is not None
    assert played == [1, layers.COORDINATES]
    assert (found.message, found.times, found.d, found.release) == (
        "y",
        2.0,
        layers.COORDINATES,
        None,
    )
    for other in (replace(game, held=3), replace(game, coordinates=1)):
        played.clear()
        assert layers._by_mixing(other, EAVESDROPPER) is None
        assert played == []
