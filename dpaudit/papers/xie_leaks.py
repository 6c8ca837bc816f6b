"""Table 4 of Xie, Liu and Chai round by round: what each method tells of agent 1's gradient."""

from collections.abc import Iterator

from dpaudit.rng import Streams

from .experiment import (
    Around,
    Cell,
    Experiment,
    Measured,
    Open,
    Ordering,
    Published,
    Scale,
    Settings,
)
from .xie_figures import PAPER
from .xie_table4 import DATA_SCALE, PUBLISHED, Random, TableScale, table_row

M_NMI = "M-NMI"
BITS = "information, bits"
RESIDUAL = "residual after the last round"
READINGS: dict[str, Random] = {
    "agent 1": "agent 1",
    "all agents": "all agents",
    "noise": "noise alone",
}


def leaks(settings: Settings, seed: int, around: Around) -> Iterator[Measured]:
    """M-NMI of each view, its information by round, and the residual."""
    published = next(p for p in PUBLISHED if p.method == settings["method"])
    scale = TableScale(settings["trials"], settings["n_rounds"], settings["estimated"], 0, 0)
    row = table_row(published, scale, Streams(seed), settings["random"])
    yield Measured(RESIDUAL, row.residual)
    for view, found in row.found.items():
        if found is None:  # ciphertexts alone
            yield Measured(M_NMI, 0.0, labels={"view": view})
            continue
        yield Measured(M_NMI, found.m_nmi, labels={"view": view})
        for k, bits in zip(row.rounds[view], found.per_round, strict=True):
            yield Measured(BITS, float(bits), k, {"view": view})


def _published() -> Iterator[Published]:
    """Beside our reading of what is random, agent 1's measurements; (44) is of both attackers."""
    for row in PUBLISHED:
        at = {"method": row.method, "random": "agent 1"}
        yield Published(at, RESIDUAL, row.accuracy)
        views = {"curious": row.curious, "eavesdropper": row.eavesdropper}
        if row.method.startswith("Algorithm 1"):
            views = {"(44) as printed": row.curious, "(44) corrected": row.curious}
        for view, value in views.items():
            yield Published({**at, "view": view}, M_NMI, value)


_PRINTED = {"view": "(44) as printed"}

XIE_LEAKS = {
    "xie-table4-rounds": Experiment(
        paper=PAPER,
        table="Table 4, with information by round",
        shows="M-NMI and accuracy of three families of methods, one unknown, three agents",
        measure=leaks,
        columns=("view", "method", "random"),
        cells=tuple(
            Cell({"method": row.method, "random": name}, {"method": row.method, "random": random})
            for row in PUBLISHED
            for name, random in READINGS.items()
        ),
        published=tuple(_published()),
        settings={"trials": 5000, "n_rounds": 1000},
        open=(
            Open("estimated", 1000, "rounds at which information is estimated, even in log k"),
        ),
        orderings=(
            Ordering("Table 4: M-NMI is larger at epsilon = 10 than at 1 and 0.1", M_NMI, "method",
                     "Algorithm 1, epsilon = 10",
                     ("Algorithm 1, epsilon = 1", "Algorithm 1, epsilon = 0.1"),
                     {**_PRINTED, "random": "agent 1"}),
            Ordering("Table 4: M-NMI is larger at epsilon = 1 than at 0.1", M_NMI, "method",
                     "Algorithm 1, epsilon = 1", ("Algorithm 1, epsilon = 0.1",),
                     {**_PRINTED, "random": "agent 1"}),
            Ordering("Table 4: correlated randomness tells an eavesdropper more than its "
                     "neighbour", M_NMI, "view", "eavesdropper", ("curious",),
                     {"method": "correlated randomness", "random": "agent 1"}),
            Ordering("Table 4: the residual is smaller at a larger budget", RESIDUAL, "method",
                     "Algorithm 1, epsilon = 0.1",
                     ("Algorithm 1, epsilon = 1", "Algorithm 1, epsilon = 10"),
                     {"random": "agent 1"}),
        ),
        remarks=(
            f"Measurements are M_i uniform on [0, {DATA_SCALE:g}], weights 1/3; what is random "
            "over trials besides noise and initial models is a column, as the paper does not say. "
            "M-NMI divides by an estimate of I(V; V), which grows with the number of trials. "
            "xie-table4 has intervals and p-values of one seed.",
        ),
        scales={
            "quick": Scale(3, 60, 10**9, {"trials": 1000, "estimated": 12},
                           {"random": ("agent 1",)}, "1,000 trials, 12 rounds, one reading"),
            "paper": Scale(3, 1200, 10**9),
        },
        at="round",
    )
}  # fmt: skip
