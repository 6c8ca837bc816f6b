"""Privacy claims as tests: two fixtures, and what they found in pytest's summary.

    def test_our_claim(privacy_audit):
        privacy_audit("audit.toml").assert_supported()

    def test_our_noise(mechanism_audit):
        mechanism_audit(noised, epsilon=3, delta=1e-5, shape=(784, 10)).assert_supported()

Nothing heavy is imported before a test asks for an audit.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dpaudit.errors import ConfigError
from dpaudit.files.finding import Name, Role
from dpaudit.files.result import AuditResult, JudgedClaim
from dpaudit.files.verdict import Verdict
from dpaudit.text import one_line, whole_line

if TYPE_CHECKING:
    from torch import nn

    from dpaudit.data.datasets import Dataset
    from dpaudit.defense.contract import Defense
    from dpaudit.files.config import AuditConfig

SLOW = "privacy_audit_slow"
FOUND = "privacy audit"  # the name under which a test's report carries a line for the summary


class PrivacyAudit:
    """An audit's result, with assertions about its claims.

    Raises:
        ConfigError: no claim is made in it, so there is nothing to assert.
    """

    def __init__(self, result: AuditResult) -> None:
        if not result.claims:
            raise ConfigError("DPA050", "no claim is made in this audit")
        self.result = result

    def assert_not_refuted(self, min_power: float | None = None) -> None:
        """Nothing speaks against any claim.

        Args:
            min_power: also require that the certified lower bound on epsilon reaches this share
                of every claim, between 0 and 1: a claim smaller than that would have been refuted.
                None accepts audits too weak to refute anything.

        Raises:
            AssertionError: a claim is refuted or unsupported, or the audit has less power.
        """
        __tracebackhide__ = True
        self._refuse((Verdict.REFUTED, Verdict.UNSUPPORTED))
        if min_power is not None:
            self._refuse((Verdict.UNDERPOWERED,))
            for claim in self.result.claims:
                self._require_power(claim, min_power)

    def assert_supported(self) -> None:
        """Every claim is supported: accounting settles it, and each premise of that held.

        Raises:
            AssertionError: a claim is not, with each premise that is missing, or the reason.
        """
        __tracebackhide__ = True
        self._refuse((Verdict.REFUTED, Verdict.UNSUPPORTED))
        lines = [
            f"{_about(claim)}: {claim.verdict.upper()}, not supported. {_lacks(claim)}"
            for claim in self.result.claims
            if claim.verdict is not Verdict.SUPPORTED
        ]
        if lines:
            pytest.fail("\n".join(lines), pytrace=False)

    def _refuse(self, verdicts: tuple[Verdict, ...]) -> None:
        __tracebackhide__ = True
        against = [claim for claim in self.result.claims if claim.verdict in verdicts]
        if against:
            lines = (f"{_about(c)}: {c.verdict.upper()}. {one_line(c.reason)}" for c in against)
            pytest.fail("\n".join(lines), pytrace=False)

    def _require_power(self, claim: JudgedClaim, min_power: float) -> None:
        __tracebackhide__ = True
        shares = [
            bound / claimed
            for finding in (self.result.findings[i] for i in claim.because)
            if finding.role is Role.TEST
            and (bound := finding.value(Name.EPSILON_LOWER_BOUND)) is not None
            and (claimed := finding.value(Name.CLAIMED_EPSILON)) is not None
        ]
        power = max(shares, default=0.0)
        if power < min_power:
            less = f"reaches {power:.3g} of the claim, min_power = {min_power:g}"
            pytest.fail(f"{_about(claim)}: the certified bound {less}", pytrace=False)


def _about(claim: JudgedClaim) -> str:
    return one_line(f"{claim.sentence}; against {claim.threat_model}")


def _lacks(claim: JudgedClaim) -> str:
    """Each premise that is missing, or else the reason of the verdict."""
    missing = "; ".join(premise.sentence for premise in claim.missing)
    return one_line(f"Missing premises: {missing}" if missing else claim.reason)


@pytest.fixture
def privacy_audit(request: pytest.FixtureRequest) -> Callable[..., PrivacyAudit]:
    """Runs an audit: ``privacy_audit(config, defense=..., data=..., model=...)``.

    The arguments are those of ``dpaudit.audit``; a relative path is relative to the test's file.
    """

    def run(
        config: "str | Path | Mapping[str, Any] | AuditConfig",
        *,
        defense: "Defense | None" = None,
        data: "Dataset | tuple[Any, Any] | None" = None,
        model: "nn.Module | None" = None,
        cores: int | None = None,
    ) -> PrivacyAudit:
        from .api import audit

        if isinstance(config, str | Path):
            config = request.path.parent / config
        result = audit(config, defense=defense, data=data, model=model, cores=cores)
        return _reported(result, request)

    return run


@pytest.fixture
def mechanism_audit(request: pytest.FixtureRequest) -> Callable[..., PrivacyAudit]:
    """Audits a function: ``mechanism_audit(noised, epsilon=3, delta=1e-5, shape=(784, 10))``.

    Other arguments are those of ``dpaudit.mechanism.audit``.
    """

    def run(
        function: Callable[..., Any],
        *,
        epsilon: float,
        shape: Sequence[int] | Sequence[Sequence[int]],
        delta: float = 0.0,
        **options: Any,
    ) -> PrivacyAudit:
        from dpaudit.mechanism import audit

        claim = {"epsilon": epsilon, "delta": delta}
        return _reported(audit(function, claim=claim, shape=shape, **options), request)

    return run


def _reported(result: AuditResult, request: pytest.FixtureRequest) -> PrivacyAudit:
    """The result, of which each claim is a line of pytest's summary."""
    found = PrivacyAudit(result)
    for claim in result.claims:
        line = f"{claim.verdict.upper()}  {claim.sentence}; against {claim.threat_model}"
        request.node.user_properties.append((FOUND, one_line(line)))
    return found


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("dpaudit")
    group.addoption(
        "--privacy-audit-slow", action="store_true", help=f"run tests marked {SLOW} too"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{SLOW}: long privacy audits, with --privacy-audit-slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--privacy-audit-slow"):
        return
    skip = pytest.mark.skip(reason="a long privacy audit: run it with --privacy-audit-slow")
    for item in items:
        if item.get_closest_marker(SLOW):
            item.add_marker(skip)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What was found, by test; from the reports, which pytest-xdist brings from its workers."""
    lines = [
        f"{report.nodeid}: {line}"
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, line in report.user_properties
        if name == FOUND
    ]
    if lines:
        terminalreporter.section("privacy audits")
        for line in lines:
            terminalreporter.write_line(whole_line(line))
