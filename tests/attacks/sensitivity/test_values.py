"""What the examination of a run puts together from its parts, by hand."""

import random
from types import SimpleNamespace
from typing import Any

import pytest

from dpaudit.attacks.sensitivity import attack, stand_in
from dpaudit.attacks.sensitivity.attack import Sensitivity
from dpaudit.attacks.sensitivity.message_move import Row
from dpaudit.attacks.sensitivity.own_draws import watched
from dpaudit.files.finding import Name
from dpaudit.progress import silent


def test_every_round_of_a_small_model_looks_at_all_agents(monkeypatch) -> None:
    """Rows are (who looks, state, round, change): the one state follows another."""

    class Looking:
        def __init__(self, examination: Any) -> None:
            assert examination is small

        def record(self, *of: Any) -> Any:
            yield ("others", *of)

    def start() -> int:
        return 10

    defense = SimpleNamespace(n_rounds=2)
    small: Any = SimpleNamespace(
        coupled=SimpleNamespace(start=start, defense=defense),
        record=lambda *of: iter([("victim", *of)]),
        next_state=lambda state, k: state + k,
    )
    monkeypatch.setattr(stand_in, "OtherAgents", Looking)
    played: list[int] = []
    found: Any = list(stand_in._rows(small, "add-remove", lambda: played.append(1)))
    assert len(played) == 2
    assert found == [
        (who, state, k, "add-remove")
        for state, k in ((10, 1), (11, 2))
        for who in ("victim", "others")
    ]


def row(message: str, moved: float = 3.0) -> Row:
    return Row(message, 1, 2, {"natural": moved}, stated=2.0, tolerance=0.0)


def measured(monkeypatch: pytest.MonkeyPatch, n_rounds: int, found: Any, **of: Any) -> Any:
    """What an audit of so many rounds comes to, of rows that were found by change."""
    joined, asked = list[Any](), list[Any]()
    whole: Any = SimpleNamespace(join=joined.append, unclear={})

    def rows(self: Any, examination: Any, claimed: Any, *_: Any) -> Any:
        asked.extend(claimed)
        return found

    for name, value in {
        "CoupledWorlds": "coupled",
        "RoundExamination": whole,
        "examine_every_round": ("small", of.get("small", [])),
        "far_from_the_run": (of.get("far"), ("said",)),
        "few_with_gradients": (of.get("few"), [row("x"), row("z")]),
        "unlikely_draws": of.get("unlikely"),
    }.items():
        monkeypatch.setattr(attack, name, lambda *_, value=value: value)
    monkeypatch.setattr(Sensitivity, "_rows", rows)
    monkeypatch.setattr(Sensitivity, "_ahead", lambda *_: attack._Ahead(silent, 1))
    monkeypatch.setattr(attack, "_alignment", lambda examination, change, rounds: rounds)
    monkeypatch.setattr(attack, "_beyond", lambda coupled, change, delta: [delta])
    monkeypatch.setattr(attack, "_dependence", lambda *given: given)
    context: Any = SimpleNamespace(
        claims=of.get("claims", []), setting=SimpleNamespace(sizes=(4,)), problem=None,
        defense=SimpleNamespace(n_rounds=n_rounds, function_distance=lambda: 1.0), streams=None,
        checkpoint=None,
    )  # fmt: skip
    nothing: Any = None
    *findings, dependence = Sensitivity(victim=0).measure(context, nothing, lambda *_: None)
    return SimpleNamespace(
        joined=joined, asked=asked, unclear=[*whole.unclear], findings=findings,
        dependence=dependence,
    )  # fmt: skip


@pytest.mark.parametrize("n_rounds", [10, 11])
@pytest.mark.parametrize("few", [None, "few"])
@pytest.mark.parametrize("other", [False, True])
def test_what_parts_find_is_joined(monkeypatch, n_rounds: int, few: str | None, other) -> None:
    """Of 11 rounds ten are looked at, and all on a small model."""
    far, unlikely = ("far", "unlikely") if other else (None, None)
    known = {("add-remove", False): [row("x"), row("w", 1.0), row("v", 0.0)]}
    small = [row("x"), row("y"), row("w")] if other else []
    of = measured(monkeypatch, n_rounds, known, small=small, few=few, far=far, unlikely=unlikely)
    whole_run = n_rounds == 10
    assert of.joined == ([] if whole_run else ["small"]) + ([few] if few else [])
    assert of.unclear == (["far", "unlikely"] if other else [])
    *findings, rounds, delta = of.findings
    messages = ["x", "w"] + (["y", "w"] if other and not whole_run else [])
    assert [one.message for one in findings] == messages + (["z"] if few else [])
    _, constant, same, notes = of.dependence
    assert (constant, same) == ({"v": None}, rounds)
    missing = ["the other rounds could not be played on a small model"]
    assert notes == ([] if other or whole_run else missing) + ["said"]
    assert rounds[Name.ROUNDS].n == n_rounds
    assert rounds[Name.ROUNDS].value == (n_rounds if other or whole_run else 10)
    assert delta == attack.LEAST_DELTA
    assert of.asked == ["add-remove"]


def test_rounds_are_looked_at_further_for_changed_records_alone(monkeypatch) -> None:
    """A claim on functions, of which a record was changed as well, has no release of a record."""
    claims = [
        SimpleNamespace(adjacency=change, delta=delta)
        for change, delta in (("replace-one", 1e-3), ("function", 1e-5), ("replace-one", 0.0))
    ]
    kinds = [("replace-one", False), ("function", False), ("add-remove", True)]
    found = {kind: [row(message)] for kind, message in zip(kinds, "abc", strict=True)}
    of = measured(monkeypatch, 10, found, claims=claims, few="few")
    assert of.asked == ["replace-one", "function"]
    assert of.joined == ["few"]
    *findings, rounds, delta = of.findings
    assert [one.message for one in findings] == ["a", "b", "c", "x", "z"]
    assert (rounds[Name.ROUNDS].value, delta) == (10, 1e-3)


@pytest.mark.parametrize("kind", [lambda f: f, classmethod, staticmethod])
def test_generators_of_the_module_of_a_method_are_watched(kind: Any) -> None:
    """As where a class takes a function of another module for its method."""
    names: dict[str, Any] = {"OWN": random.Random(3)}
    exec("def draw(*given):\n    return OWN.random()", names)
    defense: Any = type("Defense", (), {"draw": kind(names["draw"]), "scale": 2.0})()
    with watched(defense) as used:
        pass
    assert used == set()
    with watched(defense) as used:
        defense.draw()
    assert used == {"OWN"}
