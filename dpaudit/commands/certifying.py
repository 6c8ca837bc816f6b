"""Writes the certificate of a run, or of a ledger: what it rests on, in one file."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from dpaudit.errors import RunError
from dpaudit.files.documents import read_json, reason

from .results import result_of, write_into_run
from .terminal import complain, say

if TYPE_CHECKING:
    from dpaudit.files.certificate import Declaration


def certificate(
    run_directory: Annotated[
        Path, Argument(metavar="DIR|LEDGER", help="The run directory, or a ledger.")
    ],
    out: Annotated[
        Path | None, Option(help="The file to write; default: certificate.json in DIR, or beside.")
    ] = None,
) -> None:
    """Write all that the verdicts of a run rest on into one file, which verify takes.

    Of a ledger, what it declares: no audit examined that, and the file says so.
    """
    from dpaudit.files import certificate as file_format

    if run_directory.is_file():
        target = out or run_directory.with_name(file_format.NAME)
        write_into_run(target, _declaration(run_directory).to_json())
        said = "declared and not audited; check it with dpaudit verify"
        say(f"certificate: {target}, {said} {target}")
        return
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


def _declaration(path: Path) -> "Declaration":
    """The certificate of a ledger.

    Raises:
        RunError: it cannot be read, is none, or its releases exceed its budget.
    """
    from dpaudit.files import certificate as file_format
    from dpaudit.files.ledger_file import CUT_OFF, counted_lines, read_ledger
    from dpaudit.ledger.accounts import ROUNDING, composed

    try:
        content = path.read_bytes()
    except OSError as error:
        raise RunError("DPA007", f"{path}: {reason(error)}") from None
    lines, is_cut_off = counted_lines(content)
    if is_cut_off:
        complain(f"{path}: {CUT_OFF}", "warning")
    counted = content[: len(lines)]
    budget, entries = read_ledger(lines, path)
    sums = composed(budget, entries, budget.delta)
    if max(sums.values()) > budget.epsilon * (1 + ROUNDING):
        said = f"its releases add up to epsilon {max(sums.values()):.4g}, above {budget.epsilon:g}"
        raise RunError("DPA082", f"{path}: {said}")
    return file_format.Declaration(
        budget=budget,
        entries=tuple(entries),
        sums=tuple(
            file_format.AgentSum(
                agent=agent,
                releases=sum(
                    1 if one.release is None else one.release.count
                    for one in entries
                    if one.agent in (None, agent)
                ),
                epsilon=epsilon,
            )
            for agent, epsilon in sums.items()
        ),
        ledger=path.name,
        ledger_bytes=len(counted),
        ledger_sha256=hashlib.sha256(counted).hexdigest(),
    )
