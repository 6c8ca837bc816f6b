"""A draft of captured.toml: what a recording shows of the audit that a user may want."""

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path

from dpaudit.errors import ConfigError
from dpaudit.files.captured_file import LEAST_RUNS, CertifyOptions, ProgramOptions
from dpaudit.files.recorded import DRAFT
from dpaudit.recorder.draws.loaders import WORKERS
from dpaudit.text import one_line

from .noise_lines import noise_lines, noise_of_tap
from .program import refuse_missing_script, torchrun
from .recording import CaptureFolder
from .rounds import is_small, start_site
from .run import Options
from .simulation import is_simulation
from .weights import lines_of

AUDITED_ROUNDS = 3  # the first ones
SECONDS = 120.0  # default time limit of one run

ANEW = ", each started anew, which takes as long as the recording"
_DRAFT = """\
# A draft, from one recorded run. Confirm what it proposes, then: dpaudit audit {file}
[program]
command = {command}
folder = {folder}
{python}{ranks}
seconds = {seconds:g}  # that one run may take
cpu = {cpu}  # whether the CPU answers for CUDA

[messages]
ignore = []  # lines whose messages are diagnostics; the report names them{small}
{weights}
{rounds}
reductions = "contributions"  # or "sum only", or "rows of a padded stack"

[noise]
# Lines that draw noise and nothing else: initial weights, the order of data and dropout are none.
{sites}

[record]
victims = [{victim}]  # agents, one of whose records is changed
rounds = {audited}
# How a record comes into a batch. State it if batches are drawn at random, or for scope "run":
# a claim has no verdict without it then.
# sampling = "none"  # "none": the adversary knows its batches | "poisson" | "fixed"
# sampling_rate = 0.01  # of "poisson" and "fixed"

[certify]
# Short runs, which can refute a claim by themselves: {least} or more{anew}.
runs = {runs}  # 0: none, which saves their time

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
    rounds = rounds_with_part(recording)
    anew = _starts_anew(command, recording)
    victim = min(rounds, key=lambda agent: (-len(rounds[agent][:AUDITED_ROUNDS]), agent), default=0)
    return _DRAFT.format(
        file=recording.path / DRAFT,
        command=_toml(list(command)),
        folder=_toml(os.path.relpath(Path.cwd(), recording.path)),
        python="" if options.python is None else f"python = {_toml(str(options.python))}\n",
        ranks=f"ranks = {len(recording.ranks)}"
        if not is_simulation(recording.events, recording.children)
        else "# ranks: none, because one process shows all messages to the tap",
        seconds=max(SECONDS, options.seconds if options.seconds != Options.seconds else 0),
        cpu=_toml(options.cpu),
        small="".join(f"\n# {line}" for line in _small(recording)),
        weights=_weights(recording),
        rounds=_start(recording, options.round_starts_at),
        sites=_sites(recording),
        victim=victim,
        audited=rounds.get(victim, [1])[:AUDITED_ROUNDS],
        least=LEAST_RUNS,
        anew=ANEW if anew else "",
        runs=0 if anew else CertifyOptions().runs,
    )


def _starts_anew(command: Sequence[str], recording: CaptureFolder) -> bool:
    """Whether no server can fork the runs of a command, so that each takes as long as this one."""
    if is_simulation(recording.events, recording.children):
        return False
    ranks = len(recording.ranks)
    return torchrun(ProgramOptions(command=tuple(command), folder=Path.cwd(), ranks=ranks)) is None


APART = (
    "agent {} takes batches and sends nothing, and agent {} sends and takes no batch; show a "
    "message by the agent that takes the batch; a server that adds the noise takes a batch with a "
    "record for each client"
)


OTHER_LINES = (
    "rounds were found by what {} sends, and no agent takes a batch in them before it sends; if "
    "rounds begin elsewhere, give --round-starts-at FILE:LINE, which sends or draws"
)


def why_no_draft(command: Sequence[str], recording: CaptureFolder, options: Options) -> str | None:
    """Why no audit can run this command, and what to do, in words; None: an audit can."""
    if options.transport is not None:
        return "an audit does not see the messages that a --transport adapter shows"
    simulated = is_simulation(recording.events, recording.children)
    ranks = None if simulated else len(recording.ranks)
    program = ProgramOptions(command=tuple(command), folder=Path.cwd(), ranks=ranks)
    try:
        refuse_missing_script(program)
        if ranks is not None:
            torchrun(program)
    except ConfigError as error:
        return str(error)
    if loaders := [line for line in recording.unseen if line.startswith(WORKERS.partition("{")[0])]:
        return loaders[0]
    if any(batch.records == 0 for batch in recording.batches):
        return next(line for line in recording.unseen if line.startswith("tap.batch: "))
    if not any(event.round for event in recording.events):
        return "no rounds were found; give --round-starts-at FILE:LINE, which sends or draws"
    if not rounds_with_part(recording):
        shown = "show it the records of each step: x, y = tap.batch(agent, (x, y))"
        taking = {batch.agent for batch in recording.batches}
        sending = {event.source for event in recording.events}
        if taking and not taking & sending:
            few = [" and ".join(map(str, sorted(some)[:3])) for some in (taking, sending)]
            return APART.format(*few)
        if any(event.round is None and event.source in taking for event in recording.events):
            lines = sorted({event.call_site for event in recording.events if event.round})
            return OTHER_LINES.format(", ".join(lines[:3]))
        if simulated:
            return f"no agent takes a batch before it sends; {shown}"
        return f"no rank takes a batch before it sends, by a DataLoader or tap.batch; {shown}"
    return None


def rounds_with_part(recording: CaptureFolder) -> dict[int, list[int]]:
    """By agent: the rounds in which it takes a batch and then sends."""
    last: defaultdict[int, dict[int, int]] = defaultdict(dict)  # message by agent and round
    for event in recording.events:
        if event.round is not None:
            last[event.source][event.round] = event.sequence
    found: defaultdict[int, list[int]] = defaultdict(list)
    for agent, ends in sorted(last.items()):
        taken = [batch.sequence for batch in recording.batches if batch.agent == agent]
        begin = -1
        for k, end in sorted(ends.items()):
            if any(begin < sequence < end for sequence in taken):
                found[agent].append(k)
            begin = max(begin, end)
    return dict(found)


def _small(recording: CaptureFolder) -> Iterator[str]:
    """Lines that send much less than others: of losses and accuracies, as a rule."""
    sizes: defaultdict[str, int] = defaultdict(int)
    for event in recording.events:
        size = sum(prod(tensor.shape) for tensor in event.tensors)
        sizes[event.call_site] = max(sizes[event.call_site], size)
    largest = max(sizes.values(), default=0)
    for site, size in sizes.items():
        if is_small(size, largest):
            numbers = "1 number" if size == 1 else f"{size} numbers"
            yield f"{site} sends {numbers}, and others {largest}: is it a diagnostic?"


def _weights(recording: CaptureFolder) -> str:
    """Lines that send weights, and a comment on each line that can be told."""
    lines = lines_of(recording)
    sites = [site for site, line in lines.items() if line.sends_weights]
    said = [f"# {one_line(site)} {line.says}\n" for site, line in lines.items()]
    return "".join(said) + f"weights = {_toml(sites)}  # lines that send weights, not updates"


def _start(recording: CaptureFolder, given: str | None) -> str:
    """Where rounds start: as given, or as found."""
    if is_simulation(recording.events, recording.children):
        return "# rounds: an agent begins one with the first batch after it has sent"
    site = given or start_site(recording.events, recording.draws)
    if site is not None:
        return f"round_starts_at = {_toml(site)}"
    return '# round_starts_at = "train.py:88"  # none: rounds are the period of the calls'


def _sites(recording: CaptureFolder) -> str:
    shown, lines = noise_of_tap(recording), noise_lines(recording)
    if shown is not None:
        at = f", drawn at {', '.join(shown)}" if shown else ""
        sites = f"sites = []  # none: the noise is what tap.noise is called with{at}"
        others = {
            line.site: f"is not shown to tap.noise: {line.why_not or 'is it noise?'}"
            for line in lines
            if line.site not in shown
        }
    elif is_simulation(recording.events, recording.children):
        sites = "sites = []  # none: show noise to tap.noise(agent, name, draw, scale)"
        others = {line.site: line.why_not or "is it noise?" for line in lines}
    else:
        proposed = [line for line in lines if line.why_not is None]
        listed = "".join(
            f"    {_toml(line.site)},{'  # ' if line.doubt else ''}{line.doubt}\n"
            for line in proposed
        )
        sites = f"sites = [\n{listed}]" if proposed else "sites = []  # no line draws noise"
        others = {line.site: line.why_not for line in lines if line.why_not is not None}
    return "\n".join([sites, *(f"# {_toml(site)} {why}" for site, why in others.items())])


def _toml(value: object) -> str:
    """Texts, lists of them and truth values are written as in JSON, but for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
