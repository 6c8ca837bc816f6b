"""Xie, Liu and Chai: the figures of sensor fusion, and the budgets and sensitivities beside them.

The residual by round of Algorithm 1 and of what it is compared with (Figures 2 to 4), what the
noise of Algorithm 1 is worth to the others by their own formulas (the text of Section 6.1), and how
far their messages move for one agent's change (Table 3).
"""

from collections.abc import Iterator, Sequence

import torch

from dpaudit.defense.claim_accounting import account_claim
from dpaudit.defense.contract import Round, Setting
from dpaudit.defense.laplace import LaplaceDefense, ScaledDefense
from dpaudit.errors import ConfigError
from dpaudit.files.claim import Claim
from dpaudit.files.options import graph_options
from dpaudit.files.threat import ThreatModel
from dpaudit.graphs.graph import build_graph
from dpaudit.registry import load_plugin
from dpaudit.rng import Streams
from dpaudit.training.sensor_fusion import SensorFusion
from dpaudit.training.trials import run_trials

from .experiment import CellContext, MeasuredNumber, Settings, spread
from .learning import noise_of_algorithm_1

BLOCK = 100  # trials in one tensor program
POINTS = 25  # of a curve, even in log k
RESIDUAL = "residual, mean over trials"
SPREAD = "residual, standard deviation over trials"
BUDGET = "epsilon by its own formula"
OVER_DELTA = "sensitivity over delta"
OVER_STEP = "sensitivity over delta alpha_k"
ROUNDS = "rounds until the residual is below the target, median"
NUMBERS = "numbers sent on links until then, median"
EAVESDROPPER = ThreatModel(name="eavesdropper", kind="external")

OPTIONS = {  # of a method, by the settings of an experiment
    "n_rounds": "n_rounds",
    "gradient_distance": "distance",
    "epsilon": "epsilon",
    "step_size": "gamma",
    "step_decay": "q1",
    "noise_decay": "q2",
}
METHODS = {
    "Algorithm 1": "sensitivity-reduced",
    "DPOP": "dpop",
    "PP-DOAGT": "pp-doagt",
    "Diff-TV-AB": "diff-tv-ab",
}


def defense_of(settings: Settings) -> LaplaceDefense:
    """The method of a cell; PP-DOAGT and Diff-TV-AB have the noise of Algorithm 1."""
    method = settings["method"]
    options = {option: settings[key] for option, key in OPTIONS.items()} | {"batch_size": 1}
    if method in ("PP-DOAGT", "Diff-TV-AB"):
        options["noise_scale"] = noise_of_algorithm_1(options)
        options["smoothness"] = settings.get("smoothness", 0.0)
        del options["epsilon"]
    if method == "Algorithm 1":
        options["correction"] = settings["beta"]
    if method == "Diff-TV-AB":
        options["allow_outside_theory"] = True
    defense: LaplaceDefense = load_plugin("defenses", METHODS[method])(**options)
    return defense


def _calibrated(settings: Settings, streams: Streams) -> tuple[LaplaceDefense, Setting]:
    """The method of a cell on the graph of the seed."""
    options, n = graph_options("erdos-renyi", p=settings["p_edge"]), settings["n_agents"]
    network = build_graph(options, n, streams.numpy("graph"))
    setting = Setting(network, (1,) * n, settings["p"])
    return defense_of(settings).calibrate(setting), setting


def residuals(settings: Settings, seed: int, context: CellContext) -> Iterator[MeasuredNumber]:
    """||x(k) - x*||^2 of all agents together by round: mean and standard deviation over trials.

    Measurements and graph are those of the seed; initial models and noise are of the trial.
    """
    recorded, blocks = spread(settings["n_rounds"], POINTS), []
    for first in range(0, settings["trials"], BLOCK):
        trials = min(BLOCK, settings["trials"] - first)
        blocks.append(_residuals(settings, seed, recorded, trials, first))
        context.on_step(first + trials, settings["trials"])
    found = torch.cat(blocks, dim=1)
    for k, values in zip(recorded, found, strict=True):
        yield MeasuredNumber(RESIDUAL, values.mean().item(), at=k)
        yield MeasuredNumber(SPREAD, values.std().item(), at=k)


def _residuals(
    settings: Settings, seed: int, recorded: Sequence[int], trials: int, block: int = 0
) -> torch.Tensor:
    """Residuals of some trials at the recorded rounds, [len(recorded), trials]."""
    streams, kept = Streams(seed), []
    defense, setting = _calibrated(settings, streams)
    n, m, p, scale = (settings[name] for name in ("n_agents", "m", "p", "scale"))
    problem = SensorFusion.draw(streams, n, m=m, p=p, scale=scale)

    def watch(k: int, round: Round) -> None:
        if k in recorded:
            kept.append(problem.residual(defense.models(round.state)))

    run_trials(defense, problem, setting, streams.child("block", block), trials, watch)
    return torch.stack(kept)


def communication(settings: Settings, seed: int, context: CellContext) -> Iterator[MeasuredNumber]:
    """Rounds, and numbers sent on links, until the residual is below ``target``: medians of runs.

    Runs that do not get there are left out, and counted.
    """
    defense, setting = _calibrated(settings, Streams(seed))
    every = range(1, settings["n_rounds"] + 1)
    below = _residuals(settings, seed, every, settings["trials"]) < settings["target"]
    reached = below.any(dim=0)
    yield MeasuredNumber("runs that get there, %", 100 * reached.double().mean().item())
    if reached.any():
        first = below.to(torch.int8).argmax(dim=0)[reached] + 1
        median = first.double().median().item()
        links = len(setting.network.at(1).links)
        yield MeasuredNumber(ROUNDS, median)
        yield MeasuredNumber(NUMBERS, median * links * settings["p"] * len(defense.messages))


def budgets(settings: Settings, seed: int, context: CellContext) -> Iterator[MeasuredNumber]:
    """What a method's own formula makes of its noise, and what accounting makes of it."""
    defense, setting = _calibrated(settings, Streams(seed))
    claimed = settings["epsilon"]
    if isinstance(defense, ScaledDefense):
        assert defense.noise_scale is not None
        claimed = defense.unit_loss(setting) / defense.noise_scale
    yield MeasuredNumber(BUDGET, claimed)
    claim = Claim(text="Section 6.1", epsilon=claimed, delta=0.0, scope="run", adjacency="function")
    found = account_claim(claim, EAVESDROPPER, defense, setting).epsilon
    yield MeasuredNumber("epsilon accounted, least", found.low)
    yield MeasuredNumber("epsilon accounted, most", found.high)


def sensitivities(settings: Settings, seed: int, context: CellContext) -> Iterator[MeasuredNumber]:
    """How far all messages of a round move together, at most, for gradients delta apart.

    Gradients may turn round from one point to the next, but do not react: no smoothness.

    Raises:
        ConfigError: the step size alpha_k, which they are divided by, is too small for a float.
    """
    k = settings["round"]
    step = settings["gamma"] * settings["q1"] ** (k - 1)
    if step == 0:
        raise ConfigError("DPA014", f"--set: round: expected one with a step size above 0, got {k}")
    defense, setting = _calibrated({**settings, "smoothness": 0.0}, Streams(seed))
    moved = sum(m.most[k] for m in defense.moves(k + 1, setting, 0).values())
    yield MeasuredNumber(OVER_DELTA, moved / settings["distance"])
    yield MeasuredNumber(OVER_STEP, moved / (settings["distance"] * step))
