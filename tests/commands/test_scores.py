"""`dpaudit epsilon-from-scores`: certified bounds from scores that somebody else computed."""

import json
import os
import pickle
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import beta, binom, norm
from typer.testing import CliRunner

from dpaudit.accounting import gaussian_epsilon
from dpaudit.commands import scores
from dpaudit.commands.cli import app
from dpaudit.statistics import guesses
from tests.said import without_help

FALSE_FAILURE = 1e-9  # probability that a correct bound fails a test, over fresh seeds
DELTA, ALPHA = 1e-5, 0.05
LONG = np.dtype("longdouble")  # of 8 bytes on some machines


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """10 scores of 500 that were left out, and 400 of 500 included, are above 0."""
    np.save(tmp_path / "out.npy", np.where(np.arange(500) < 10, 1.0, -1.0))
    np.save(tmp_path / "in.npy", np.where(np.arange(500) < 400, 1.0, -1.0))
    return tmp_path


def said(folder: Path, *arguments: str) -> tuple[int, str]:
    """The exit code, and what was printed."""
    paths = [str(folder / "in.npy"), str(folder / "out.npy")]
    done = CliRunner().invoke(app, ["epsilon-from-scores", *paths, *arguments])
    return done.exit_code, done.stdout + without_help(done.stderr)


def found(folder: Path, *arguments: str) -> dict:
    code, text = said(folder, "--json", *arguments)
    assert code == 0, text
    return json.loads(text)


def test_a_given_threshold_counts_all_scores(files) -> None:
    fpr, fnr = beta.isf(ALPHA / 2, [11, 101], [490, 400])  # Clopper and Pearson, of 10 and 100
    figures = found(files, "--threshold", "0")
    counts = [figures[name] for name in ("false_positives", "false_negatives", "n_out", "n_in")]
    assert counts == [10, 100, 500, 500]
    expected = np.log((1 - DELTA - fnr) / fpr)
    assert figures["epsilon_lower_bound"] == pytest.approx(expected, rel=1e-9)
    most = 1 - (ALPHA / 2) ** (1 / 500)  # the rate that no error of 500 leaves
    assert figures["ceiling"] == pytest.approx(np.log((1 - DELTA - most) / most), rel=1e-9)


def test_the_family_gives_mu_and_its_epsilon(files) -> None:
    figures = found(files, "--threshold", "0", "--family", "gaussian")
    fpr, fnr = beta.isf(ALPHA / 2, [11, 101], [490, 400])
    mu = norm.isf(fpr) - norm.ppf(fnr)
    assert figures["mu_lower_bound"] == pytest.approx(mu, rel=1e-6)
    assert figures["epsilon_lower_bound"] == pytest.approx(gaussian_epsilon(DELTA, mu), rel=1e-6)


def randomised_response(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores of n included canaries and of n left out: answers of epsilon 1, by coin."""
    truth = expit(1.0)
    return rng.binomial(1, truth, n).astype(float), rng.binomial(1, 1 - truth, n).astype(float)


def by_counts(rng: np.random.Generator, seed: int) -> float:
    return scores.by_counts(*randomised_response(rng, 300), 0.0, ALPHA, None, None, seed)[
        "epsilon_lower_bound"
    ]


def by_guesses(rng: np.random.Generator, seed: int) -> float:
    """Ties at both answers: which of them are guessed on must know nothing of the coins."""
    n_in = int(rng.binomial(600, 0.5))
    included, left_out = randomised_response(rng, 600)
    return scores.by_guesses(included[:n_in], left_out[n_in:], 0.0, ALPHA, None, None, seed)[
        "epsilon_lower_bound"
    ]


@pytest.mark.parametrize("bound", [by_counts, by_guesses])
def test_a_bound_is_wrong_as_seldom_as_alpha_says(bound, monkeypatch) -> None:
    monkeypatch.setattr(guesses, "epsilon_from_guesses", cache(guesses.epsilon_from_guesses))
    rng, trials = np.random.default_rng(20261126), 100
    wrong = sum(bound(rng, seed) > 1 for seed in range(trials))
    assert wrong <= binom.isf(FALSE_FAILURE, trials, ALPHA)


def test_equal_scores_of_one_run_prove_nothing(tmp_path) -> None:
    np.save(tmp_path / "in.npy", np.zeros(500))
    np.save(tmp_path / "out.npy", np.zeros(500))
    for seed in range(3):  # 0.3% to guess 61 of 100 right
        assert found(tmp_path, "--one-run", "--seed", str(seed))["epsilon_lower_bound"] < 0.5


def test_one_run_is_guessed_on_by_ranks_alone(files) -> None:
    rng = np.random.default_rng(3)
    included, left_out = rng.normal(3, 1, 500), rng.normal(0, 1, 500)
    np.save(files / "in.npy", included)
    np.save(files / "out.npy", left_out)
    first = found(files, "--one-run")
    assert first["right_guesses"] == first["guesses"] == 100
    assert first["epsilon_lower_bound"] == first["ceiling"] > 3
    np.save(files / "in.npy", np.where(included > 4, np.inf, np.exp(included)).astype("f4"))
    np.save(files / "out.npy", np.exp(left_out).astype("f4"))
    assert found(files, "--one-run") == first


def test_small_scores_are_counted_like_large_ones(files) -> None:
    rng = np.random.default_rng(5)
    included, left_out = rng.normal(2, 1, 1000), rng.normal(0, 1, 1000)
    bounds = []
    for scale in (1.0, 2.0**-40):
        np.save(files / "in.npy", scale * included)
        np.save(files / "out.npy", scale * left_out)
        bounds.append(found(files)["epsilon_lower_bound"])
    assert bounds[0] == bounds[1] > 1


class Planted:
    """Runs a command when it is unpickled."""

    def __reduce__(self):
        return os.system, ("touch planted",)


@pytest.mark.parametrize(
    "content, line",
    [
        (np.array([1.0, np.nan]), "1 of 2 scores are NaN"),
        (np.zeros(0), "expected 2 to 100,000,000 scores, got 0"),
        (np.zeros(1), "expected 2 to 100,000,000 scores, got 1"),
        (np.zeros((3, 2)), "expected one list of scores [n], got shape [3, 2]"),
        (np.float64(1.0), "expected one list of scores [n], got shape []"),
        (np.zeros(4, "f2"), "expected float32, float64 or integers, got float16"),
        *([(np.zeros(4, LONG), f"float64 or integers, got {LONG}")] if LONG.itemsize > 8 else []),
        (np.zeros(4, "c8"), "expected float32, float64 or integers, got complex64"),
        (np.zeros(4, bool), "expected float32, float64 or integers, got bool"),
        (np.array(["a", "b"]), "expected float32, float64 or integers, got <U1"),
        (np.array([Planted(), None]), "it holds Python objects, which are not loaded"),
    ],
    ids=lambda value: "" if isinstance(value, str) else None,
)
def test_what_is_no_list_of_scores_is_refused(files, content, line, monkeypatch) -> None:
    monkeypatch.chdir(files)
    np.save(files / "in.npy", content, allow_pickle=True)
    code, text = said(files)
    assert (code, text.count("\n")) == (2, 1)
    assert text.startswith(f"error: {files / 'in.npy'}: ")
    assert text.rstrip().endswith(line)
    assert not (files / "planted").exists()


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


def with_long_header(path: Path) -> None:
    """A header that asks for 8 TB."""
    content = path.read_bytes()
    long = content.replace(b"(500,), }" + 10 * b" ", b"(1000000000000,), }")
    assert long != content
    path.write_bytes(long)


def with_odd_header(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"(500,), }", b"(10**12,)"))


def pickled(path: Path) -> None:
    path.write_bytes(pickle.dumps(Planted()))


def archived(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, scores=np.zeros(4))


@pytest.mark.parametrize(
    "damage",
    [
        cut_off,
        with_long_header,
        with_odd_header,
        pickled,
        archived,
        Path.unlink,
        lambda p: p.write_text(""),
    ],
)
def test_a_damaged_file_is_one_line(files, damage, monkeypatch) -> None:
    monkeypatch.chdir(files)
    damage(files / "out.npy")
    code, text = said(files)
    assert (code, text.count("\n")) == (2, 1), text
    assert text.startswith(f"error: {files / 'out.npy'}: ")
    assert not (files / "planted").exists()


def test_a_text_is_not_said_to_hold_objects(files) -> None:
    (files / "in.npy").write_text("0.5\n0.7\n")
    code, text = said(files)
    assert (code, text.count("\n")) == (2, 1)
    assert text.rstrip().endswith("not a .npy file of numbers: it does not begin as one")


@pytest.mark.filterwarnings("error")
def test_scores_whose_squares_overflow_are_counted(files) -> None:
    np.save(files / "in.npy", np.tile([1.7e308, -1.7e308], 50))
    assert said(files)[0] == 0


@pytest.mark.parametrize(
    "arguments, line",
    [
        (["--delta", "1"], "--delta: expected at least 0 and below 1, got 1"),
        (["--delta", "nan"], "--delta: expected at least 0 and below 1, got nan"),
        (["--alpha", "0"], "--alpha: expected above 0 and below 0.5, got 0"),
        (["--alpha", "1e-320"], "--alpha: expected at least 1e-12, got "),
        (["--threshold", "nan"], "--threshold: expected a number, got nan"),
        (["--guesses", "9"], "--guesses: expected --one-run; without it every score is counted"),
        (["--one-run", "--guesses", "1001"], "--guesses: expected 1 to 1,000, the canaries, got"),
        (["--one-run", "--threshold", "1"], "--threshold: guesses of --one-run have no threshold"),
        (["--family", "gaussian", "--delta", "0"], "--delta: expected above 0: Gaussian noise"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(files, arguments, line) -> None:
    code, text = said(files, *arguments)
    assert (code, text.count("\n")) == (2, 1)
    assert text.startswith(f"error: {line}")


def test_coins_that_were_not_fair_are_refused(files) -> None:
    np.save(files / "in.npy", np.arange(100.0))
    code, text = said(files, "--one-run")
    assert code == 2
    assert "100 of 600 canaries were included, which fair coins give with probability" in text
