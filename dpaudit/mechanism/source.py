"""A function as a source of an audit: its calls, what they show, and the verdict on its claim."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError

from dpaudit.defense.claim_accounting import AccountedClaim, claimed_delta
from dpaudit.errors import ConfigError
from dpaudit.files.claim import Adjacency, Claim
from dpaudit.files.file_problems import dotted, problems_of
from dpaudit.files.finding import Finding, Role
from dpaudit.files.mechanism_file import READER, MechanismConfig, MechanismOptions, claim_problems
from dpaudit.files.result import AuditResult, GraphSummary, JudgedClaim, Note
from dpaudit.inputs.recorder import recording
from dpaudit.pipeline.judge import AuditEvidence, audited, bearing_on, judge
from dpaudit.pipeline.provenance import provenance_of
from dpaudit.pipeline.rules import Judging
from dpaudit.progress import OnProgress, one_step, unreported
from dpaudit.source import hash_of, own_source
from dpaudit.training.run_directory import RunDirectory

from .elsewhere import FunctionElsewhere, elsewhere
from .findings import (
    ComparedCalls,
    alignment,
    between_calls,
    distance,
    measured,
    null_control,
    tested,
)
from .function import (
    AuditedFunction,
    Function,
    FunctionHere,
    Value,
    examine,
    kept_randomness,
    load,
    source_of,
)
from .neighbours import SCALES, NeighbouringInputs, Pair
from .probes import probed
from .rare_outputs import goes_on, known_far_seeds, other_draws
from .search import Search
from .shifts import OutputNoise

SEARCH = "search for the worst pair of inputs"
COMPARISON = "calls beside the noise that was recognised"
CONTROLS = "controls"
SAYS = (
    "The adversary reads all that the function returns. It knows the function, its public "
    "parameters and both inputs, and nothing of what is drawn."
)
EXAMINED = 24  # inputs on which the function is examined before
REPLAYED = 1_000  # the first seed of calls that are compared with recognised noise
OVERHEAD = 9_000  # calls beside the counted ones, about
OTHER_INPUTS = "Other inputs than those that were tried may leak more."
SEEDED = "calls in a row do not draw on from one generator: one of them has seeded it again"
RARE = " Noise was compared in {:,} calls{}: what is rarer is not seen."
FROM_PYTHON = "# This function was audited from Python; its config is in audit.json.\n"


def audit(
    function: Function | str,
    claim: Mapping[str, Any],
    shape: Sequence[int] | Sequence[Sequence[int]],
    adjacency: Adjacency = "replace-one",
    *,
    seed: int = 0,
    out: str | Path | None = None,
    on_progress: OnProgress | None = None,
    **options: Any,
) -> AuditResult:
    """Audit the privacy claim of one function, from a value to a noised value.

    The function may have a parameter ``rng``, by which it is given a ``numpy.random.Generator``.

    Args:
        function: takes an array of ``shape``, or a list of arrays, and returns it noised; or its
            name "module:function", which ``python`` needs.
        claim: ``epsilon`` in nats and ``delta``, or ``mu``.
        shape: of the value; of a list of tensors, the shape of each.
        adjacency: "replace-one": any two values are neighbours; "add-remove": a value and zero.
        seed: of all runs.
        out: run directory for audit.json and report.html; None keeps nothing on disk.
        on_progress: called as ``on_progress(what, done, total)``.
        options: keys of ``[mechanism]``, as ``dtype``, ``sensitivity``, ``calls`` or ``python``.

    Raises:
        DpauditError: the options cannot be meant, or the function cannot be audited.
    """
    name, found = (function, None) if isinstance(function, str) else (_name(function), function)
    if found is not None and "python" in options:
        said = "python: a function of this process is called here"
        raise ConfigError("DPA013", said, 'give its name, "module:function"')
    content = {
        "seed": seed,
        "mechanism": {"function": name, "shape": shape, **options},
        "claim": [{"text": "the claim", "adjacency": adjacency, **claim}],
    }
    place = TemporaryDirectory(prefix="dpaudit-") if out is None else nullcontext(str(out))
    with place as folder:
        return run_mechanism(
            from_python(content),
            Path(folder),
            FROM_PYTHON,
            False,
            on_progress,
            found,
            out is not None,
        )


def _name(function: Function) -> str:
    return f"{getattr(function, '__module__', None)}:{getattr(function, '__qualname__', function)}"


def from_python(content: dict[str, Any]) -> MechanismConfig:
    """The config of a dictionary. Raises ConfigError, with a line for each problem."""
    try:
        config = MechanismConfig.model_validate(content)
        problems = claim_problems(config)
    except ValidationError as error:
        problems = list(problems_of(error, MechanismConfig, content))
    if problems:
        raise ConfigError.of(
            one._replace(text=f"{dotted(key)}: {one.text}") for key, one in problems
        )
    return config


def run_mechanism(
    config: MechanismConfig,
    out: Path,
    config_text: str = "",
    resume: bool = False,
    on_progress: OnProgress | None = None,
    function: Function | None = None,
    report: bool = True,
    say: Callable[[str], None] | None = None,
) -> AuditResult:
    """Audit the function of a config; writes the run directory.

    Args:
        function: in the place of the one that the config names.
        report: whether report.html is written.
        say: called with a line if the folder has an audit of another config, which is replaced.

    Raises:
        DpauditError: the function cannot be loaded or audited, or the run directory does not allow
            it.
    """
    with recording(), kept_randomness(), _found(config.mechanism, function) as found:
        source = FunctionSource(config, *found)
        evidence = partial(source.evidence, on_progress or unreported)
        fingerprint = source.fingerprint()
        return audited(config, out, config_text, resume, fingerprint, evidence, report, say)


@contextmanager
def _found(
    options: MechanismOptions, function: Function | None
) -> Iterator[tuple[AuditedFunction, Path | None]]:
    """The function to call, and the file in which it is written. Raises ConfigError."""
    if function is None and options.python is not None:
        with elsewhere(options.python, options.function, options.seconds) as process:
            yield FunctionElsewhere(process, options), process.source
        return
    found = load(options.function) if function is None else function
    yield FunctionHere(found, options), source_of(found)


def judged(config: MechanismConfig, function: Function) -> tuple[JudgedClaim, list[Finding]]:
    """The verdict on the claim and its evidence, with nothing written. Raises FunctionError."""
    with kept_randomness():
        called = FunctionHere(function, config.mechanism)
        judging, findings, _ = examined(config, called, unreported)
        return judge([judging], findings)[0], findings


@dataclass(frozen=True)
class FunctionSource:
    """A function, called as often as its search and its counted runs need."""

    config: MechanismConfig
    function: AuditedFunction
    file: Path | None  # file in which it is written

    @cached_property
    def code(self) -> str:
        return hash_of([self.file]) if self.file is not None and self.file.exists() else ""

    def fingerprint(self) -> dict[str, object]:
        return {
            "config": self.config.model_dump(mode="json"),
            "code": {"dpaudit": hash_of(own_source()), "function": self.code},
        }

    def evidence(self, on_progress: OnProgress, run: RunDirectory) -> AuditEvidence:
        began, config = time.perf_counter(), self.config
        noted = run.noted(on_progress)
        judging, findings, search = examined(config, self.function, noted)
        device = torch.device("cpu")
        return AuditEvidence(
            [judging],
            findings,
            GraphSummary(name="single-agent", n_agents=1, links=(), positions=((0.0, 0.0),)),
            provenance_of(_values(config.mechanism), self.code, config.seed, device),
            tuple(_notes(search)),
            {"runs": time.perf_counter() - began},
            sentences={READER.name: SAYS},
        )


def examined(
    config: MechanismConfig, called: AuditedFunction, on_progress: OnProgress
) -> tuple[Judging, list[Finding], Search]:
    """All evidence on the claim of a config. Raises FunctionError."""
    with np.errstate(over="ignore", invalid="ignore"):  # moves so far that their square overflows
        return _examined(config, called, on_progress)


def _examined(
    config: MechanismConfig, called: AuditedFunction, on_progress: OnProgress
) -> tuple[Judging, list[Finding], Search]:
    (claim,), options = config.claim, config.mechanism
    neighbours = NeighbouringInputs(options, claim.adjacency, config.seed)
    n_calls = (3 * options.runs + OVERHEAD) * options.calls
    for what in (SEARCH, COMPARISON, "runs", CONTROLS, "the report"):
        on_progress(what, 0, 0)
    with one_step(on_progress, SEARCH):
        examine(called, neighbours.examples[:EXAMINED], n_calls)
        search = Search(called, neighbours, claimed_delta(claim), config.seed)
        worst = search.moves[0].pair
    findings, accounted = _findings(claim, search, worst, on_progress)
    because = tuple(bearing_on(0, claim, READER, findings))
    premise = OTHER_INPUTS
    if search.noise is not None and any(one.role is Role.MEASURED for one in findings):
        far = "" if search.noise.draw.following is None else ", and where it comes out far"
        premise += RARE.format(replayed(search.noise, options.runs), far)
    for one in findings:
        if one.role is Role.NOISE and one.unconfirmed:
            premise += f" No upper end is accounted: {one.notes[0]}."
    return Judging(0, claim, READER, accounted, because, premise=premise), findings, search


def replayed(noise: OutputNoise, runs: int) -> int:
    """How many calls are compared with recognised noise, half with either input of a pair."""
    return 2 * min(runs // 2, noise.draw.most)


def _findings(
    claim: Claim, search: Search, worst: Pair, on_progress: OnProgress
) -> tuple[list[Finding], AccountedClaim]:
    """All evidence on the claim, and what was measured."""
    compared = ComparedCalls(0, 0, "")
    if search.noise is not None:
        with one_step(on_progress, COMPARISON):
            compared = _compared(search.function, search.noise, (worst.having, worst.without))
    played = search.played(lambda done, total: on_progress("runs", done, total))
    with one_step(on_progress, CONTROLS):
        if search.noise is not None and search.is_additive and compared.is_noise:
            at = search.seed + 1
            if not goes_on(search.function, search.noise, worst.having, at, played.n_calls):
                compared = compared._replace(other=SEEDED)
        found = measured(claim, search, compared)
        several = [
            found.finding,
            tested(claim, played),
            null_control(claim, search, played),
            distance(claim, search),
            *between_calls(search, played, compared),
        ]
    if found.finding is not None and compared.is_noise:
        several += alignment(claim, search, found.finding, compared.calls)
    return [finding for finding in several if finding is not None], found.accounted


def _compared(
    function: AuditedFunction, noise: OutputNoise, values: Sequence[Value]
) -> ComparedCalls:
    """How often calls add another noise than what was recognised, and what else speaks of more."""
    n, far = replayed(noise, function.options.runs), known_far_seeds(function, noise, values[0])
    exceptions = far_off = 0
    for i, value in enumerate(values):
        seeds = range(REPLAYED + i * n // 2, REPLAYED + (i + 1) * n // 2)
        exceptions += noise.exceptions(function, value, seeds)
        far_off += noise.exceptions(function, value, [*seeds[:1], *far])
    other = other_draws(function, noise, values[0])
    if far_off:
        other = "where its noise comes out far, a call adds something else"
    return ComparedCalls(n, exceptions, other)


def _values(options: MechanismOptions) -> str:
    shapes = ", ".join(str(shape) for shape in options.shapes)
    return f"values of shape {shapes} in {options.dtype}"


def _notes(search: Search) -> Iterator[Note]:
    """What to know before any number."""
    options = search.function.options
    pairs = "one pair" if search.n_pairs == 1 else f"{search.n_pairs} pairs"
    times = "one call" if options.calls == 1 else f"{options.calls} calls"
    yield Note(
        "DPA135",
        f"A function was audited alone, on {pairs} of inputs, for {times} with "
        "one value. Its surroundings were not: who calls it how often, and what is sent beside "
        "its output.",
    )
    if search.follows:
        yield Note(
            "DPA136",
            "The output moves as far as the input at every length up to "
            f"{SCALES[-1]:g}: the function does not clip. Where its inputs are bounded before, "
            "give their distance as sensitivity.",
        )
    if options.own_randomness:
        yield Note(
            "DPA137",
            "The function draws from a source that seeds do not set, so that another audit counts "
            "other runs.",
        )
    yield from probed(search)
