"""`dpaudit doctor`: what is installed, what is missing for what."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpaudit.commands import doctor
from dpaudit.commands.cli import app
from dpaudit.files.config import AuditConfig

ROOT = Path(__file__).parents[2]
OWN = {"test", "bench", "docs"}  # extras for work on dpaudit itself


@pytest.fixture
def without(monkeypatch):
    """Makes a distribution look as if it were not installed."""
    true = doctor.version

    def hide(name: str) -> None:
        def version(asked: str) -> str:
            if asked == name:
                raise PackageNotFoundError(asked)
            return true(asked)

        monkeypatch.setattr(doctor, "version", version)

    return hide


def test_each_extra_of_users_is_named() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(project["optional-dependencies"]) == set(doctor.EXTRAS) | OWN


def test_a_missing_extra_is_named_with_its_purpose(without, monkeypatch) -> None:
    without("phe")
    monkeypatch.setattr(doctor, "seconds_of_the_digits", lambda cores: 90.0)
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 0, done.output
    assert (
        'extra paillier: missing: pip install "dpaudit[paillier]", for the defense '
        "paillier-consensus, whose messages are encrypted\n"
    ) in done.stdout
    assert "extra fast: installed\n" in done.stdout
    assert re.search(r"make audit: about 1\.5 min on \d+ idle core", done.stdout)


def test_the_digits_are_those_of_the_example() -> None:
    example = AuditConfig.from_toml(ROOT / "examples" / "dpdl-digits.toml")
    ours = AuditConfig.from_dict(doctor.DIGITS)
    assert (ours.data, ours.graph, ours.model) == (example.data, example.graph, example.model)
    one, other = (config.defense.create("defenses") for config in (ours, example))
    assert (one.n_rounds, one.batch_size) == (other.n_rounds, other.batch_size)
    assert type(one) is type(other)


def test_the_time_of_the_audit_is_measured() -> None:
    assert 1.0 < doctor.seconds_of_the_digits(1) < 3_000.0
