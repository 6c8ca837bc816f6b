"""Accuracy tables of Yuan, Xiao, Wang and Li (DPDL): Tables I and II, and V and VI of rings."""

from collections.abc import Mapping
from typing import Any

from . import dpdl_published as numbers
from .accuracy import ACCURACY, accuracy
from .experiment import ABSENT, Experiment, Labels, Open, Ordering, Published, Scale, Settings
from .published import OfLabel, cells_of, printed

PAPER = "Yuan, Xiao, Wang and Li (DPDL)"
SIZES = ("10", "20", "30")
COLUMNS = ("method", "alpha_d", "epsilon", "graph", "N")
BIPARTITE_AND_COMPLETE: list[Labels] = [
    {"graph": graph, "N": n} for graph in ("bipartite", "complete") for n in SIZES
]
OF_RINGS: list[Labels] = [
    {"alpha_d": alpha, "N": n, "graph": "ring"} for alpha in ("0.25", "1.0") for n in SIZES
]
METHODS: dict[str, Settings] = {
    "DP-DPSGD": {"defense.name": "dp-dpsgd"},
    "DP-CGA": {"defense.name": "dp-cga", "defense.momentum": 0.7},
    "MUFFLIATO": {"defense.name": "muffliato"},
    "DP-NETFLEET": {"defense.name": "dp-netfleet", "defense.learning_rate": ABSENT},
    "DPDL": {"defense.name": "dpdl", "defense.momentum": 0.7},
}
GRAPHS: dict[str, Settings] = {
    "bipartite": {"graph.name": "bipartite"},
    "complete": {"graph.name": "complete"},
    "ring": {"graph.name": "ring"},
}
OF_COLUMN: Mapping[str, OfLabel] = {
    "method": METHODS,
    "alpha_d": lambda label: {"data.partition.alpha": float(label)},
    "epsilon": lambda label: {"defense.epsilon": float(label)},
    "graph": GRAPHS,
    "N": lambda label: {"data.n_agents": int(label)},
}
COMMON: dict[str, Any] = {
    "data.partition.kind": "dirichlet",
    "defense.batch_size": 216,
    "defense.sampling": "fixed",  # as the algorithm box has it
}
MNIST: dict[str, Any] = {
    "model.name": "lenet",
    "defense.learning_rate": 0.005,
    "defense.clip_norm": 2.0,
}
CIFAR: dict[str, Any] = {
    "model.name": "cnn-dpdl",
    "defense.learning_rate": 0.03,
    "defense.clip_norm": 3.0,
}


ROUNDS = Open("defense.n_rounds", 800, "T; the attacks of the paper end there")


def open_readings(learning_rate: float, rounds: tuple[Open, ...] = (ROUNDS,)) -> tuple[Open, ...]:
    """What is open of the methods, by the step size."""
    return (
        *rounds,
        Open("defense.delta", 1e-5, "delta"),
        *(_alpha(graph) for graph in GRAPHS),
        Open("defense.c2", 2.0, "c2 of (23)", {"method": "DPDL"}),
        Open("defense.h", 2.0, "h of (23), which depends on data and noise", {"method": "DPDL"}),
        Open("defense.step_size", learning_rate, "eta of a local step", {"method": "DP-NETFLEET"}),
        Open("defense.local_steps", 5, "local steps of a round", {"method": "DP-NETFLEET"}),
        Open("defense.perturb", "gradient", "what is noised; the paper noises updated models, "
             "and no source sets that noise by a budget", {"method": "MUFFLIATO"}),
        Open("defense.noise_scale", "2C", "what noise is a multiple of", {"method": "DP-CGA"}),
    )  # fmt: skip


def _alpha(graph: str) -> Open:
    alpha = 2.0 if graph == "ring" else 1.5
    where = {"method": "DPDL", "graph": graph}
    return Open("defense.calibration", alpha, "alpha, as printed for this graph", where)


def _orderings(table: str, compared: str) -> tuple[Ordering, ...]:
    best = f"{table}: DPDL is the most accurate method"
    low, high = ("0.25", "1.0") if compared == "MNIST" else ("2.0", "8.0")
    more = f"{table}: DPDL is more accurate at epsilon = {high} than at {low}"
    even = f"{table}: DPDL is more accurate where records are spread more evenly"
    return (
        Ordering(best, ACCURACY, "method", "DPDL"),
        Ordering(more, ACCURACY, "epsilon", high, (low,), {"method": "DPDL"}),
        Ordering(even, ACCURACY, "alpha_d", "1.0", ("0.25",), {"method": "DPDL"}),
    )


def _table(
    table: str,
    published: tuple[Published, ...],
    data: str,
    ring: bool,
    scales: Mapping[str, Scale],
) -> Experiment:
    own = MNIST if data == "mnist" else CIFAR
    orderings = _orderings(table, "MNIST" if data == "mnist" else "CIFAR-10")
    if not ring:
        denser = f"{table}: DPDL is more accurate on complete graphs than on bipartite ones"
        where = {"method": "DPDL"}
        orderings += (Ordering(denser, ACCURACY, "graph", "complete", ("bipartite",), where),)
    return Experiment(
        paper=PAPER,
        table=table,
        shows=f"test accuracy of five methods on {'MNIST' if data == 'mnist' else 'CIFAR-10'}",
        measure=accuracy,
        columns=COLUMNS,
        cells=cells_of(published, OF_COLUMN),
        settings={**COMMON, **own},
        published=published,
        open=open_readings(own["defense.learning_rate"]),
        orderings=orderings,
        scales=scales,
        data=data,
        remarks=REMARKS,
    )


REMARKS = (
    "Bipartite: complete between two halves, weights 1 / (N/2 + 1). Budgets of the baselines are "
    "those of exact accounting of their own mechanism, DPDL's that of (23). Noise of a budget "
    "depends on the number of rounds. Accuracy is the mean over agents on the first 2,000 test "
    "records; the paper's plus-minus is over 20 runs.",
)


def _scales(
    epsilon: str, graphs: tuple[str, ...], hours: float, seconds: float
) -> dict[str, Scale]:
    only = {"alpha_d": ("1.0",), "epsilon": (epsilon,), "graph": graphs, "N": ("10",)}
    few = {"defense.n_rounds": 20, "defense.batch_size": 32}
    said = f"20 rounds of batches of 32, alpha_d = 1.0, epsilon = {epsilon}, N = 10"
    return {
        "quick": Scale(1, seconds, 10**9, few, only, said),
        "paper": Scale(20, 3600 * hours, 3 * 10**9),
    }


_PAIRED = ("bipartite", "complete")

DPDL = {
    "dpdl-table1": _table(
        "Table I",
        printed(
            numbers.TABLE_I, ("alpha_d", "epsilon", "method"), BIPARTITE_AND_COMPLETE, ACCURACY
        ),
        "mnist",
        False,
        _scales("0.5", _PAIRED, 2000, 100),
    ),
    "dpdl-table2": _table(
        "Table II",
        printed(
            numbers.TABLE_II, ("alpha_d", "epsilon", "method"), BIPARTITE_AND_COMPLETE, ACCURACY
        ),
        "cifar10",
        False,
        _scales("4.0", _PAIRED, 7700, 200),
    ),
    "dpdl-table5": _table(
        "Table V",
        printed(numbers.TABLE_V, ("epsilon", "method"), OF_RINGS, ACCURACY),
        "mnist",
        True,
        _scales("0.5", ("ring",), 400, 40),
    ),
    "dpdl-table6": _table(
        "Table VI",
        printed(numbers.TABLE_VI, ("epsilon", "method"), OF_RINGS, ACCURACY),
        "cifar10",
        True,
        _scales("4.0", ("ring",), 1550, 80),
    ),
}
