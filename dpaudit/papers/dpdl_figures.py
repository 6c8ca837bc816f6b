"""Figures 1 to 4, 8 and 9 of Yuan, Xiao, Wang and Li (DPDL): training loss by round."""

from collections.abc import Mapping
from typing import Any

from .convergence import LEAST, convergence
from .dpdl_tables import (
    CIFAR,
    COMMON,
    GRAPHS,
    METHODS,
    MNIST,
    PAPER,
    REMARKS,
    ROUNDS,
    SIZES,
    open_readings,
)
from .experiment import Experiment, Open, Ordering, Published, Scale
from .published import grid, printed

LEAST_ON_MNIST = """
    DP-CGA | 0.69 - 0.56 0.58
    DP-NETFLEET | 0.53 - 0.68 0.52
    DP-DPSGD | 1.62 - 1.99 0.83
    MUFFLIATO | 1.64 - 2.14 0.64
    DPDL | 0.27 0.29 0.39 0.41
"""
_AT = [
    {"epsilon": "0.5", "graph": "bipartite", "N": "20"},
    {"epsilon": "0.5", "graph": "complete", "N": "20"},
    {"epsilon": "0.5", "graph": "ring", "N": "10"},
    {"epsilon": "0.5", "graph": "ring", "N": "30"},
]


def _figures(table: str, epsilons: tuple[str, ...], data: str, own: Mapping[str, Any],
             open_: tuple[Open, ...], orderings: tuple[Ordering, ...], remark: str,
             scales: Mapping[str, Scale],
             published: tuple[Published, ...] = ()) -> Experiment:  # fmt: skip
    return Experiment(
        paper=PAPER,
        table=table,
        shows=f"training loss by round of five methods, {data}",
        measure=convergence,
        columns=("method", "epsilon", "graph", "N"),
        cells=grid(
            {
                "method": METHODS,
                "epsilon": {epsilon: {"defense.epsilon": float(epsilon)} for epsilon in epsilons},
                "graph": GRAPHS,
                "N": {n: {"data.n_agents": int(n)} for n in SIZES},
            }
        ),
        settings={**COMMON, **own, "data.partition.alpha": 0.25},
        published=published,
        open=open_,
        orderings=orderings,
        remarks=(
            remark,
            "Ours is the loss on the first 2,000 training records, those of all agents, mean over "
            "agents, at seven rounds of a run; of what records the paper's is, it does not say.",
            *REMARKS,
        ),
        scales=scales,
        at="round",
        data=data,
    )


def _above(figures: str, *methods: str) -> tuple[Ordering, ...]:
    return tuple(
        Ordering(f"{figures}, in words: the training loss of {method} is above DPDL's", LEAST,
                 "method", method, ("DPDL",))
        for method in methods
    )  # fmt: skip


def _scales(epsilon: str, seconds: float, hours: float) -> dict[str, Scale]:
    only = {"epsilon": (epsilon,), "graph": ("bipartite", "ring"), "N": ("10",)}
    few = {"defense.n_rounds": 21, "defense.batch_size": 32}
    said = f"21 rounds of batches of 32, epsilon = {epsilon}, N = 10, two graphs"
    return {
        "quick": Scale(1, seconds, 10**9, few, only, said),
        "paper": Scale(20, 3600 * hours, 3 * 10**9),
    }


DPDL_FIGURES = {
    "dpdl-figures1-2": _figures(
        "Figures 1, 2 and 8", ("0.25", "0.5", "1.0"), "mnist", MNIST,
        open_readings(
            MNIST["defense.learning_rate"],
            (Open("defense.n_rounds", 500, "T; the text reads losses off in about this round"),
             Open("defense.n_rounds", 1000, "T; the text reads losses off after it",
                  {"graph": "ring", "N": "30"})),
        ),
        _above("Figures 1, 2 and 8", *(method for method in METHODS if method != "DPDL")),
        "Least losses are printed in the text for these four, of about 500 rounds and of 1,000 "
        "(ring, N = 30). Of the complete graph it has DPDL's 0.29 after 200 rounds and there 0.93, "
        "0.69, 1.76 and 1.81 of DP-CGA, DP-NETFLEET, DP-DPSGD and MUFFLIATO; of the bipartite one "
        "it has 0.27 in one place and 0.29 in another.",
        _scales("0.5", 120, 500),
        printed(LEAST_ON_MNIST, ("method",), _AT, LEAST),
    ),
    "dpdl-figures3-4": _figures(
        "Figures 3, 4 and 9", ("2.0", "4.0", "8.0"), "cifar10", CIFAR,
        open_readings(CIFAR["defense.learning_rate"], (ROUNDS,)),
        _above("Figures 3, 4 and 9", "DP-DPSGD", "MUFFLIATO"),
        "The text has losses of 1.0 to 1.4 of DPDL, DP-CGA and DP-NETFLEET at epsilon = 4 and 8 "
        "within 600 to 900 rounds, and says that the other two methods do not converge.",
        _scales("4.0", 200, 3000),
    ),
}  # fmt: skip
