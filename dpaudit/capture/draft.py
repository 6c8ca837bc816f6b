"""A draft of captured.toml: what a recording shows of the audit that a user may want."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from dpaudit.errors import ConfigError
from dpaudit.files.captured_file import ProgramOptions
from dpaudit.files.recorded import DRAFT
from dpaudit.files.world import Noise
from dpaudit.recorder.draws.torch_draws import is_laplace

from .program import refuse_missing_script, torchrun
from .recording import CaptureFolder
from .rounds import is_simulation, start_site
from .run import Options

_LAWS = ("normal", "laplace", "uniform", "exponential", "gamma", "geometric", "lognormal")
NOISE = (  # operators
    "normal_",
    "normal",
    "uniform_",
    "exponential_",
    "cauchy_",
    "log_normal_",
    "geometric_",
    "_standard_gamma",
    *(f"{library}.{law}" for library in ("numpy", "random", "jax") for law in _LAWS),
)
REPLAYED = (  # operators of noise that an audit can replay
    *("normal_", "normal", "numpy.normal", "numpy.laplace"),
    *("random.normal", "jax.normal", "jax.laplace"),
)
AUDITED_ROUNDS = 3  # the first ones
SECONDS = 120.0  # of one run, unless more were asked for

_DRAFT = """\
# A draft, from one recorded run. Confirm what it proposes, then: dpaudit audit {file}
[program]
command = {command}
folder = {folder}
{python}{ranks}
seconds = {seconds:g}  # that one run may take
cpu = {cpu}  # whether the CPU answers for CUDA

[messages]
ignore = []  # lines whose messages are diagnostics; the report names them
{rounds}
reductions = "contributions"  # or "sum only", or "rows of a padded stack"

[noise]
# Lines that draw noise and nothing else: initial weights, the order of data and dropout are none.
{sites}

[record]
victims = [0]  # agents, one of whose records is changed
rounds = {audited}
# How a record comes into a batch; a claim of scope "run" has no verdict without it.
# sampling = "none"  # "none": the adversary knows its batches | "poisson" | "fixed"
# sampling_rate = 0.01  # of "poisson" and "fixed"

[[claim]]  # what the program promises
text = "what the program promises"
epsilon = 1.0
delta = 1e-5
scope = "round"  # what these rounds measure: message | round | run
adjacency = "replace-one"  # add-remove | replace-one

[[threat_model]]
name = "eavesdropper"
kind = "external"  # reads every link
"""


def draft(command: Sequence[str], recording: CaptureFolder, options: Options) -> str:
    """The text of a captured.toml that lies in the folder of the recording."""
    rounds = sorted({event.round for event in recording.events if event.round is not None})
    return _DRAFT.format(
        file=recording.path / DRAFT,
        command=_toml(list(command)),
        folder=_toml(os.path.relpath(Path.cwd(), recording.path)),
        python="" if options.python is None else f"python = {_toml(str(options.python))}\n",
        ranks=f"ranks = {len(recording.ranks)}"
        if not is_simulation(recording.events)
        else "# ranks: none, for one process tells dpaudit.tap of all messages",
        seconds=max(SECONDS, options.seconds if options.seconds != Options.seconds else 0),
        cpu=_toml(options.cpu),
        rounds=_start(recording, options.round_starts_at),
        sites=_sites(recording),
        audited=rounds[:AUDITED_ROUNDS] or [1],
    )


def why_no_draft(command: Sequence[str], recording: CaptureFolder, options: Options) -> str | None:
    """Why no audit can run this command, in words; None: an audit can."""
    if options.transport is not None:
        return "an audit does not see the messages that a --transport adapter shows"
    ranks = None if is_simulation(recording.events) else len(recording.ranks)
    program = ProgramOptions(command=tuple(command), folder=Path.cwd(), ranks=ranks)
    try:
        refuse_missing_script(program)
        if ranks is not None:
            torchrun(program)
    except ConfigError as error:
        return str(error)
    return None


def noise_sites(recording: CaptureFolder) -> list[str]:
    """Lines that drew continuous numbers between two messages of one process, as first met.

    They count from the first message of round 1 on, where there are rounds: what is drawn before
    it alone is of data and of initial weights.
    """
    span: dict[int, list[int]] = {}
    rounds = any(event.round is not None for event in recording.events)
    for event in recording.events:
        if event.round is not None or not rounds:
            span.setdefault(event.process, []).append(event.sequence)
    between = (
        draw.call_site
        for draw in recording.draws
        if draw.operator in NOISE
        and draw.process in span
        and span[draw.process][0] < draw.sequence < span[draw.process][-1]
    )
    return list(dict.fromkeys(between))


def _start(recording: CaptureFolder, given: str | None) -> str:
    """Where rounds start: as given, or as found; or why nothing is proposed."""
    if is_simulation(recording.events):
        return "# rounds: the k-th message of a name from one agent to the same receivers is of k"
    site = given or start_site(recording.events, recording.draws)
    if site is not None:
        return f"round_starts_at = {_toml(site)}"
    if any(event.round for event in recording.events):
        return '# round_starts_at = "train.py:88"  # none: rounds are the period of the calls'
    return 'round_starts_at = ""  # no rounds were found: name a line that sends or draws'


def _sites(recording: CaptureFolder) -> str:
    if any(draw.operator in get_args(Noise) for draw in recording.draws):
        return "sites = []  # none: the noise is what tap.noise is called with"
    drawn = noise_sites(recording)
    if not drawn:
        return "sites = []  # no line draws continuous numbers between messages"
    doubts = {
        draw.call_site: f"  # by {draw.operator}: leave it out if it draws batches or anything but "
        "noise; noise that is drawn so cannot be audited"
        for draw in recording.draws
        if draw.operator not in REPLAYED and not is_laplace(draw.operator, draw.parameters)
    }
    lines = "".join(f"    {_toml(site)},{doubts.get(site, '')}\n" for site in drawn)
    return f"sites = [\n{lines}]"


def _toml(value: object) -> str:
    """Texts, lists of them and truth values are written as in JSON, but for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
