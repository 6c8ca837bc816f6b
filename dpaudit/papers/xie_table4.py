"""Table 4 of Xie, Liu and Chai: what three families of methods reveal of agent 1's gradient.

Three agents, all linked, m = p = 1; agents 2 and 3 are honest but curious. For each method, in each
round k, the private variable is the gradient that agent 1 used, and the view is the set of
quantities that the paper lists for the attacker: (44) for Algorithm 1, and its counterparts.

What differs between trials besides noise and initial models the paper does not say: agent 1's
measurements, all agents', or nothing. With "noise alone" the gradient is one affine function of z
in all trials, and z is in the view. Agents are numbered from 1 as in the paper, and from 0 in code.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dpaudit.defense.contract import Defense, Round, Setting
from dpaudit.graphs.graph import build_graph
from dpaudit.information.estimators import varying
from dpaudit.information.mnmi import MaximumInformation, maximum_information, without_warnings
from dpaudit.information.reduction import EstimatorWarning
from dpaudit.registry import load_plugin
from dpaudit.rng import Streams
from dpaudit.training.sensor_fusion import SensorFusion
from dpaudit.training.trials import run_trials

from .experiment import CellContext, MeasuredNumber, Settings, spread

M_NMI = "M-NMI"
BITS = "information, bits"
MOST = "information of the most telling round, bits"
RESIDUAL = "residual after the last round"
STANDARD_ERROR = "standard error of that residual"
Random = Literal["agent 1", "all agents", "noise alone"]
ObservedRows = dict[str, Tensor]  # name of an observation set -> [trials, dims]
Observe = Callable[[int, Round, Round], ObservedRows]  # k, round k, the round that follows

# Largest entry of M_i, which the paper does not print. Its step sizes add up to at most 0.067, so
# that entries up to 1 would leave the agents where they started.
DATA_SCALE = 10.0

# Step size, correction and decay of the sensor-fusion study, by epsilon; its q2 is 0.99.
_ALGORITHM_1 = {10.0: (0.002, 100.0, 0.97), 1.0: (0.001, 1000.0, 0.97), 0.1: (0.001, 1000.0, 0.92)}


class TableScale(NamedTuple):
    """How much of the study is computed."""

    trials: int
    n_rounds: int
    estimated: int  # rounds at which information is estimated, spread evenly in log k
    permutations: int = 0
    splits: int = 0


class TableRow(NamedTuple):
    """What is found of a method for each observation set."""

    found: dict[str, MaximumInformation | None]  # None: the attacker sees ciphertexts alone
    rounds: dict[str, tuple[int, ...]]  # of each observation set: where it is estimated
    concerns: tuple[str, ...]  # what the estimator cannot read well
    residual: float  # mean over trials of ||x - x*||^2 after the last round
    residual_error: float  # its standard error


def leaks(settings: Settings, seed: int, context: CellContext) -> Iterator[MeasuredNumber]:
    """M-NMI of each view, its information by round, and the residual.

    With ``permutations`` and ``splits`` also the information of the most telling round with its
    95% interval, and its p-value.

    Warns:
        EstimatorWarning: samples that the estimator cannot read well, once for each kind.
    """
    method, random = settings["method"], settings["random"]
    scale = TableScale(**{key: settings[key] for key in TableScale._fields if key in settings})
    row = table_row(method, scale, Streams(seed), random)
    for concern in row.concerns:
        warnings.warn(f"{method} ({random}): {concern}", EstimatorWarning, stacklevel=2)
    yield MeasuredNumber(RESIDUAL, row.residual)
    if scale.permutations:
        yield MeasuredNumber(STANDARD_ERROR, row.residual_error)
    for view, found in row.found.items():
        labels = {"view": view}
        if found is None:  # ciphertexts alone
            yield MeasuredNumber(M_NMI, 0.0, labels=labels)
            continue
        yield MeasuredNumber(M_NMI, found.m_nmi, labels=labels)
        if scale.permutations:
            most = row.rounds[view][found.round - 1]
            yield MeasuredNumber(MOST, found.bits, None, labels, found.low, found.high)
            yield MeasuredNumber("the round that reveals most", most, labels=labels)
            yield MeasuredNumber("its coefficient by Linfoot", found.correlation, labels=labels)
            yield MeasuredNumber("its p-value", found.p_value, labels=labels)
        for k, bits in zip(row.rounds[view], found.per_round, strict=True):
            yield MeasuredNumber(BITS, float(bits), k, labels)


def table_row(method: str, scale: TableScale, streams: Streams, random: Random) -> TableRow:
    """One row: the method is played, and what each observation set reveals is estimated."""
    defense, observe = _method(method, scale.n_rounds)
    redrawn = {"agent 1": [0], "all agents": None, "noise alone": []}[random]
    problem = SensorFusion.draw(
        streams, 3, m=1, p=1, scale=DATA_SCALE, trials=scale.trials, redrawn=redrawn
    )
    setting = Setting(build_graph("complete", 3), (1, 1, 1), 1)
    recorder = _Recorder(observe, spread(scale.n_rounds - 1, scale.estimated))
    state = run_trials(
        defense.calibrate(setting), problem, setting, streams, scale.trials, recorder
    )
    residual = problem.residual(defense.models(state))
    found, concerns = without_warnings(
        lambda: {name: recorder.information(name, scale, streams) for name in recorder.views}
    )
    return TableRow(
        found | ({"eavesdropper": None} if method == "encryption" else {}),
        {name: tuple(recorder.estimated(name)) for name in recorder.views},
        concerns,
        residual.mean().item(),
        residual.std().item() / len(residual) ** 0.5,
    )


def _method(name: str, n_rounds: int) -> tuple[Defense, Observe]:
    """The defense of a row, and its observation sets."""
    if name == "correlated randomness":
        shares = load_plugin("defenses", "correlated-randomness")
        return shares(n_rounds=n_rounds, step_size=0.002), _Shares()
    if name == "encryption":
        encrypted = load_plugin("defenses", "paillier-consensus")
        defense = encrypted(n_rounds=n_rounds, step_size=0.005)
        return defense, partial(_of_ciphertexts, defense.alpha)
    epsilon = float(name.removeprefix("Algorithm 1, epsilon = "))
    step_size, correction, decay = _ALGORITHM_1[epsilon]
    defense = load_plugin("defenses", "sensitivity-reduced")(
        n_rounds=n_rounds,
        epsilon=epsilon,
        step_size=step_size,
        correction=correction,
        step_decay=decay,
        noise_decay=0.99,
    )
    return defense, partial(_of_algorithm_1, defense.alpha)


def _of_algorithm_1(
    alpha: Callable[[int], float], k: int, now: Round, following: Round
) -> ObservedRows:
    """Equation (44), as printed and with the index corrected.

    The third component as printed, (z_bar(k) - z(k)) / alpha_k - y(k), holds no gradient of round
    k; with z(k + 1) in the place of z(k) it is the gradient less the noise of z(k + 1) over
    alpha_k. An eavesdropper and the curious pair compute the same, since z reveals all the rest.
    """
    z, y = now.sent["z"].payload[..., 0, :], now.state.Y[..., 0, :]
    z_next = following.sent["z"].payload[..., 0, :]
    z_bar = now.sent["z"].payload.mean(dim=-2)  # all weights are 1/3
    printed = torch.cat([z, y, (z_bar - z) / alpha(k) - y], dim=-1)
    corrected = torch.cat([z, y, (z_bar - z_next) / alpha(k) - y], dim=-1)
    return {"(44) as printed": printed, "(44) corrected": corrected}


def _of_ciphertexts(
    alpha: Callable[[int], float], k: int, now: Round, following: Round
) -> ObservedRows:
    """The increment of agent 1 over alpha_k: the estimate of its gradient that the paper forms."""
    total = now.private["increment"][..., 0, :]  # its neighbours, together, know it too
    return {"curious": total / alpha(k)}


class _Shares:
    """What agent 2 receives from agent 1, agent 3 being honest; and what the links give away.

    Columns of C and B sum to 1 and y_1 starts as agent 1's gradient, so y_1 - grad f_1 is at any
    time what has come to agent 1 in shares, less what has left it. Whoever reads all links adds
    that up, and y_1 vanishes as the method converges: what remains is the gradient.
    """

    def __init__(self) -> None:
        self._balance: Tensor | float = 0.0  # y_1 - grad f_1

    def __call__(self, k: int, now: Round, following: Round) -> ObservedRows:
        names = ("x", "lambda_y", "tracking")
        received = torch.cat([now.sent[name].on_edge(0, 1) for name in names], dim=-1)
        gradient = -self._balance + torch.zeros_like(received[..., :1])
        scaled = now.sent["lambda_y"].on_edge(0, 1)
        shares = now.sent["tracking"]
        self._balance = self._balance + sum(
            shares.on_edge(j, 0) - shares.on_edge(0, j) for j in (1, 2)
        )
        return {"curious": received, "eavesdropper": torch.cat([gradient, scaled], dim=-1)}


class _Recorder:
    """Keeps the private variable and the views of some rounds, each with the round that follows."""

    def __init__(self, observe: Observe, rounds: Sequence[int]) -> None:
        self._observe, self._rounds = observe, rounds
        self._last: Round | None = None
        self._private: dict[int, np.ndarray] = {}
        self.views: dict[str, dict[int, np.ndarray]] = {}  # by name, then by round

    def __call__(self, k: int, round: Round) -> None:
        if self._last is not None:
            views = self._observe(k - 1, self._last, round)
            if k - 1 in self._rounds:
                self._private[k - 1] = self._last.private["gradient"][:, 0, :].cpu().numpy()
                for name, values in views.items():
                    self.views.setdefault(name, {})[k - 1] = values.cpu().numpy()
        self._last = round

    def estimated(self, name: str) -> list[int]:
        """Which of the recorded rounds are estimated for one observation set.

        Left out are rounds in which nothing differs between trials in what is seen, or nothing is
        private any more: without noise all trials converge to one gradient if they share all
        measurements.
        """
        return [
            k
            for k, seen in self.views[name].items()
            if varying(seen).any() and varying(self._private[k]).all()
        ]

    def information(self, name: str, scale: TableScale, streams: Streams) -> MaximumInformation:
        """M-NMI of one observation set over the recorded rounds.

        Quantities that are the same in all trials (the balance in round 1) reveal nothing and are
        left out.
        """
        rounds, seen = self.estimated(name), self.views[name]
        return maximum_information(
            [self._private[k] for k in rounds],
            [seen[k][:, varying(seen[k])] for k in rounds],
            streams.numpy("information", name),
            n_permutations=scale.permutations,
            n_splits=scale.splits,
        )
