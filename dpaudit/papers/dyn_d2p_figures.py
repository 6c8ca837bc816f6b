"""Figures of Zhu, Huang, Wang, Ji and Xu (Dyn-D2P): convergence, gradient norms, decays, graphs."""

from collections.abc import Iterator, Mapping
from statistics import fmean

from .accuracy import ACCURACY, CURVE, RECORDS, accuracy
from .convergence import LOSS, convergence, played
from .dyn_d2p_tables import (
    CNN,
    COMMON,
    FEW,
    METHODS,
    OF_COLUMN,
    OPEN_1,
    OPEN_2,
    PAPER,
    REMARKS,
    RESNET,
    SHALLOW,
    TABLE_1,
    TABLE_2,
    published,
)
from .experiment import Around, Cell, Experiment, Measured, Open, Ordering, Scale, Settings
from .published import cells_of

NORM = "norm of the stochastic gradient, mean over agents"
TENTH = "norm of the stochastic gradient, mean over a tenth of the rounds"
FIRST, LAST = {"rounds": "first tenth"}, {"rounds": "last tenth"}
WINDOWS = 20  # points of its curve, each the mean of the rounds since the one before


def gradient_norms(settings: Settings, seed: int, around: Around) -> Iterator[Measured]:
    """How long the gradients are that agents step by, as training goes on."""
    norms = [
        round.private["gradient"].norm(dim=-1).mean().item()
        for round in played(settings, seed, around)
    ]
    width, tenth = max(1, len(norms) // WINDOWS), max(1, len(norms) // 10)
    for end in range(width, len(norms) + 1, width):
        yield Measured(NORM, fmean(norms[end - width : end]), at=end)
    yield Measured(TENTH, fmean(norms[:tenth]), labels=FIRST)
    yield Measured(TENTH, fmean(norms[-tenth:]), labels=LAST)


FIGURE_1 = Experiment(
    paper=PAPER,
    table="Figure 1",
    shows="the norm of stochastic gradients by round, four agents without noise",
    measure=gradient_norms,
    columns=("rounds",),
    cells=(Cell({}, METHODS["Non-private"]),),
    settings={**COMMON, **RESNET, "data.n_agents": 4},
    open=(
        Open("defense.n_rounds", 10_000, "rounds"),
        Open("defense.batch_size", 1, "one record a round, as Algorithm 1 has it"),
    ),
    orderings=(
        Ordering("Figure 1, in words: gradients are longer in the beginning than in the end", TENTH,
                 "rounds", "first tenth", ("last tenth",)),
    ),
    remarks=(
        "The paper draws the norm of each agent beside a constant clip norm that it does not name; "
        "ResNet-18 has GroupNorm in the place of BatchNorm.",
    ),
    scales={
        "quick": Scale(1, 30, 10**9, SHALLOW,
                       cut="300 rounds of 4 records, the shallow CNN of Table 2"),
        "paper": Scale(5, 3600 * 16, 3 * 10**9),
    },
    at="round",
    data="cifar10",
)  # fmt: skip


def _ends(figures: str) -> tuple[Ordering, ...]:
    """What the text says of the curves, which end in the numbers of the table."""
    private = ("Const-D2P", "Dyn[mu]-D2P", "Dyn[C]-D2P")
    return (
        Ordering(f"{figures}, in words: Const-D2P ends least accurate", CURVE, "method", "",
                 ("Const-D2P",)),
        Ordering(f"{figures}, in words: Dyn-D2P ends most accurate of the private methods", CURVE,
                 "method", "Dyn-D2P", private),
        Ordering(f"{figures}, in words: Const-D2P ends at the largest training loss", LOSS,
                 "method", "Const-D2P"),
    )  # fmt: skip


def _convergence(figures: str, table: str, text: str, data: str, model: Settings,
                 open_: tuple[Open, ...], scales: Mapping[str, Scale]) -> Experiment:  # fmt: skip
    ends = tuple(p for p in published(table, text) if p.labels["epsilon"] != "0.7")
    return Experiment(
        paper=PAPER,
        table=figures,
        shows="training loss and test accuracy by round of five methods",
        measure=convergence,
        columns=("method", "epsilon"),
        cells=cells_of(ends, OF_COLUMN),
        settings={**COMMON, **model},
        published=ends,
        open=open_,
        orderings=_ends(figures),
        remarks=(
            *REMARKS,
            f"The curves are drawn; the published numbers are those of {table}, in which they end.",
        ),
        scales=scales,
        at="round",
        data=data,
    )


RATES = ("0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8")  # of 1 / rho_c and of 1 / rho_mu
CONSTANT = "Const-D2P"


def _rates(rho_c: str, rho_mu: str) -> Cell:
    settings = {"defense.clip_decay": 1 / float(rho_c), "defense.budget_growth": 1 / float(rho_mu)}
    return Cell({"decays": f"{rho_c} x {rho_mu}"}, {**METHODS["Dyn-D2P"], **settings})


_DECAYS = (
    Cell({"decays": CONSTANT}, {**METHODS[CONSTANT], "defense.clip_norm": 1.0}),
    *(_rates(rho_c, rho_mu) for rho_c in RATES for rho_mu in RATES),
)
FIGURE_4 = Experiment(
    paper=PAPER,
    table="Figure 4",
    shows="test accuracy of Dyn-D2P by its decays of clip norms and noise, and of constant noise",
    measure=accuracy,
    columns=("epsilon", "decays"),
    cells=tuple(
        Cell({"epsilon": epsilon, **cell.labels},
             {**cell.settings, "defense.epsilon": float(epsilon)})
        for epsilon in ("0.3", "0.7", "1", "3")
        for cell in _DECAYS
    ),
    settings={**COMMON, **CNN},
    open=(
        Open("defense.n_rounds", 10_000, "K"),
        Open("defense.batch_size", 1, "one record a round"),
        Open("defense.sampling", "poisson", "as its accountant has it"),
        Open("defense.clip_norm", 4.0, "C_0 of Table 2; of Const-D2P C-bar = 1, of its grid"),
    ),
    orderings=(
        Ordering("Figure 4, in words: Dyn-D2P is more accurate than Const-D2P at all decays",
                 ACCURACY, "decays", "", (CONSTANT,)),
    ),
    remarks=(
        "Decays: 1 / rho_c x 1 / rho_mu. Neither the network nor the budgets of Figure 4 are in "
        "its text: here those of Table 2. The paper draws it and prints no number.",
    ),
    scales={
        "quick": Scale(1, 60, 10**9, {**FEW, "defense.n_rounds": 200},
                       {"epsilon": ("0.3",),
                        "decays": (CONSTANT, "0.1 x 0.1", "0.5 x 0.5", "0.8 x 0.8")},
                       "200 rounds of 4 expected records, epsilon of 0.3, three pairs of decays"),
        "paper": Scale(5, 3600 * 130, 2 * 10**9),
    },
    data="fashion-mnist",
)  # fmt: skip

GRAPHS: dict[str, Settings] = {
    "ring": {"graph.name": "directed-ring"},
    "exponential": {"graph.name": "exponential"},
    "complete": {"graph.name": "complete"},
}
_A, _B = {"panel": "a"}, {"panel": "b"}
FIGURE_5 = Experiment(
    paper=PAPER,
    table="Figure 5",
    shows="test accuracy by round of Dyn-D2P at epsilon = 1: (a) by graph, (b) by number of agents",
    measure=convergence,
    columns=("of", "panel"),
    cells=(
        *(Cell({"of": f"{graph} graph", **_A}, own) for graph, own in GRAPHS.items()),
        *(
            Cell({"of": f"{n} agents", **_B},
                 {**GRAPHS["exponential"], "data.n_agents": n, RECORDS: 1250})
            for n in (10, 20, 30, 40)
        ),
    ),
    settings={**COMMON, **RESNET, **METHODS["Dyn-D2P"], "defense.epsilon": 1.0},
    open=(
        Open("defense.n_rounds", 10_000, "K"),
        Open("defense.batch_size", 1, "one record a round"),
        Open("defense.sampling", "poisson", "as its accountant has it"),
        Open("defense.clip_norm", 7.0, "C_0 of Table 1"),
        Open("defense.clip_decay", 2.0, "of the grid of Table 1"),
        Open("defense.budget_growth", 2.0, "of the grid of Table 1"),
    ),
    orderings=(
        Ordering("Figure 5(a), in words: a ring is least accurate", CURVE, "of", "",
                 ("ring graph",), _A),
        Ordering("Figure 5(a), in words: a complete graph is most accurate", CURVE, "of",
                 "complete graph", where=_A),
        Ordering("Figure 5(b), in words: more agents are more accurate: 40 of all", CURVE,
                 "of", "40 agents", where=_B),
        Ordering("Figure 5(b), in words: more agents are more accurate: 10 least", CURVE,
                 "of", "", ("10 agents",), _B),
    ),
    remarks=(
        "The paper draws curves and prints no number. In (b) each agent has 1,250 records whatever "
        "their number; which numbers it has beside 40 is not in its text.",
    ),
    scales={
        "quick": Scale(1, 200, 10**9, {**SHALLOW, "defense.n_rounds": 49, RECORDS: 400},
                       {"of": (*(f"{graph} graph" for graph in GRAPHS), "10 agents", "40 agents")},
                       "49 rounds of 4 expected records of 400, the shallow CNN of Table 2"),
        "paper": Scale(5, 3600 * 660, 13 * 10**9),
    },
    at="round",
    data="cifar10",
)  # fmt: skip

_SHORT = {"epsilon": ("0.3", "none")}
DYN_D2P_FIGURES = {
    "dyn-d2p-figure1": FIGURE_1,
    "dyn-d2p-figures6-8": _convergence(
        "Figures 2 and 6 to 8", "Table 1", TABLE_1, "cifar10", RESNET, OPEN_1,
        {"quick": Scale(1, 150, 10**9, {**SHALLOW, "defense.n_rounds": 105}, _SHORT,
                        "105 rounds of 4 expected records, epsilon of 0.3, the shallow CNN of "
                        "Table 2"),
         "paper": Scale(5, 3600 * 1100, 7 * 10**9)},
    ),
    "dyn-d2p-figures9-11": _convergence(
        "Figures 3 and 9 to 11", "Table 2", TABLE_2, "fashion-mnist", CNN, OPEN_2,
        {"quick": Scale(1, 200, 10**9, {**FEW, "defense.n_rounds": 105}, _SHORT,
                        "105 rounds of 4 expected records, epsilon of 0.3"),
         "paper": Scale(5, 3600 * 7, 2 * 10**9)},
    ),
    "dyn-d2p-figure4": FIGURE_4,
    "dyn-d2p-figure5": FIGURE_5,
}  # fmt: skip
