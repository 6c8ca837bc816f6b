"""Table III of Yuan, Xiao, Wang and Li (DPDL): gradient inversion at the published noise.

The column of ten agents on a bipartite graph. The paper's scenarios, and adversaries who know the
algorithm better: MM-exact, MM-strip, and the best estimate from the whole view.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from dpaudit.files.data_folders import root_folder

from .blocks import Keep, at_once
from .image_table import ImageTable, Reading, Scenario, lines

SCENARIOS = (
    Scenario("ND-CG", "cross_gradient", "no-defense", (0.84, 6.88, 0.1714)),
    Scenario("ND-MM", "momentum-difference", "no-defense", (0.88, 6.69, 0.1573)),
    Scenario("ND-MM-exact", "momentum-exact", "no-defense", beside="ND-MM"),
    Scenario("ND-MM-strip", "momentum-stripped", "no-defense", beside="ND-MM"),
    Scenario("ND-view", "view", "no-defense", beside="ND-CG"),
    Scenario("DPDL-CG", "cross_gradient", "defense", (1.37, 4.67, 0.0575)),
    Scenario("DPDL-MM", "momentum-difference", "defense", (1.39, 4.58, 0.0518)),
    Scenario("DPDL-MM-exact", "momentum-exact", "defense", beside="DPDL-MM"),
    Scenario("DPDL-MM-strip", "momentum-stripped", "defense", beside="DPDL-CG"),
    Scenario("DPDL-view", "view", "defense", beside="DPDL-CG"),
)

ASSUMED = (
    "delta 1e-5, c2 = 2 and h = 2 in (23), T = the last attacked round;",
    "Dirichlet partition with alpha_d = 1, of the paper's two the one that leaves more records",
    "to the smallest agent, by which (23) sets the noise; complete bipartite graph, weights 1/6;",
    "LeNet with one linear layer; pixels in [-1, 1], as PSNR is 10 log10(4 / MSE) in its rows;",
    "an eavesdropper on all links; our gradient inversion with what it chooses by itself;",
    "batches of 1 and 8, in training as in the attack: the paper has 216 and shows single images.",
    "(23) is linear in the batch size B, so that the noise sigma C / B of a message is the same",
    "for all B; a batch of one played besides in a run of B = 216 has 216 times as much.",
)


class Size(NamedTuple):
    """How much of the study is computed."""

    n_rounds: int  # T, which (23) sets the noise by
    rounds: tuple[tuple[int, ...], ...]  # attacked
    targets: int  # in each round, a batch of one agent each


SIZES = {
    "quick": Size(80, ((20,), (40,), (80,)), 5),
    "paper": Size(800, ((200,), (400,), (797, 798, 799, 800)), 10),
}


def study(scale: str, with_mnist: bool) -> ImageTable:
    """The table on MNIST, or on the embedded digits.

    Args:
        scale: "quick" or "paper".
    """
    size, full = SIZES[scale], 216 if with_mnist else 16  # as many as the smallest agent has
    config = partial(_config, size.n_rounds, with_mnist)
    data = "MNIST" if with_mnist else "the embedded digits (8x8), not the paper's MNIST"
    return ImageTable(
        title=f"DPDL, Table III, on {data}, scale {scale}: published, and found here",
        scenarios=SCENARIOS,
        published_for="MNIST, N = 10, bipartite, epsilon = 0.5, round 800",
        assumed=ASSUMED,
        readings=(
            Reading("Batches of 1", config(1), size.rounds),
            Reading("Batches of 8", config(8), ((size.n_rounds,),)),
            Reading(f"Batches of {full}, not run", config(full), ()),
        ),
        attack={"targets": size.targets},
    )


def _config(n_rounds: int, with_mnist: bool, batch_size: int) -> dict[str, Any]:
    split = {"n_agents": 10, "partition": {"kind": "dirichlet", "alpha": 1.0}}
    return {
        "data": {"name": "mnist" if with_mnist else "digits", **split},
        "graph": {"name": "bipartite"},
        "model": {"name": "lenet"},
        "defense": {
            "name": "dpdl",
            "epsilon": 0.5,
            "delta": 1e-5,
            "n_rounds": n_rounds,
            "batch_size": batch_size,
            "sampling": "fixed",
            "learning_rate": 0.005,
            "clip_norm": 2.0,
            "momentum": 0.7,
            "calibration": 1.5,
        },
    }


def printed(scale: str, seed: int, data_root: Path | None, keep: Keep = at_once) -> Iterator[str]:
    """What ``dpaudit reproduce dpdl-table3`` prints; without a folder, on the embedded digits.

    Raises:
        DpauditError: the folder has no MNIST.
    """
    root = root_folder(data_root)
    return lines(study(scale, root is not None), seed, root, keep)
