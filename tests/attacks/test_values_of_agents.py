"""What agents learn of one another, under weathers and by reacting gradients, value by value."""

from math import ceil, inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import dpaudit.attack as da
from dpaudit.attacks import reacting_gradient, weather, who_learns_what
from dpaudit.attacks.reacting_gradient import ReactingGradient
from dpaudit.attacks.topology import ranking, scores
from dpaudit.attacks.weather import WeatherAttack, WeatherLeak
from dpaudit.attacks.who_learns_what import WhoLearnsWhat
from dpaudit.files.finding import Column, Name
from dpaudit.files.threat import ThreatModel
from dpaudit.statistics.bounds import epsilon_lower_bound, mu_p_value

NOTHING: Any = None
EVE = ThreatModel(name="eve", kind="external")
ZERO = ThreatModel(name="agent 0", kind="curious", agents=(0,))


@pytest.mark.parametrize("n", [1, 2, 20, 21, 40])
def test_ends_of_weathers_are_ranks_of_their_draws(n: int) -> None:
    """The lower median, and the rank of 95% rounded up."""
    learned = [WeatherLeak(float(mu), None) for mu in reversed(range(n))]
    bound = weather.Bound(99.0, "why")
    schema: Any = SimpleNamespace(times=1, every=4)
    own = WeatherAttack(victim=2)
    finding: Any = lambda **of: SimpleNamespace(**of)  # noqa: E731
    found: Any = own._finding(finding, learned, bound, 6, schema, ["dropped"])
    mus = [float(mu) for mu in range(n)]
    assert found.metrics[Name.MEDIAN_MU].value == mus[(n - 1) // 2]
    assert found.metrics[Name.MU_OF_95].value == mus[ceil(0.95 * n) - 1]
    assert found.metrics[Name.WORST_MU].value == mus[-1]
    assert found.metrics[Name.MU_OF_ANY_WEATHER].value == 99.0
    assert {found.metrics[m].n for m in (Name.MEDIAN_MU, Name.MU_OF_95, Name.WORST_MU)} == {n}
    assert found.series[Column.MU] == tuple(reversed(mus))
    used = f"used in the worst round, from 6 rounds, under {n} draws"
    assert found.notes[0] == f"mu of one record of agent 2, {used}"
    assert found.notes[2:] == ("why", "dropped")
    schema.times = 3
    many: Any = WeatherAttack()._finding(
        finding, learned, weather.Bound(None, "why"), 6, schema, []
    )
    assert Name.MU_OF_ANY_WEATHER not in many.metrics
    assert "agent about which most is learned, used 3 times, every 4 rounds" in many.notes[0]


@pytest.mark.parametrize(
    ("drawn", "victim", "draws", "learned", "notes"),
    [
        (["ok", "cut", "ok", "own"], 1, 2, 2, ["1 draws disconnect"]),
        (["ok", "own", "ok"], 1, 2, 2, ["1 draws in which the victim itself"]),
        (["own", "own", "ok"], None, 1, 1, []),  # then others are victims
        (["cut"] * 50, 1, 2, 0, ["21 draws disconnect"]),
        (["own"] * 50, 1, 2, 0, ["21 draws in which"]),
        (["cut", "own"] * 50, 1, 2, 0, ["11 draws disconnect", "10 draws in which"]),
    ],
)
def test_weathers_are_drawn_until_there_are_enough(
    monkeypatch, drawn, victim, draws, learned, notes
) -> None:
    views = {"ok": SimpleNamespace(agents=(0,)), "own": SimpleNamespace(agents=(1,))}
    given = [(None if kind == "cut" else f"setting {i}", views.get(kind)) for i, kind in enumerate(drawn)]  # fmt: skip
    monkeypatch.setattr(weather, "_drawn", lambda context, view: iter(given))
    monkeypatch.setattr(weather, "Game", SimpleNamespace(of=lambda *_: "game"))
    monkeypatch.setattr(weather, "nonlinearity", lambda game, view, n: told)
    monkeypatch.setattr(weather, "bound_of", lambda *of: of[3:])
    asked: list[Any] = []

    def learns(
        view: Any, defense: Any, setting: str, n: int, schema: Any, honest: Any
    ) -> WeatherLeak:
        asked.append((setting, n, honest))
        return WeatherLeak(1.0, None)

    monkeypatch.setattr(weather, "learned_by", learns)
    monkeypatch.setattr(
        WeatherAttack, "_finding", lambda self, finding, found, bound, n, schema, dropped: (found, bound, n, dropped)
    )  # fmt: skip
    context: Any = SimpleNamespace(
        defense=SimpleNamespace(n_rounds=9), setting=SimpleNamespace(n_agents=3, holders=(0, 1, 2))
    )
    told: Any = None
    steps: list[Any] = []
    [found] = WeatherAttack(draws=draws, victim=victim).measure(
        context, ZERO, lambda *s: steps.append(s)
    )
    assert len(asked) == learned
    assert steps == [(i + 1, draws) for i in range(learned)]
    if not learned:
        assert found.notes[0] == "no draw has a leak"
        assert [n[: len(s)] for n, s in zip(found.notes[1:], notes, strict=True)] == notes
        return
    of, bound, n, dropped = found  # type: ignore[misc]
    assert (len(of), n, bound[0], bound[2]) == (learned, 6, 6, victim)
    assert [d[: len(s)] for d, s in zip(dropped, notes, strict=True)] == notes
    first = asked[0]
    assert first[1:] == (6, [1] if victim == 1 else [0, 2])
    told = SimpleNamespace(defined=True, quiet=False, note="bent")
    [bent] = WeatherAttack().measure(context, ZERO, lambda *_: None)
    assert bent.notes == ("bent",)


def test_a_bound_over_weathers_is_of_every_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of drawn colluders the first others; of one's own agents none."""
    monkeypatch.setattr(weather, "_game", lambda defense, setting, v: v)
    views: list[Any] = []

    def whole(game: int, view: ThreatModel, n: int, calm: Any) -> Any:
        views.append((game, view.agents, n, calm))
        return "not proven" if game in bent else game

    monkeypatch.setattr(weather, "every_release", whole)
    monkeypatch.setattr(
        weather, "_learned", lambda adversary, schema, victims, end: WeatherLeak([3.0, 5.0, 4.0][victims[0]] + end, None)
    )  # fmt: skip
    setting: Any = SimpleNamespace(
        holders=(0, 1, 2), n_agents=3, network=SimpleNamespace(calm="calm")
    )
    bent: set[int] = set()

    def bound(view: ThreatModel, victim: int | None = None) -> Any:
        views.clear()
        return weather.bound_of(view, NOTHING, setting, 6, NOTHING, victim)

    assert bound(EVE).mu == 6.0
    assert views == [(v, (), 6, "calm") for v in (0, 1, 2)]
    assert bound(EVE, 2).mu == 5.0
    assert bound(ThreatModel(name="one", kind="curious", agents=(1,))).mu == 5.0
    assert [v for v, *_ in views] == [0, 2]
    drawn = ThreatModel(name="some", kind="curious", drawn=1)
    assert bound(drawn).mu == 6.0
    assert [agents for _, agents, *_ in views] == [(1,), (0,), (0,)]
    bent.add(1)
    found = bound(EVE)
    assert (found.mu, found.why) == (None, "no bound over all weathers is proven: not proven")


def test_uses_of_a_record_are_read_by_their_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is there for certain; the upper end is that of who reads every link."""
    H = torch.arange(32.0).view(2, 4, 4)
    asked: list[Any] = []
    noiseless = {2: "x"}

    def leak(adversary: Any, victims: Any, uses: Tensor) -> Any:
        asked.append((adversary, victims, uses.tolist()))
        return H, noiseless

    def mu_of(blocks: list[Tensor], times: int) -> Any:
        asked.append(([b.tolist() for b in blocks], times))
        return torch.tensor([1.0, 2.0]), torch.tensor([1.5, 2.5])

    monkeypatch.setattr(who_learns_what, "leak_by_agent", leak)
    monkeypatch.setattr(who_learns_what, "mu_of", mu_of)
    game = SimpleNamespace(filled=3)
    monkeypatch.setattr(who_learns_what, "Game", SimpleNamespace(of=lambda d, s, v, *of: (v, *of)))
    monkeypatch.setattr(who_learns_what, "in_layers", lambda given: (asked.append(given), game)[1])
    monkeypatch.setattr(
        who_learns_what, "replace", lambda one, sampling_rate: SimpleNamespace(filled=3, rate=sampling_rate)
    )  # fmt: skip
    monkeypatch.setattr(who_learns_what, "with_every_link", lambda view: "every link")
    monkeypatch.setattr(
        who_learns_what, "Adversary",
        lambda game, view, n: SimpleNamespace(game=game, view=view, n=n, reacts="reacts"),
    )  # fmt: skip
    setting: Any = SimpleNamespace(holders=(0, 1, 2))
    schema: Any = SimpleNamespace(times=2, classes=lambda n: [torch.tensor([0, 2]), torch.tensor([1, 3])])  # fmt: skip
    found = who_learns_what.learned_by(1, NOTHING, setting, 4, schema)
    assert found == ({0: 1.0, 2: inf}, {2: "x"}, "reacts")
    assert asked[0] == (0, "add-remove", "poisson")
    adversary, victims, uses = asked[1]
    assert (adversary.game.rate, adversary.n, victims, uses) == (1.0, 4, [0, 2], [1, 3, 2, 4])
    assert adversary.view.agents == (1,)
    blocks = [(3 * H[:, :2, :2]).tolist(), (3 * H[:, 2:, 2:]).tolist()]
    assert asked[2] == (blocks, 2)
    noiseless.clear()
    every = who_learns_what.learned_by(1, NOTHING, setting, 4, schema, every_link=True)
    assert (every.mu, asked[-2][0].view) == ({0: 1.5, 2: 2.5}, "every link")
    H = torch.ones(2, 1, 1)
    who_learns_what.learned_by(2, NOTHING, setting, 4)
    assert asked[-2][2] == [1]
    assert asked[-1][1] == 1


@pytest.mark.parametrize(
    ("participation", "n_rounds", "n_agents", "rounds"),
    [("once", 9, 3, 6), ("once", 4, 3, 4), ((3, 4), 20, 3, 9), ((3, 2), 20, 3, 6), ((3, 4), 8, 3, 8)],
)  # fmt: skip
def test_twice_as_many_rounds_as_agents_are_read(participation, n_rounds, n_agents, rounds) -> None:
    own = WhoLearnsWhat(participation=participation)
    assert own._rounds(n_rounds, n_agents) == rounds
    for n, refused in ((1, True), (2, False), (40, False), (41, True)):
        setting: Any = SimpleNamespace(n_agents=n)
        if refused:
            with pytest.raises(da.ConfigError, match=f"{n} agents; expected 2 to 40"):
                own.refuse(NOTHING, setting)
        else:
            own.refuse(NOTHING, setting)


@pytest.mark.parametrize(
    ("reacts", "blind", "highs"),
    [(False, False, (1.0, 2.0)), (True, False, (7.0, 8.0)), (True, True, (inf, inf))],
)
def test_pairs_have_ends_where_gradients_react(monkeypatch, reacts, blind, highs) -> None:
    """Agent 0 learns 1 of agent 1, and that 2 of agent 0; who reads all learns 7 and 8."""
    asked: list[Any] = []

    def learns(agent: int, d: Any, s: Any, n: int, schema: Any, every_link: bool = False) -> Any:
        asked.append((agent, n, schema, every_link))
        mu = {1 - agent: (7.0 if every_link else 1.0) + agent}
        relays = "x" if (blind if every_link else reacts) else None
        return who_learns_what.AgentLeak(mu, {0: "m"} if agent and not every_link else {}, relays)  # type: ignore[arg-type]

    monkeypatch.setattr(who_learns_what, "learned_by", learns)
    monkeypatch.setattr(who_learns_what, "Game", SimpleNamespace(of=lambda *_: None))
    monkeypatch.setattr(who_learns_what, "nonlinearity", lambda *_: told)
    monkeypatch.setattr(who_learns_what, "reacting_note", lambda reacts: f"reacting {reacts}")
    context: Any = SimpleNamespace(
        defense=SimpleNamespace(n_rounds=9), setting=SimpleNamespace(n_agents=2, holders=(0, 1))
    )
    told: Any = SimpleNamespace(defined=True, quiet=True)
    steps: list[Any] = []
    [found] = WhoLearnsWhat().measure(context, EVE, lambda *s: steps.append(s))
    assert steps == [(1, 2), (2, 2)]
    assert asked[0] == (0, 4, None, False)
    largest = found.metrics[Name.LARGEST_MU]
    assert (largest.value, largest.low, largest.high) == (2.0, 2.0, highs[1])
    assert found.metrics[Name.SMALLEST_MU].value == 1.0
    assert found.metrics[Name.PAIRS_WITHOUT_NOISE].value == 0
    assert found.metrics[Name.PAIRS_WITHOUT_NOISE].n == 2
    assert found.series[Column.ADVERSARY] == (0, 1)
    assert found.series[Column.VICTIM] == (1, 0)
    assert found.series[Column.HIGH] == highs
    assert found.notes[-1] == '"m" shows a record without noise to some agent'
    assert found.notes[2].startswith("reacting x: largest" if reacts else "exact: every agent")
    told.quiet, told.note = False, "bent"
    assert WhoLearnsWhat().measure(context, EVE, lambda *_: None)[0].notes == ("bent",)
    told = None
    WhoLearnsWhat(participation=(2, 3)).measure(context, EVE, lambda *_: None)
    assert (asked[-1][1], asked[-1][2].times, asked[-1][2].every) == (4, 2, 3)


@pytest.mark.parametrize(
    ("agents", "links", "holders", "victim"),
    [
        ((0,), None, (0, 1, 2, 3), 2),  # two links away
        ((3,), None, (0, 1, 2, 3), 1),
        ((1, 2), None, (0, 1, 2, 3), 0),  # all others are heard
        ((0,), None, (0, 1, 3), 1),  # who holds nothing has no record
        ((0, 1), None, (0, 1), None),
        (None, ((1, 0),), (0, 1, 2, 3), 0),
    ],
)
def test_a_victim_is_heard_by_one_who_is_heard(agents, links, holders, victim) -> None:
    """On the path 0 - 1 - 2 - 3."""
    kind: Any = "external" if agents is None else "curious" if len(agents) == 1 else "colluding"
    view = ThreatModel(name="v", kind=kind, agents=agents or (), links=links)
    ends = [(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)]
    setting: Any = SimpleNamespace(
        network=SimpleNamespace(at=lambda k: SimpleNamespace(links=ends)), holders=holders
    )
    assert reacting_gradient._victim(setting, view) == victim


@pytest.mark.parametrize(("sign", "p_below"), [(1.0, False), (-1.0, True)])
def test_what_reacts_is_certified_beside_what_is_given(sign: float, p_below: bool) -> None:
    bound: Any = SimpleNamespace(fp=5 if p_below else 40, fn=9, n0=100, n1=120, value=0.75)
    losses: Any = SimpleNamespace(sign=sign)
    adversary: Any = SimpleNamespace(threat_model=EVE, n_rounds=3, game=SimpleNamespace(victim=2))
    found = reacting_gradient._certified(adversary, bound, (1.9, 4.0), losses, 0.05)
    counts = bound.fp, bound.fn, bound.n0, bound.n1
    p = mu_p_value(*counts, 1.9)
    assert (p <= 0.05) is p_below
    metrics = found.metrics
    assert (metrics[Name.P_VALUE].value, metrics[Name.CONFIDENCE].value) == (p, 0.95)
    given = metrics[Name.MU_OF_GIVEN_GRADIENTS]
    assert (given.value, given.low, given.high) == (1.9, 1.9, 4.0)
    lower = metrics[Name.EPSILON_LOWER_BOUND]
    assert (lower.value, lower.n) == (float(epsilon_lower_bound(*counts, 1e-5, 0.05)), 220)
    assert (metrics[Name.MU_LOWER_BOUND].value, metrics[Name.MU_LOWER_BOUND].n) == (0.75, 220)
    assert (metrics[Name.FALSE_POSITIVES].n, metrics[Name.FALSE_NEGATIVES].n) == (100, 120)
    assert metrics[Name.DELTA].value == 1e-5
    assert ("away from the middle" in found.notes[0]) is (sign < 0)
    assert ("does not survive" in found.notes[1]) is p_below
    assert (found.rounds, found.notes[2][:19]) == ((1, 3), "100 runs of each wo")


@pytest.mark.parametrize("better", [0, 1])
def test_the_better_sign_of_losses_is_counted(monkeypatch, better: int) -> None:
    """Third agents are neither the victim nor the adversary's; chosen by other runs."""

    class Losses(SimpleNamespace):
        def opposite(self) -> "Losses":
            return Losses(sign=-self.sign)

    asked: list[Any] = []
    monkeypatch.setattr(
        reacting_gradient, "SteepLosses",
        SimpleNamespace(of=lambda game, third, n: asked.append((third, n)) or Losses(sign=1.0)),
    )  # fmt: skip
    monkeypatch.setattr(
        reacting_gradient, "play",
        lambda adversary, trials, own, k, on_round, others: asked.append((trials, own, k, others.sign))
        or SimpleNamespace(name=own, without="without", with_record="with"),
    )  # fmt: skip
    monkeypatch.setattr(reacting_gradient, "cross_fitted", lambda worlds: (worlds.name, "held"))
    monkeypatch.setattr(
        reacting_gradient, "LearnedScore", lambda worlds: lambda runs: f"{worlds.name}: {runs}"
    )
    promised = {"training 1": 1.0 - better, "training -1": 0.5}

    def family(one: Any, other: Any, alpha: float, choosing: Any) -> Any:
        asked.append((one, other, alpha))
        return SimpleNamespace(value=promised.get(one, 9.0), choosing=choosing)

    monkeypatch.setattr(reacting_gradient, "family_from_scores", family)
    monkeypatch.setattr(reacting_gradient, "with_every_link", lambda view: "all")
    leak = SimpleNamespace(by_round=np.array([3.0, 8.0]))
    monkeypatch.setattr(
        reacting_gradient, "Adversary", lambda game, view, n: SimpleNamespace(reacts=reacts, leak=leak)
    )  # fmt: skip
    monkeypatch.setattr(reacting_gradient, "_certified", lambda *of: of[1:])
    game = SimpleNamespace(victim=1, setting=SimpleNamespace(holders=(0, 1, 2, 3)))
    adversary: Any = SimpleNamespace(
        game=game, n_rounds=2, threat_model=ZERO,
        leak=SimpleNamespace(by_round=np.array([2.0, 7.0])),
    )  # fmt: skip
    streams: Any = SimpleNamespace(child=lambda name: name)
    reacts: Any = None
    found: Any = ReactingGradient(trials=40)._measured(adversary, streams, NOTHING)
    assert asked[0] == ((2, 3), 2)
    sign = -1.0 if better else 1.0
    name = "training -1" if better else "training 1"
    assert asked[1] == (40, "training 1", 1, 1.0)
    assert asked[-2] == (40, "counted", 1, sign)
    assert asked[-1] == (f"{name}: without", f"{name}: with", 0.05)
    assert found[0].choosing == (name, "held")
    assert found[1:] == ((2.0, 3.0), found[2], 0.05)
    assert found[2].sign == sign
    reacts = "x"
    assert ReactingGradient()._measured(adversary, streams, NOTHING)[1] == (2.0, inf)  # type: ignore[index]


def test_areas_and_ends_of_links_are_those_of_ranks() -> None:
    """Two links of three pairs: scores 3 and 1 against 2 have the area 1/2; a tie counts half."""
    truth = np.array([True, True, False])
    rows = np.array([[3.0, 1.0, 2.0], [3.0, 2.0, 2.0], [3.0, 2.5, 2.0]])
    assert ranking._areas(rows, truth).tolist() == [0.5, 0.75, 1.0]
    links = np.zeros((4, 4), dtype=bool)
    links[0, 1] = links[1, 0] = True
    scored = ~np.eye(4, dtype=bool)
    found = ranking.edge_metrics(links * 1.0, links, scored, np.random.default_rng(0))
    assert found[Name.AUC].value == 1.0
    p = found[Name.P_VALUE]
    assert p.n == 999
    assert p.value == pytest.approx(1 / 6, abs=0.06)  # one pair of six has the highest score
    assert found[Name.CHANCE_AUC].value == pytest.approx(0.5, abs=0.06)


def test_errors_of_steps_may_be_alike() -> None:
    """Of gossip with constant gradients differences have no error: rho is then 1."""
    W = torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.25, 0.25, 0.5]]).double()
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(3, 40, generator=generator).double()
    g = torch.randn(3, 40, generator=generator).double()
    steps = [X]
    for _ in range(5):
        steps.append(W @ steps[-1] + g)
    models = torch.stack(steps)
    found = scores.fitted(models, 1e-12)
    assert found.rho == 1.0
    torch.testing.assert_close(found.W, W, atol=1e-6, rtol=0)
    first = scores.fitted(models[:2], 1e-12)
    assert first.rho == 0.0
    torch.testing.assert_close(found.W.sum(1), torch.ones(3).double())
