"""Findings in frameworks: each formula written anew, its corrected twin, and the installed code.

The slow test calls the installed packages. DPAUDIT_ENVIRONMENTS names the folder that holds an
environment for each framework, as `dpaudit reproduce frameworks --environments` takes it.
"""

import json
import os
from math import ceil, exp, inf, log, sqrt
from pathlib import Path

import numpy as np
import pytest
from scipy.special import ndtr

from dpaudit.accounting import gaussian_epsilon, gaussian_mu
from dpaudit.accounting.releases import Release, epsilon
from dpaudit.errors import ConfigError
from dpaudit.files.claims_file import Claims
from dpaudit.files.config import read_toml
from dpaudit.files.published import ResultTables
from dpaudit.files.verdict import Verdict
from dpaudit.mechanism import rare_outputs
from dpaudit.mechanism.function import load
from dpaudit.mechanism.source import from_python, judged
from dpaudit.papers.frameworks import (
    EXAMPLES,
    FINDINGS,
    Framework,
    FrameworkFinding,
    audited,
    configs,
    frameworks,
    interpreter_in,
    refuse_other_lines,
    tables,
)

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "frameworks.json"
CLASSICAL = sqrt(2 * log(1.25 / 1e-5))  # of the formula for epsilon below 1
NAMES = sorted(frameworks())


@pytest.fixture(autouse=True)
def _few_far_seeds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth: no finding rests on noise far out, which has tests of its own."""
    if not request.node.get_closest_marker("slow"):
        monkeypatch.setattr(rare_outputs, "MOST_NUMBERS", 2 * 10**5)


def laplace_epsilon(distance: float, scale: float) -> float:
    """Of one number that moves by a distance."""
    release = Release(family="laplace", noise_multiplier=scale / distance, count=1)
    return float(epsilon([release], 0.0, "add-remove").high)


@pytest.mark.parametrize(
    "claimed, distance, messages, expected",
    [
        (3.0, 1, 1, 2.5333),  # p2pfl: an update and none
        (3.0, 2, 1, 5.6178),  # two updates
        (3.0, 1, 4, 5.6178),  # four copies, an update and none
        (3.0, 2, 4, 13.0526),
        (3.0, 2, 80, 107.7464),  # twenty rounds
        (1.0, 1, 1, 0.7510),  # LocalDpMod with sensitivity = clipping norm
        (1.0, 2, 1, 1.6103),
        (1.0, 1, 20, 3.9908),
        (1.0, 2, 20, 9.0625),
    ],
)
def test_the_classical_formula_composes_to_these_epsilons(
    claimed: float, distance: float, messages: int, expected: float
) -> None:
    mu = distance * sqrt(messages) * claimed / CLASSICAL
    assert gaussian_epsilon(1e-5, mu) == pytest.approx(expected, abs=5e-5)


def test_the_exact_formula_for_one_value_is_not_for_two() -> None:
    assert gaussian_epsilon(1e-5, 2 * gaussian_mu(3.0, 1e-5)) == pytest.approx(6.706, abs=5e-4)


def test_laplace_noise_hides_the_l1_distance() -> None:
    d, scale = 16, 1 / 3
    moved = 2 / sqrt(d)  # of each number, between opposite updates of L2 norm 1
    assert d * laplace_epsilon(moved, scale) == pytest.approx(24.0)
    assert 10 * laplace_epsilon(2 * 0.01, 2 * 0.01 / 1.0) == pytest.approx(10.0)  # appfl, ten steps


@pytest.mark.parametrize("scale", [1.0, 4.845, 100.0])
def test_noise_cut_off_to_integers_shows_zero(scale: float) -> None:
    zero, one = ndtr(1 / scale) - ndtr(-1 / scale), ndtr(2 / scale) - ndtr(1 / scale)
    assert log(zero / one) > log(2)  # Gaussian noise of that scale: about 1 / scale**2 / 2


def test_noise_of_a_short_seed_is_tried_out() -> None:
    values = np.zeros(3), np.ones(3)
    sent = values[1] + np.random.RandomState(173).normal(0, 100.0, 3)
    tried = (sent - np.random.RandomState(seed).normal(0, 100.0, 3) for seed in range(256))
    found = [i for rest in tried for i in (0, 1) if np.allclose(rest, values[i])]
    assert found == [1]  # of 2**31 keys or 2**32 seeds it takes 2**23 times as long


def test_an_exact_norm_beside_noise_is_refuted() -> None:
    def message(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        norm = float(np.linalg.norm(x))
        return np.append(x / max(norm, 1.0) + rng.normal(0, CLASSICAL / 3, x.shape), norm)

    verdict = _verdict("message", message, {"epsilon": 3.0, "delta": 1e-5}, output_shape=(5,))
    assert verdict is Verdict.REFUTED


def _verdict(name: str, function, claim: dict[str, float], **options) -> Verdict:
    asked = {"function": f"a:{name}", "shape": (4,), "runs": 200, **options}
    stated = {"text": name, "adjacency": "replace-one", **claim}
    return judged(from_python({"mechanism": asked, "claim": [stated]}), function)[0].verdict


@pytest.mark.parametrize(
    "twin, claim, options",
    [
        ("p2pfl/twin.py:gaussian", {"epsilon": 3.0, "delta": 1e-5}, {}),
        pytest.param(
            "p2pfl/twin.py:of_twenty_rounds",
            {"epsilon": 3.0, "delta": 1e-5},
            {"calls": 20},
            marks=pytest.mark.slow,
        ),
        pytest.param("p2pfl/twin.py:laplace", {"epsilon": 3.0}, {}, marks=pytest.mark.slow),
        pytest.param(
            "flwr/twin.py:local_dp",
            {"epsilon": 1.0, "delta": 1e-5},
            {},
            marks=pytest.mark.slow,
        ),
        pytest.param("nvflare/twin.py:laplace", {"epsilon": 0.3}, {}, marks=pytest.mark.slow),
        pytest.param(
            "appfl/twin.py:ten_steps",
            {"epsilon": 1.0},
            {"shape": (10, 4), "output_shape": (4,), "library": "torch", "dtype": "float32"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_corrected_twin_is_supported(twin: str, claim: dict, options: dict) -> None:
    assert _verdict(twin, load(f"{EXAMPLES / twin}"), claim, **options) is Verdict.SUPPORTED


def test_the_sparse_vector_of_nvflare_keeps_its_ledger() -> None:
    """One of three numbers is drawn from those above a noised threshold: exact, by integration."""
    gamma, n_upload, whole = 1.0, 1, 0.1
    ratio = (2 * n_upload) ** (2 / 3)
    threshold_epsilon = whole / (1 + ratio)
    scale = 2 * gamma * n_upload / (whole - threshold_epsilon)

    def selected(sizes: tuple[float, float, float]) -> np.ndarray:
        rho = np.linspace(-40, 40, 8001) * gamma / threshold_epsilon
        weight = np.exp(-np.abs(rho) * threshold_epsilon / gamma)
        apart = rho - np.array(sizes)[:, None]
        above = np.where(apart < 0, 1 - np.exp(apart / scale) / 2, np.exp(-apart / scale) / 2)
        a, b, c = above
        first = a * ((1 - b) * (1 - c) + (b * (1 - c) + c * (1 - b)) / 2 + b * c / 3)
        nobody = (1 - a) * (1 - b) * (1 - c)  # another pass follows, with the same threshold
        return (weight * first / np.maximum(1 - nobody, 1e-300)).sum() / weight.sum()

    ends = [(x, y, z) for x in (0.0, 1.0) for y in (0.0, 1.0) for z in (0.0, 1.0)]
    probabilities = [selected(sizes) for sizes in ends]
    assert selected((0.0, 0.0, 0.0)) == pytest.approx(1 / 3, rel=1e-3)
    assert max(probabilities) / min(probabilities) <= exp(whole)
    assert whole + ceil(7850 * 0.1) * 0.1 == pytest.approx(78.6)  # with what is released


def test_every_finding_names_a_check_of_its_claims_file() -> None:
    for name, framework in frameworks().items():
        content, _ = read_toml(EXAMPLES / name / "audit.toml")
        checks = {check.name for check in Claims.model_validate(content).check}
        assert {one.check for one in framework.finding if one.check} <= checks
        assert [check for check, _ in configs(name, Path("python"))] == list(
            check["name"] for check in content["check"]
        )


def test_published_findings_are_those_of_the_catalogue() -> None:
    published = ResultTables.model_validate_json(RESULTS.read_bytes())
    assert published.tables[0] == tables([]).tables[0]
    assert published.tables[0].columns == FINDINGS
    audits = {(row[0], row[1]) for row in published.tables[1].rows}
    known = {(name, check) for name in NAMES for check, _ in configs(name, Path("python"))}
    assert audits == known


def test_published_twins_are_supported() -> None:
    published = ResultTables.model_validate_json(RESULTS.read_bytes())
    twins = [row for row in published.tables[1].rows if str(row[1]).startswith("twin")]
    assert len(twins) >= 8
    assert {row[5] for row in twins} == {"supported"}


def made(folder: Path, version: str = "1.0") -> Framework:
    """An environment that has a package of one file."""
    place = folder / "some" / "lib" / "python3.11" / "site-packages"
    (place / f"some-{version}.dist-info").mkdir(parents=True)
    (folder / "some" / "bin").mkdir()
    (folder / "some" / "bin" / "python").touch()
    (place / "some.py").write_text("a = 1\n    noise = 0\n")
    return Framework(
        "some", "1.0", (), (FrameworkFinding("", "", "", file="some.py", line=2, code="noise = 0"),)
    )


def test_another_package_than_that_of_the_findings_is_refused(tmp_path: Path) -> None:
    framework = made(tmp_path)
    assert interpreter_in(tmp_path, framework, False).name == "python"
    refuse_other_lines(tmp_path / "some", framework)
    (other,) = framework.finding
    moved = framework._replace(finding=(other._replace(line=1),))
    with pytest.raises(ConfigError, match="line 1 is not `noise = 0`"):
        refuse_other_lines(tmp_path / "some", moved)
    with pytest.raises(ConfigError, match=r"some has no some 2\.0"):
        interpreter_in(tmp_path, framework._replace(version="2.0"), False)
    with pytest.raises(ConfigError, match=r"other/bin/python is not there") as error:
        interpreter_in(tmp_path, framework._replace(name="other"), False)
    assert error.value.code == "DPA057"


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_installed_package_shows_what_is_published(name: str) -> None:
    """Figures are of a fixed seed, but for OpenDP, whose runs may refute or not."""
    folder = os.environ.get("DPAUDIT_ENVIRONMENTS")
    if folder is None or not (Path(folder) / name).is_dir():
        pytest.skip(f"DPAUDIT_ENVIRONMENTS has no environment of {name}")
    framework = frameworks()[name]
    python = interpreter_in(Path(folder), framework, make=False)
    refuse_other_lines(Path(folder) / name, framework)
    rows = json.loads(RESULTS.read_text())["tables"][1]["rows"]
    published = {row[1]: row for row in rows if row[0] == name}
    for check, config in configs(name, python):
        found = audited(name, check, config)
        drawn = config.mechanism.own_randomness
        expected = ("refuted", "not refuted") if drawn else (published[check][5],)
        assert found.verdict in expected, check
        low = found.measured[0] if found.measured else 0.0
        assert published[check][6] == found.row[6] or low == inf, check
