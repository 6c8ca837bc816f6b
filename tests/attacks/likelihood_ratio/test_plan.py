"""Runs and rounds that an audit file leaves open: those expected to certify most."""

from typing import Any

import pytest

from dpaudit.attack import Claim, Name, Role, ThreatModel
from dpaudit.attack.contract import AttackContext
from dpaudit.attacks.likelihood_ratio import plan, question
from dpaudit.attacks.likelihood_ratio.bound import power_of
from dpaudit.attacks.likelihood_ratio.question import Question, QuestionContext
from dpaudit.defense import Setting
from dpaudit.graphs.graph import build_graph
from dpaudit.registry import load_plugin
from dpaudit.rng import Streams
from tests.scratch import scratch_run

EVERY_LINK = ThreatModel(name="every link")
CLAIM = Claim(text="ours", epsilon=1.0, delta=1e-5)
MESSAGES = 40  # of a round of both worlds: 10 links and twice 5 agents, in each


def context_of(n_rounds: int, name: str = "dp-dpsgd", **options: Any) -> AttackContext:
    setting = Setting(build_graph("ring", 5), (8,) * 5, 1)
    settings = {"noise_multiplier": 8.0, "batch_size": 8, "sampling": "poisson", **options}
    defense = load_plugin("defenses", name)(n_rounds=n_rounds, **settings).calibrate(setting)
    return AttackContext(None, setting, defense, (CLAIM,), Streams(3), scratch_run())  # type: ignore[arg-type]


def asking_of(
    context: AttackContext, n_rounds: int | None = None, runs: int = 2_000
) -> QuestionContext:
    return QuestionContext(context, EVERY_LINK, runs, n_rounds, 0.05, False)


def plan_of(context: AttackContext, least: int = 0, **options: Any) -> tuple[int, int, float]:
    """Runs of each world, rounds, and the bound that is expected of them."""
    asked, about = plan.planned(asking_of(context, **options), CLAIM, least)
    assert about is not None
    return asked.trials, about.n_rounds, expected(about, asked.trials)


def expected(asked: Question, runs: int) -> float:
    return power_of(asked, runs)[Name.EXPECTED_BOUND].value


def test_few_rounds_are_all_played_by_as_many_runs_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "WORK", 3_000 * MESSAGES * 4)
    assert plan_of(context_of(4))[:2] == (3_000, 4)
    monkeypatch.setattr(plan, "MOST_PLANNED", 2_500)
    assert plan_of(context_of(4))[:2] == (2_500, 4)


@pytest.fixture
def small_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 runs of each world over 16 rounds: the usual runs play 8."""
    for module in (plan, question):
        monkeypatch.setattr(module, "WORK", 1_000 * MESSAGES * 16)


@pytest.mark.slow
@pytest.mark.usefixtures("small_work")
def test_no_other_number_of_rounds_promises_more() -> None:
    context = context_of(16)
    runs, n_rounds, found = plan_of(context)
    assert runs * n_rounds == 16_000
    for rounds in (16, 8, 4, 2):
        asked = asking_of(context, rounds).question(CLAIM)
        assert asked is not None
        assert expected(asked, 16_000 // rounds) <= found
    assert plan_of(context) == (runs, n_rounds, found)  # nothing is timed


@pytest.mark.usefixtures("small_work")
def test_rounds_that_were_asked_for_are_played() -> None:
    assert plan_of(context_of(16), n_rounds=5)[:2] == (3_200, 5)


@pytest.mark.slow
@pytest.mark.usefixtures("small_work")
def test_matching_has_as_many_runs_as_it_needs() -> None:
    assert plan_of(context_of(16), least=8_000)[0] >= 8_000


def test_runs_of_unknown_promise_are_the_usual_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "_expected", lambda asked, runs: None)
    asked, about = plan.planned(asking_of(context_of(2)), CLAIM, 0)
    assert about is not None
    assert (asked.trials, about.n_rounds) == (plan.USUAL, 2)


def test_an_attack_without_trials_counts_the_planned_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "WORK", 2_600 * MESSAGES * 2)
    context = context_of(2)
    attack = load_plugin("attacks", "likelihood-ratio")()
    ((_, promised),) = attack.power(context, EVERY_LINK)
    found = attack.measure(context, EVERY_LINK, lambda done, total: None)
    (test,) = (finding for finding in found if finding.role is Role.TEST)
    assert test.metrics[Name.FALSE_POSITIVES].n == 2_600
    assert test.metrics[Name.EXPECTED_BOUND] == promised[Name.EXPECTED_BOUND]
