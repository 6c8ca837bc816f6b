"""Audits of single functions: figures by closed forms, verdicts, and a second opinion on them."""

import json

import numpy as np
import pytest

from dpaudit import mechanism
from dpaudit.accounting import gaussian_epsilon, gaussian_mu
from dpaudit.files.finding import Finding, Name, Role
from dpaudit.files.mechanism_file import MechanismConfig
from dpaudit.files.result import AuditResult, JudgedClaim
from dpaudit.files.verdict import Verdict
from dpaudit.mechanism.findings import LEVEL, SLACK, _dependence
from dpaudit.mechanism.function import FunctionHere, kept_randomness
from dpaudit.mechanism.source import examined, from_python, judged, run_mechanism
from dpaudit.progress import unreported
from dpaudit.verify.verdict import check, overall
from tests.mechanism.functions import clipped, gaussian, laplace

pytestmark = pytest.mark.usefixtures("few_far_seeds", "few_pairs")

CLAIM = {"epsilon": 3.0, "delta": 1e-5}


def found(
    function, claim=CLAIM, adjacency="replace-one", **options
) -> tuple[JudgedClaim, dict[Role, Finding]]:
    """The verdict and the findings by role, without a report."""
    asked = {"function": "a:b", "shape": (6,), "runs": 400, **options}
    content = {"mechanism": asked, "claim": [{"text": "ours", "adjacency": adjacency, **claim}]}
    verdict, findings = judged(from_python(content), function)
    return verdict, {finding.role: finding for finding in findings}


def test_gaussian_noise_is_accounted_by_its_closed_form() -> None:
    claim, findings = found(gaussian(1.6149))
    expected = gaussian_epsilon(1e-5, 2 / (1.6149 * (1 + SLACK)))  # 5.61: twice the clip norm
    assert findings[Role.MEASURED].value(Name.EPSILON) == pytest.approx(expected, rel=1e-6)
    assert claim.verdict is Verdict.UNSUPPORTED
    assert findings[Role.SENSITIVITY].value(Name.MEASURED) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("function", "premise"),
    [
        (lambda x: x + np.random.normal(0, 4, 2), "Noise was compared in 100 calls, and where it "
         "comes out far: what is rarer is not seen."),
        (lambda x: (np.random.random(2) < 0.5) * 1.0, "No upper end is accounted: the noise is not "
         "what a known function draws; its law is not confirmed."),
    ],
)  # fmt: skip
def test_what_a_verdict_assumes_beside_its_evidence(function, premise: str) -> None:
    options = {"function": "a:b", "shape": (2,), "sensitivity": 1.0, "runs": 100}
    config = from_python({"mechanism": options, "claim": [{"text": "ours", **CLAIM}]})
    judging, _, _ = examined(config, FunctionHere(function, config.mechanism), unreported)
    others = "Other inputs than those that were tried may leak more."
    assert judging.premise == f"{others} {premise}"


def test_calls_compose_as_releases_do() -> None:
    _, findings = found(gaussian(5.0), adjacency="add-remove", calls=4)
    expected = gaussian_epsilon(1e-5, 2 / (5.0 * (1 + SLACK)))  # sqrt(4) times one call
    assert findings[Role.MEASURED].value(Name.EPSILON) == pytest.approx(expected, rel=1e-6)


def test_laplace_noise_for_an_l2_clip_is_refuted() -> None:
    claim, findings = found(laplace(1 / 3), shape=(100,))
    assert claim.verdict is Verdict.REFUTED
    assert findings[Role.TEST].value(Name.EPSILON_LOWER_BOUND) > 3


def test_laplace_noise_of_a_distance_keeps_its_pure_epsilon() -> None:
    def noised(x: np.ndarray) -> np.ndarray:
        return x + np.random.laplace(0, 2.0, x.shape)

    claim, findings = found(noised, {"epsilon": 0.5}, sensitivity=1.0, norm="l1")
    epsilon = findings[Role.MEASURED].value(Name.EPSILON)
    assert epsilon == pytest.approx(0.5 / (1 + SLACK), rel=1e-6)
    assert claim.verdict not in (Verdict.REFUTED, Verdict.UNSUPPORTED)


def test_a_claim_that_holds_is_supported_by_what_was_measured() -> None:
    claim, findings = found(gaussian(2 / gaussian_mu(3.0, 1e-5)))  # exactly what it needs
    assert claim.verdict is Verdict.SUPPORTED
    assert all(premise.status == "examined" for premise in claim.premises)
    assert claim.range.accounted <= 3.0 < claim.range.measured < 3.01
    assert findings[Role.NULL_CONTROL].value(Name.EPSILON_LOWER_BOUND) == 0


@pytest.mark.slow
def test_noise_that_is_not_recognised_supports_no_claim() -> None:
    def uniform(x: np.ndarray) -> np.ndarray:
        return clipped(x) + np.random.uniform(-1e4, 1e4, x.shape)

    claim, findings = found(uniform)
    assert claim.verdict is Verdict.UNDERPOWERED
    assert Role.MEASURED not in findings
    assert findings[Role.NOISE].unconfirmed == ("the output",)


def test_noise_that_sometimes_is_missing_supports_no_claim() -> None:
    def rarely(x: np.ndarray) -> np.ndarray:
        noisy = clipped(x) + np.random.normal(0, 4.0, x.shape)
        return noisy if np.random.random() < 0.99 else clipped(x)

    claim, findings = found(rarely)
    assert claim.verdict is not Verdict.SUPPORTED
    assert Role.MEASURED not in findings


@pytest.mark.slow
def test_noise_from_a_pool_is_found() -> None:
    pool = np.random.default_rng(0).normal(0, 4.0, (40, 6))

    def pooled(x: np.ndarray) -> np.ndarray:
        return clipped(x) + pool[np.random.randint(40)]

    assert found(pooled)[0].verdict is Verdict.REFUTED


def dependence(change, n: int = 1_000) -> tuple[str, float]:
    """What is found of white noise [n, 3] that was changed, and of a sequence of it."""
    white = np.random.default_rng(1).normal(size=(n, 3))
    return _dependence(change(white), [change(white)[:, 0]])


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda z: np.concatenate([z[:500], 0.5 * z[500:]]), "the noise changes from call to call"),
        (lambda z: np.repeat(z[::2], 2, axis=0) + 0.1 * z, "calls in a row have like noise"),
    ],
)
def test_calls_that_depend_on_one_another_are_found(change, said: str) -> None:
    what, p = dependence(change)
    assert what == said
    assert p < LEVEL


@pytest.mark.parametrize("change", [lambda z: z, np.sign, lambda z: (z > 2).astype(float)])
def test_independent_calls_are_not_accused(change) -> None:
    assert dependence(change)[1] >= LEVEL  # false with probability LEVEL over seeds


def test_the_same_seed_gives_the_same_result() -> None:
    first, second = (found(gaussian(2.0), runs=100) for _ in range(2))
    assert first == second


def test_a_verdict_is_derived_again_from_its_evidence(tmp_path, report) -> None:
    mechanism.audit(gaussian(4.0), claim=CLAIM, shape=(6,), runs=500, out=tmp_path)
    result = json.loads((tmp_path / "audit.json").read_text())
    [checked] = check(result)
    assert (checked.answer, checked.verdict) == ("confirmed", "supported")
    assert list(overall(result)) == []
    assert "functions:gaussian" in (tmp_path / "report.html").read_text()


def test_a_config_names_an_importable_function(tmp_path) -> None:
    (tmp_path / "ours.py").write_text(
        "import numpy as np\n\n\ndef noised(x):\n    return x + np.random.normal(0, 4.0, x.shape)\n"
    )
    file = tmp_path / "mechanism.toml"
    file.write_text(
        f"[mechanism]\nfunction = '{tmp_path}/ours.py:noised'\nshape = [4]\nruns = 200\n"
        '[[claim]]\ntext = "ours"\nepsilon = 2.2\ndelta = 1e-5\nadjacency = "add-remove"\n'
    )
    result = run_mechanism(MechanismConfig.from_toml(file), tmp_path / "run")
    assert result.verdict in (Verdict.REFUTED, Verdict.UNSUPPORTED)
    assert {"DPA135", "DPA136"} <= set(result.note_codes)  # it does not clip
    assert AuditResult.read(tmp_path / "run" / "audit.json").to_json() == result.to_json()


def test_no_call_of_the_function_is_without_progress() -> None:
    """The search and the comparison of calls take most of the time, and neither has steps."""
    running, unnamed = dict[str, bool](), list[int]()

    def on_progress(what: str, done: int, total: int) -> None:
        running[what] = done < total

    def noised(x: np.ndarray) -> np.ndarray:
        unnamed.append(not any(running.values()))
        return x + np.random.normal(0, 2.0, x.shape)

    asked = {"function": "a:b", "shape": (6,), "runs": 400}
    claim = {"text": "ours", "adjacency": "replace-one", **CLAIM}
    config = from_python({"mechanism": asked, "claim": [claim]})
    with kept_randomness():
        examined(config, FunctionHere(noised, config.mechanism), on_progress)
    assert len(unnamed) > 800
    assert not any(unnamed)
