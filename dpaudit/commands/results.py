"""Results on a terminal: what was found, and what a dry run foretells."""

import webbrowser
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from dpaudit.errors import RunError
from dpaudit.files.config import AuditConfig
from dpaudit.files.finding import Name
from dpaudit.memory import size_text
from dpaudit.text import duration

from .report import result_of
from .terminal import errors_as_exit_codes, print_result, say

if TYPE_CHECKING:
    from dpaudit.pipeline.dry_run import Ahead, Outlook, Power
    from dpaudit.pipeline.run import Runtime


def show(
    run_directory: Annotated[Path, Argument(metavar="DIR", help="A run directory.")],
    open_: Annotated[bool, Option("--open", help="Open the report in a browser.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print audit.json.")] = False,
) -> None:
    """Print the result of a run again, as after its audit. Exits 0 whatever the verdict is."""
    with errors_as_exit_codes():
        result = result_of(run_directory)
        print_result(result, run_directory, as_json)
        if open_:
            _open(run_directory / "report.html")


def _open(page: Path) -> None:
    if not page.is_file():
        raise RunError(
            "DPA019", f"{page}: there is no report; make it with dpaudit report {page.parent}"
        )
    if not webbrowser.open(page.resolve().as_uri()):
        raise RunError("DPA024", f"{page}: no browser could be started; open the file by hand")


def print_outlook(config: AuditConfig, runtime: "Runtime") -> None:
    """Time, memory and power of an audit that was not begun."""
    from dpaudit.pipeline.dry_run import outlook

    found = outlook(config, runtime)
    say(f"{'time':>8}  {'memory':>8}  part")
    cost = found.cost
    for ahead in cost.parts:
        say(_of_part(ahead))
    on = f"{cost.cores} core{'s' * (cost.cores > 1)}"
    least = "at least " if any(ahead.seconds is None for ahead in cost.parts) else ""
    whole = "unknown" if cost.seconds is None else f"{least}about {duration(cost.seconds)}"
    say(f"all of it on {on}: {whole}; times of parts are of one core")
    for line in _of_claims(config, found):
        say(line)


def _of_part(ahead: "Ahead") -> str:
    time = "unknown" if ahead.seconds is None else duration(ahead.seconds)
    size = "unknown" if ahead.size is None else size_text(ahead.size)
    jobs = f" ({ahead.n_jobs} jobs)" if ahead.n_jobs > 1 else ""
    return f"{time:>8}  {size:>8}  {ahead.part}{jobs}"


def _of_claims(config: AuditConfig, found: "Outlook") -> Iterator[str]:
    """Each claim against each threat model, with what attacks can be expected to certify."""
    for i, claim in enumerate(config.claim):
        for model in config.threat_model:
            if claim.threat_model in (None, model.name):
                yield f"{claim.sentence()}, against {model.name}:"
                told = [p for p in found.powers if (p.claim, p.threat_model) == (i, model.name)]
                yield from map(_of_power, told)
                if not told:
                    yield "  no attack of this audit foretells what it can certify"


def _of_power(power: "Power") -> str:
    metrics = power.metrics
    expected, ceiling = metrics.get(Name.EXPECTED_BOUND), metrics.get(Name.CEILING)
    needed = metrics.get(Name.TRIALS_NEEDED)
    bound = "not known before its runs" if expected is None else f"{expected.value:.3g}"
    said = f"  {power.attack}: the epsilon expected to be certified is {bound}"
    if ceiling is not None and ceiling.value == inf:
        said += f"; {ceiling.n} trials have no ceiling: the less noise there is, the more they show"
    elif ceiling is not None:
        said += f", at most {ceiling.value:.3g} by {ceiling.n} trials"
    if needed is not None and needed.value == inf:
        said += "; no number of trials that can be played refutes the claim"
    elif needed is not None:
        said += f"; a perfect attack refutes the claim with {needed.value:.0f} trials"
    return said
