"""A budget that a training loop keeps: closed forms, exact stops, and files that survive."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import warnings
from contextlib import suppress
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpaudit import ledger
from dpaudit.accounting import Release, epsilon, gaussian_epsilon, gaussian_mu
from dpaudit.errors import ConfigError, RunError
from dpaudit.ledger import BudgetExceeded, BudgetWarning

SAMPLED = ledger.gaussian(4.0, sampling="poisson", sampling_rate=0.5)
pytestmark = pytest.mark.filterwarnings("ignore::dpaudit.ledger.BudgetWarning")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def released(budget, what, **more) -> int:
    """How many are counted before the budget stops them."""
    n = 0
    with suppress(BudgetExceeded):
        while True:
            budget.release(what, **more)
            n += 1
    return n


@pytest.mark.parametrize("composition", ["fixed", "gaussian-filter"])
@pytest.mark.parametrize("adjacency, shift", [("add-remove", 1), ("replace-one", 2)])
def test_gaussian_noise_stops_at_the_sum_of_mu_squared(path, composition, adjacency, shift) -> None:
    budget = ledger.open(
        path, epsilon=4.0, delta=1e-5, adjacency=adjacency, composition=composition
    )
    most = gaussian_mu(4.0, 1e-5) ** 2 / (shift / 5.0) ** 2
    assert budget.remaining(ledger.gaussian(5.0)) == int(most)
    assert released(budget, ledger.gaussian(5.0)) == int(most)
    mu = shift / 5.0 * int(most) ** 0.5
    assert budget.spent() == pytest.approx(gaussian_epsilon(1e-5, mu))


def test_laplace_noise_stops_at_the_sum_of_epsilons(path) -> None:
    """0.1 ten times is 1, whatever the rounding."""
    budget = ledger.open(path, epsilon=1.0)
    assert released(budget, ledger.laplace(10.0)) == 10
    assert budget.spent() == pytest.approx(1.0)
    assert not budget.can_release(ledger.event(1e-6))


def test_sampled_noise_stops_where_one_more_is_too_much(path) -> None:
    budget = ledger.open(path, epsilon=2.0, delta=1e-5)
    n = released(budget, SAMPLED)

    def composed(count: int) -> float:
        return epsilon([SAMPLED.model_copy(update={"count": count})], 1e-5).high

    assert composed(n) <= 2.0 < composed(n + 1)
    assert budget.spent() == composed(n)
    assert budget.remaining(SAMPLED) == 0


def test_events_add_their_epsilon_and_take_their_delta(path) -> None:
    budget = ledger.open(path, epsilon=2.0, delta=1e-5)
    budget.release(ledger.gaussian(4.0))
    budget.release(ledger.event(0.25, 1e-6), count=2)
    assert budget.spent() == pytest.approx(gaussian_epsilon(8e-6, 0.25) + 0.5)
    assert not budget.can_release(ledger.event(0.0, 9e-6))
    assert not budget.can_release(ledger.event(1.3))


def test_each_agent_has_the_budget_and_shares_count_for_all(path) -> None:
    budget = ledger.open(path, epsilon=1.0)
    budget.release(ledger.laplace(2.0))
    for agent in ("a", "b"):
        assert released(budget, ledger.laplace(4.0), agent=agent) == 2
    assert not budget.can_release(ledger.laplace(1000.0))
    assert budget.spent("a") == pytest.approx(1.0)
    assert budget.spent("c") == pytest.approx(0.5)
    again = ledger.open(path, epsilon=1.0)
    assert (again.remaining(ledger.laplace(4.0), agent="c"), again.spent("b")) == (2, 1.0)


def test_a_filter_takes_noise_that_falls_or_rises(path) -> None:
    """Smith and Thakurta 2022: only the sum of mu^2 counts, in any order."""
    budget = ledger.open(path, epsilon=3.0, delta=1e-6, composition="gaussian-filter")
    for noise in (9.0, 3.0, 27.0, 4.5):
        budget.release(ledger.gaussian(noise))
    mu = sum(noise**-2 for noise in (9.0, 3.0, 27.0, 4.5)) ** 0.5
    assert budget.spent() == pytest.approx(gaussian_epsilon(1e-6, mu))
    for other in (ledger.laplace(100.0), SAMPLED, ledger.event(0.01)):
        assert not budget.can_release(other)


def test_a_renyi_filter_allows_fewer_than_exact_composition(tmp_path) -> None:
    fields = {"epsilon": 2.0, "delta": 1e-5}
    exact = ledger.open(tmp_path / "fixed", **fields).remaining(SAMPLED)
    fields |= {"composition": "renyi-filter", "expected": SAMPLED}
    budget = ledger.open(tmp_path / "renyi", **fields)
    count = budget.remaining(SAMPLED)
    assert 0.6 * exact < count < exact
    budget.release(SAMPLED, count=count)
    assert 1.5 < budget.spent() <= 2.0
    with pytest.raises(BudgetExceeded):
        budget.release(ledger.laplace(1.0))


noises = st.floats(0.5, 20.0)
releases = st.one_of(
    st.builds(ledger.gaussian, noises),
    st.builds(ledger.laplace, noises),
    st.builds(ledger.event, st.floats(0.01, 0.3)),
)


tried_releases = st.lists(st.tuples(releases, st.integers(1, 3)), max_size=5)
compositions = st.sampled_from(["fixed", "renyi-filter", "gaussian-filter"])


@settings(max_examples=8, deadline=None, derandomize=True)
@given(tried=tried_releases, composition=compositions)
def test_what_is_counted_never_exceeds_the_budget(tmp_path_factory, tried, composition) -> None:
    never_exceeds(tmp_path_factory.mktemp("ledgers") / "ledger.jsonl", tried, composition)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(tried=tried_releases, composition=compositions)
def test_it_never_does_in_many_examples(tmp_path_factory, tried, composition) -> None:
    never_exceeds(tmp_path_factory.mktemp("ledgers") / "ledger.jsonl", tried, composition)


def never_exceeds(path, tried, composition) -> None:
    """And equals what composing all of it at once gives."""
    expected = ledger.gaussian(4.0) if composition == "renyi-filter" else None
    fields = {"epsilon": 2.0, "delta": 1e-4, "composition": composition, "expected": expected}
    budget = ledger.open(path, **fields, warn_at=1.0)
    kept, events = [], 0.0
    for what, count in tried:
        if not budget.can_release(what, count=count):
            with pytest.raises(BudgetExceeded):
                budget.release(what, count=count)
            continue
        budget.release(what, count=count)
        if isinstance(what, Release):
            kept.append(what.model_copy(update={"count": count}))
        else:
            events += count * what.epsilon
    exact = epsilon(kept, 1e-4) if kept else (0.0, 0.0)
    assert exact[0] + (events if composition == "fixed" else 0.0) <= 2.0 * (1 + 1e-6)
    assert budget.spent() <= 2.0 * (1 + 1e-6)
    if composition == "fixed":
        assert exact[0] + events <= budget.spent() * (1 + 1e-9) <= (exact[1] + events) * (1 + 1e-8)
    assert ledger.open(path, **fields).spent() == pytest.approx(budget.spent())


def test_more_kinds_than_are_composed_exactly_are_never_less(path, monkeypatch) -> None:
    monkeypatch.setattr("dpaudit.ledger.accounts.MOST_KINDS", 3)
    budget = ledger.open(path, epsilon=5.0, delta=1e-5)
    noises = [8.0 + i / 3 for i in range(6)]
    for noise in noises:
        budget.release(ledger.gaussian(noise))
    exact = gaussian_epsilon(1e-5, sum(noise**-2 for noise in noises) ** 0.5)
    assert exact <= budget.spent() <= exact * 1.002


def test_noise_that_falls_step_by_step_stops_where_it_must(path) -> None:
    budget = ledger.open(path, epsilon=6.0, delta=1e-5)
    kept = []
    with suppress(BudgetExceeded):
        for i in range(1_000):
            one = ledger.gaussian(20.0 * 0.995**i)
            budget.release(one)
            kept.append(one)
    assert len(kept) < 1_000
    assert epsilon(kept, 1e-5).high <= 6.0
    more = ledger.gaussian(20.0 * 0.995 ** len(kept) / 1.01)
    assert epsilon([*kept, more], 1e-5).high > 6.0


def test_a_warning_comes_once_before_the_end(path) -> None:
    budget = ledger.open(path, epsilon=1.0, warn_at=0.75)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        released(budget, ledger.laplace(10.0))
    [warning] = caught
    assert warning.category is BudgetWarning
    assert "spends more than 75% of epsilon 1" in str(warning.message)
    assert warning.filename == __file__


def test_a_refused_release_is_not_in_the_file(path) -> None:
    budget = ledger.open(path, epsilon=1.0)
    budget.release(ledger.laplace(2.0), note="first")
    before = path.read_bytes()
    with pytest.raises(BudgetExceeded, match="would exceed epsilon 1 at delta 0; .* add up to 0.5"):
        budget.release(ledger.laplace(1.0))
    assert path.read_bytes() == before
    assert json.loads(before.splitlines()[1]) == {
        "release": {"family": "laplace", "noise_multiplier": 2.0},
        "note": "first",
    }


def test_without_noise_nothing_fits(path) -> None:
    budget = ledger.open(path, epsilon=1e6, delta=0.5)
    assert not budget.can_release(ledger.gaussian(0.0))
    budget.release(ledger.laplace(1.0))
    assert budget.spent() < inf


def test_gaussian_noise_does_not_fit_a_budget_with_delta_0(path) -> None:
    assert not ledger.open(path, epsilon=9.0).can_release(ledger.gaussian(5.0))


@pytest.mark.parametrize("torn", [b'{"release": {"fam', b"{", b'{"release": {}}'])
def test_a_line_of_a_killed_program_is_removed(path, torn) -> None:
    ledger.open(path, epsilon=1.0).release(ledger.laplace(2.0))
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    budget = ledger.open(path, epsilon=1.0)
    assert (path.read_bytes(), budget.spent()) == (whole, 0.5)
    budget.release(ledger.laplace(2.0))
    assert ledger.open(path, epsilon=1.0).spent() == 1.0


def test_a_last_line_whose_end_is_missing_counts(path) -> None:
    ledger.open(path, epsilon=1.0).release(ledger.laplace(2.0))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    budget = ledger.open(path, epsilon=1.0)
    assert (path.read_bytes(), budget.spent()) == (whole, 0.5)
    budget.release(ledger.laplace(2.0))
    assert ledger.open(path, epsilon=1.0).spent() == 1.0


def test_a_file_killed_before_its_first_line_begins_anew(path) -> None:
    path.write_bytes(b'{"format": "dpau')
    ledger.open(path, epsilon=1.0).release(ledger.laplace(2.0))
    assert len(path.read_bytes().splitlines()) == 2


@pytest.mark.parametrize(
    "change, code",
    [
        (lambda lines: [lines[0], b"{}"], "DPA082"),
        (lambda lines: [lines[0], b'{"release": {"family": "gaussian"}}'], "DPA082"),
        (lambda lines: [lines[0], lines[1].replace(b"2.0", b"-2.0")], "DPA082"),
        (lambda lines: [b'{"format": "other"}', lines[1]], "DPA082"),
        (lambda lines: [b"\xff", lines[1]], "DPA082"),
        (lambda lines: [lines[0].replace(b"1.0", b"2.0"), lines[1]], "DPA083"),
    ],
)
def test_a_changed_file_is_refused(path, change, code) -> None:
    ledger.open(path, epsilon=1.0).release(ledger.laplace(2.0))
    path.write_bytes(b"\n".join([*change(path.read_bytes().splitlines()), b""]))
    with pytest.raises(RunError) as caught:
        ledger.open(path, epsilon=1.0)
    assert caught.value.code == code


def test_a_file_that_loses_entries_is_refused(path) -> None:
    budget = ledger.open(path, epsilon=1.0)
    budget.release(ledger.laplace(2.0))
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    with pytest.raises(RunError, match="entries are missing"):
        budget.can_release(ledger.laplace(2.0))


@pytest.mark.parametrize(
    "change", [{"epsilon": 2.0}, {"delta": 1e-5}, {"adjacency": "replace-one"}]
)
def test_another_budget_is_refused(path, change) -> None:
    ledger.open(path, epsilon=1.0)
    with pytest.raises(RunError, match=f"its {next(iter(change))} is .*, not "):
        ledger.open(path, **{"epsilon": 1.0, **change})


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda path: ledger.gaussian(-1.0), "noise_multiplier: "),
        (lambda path: ledger.gaussian(1.0, sampling_rate=0.1), "sampling_rate=0.1 without sampling"),
        (lambda path: ledger.event(1.0, 2.0), "delta: "),
        (lambda path: ledger.open(path, epsilon=0.0), "epsilon: "),
        (lambda path: ledger.open(path, epsilon=1.0, composition="renyi-filter"), "say which release"),
        (lambda path: ledger.open(path, epsilon=1.0).release(ledger.laplace(1.0), count=0), "count"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_one_line(path, make, said) -> None:
    with pytest.raises(ConfigError) as caught:
        make(path)
    assert (caught.value.code, said in str(caught.value)) == ("DPA084", True)


def _spend(path, found) -> None:
    budget = ledger.open(path, epsilon=1.0, warn_at=1.0)
    found.put(released(budget, ledger.laplace(40.0)))


def test_two_processes_share_one_budget(path) -> None:
    context = multiprocessing.get_context("fork")
    found = context.Queue()
    ledger.open(path, epsilon=1.0)
    processes = [context.Process(target=_spend, args=(path, found)) for _ in range(2)]
    for process in processes:
        process.start()
    counts = [found.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert sum(counts) == 40
    assert len(path.read_bytes().splitlines()) == 41
    assert ledger.open(path, epsilon=1.0).spent() == pytest.approx(1.0)


def test_threads_share_one_budget(path) -> None:
    budget = ledger.open(path, epsilon=1.0, warn_at=1.0)
    counts = []
    threads = [
        threading.Thread(target=lambda: counts.append(released(budget, ledger.laplace(20.0))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counts) == 20


def test_a_killed_program_resumes_with_all_that_it_released(path, tmp_path) -> None:
    """The number of the last release is printed after it was counted."""
    program = (
        "import sys; from dpaudit import ledger\n"
        "budget = ledger.open(sys.argv[1], epsilon=1.0)\n"
        "while True: budget.release(ledger.laplace(1e5)); print(1, flush=True)\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", program, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
        for _ in range(5):
            running.stdout.readline()
        os.kill(running.pid, signal.SIGKILL)
        printed = 5 + len(running.stdout.read().splitlines())
    counted = round(ledger.open(path, epsilon=1.0).spent() * 1e5)
    assert printed <= counted <= printed + 1


def test_a_link_is_not_followed(path, tmp_path) -> None:
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError):
        ledger.open(path, epsilon=1.0)


def test_importing_a_ledger_needs_no_torch() -> None:
    code = "import sys; from dpaudit import ledger; ledger.open; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.slow
def test_ten_thousand_releases_need_few_compositions(path, monkeypatch) -> None:
    """Each is a third of a second; 5.2 is what 10,000 of them come to."""
    from dpaudit.ledger import accounts

    accounts._epsilon.cache_clear()
    budget = ledger.open(path, epsilon=5.2, delta=1e-5)
    step = ledger.gaussian(1.1, sampling="poisson", sampling_rate=0.01)
    for _ in range(10_000):
        budget.release(step)
    assert accounts._epsilon.cache_info().misses < 60
