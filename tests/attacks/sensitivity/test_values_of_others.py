"""Which other agents' records are looked at, by hand."""

from math import inf, nan
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from dpaudit.attacks.sensitivity import other_agents
from dpaudit.attacks.sensitivity.other_agents import OtherAgents


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def broadcast(*rows: float) -> Any:
    """A message of three agents to all, agent 0 sending two rows."""
    return SimpleNamespace(
        payload=torch.tensor([[x, 0.0] for x in rows]), senders=torch.tensor([0, 0, 1, 2]),
        rows=torch.tensor([0, 1, 2, 3]),
    )  # fmt: skip


def test_the_largest_row_of_an_agent_is_its_move() -> None:
    coupled: Any = SimpleNamespace(setting=SimpleNamespace(n_agents=4))
    one, other = broadcast(1.0, 5.0, 2.0, nan), broadcast(0.0, 1.0, 2.5, 1.0)
    found = other_agents._by_sender(coupled, {"x": one}, {"x": other})  # type: ignore[dict-item]
    assert found["x"].tolist() == [4.0, 0.5, inf, 0.0]
    assert found["x"].dtype == torch.float64


@pytest.mark.parametrize(
    ("moves", "noises", "over", "chosen"),
    [
        # beside noise of 1: the median of those that move is 1
        ([1, 1, 1, 1, 2.1], [1, 1, 1, 1, 1], None, [4]),
        ([1, 1, 1, 1, 2.0], [1, 1, 1, 1, 1], None, [4]),
        ([1, 1, 3.0, 1, 2.1], [1, 1, 1, 1, 1], None, [2, 4]),
        ([1, 1, 3.0, 1, 3.0], [1, 1, 1, 1, 2], None, [2]),  # 3 / 2 beside louder noise
        ([0, 0, 0, 0, 0], [1, 1, 1, 1, 1], None, [0]),
        ([1, 9.0, 1, 1, 1], [1, 1, 1, 1, 1], None, [0]),  # the victim itself
        ([1, 1, 1, 1, 1], [1, 1, 0, 1, 1], None, [2]),  # without noise
        ([1, 1, 1, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 1 + 2e-6, 0], [3]),
        ([1, 1, 1, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0.4, 0], [0]),
    ],
)
def test_agents_that_move_most_are_looked_at(monkeypatch, moves, noises, over, chosen) -> None:
    """The first of them, and all that move twice as far as the median one, or too far."""
    clip_norm = None if over is None else 1.0
    coupled: Any = SimpleNamespace(
        victim=1, setting=SimpleNamespace(n_agents=5, holders=range(5)),
        defense=SimpleNamespace(clip_norm_in=lambda k: clip_norm),
    )  # fmt: skip
    here = SimpleNamespace(
        noisy=SimpleNamespace(sent="noisy"), quiet=SimpleNamespace(sent="quiet"), lag=0
    )
    there = SimpleNamespace(noisy=SimpleNamespace(sent="moved"))
    sizes = {("moved", "noisy"): moves, ("noisy", "quiet"): noises}
    monkeypatch.setattr(
        other_agents, "_by_sender", lambda coupled, one, other: {"x": vector(*sizes[one, other])}
    )
    monkeypatch.setattr(other_agents, "_over_stated", lambda *_: vector(*(over or [9.0] * 5)))
    worlds: Any = (here, there)
    assert other_agents._most_moved(coupled, 2, "add-remove", worlds) == chosen
    if over is not None and chosen == [3]:
        here.lag = 1  # bounds are of the round of the record
        assert other_agents._most_moved(coupled, 2, "add-remove", worlds) == [0]
        here.lag = 0
        monkeypatch.setattr(other_agents, "STATED_OF", 4)
        assert other_agents._most_moved(coupled, 2, "add-remove", worlds) == [0]
    sizes["moved", "noisy"], sizes["noisy", "quiet"] = [9.0, 1.0, 8.0, 1.0, 7.0], [1.0] * 5
    coupled.setting.holders, here.lag = (0, 1, 2, 3, 4, 3, 3, 3), 1  # of median 1
    monkeypatch.setattr(other_agents, "MOST", 2)
    assert other_agents._most_moved(coupled, 2, "add-remove", worlds) == [0, 2]


def test_moves_over_stated_bounds_are_in_l2(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = [{"x": (2, 4.0), "y": (2, 1.0)}, {"x": (1, 0.5)}, {"x": (2, 0.0)}, {"y": (2, 8.0)}]
    coupled: Any = SimpleNamespace(
        setting=SimpleNamespace(n_agents=5, holders=(0, 1, 2, 3)),
        defense=SimpleNamespace(sensitivity=lambda k, setting, change, agent, sent: bounds[agent]),
    )
    here: Any = SimpleNamespace(noisy=SimpleNamespace(sent={}))
    moves = {"x": vector(6.0, 6.0, 6.0, 6.0, 6.0), "y": vector(1.0, 1.0, 1.0, 2.0, 2.0)}
    found = other_agents._over_stated(coupled, 2, "add-remove", here, moves)
    assert found.tolist() == [1.5, 0.0, 0.0, 0.25, 0.0]


class Played(SimpleNamespace):
    def later(self) -> "Played":
        return Played(**{**vars(self), "lag": self.lag + 1})


@pytest.mark.parametrize(
    ("k", "clip_norm", "moves", "lag"),
    [(2, 0.5, True, 0), (2, None, True, 0), (2, 0.5, False, 1), (9, 0.5, False, 0)],
)
def test_a_long_gradient_is_added_at_all_agents(monkeypatch, k, clip_norm, moves, lag) -> None:
    """A hundred clip norms long, or 100; where no message moves yet, a round later."""
    coupled: Any = SimpleNamespace(defense=SimpleNamespace(n_rounds=9))
    coupled.setting = SimpleNamespace(d=5, holders=(0, 2))
    coupled.kept_batches, coupled.victim = lambda k: f"batches {k}", 1
    coupled.defense.clip_norm_in = lambda k: clip_norm
    monkeypatch.setattr(other_agents, "VacantPlace", lambda oracle, victim: (oracle, victim))
    monkeypatch.setattr(other_agents, "AtSeveralAgents", lambda *of: of)
    monkeypatch.setattr(
        other_agents, "PlayedWorld",
        lambda coupled, state, k, oracle: Played(
            state=state, k=k, oracle=oracle, lag=0, quiet=None, noisy=SimpleNamespace(sent=oracle)
        ),
    )  # fmt: skip
    monkeypatch.setattr(other_agents, "replace", lambda w, oracle: Played(
        **{**vars(w), "oracle": oracle, "noisy": SimpleNamespace(sent=oracle)}
    ))  # fmt: skip
    monkeypatch.setattr(other_agents, "_by_sender", lambda *_: {"x": vector(0.0, float(moves))})
    found: Any = other_agents._worlds(coupled, "state", k)
    assert [world.lag for world in found] == [lag, lag]
    here, there = found
    assert here.oracle == (f"batches {k}", 1)
    oracle, victim, gradient, agents = there.oracle
    assert (oracle, victim, agents) == (f"batches {k}", 1, (0, 2))
    assert float(gradient.norm()) == pytest.approx(100.0 * (clip_norm or 1.0))
    normal = torch.randn(5, generator=torch.Generator().manual_seed(0)).double()
    torch.testing.assert_close(gradient / gradient.norm(), normal / normal.norm())


@pytest.mark.parametrize(
    ("change", "k", "measured", "asked"),
    [
        ("add-remove", 2, [[1.0], []], [0]),
        ("add-remove", 2, [[0.0, 0.0], [3.0]], [0, 1]),
        ("add-remove", 9, [[0.0], []], [0]),
        ("replace-one", 2, [[0.0, 1.0], []], [0]),
    ],
)
def test_another_agent_s_longest_record_is_added(monkeypatch, change, k, measured, asked) -> None:
    lags: list[int] = []

    class Pair:
        def __init__(self, own: Any, state: Any, k: int, oracle: Any, change: str, *of: Any):
            assert (state, oracle, of) == ("state", f"batches {k}", (2, True))
            self.lag, self.present = 0, None

        def natural(self, unlike: Any = None) -> str:
            return "longest" if unlike is None else f"unlike {unlike}"

        def rows(self, found: Any) -> Any:
            replaced = change == "replace-one"
            assert found == {"natural": "unlike longest" if replaced else "longest"}
            assert self.present == ("longest" if replaced else None)
            lags.append(self.lag)
            return [SimpleNamespace(measured=x) for x in measured[self.lag]]

    monkeypatch.setattr(other_agents, "RoundPair", Pair)
    coupled = SimpleNamespace(
        kept_batches=lambda k: f"batches {k}", defense=SimpleNamespace(n_rounds=9)
    )
    own: Any = SimpleNamespace(coupled=coupled, asked=lambda *_: (2, True))
    rows = other_agents._added(own, "state", k, change)
    assert lags == asked
    assert [row.measured for row in rows] == measured[asked[-1]]


@pytest.mark.parametrize(
    ("moved", "k", "most", "expected"),
    [
        ({}, 3, [], []),
        ({(2, "gaussian"): 1.5, (0, "gaussian"): 1.0, (1, "gaussian"): 9.0}, 3, [], [2]),
        ("what is left", 3, [3], [3]),
        ("what is left", 3, [], [3]),  # the third of others in turn
        ("what is left", 4, [], [0]),
        (None, 1, [3], [3, 0, 2]),  # in the first round as many as may be
        (None, 9, [], [2, 3, 0]),  # beginning after those of 64 turns
        (None, 3, ValueError("no records"), [3]),
    ],
)
def test_agents_are_suspected_by_moves_or_looked_at_in_turn(
    monkeypatch, moved, k, most, expected
) -> None:
    """Agent 1 is the victim; of others there are three, of which one holds nothing."""
    coupled: Any = SimpleNamespace(defense=SimpleNamespace(n_rounds=9))
    coupled.victim, coupled.setting = 1, SimpleNamespace(holders=(0, 1, 2, 3))
    aligned = {} if moved is None else {("add-remove", k): moved}
    own: Any = OtherAgents(SimpleNamespace(coupled=coupled, aligned=aligned, unclear={}))  # type: ignore[arg-type]

    def worlds(*_: Any) -> Any:
        if isinstance(most, Exception):
            raise most
        return "worlds"

    monkeypatch.setattr(other_agents, "_worlds", worlds)
    monkeypatch.setattr(other_agents, "_most_moved", lambda *_: most)
    monkeypatch.setattr(
        other_agents,
        "over_declared",
        lambda coupled, moves, change: max(moves[k].values(), default=0.0),
    )
    assert own._suspected("state", k, "add-remove") == expected
    said = [other_agents.TOGETHER.format("ValueError")] if isinstance(most, Exception) else []
    assert list(own.examination.unclear) == said


def test_what_speaks_against_another_agent_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Row(NamedTuple):
        counts: bool
        agent: int | None = None

    made: list[int] = []
    examination: Any = SimpleNamespace(silent=True, found={"a": None}, unclear={})

    def at(self: OtherAgents, agent: int) -> Any:
        made.append(agent)
        return SimpleNamespace(silent=False, found={f"of {agent}": None}, unclear={"u": None})

    def added(own: Any, *_: Any) -> Any:
        assert own.silent
        return [Row(False), Row(True)]

    monkeypatch.setattr(OtherAgents, "_suspected", lambda *_: [2, 3])
    monkeypatch.setattr(OtherAgents, "_at", at)
    monkeypatch.setattr(other_agents, "_added", added)
    own = OtherAgents(examination)
    assert [row.agent for row in own.record("state", 2, "add-remove")] == [2, 3]
    assert list(examination.found) == ["a", "of 2", "of 3"]
    assert list(examination.unclear) == ["u"]
    first = own._of[2]
    list(own.record("state", 3, "add-remove"))
    assert own._of[2] is first


def test_another_agent_is_looked_at_without_alignments() -> None:
    coupled: Any = SimpleNamespace(looking_at=lambda agent: f"at {agent}")
    alone: Any = OtherAgents(SimpleNamespace(coupled=coupled))._at(3)  # type: ignore[arg-type]
    assert (alone.coupled, alone.restarts, alone.steps, alone.aligns) == ("at 3", 0, 0, False)
