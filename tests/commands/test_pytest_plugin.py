"""The pytest plugin: a fixture, a marker for long audits, and a section of the summary."""

import importlib.metadata
from pathlib import Path

import pytest

from dpaudit.commands.pytest_plugin import PrivacyAudit
from dpaudit.errors import ConfigError
from dpaudit.files.finding import Finding, Metric, Role
from dpaudit.files.result import AuditResult, Premise
from dpaudit.files.verdict import Verdict

pytest_plugins = ["pytester"]
GOLDEN = AuditResult.read(Path(__file__).parents[1] / "golden" / "audit.json")
AUDIT = {
    "seed": 3,
    "data": {"name": "digits", "n_agents": 4},
    "graph": {"name": "ring"},
    "model": {"name": "logistic"},
    "defense": {"name": "dp-dpsgd", "n_rounds": 2, "batch_size": 4, "noise_multiplier": 9.0},
}
TESTS = f"""
import pytest

AUDIT = {AUDIT}

def claim(epsilon):
    return {{**AUDIT, "claim": [{{"text": "ours", "epsilon": epsilon, "delta": 1e-5}}]}}

def test_generous(privacy_audit):
    audit = privacy_audit(claim(5.0), cores=1)
    audit.assert_not_refuted()
    audit.assert_supported()

def test_bold(privacy_audit):
    privacy_audit(claim(0.0001), cores=1).assert_not_refuted()

@pytest.mark.privacy_audit_slow
def test_long(privacy_audit):
    privacy_audit(claim(5.0), cores=1).assert_not_refuted(min_power=0.5)
"""


def test_the_plugin_is_an_entry_point() -> None:
    found = importlib.metadata.entry_points(group="pytest11")
    assert {"dpaudit": "dpaudit.commands.pytest_plugin"}.items() <= {
        e.name: e.value for e in found
    }.items()


def test_a_claims_text_stays_in_its_line() -> None:
    claim = GOLDEN.claims[0].model_copy(
        update={"sentence": "a\x1b[2J\n::error::b", "reason": "c\u202e\nd"}
    )
    audit = PrivacyAudit(GOLDEN.model_copy(update={"claims": (claim,)}))
    for fails in (audit.assert_not_refuted, audit.assert_supported):
        with pytest.raises(pytest.fail.Exception) as failed:
            fails()
        assert str(failed.value).isprintable()
        assert "a\\x1b[2J\\n::error::b" in str(failed.value)


def test_claims_are_tests_and_the_summary_says_what_was_found(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    done = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-W", "ignore")
    done.assert_outcomes(passed=1, failed=1, skipped=1)
    done.stdout.fnmatch_lines(
        [
            "ours: (0.0001, 1e-05)-DP for the whole run, *; against eavesdropper: UNSUPPORTED. C*",
            "*= privacy audits =*",
            "*::test_generous: SUPPORTED  ours: (5, 1e-05)-DP for the whole run*",
        ]
    )
    done.stdout.fnmatch_lines(["*::test_bold: UNSUPPORTED  ours: (0.0001, 1e-05)-DP*"])


@pytest.mark.slow
def test_slow_audits_run_when_asked_and_weak_ones_lack_power(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    done = pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", "-W", "ignore", "--privacy-audit-slow", "-k", "long", "--strict-markers"
    )  # fmt: skip
    done.assert_outcomes(failed=1, deselected=2)
    done.stdout.fnmatch_lines(["*the certified bound reaches 0 of the claim, min_power = 0.5"])


def test_a_path_is_relative_to_the_test(pytester) -> None:
    pytester.mkdir("inner")
    pytester.path.joinpath("inner", "test_it.py").write_text(
        "def test_it(privacy_audit):\n    privacy_audit('absent.toml')\n"
    )
    done = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*ConfigError: *inner/absent.toml: No such file or directory"])


def judged(verdict: Verdict, bound: float) -> PrivacyAudit:
    metrics = {"epsilon lower bound": bound, "claimed epsilon": 2.0}
    finding = Finding(
        role=Role.TEST,
        kind="empirical-epsilon",
        title="t",
        metrics={name: Metric(value=value) for name, value in metrics.items()},
    )
    claim = GOLDEN.claims[0].model_copy(update={"verdict": verdict, "because": (0,)})
    return PrivacyAudit(GOLDEN.model_copy(update={"claims": (claim,), "findings": (finding,)}))


def test_power_is_the_share_of_the_claim_that_was_certified() -> None:
    audit = judged(Verdict.NOT_REFUTED, bound=1.2)
    audit.assert_not_refuted(min_power=0.6)
    with pytest.raises(pytest.fail.Exception, match=r"reaches 0.6 of the claim, min_power = 0.7"):
        audit.assert_not_refuted(min_power=0.7)


@pytest.mark.parametrize("verdict", [Verdict.REFUTED, Verdict.UNSUPPORTED])
def test_what_speaks_against_a_claim_fails_every_assertion(verdict: Verdict) -> None:
    for assertion in ("assert_not_refuted", "assert_supported"):
        with pytest.raises(pytest.fail.Exception, match=f"eavesdropper: {verdict.upper()}"):
            getattr(judged(verdict, bound=1.0), assertion)()


def test_support_fails_with_each_missing_premise() -> None:
    """Whatever the verdict is otherwise: without power, or with it."""
    premises = (
        Premise(name="distance", status="examined", says="in all 5 rounds"),
        Premise(name="noise", status="not examined", says="its law was not confirmed of x"),
        Premise(name="state", status="not examined", says="rounds were not played again"),
    )
    missing = (
        "noise not examined: its law was not confirmed of x; state not examined: rounds were not "
        "played again"
    )
    for verdict in (Verdict.UNDERPOWERED, Verdict.NOT_REFUTED):
        for known, said in ((premises, f"Missing premises: {missing}"), ((), "The reason.")):
            update = {"verdict": verdict, "premises": known, "reason": "The reason."}
            claim = GOLDEN.claims[0].model_copy(update=update)
            audit = PrivacyAudit(GOLDEN.model_copy(update={"claims": (claim,)}))
            with pytest.raises(pytest.fail.Exception) as failed:
                audit.assert_supported()
            assert str(failed.value).endswith(f": {verdict.upper()}, not supported. {said}")
    judged(Verdict.SUPPORTED, bound=0.0).assert_supported()


def test_an_audit_without_claims_asserts_nothing() -> None:
    with pytest.raises(ConfigError, match="no claim is made"):
        PrivacyAudit(GOLDEN.model_copy(update={"claims": ()}))
