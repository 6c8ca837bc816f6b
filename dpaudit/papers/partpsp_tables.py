"""Tables 2 and 3 of Zhou, Xue and Chen (PartPSP): accuracy by budget, graph and shared layers."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from . import partpsp_published as numbers
from .accuracy import ACCURACY, WORLD, accuracy
from .experiment import ABSENT, Cell, Experiment, Labels, Open, Ordering, Scale, Settings
from .partpsp_figures import LAYERS, PAPER, RESNET_LAYERS, graph_of
from .published import OfLabel, cells_of, printed

GRAPHS: list[Labels] = [{"graph": g} for g in ("EXP", "4-Out", "6-Out", "8-Out")]
VIT_LAYERS: dict[str, Settings] = {
    "1": {"model.name": "vit", "defense.share": ["patches", "class_token"]},
    "2": {"model.name": "vit", "defense.share": ["patches", "class_token", "encoder"]},
    "3": {"model.name": "vit", "defense.share": "all"},
}
COMMON: dict[str, Any] = {
    "data.n_agents": 10,
    "data.partition.kind": "interleaved",
    "defense.batch_size": 100,
}


class Learned(NamedTuple):
    """A network with its data set, as a column of the tables has it."""

    name: str  # in the title
    data: str
    layers: Mapping[str, Settings]  # what is shared: one layer or block, two, all
    epoch: int  # rounds of it
    contraction: tuple[float, float]  # lambda of Section 5.2, by the number of shared layers
    clip: str  # where the L1 clip norm is from


MLP = Learned("MLP on MNIST", "mnist", LAYERS, 60, (0.55, 0.62), "of the MLP none is stated")
RESNET = Learned("ResNet-18 on FMNIST", "fashion-mnist", RESNET_LAYERS, 60, (0.53, 0.7),
                 "of ResNet-18, as printed for Figure 2")  # fmt: skip
VIT = Learned("ViT on CIFAR-10", "cifar10", VIT_LAYERS, 50, (0.55, 0.62), "of the ViT none is "
              "stated")  # fmt: skip


def _partpsp(learned: Learned) -> Settings:
    """Rates decay at the beginning of the 5th and the 10th epoch."""
    return {
        "defense.name": "partpsp",
        "defense.local_learning_rate": 0.1,
        "defense.protocol.estimator": "real",
        "defense.protocol.noise_rate": 0.001,
        "defense.protocol.sync_interval": 4,
        "defense.protocol.decay_at": [4 * learned.epoch + 1, 9 * learned.epoch + 1],
    }


_SECTION_5_2: Settings = {
    "defense.protocol.sensitivity_factor": 0.78,
    "defense.protocol.budget": 5.0,
    "defense.protocol.sync_interval": 5,
}


def _methods(learned: Learned) -> dict[str, Settings]:
    partpsp, layers = _partpsp(learned), learned.layers
    return {
        "PartPSP-1": {**partpsp, **layers["1"]},
        "PartPSP-2": {**partpsp, **layers["2"]},
        "SGPDP": {**partpsp, **layers["3"]},
        "PEDFL": {"model.name": layers["3"]["model.name"], "defense.name": "pedfl"},
    }


def _open(learned: Learned) -> tuple[Open, ...]:
    return (
        Open("data.scale", "unit", "pixels in [0, 1]"),
        Open("defense.n_rounds", 12 * learned.epoch, f"12 epochs of {learned.epoch} rounds"),
        Open("defense.learning_rate", 0.1, "gamma_s, of the authors' code; of PEDFL too"),
        Open("defense.l1_clip_norm", 100.0, f"the L1 clip norm; {learned.clip}"),
    )


def _of_budget(cell: Cell) -> Cell:
    if cell.labels["b"] == "NoDP":
        return cell._replace(settings={**cell.settings, WORLD: "no-defense"})
    key = "defense.budget" if cell.labels["method"] == "PEDFL" else "defense.protocol.budget"
    return cell._replace(settings={**cell.settings, key: float(cell.labels["b"])})


def _table_2(learned: Learned, text: str, orderings: tuple[Ordering, ...],
             scales: Mapping[str, Scale], remarks: tuple[str, ...] = ()) -> Experiment:  # fmt: skip
    published = printed(text, ("method", "b"), GRAPHS, ACCURACY)
    of_column: Mapping[str, OfLabel] = {
        "method": _methods(learned),
        "b": lambda label: {},
        "graph": graph_of,
    }
    return Experiment(
        paper=PAPER,
        table=f"Table 2, {learned.name}",
        shows="test accuracy of partial and full communication by budget b and graph",
        measure=accuracy,
        columns=("method", "b", "graph"),
        cells=tuple(_of_budget(cell) for cell in cells_of(published, of_column)),
        settings=COMMON,
        published=published,
        open=_open(learned),
        orderings=orderings,
        remarks=(
            "The budget is b / gamma_n in each round, between agents and not of a record: 1,000 to "
            "3,000 and more. PEDFL is reconstructed.",
            *remarks,
        ),
        scales=scales,
        data=learned.data,
    )


def _most_accurate(*others: str, b: str) -> Ordering:
    """PartPSP-1 above these, or above all if none is named."""
    over = " and ".join(others) or "all others"
    return Ordering(f"Table 2: PartPSP-1 is more accurate than {over} at b = {b}", ACCURACY,
                    "method", "PartPSP-1", others, {"b": b})  # fmt: skip


def _table_3(learned: Learned, text: str, scales: Mapping[str, Scale],
             remark: str) -> Experiment:  # fmt: skip
    published = printed(
        text, ("sensitivity", "layers"), [{"graph": "2-Out"}, {"graph": "EXP"}], ACCURACY
    )
    common = {**_partpsp(learned), **_SECTION_5_2}
    return Experiment(
        paper=PAPER,
        table=f"Table 3, {learned.name}",
        shows="test accuracy where noise follows the real or the estimated sensitivity",
        measure=accuracy,
        columns=("sensitivity", "layers", "graph"),
        cells=cells_of(
            published,
            {
                "sensitivity": {
                    "real": common,
                    "estimated": {**common, "defense.protocol.estimator": "paper"},
                },
                "layers": {
                    n: {**learned.layers[n], "defense.protocol.contraction": of}
                    for n, of in zip(("1", "2"), learned.contraction, strict=True)
                },
                "graph": graph_of,
            },
        ),
        settings=COMMON,
        published=published,
        open=_open(learned),
        orderings=(
            Ordering("Table 3: the real sensitivity is more accurate", ACCURACY, "sensitivity",
                     "real"),
            Ordering("Table 3: one shared layer is more accurate than two", ACCURACY, "layers",
                     "1"),
        ),
        remarks=(remark,),
        scales=scales,
        data=learned.data,
    )  # fmt: skip


_FEW = {"defense.n_rounds": 60, "defense.protocol.decay_at": ABSENT}
_FEWER = {"defense.n_rounds": 8, "defense.batch_size": 10, "defense.protocol.decay_at": ABSENT}
_FOUR = {**_FEWER, "data.n_agents": 4}
_QUICK_OF_FOUR = {"method": ("PartPSP-1", "SGPDP"), "b": ("3",), "graph": ("EXP",)}
_CUT_OF_FOUR = "8 rounds of batches of 10, four agents, two methods, b of 3, EXP"

PARTPSP_TABLES = {
    "partpsp-table2": _table_2(
        MLP, numbers.TABLE_2_MLP,
        (Ordering("Table 2: PartPSP-1 is more accurate than PartPSP-2 and SGPDP", ACCURACY,
                  "method", "PartPSP-1", ("PartPSP-2", "SGPDP")),
         _most_accurate("PEDFL", b="3"),
         Ordering("Table 2: PartPSP-1 is more accurate at b = 3 than at 1", ACCURACY, "b", "3",
                  ("1",), {"method": "PartPSP-1"})),
        {"quick": Scale(1, 120, 10**9, _FEW, {"b": ("1", "3", "NoDP"), "graph": ("8-Out",)},
                        "60 rounds, b of 1 and 3 and none, 8-Out"),
         "paper": Scale(3, 2900, 10**9)},
    ),
    "partpsp-table2-resnet": _table_2(
        RESNET, numbers.TABLE_2_RESNET,
        (_most_accurate(b="1"), _most_accurate(b="2"),
         _most_accurate("SGPDP", "PEDFL", b="3"),
         Ordering("Table 2: without noise SGPDP is the most accurate", ACCURACY, "method", "SGPDP",
                  where={"b": "NoDP"})),
        {"quick": Scale(1, 150, 2 * 10**9, _FOUR, _QUICK_OF_FOUR, _CUT_OF_FOUR),
         "paper": Scale(3, 3600 * 620, 5 * 10**9)},
        ("ResNet-18 has GroupNorm in the place of BatchNorm, and is random in the beginning; that "
         "of the authors' code was trained on ImageNet.",),
    ),
    "partpsp-table2-vit": _table_2(
        VIT, numbers.TABLE_2_VIT,
        (*(_most_accurate(b=b) for b in ("1", "2", "3")),
         Ordering("Table 2: PartPSP-1 is more accurate at b = 3 than at 1", ACCURACY, "b", "3",
                  ("1",), {"method": "PartPSP-1"})),
        {"quick": Scale(1, 200, 2 * 10**9, _FOUR, _QUICK_OF_FOUR, _CUT_OF_FOUR),
         "paper": Scale(3, 3600 * 250, 3 * 10**9)},
        ("The ViT is random in the beginning; that of the authors' code was trained on CIFAR-10 "
         "before, the data that are to be protected, so that its accuracy is no aim of ours.",),
    ),
    "partpsp-table3": _table_3(
        MLP, numbers.TABLE_3_MLP,
        {"quick": Scale(1, 60, 10**9, _FEW, {"graph": ("2-Out",)}, "60 rounds, 2-Out"),
         "paper": Scale(3, 420, 10**9)},
        "Settings of Section 5.2, as the paper says of Table 3.",
    ),
    "partpsp-table3-resnet": _table_3(
        RESNET, numbers.TABLE_3_RESNET,
        {"quick": Scale(1, 120, 2 * 10**9, _FOUR, {"layers": ("1",), "graph": ("EXP",)},
                        "8 rounds of batches of 10, four agents, one block, EXP"),
         "paper": Scale(3, 3600 * 80, 5 * 10**9)},
        "Settings of Section 5.2, as the paper says of Table 3; the authors' code has C' = 0.8 and "
        "lambda = 0.75 for it. ResNet-18 has GroupNorm, and is random in the beginning.",
    ),
}  # fmt: skip
