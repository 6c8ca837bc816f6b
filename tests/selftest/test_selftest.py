"""The self-test: every planted bug is caught by the check made for it, and no correct twin is."""

import json
import re
from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import binom, kstest
from typer.testing import CliRunner

from dpaudit.commands.cli import app
from dpaudit.files.published import ResultTables
from dpaudit.files.verdict import Verdict
from dpaudit.registry import load_plugin
from dpaudit.rng import Streams
from dpaudit.selftest import catalogue, detectors
from dpaudit.selftest import selftest as module
from dpaudit.selftest.bugs import BUGS, GAUSSIAN, LAPLACE, Specimen
from dpaudit.selftest.catalogue import (
    MECHANISMS,
    WITHOUT_ATTACKS,
    Said,
    audits_without_attacks,
    ordinary_audits,
)
from dpaudit.selftest.detectors import ExaminedSpecimen, contract, floating_point, uneven_ring
from dpaudit.selftest.selftest import (
    ALPHA,
    quiet_row,
    row,
    said_row,
    selftest,
    summary,
    text,
)
from dpaudit.statistics.bounds import ceiling, from_scores
from dpaudit.statistics.noise_tests import white_noise_p_values, white_noise_test

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "selftest.json"
BY_NAME = {bug.name: bug for bug in BUGS}
TWINS = {id(bug.twin): bug.twin for bug in BUGS}
FAST = [  # one bug for each check
    "same seed for all rounds",
    "L2 clip under L1 accounting",
    "add-remove noise, replace-one claim",
    "generator restored wrongly on resume",
    "noise drawn before a broadcast",
    "budget spent twice",
    "float32 Laplace",
]


@pytest.mark.parametrize("name", FAST)
def test_a_planted_bug_is_caught_by_the_check_made_for_it(name) -> None:
    """False alarms and misses of sampled checks: far below 1e-6 on this seed's p-values."""
    bug = BY_NAME[name]
    check = {**detectors.EXACT, **detectors.SAMPLED}[bug.by]
    level = () if bug.by in detectors.EXACT else (ALPHA / 4,)
    assert check(ExaminedSpecimen(bug.planted, Streams(0)), *level)
    assert check(ExaminedSpecimen(bug.twin, Streams(0)), *level) is None


def test_a_generator_no_checkpoint_keeps_fails_on_resuming() -> None:
    bug = BY_NAME["generator restored wrongly on resume"]
    assert contract(ExaminedSpecimen(bug.planted, Streams(0))).startswith("resumed: ")


@pytest.mark.slow
def test_all_bugs_are_caught_and_no_twin_is_called_wrong() -> None:
    """7 twins on 3 seeds, each called wrong with probability 1% at most; these seeds are clean."""
    for seed in range(3):
        outcomes = list(selftest(seed))
        assert [o.bug.name for o in outcomes if o.bug.by not in o.found] == []
        assert [o.false_alarms for o in outcomes if o.false_alarms] == []
        assert max(o.seconds for o in outcomes) < 60
        assert all(o.passed for o in outcomes)


@pytest.mark.slow
def test_twins_are_called_wrong_as_rarely_as_stated(monkeypatch) -> None:
    """Sampled checks at alpha 0.2 on 40 seeds: more than ``limit`` alarms with p < 1e-6."""
    monkeypatch.setattr(detectors, "TRIALS", 400)
    monkeypatch.setattr(detectors, "TRAINING", 100)
    limit = binom.isf(1e-6, 40, 0.2)
    for specimen in (GAUSSIAN, LAPLACE):
        alarmed = 0
        for seed in range(40):
            examined = ExaminedSpecimen(specimen, Streams(seed))
            names = [name for name in detectors.SAMPLED if name != "floating point"]
            alarmed += any(detectors.SAMPLED[name](examined, 0.2 / 3) for name in names)
        assert alarmed <= limit


def test_a_missed_bug_and_a_false_alarm_are_both_failures(monkeypatch) -> None:
    """A correct defense in the place of a bug is not caught; a bug in that of a twin is alarmed."""
    monkeypatch.setattr(detectors, "TRIALS", 100)
    monkeypatch.setattr(detectors, "TRAINING", 40)
    bug = BY_NAME["L2 clip under L1 accounting"]
    quick = Specimen(bug.planted.defense.model_copy(update={"n_rounds": 1}))
    correct = Specimen(bug.twin.defense.model_copy(update={"n_rounds": 1}))
    missed, alarmed = selftest(0, [replace(bug, planted=correct), replace(bug, twin=quick)])
    assert not missed.passed
    assert not missed.found
    assert row(missed)[2] == "NOT CAUGHT"
    assert not alarmed.passed
    assert "FALSE ALARM, sensitivity" in text(alarmed)
    assert summary([missed, alarmed], [], []).startswith(
        "1 of 2 bugs caught, 1 false alarms on their correct twins; ordinary audits: 0 of 0 faults"
    )


def test_sampled_checks_share_the_stated_false_alarms(monkeypatch) -> None:
    """Floating point is checked only where the numbers that are sent are what counts."""
    levels: list[float] = []
    names = ("likelihood ratio", "noise statistics", "floating point")
    sampled = {name: lambda examined, alpha: levels.append(alpha) for name in names}
    monkeypatch.setattr(module, "SAMPLED", sampled)
    monkeypatch.setattr(module, "EXACT", {})
    assert module.alarms(GAUSSIAN, Streams(0)) == {}
    assert module.alarms(replace(GAUSSIAN, sends_floats=True), Streams(0)) == {}
    assert levels == [ALPHA / 2] * 2 + [ALPHA / 3] * 3


def test_the_correct_twin_sends_what_dp_dpsgd_sends() -> None:
    options = {"learning_rate": 0.5, "clip_norm": 0.5, "noise_multiplier": 1.0, "batch_size": 4}
    built_in = load_plugin("defenses", "dp-dpsgd")(**options, n_rounds=4, sampling="poisson")
    examined = ExaminedSpecimen(GAUSSIAN, Streams(1))
    ours, theirs = (
        detectors.CoupledWorlds(d, examined.problem, examined.setting, Streams(1), 1)
        for d in (examined.defense, built_in)
    )
    state, other = ours.start(), theirs.start()
    for k in range(1, 4):
        one = ours.play(state, k, ours.oracle(k))
        two = theirs.play(other, k, theirs.oracle(k))
        torch.testing.assert_close(one.sent["x"].payload, two.sent["x"].payload)
        state, other = one.state, two.state
    declared = built_in.mechanism(examined.setting, detectors.EAVESDROPPER, 1)
    assert tuple(declared.most) == tuple(examined.declared)


def test_each_test_of_white_noise_has_its_exact_level() -> None:
    """4 Kolmogorov-Smirnov tests of uniform p-values, 4,000 samples [3, 2], each at 1e-7."""
    rng = np.random.default_rng(0)
    samples = [white_noise_p_values(rng.standard_normal((3, 2))) for _ in range(4000)]
    for test in samples[0]:
        assert kstest([p[test][0] for p in samples], "uniform").pvalue > 1e-7, test


def test_white_noise_is_called_coloured_as_seldom_as_stated() -> None:
    """Of 5,000 samples [6, 3], p-values below 0.05: within 1e-6 limits of binomials with the stated
    level, and with half of it, as the tests are nearly independent."""
    rng = np.random.default_rng(0)
    alarmed = sum(white_noise_test(rng.standard_normal((6, 3)))[1] < 0.05 for _ in range(5_000))
    assert binom.ppf(1e-6, 5_000, 0.025) <= alarmed <= binom.isf(1e-6, 5_000, 0.05)


@pytest.mark.parametrize(
    "spoilt, test",
    [
        (lambda Z: Z / 2, "its size"),
        (lambda Z: Z + 0.5, "the mean of a column"),
        (lambda Z: np.hstack([Z[:, :1], Z[:, :-1]]), "correlation of two columns"),
        (lambda Z: np.hstack([2 * Z[:, :1], 0.7 * Z[:, 1:]]), "the size of a column"),
        (lambda Z: 0 * Z, "its size"),
    ],
)
def test_noise_that_is_not_white_is_told_how(spoilt, test) -> None:
    found, p = white_noise_test(spoilt(np.random.default_rng(1).standard_normal((300, 5))))
    assert found == test
    assert p < 1e-9


def test_scores_that_differ_below_1e_9_are_equal() -> None:
    n, rng = 400, np.random.default_rng(0)
    scores = np.zeros(n), np.full(n, 1e-12)
    assert from_scores(*scores, 0.0, 0.05, rng).value == 0
    unrounded = from_scores(*scores, 0.0, 0.05, rng, decimals=None)
    assert unrounded.value == pytest.approx(ceiling(n - n // 10, 0.0, 0.05))


def test_float32_laplace_exceeds_epsilon_1_by_its_low_bits(monkeypatch) -> None:
    """Rounded to 1e-4, the same scores certify nothing above epsilon 1 (false with p < 0.01)."""
    examined = ExaminedSpecimen(BY_NAME["float32 Laplace"].planted, Streams(3))
    assert examined.claim == pytest.approx(1.0)
    found = floating_point(examined, 0.01)
    assert float(re.search(r"at least ([\d.]+)", found)[1]) > 3

    def rounded(*args, decimals):
        return from_scores(*args, decimals=4)

    monkeypatch.setattr(detectors, "from_scores", rounded)
    assert floating_point(examined, 0.01) is None


def test_the_ring_is_a_mixing_matrix_with_unequal_weights() -> None:
    graph = uneven_ring(8).at(1)
    assert graph.symmetric
    assert graph.doubly_stochastic
    assert {graph.W[1, 0].item(), graph.W[1, 2].item()} == {0.25, 0.5}


def test_the_zoo_holds_at_least_16_bugs_with_names_of_their_own() -> None:
    assert len(BY_NAME) == len(BUGS) >= 16
    assert {bug.by for bug in BUGS} <= {*detectors.EXACT, *detectors.SAMPLED}
    assert all(
        type(twin.defense).__name__.startswith(("Private", "Snapped")) for twin in TWINS.values()
    )


def test_the_results_list_the_bugs_and_what_catches_them() -> None:
    bugs, audits, quiet = ResultTables.read(RESULTS).tables
    for table, mechanisms in ((audits, MECHANISMS), (quiet, WITHOUT_ATTACKS)):
        named = [(row[0], row[1] == "correct") for row in table.rows]
        assert named == [(m.name, m.is_correct) for m in mechanisms]
    listed = [(row[0], row[1], row[2].partition(",")[0]) for row in bugs.rows]
    assert listed == [(bug.name, bug.mistake, bug.by) for bug in BUGS]


def test_a_table_has_what_was_found_and_who_was_accused() -> None:
    """A missed fault and a false alarm are in capitals; a reason stands where there was an alarm."""
    fault, correct = MECHANISMS[0], next(m for m in MECHANISMS if m.is_correct)

    def said(mechanism, verdict):
        claim = SimpleNamespace(verdict=verdict, reason="why")
        return Said(mechanism, claim, 1.0, "noise")

    rows = [
        said_row(said(mechanism, verdict))
        for mechanism in (fault, correct)
        for verdict in (Verdict.UNSUPPORTED, Verdict.NOT_REFUTED, Verdict.SUPPORTED)
    ]
    assert [row[1:] for row in rows] == [
        ("fault", "unsupported", "found", "why"),
        ("fault", "not refuted", "MISSED", None),
        ("fault", "supported", "MISSED", None),
        ("correct", "unsupported", "FALSE ALARM", "why"),
        ("correct", "not refuted", "NOT SUPPORTED", None),
        ("correct", "supported", "passed", None),
    ]
    leaking = fault._replace(leaks=2**0.5)
    assert quiet_row(said(leaking, Verdict.REFUTED))[2:6] == (1.41, "refuted", "found", "noise")
    assert quiet_row(said(leaking._replace(leaks=inf), Verdict.NOT_REFUTED))[2::3] == ("inf", None)


@pytest.mark.slow
def test_the_command_prints_or_writes_and_fails_on_a_miss(monkeypatch, tmp_path) -> None:
    bug = BY_NAME["L2 clip under L1 accounting"]
    quick = replace(bug, planted=Specimen(bug.planted.defense.model_copy(update={"n_rounds": 1})))
    monkeypatch.setattr(module, "selftest", lambda seed: selftest(seed, [quick]))
    few = [m for m in MECHANISMS if m.name in ("the norm sent along", "noise in another order")]
    monkeypatch.setattr(
        catalogue, "ordinary_audits", lambda seed, some=few, **of: ordinary_audits(seed, some, **of)
    )
    quiet = [m for m in WITHOUT_ATTACKS if m.name in ("agent 0 bare", "private gossip")]
    monkeypatch.setattr(
        catalogue, "audits_without_attacks", lambda seed: audits_without_attacks(seed, quiet)
    )
    done = CliRunner().invoke(app, ["selftest", "--results", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert bug.name in done.stdout
    assert "1 of 1 bugs caught" in done.stdout
    assert "ordinary audits: 1 of 1 faults found" in done.stdout
    assert (
        "without attacks: 1 of 1 faults found (1 by exact-leak), 0 of 1 correct mechanisms accused and "
        "1 supported" in done.stdout
    )
    [row] = ResultTables.read(tmp_path / "selftest.json").tables[0].rows
    assert row[:2] == (bug.name, bug.mistake)
    assert (tmp_path / "selftest.csv").read_text().startswith("table,bug,")
    missed = replace(quick, planted=quick.twin)
    monkeypatch.setattr(module, "selftest", lambda seed: selftest(seed, [missed]))
    done = CliRunner().invoke(app, ["selftest", "--json", "--seed", "2"])
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert (found["seed"], found["passed"], found["bugs"][0]["found"]) == (2, False, {})


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_ordinary_audits_find_faults_and_pass_what_is_right(seed: int) -> None:
    """A correct mechanism is refuted by chance in 5% of audits at most, and the
    bounds are conservative: none of these was in 10 seeds."""
    wrong = [said.mechanism.name for said in ordinary_audits(seed) if not said.passed]
    assert wrong == []
