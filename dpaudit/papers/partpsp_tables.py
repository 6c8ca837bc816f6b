"""Tables 2 and 3 of Zhou, Xue and Chen (PartPSP): accuracy by budget, graph and shared layers."""

from typing import Any

from .accuracy import ACCURACY, WORLD, accuracy, foretell
from .experiment import ABSENT, Experiment, Labels, Open, Ordering, Scale, Settings
from .partpsp_figures import LAYERS, PAPER, graph_of
from .published import cells_of, printed

GRAPHS: list[Labels] = [{"graph": g} for g in ("EXP", "4-Out", "6-Out", "8-Out")]
TABLE_2_MLP = """
    PartPSP-1, 1 | 41.57 40.63 38.78 43.19
    PartPSP-1, 2 | 44.67 46.25 60.03 81.00
    PartPSP-1, 3 | 48.08 63.51 80.12 88.87
    PartPSP-1, NoDP | 89.66 89.71 89.74 89.75
    PartPSP-2, 1 | 21.66 25.42 28.09 22.03
    PartPSP-2, 2 | 23.33 24.78 25.70 28.68
    PartPSP-2, 3 | 18.84 24.07 34.02 67.26
    PartPSP-2, NoDP | 88.85 88.91 88.95 88.99
    SGPDP, 1 | 29.23 26.68 33.23 22.38
    SGPDP, 2 | 24.89 32.39 25.91 28.31
    SGPDP, 3 | 29.78 26.94 29.34 45.63
    SGPDP, NoDP | 81.55 81.64 81.62 81.62
    PEDFL, 1 | 38.47 34.81 44.72 44.37
    PEDFL, 2 | 42.94 43.55 44.41 44.16
    PEDFL, 3 | 44.17 44.40 44.24 44.22
    PEDFL, NoDP | 84.36 84.36 84.31 84.25
"""
TABLE_3_MLP = """
    real, 1 | 88.50 89.50
    real, 2 | 60.53 61.14
    estimated, 1 | 85.42 84.88
    estimated, 2 | 52.09 53.99
"""
_PARTPSP: Settings = {
    "defense.name": "partpsp",
    "defense.local_learning_rate": 0.1,
    "defense.protocol.estimator": "real",
    "defense.protocol.noise_rate": 0.001,
    "defense.protocol.sync_interval": 4,
    "defense.protocol.decay_at": [241, 541],
}
_SECTION_5_2: Settings = {
    "defense.protocol.sensitivity_factor": 0.78,
    "defense.protocol.budget": 5.0,
    "defense.protocol.sync_interval": 5,
}
METHODS: dict[str, Settings] = {
    "PartPSP-1": {**_PARTPSP, **LAYERS["1"]},
    "PartPSP-2": {**_PARTPSP, **LAYERS["2"]},
    "SGPDP": {**_PARTPSP, **LAYERS["3"]},
    "PEDFL": {"model.name": "mlp-partpsp-2", "defense.name": "pedfl"},
}
COMMON: dict[str, Any] = {
    "data.n_agents": 10,
    "data.partition.kind": "interleaved",
    "defense.batch_size": 100,
}
OPEN = (
    Open("data.scale", "unit", "pixels in [0, 1]"),
    Open("defense.n_rounds", 720, "12 epochs of 60 rounds"),
    Open("defense.learning_rate", 0.1, "gamma_s, of the authors' code; of PEDFL too"),
    Open("defense.l1_clip_norm", 100.0, "the L1 clip norm; of the MLP none is stated"),
)


def _cells_of_table_2(method: str, b: str) -> Settings:
    if b == "NoDP":
        return {WORLD: "no-defense"}
    key = "defense.budget" if method == "PEDFL" else "defense.protocol.budget"
    return {key: float(b)}


_PUBLISHED_2 = printed(TABLE_2_MLP, ("method", "b"), GRAPHS, ACCURACY)
_CELLS_2 = tuple(
    cell._replace(
        settings={**cell.settings, **_cells_of_table_2(cell.labels["method"], cell.labels["b"])}
    )
    for cell in cells_of(
        _PUBLISHED_2, {"method": METHODS, "b": lambda label: {}, "graph": graph_of}
    )
)
_PUBLISHED_3 = printed(
    TABLE_3_MLP, ("sensitivity", "layers"), [{"graph": "2-Out"}, {"graph": "EXP"}], ACCURACY
)
_CELLS_3 = cells_of(
    _PUBLISHED_3,
    {
        "sensitivity": {
            "real": {**_PARTPSP, **_SECTION_5_2},
            "estimated": {**_PARTPSP, **_SECTION_5_2, "defense.protocol.estimator": "paper"},
        },
        "layers": {
            "1": {**LAYERS["1"], "defense.protocol.contraction": 0.55},
            "2": {**LAYERS["2"], "defense.protocol.contraction": 0.62},
        },
        "graph": graph_of,
    },
)
PARTPSP_TABLES = {
    "partpsp-table2": Experiment(
        paper=PAPER,
        table="Table 2, MLP on MNIST",
        shows="test accuracy of partial and full communication by budget b and graph",
        measure=accuracy,
        foretell=foretell,
        columns=("method", "b", "graph"),
        cells=_CELLS_2,
        settings=COMMON,
        published=_PUBLISHED_2,
        open=OPEN,
        orderings=(
            Ordering("Table 2: PartPSP-1 is more accurate than PartPSP-2 and SGPDP", ACCURACY,
                     "method", "PartPSP-1", ("PartPSP-2", "SGPDP")),
            Ordering("Table 2: PartPSP-1 is more accurate than PEDFL at b = 3", ACCURACY, "method",
                     "PartPSP-1", ("PEDFL",), {"b": "3"}),
            Ordering("Table 2: PartPSP-1 is more accurate at b = 3 than at 1", ACCURACY, "b", "3",
                     ("1",), {"method": "PartPSP-1"}),
        ),
        remarks=(
            "The budget is b / gamma_n in each round, between agents and not of a record: 1,000 to "
            "3,000 and more. PEDFL is reconstructed. ResNet-18 on FMNIST and ViT on CIFAR-10 of "
            "this table are not declared.",
        ),
        scales={
            "quick": Scale(1, 120, 10**9,
                           {"defense.n_rounds": 60, "defense.protocol.decay_at": ABSENT},
                           {"b": ("1", "3", "NoDP"), "graph": ("8-Out",)},
                           "60 rounds, b of 1 and 3 and none, 8-Out"),
            "paper": Scale(3, 2900, 10**9),
        },
        data="mnist",
    ),
    "partpsp-table3": Experiment(
        paper=PAPER,
        table="Table 3, MLP on MNIST",
        shows="test accuracy where noise follows the real or the estimated sensitivity",
        measure=accuracy,
        foretell=foretell,
        columns=("sensitivity", "layers", "graph"),
        cells=_CELLS_3,
        settings=COMMON,
        published=_PUBLISHED_3,
        open=OPEN,
        orderings=(
            Ordering("Table 3: the real sensitivity is more accurate", ACCURACY, "sensitivity",
                     "real"),
            Ordering("Table 3: one shared layer is more accurate than two", ACCURACY, "layers",
                     "1"),
        ),
        remarks=("Settings of Section 5.2, as the paper says of Table 3.",),
        scales={
            "quick": Scale(1, 60, 10**9,
                           {"defense.n_rounds": 60, "defense.protocol.decay_at": ABSENT},
                           {"graph": ("2-Out",)}, "60 rounds, 2-Out"),
            "paper": Scale(3, 420, 10**9),
        },
        data="mnist",
    ),
}  # fmt: skip
