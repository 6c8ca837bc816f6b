"""Privacy code of frameworks as they are installed: audits of their functions, and what they show.

Each framework has a folder in ``examples/frameworks``, with functions that call its own, corrected
twins, and a claims file, ``audit.toml``. Each lives in an environment of its own, which is a folder
of the framework's name: nothing is installed where dpaudit is, and nothing from the network unless
``make`` is asked for.
"""

import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from dpaudit.errors import ConfigError, DpauditError
from dpaudit.files.finding import Name, Role
from dpaudit.files.mechanism_file import MechanismConfig
from dpaudit.files.published import ResultTable, ResultTables
from dpaudit.files.result import AuditResult
from dpaudit.mechanism.source import run_mechanism
from dpaudit.progress import OnProgress, unreported

from .experiment import ExperimentScale
from .five_papers import Keep, PrintedStudy

EXAMPLES = Path(__file__).parents[2] / "examples" / "frameworks"
AUDITS = ("framework", "claim", "adjacency", "calls", "claimed", "verdict", "measured", "certified")
FINDINGS = ("framework", "where", "it says", "what is so", "evidence", "fix")


class FrameworkFinding(NamedTuple):
    """One thing about a framework: where, in its words, what is so, the evidence, and the fix."""

    says: str
    so: str
    check: str  # of the framework's audit.toml; empty: read in the code
    fix: str = ""  # empty: it is right
    file: str = ""  # in the folder of installed packages
    line: int = 0
    code: str = ""  # what that line has


class Framework(NamedTuple):
    """A published version of a package, and what is found in it."""

    name: str
    version: str
    install: tuple[tuple[str, ...], ...]  # arguments of each call of pip
    finding: tuple[FrameworkFinding, ...]


class FrameworkAudit(NamedTuple):
    """One claim about a function of a framework, and its verdict or the code of what stopped it."""

    framework: str
    check: str
    config: MechanismConfig
    verdict: str
    measured: tuple[float, float] | None  # epsilon of measured distance and recognised noise
    certified: float | None  # by counted runs

    @property
    def row(self) -> tuple[str, ...]:
        (claim,), options = self.config.claim, self.config.mechanism
        claimed = f"mu {claim.mu:g}" if claim.epsilon is None else f"{claim.epsilon:g}"
        delta = f" at delta {claim.delta:g}" if claim.delta else ""
        measured = "" if self.measured is None else _epsilon(*self.measured)
        certified = "" if self.certified is None else f"{self.certified:.3g}"
        return (
            self.framework,
            self.check,
            claim.adjacency,
            str(options.calls),
            claimed + delta,
            self.verdict,
            measured,
            certified,
        )


def _epsilon(low: float, high: float) -> str:
    if low == inf:
        return "no finite one"
    return f"{low:.4g}" if high - low <= 1e-3 * low else f"{low:.4g} to {high:.4g}"


@cache
def frameworks() -> dict[str, Framework]:
    """All that is known, by name."""
    text = Path(__file__).with_name("frameworks.toml").read_text("utf-8")
    return {
        table["name"]: Framework(
            name=table["name"],
            version=table["version"],
            install=tuple(map(tuple, table["install"])),
            finding=tuple(FrameworkFinding(**one) for one in table["finding"]),
        )
        for table in tomllib.loads(text)["framework"]
    }


def interpreter_in(environments: Path, framework: Framework, make: bool) -> Path:
    """The Python of a framework's environment, with the version that the findings are about.

    Args:
        make: the environment, by pip and so from the network, where it is not there.

    Raises:
        ConfigError: it is not there, or holds another version.
    """
    folder = environments / framework.name
    python = folder / "bin" / "python"
    if make and not python.exists():
        _make(folder, framework)
    said = f"--environments {environments}: {framework.name}"
    if not python.exists():
        raise ConfigError("DPA057", f"{said}/bin/python is not there", "--make makes it, by pip")
    place, name = site_packages(folder), framework.name.replace("-", "_")
    if not (place / f"{name}-{framework.version}.dist-info").is_dir():
        raise ConfigError("DPA057", f"{said} has no {framework.name} {framework.version}")
    return python


def site_packages(environment: Path) -> Path:
    """Where an environment has its packages."""
    return next(iter(environment.glob("lib/python3*/site-packages")), environment)


def _make(folder: Path, framework: Framework) -> None:
    """Raises ConfigError: pip fails."""
    python = str(folder / "bin" / "python")
    commands = [["python3", "-m", "venv", str(folder)]]
    commands += [[python, "-m", "pip", "install", "-q", *asked] for asked in framework.install]
    for command in commands:
        if subprocess.run(command, stdin=subprocess.DEVNULL).returncode:
            raise ConfigError("DPA057", f"{' '.join(command)} failed")


def configs(framework: str, python: Path) -> Iterator[tuple[str, MechanismConfig]]:
    """Every check of a framework's claims file, with this Python, by the name of the check."""
    folder = EXAMPLES / framework
    if not folder.is_dir():
        said = f"{folder} is not there; expected a clone of the repository of dpaudit"
        raise ConfigError("DPA007", said)
    for check in tomllib.loads((folder / "audit.toml").read_text("utf-8"))["check"]:
        audit: dict[str, Any] = check["audit"]
        options = {**audit["mechanism"], "python": str(python)}
        options["function"] = str(folder / options["function"])
        yield check["name"], MechanismConfig.from_dict({**audit, "mechanism": options})


def audited(framework: str, check: str, config: MechanismConfig) -> FrameworkAudit:
    """The verdict on one check; the code of an error where a function cannot be audited."""
    try:
        with TemporaryDirectory(prefix="dpaudit-") as folder:
            result = run_mechanism(config, Path(folder))
    except DpauditError as error:
        return FrameworkAudit(framework, check, config, error.code, None, None)
    return FrameworkAudit(framework, check, config, str(result.verdict), *_figures(result))


def _figures(result: AuditResult) -> tuple[tuple[float, float] | None, float | None]:
    """What was measured, and what runs certify."""
    measured = certified = None
    for finding in result.findings:
        if finding.role is Role.MEASURED:
            metric = finding.metrics[Name.EPSILON]
            measured = float(metric.low or 0), float(metric.high or 0)
        if finding.role is Role.TEST:
            certified = float(finding.metrics[Name.EPSILON_LOWER_BOUND].value)
    return measured, certified


def all_audited(
    environments: Path,
    make: bool = False,
    only: Sequence[str] = (),
    on_progress: OnProgress = unreported,
) -> Iterator[FrameworkAudit]:
    """Every check of every framework, or of some.

    Args:
        environments: the folder that has one for each, by its name.
        make: those that are not there, by pip.

    Raises:
        ConfigError: an environment is not there, or its package is another than the findings are
            about.
    """
    for name in only:
        if name not in frameworks():
            known = ", ".join(frameworks())
            raise ConfigError("DPA006", f'no framework "{name}"; known: {known}')
    chosen = [one for name, one in frameworks().items() if not only or name in only]
    pythons = [interpreter_in(environments, one, make) for one in chosen]
    for framework in chosen:
        refuse_other_lines(environments / framework.name, framework)
    checks = [
        (framework.name, check, config)
        for framework, python in zip(chosen, pythons, strict=True)
        for check, config in configs(framework.name, python)
    ]
    on_progress("frameworks", 0, len(checks))
    for done, one in enumerate(checks, 1):
        yield audited(*one)
        on_progress("frameworks", done, len(checks))


def refuse_other_lines(environment: Path, framework: Framework) -> None:
    """Raises ConfigError for a line of the installed package that a finding cites wrongly."""
    for one in framework.finding:
        if not one.file:
            continue
        path = site_packages(environment) / one.file
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        if not 0 < one.line <= len(lines) or lines[one.line - 1].strip() != one.code:
            raise ConfigError("DPA057", f"{path}: line {one.line} is not `{one.code}`")


def lines(found: list[FrameworkAudit]) -> Iterator[str]:
    """The printed form: a line for each check."""
    for one in found:
        framework, check, adjacency, calls, claimed, verdict, measured, certified = one.row
        yield f"{framework}: {check} ({adjacency}, {calls} calls, claimed {claimed}): {verdict}"
        if measured or certified:
            yield f"    epsilon measured {measured or '-'}, certified {certified or '-'}"


def tables(found: list[FrameworkAudit]) -> ResultTables:
    """All of it as published results: the findings, and the audits that they rest on."""
    versions = {name: f"{name} {one.version}" for name, one in frameworks().items()}
    rows = [
        (versions[name], *_finding_row(one))
        for name, framework in frameworks().items()
        for one in framework.finding
    ]
    command = "dpaudit reproduce frameworks --environments FOLDER --results docs/results"
    return ResultTables(
        title="Privacy code of frameworks",
        command=command,
        tables=(
            ResultTable(
                title="Findings",
                about="What is right is listed too. Lines are of the installed package.",
                columns=FINDINGS,
                rows=tuple(rows),
            ),
            ResultTable(
                title="Audits",
                about="Epsilon in nats. What was measured is of the distance and the recognised "
                "noise; what is certified is a lower bound of counted runs at 95% confidence.",
                columns=AUDITS,
                rows=tuple(one.row for one in found),
            ),
        ),
    )


def _finding_row(one: FrameworkFinding) -> tuple[str, ...]:
    where = f"{one.file}:{one.line}" if one.file else ""
    return where, one.says, one.so, one.check or "read in the code", one.fix or "none needed"


def _lines(scale: str, seed: int, keep: Keep) -> Iterator[str]:
    """What is known without any environment: the findings."""
    return (str(row[3]) for row in tables([]).tables[0].rows)


FRAMEWORKS = PrintedStudy(
    paper="installed packages",
    table="none",
    shows="privacy code of frameworks, each in an environment of its own, and corrected twins",
    lines=_lines,
    scales=dict.fromkeys(("quick", "paper"), ExperimentScale(1, 1200, 10**9)),
)
