"""Tables 2 to 7 of Wu, Liu, Wang, Yang and Yu (ADP-VRSGP)."""

from collections.abc import Mapping
from typing import Any

from .accuracy import ACCURACY, accuracy
from .experiment import ABSENT, Experiment, Labels, Open, Ordering, Published, Scale, Settings
from .published import OfLabel, cells_of, printed

PAPER = "Wu, Liu, Wang, Yang and Yu (ADP-VRSGP)"
OWN = "ADP-VRSGP"
EIGHT: list[Labels] = [
    {"method": method}
    for method in (
        "A(DP)2SGD", "MAPA", "PPSGD", "DFedSAM", "Fed-CDP", "FedDPA", "FedAN", OWN
    )
]  # fmt: skip
TAU: list[Labels] = [{"tau": tau} for tau in ("1", "4", "6", "9", "12", "15", "30")]

TABLE_2_MNIST = """
    2 | 90.92 93.08 89.05 93.06 91.61 93.27 92.81 95.29
    4 | 92.07 94.38 90.71 94.89 92.35 94.85 94.25 96.09
    6 | 93.68 95.24 91.24 95.97 94.22 95.47 94.93 97.36
    8 | 95.37 97.40 94.25 97.15 95.53 96.34 96.28 98.04
"""
TABLE_2_FASHION = """
    2 | 70.33 71.41 70.35 71.37 71.61 72.15 71.57 74.61
    4 | 73.41 73.92 71.81 74.25 73.84 75.09 74.68 77.38
    6 | 75.95 76.36 74.55 77.86 76.37 78.54 76.96 80.52
    8 | 79.89 80.93 80.34 81.69 80.49 82.62 80.35 84.15
"""
TABLE_2_CIFAR = """
    2 | 35.47 43.67 44.81 45.36 44.26 45.66 45.18 47.27
    4 | 38.35 46.98 47.53 48.22 47.13 48.31 47.29 49.35
    6 | 40.47 50.67 51.82 50.63 52.08 52.54 51.83 53.56
    8 | 47.36 56.05 55.29 56.93 55.31 57.72 56.79 58.56
"""
TABLE_3_MNIST = """
    CNN, 0.3 | 79.21 85.07 86.24 88.34 89.38 86.71 85.75
    CNN, 0.5 | 79.71 85.02 89.51 88.13 87.19 87.09 86.58
    CNN, 0.7 | 80.28 87.61 87.41 87.41 87.29 86.85 86.76
    ResNet-18, 0.3 | 82.34 85.75 88.64 89.27 90.59 89.67 89.62
    ResNet-18, 0.5 | 83.53 89.29 90.73 89.72 88.39 87.06 86.61
    ResNet-18, 0.7 | 84.23 89.48 88.83 87.33 87.14 86.42 86.23
"""
TABLE_3_FASHION = """
    CNN, 0.3 | 68.23 70.75 71.09 71.58 72.28 71.84 70.22
    CNN, 0.5 | 68.58 71.29 72.92 72.01 71.55 70.97 70.05
    CNN, 0.7 | 68.49 72.38 71.41 71.26 71.19 71.15 70.83
    ResNet-18, 0.3 | 72.49 75.83 77.91 78.39 78.61 77.39 76.38
    ResNet-18, 0.5 | 75.46 79.58 80.49 79.52 78.49 78.03 77.86
    ResNet-18, 0.7 | 77.28 80.03 79.41 78.51 77.65 77.36 76.72
"""
TABLE_4 = """
    8 | 40.47 50.67 51.82 50.63 52.08 52.54 51.83 53.56
    16 | 39.08 48.22 48.68 46.75 49.77 48.25 49.04 52.05
    32 | 36.15 46.16 47.76 44.51 48.73 43.12 47.52 50.36
    64 | 32.71 43.11 44.92 42.45 45.78 40.87 44.98 47.89
    128 | 31.48 41.86 40.74 39.84 43.32 37.85 42.30 45.71
"""
TABLE_5 = """
    A(DP)2SGD | 28.70 35.48 38.44 41.91 42.15
    MAPA | 35.14 43.61 47.27 48.85 49.02
    PPSGD | 34.62 42.13 47.94 49.58 49.82
    DFedSAM | 35.25 43.87 48.49 50.25 50.85
    ADP-VRSGP | 37.48 45.12 50.15 53.01 53.42
"""
TABLE_6 = "ADP-VRSGP | 37.24 43.51 47.27 46.83"
TABLE_7 = "ADP-VRSGP | 40.06 45.56 47.27 44.65 36.62"

_RING: Settings = {"graph.name": "ring"}
METHODS: dict[str, Settings] = {
    "A(DP)2SGD": {"defense.name": "adp2sgd", "graph.name": "pairwise", "graph.among": "ring"},
    "MAPA": {**_RING, "defense.name": "mapa", "defense.learning_rate": ABSENT},
    "PPSGD": {**_RING, "defense.name": "ppsgd"},
    "DFedSAM": {**_RING, "defense.name": "dp-dfedsam"},
    "Fed-CDP": {**_RING, "defense.name": "fed-cdp", "defense.count_layers": True},
    "FedDPA": {**_RING, "defense.name": "feddpa", "defense.calibration": "exact"},
    "FedAN": {**_RING, "defense.name": "fedan"},
    OWN: {
        **_RING,
        "defense.name": "adp-vrsgp",
        "defense.learning_rate": ABSENT,
        "defense.allow_outside_theory": True,
    },
}
MODELS: dict[str, Settings] = {  # ResNet-18 learns over the graph that varies from round to round
    "CNN": {"model.name": "cnn-adp-vrsgp"},
    "ResNet-18": {"model.name": "resnet-18", "graph.name": "half-exponential"},
}
OF_COLUMN: Mapping[str, OfLabel] = {
    "method": METHODS,
    "model": MODELS,
    "epsilon": lambda label: {"defense.epsilon": float(label)},
    "agents": lambda label: {"data.n_agents": int(label)},
    "alpha": lambda label: {"data.partition.alpha": float(label)},
    "theta": lambda label: {"defense.fusion": float(label)},
    "tau": lambda label: {"defense.tau": int(label)},
    "psi": lambda label: {"defense.clip_decay": float(label)},
    "G": lambda label: {"defense.clip_norm": float(label)},
}
COMMON: dict[str, Any] = {
    "model.name": "cnn-adp-vrsgp",
    "data.n_agents": 8,
    "data.partition.kind": "dirichlet",
    "defense.batch_size": 64,
    "defense.delta": 1e-5,
}
OPEN = (
    Open("defense.n_rounds", 1000, "T, as printed; of A(DP)2SGD so many times the agents"),
    Open("defense.n_rounds", 8000, "events of A(DP)2SGD", {"method": "A(DP)2SGD"}),
    Open("data.partition.alpha", 1.0, "alpha, where the table does not have it"),
    Open("defense.learning_rate", 0.5, "the step size of a baseline"),
    Open("defense.clip_norm", 0.1, "G, as printed; of the baselines too"),
    Open("defense.step_scale", 15.0, "K of eta = K sqrt(n) / T^p", {"method": OWN}),
    Open("defense.sigma_follows_clip", True, "noise decays with G", {"method": OWN}),
    Open("defense.clip", "sample", "each record is clipped, not the batch", {"method": OWN}),
    Open("defense.learning_rate", 0.01, "of Adam", {"method": "FedDPA"}),
)
QUICK = ("MAPA", "DFedSAM", "Fed-CDP", "FedAN", OWN)
OUTSIDE = "All budgets are outside Theorem 1 of the paper."
REMARKS = (
    "Budgets of the baselines are those of exact accounting of their own mechanism; PPSGD and "
    "FedDPA protect a whole user. FedAN's source is not identified and most baselines are "
    f"reconstructed (dpaudit list defenses). {OUTSIDE}",
)
OF_RESNET = (
    "The paper calls its second network ResNet-18 and ResNet-10; here it is ResNet-18 with "
    "GroupNorm, on the time-varying graph that the paper names for it.",
)


def _table(table: str, published: tuple[Published, ...], data: str, settings: Settings,
           orderings: tuple[Ordering, ...], scales: Mapping[str, Scale],
           remarks: tuple[str, ...] = ()) -> Experiment:  # fmt: skip
    columns = tuple(name for name in OF_COLUMN if name in published[0].labels)
    own = {name: OF_COLUMN[name] for name in columns}
    methods = {p.labels["method"] for p in published}
    return Experiment(
        paper=PAPER,
        table=table,
        shows=f"test accuracy on {data}",
        measure=accuracy,
        columns=columns,
        cells=cells_of(published, own),
        settings={**COMMON, **settings},
        published=published,
        open=tuple(one for one in OPEN if one.where.get("method", OWN) in methods),
        orderings=orderings,
        remarks=(*REMARKS, *remarks),
        scales=scales,
        data=data,
    )  # fmt: skip


def _best(table: str) -> Ordering:
    return Ordering(f"{table}: ADP-VRSGP is the most accurate method", ACCURACY, "method", OWN)


def scales_of(rounds: int, only: Mapping[str, tuple[str, ...]], said: str, seconds: float,
            hours: float) -> dict[str, Scale]:  # fmt: skip
    few = {"defense.n_rounds": rounds, "defense.batch_size": 16}
    cut = f"{rounds} rounds of batches of 16, {said}"
    return {
        "quick": Scale(1, seconds, 10**9, few, only, cut),
        "paper": Scale(3, 3600 * hours, 5 * 10**9),
    }


def _table_2(text: str, data: str, hours: float, few: int = 20) -> Experiment:
    said = "epsilon of 2 and 8, five methods"
    return _table(
        f"Table 2, {data}", printed(text, ("epsilon",), EIGHT, ACCURACY), data, {},
        (_best("Table 2"),
         Ordering("Table 2: a budget of 8 is more accurate than one of 2", ACCURACY, "epsilon",
                  "8", ("2",))),
        scales_of(few, {"epsilon": ("2", "8"), "method": QUICK}, said, 150, hours),
    )  # fmt: skip


def _table_3(text: str, data: str, epsilon: float, hours: float) -> Experiment:
    """By Remark 1 each theta has a tau at which it is the most accurate."""
    most = {"0.3": "12", "0.5": "6", "0.7": "4"}
    return _table(
        f"Table 3, {data}",
        printed(text, ("model", "theta"), [{**t, "method": OWN} for t in TAU], ACCURACY),
        data, {"defense.epsilon": epsilon},
        tuple(
            Ordering(f"Table 3: theta = {theta} is most accurate at tau = {tau}", ACCURACY, "tau",
                     tau, where={"theta": theta})
            for theta, tau in most.items()
        ),
        scales_of(30, {"model": ("CNN",), "tau": ("1", "6", "30")}, "the CNN, tau of 1, 6 and 30",
                  90, hours),
        OF_RESNET,
    )  # fmt: skip


def _alone(labels: list[Labels], text: str) -> tuple[Published, ...]:
    return printed(text, ("method",), labels, ACCURACY)


ADP_VRSGP_TABLES = {
    "adp-vrsgp-table2": _table_2(TABLE_2_MNIST, "mnist", 12),
    "adp-vrsgp-table2-fashion": _table_2(TABLE_2_FASHION, "fashion-mnist", 12),
    "adp-vrsgp-table2-cifar": _table_2(TABLE_2_CIFAR, "cifar10", 60, few=8),
    "adp-vrsgp-table3": _table_3(TABLE_3_MNIST, "mnist", 0.5, 150),
    "adp-vrsgp-table3-fashion": _table_3(TABLE_3_FASHION, "fashion-mnist", 1.0, 150),
    "adp-vrsgp-table4": _table(
        "Table 4", printed(TABLE_4, ("agents",), EIGHT, ACCURACY), "cifar10",
        {"defense.epsilon": 6.0},
        (_best("Table 4"),
         Ordering("Table 4: 8 agents are more accurate than 128", ACCURACY, "agents", "8",
                  ("128", "16"), {"method": OWN})),
        scales_of(6, {"agents": ("8", "16"), "method": QUICK}, "8 and 16 agents, five methods", 140,
                  460),
    ),
    "adp-vrsgp-table5": _table(
        "Table 5",
        printed(TABLE_5, ("method",), [{"alpha": a} for a in ("0.1", "0.5", "1", "1.5", "2")],
                ACCURACY),
        "cifar10", {"defense.epsilon": 6.0},
        (_best("Table 5"),
         Ordering("Table 5: alpha = 2 is more accurate than 0.1", ACCURACY, "alpha", "2",
                  ("0.1", "0.5"))),
        scales_of(10, {"alpha": ("0.5", "2"), "method": ("MAPA", "DFedSAM", OWN)},
                "alpha of 0.5 and 2, three methods", 150, 45),
    ),
    "adp-vrsgp-table6": _table(
        "Table 6", _alone([{"psi": psi} for psi in ("0.9", "0.95", "0.99", "1")], TABLE_6),
        "cifar10", {"defense.epsilon": 2.0},
        (Ordering("Table 6: psi = 0.99 is the most accurate", ACCURACY, "psi", "0.99"),),
        scales_of(10, {}, "all four", 60, 2),
    ),
    "adp-vrsgp-table7": _table(
        "Table 7", _alone([{"G": g} for g in ("0.01", "0.05", "0.1", "0.5", "1")], TABLE_7),
        "cifar10", {"defense.epsilon": 2.0},
        (Ordering("Table 7: G = 0.1 is the most accurate", ACCURACY, "G", "0.1"),),
        scales_of(10, {}, "all five", 60, 2),
    ),
}  # fmt: skip
