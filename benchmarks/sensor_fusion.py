"""Monte-Carlo trials of Algorithm 1 of Xie, Liu and Chai beside NumPy programs that loop over them.

    python benchmarks/sensor_fusion.py [--trials 1000] [--block 100] [--table-trials 5000]
        [--loop-trials 40]

1. Sensor fusion as in their Figure 2: 100 agents on an Erdos-Renyi graph, p = 2, three budgets with
   the parameters of Section 6.1. The mean residual is held against its exact expectation, which
   follows from the linear recursion (13): the accuracy that the theory allows. M_i has entries up
   to ``scale``. The paper does not print its data; with entries up to 1 its step sizes, which add
   up to gamma / (1 - q1) <= 0.067, leave the mean of the agents almost where it started.
2. The leak study of Table 4: 3 agents, one unknown, 5,000 trials in one tensor program.

One thread each, CPU seconds, float64. "loop" is NumPy, one trial after the other, written straight
from Algorithm 1 and (42); "tuned loop" has H = 2 (M'M + omega I) and c = 2 M'v computed ahead, as
the batched program has, and draws the noise of all rounds of a trial at once. A loop timed on fewer
trials than it is compared with is scaled up, and the line says so. Beside the limits of the machine
stand a uniform draw for each number that is sent, the products of gossip, and X and Y, read and
written once in each round.
"""

import argparse
import math
import resource
from time import process_time

import numpy as np
import torch
from limits import Limits, measured
from torch import Tensor

from dpaudit.defense.contract import Setting
from dpaudit.defense.noise import Noise
from dpaudit.defenses.sensitivity_reduced import SensitivityReduced
from dpaudit.graphs.graph import Graph, build_graph
from dpaudit.rng import Streams
from dpaudit.training.sensor_fusion import SensorFusion

SEED = 20240611
ROUNDS = 1_000
RECORDED = (0, 10, 30, 100, 300, ROUNDS)
BUDGETS = {  # epsilon: gamma, beta, q1, q2 of Section 6.1
    0.1: (0.001, 1000.0, 0.92, 0.99),
    1.0: (0.001, 1000.0, 0.97, 0.99),
    10.0: (0.002, 100.0, 0.97, 0.99),
}


def algorithm(epsilon: float) -> SensitivityReduced:
    gamma, beta, q1, q2 = BUDGETS[epsilon]
    return SensitivityReduced(
        epsilon=epsilon,
        step_size=gamma,
        correction=beta,
        step_decay=q1,
        noise_decay=q2,
        n_rounds=ROUNDS,
    )


@torch.inference_mode()
def batched(
    defense: SensitivityReduced,
    problem: SensorFusion,
    setting: Setting,
    streams: Streams,
    trials: int,
) -> Tensor:
    """Residuals at the recorded rounds, [len(RECORDED), trials]."""
    state = defense.start(problem.initial(streams, trials), setting)
    residuals, graph = [problem.residual(state.X)], setting.network.at(1)
    for k in range(1, ROUNDS + 1):
        state = defense.step(state, k, graph, problem.gradient(streams, k), Noise(streams, k)).state
        if k in RECORDED:
            residuals.append(problem.residual(state.X))
    return torch.stack(residuals)


def loop(
    defense: SensitivityReduced, problem: SensorFusion, graph: Graph, trials: int
) -> np.ndarray:
    """The last residual of each trial."""
    rng, beta, n, p = np.random.default_rng(SEED), defense.correction, graph.n_agents, problem.d
    W, omega, residuals = graph.W.numpy(), problem.omega.numpy()[:, None], np.empty(trials)
    for trial in range(trials):
        M, v, optimum = _of_trial(trial, problem.M, problem.v, problem.optimum)
        X, Y = rng.normal(size=(n, p)), np.zeros((n, p))
        for k in range(1, ROUNDS + 1):
            Z = X + rng.laplace(0.0, defense.nu(k), (n, p))
            Z_bar = W @ Z
            Y = Y + beta * (Z - Z_bar)
            errors = v - (M @ Z[..., None])[..., 0]
            G = -2 * (errors[:, None, :] @ M)[:, 0] + 2 * omega * Z
            X = Z_bar - defense.alpha(k) * (Y + G)
        residuals[trial] = ((X - optimum) ** 2).sum()
    return residuals


def tuned_loop(
    defense: SensitivityReduced, problem: SensorFusion, graph: Graph, trials: int
) -> np.ndarray:
    """The last residual of each trial."""
    rng, beta, n, p = np.random.default_rng(SEED), defense.correction, graph.n_agents, problem.d
    alpha = [defense.alpha(k) for k in range(1, ROUNDS + 1)]
    nu = np.array([defense.nu(k) for k in range(1, ROUNDS + 1)])[:, None, None]
    W, residuals = graph.W.numpy(), np.empty(trials)
    for trial in range(trials):
        H, c, optimum = _of_trial(trial, problem.H, problem.c, problem.optimum)
        X, Y, xi = rng.normal(size=(n, p)), np.zeros((n, p)), nu * rng.laplace(size=(ROUNDS, n, p))
        for k in range(ROUNDS):
            Z = X + xi[k]
            Z_bar = W @ Z
            Y += beta * (Z - Z_bar)
            G = (H[:, 0] * Z if p == 1 else np.einsum("nij,nj->ni", H, Z)) - c
            X = Z_bar - alpha[k] * (Y + G)
        residuals[trial] = ((X - optimum) ** 2).sum()
    return residuals


def _of_trial(trial: int, *values: Tensor) -> list[np.ndarray]:
    """The coefficients of one trial; the optimum [..., p] says whether all trials share them."""
    own = values[-1].ndim == 2
    return [(value[trial] if own else value).numpy().copy() for value in values]


def expected(defense: SensitivityReduced, problem: SensorFusion, graph: Graph) -> float:
    """The exact mean of the last residual: s = (x, y) obeys s <- A s + B xi + a."""
    n, p, beta = graph.n_agents, problem.d, defense.correction
    eye, identity = torch.eye(n * p).double(), torch.eye(p).double()
    W, H, c = torch.kron(graph.W, identity), torch.block_diag(*problem.H), problem.c.flatten()
    x = torch.arange(n * p)
    mean, cov = torch.zeros(2 * n * p).double(), torch.zeros(2 * n * p, 2 * n * p).double()
    cov[x, x] = 1.0  # standard normal initial models
    y_of_z = beta * (eye - W)
    for k in range(1, ROUNDS + 1):
        alpha = defense.alpha(k)
        B = torch.cat([W - alpha * (y_of_z + H), y_of_z])
        A = torch.cat([B, torch.cat([-alpha * eye, eye])], dim=1)
        mean = A @ mean
        mean[: n * p] += alpha * c
        cov[x, x] += 2 * defense.nu(k) ** 2  # Laplace noise, added to x
        cov = A @ cov @ A.T
    off = mean[: n * p] - problem.optimum.repeat(n)
    return (off.square().sum() + cov[x, x].sum()).item()


def shares(limits: Limits, seconds: float, trials: int, setting: Setting) -> str:
    """Of the seconds of so many trials, what the work that cannot be spared takes at the limits."""
    n, numbers = setting.n_agents, ROUNDS * trials * setting.n_agents * setting.d
    return limits.shares(
        seconds, products=2 * n * numbers, copies=4 * 8 * numbers, uniforms=numbers
    )


def figure_2(arguments: argparse.Namespace, limits: Limits) -> None:
    trials, streams = arguments.trials, Streams(SEED)
    network = build_graph("erdos-renyi", 100, streams.numpy("graph"))
    problem = SensorFusion.draw(streams, 100, m=3, p=2, scale=arguments.scale)
    graph, setting = network.at(1), Setting(network, (1,) * 100, 2)
    print(f"1. {trials} trials x {ROUNDS} rounds x 100 agents, p = 2, entries of M up to", end=" ")
    print(f"{arguments.scale:g}, blocks of {arguments.block} trials")
    last, seconds = {}, {}
    for epsilon in BUDGETS:
        defense, began = algorithm(epsilon).calibrate(setting), process_time()
        firsts = range(0, trials, arguments.block)
        sizes = [min(arguments.block, trials - first) for first in firsts]
        seeds = [Streams(SEED + 1 + first) for first in firsts]
        blocks = [
            batched(defense, problem, setting, seed, size)
            for seed, size in zip(seeds, sizes, strict=True)
        ]
        seconds[epsilon] = process_time() - began
        residuals = torch.cat(blocks, dim=1)
        assert residuals.isfinite().all(), "a trial diverged"
        curve = [f"{k}: {r:.3g}" for k, r in zip(RECORDED, residuals.mean(1), strict=True)]
        error = residuals[-1].std().item() / math.sqrt(trials)
        last[epsilon] = residuals[-1].mean().item()
        print(f"   epsilon {epsilon:<4g}{seconds[epsilon]:6.2f} s   by round {', '.join(curve)}")
        print(f"      in the end {last[epsilon]:.4g} +- {error:.2g}, exact expectation", end=" ")
        print(f"{expected(defense, problem, graph):.4g}", flush=True)
    ordered = last[0.1] > last[1.0] > last[10.0]
    print(f"   more epsilon, less residual, as in Figure 2: {ordered}; no trial is NaN or infinite")
    print(f"   {shares(limits, seconds[1.0], trials, setting)}")
    for peer in (loop, tuned_loop):
        began = process_time()
        residual = peer(algorithm(1.0), problem, graph, trials).mean()
        took, name = process_time() - began, peer.__name__.replace("_", " ")
        print(f"   {name}, {trials} trials, epsilon 1: {took:.2f} s, residual", end=" ")
        print(f"{residual:.4g}; batched is {took / seconds[1.0]:.1f} times as fast", flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"   peak memory of this process so far {peak:.2f} GiB", flush=True)


def table_4(arguments: argparse.Namespace, limits: Limits) -> None:
    trials, few, streams = arguments.table_trials, arguments.loop_trials, Streams(SEED)
    setting = Setting(build_graph("complete", 3), (1,) * 3, 1)
    graph = setting.network.at(1)
    problem = SensorFusion.draw(
        streams, 3, m=1, p=1, scale=arguments.scale, trials=trials, redrawn=[0]
    )
    defense = algorithm(1.0)
    times: dict[str, list[float]] = {"batched": [], "loop": [], "tuned_loop": []}
    for _ in range(5):  # interleaved, so that a busy moment hits all
        began = process_time()
        residuals = batched(defense, problem, setting, streams, trials)
        times["batched"].append(process_time() - began)
        for peer in (loop, tuned_loop):
            began = process_time()
            peer(defense, problem, graph, few)
            times[peer.__name__].append((process_time() - began) * trials / few)
    assert residuals.isfinite().all(), "a trial diverged"
    batch = float(np.median(times.pop("batched")))
    print(f"2. {trials} trials x {ROUNDS} rounds x 3 agents, p = 1; medians of 5")
    print(f"   batched, one tensor program: {batch:.3f} s, residual", end=" ")
    print(f"{residuals[-1].mean():.3g}; no trial is NaN or infinite")
    print(f"   {shares(limits, batch, trials, setting)}")
    for name, values in times.items():
        took, name = float(np.median(values)), name.replace("_", " ")
        print(f"   {name}: {took:.1f} s, extrapolated from {few} of {trials} trials;", end=" ")
        print(f"batched is {took / batch:.0f} times as fast")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=1_000)
    parser.add_argument("--block", type=int, default=100, help="trials in one tensor program")
    parser.add_argument("--scale", type=float, default=10.0, help="largest entry of M_i")
    parser.add_argument("--table-trials", type=int, default=5_000, help="of the leak study")
    parser.add_argument("--loop-trials", type=int, default=40, help="of these, in the loop")
    arguments = parser.parse_args()
    limits = measured(torch.float64)
    print(limits)
    figure_2(arguments, limits)
    table_4(arguments, limits)


if __name__ == "__main__":
    main()
