"""Table 4 of Xie, Liu and Chai: what three families of methods tell about agent 1's gradient.

Three agents, all linked, m = p = 1; agents 2 and 3 are honest but curious. For each method, in each
round k, the private variable is the gradient that agent 1 used, and the view is the set of
quantities that the paper lists for the attacker: (44) for Algorithm 1, and its counterparts.

Agents are numbered from 1 as in the paper in what is printed, and from 0 in the code.
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

from .blocks import Block, Keep, at_once

Random = Literal["agent 1", "all agents", "noise alone"]
ObservedRows = dict[str, Tensor]  # name of an observation set -> [trials, dims]


class TableScale(NamedTuple):
    """How much of the study is computed."""

    trials: int
    n_rounds: int
    estimated: int  # rounds at which information is estimated, spread evenly in log k
    n_permutations: int
    n_splits: int
    takes: str = "seconds"  # on two cores


# Largest entry of M_i, which the paper does not print. Its step sizes add up to at most 0.067, so
# that entries up to 1 would leave the agents where they started.
DATA_SCALE = 10.0

SCALES = {
    "quick": TableScale(1_000, 1_000, 12, 19, 5, "20 seconds"),
    "paper": TableScale(5_000, 1_000, 1_000, 3, 3, "half an hour"),
}


class Published(NamedTuple):
    """A row of Table 4 as printed."""

    method: str
    eavesdropper: float
    curious: float
    accuracy: float


PUBLISHED = (
    Published("Algorithm 1, epsilon = 10", 0.52, 0.52, 1.9e-4),
    Published("Algorithm 1, epsilon = 1", 0.24, 0.24, 2.0e-3),
    Published("Algorithm 1, epsilon = 0.1", 0.047, 0.047, 3.0e-2),
    Published("correlated randomness", 1.0, 0.47, 6.6e-9),
    Published("encryption", 0.0, 0.30, 3.2e-6),
)

# Step size, correction and decay of the sensor-fusion study, by epsilon; its q2 is 0.99.
_ALGORITHM_1 = {10.0: (0.002, 100.0, 0.97), 1.0: (0.001, 1000.0, 0.97), 0.1: (0.001, 1000.0, 0.92)}


class TableRow(NamedTuple):
    """A method, what was published, and what is found here for each observation set."""

    published: Published
    found: dict[str, MaximumInformation | None]  # None: the attacker sees ciphertexts alone
    concerns: tuple[str, ...]  # what the estimator cannot read well
    residual: float  # mean over trials of ||x - x*||^2 after the last round
    residual_error: float  # its standard error
    rounds: dict[str, tuple[int, ...]] = {}  # of each observation set: where it is estimated


def table(
    scale: str, seed: int, random: Random = "agent 1", on_row: Callable[[str], None] = print
) -> list[TableRow]:
    """All rows of the table.

    Args:
        scale: "quick" or "paper".
        seed: of measurements, initial models and noise.
        random: what differs between trials besides noise and initial models, which the paper does
            not say: agent 1's measurements, all agents', or nothing. With "noise alone" the
            gradient is one affine function of z in all trials, and z is in the view.
    """
    rows = []
    for published in PUBLISHED:
        on_row(published.method)
        rows.append(table_row(published, SCALES[scale], Streams(seed), random))
    return rows


def lines(scale: str, seed: int, keep: Keep = at_once) -> Iterator[str]:
    """What ``dpaudit reproduce xie-table4`` prints: the table, what is assumed, what is missing.

    Warns:
        EstimatorWarning: samples that the estimator cannot read well, once for each kind.
    """
    size = SCALES[scale]
    concerns: dict[str, dict[str, None]] = {}  # and the methods that each is about
    yield "Xie, Liu and Chai, Table 4: published, and found here"
    yield (
        f"{size.trials} trials, {size.n_rounds} rounds, information at {size.estimated} of them, "
        f"KSG with k = 3, seed {seed}; bits of the most telling round with their 95% interval"
    )
    yield f"takes about {size.takes} on two cores"
    for random in _RANDOM:
        yield ""
        yield f"Random over trials: noise, initial models, and {_RANDOM[random]}"
        yield (
            f"{'method':28} {'view':18} {'M-NMI':>6} {'published':>9}  "
            f"{'bits [low, high]':31} {'corr.':>6} {'p':>5}"
        )
        block = keep(f"{random} {size}", partial(_block, scale, seed, random))
        yield from block.lines
        for method, concern in block.notes:
            concerns.setdefault(concern, {})[method] = None
    yield ""
    yield from _REMARKS
    for concern, methods in concerns.items():
        warnings.warn(f"{', '.join(methods)}: {concern}", EstimatorWarning, stacklevel=2)


def _block(scale: str, seed: int, random: Random) -> Block:
    rows = table(scale, seed, random, on_row=lambda method: None)
    told = [(f"{row.published.method} ({random})", c) for row in rows for c in row.concerns]
    return Block([line for row in rows for line in _printed(row)], told)


_RANDOM: dict[Random, str] = {
    "agent 1": "agent 1's measurements (our reading)",
    "all agents": "all agents' measurements",
    "noise alone": "nothing else: the gradient is then one affine function of z, which is seen",
}

_REMARKS = (
    "The paper does not print its measurements, the graph's weights, the step sizes of the methods",
    "it compares with, nor what is random over trials. Read here: M_i uniform on [0, 10], a",
    "complete graph with weights 1/3, step sizes 0.002 (correlated randomness) and 0.005 / k",
    "(encryption). The published values are therefore not expected to come out; what can be",
    "compared is their order. Accuracy is the mean of ||x - x*||^2 over trials, with its standard",
    "error. M-NMI divides by NPEET's I(V; V), which is no amount of information but a function of",
    "the number of trials and of k; corr. is Linfoot's coefficient, which is bounded by 1.",
)


def _printed(row: TableRow) -> Iterator[str]:
    for name, found in row.found.items():
        published = row.published.eavesdropper if name == "eavesdropper" else row.published.curious
        if found is None:
            yield (
                f"{row.published.method:28} {name:18} {0:6.3f} {published:9.3f}  "
                "sees ciphertexts alone"
            )
            continue
        most = row.rounds[name][found.round - 1]
        interval = f"{found.bits:.2f} [{found.low:.2f}, {found.high:.2f}], round {most}"
        yield (
            f"{row.published.method:28} {name:18} {found.m_nmi:6.3f} {published:9.3f}  "
            f"{interval:31} {found.correlation:6.3f} {found.p_value:5.3f}"
        )
    yield (
        f"{'':28} accuracy {row.residual:.2g} +- {row.residual_error:.1g}, "
        f"published {row.published.accuracy:.2g}"
    )


def table_row(
    published: Published, scale: TableScale, streams: Streams, random: Random
) -> TableRow:
    """One row: the method is played, and what each observation set tells is estimated."""
    defense, observe = _method(published.method, scale.n_rounds)
    redrawn = {"agent 1": [0], "all agents": None, "noise alone": []}[random]
    problem = SensorFusion.draw(
        streams, 3, m=1, p=1, scale=DATA_SCALE, trials=scale.trials, redrawn=redrawn
    )
    setting = Setting(build_graph("complete", 3), (1, 1, 1), 1)
    recorder = _Recorder(observe, _spread(scale.n_rounds - 1, scale.estimated))
    state = run_trials(
        defense.calibrate(setting), problem, setting, streams, scale.trials, recorder
    )
    residual = problem.residual(defense.models(state))
    found, concerns = without_warnings(
        lambda: {name: recorder.information(name, scale, streams) for name in recorder.views}
    )
    return TableRow(
        published,
        found | ({"eavesdropper": None} if published.method == "encryption" else {}),
        concerns,
        residual.mean().item(),
        residual.std().item() / len(residual) ** 0.5,
        {
            name: tuple(recorder.rounds[i] for i in recorder.telling(name))
            for name in recorder.views
        },
    )


def _method(name: str, n_rounds: int) -> tuple[Defense, Callable[..., ObservedRows]]:
    """The defense of a row, and its observation sets."""
    if name.startswith("Algorithm 1"):
        epsilon = float(name.rpartition("= ")[2])
        step_size, correction, decay = _ALGORITHM_1[epsilon]
        defense = load_plugin("defenses", "sensitivity-reduced")(
            n_rounds=n_rounds,
            epsilon=epsilon,
            step_size=step_size,
            correction=correction,
            step_decay=decay,
            noise_decay=0.99,
        )
        return defense, _Algorithm1(defense.alpha)
    if name == "correlated randomness":
        shares = load_plugin("defenses", "correlated-randomness")
        return shares(n_rounds=n_rounds, step_size=0.002), _Shares()
    encrypted = load_plugin("defenses", "paillier-consensus")
    defense = encrypted(n_rounds=n_rounds, step_size=0.005)
    return defense, _Encrypted(defense.alpha)


class _Algorithm1:
    """Equation (44), as printed and with the index corrected.

    The third component as printed, (z_bar(k) - z(k)) / alpha_k - y(k), holds no gradient of round
    k; with z(k + 1) in the place of z(k) it is the gradient less the noise of z(k + 1) over
    alpha_k. An eavesdropper and the curious pair compute the same, since z tells all the rest.
    """

    def __init__(self, alpha: Callable[[int], float]) -> None:
        self._alpha = alpha

    def __call__(self, k: int, now: Round, following: Round) -> ObservedRows:
        z, y = now.sent["z"].payload[..., 0, :], now.state.Y[..., 0, :]
        z_next = following.sent["z"].payload[..., 0, :]
        z_bar = now.sent["z"].payload.mean(dim=-2)  # all weights are 1/3
        printed = torch.cat([z, y, (z_bar - z) / self._alpha(k) - y], dim=-1)
        corrected = torch.cat([z, y, (z_bar - z_next) / self._alpha(k) - y], dim=-1)
        return {"(44) as printed": printed, "(44) corrected": corrected}


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


class _Encrypted:
    """The increment of agent 1 over alpha_k: the estimate of its gradient that the paper forms."""

    def __init__(self, alpha: Callable[[int], float]) -> None:
        self._alpha = alpha

    def __call__(self, k: int, now: Round, following: Round) -> ObservedRows:
        total = now.private["increment"][..., 0, :]  # its neighbours, together, know it too
        return {"curious": total / self._alpha(k)}


class _Recorder:
    """Keeps the private variable and the views of some rounds, each with the round that follows."""

    def __init__(self, observe: Callable[..., ObservedRows], rounds: Sequence[int]) -> None:
        self._observe, self.rounds = observe, tuple(rounds)
        self._last: Round | None = None
        self._private: list[np.ndarray] = []
        self.views: dict[str, list[np.ndarray]] = {}

    def __call__(self, k: int, round: Round) -> None:
        if self._last is not None:
            views = self._observe(k - 1, self._last, round)
            if k - 1 in self.rounds:
                self._private.append(self._last.private["gradient"][:, 0, :].cpu().numpy())
                for name, values in views.items():
                    self.views.setdefault(name, []).append(values.cpu().numpy())
        self._last = round

    def telling(self, name: str) -> list[int]:
        """Which of the recorded rounds are estimated for one observation set, by their places.

        Left out are rounds in which nothing differs between trials in what is seen, or nothing is
        private any more: without noise all trials converge to one gradient if they share all
        measurements.
        """
        return [
            i
            for i, (seen, private) in enumerate(zip(self.views[name], self._private, strict=True))
            if varying(seen).any() and varying(private).all()
        ]

    def information(self, name: str, scale: TableScale, streams: Streams) -> MaximumInformation:
        """M-NMI of one observation set over the recorded rounds.

        Quantities that are the same in all trials (the balance in round 1) tell nothing and are
        left out.
        """
        seen = [values[:, varying(values)] for values in self.views[name]]
        rounds = self.telling(name)
        return maximum_information(
            [self._private[i] for i in rounds],
            [seen[i] for i in rounds],
            streams.numpy("information", name),
            n_permutations=scale.n_permutations,
            n_splits=scale.n_splits,
        )


def _spread(last: int, count: int) -> list[int]:
    """``count`` rounds from 1 to ``last`` (fewer where they coincide), even in log k."""
    if count >= last:
        return list(range(1, last + 1))
    return sorted({int(k) for k in np.geomspace(1, last, count).round()})
