"""What CI systems read of a check: valid by its schemas, and every text escaped."""

import json
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest

from dpaudit.errors import Problem
from dpaudit.files.claims_file import Checked, CheckReport, KeyFigure, Statement
from dpaudit.files.finding import Metric
from dpaudit.reports.ci import annotations, junit, junit_of_problems, markdown, plain, sarif

DATA = Path(__file__).parents[1] / "material"
NASTY = 'a <b> & "c" | `d` 100%, e: \n::error::f \x00\x1b[31m \ud800 ]]> é'


def statement(outcome: str, about: str = "claim", text: str = "plain") -> Statement:
    return Statement(
        check=text,
        about=about,
        subject=f"subject {text}",
        adversary=text,
        outcome=outcome,
        verdict={"fails": "refuted", "warning": "underpowered", "holds": "not refuted"}[outcome],
        message=f"message {text}",
        line=7,
        code={"claim": "DPA114", "threshold": "DPA131", "baseline": "DPA132"}[about],
    )


def report(text: str = "plain") -> CheckReport:
    return CheckReport(
        claims_file="some folder/claims.toml",
        version="0.1.0",
        checks=(
            Checked(
                name=text,
                line=3,
                seconds=1.25,
                cached=False,
                figures=(
                    KeyFigure(
                        label=f"ssim {text}",
                        now=Metric(value=0.5, low=0.4, high=0.6, n=8),
                        before=Metric(value=0.25),
                    ),
                ),
                picture="cache/best.png",
                report="cache/report.html",
            ),
        ),
        statements=(
            statement("holds", "baseline", text),
            statement("warning", "claim", text),
            statement("fails", "threshold", text),
        ),
    )


@pytest.fixture
def junit_schema():
    etree = pytest.importorskip("lxml.etree")
    return lambda text: etree.XMLSchema(file=str(DATA / "jenkins-junit.xsd")).assertValid(
        etree.fromstring(text.encode())
    )


@pytest.mark.parametrize("text", ["plain", NASTY])
@pytest.mark.parametrize("strict", [False, True])
def test_junit_is_valid_and_counts_what_fails(text: str, strict: bool, junit_schema) -> None:
    xml = junit(report(text), strict)
    junit_schema(xml)
    root = ElementTree.fromstring(xml.encode())
    suite = root[0]
    assert (suite.get("tests"), suite.get("errors")) == ("3", "0")
    assert suite.get("failures") == str(len(suite.findall("*/failure"))) == ("2" if strict else "1")
    assert suite.get("skipped") == str(len(suite.findall("*/skipped"))) == ("0" if strict else "1")
    assert root.get("failures") == suite.get("failures")


def test_junit_cases_share_the_seconds_of_their_audit() -> None:
    (suite,) = ElementTree.fromstring(junit(report()))
    times = [float(case.get("time")) for case in suite.findall("testcase")]
    assert times == [0.417] * 3  # of 1.25 s
    assert float(suite.get("time")) == 1.25
    failed = ElementTree.fromstring(
        junit_of_problems("claims.toml", [Problem("DPA005", "one")] * 2, 3.0)
    )
    assert [case.get("time") for case in failed.findall("*/testcase")] == ["1.500"] * 2


def test_what_could_not_be_run_is_an_error_of_junit(junit_schema) -> None:
    problems = [Problem("DPA001", "claims.toml:3: one"), Problem("DPA004", NASTY, "do this")]
    xml = junit_of_problems("claims.toml", problems, 0.25)
    junit_schema(xml)
    errors = ElementTree.fromstring(xml.encode()).findall("*/*/error")
    assert errors[0].get("message") == "claims.toml:3: one"
    assert [(error.get("type"), error.text) for error in errors] == [
        ("DPA001", "help: Correct the key, or remove it; see dpaudit explain DPA001"),
        ("DPA004", "help: do this; see dpaudit explain DPA004"),
    ]


@pytest.mark.parametrize("text", ["plain", NASTY])
def test_an_audit_that_was_not_made_is_an_error_everywhere(text: str, junit_schema) -> None:
    whole = report(text)
    update = {"about": "audit", "outcome": "error", "verdict": "not checked", "code": "DPA070"}
    error = whole.statements[1].model_copy(update=update)
    whole = whole.model_copy(update={"statements": (*whole.statements, error)})
    assert (whole.exit_code(), whole.exit_code(strict=True)) == (2, 2)
    xml = junit(whole)
    junit_schema(xml)
    suite = ElementTree.fromstring(xml.encode())[0]
    assert (suite.get("errors"), len(suite.findall("*/error"))) == ("1", 1)
    log = json.loads(sarif(whole))
    schema = json.loads((DATA / "sarif-2.1.0.schema.json").read_text())
    jsonschema.Draft7Validator(schema).validate(log)
    (run,) = log["runs"]
    assert [r["level"] for r in run["results"]] == ["warning", "error", "error"]
    assert run["invocations"] == [{"executionSuccessful": False, "exitCode": 2}]
    assert "1 of 3 statements fail, 1 warning, 1 could not be checked" in markdown(whole, {})
    assert len(annotations(whole)) == 3
    assert len(list(plain(whole))) == 3  # errors are on stderr


def test_the_junit_schema_refuses_what_readers_do_not_know(junit_schema) -> None:
    for old, new in (('tests="3"', 'tests="three"'), ("<failure", "<fail"), ("name=", "nam=")):
        broken = junit(report()).replace(old, new).replace("</failure", f"</{new[1:]}", 1)
        with pytest.raises(Exception, match=r"attribute|expected|mismatch|tag"):
            junit_schema(broken)


@pytest.mark.parametrize("text", ["plain", NASTY])
def test_sarif_is_valid_and_places_each_result_at_its_line(text: str) -> None:
    schema = json.loads((DATA / "sarif-2.1.0.schema.json").read_text())
    log = json.loads(sarif(report(text)))
    jsonschema.Draft7Validator(schema).validate(log)
    results = log["runs"][0]["results"]
    assert [r["level"] for r in results] == ["warning", "error"]
    location = results[0]["locations"][0]["physicalLocation"]
    assert location["artifactLocation"]["uri"] == "some%20folder/claims.toml"
    assert location["region"]["startLine"] == 7
    rules = log["runs"][0]["tool"]["driver"]["rules"]
    assert all(rules[r["ruleIndex"]]["id"] == r["ruleId"] for r in results)


def test_the_sarif_schema_refuses_a_wrong_level() -> None:
    schema = json.loads((DATA / "sarif-2.1.0.schema.json").read_text())
    for change in ({"level": "fatal"}, {"message": {}}, {"severity": 1}):
        log = json.loads(sarif(report()))
        log["runs"][0]["results"][0] |= change
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft7Validator(schema).validate(log)


def test_a_fingerprint_stays_when_only_the_numbers_change() -> None:
    def fingerprints(found: CheckReport) -> list[dict]:
        return [r["partialFingerprints"] for r in json.loads(sarif(found))["runs"][0]["results"]]

    moved = [s.model_copy(update={"message": "other", "line": 9}) for s in report().statements]
    assert fingerprints(report()) == fingerprints(
        report().model_copy(update={"statements": tuple(moved)})
    )
    assert len({str(f) for f in fingerprints(report())}) == 2


def test_markdown_names_the_cause_before_the_figures() -> None:
    about = {"cause": '"x" moves 4 times its stated bound', "remedy": "Clip each record."}
    about["message"] = f"{about['cause']}. The figures."
    failing = statement("fails", "claim").model_copy(update=about)
    text = markdown(report().model_copy(update={"statements": (failing,)}), {})
    said = (
        '**"x" moves 4 times its stated bound.**\n\nThe figures.\n\nWhat to do: Clip each record;'
    )
    assert said in text
    found = report().model_copy(update={"statements": (failing,)})
    xml = ElementTree.fromstring(junit(found).encode())
    assert "help: Clip each record; see dpaudit explain" in str(xml[0][0][0].text)
    [result] = json.loads(sarif(found))["runs"][0]["results"]
    assert result["message"]["text"].endswith("The figures. What to do: Clip each record.")
    assert annotations(found)[0].endswith("The figures. What to do: Clip each record.")


def test_markdown_lists_worse_figures_under_one_heading() -> None:
    """What to do is the same for all of them."""
    update = {"verdict": "worse"}
    worse = [
        statement("fails", "baseline").model_copy(update={**update, "message": said})
        for said in ("one is", "another is")
    ]
    text = markdown(report().model_copy(update={"statements": tuple(worse)}), {})
    assert "### plain: worse\n\n- one is\n- another is\n\nWhat to do: " in text
    assert text.count("What to do") == 1


def test_a_figure_is_named_by_its_metric_first() -> None:
    label = "empirical-epsilon | canaries | round 1,3 | epsilon lower bound"
    figure = KeyFigure(label=label, now=Metric(value=float("inf")), before=None)
    assert figure.name == "epsilon lower bound of empirical-epsilon, canaries, round 1,3"
    checked = report().checks[0].model_copy(update={"figures": (figure,)})
    text = markdown(report().model_copy(update={"checks": (checked,)}), {})
    assert f"| {figure.name} | infinite |  |" in text


def test_markdown_shows_each_statement_whatever_its_text() -> None:
    text = markdown(report(NASTY), {NASTY: "sum mary-1.png"})
    rows = [line for line in text.splitlines() if line.startswith(("| fails", "| warn", "| holds"))]
    assert len(rows) == 2
    assert text.count("\n### a &lt;b&gt;") == 1  # what fails has a section
    assert text.count("\nWhat to do: ") == 1
    assert all(row.replace("\\|", "").count("|") == 7 for row in rows)
    assert "<b>" not in text
    assert "\x00" not in text
    assert (
        "![The defended reconstruction that comes closest to the truth](sum%20mary-1.png)" in text
    )
    assert "0.5 (0.4 to 0.6) | 0.25 |" in text
    assert "*underpowered*: Nothing was found against the claim" in text


def test_annotations_are_one_line_each() -> None:
    lines = annotations(report(NASTY))
    assert len(lines) == 2
    assert all(line.isprintable() and line.count("::error::f") <= 1 for line in lines)
    assert lines[0].startswith("::warning file=some folder/claims.toml,line=7,title=")
    title = lines[1].split("title=")[1].split("::")[0]
    assert "%3A" in title
    assert "%2C" in title
    assert "100%25" in lines[1]
    assert "%0A" not in lines[1]


def test_plain_output_is_one_line_for_each_statement() -> None:
    lines = list(plain(report(NASTY)))
    assert [line.split()[0] for line in lines] == ["HOLDS", "WARNING", "FAILS"]
    assert all(line.isprintable() for line in lines)


def test_warnings_fail_only_where_that_is_asked() -> None:
    only_warning = report().model_copy(update={"statements": (statement("warning"),)})
    assert (only_warning.exit_code(), only_warning.exit_code(strict=True)) == (0, 1)
    assert report().exit_code() == 1


def test_where_warnings_are_errors_every_output_says_so() -> None:
    only_warning = report().model_copy(update={"statements": (statement("warning"),)})
    for strict, level, ended in ((False, "warning", 0), (True, "error", 1)):
        [run] = json.loads(sarif(only_warning, strict))["runs"]
        assert [one["level"] for one in run["results"]] == [level]
        assert run["invocations"] == [{"executionSuccessful": True, "exitCode": ended}]
        [line] = annotations(only_warning, strict)
        assert line.startswith(f"::{level} file=")
        title, *_ = markdown(only_warning, {}, strict).splitlines()
        assert title.startswith("## dpaudit: 0 of 1 statements fail, 1 warning")
        assert title.endswith(", an error by --strict") is strict
