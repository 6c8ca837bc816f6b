"""The leak of a view from both sides, and when it speaks against a claim, case by case."""

from dataclasses import dataclass, replace
from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpaudit.accounting.releases import Release
from dpaudit.attacks.likelihood_ratio import exact
from dpaudit.attacks.likelihood_ratio.exact import LeakEnds, exact_leak, is_pure
from dpaudit.files.finding import Column, Name
from dpaudit.files.threat import ThreatModel
from dpaudit.files.verdict import Verdict


def release(multiplier: float = 1.0, family: Any = "gaussian", count: int = 1) -> Release:
    return Release(
        family=family, noise_multiplier=multiplier, sampling="none", sampling_rate=1.0, count=count
    )


LAPLACE = release(family="laplace")
VIEW = ThreatModel(name="view")
GUESSING = ThreatModel(name="guessing", knows_draws=False)


@dataclass(frozen=True)
class Asked:
    """What of a question its leak is read from."""

    leak: Any = None
    game: Any = None
    nonlinear: Any = None
    reacts: Any = None
    drawn: bool = False
    meet: bool = False
    worst: int = 1
    wider: Any = None
    revealed: Any = None
    in_round: int | None = None
    mechanism: Any = ()
    delta: float = 1e-5
    claimed: float = 1.0
    adjacency: str = "add-remove"
    threat_model: ThreatModel = VIEW
    n_rounds: int = 3
    algebra: Any = True
    adversary: Any = None

    @property
    def guesses(self) -> bool:
        return self.drawn and not self.threat_model.knows_draws

    def finding(self, role: Any, title: str, **known: Any) -> Any:
        return SimpleNamespace(role=role, title=title, **known)


@pytest.mark.parametrize(
    ("mechanism", "pure"),
    [((), True), ((LAPLACE,), True), ((LAPLACE, release()), False), ((release(),), False)],
)
def test_a_mechanism_is_pure_if_all_its_noise_is_laplace(mechanism: Any, pure: bool) -> None:
    assert is_pure(mechanism) is pure
    for delta in (0.0, 1e-3):
        at = delta if pure or delta else 1e-5
        assert exact._at(Asked(mechanism=mechanism, delta=delta)) == at  # type: ignore[arg-type]


def leak_of(**of: Any) -> Any:
    about = {"noiseless": {}, "by_round": np.array([0.5, 2.0, 1.0]), "is_proven": True}
    low, high = (release(2.0), release(4.0)), (release(1.0),)
    about |= {"by_use": [1, 2, 3], "has_laplace": False, "batches": 1}
    about["mechanism"] = lambda game, k, high_end=None, **ends: high if ends.get("high") else low
    return SimpleNamespace(**{**about, **of})


def game_of(**of: Any) -> Any:
    about = {"held": None, "directions": 9, "victim": 4, "displacement": 1, "filled": 1}
    return SimpleNamespace(**{**about, "defense": SimpleNamespace(n_rounds=8), **of})


@pytest.mark.parametrize(
    ("low", "high", "noiseless", "verdict", "value"),
    [
        (1.0, 3.0, {}, None, 3.0),
        (1.001, 3.0, {}, Verdict.UNSUPPORTED, 3.0),
        (0.5, inf, {}, None, 0.5),
        (0.5, 0.9, {0: "x"}, Verdict.REFUTED, 0.9),
    ],
)
def test_a_leak_above_the_claim_leaves_it_unsupported(
    monkeypatch, low, high, noiseless, verdict, value
) -> None:
    monkeypatch.setattr(exact, "_interval", lambda *_: LeakEnds(low, high))
    monkeypatch.setattr(exact, "_notes", lambda *_: iter(()))
    leak = leak_of(noiseless=noiseless)
    found = exact_leak(Asked(leak=leak, game=game_of()))  # type: ignore[arg-type]
    assert found.verdict is verdict
    epsilon = found.metrics[Name.EPSILON]
    assert (epsilon.value, epsilon.low, epsilon.high) == (value, low, high)
    assert found.title == ("exact leak of the view" if high < inf else "leak of the view")
    assert found.message == (noiseless.get(0))
    assert found.rounds == (1, 3)
    assert found.metrics[Name.CLAIMED_EPSILON].value == 1.0
    assert found.metrics[Name.DELTA].value == 1e-5
    assert found.metrics[Name.LARGEST_MU_OF_A_ROUND].value == 2.0
    assert (found.metrics[Name.ROUNDS].value, found.metrics[Name.ROUNDS].n) == (3, 8)
    assert found.series == {Column.ROUND: (1, 2, 3), Column.MU: (0.5, 2.0, 1.0)}
    for changes in ({"reacts": object()}, {"meet": True}):
        other = Asked(leak=leak, game=game_of(), **changes)
        assert exact_leak(other).title == "leak of the view"  # type: ignore[arg-type]
    none = leak_of(by_round=np.array([]))
    found = exact_leak(Asked(leak=none, game=game_of()))  # type: ignore[arg-type]
    assert found.metrics[Name.LARGEST_MU_OF_A_ROUND].value == 0.0


@pytest.mark.parametrize(("shown", "verdict"), [(None, None), ((2, "x"), Verdict.REFUTED)])
def test_without_an_algebra_what_no_noise_reaches_is_refuted(shown, verdict) -> None:
    nonlinear = SimpleNamespace(noiseless=shown, note="not linear")
    found = exact_leak(Asked(algebra=None, nonlinear=nonlinear))  # type: ignore[arg-type]
    assert found.verdict is verdict
    assert found.message == (shown and shown[1])
    assert len(found.notes) == 1 + (shown is not None)


@dataclass(frozen=True)
class _Game:
    spread: int = 3
    setting: Any = None
    held: Any = None


@pytest.mark.parametrize(
    ("reads", "low_of_all", "high_of_all", "high"),
    [
        (False, 0.0, 2.0, 2.0),
        (False, 0.0, 0.4, 0.5),  # less than the lower end proves nothing but rounding
        (True, 0.0, 2.0, inf),
    ],
)
def test_an_upper_end_is_that_of_every_link(
    monkeypatch, reads, low_of_all, high_of_all, high
) -> None:
    views: list[ThreatModel] = []

    def adversary(game: Any, view: ThreatModel, n_rounds: int) -> Any:
        assert game.spread == 1
        views.append(view)
        return SimpleNamespace(reacts=reads, game=game)

    def ends(question: Any, delta: float) -> LeakEnds:
        if question.threat_model is VIEW:
            return LeakEnds(0.5, 0.5, (release(1.0),), (release(1.0),))
        assert question.threat_model.knows_draws
        return LeakEnds(low_of_all, high_of_all, (release(2.0),), (release(3.0),))

    monkeypatch.setattr(exact, "Adversary", adversary)
    monkeypatch.setattr(exact, "_of_given_gradients", ends)
    game = _Game(setting=SimpleNamespace(network=SimpleNamespace(weather=None)))
    own: Any = Asked(game=game)
    assert exact._interval(own, 1e-5).high == 0.5  # gradients that react to nothing hidden
    assert not views
    own = replace(own, reacts=object())
    found = exact._interval(own, 1e-5)
    assert (found.low, found.high) == (0.5, high)
    assert found.least == (release(1.0),)
    assert found.most == {2.0: (release(3.0),), 0.5: (release(1.0),), inf: None}[high]
    assert len(views) == 1
    found = exact._interval(replace(own, nonlinear=object()), 1e-5)
    assert (found.low, found.high, found.most) == (0.5, inf, None)


@pytest.mark.parametrize(("proven", "high"), [(True, 2.0), (False, inf)])
def test_links_that_weather_takes_are_read_by_nobody(monkeypatch, proven, high) -> None:
    reads = SimpleNamespace(reacts=True, game="played")
    whole = SimpleNamespace(reacts=None, game="whole")
    monkeypatch.setattr(exact, "Adversary", lambda *_: reads)
    monkeypatch.setattr(exact, "every_release", lambda *_: whole if proven else "why not")

    def ends(question: Any, delta: float) -> LeakEnds:
        return LeakEnds(0.5, 0.5 if question.threat_model is VIEW else 2.0)

    monkeypatch.setattr(exact, "_of_given_gradients", ends)
    network = SimpleNamespace(weather=object(), all_heard=None)
    own: Any = Asked(game=_Game(setting=SimpleNamespace(network=network)), reacts=object())
    assert exact._interval(own, 1e-5).high == high


def cost(mechanism: Any, d: int, delta: float, adjacency: str) -> Any:
    """So that who costs what can be read off: losses add up, to one more from above."""
    low = d * sum(r.count / r.noise_multiplier for r in mechanism)
    return SimpleNamespace(low=low, high=low + 1)


@pytest.fixture
def by_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The view's own releases cost 1/2 + 1/4 from below, and 1 + 1 from above."""
    monkeypatch.setattr(exact, "worst_epsilon", cost)
    monkeypatch.setattr(exact, "_of_one_direction", lambda *_: 0.6)
    monkeypatch.setattr(exact, "_of_part", lambda *_: 5.0)
    monkeypatch.setattr(exact, "_of_every_link", lambda *_: 4.0)
    monkeypatch.setattr(exact, "_pure_loss_of_all", lambda question: 7.0)


LOW, HIGH = (release(2.0), release(4.0)), (release(1.0),)


@pytest.mark.parametrize(
    ("leak", "game", "of", "expected"),
    [
        ({}, {}, {}, (0.75, 2.0, LOW, HIGH)),
        ({}, {}, {"worst": 3}, (2.25, 4.0, None, None)),
        ({}, {"held": 2}, {}, (0.0, inf, None, None)),
        ({"is_proven": False}, {}, {}, (0.0, 7.0, None, None)),
        ({}, {}, {"drawn": True, "threat_model": GUESSING}, (0.0, 2.0, None, HIGH)),
        ({}, {"directions": 3}, {"meet": True}, (0.75, 4.0, None, None)),
        ({}, {"directions": 2}, {"meet": True}, (0.6, 4.0, None, None)),
        ({}, {"directions": 9}, {"meet": True, "worst": 3}, (0.75, 4.0, None, None)),
        ({}, {"directions": 2}, {}, (0.75, 2.0, LOW, HIGH)),
        ({}, {}, {"nonlinear": object()}, (0.75, inf, LOW, None)),
        ({}, {}, {"revealed": SimpleNamespace(alone=True)}, (0.75, 2.0, LOW, HIGH)),
        ({}, {}, {"revealed": SimpleNamespace(alone=False)}, (0.75, inf, LOW, None)),
        ({}, {}, {"wider": SimpleNamespace(release=None)}, (0.75, inf, LOW, None)),
        ({}, {}, {"wider": SimpleNamespace(release=release(2.0))}, (0.75, inf, LOW, None)),
        (
            {},
            {},
            {"wider": SimpleNamespace(release=release(0.5))},
            (2.0, inf, (release(0.5),), None),
        ),
    ],
)
@pytest.mark.usefixtures("by_losses")
def test_ends_of_given_gradients_are_those_of_releases(leak, game, of, expected) -> None:
    own: Any = Asked(leak=leak_of(**leak), game=game_of(**game), **of)
    assert tuple(exact._of_given_gradients(own, 1e-5)) == expected


@pytest.mark.usefixtures("by_losses")
def test_inclusions_without_a_coordinate_each_cost_as_one() -> None:
    leak = leak_of(mechanism=lambda *_, high=False: (release(3.0, count=5), release(1.25, count=2)))
    own: Any = Asked(leak=leak, game=game_of(directions=2), meet=True)
    assert exact._of_given_gradients(own, 1e-5).low == pytest.approx(1 / 1.25)
    leak.mechanism = lambda *_, high=False: ()
    assert exact._of_given_gradients(own, 1e-5).low == 0.6  # of the one direction alone


def test_upper_ends_are_of_releases_that_show_no_less(monkeypatch) -> None:
    monkeypatch.setattr(exact, "worst_epsilon", cost)
    own: Any = Asked(leak=leak_of(), game=game_of())
    assert exact._of_part(own, 1e-5) == 2.0
    assert exact._of_part(replace(own, leak=leak_of(has_laplace=True)), 1e-5) == inf
    monkeypatch.setattr(exact, "epsilon_where_batches_meet", lambda way, *_: way)
    for ways, most in ([], 0.0), ([0.3, 0.8, 0.1], 0.8):
        leak = leak_of(meetings=lambda *_, ways=ways: ways)
        assert exact._of_one_direction(replace(own, leak=leak), 1e-5) == most
    monkeypatch.setattr(exact, "Adversary", lambda *_: object())
    monkeypatch.setattr(exact, "with_every_link", lambda view: VIEW)
    assert exact._of_every_link(own, 1e-5) == inf
    monkeypatch.setattr(exact, "with_every_link", lambda view: ThreatModel(name="all"))
    assert exact._of_every_link(own, 1e-5) == 2.0


@pytest.mark.parametrize(
    ("of", "pure", "noiseless", "high"),
    [
        ({}, True, {}, 1.75),
        ({"worst": 2}, True, {}, inf),
        ({"nonlinear": object()}, True, {}, inf),
        ({}, False, {}, inf),
        ({}, True, {0: "x"}, inf),
    ],
)
def test_pure_noise_costs_at_most_all_its_draws(monkeypatch, of, pure, noiseless, high) -> None:
    monkeypatch.setattr(exact, "worst_epsilon", cost)
    leak = leak_of(is_pure=pure, noiseless=noiseless)
    monkeypatch.setattr(exact, "Adversary", lambda *_: SimpleNamespace(leak=leak))
    own: Any = Asked(game=game_of(), **of)
    assert exact._pure_loss_of_all(own) == high


@dataclass
class _View:
    rounds: Any = None
    size: int = exact.LARGE

    def only(self, rounds: range) -> "_View":
        return _View(rounds, self.size)

    @property
    def record(self) -> Any:
        return SimpleNamespace(size=self.size)

    def file(self, *_: Any) -> tuple[str, Any]:
        return "view", self.rounds


@pytest.mark.parametrize(
    ("leak", "of", "size", "written"),
    [
        ({}, {}, exact.LARGE, None),
        ({}, {}, exact.LARGE + 1, "nothing"),
        ({"batches": 3}, {"in_round": 2}, 1, range(4, 7)),
        ({"has_laplace": True}, {}, 1, "nothing"),
        ({"noiseless": {0: "x"}}, {}, 1, "nothing"),
        ({}, {"meet": True}, 1, "nothing"),
        ({}, {"algebra": None}, 1, "nothing"),
        ({"mechanism": lambda *_: ("other",)}, {}, 1, "nothing"),
    ],
)
def test_matrices_are_written_where_they_give_the_lower_end(leak, of, size, written) -> None:
    files: list[Any] = []
    finding: Any = SimpleNamespace(
        releases={"least": LOW}, model_copy=lambda update: SimpleNamespace(**update)
    )
    algebra = SimpleNamespace(linear_view=lambda most: _View(size=size))
    own: Any = Asked(**{"leak": leak_of(**leak), "game": game_of(), "algebra": algebra, **of})
    run: Any = SimpleNamespace(write=lambda name, content: files.append((name, content)))
    found = exact.with_matrices(finding, own, run)
    if written == "nothing":
        assert found is finding
        assert not files
    else:
        assert found.artifacts == {"linear view": "view"}
        assert files == [("view", written)]
