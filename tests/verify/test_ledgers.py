"""`dpaudit verify` of a ledger: the same sum by the checker's own accountant."""

import ast
import json
import sys
from pathlib import Path

import jsonschema
import pytest
from typer.testing import CliRunner

from dpaudit import ledger
from dpaudit.commands.cli import app
from dpaudit.files.certificate import digest
from dpaudit.ledger import verified as verified_module

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/certificate.schema.json").read_text())
SAMPLED = ledger.gaussian(4.0, sampling="poisson", sampling_rate=0.1)


def verified(path, *options) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["verify", str(path), *options])
    return done.exit_code, done.output


def written(path, composition="fixed", adjacency="add-remove"):
    expected = SAMPLED if composition == "renyi-filter" else None
    budget = ledger.open(
        path, epsilon=8.0, delta=1e-5, adjacency=adjacency, composition=composition, expected=expected
    )  # fmt: skip
    if composition == "gaussian-filter":
        budget.release(ledger.gaussian(7.0), count=3)
    else:
        budget.release(SAMPLED, count=50, note="line \u2028 separator")
        budget.release(ledger.event(0.3, 1e-9), agent="b")
    return budget


@pytest.mark.parametrize("composition", ["fixed", "gaussian-filter", "renyi-filter"])
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_two_accountants_agree(tmp_path, composition, adjacency) -> None:
    budget = written(tmp_path / "ledger.jsonl", composition, adjacency)
    code, output = verified(budget.path, "--json")
    said = json.loads(output)
    assert (code, said["answer"], said["kind"]) == (0, "confirmed", "declaration")
    for one in said["totals"]:
        ours = budget.spent(one["agent"] or "not named")
        assert one["epsilon"] == pytest.approx(ours, rel=1e-3)


def test_no_audit_is_claimed(tmp_path) -> None:
    code, output = verified(written(tmp_path / "ledger.jsonl").path)
    assert code == 0
    assert "confirmed. A ledger is what a program declares: no audit examined it." in output
    assert "supported" not in output.lower()


def test_releases_beyond_the_budget_are_contradicted(tmp_path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger.open(path, epsilon=1.0).release(ledger.laplace(2.0))
    path.write_bytes(
        path.read_bytes().replace(b'"noise_multiplier": 2.0', b'"noise_multiplier": 0.9')
    )
    code, output = verified(path)
    assert (code, "add up to epsilon 1.111, above 1 at delta 0" in output) == (1, True)


@pytest.mark.parametrize("change", [("2.0", "-2.0"), ("2.0", "NaN"), ('"laplace"', '"cauchy"')])
def test_a_damaged_ledger_is_one_line(tmp_path, change) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger.open(path, epsilon=1.0).release(ledger.laplace(2.0))
    first, second = path.read_text().splitlines()
    path.write_text(f"{first}\n{second.replace(*change)}\n")
    code, output = verified(path)
    assert code == 2
    assert f"{path}:2: not a line of a ledger: " in output


def test_the_torn_line_of_a_killed_program_is_left_out(tmp_path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger.open(path, epsilon=1.0).release(ledger.laplace(2.0))
    path.write_bytes(path.read_bytes() + b'{"release": {"fam')
    code, output = verified(path)
    assert (code, "1 add up to epsilon 0.5" in output) == (0, True)
    assert f"warning: {path}: its last line is cut off and does not count" in output


def test_a_last_line_without_its_end_counts(tmp_path) -> None:
    path = tmp_path / "ledger.jsonl"
    budget = ledger.open(path, epsilon=1.0)
    budget.release(ledger.laplace(2.0))
    budget.release(ledger.laplace(2.0))
    path.write_bytes(path.read_bytes()[:-1])
    code, output = verified(path)
    assert (code, "2 add up to epsilon 1, at most 1" in output) == (0, True)
    assert "warning" not in output
    assert certified(path).exists()
    assert verified(path.with_name("certificate.json"))[0] == 0


def test_the_sum_shares_no_code_with_the_ledger() -> None:
    allowed = {*sys.stdlib_module_names, "numpy", "dpaudit.verify.accountant"}
    tree = ast.parse(Path(verified_module.__file__).read_text())
    names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    names |= {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    assert {name if name in allowed else name.split(".")[0] for name in names} <= allowed


def certified(path: Path, change=lambda content: None) -> Path:
    """The certificate of a ledger, changed by a forger who computes its hashes again."""
    file = path.with_name("certificate.json")
    done = CliRunner().invoke(app, ["certificate", str(path)])
    assert (done.exit_code, "declared and not audited" in done.output) == (0, True)
    content = json.loads(file.read_text())
    jsonschema.validate(content, SCHEMA)
    change(content)
    parts = {key: part for key, part in content.items() if key not in ("hashes", "sha256")}
    whole = {**parts, "hashes": {key: digest(part) for key, part in parts.items()}}
    file.write_text(json.dumps({**whole, "sha256": digest(whole)}))
    return file


def unsampled(path: Path) -> ledger.Ledger:
    """Two agents, and noise that is composed in no time."""
    budget = ledger.open(path, epsilon=8.0, delta=1e-5)
    budget.release(ledger.gaussian(7.0), count=30)
    budget.release(ledger.event(0.3, 1e-9), agent="b")
    return budget


def test_a_certificate_says_that_it_is_declared(tmp_path) -> None:
    budget = unsampled(tmp_path / "ledger.jsonl")
    file = certified(budget.path)
    content = json.loads(file.read_text())
    assert content["basis"] == "declared, not audited"
    assert "supports no claim" in content["meaning"]
    assert [one["epsilon"] for one in content["sums"]] == [
        budget.spent(one["agent"] or "not named") for one in content["sums"]
    ]
    code, output = verified(file)
    assert (code, "confirmed. A ledger is what a program declares" in output) == (0, True)
    budget.release(ledger.gaussian(1e3))  # it grows, and begins as before
    assert verified(file)[0] == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c["sums"][0].update(epsilon=0.5 * c["sums"][0]["epsilon"]),
        lambda c: c["sums"][0].update(releases=29),
        lambda c: c["sums"].pop(),
        lambda c: c["sums"].append(c["sums"][0]),
        lambda c: c["entries"].pop(),
        lambda c: c["entries"][0]["release"].update(noise_multiplier=7.1),
        lambda c: c["budget"].update(delta=1e-4),
        lambda c: c["budget"].update(epsilon=0.1),
        lambda c: c.update(meaning="An audit examined this."),
        lambda c: c.update(ledger_bytes=10),
        lambda c: c.update(ledger_sha256=64 * "1"),
    ],
)
def test_a_changed_certificate_of_a_ledger_is_contradicted(tmp_path, change) -> None:
    path = unsampled(tmp_path / "ledger.jsonl").path
    assert verified(certified(path, change))[0] == 1


@pytest.mark.parametrize(
    "change", [lambda c: c.update(basis="audited"), lambda c: c["sums"][0].update(epsilon=None)]
)
def test_a_damaged_certificate_of_a_ledger_is_one_line(tmp_path, change) -> None:
    path = unsampled(tmp_path / "ledger.jsonl").path
    code, output = verified(certified(path, change))
    said = [line for line in output.splitlines() if not line.startswith("help: ")]
    assert (code, len(said)) == (2, 1)


def test_an_infinite_sum_is_json_that_others_read(tmp_path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger.open(path, epsilon=1.0).release(ledger.laplace(2.0))
    path.write_bytes(
        path.read_bytes().replace(b'"noise_multiplier": 2.0', b'"noise_multiplier": 0.0')
    )
    code, output = verified(path, "--json")
    [total] = json.loads(output, parse_constant=pytest.fail)["totals"]
    assert (code, total["epsilon"]) == (1, "inf")


def test_other_certificates_of_ledgers_are_refused(tmp_path) -> None:
    path = unsampled(tmp_path / "ledger.jsonl").path
    for change in (lambda c: c.update(basis="audited"), lambda c: c.update(format_version=2)):
        assert verified(certified(path, change))[0] == 2
    path.write_bytes(
        path.read_bytes().replace(b'"noise_multiplier": 7.0', b'"noise_multiplier": 0.7')
    )
    done = CliRunner().invoke(app, ["certificate", str(path)])
    assert (done.exit_code, "above 8" in done.output) == (2, True)
