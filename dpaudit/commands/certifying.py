"""Writes the certificate of a run: what its verdicts rest on, in one file."""

from pathlib import Path
from typing import Annotated

from typer import Option

from dpaudit.errors import RunError
from dpaudit.files import certificate as file_format
from dpaudit.files.documents import read_json

from .options import RunFolder
from .results import result_of, write_into_run
from .terminal import say


def certificate(
    run_directory: RunFolder,
    out: Annotated[
        Path | None, Option(help="The file to write; default: certificate.json in DIR.")
    ] = None,
) -> None:
    """Write all that the verdicts of a run rest on into one file, which verify takes."""
    result = result_of(run_directory)
    version = read_json(run_directory / "audit.json")["schema_version"]
    if version != result.schema_version:
        raise RunError(
            "DPA010",
            f"{run_directory / 'audit.json'}: schema_version {version}; a certificate is made of "
            f"version {result.schema_version}",
            "run the audit again",
        )
    target = out or run_directory / file_format.NAME
    write_into_run(target, file_format.certificate_of(result, run_directory).to_json())
    say(f"certificate: {target}; check it with dpaudit verify {target}")
