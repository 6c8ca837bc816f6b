"""A number of a certificate that is forged with its hashes is contradicted by derivation alone."""

import json
from pathlib import Path

import jsonschema
import pytest

from dpaudit.files.certificate import changes, unpack
from tests.verify.certified_audits import AUDITS, certificate
from tests.verify.test_mutations import Content, slipped

SCHEMA = Path(__file__).parents[2] / "docs" / "certificate.schema.json"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Content, Path]]:
    """By name, each with its unpacked matrices; made when it is first asked for."""

    class Made(dict[str, tuple[Content, Path]]):
        def __missing__(self, name: str) -> tuple[Content, Path]:
            content = json.loads(certificate(name, tmp_path_factory.mktemp("run")))
            folder = tmp_path_factory.mktemp("matrices")
            unpack(content, folder)
            self[name] = content, folder
            return self[name]

    return Made()


def test_forged_numbers_are_contradicted(
    certificates: dict[str, tuple[Content, Path]],
) -> None:
    """Thirty of one certificate, drawn by a fixed seed."""
    assert slipped(*certificates["counted runs"], 30) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", AUDITS)
def test_every_forged_number_is_contradicted(
    certificates: dict[str, tuple[Content, Path]], name: str, tmp_path: Path
) -> None:
    content, folder = certificates[name]
    jsonschema.validate(content, json.loads(SCHEMA.read_text()))
    assert list(changes(content, tmp_path)) == []
    assert slipped(content, folder, None) == []
