"""dpaudit check as a command: exit codes, the cache, outputs, the baseline.

The audits are stubs that leave a finished audit.json; test_example_project.py runs real ones.
"""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from dpaudit.check.baseline import Baseline
from dpaudit.check.run import Auditor
from dpaudit.commands.cli import app
from dpaudit.files.result import AuditResult
from tests.check.stub_audits import CLAIMS, SECOND, change, check, runs
from tests.material.servers import answered
from tests.said import without_help


def test_an_audit_runs_again_only_when_its_content_changed(folder) -> None:
    assert check(folder)[0] == 1  # the golden audit's claim is refuted
    assert runs(folder) == 1
    check(folder)
    assert runs(folder) == 1
    check(folder, "--fresh")
    assert runs(folder) == 2
    change(folder, 1)
    check(folder)
    assert runs(folder) == 3
    change(folder, 0)
    check(folder)
    assert runs(folder) == 3
    (folder / "claims.toml").write_text(CLAIMS.replace("at_most = 0.9", "at_most = 0.1"))
    out = check(folder)[1]
    assert runs(folder) == 3  # limits are no part of an audit
    assert "ssim of attack[1] on cross_gradient in round 3" in out
    assert "is broken" in out


def test_a_damaged_entry_is_made_anew(folder) -> None:
    check(folder)
    [entry] = (folder / ".dpaudit-cache").glob("*/audit.json")
    entry.write_text("{")
    assert check(folder)[0] == 1
    assert runs(folder) == 2
    AuditResult.read(entry)


def test_outputs_go_where_asked_and_github_gets_annotations(folder) -> None:
    outputs = ["--junit", "o/j.xml", "--sarif", "o/s.sarif", "--markdown", "o/m.md"]
    code, out, error = check(folder, *outputs, GITHUB_ACTIONS="true")
    assert (code, error) == (1, "")
    assert sorted(p.name for p in (folder / "o").iterdir()) == ["j.xml", "m.md", "s.sarif"]
    assert "::error file=claims.toml,line=3,title=first%3A unsupported (DPA134)::" in out
    assert "::error file=claims.toml,line=3,title=first%3A refuted (DPA134)::" in out
    assert "::" not in check(folder)[1]
    assert "\x1b" not in out
    quiet = check(folder, "--quiet")[1]
    assert 0 < len(quiet.splitlines()) < len(check(folder)[1].splitlines())
    assert "HOLDS" not in quiet


def test_names_that_no_xml_can_hold_are_escaped(folder) -> None:
    name = r'"a <b> & | \u0001 \n::error::x"'
    (folder / "claims.toml").write_text(CLAIMS.replace('"first"', name))
    outputs = ["--junit", "j.xml", "--sarif", "s.sarif", "--markdown", "m.md", "--update-baseline"]
    code, out, error = check(folder, *outputs, GITHUB_ACTIONS="true")
    assert (code, error) == (1, "")
    assert all(line.isprintable() for line in out.splitlines())
    assert not any(line.startswith("::error::x") for line in out.splitlines())
    suite = ElementTree.parse(folder / "j.xml").getroot()[0]
    assert suite.get("name") == "a <b> & | \\x01 \\n::error::x"
    assert "a &lt;b&gt; &amp; \\|" in (folder / "m.md").read_text()
    assert json.loads((folder / "s.sarif").read_text())["runs"][0]["results"]
    assert "no key metric got worse" in check(folder)[1]


def test_a_baseline_of_another_config_is_refused(folder) -> None:
    code, out, _ = check(folder, "--update-baseline")
    assert "baseline written: baseline.json" in out
    assert "no key metric got worse" in check(folder)[1]
    (folder / "claims.toml").write_text(CLAIMS.replace("mine:Mine", "mine:Other"))
    code, _, error = check(folder)
    assert code == 2
    assert error == (
        'error: baseline.json: check "first" was made from another config (claims.toml:5: '
        'check[1].audit.defense.name: it was "mine:Mine" and is "mine:Other"); if that change is '
        "meant, write it anew with --update-baseline\n"
    )
    (folder / "claims.toml").write_text(CLAIMS.replace("seed = 1", "seed = 5"))
    assert check(folder)[0] == 1  # another seed is the same experiment
    (folder / "claims.toml").write_text(CLAIMS + SECOND)
    assert check(folder)[2] == (
        'error: baseline.json: no check "second" in it; write it anew with --update-baseline\n'
    )
    (folder / "baseline.json").write_text('{"schema_version": 7}')
    assert "schema_version 7" in check(folder)[2]
    assert check(folder, "--update-baseline")[0] == 1
    assert set(Baseline.read(folder / "baseline.json").checks) == {"first", "second"}
    code, _, error = check(folder, "--baseline", "absent.json")
    assert (code, error) == (2, "error: absent.json: No such file or directory\n")


def test_update_takes_the_ledger_into_the_baseline(folder) -> None:
    check(folder, "--update-baseline")
    levels = []
    for number in (1, 1, 2):
        change(folder, number)
        levels.append(check(folder)[1].rsplit("level ", 1)[1].strip())
    assert levels == ["0.00076", "0.00076", "0.00034"]
    assert len(Baseline.read(folder / "baseline.json").ledger.contents) == 1
    check(folder, "--update-baseline")
    assert len(Baseline.read(folder / "baseline.json").ledger.contents) == 3


def test_problems_of_the_claims_file_are_exit_code_2(folder) -> None:
    (folder / "claims.toml").write_text(CLAIMS.replace('"ssim"', '"ssmi"'))
    code, out, error = check(folder, "--junit", "j.xml")
    assert code == 2
    assert "[DPA134]" in out  # what the audit says of its claims
    [problem] = ElementTree.parse(folder / "j.xml").getroot().findall("*/*/error")
    assert f"error: {problem.get('message')}\n" == error
    assert error.startswith(
        'error: claims.toml:8: check[1].threshold[1].metric: no finding has a metric "ssmi" (did '
        'you mean "ssim"?); there are '
    )
    (folder / "claims.toml").write_text(CLAIMS + SECOND.split(", claim")[0] + " }\n")
    assert check(folder)[2] == (
        "error: claims.toml:11: check[2]: nothing to check: no claim in the audit, no threshold, and "
        "no baseline\n"
    )
    (folder / "claims.toml").write_text(CLAIMS + SECOND.replace('"second"', '"first"'))
    assert check(folder)[2] == (
        'error: claims.toml:12: check[2].name: another check is called "first"\n'
    )


@pytest.fixture
def with_two_more(folder: Path) -> Path:
    """Beside the first check one of which no audit can be made, and one whose audit fails."""
    (folder / "bad.toml").write_text("seed = \n")
    bad = '\n[[check]]\nname = "bad"\naudit = "bad.toml"\n'
    (folder / "claims.toml").write_text(CLAIMS + bad + SECOND)
    return folder


def test_audits_that_cannot_be_made_hide_no_other(with_two_more) -> None:
    outputs = ["--junit", "j.xml", "--sarif", "s.sarif", "--markdown", "m.md"]
    code, out, error = check(with_two_more, *outputs, STUB_FAILS="2", GITHUB_ACTIONS="true")
    assert code == 2
    assert "FAILS   first: " in out
    assert [line.split("claims.toml")[0].split("bad.toml")[0] for line in error.splitlines()] == [
        "error: ",
        "error: ",
    ]
    assert 'claims.toml:15: check[3]: "second": the stub fails' in error
    assert "::error file=claims.toml,line=15,title=second%3A not checked (DPA070)::" in out
    suites = ElementTree.parse(with_two_more / "j.xml").getroot()
    assert [(s.get("name"), s.get("errors")) for s in suites] == [
        ("first", "0"),
        ("bad", "1"),
        ("second", "1"),
    ]
    [run] = json.loads((with_two_more / "s.sarif").read_text())["runs"]
    assert run["invocations"] == [{"executionSuccessful": False, "exitCode": 2}]
    assert {r["properties"]["check"] for r in run["results"]} == {"first", "bad", "second"}
    summary = (with_two_more / "m.md").read_text()
    assert "2 could not be checked" in summary.splitlines()[0]
    assert "### second: not checked" in summary
    assert "### Figures of first" in summary
    assert "### Figures of second" not in summary
    assert "What to do: mend the stub; see dpaudit explain DPA070." in summary  # said by the audit


@pytest.mark.slow
def test_what_was_made_beside_a_failure_is_not_run_again(with_two_more) -> None:
    check(with_two_more, STUB_FAILS="2")
    (with_two_more / "bad.toml").write_text("seed = 3\nclaim = [{ text = 'a' }]\n")
    code, _, error = check(with_two_more)
    assert (code, error) == (1, "")
    assert runs(with_two_more) == 4  # the second began twice


def test_no_baseline_is_written_of_a_part(with_two_more) -> None:
    code, out, _ = check(with_two_more, "--update-baseline")
    assert code == 2
    assert "baseline not written: baseline.json: not all could be checked" in out
    assert not (with_two_more / "baseline.json").exists()


def test_a_part_is_compared_with_the_baseline(folder) -> None:
    (folder / "claims.toml").write_text(CLAIMS + SECOND)
    check(folder, "--update-baseline")
    change(folder, 1)
    code, out, error = check(folder, STUB_FAILS="2")
    assert (code, error.count("the stub fails")) == (2, 1)
    assert "HOLDS   first: no key metric got worse" in out
    assert "second: " not in out


def audit_of(folder: Path, name: str) -> str:
    """What the real command says of a claims file whose defense is of this name."""
    audit = f'''
data = {{ name = "digits" }}
graph = {{ name = "ring" }}
model = {{ name = "logistic" }}
defense = {{ name = "{name}" }}
'''
    (folder / "audit.toml").write_text(audit)
    (folder / "claims.toml").write_text(
        'import_from = "code"\n[[check]]\nname = "a"\naudit = "audit.toml"\n'
        '[[check.threshold]]\nmetric = "psnr"\nat_most = 9.0\n'
    )
    result = CliRunner().invoke(app, ["check", str(folder / "claims.toml")])
    assert result.exit_code == 2, result.output
    return without_help(result.stderr).replace(f"{folder}/", "")


def test_own_code_that_cannot_be_used_is_one_line(folder) -> None:
    where = "error: audit.toml:5: defense.name: defense "
    (folder / "code" / "broken_one.py").write_text("def (:\n")
    (folder / "code" / "good_one.py").write_text("class Plain: pass\n")
    said = audit_of(folder, "broken_one:Mine")
    assert said.startswith(f'{where}"broken_one:Mine" cannot be imported: SyntaxError')
    assert "has no attribute 'Mine'" in audit_of(folder, "good_one:Mine")
    assert audit_of(folder, "good_one:Plain") == (
        f'{where}"good_one:Plain": expected a class derived from dpaudit.defense.contract.Defense, '
        "found a class derived from none\n"
    )
    assert "ModuleNotFoundError: No module named 'absent_one'" in audit_of(
        folder, "absent_one:Mine"
    )
    assert said.count("\n") == 1


def test_a_baseline_that_leaves_something_out_is_a_warning(folder) -> None:
    check(folder, "--update-baseline")
    path = folder / "baseline.json"
    whole = json.loads(path.read_text())
    whole["checks"]["first"]["metrics"] = {}
    path.write_text(json.dumps(whole))
    out = check(folder)[1]
    assert "WARNING first: " in out
    assert "key metrics were not compared" in out


def test_a_check_that_left_the_claims_file_alone_is_refused(folder) -> None:
    (folder / "claims.toml").write_text(CLAIMS + SECOND)
    check(folder, "--update-baseline")
    (folder / "claims.toml").write_text(CLAIMS)
    code, _, error = check(folder)
    assert (code, error) == (
        2,
        'error: baseline.json: check "second" is in it and not in claims.toml; if that is meant, '
        "write it anew with --update-baseline\n",
    )


def test_outputs_of_another_check_are_gone(folder) -> None:
    outputs = ["--junit", "j.xml", "--sarif", "s.sarif", "--markdown", "m.md"]
    for name in outputs[1::2]:
        (folder / name).write_text("all is well")
    (folder / "claims.toml").write_text("")
    assert check(folder, *outputs)[0] == 2
    assert not (folder / "s.sarif").exists()
    assert not (folder / "m.md").exists()
    assert 'errors="1"' in (folder / "j.xml").read_text()


@pytest.mark.slow
def test_the_process_of_audits_imports_nothing_from_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json", "torch", "pydantic"):
        (tmp_path / f"{name}.py").write_text("open('imported', 'w')")
    monkeypatch.chdir(tmp_path)
    assert "AuditJob" in answered(Auditor(source=()).command, "{}", {})[1]  # it came to its job
    assert not (tmp_path / "imported").exists()
