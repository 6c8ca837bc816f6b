"""Figures 4 to 6 of Wu, Liu, Wang, Yang and Yu (ADP-VRSGP): learning rates, fusion, budgets."""

from collections.abc import Mapping

from .accuracy import ACCURACY, CURVE, accuracy, curve
from .adp_vrsgp_tables import (
    COMMON,
    METHODS,
    MODELS,
    OF_RESNET,
    OPEN,
    OUTSIDE,
    OWN,
    PAPER,
    scales_of,
)
from .experiment import Experiment, Open, Ordering, Settings
from .published import grid

RATES = {
    "p* less 0.1": -0.1,
    "p* less 0.05": -0.05,
    "p*": 0.0,
    "p* plus 0.05": 0.05,
    "p* plus 0.1": 0.1,
}
LEVELS = (0.2, 0.25, 0.3)  # s
THETAS = ("0", "0.1", "0.3", "0.5", "0.7", "0.9")
_READ = ("data.partition.alpha", "defense.clip_norm", "defense.step_scale", "defense.clip",
         "defense.sigma_follows_clip")  # fmt: skip
_OPEN = tuple(
    one._replace(where={})
    for one in OPEN
    if one.key in _READ and one.where.get("method", OWN) == OWN
)
_SHORT = {"defense.n_rounds": 300}
_ALWAYS = "{}, in words: fusing gradients is more accurate than theta = 0"


def _epsilons(*labels: str) -> dict[str, Settings]:
    return {label: {"defense.epsilon": float(label)} for label in labels}


def _exponents(s: float) -> dict[str, Settings]:
    """Of Theorem 2, p* = 1/2 - 2 s, and others."""
    return {
        label: {"defense.step_exponent": round(1 / 2 - 2 * s + off, 2)}
        for label, off in RATES.items()
    }


FIGURE_4 = Experiment(
    paper=PAPER,
    table="Figure 4",
    shows="test accuracy by round, by the exponent p of the step size and the decay s of noise",
    measure=curve,
    columns=("p", "s"),
    cells=tuple(
        cell
        for s in LEVELS
        for cell in grid({"p": _exponents(s), "s": {f"{s:g}": {"defense.noise_growth": s}}})
    ),
    settings={**COMMON, **METHODS[OWN], "defense.epsilon": 6.0},
    open=(
        Open("defense.n_rounds", 1000, "T, as printed for the tables"),
        *_OPEN,
    ),
    orderings=(
        Ordering("Figure 4, in words: p* is more accurate than other exponents", CURVE, "p", "p*"),
        Ordering("Figure 4, in words: p* = 0 and -0.1 are more accurate than 0.1", CURVE, "s", "",
                 ("0.2",), {"p": "p*"}),
    ),
    remarks=(
        "p* = 1/2 - 2 s is 0.1, 0 and -0.1 at s = 0.2, 0.25 and 0.3. A smaller p has a larger "
        "learning rate. The paper draws curves and prints no number.",
        OUTSIDE,
    ),
    scales=scales_of(7, {"p": ("p* less 0.1", "p*", "p* plus 0.1"), "s": ("0.2", "0.3")},
                     "s of 0.2 and 0.3, three exponents", 100, 6),
    at="round",
    data="cifar10",
)  # fmt: skip


def _figure_5(data: str, gains: str, hours: float, few: int) -> Experiment:
    return Experiment(
        paper=PAPER,
        table=f"Figure 5, {data}",
        shows=f"test accuracy by theta, budget and network on {data}",
        measure=accuracy,
        columns=("theta", "epsilon", "model"),
        cells=grid(
            {
                "theta": {theta: {"defense.fusion": float(theta)} for theta in THETAS},
                "epsilon": _epsilons("0.5", "1", "2"),
                "model": MODELS,
            }
        ),
        settings={**COMMON, **METHODS[OWN], **_SHORT},
        open=_OPEN,
        orderings=(
            Ordering(_ALWAYS.format("Figure 5"), ACCURACY, "theta", "", ("0",)),
            Ordering("Figure 5, in words: theta = 0.5 is more accurate than 0.1 and 0.9", ACCURACY,
                     "theta", "0.5", ("0.1", "0.9")),
        ),
        remarks=(
            "The paper draws Figure 5. In words theta = 0.5 gains over theta = 0, at epsilon = "
            f"0.5, 1 and 2: {gains} points on {data}; its budgets are named for MNIST.",
            *OF_RESNET,
            OUTSIDE,
        ),
        scales=scales_of(few, {"model": ("CNN",), "theta": ("0", "0.5", "0.9"),
                               "epsilon": ("0.5", "2")},
                         "the CNN, three thetas, epsilon of 0.5 and 2", 100, hours),
        data=data,
    )  # fmt: skip


PLATEAUS: Mapping[str, Settings] = {  # theta, and the tau that Remark 1 of the paper has for it
    "0": {"defense.fusion": 0.0},
    "0.3": {"defense.fusion": 0.3, "defense.tau": 12},
    "0.5": {"defense.fusion": 0.5, "defense.tau": 6},
}


def _figure_6(data: str, hours: float, few: int) -> Experiment:
    return Experiment(
        paper=PAPER,
        table=f"Figure 6, {data}",
        shows=f"test accuracy by budget, with and without fused gradients, on {data}",
        measure=accuracy,
        columns=("theta", "epsilon"),
        cells=grid(
            {
                "theta": PLATEAUS,
                "epsilon": _epsilons("0.3", "0.4", "0.7", "1", "1.5", "2", "4", "6"),
            }
        ),
        settings={**COMMON, **METHODS[OWN]},
        open=(Open("defense.n_rounds", 300, "T of Figure 5; of Figure 6 none is named"), *_OPEN),
        orderings=(
            Ordering(_ALWAYS.format("Figure 6"), ACCURACY, "theta", "", ("0",)),
            Ordering(
                "Figure 6: a budget of 6 is more accurate than one of 0.3",
                ACCURACY,
                "epsilon",
                "6",
                ("0.3",),
            ),
        ),
        remarks=(
            "The paper draws Figure 6 and prints no number; that its network is the CNN, it does "
            "not say. Fused gradients are said to gain the more, the smaller the budget.",
            OUTSIDE,
        ),
        scales=scales_of(few, {"epsilon": ("0.3", "6")}, "epsilon of 0.3 and 6", 100, hours),
        data=data,
    )


ADP_VRSGP_FIGURES = {
    "adp-vrsgp-figure4": FIGURE_4,
    "adp-vrsgp-figure5": _figure_5("mnist", "2.5 to 8.7, 1.9 to 6.3 and 1.1 to 1.9", 40, 30),
    "adp-vrsgp-figure5-fashion": _figure_5(
        "fashion-mnist", "5.6 to 8.6, 3.6 to 2.8 and 2.4 to 2.8", 40, 30
    ),
    "adp-vrsgp-figure5-cifar": _figure_5(
        "cifar10", "6.5 to 8.5, 6.0 to 6.8 and 5.7 to 6.3", 55, 10
    ),
    "adp-vrsgp-figure6": _figure_6("fashion-mnist", 0.5, 30),
    "adp-vrsgp-figure6-cifar": _figure_6("cifar10", 3, 10),
}
