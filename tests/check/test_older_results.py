"""An audit.json of before, and one without what only a defense has: report and check read it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dpaudit.commands.cli import app
from dpaudit.files.result import AuditResult
from tests.check.stub_audits import check, runs

GOLDEN = Path(__file__).parents[1] / "golden" / "audit.json"
OF_A_DEFENSE: dict[str, dict[str, Any]] = {  # what they hold where there is none
    "": {"calibrated": {}, "utility": {}},
    "provenance": {"n_records": 0, "agent_sizes": []},
    "graph": {"spectral_gap": "nan"},
}


def without(content: dict[str, Any], how: str) -> dict[str, Any]:
    """The same with these fields empty, or without them."""
    for place, empty in OF_A_DEFENSE.items():
        part = content[place] if place else content
        for name, value in empty.items():
            part.pop(name, None)
            part |= {name: value} if how == "empty" else {}
    return content


def of_version(version: int) -> dict[str, Any]:
    """The golden result, as the schema of a version has it."""
    if version == 1:
        content = json.loads(GOLDEN.read_text())
    else:
        content = json.loads(AuditResult.read(GOLDEN).to_json())
        if version == 2:
            content["schema_version"] = 2
            for claim in content["claims"]:
                del claim["premises"], claim["range"]
    assert content["schema_version"] == version
    return content


@pytest.mark.parametrize(
    ("version", "how"),
    [
        (1, "empty"),
        pytest.param(2, "empty", marks=pytest.mark.slow),
        pytest.param(2, "absent", marks=pytest.mark.slow),
        pytest.param(3, "absent", marks=pytest.mark.slow),
    ],
)
def test_it_is_reported_and_checked(folder: Path, version: int, how: str) -> None:
    content = of_version(version)
    file = folder / "run" / "audit.json"
    file.parent.mkdir()
    file.write_text(json.dumps(without(content, how)))
    found, golden = AuditResult.read(file), AuditResult.read(GOLDEN)
    assert (found.verdict, found.claims) == (golden.verdict, golden.claims)
    assert found.provenance.agent_sizes == ()
    shutil.copytree(file.parent, folder / "other")
    done = CliRunner().invoke(app, ["report", str(file.parent)])
    assert (done.exit_code, (file.parent / "report.html").exists()) == (0, True), done.output
    page = str(folder / "both.html")
    two = [str(file.parent), str(folder / "other"), "--out", page]
    assert CliRunner().invoke(app, ["report", *two]).exit_code == 0
    first, again = (check(folder, STUB_LEAVES=str(file)) for _ in range(2))
    assert first == again
    assert first[0] in (0, 1)
    assert runs(folder) == 1  # the second time it is read
