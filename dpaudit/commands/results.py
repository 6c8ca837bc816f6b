"""Results on a terminal: what was found, and what a dry run estimates."""

import webbrowser
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
    from dpaudit.pipeline.jobs import Power
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
            "DPA019", f"{page}: there is no report", f"make it with dpaudit report {page.parent}"
        )
    if not webbrowser.open(page.resolve().as_uri()):
        raise RunError("DPA024", f"{page}: no browser could be started", "open the file by hand")


def print_outlook(config: AuditConfig, runtime: "Runtime") -> None:
    """Time, memory and power of an audit that was not begun."""
    from dpaudit.pipeline.run import outlook

    costs, powers = outlook(config, runtime)
    say(f"{'time':>8}  {'memory':>8}  part")
    least = ""
    for part, seconds, size, n_jobs in costs.by_part():
        time = "unknown" if seconds is None else duration(seconds)
        memory = "unknown" if size is None else size_text(size)
        say(f"{time:>8}  {memory:>8}  {part}{f' ({n_jobs} jobs)' if n_jobs > 1 else ''}")
        least = "at least " if seconds is None else least
    whole, cores = costs.seconds(runtime.workers), costs.cores(runtime.workers)
    about = "unknown" if whole is None else f"{least}about {duration(whole)}"
    say(f"all of it on {cores} core{'s' * (cores > 1)}: {about}; times of parts are of one core")
    for i, claim in enumerate(config.claim):
        for model in config.threat_model:
            if claim.threat_model in (None, model.name):
                say(f"{claim.sentence()}, against {model.name}:")
                of_claim = [p for p in powers if (p.claim, p.threat_model) == (i, model.name)]
                for line in map(_of_power, of_claim):
                    say(line)
                if not of_claim:
                    say("  no attack of this audit knows beforehand what it can certify")


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
