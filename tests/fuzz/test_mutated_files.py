"""Whatever is in a file, what reads it gives a value that makes sense, or a few short lines.

Every input is made from a whole file by a generator named by format, seed and number, so that a
failure can be made again. An input that takes longer than ten seconds is stopped and counts as one.
"""

import json
import resource
import struct
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest
from typer.testing import CliRunner

from dpaudit.check.baseline import Baseline, check_baseline, compare, key_metrics
from dpaudit.check.statements import beside_baseline, statements
from dpaudit.commands.cli import app
from dpaudit.commands.starter import starter
from dpaudit.data.datasets import load_dataset
from dpaudit.errors import MOST_LINES
from dpaudit.files.claims_file import ClaimsFile
from dpaudit.files.config import AuditConfig
from dpaudit.files.result import AuditResult
from dpaudit.pipeline import run as pipeline
from dpaudit.reports.html import render
from dpaudit.training.run_directory import RunDirectory
from tests.own_plugins import OWN
from tests.said import without_help

LONGEST = 500  # characters of a line that a command says
MEBIBYTES = 1024  # that all inputs of a format together may add to what the process takes
ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "golden" / "audit.json"

Mutation = Callable[[bytes, Random], bytes]


class Format(NamedTuple):
    """A file that is read: whole ones, how they are changed, and who reads them."""

    file: str  # relative to the folder that is read from
    wholes: Callable[[Path], list[bytes]]
    mutation: str  # beside that of bytes
    read: Callable[[Path], Any]  # from the folder


def audits(folder: Path) -> list[bytes]:
    return [starter(name).encode() for name in OWN]


def claims(folder: Path) -> list[bytes]:
    (folder / "audit.toml").write_text(starter("dpdl"))
    inline = '[[check]]\nname = "b"\naudit = { seed = 3, data = { name = "digits" } }\n'
    return [(ROOT / "example_project" / "claims.toml").read_bytes() + inline.encode()]


def results(folder: Path) -> list[bytes]:
    old = json.loads(GOLDEN.read_bytes())
    for finding in old["findings"]:  # short columns, many findings: more places that matter
        finding["series"] = {k: v[:3] for k, v in finding.get("series", {}).items()}
    (folder / "old.json").write_text(json.dumps(old))
    new = AuditResult.read(folder / "old.json").to_json()
    return [json.dumps(old).encode(), new.encode()]


def baselines(folder: Path) -> list[bytes]:
    golden_baseline().write(folder / "made.json")
    old = (ROOT / "example_project" / "baseline.json").read_bytes()
    return [(folder / "made.json").read_bytes(), old]


def begun(folder: Path) -> list[bytes]:
    (folder / "config.toml").write_text(starter("dpdl"))
    config = AuditConfig.from_toml(folder / "config.toml").model_dump(mode="json")
    return [json.dumps({"config": config, "device": "cpu", "data": "0" * 64}).encode()]


def archives(folder: Path) -> list[bytes]:
    rng = np.random.default_rng(1)
    x, y, images = rng.random((20, 3)), np.arange(20) % 2, rng.integers(0, 256, (20, 4, 4))
    path = folder / "whole.npz"
    made = []
    for save in (np.savez, np.savez_compressed):
        save(path, x=x, y=y)
        made.append(path.read_bytes())
        save(path, x=images.astype("u1"), y=y.astype(str), x_test=images.astype("u1"), y_test=y.astype(str))  # fmt: skip
        made.append(path.read_bytes())
    return made


def idx(folder: Path) -> list[bytes]:
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    images = struct.pack(">IIII", 0x803, 3, 28, 28) + bytes(3 * 28 * 28)
    for part in ("train", "t10k"):
        (raw / f"{part}-images-idx3-ubyte").write_bytes(images)
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, 3) + b"\0\1\2")
    return [images]


@cache
def golden() -> AuditResult:
    return AuditResult.read(GOLDEN)


@cache
def whole_claims() -> ClaimsFile:
    return ClaimsFile.read(ROOT / "example_project" / "claims.toml")


@cache
def golden_baseline() -> Baseline:
    return Baseline(checks={"our README": check_baseline({}, golden())})


def read_claims(folder: Path) -> Any:
    file = ClaimsFile.read(folder / "claims.toml")
    return statements(file, {c.name: golden() for c in file.claims.check})


def read_result(folder: Path) -> Any:
    result = AuditResult.read(folder / "audit.json")
    check_baseline({}, result)
    key_metrics(result)
    statements(whole_claims(), {"our README": result})
    beside_baseline(whole_claims(), {"our README": result}, golden_baseline(), "0")
    assert AuditResult.model_validate_json(result.to_json()).to_json() == result.to_json()
    return result


def read_page(folder: Path) -> Any:
    return render(AuditResult.read(folder / "audit.json"), folder)


def read_baseline(folder: Path) -> Any:
    baseline = Baseline.read(folder / "baseline.json")
    compare(baseline, {name: golden() for name in baseline.checks}, "0")
    return baseline


def read_begun(folder: Path) -> Any:
    recorded = pipeline._recorded(RunDirectory(folder))
    return pipeline._edited(folder, recorded["config"], ())


FORMATS = {
    "audit": Format("a.toml", audits, "of_toml", lambda f: AuditConfig.from_toml(f / "a.toml")),
    "claims": Format("claims.toml", claims, "of_toml", read_claims),
    "result": Format("audit.json", results, "of_json", read_result),
    "page": Format("audit.json", results, "of_json", read_page),
    "baseline": Format("baseline.json", baselines, "of_json", read_baseline),
    "run": Format("run.json", begun, "of_json", read_begun),
    "npz": Format("data.npz", archives, "of_bytes", lambda f: load_dataset(f / "data.npz")),
    "idx": Format(
        "MNIST/raw/train-images-idx3-ubyte",
        idx,
        "of_bytes",
        lambda f: load_dataset("mnist", data_root=f),
    ),
}


@pytest.fixture
def fuzz(
    tmp_path: Path,
    mutations: Mapping[str, Mutation],
    inputs: Mapping[str, int],
    wrong: Callable[[Callable[[], Any]], str],
) -> Callable[[str, int], None]:
    """Reads as many mutated files of a format as it has inputs, from a seed."""

    def each(name: str, seed: int) -> None:
        format = FORMATS[name]
        wholes = format.wholes(tmp_path)
        path = tmp_path / format.file
        found = {}
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for i in range(inputs[name]):
            rng = Random(f"{name} {seed} {i}")
            whole = rng.choice(wholes)
            kind = format.mutation if rng.random() < 0.7 else "of_bytes"
            path.write_bytes(mutations[kind](whole, rng))
            if fault := wrong(partial(format.read, tmp_path)):
                found[i] = fault
        assert found == {}, (name, seed)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert (after - before) / 1024 < MEBIBYTES

    return each


@pytest.mark.parametrize("name", FORMATS)
def test_the_whole_files_are_read(name: str, tmp_path: Path) -> None:
    format = FORMATS[name]
    for whole in format.wholes(tmp_path):
        (tmp_path / format.file).write_bytes(whole)
        format.read(tmp_path)


@pytest.mark.parametrize("name", FORMATS)
def test_mutated_files_end_in_a_value_or_a_few_lines(name: str, fuzz) -> None:
    fuzz(name, 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 12))
@pytest.mark.parametrize("name", FORMATS)
def test_many_mutated_files_end_in_a_value_or_a_few_lines(name: str, seed: int, fuzz) -> None:
    fuzz(name, seed)


def test_the_fast_suite_has_2000_inputs(inputs: Mapping[str, int]) -> None:
    assert sum(inputs.values()) == 2_000


HOSTILE = {
    "deep": b"a = " + b"[" * 100_000,
    "huge": b"[data]\nn_agents = " + b"9" * 4_000,
    "nul": b'[data]\npath = "a\\u0000b.npz"',
    "bytes": bytes(range(256)),
    "long": b'seed = "' + b"x" * 500_000 + b'"',
    "keys": b"".join(b"k%d = 1\n" % i for i in range(3_000)),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("command", ["audit", "check", "report", "attack"])
def test_commands_end_in_a_few_lines_and_exit_2(command: str, name: str, tmp_path: Path) -> None:
    for file in ("audit.toml", "audit.json", "run.json"):
        (tmp_path / file).write_bytes(HOSTILE[name])
    named = "audit.toml" if command in ("audit", "check") else "."
    done = CliRunner().invoke(app, [command, str(tmp_path / named)])
    lines = without_help(done.stderr).splitlines()
    assert done.exit_code == 2, done.output
    assert 0 < len(lines) <= MOST_LINES + 1
    assert max(map(len, lines)) < LONGEST
