"""Five papers' algorithms, and some beside them, at published settings: what stands of claims.

No model is trained: accounting needs the sizes of the experiment, and the canary game plays the
defense itself. What a paper leaves open is an option here, named beside the outcome.
"""

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from hashlib import sha256
from itertools import count
from math import exp, inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from dpaudit.attack.contract import AttackContext
from dpaudit.defense.claim_accounting import (
    AccountedClaim,
    account_claim,
    account_restated,
    claimed_epsilon,
)
from dpaudit.defense.contract import Defense, Setting
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Finding, Metric, Name, Role
from dpaudit.files.options import graph_options
from dpaudit.files.result import JudgedClaim
from dpaudit.files.threat import ThreatModel
from dpaudit.game.game import Game
from dpaudit.game.runs.round_shape import GameShape
from dpaudit.graphs.graph import build_graph
from dpaudit.pipeline.judge import accounting_finding, bearing_on, judge
from dpaudit.pipeline.provenance import code_of
from dpaudit.pipeline.rules import Judging
from dpaudit.pipeline.void_figures import void_figures
from dpaudit.progress import OnProgress, unreported
from dpaudit.registry import load_plugin
from dpaudit.rng import Streams
from dpaudit.training.run_directory import RunDirectory
from dpaudit.training.seals import bound_to

from .cells import refuse_other_folder
from .experiment import ExperimentScale, Open

# Lines that are computed together, by a key that says all but code, seed and scale.
Keep = Callable[[str, Callable[[], Iterable[str]]], Iterable[str]]
EAVESDROPPER = ThreatModel(name="eavesdropper", kind="external")
NEIGHBOUR = ThreatModel(name="agent 0", kind="curious", agents=(0,))


class PaperCase(NamedTuple):
    """One experiment of a paper, and what is promised for it."""

    title: str
    defense: str
    graph: dict[str, Any]
    n_agents: int
    records: int  # of each agent
    claim: Claim
    assumed: str  # what the paper does not say
    options: dict[str, Any] = {}


class PlayedScale(NamedTuple):
    """How much is played: runs of each world, and the first rounds of them."""

    trials: int
    rounds: int
    work: int = 0  # numbers that whole runs of a world have in all; 0: none is played whole


COORDINATES = 10_000  # of the models: more than a record has uses, as in all of the papers
SCALES = {"quick": PlayedScale(400, 20), "paper": PlayedScale(4000, 200, 12 * 10**8)}
MARGIN = 1.5  # of accounting over a claim, below which no runs in reach tell the two apart
MOST_RUNS = 15_000
LEAST_RUNS = 400
BETS = 5000  # times e^epsilon: runs of which bets need a part only, where accounting is far above


CASES = tuple(
    PaperCase(**{**case, "claim": Claim(**case["claim"])})
    for case in tomllib.loads(Path(__file__).with_name("findings.toml").read_text("utf-8"))["case"]
)


def lines(scale: str, seed: int, keep: Keep = lambda key, compute: compute()) -> Iterator[str]:
    """The printed form: for each case and adversary what was found, a block each."""
    played = SCALES[scale]
    yield (
        f"Five papers at published settings; {played.trials} runs of each world of the first "
        f"{played.rounds} rounds, seed {seed}."
    )
    if played.work:
        yield (
            f"Where accounting exceeds a claim on a run {MARGIN:g} times, runs are of all rounds, "
            f"{MOST_RUNS} at most."
        )
    yield "Bounds and accounting are for one record and the adversary named; epsilon in nats."
    for i, case in enumerate(CASES):
        yield ""
        yield case.title
        yield f"  claimed:   {case.claim.sentence()}"
        yield f"  assumed:   {case.assumed}"
        for threat_model in (EAVESDROPPER, NEIGHBOUR):
            found = partial(_printed, case, threat_model, played, Streams(seed + i))
            yield from keep(f"{case} {threat_model} {played}", found)
    yield ""
    yield "Not refuted, or underpowered, is no proof of privacy."


def examined(
    case: PaperCase, threat_model: ThreatModel, scale: PlayedScale, streams: Streams
) -> tuple[JudgedClaim, list[Finding]]:
    """The verdict on a case's claim against one adversary, and the evidence.

    Raises:
        DpauditError: the defense refuses the setting.
    """
    network = build_graph(graph_options(**case.graph), case.n_agents, streams.numpy("graph"))
    setting = Setting(network, (case.records,) * case.n_agents, COORDINATES)
    defense = load_plugin("defenses", case.defense)(**case.options).calibrate(setting)
    accounted = account_claim(case.claim, threat_model, defense, setting)
    attack = load_plugin("attacks", "likelihood-ratio")(
        **options_of(case.claim, accounted, defense, setting, scale)
    )
    with TemporaryDirectory() as folder:  # matrices of the view, which nobody verifies here
        run = RunDirectory(Path(folder))
        context = AttackContext(None, setting, defense, (case.claim,), streams, run)  # type: ignore[arg-type]
        findings = attack.measure(context, threat_model, lambda done, total: None)
    because = bearing_on(0, case.claim, threat_model, findings)
    findings.append(accounting_finding(0, case.claim, threat_model, accounted))
    common = account_restated(case.claim, threat_model, defense, setting)
    because.append(len(findings) - 1)
    judging = Judging(0, case.claim, threat_model, common, tuple(because))
    judgings, findings = void_figures([judging], findings)
    (judged,) = judge(judgings, findings)
    return judged, findings


def options_of(
    claim: Claim, accounted: AccountedClaim, defense: Defense, setting: Setting, scale: PlayedScale
) -> dict[str, Any]:
    """Options of the game: whole runs where they may refute the claim, until bets have."""
    claimed = claimed_epsilon(claim)
    game = Game.of(defense, setting, accounted.victim, "add-remove")
    rows = GameShape.of(game, EAVESDROPPER).observed + 2 * setting.n_agents
    trials = min(MOST_RUNS, scale.work // (defense.n_rounds * rows))
    if claim.scope != "run" or accounted.epsilon.low <= MARGIN * claimed or trials < LEAST_RUNS:
        return {"trials": scale.trials, "n_rounds": scale.rounds}
    return {
        "trials": trials,
        "n_rounds": defense.n_rounds,
        "stop_early": trials > BETS * exp(claimed),
    }


def _printed(
    case: PaperCase, threat_model: ThreatModel, scale: PlayedScale, streams: Streams
) -> Iterator[str]:
    claim, findings = examined(case, threat_model, scale, streams)
    assert claim.restated is not None
    yield f"  {claim.threat_model}: {claim.verdict}. {claim.reason}"
    yield f"    one record, whole run: {_interval(claim.restated.epsilon)}"
    for finding in findings:
        if finding.role is Role.EXACT_LEAK and not finding.metrics:
            yield "    no exact leak: not linear in its noise"
        elif finding.role is Role.EXACT_LEAK:
            mu = finding.metrics[Name.LARGEST_MU_OF_A_ROUND].value
            epsilon = _interval(finding.metrics[Name.EPSILON])
            yield f"    exact leak, {_rounds(finding)}: {epsilon}; mu {mu:.3g}"
        if finding.role is Role.TEST:
            bound, top = (finding.metrics[n] for n in (Name.EPSILON_LOWER_BOUND, Name.CEILING))
            runs = f"{bound.n:,} runs" if bound.n else "runs"
            least = f"at least {bound.value:.3g} (ceiling {top.value:.3g})"
            yield f"    certified from {runs}, {_rounds(finding)}: {least}"


def _rounds(finding: Finding) -> str:
    last = finding.rounds[-1]
    return f"rounds 1 to {last}" if len(finding.rounds) > 1 else f"round {last}"


def _interval(metric: Metric) -> str:
    low, high = float(metric.low or 0), float(metric.high or 0)
    if high == inf > low:
        return f"epsilon at least {low:.3g}"
    if high == low or high - low <= 1e-3 * low:
        return f"epsilon {low:.3g}"
    return f"epsilon {low:.3g} to {high:.3g}"


class PrintedStudy(NamedTuple):
    """What has a printed form of its own: the function that yields its lines."""

    paper: str
    table: str
    shows: str
    lines: Callable[[str, int, Keep], Iterator[str]]  # scale, seed
    scales: Mapping[str, ExperimentScale]
    open: tuple[Open, ...] = ()
    data: str = ""
    n_blocks: int = 1  # of lines that are computed together


FINDINGS = PrintedStudy(
    paper="five papers",
    table="none",
    shows="at published settings: claims, accounting, exact leaks, certified bounds",
    lines=lines,
    scales={
        "quick": ExperimentScale(1, 120, 10**9),
        "paper": ExperimentScale(1, 2400, 5 * 10**9),
    },
    n_blocks=2 * len(CASES),
)


def printed_lines(
    name: str,
    study: PrintedStudy,
    scale: str,
    seed: int,
    out: Path,
    on_progress: OnProgress = unreported,
) -> Iterator[str]:
    """What is printed, block after block; those that lie in the folder are not computed again.

    Raises:
        DpauditError: nothing can be computed, or the folder is something else's.
    """
    refuse_other_folder(out)
    torch.set_num_threads(1)  # the operators are small
    about = {"name": name, "scale": scale, "seed": seed, "code": code_of()}
    done = count()
    with RunDirectory(out).held() as run:

        def keep(key: str, compute: Callable[[], Iterable[str]]) -> list[str]:
            binding = bound_to({**about, "block": key})
            file = f"blocks/{sha256(key.encode()).hexdigest()[:16]}.json"
            found: list[str] | None = run.read_result(file, binding)
            if found is None:
                found = list(compute())
                run.write_result(file, found, binding)
            on_progress(name, next(done), study.n_blocks)
            return found

        on_progress(name, next(done), study.n_blocks)
        yield from study.lines(scale, seed, keep)
