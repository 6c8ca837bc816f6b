"""A result on the terminal again, and its report in a browser."""

import shutil
import webbrowser
from math import inf
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpaudit.commands.cli import _exit_code as exit_code
from dpaudit.commands.cli import app
from dpaudit.commands.terminal import print_result
from dpaudit.files.result import AuditResult, EpsilonRange, Premise
from dpaudit.files.verdict import Verdict
from tests.said import without_help

GOLDEN = Path(__file__).parents[1] / "golden" / "audit.json"
RESULT = AuditResult.read(GOLDEN)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    shutil.copy(GOLDEN, tmp_path / "audit.json")
    return tmp_path


def command(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return done.exit_code, done.stdout, without_help(done.stderr)


def test_a_result_is_shown_as_after_its_audit(run: Path, capsys) -> None:
    code, shown, _ = command("show", run)
    print_result(AuditResult.read(GOLDEN), run, as_json=False)
    assert code == 0  # though the claim is refuted: nothing was audited
    assert shown == capsys.readouterr().out
    assert "verdict: refuted. " in shown


def test_each_claim_has_its_range_and_premises(capsys) -> None:
    names = ("distance", "noise", "records", "completeness")
    premises = [Premise(name=name, status="examined", says="so") for name in names]
    premises[1] = Premise(name="noise", status="failed", says="scale of the noise")
    premises[3] = Premise(name="completeness", status="not examined", says="not looked for")
    ends = EpsilonRange(certified=0.5, accounted=2.0, measured=inf)
    claims = RESULT.claims[0].model_copy(update={"premises": (*premises,), "range": ends})
    result = RESULT.model_copy(update={"claims": (claims, RESULT.claims[1])})
    print_result(result, Path("run"), as_json=False)
    verdict, first, _, known, rests_on, advice, second, reason, report = (
        capsys.readouterr().out.splitlines()[len(result.notes) :]
    )
    assert verdict.startswith("verdict: refuted. ")
    assert first.startswith("REFUTED  ")
    assert known == (
        "  epsilon at least 0.5 (by attacks or algebra), 2 if its premises held (accounted), "
        "no upper end (measured)"
    )
    assert rests_on == (
        "  premises: ✓ distance, records examined; × noise failed: scale of the noise; ? "
        "completeness not examined: not looked for"
    )
    assert advice.startswith("  help: Draw fresh noise of the declared scale")
    assert second.startswith("UNSUPPORTED  ")  # of an older version: no premises
    assert reason.startswith("  against ")
    assert report.startswith("report: ")


@pytest.mark.parametrize(
    "verdict, strict, code",
    [
        (Verdict.SUPPORTED, True, 0),
        (Verdict.NOT_REFUTED, True, 0),
        (Verdict.UNDERPOWERED, False, 0),
        (Verdict.UNDERPOWERED, True, 1),
        (Verdict.UNSUPPORTED, False, 1),
        (Verdict.REFUTED, False, 1),
    ],
)
def test_strict_demands_supported_or_not_refuted(verdict, strict, code, capsys) -> None:
    result = RESULT.model_copy(update={"verdict": verdict})
    assert exit_code(result, strict) == code
    kind = {True: "error", False: "warning"}[strict] if verdict is Verdict.UNDERPOWERED else ""
    assert capsys.readouterr().err.partition(":")[0] == kind


def test_as_json_it_is_audit_json(run: Path) -> None:
    assert AuditResult.model_validate_json(command("show", run, "--json")[1]) == AuditResult.read(
        GOLDEN
    )


def test_open_opens_the_report(run: Path, monkeypatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: bool(opened.append(url)) or True)
    assert command("report", run)[0] == 0
    assert command("show", run, "--open")[0] == 0
    assert opened == [(run / "report.html").resolve().as_uri()]


@pytest.mark.parametrize("report, said", [(False, "there is no report"), (True, "no browser")])
def test_what_cannot_be_opened_is_one_line(run: Path, monkeypatch, report, said) -> None:
    monkeypatch.setattr(webbrowser, "open", lambda url: False)
    if report:
        (run / "report.html").write_text("")
    code, _, error = command("show", run, "--open")
    assert code == 2
    assert said in error
    assert error.count("\n") == 1


def test_a_folder_without_a_result_is_one_line(tmp_path: Path) -> None:
    code, shown, error = command("show", tmp_path)
    assert (code, shown) == (2, "")
    assert error == f"error: {tmp_path}: there is no audit.json in it: it is no run directory\n"
