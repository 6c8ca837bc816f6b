"""Tables III and IV and Figures 5 and 6 of DPDL: images that gradient inversion reconstructs.

Each cell is an ordinary audit with gradient inversion on a cross-gradient (CG) and on the change of
the momentum (MM), with the noise and without it (ND); its own report shows the images.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from dpaudit.attack.contract import World
from dpaudit.files.config import AuditConfig
from dpaudit.files.finding import Name
from dpaudit.pipeline.caller_objects import NOTHING
from dpaudit.pipeline.run import Runtime, run_audit

from . import dpdl_published as numbers
from .accuracy import nested
from .dpdl_tables import GRAPHS, PAPER, SIZES
from .experiment import (
    Around,
    Experiment,
    Labels,
    Measured,
    Open,
    Ordering,
    Published,
    Scale,
    Settings,
)
from .image_table import Scenario, Scored, blind, scored
from .published import OfLabel, cells_of, printed

MSE, PSNR, SSIM = "MSE", "PSNR, dB", "SSIM x 100"
NAMED = ((MSE, Name.MSE, 1.0), (PSNR, Name.PSNR, 1.0), (SSIM, Name.SSIM, 100.0))
MESSAGES = {"CG": "cross_gradient", "MM": "momentum-difference"}
WORLDS: dict[str, World] = {"ND": "no-defense", "DPDL": "defense"}
SCENARIOS = tuple(
    Scenario(f"{prefix}-{kind}", message, world)
    for prefix, world in WORLDS.items()
    for kind, message in MESSAGES.items()
)
COLUMNS: list[Labels] = [
    {"graph": graph, "N": n} for graph in ("ring", "bipartite", "complete") for n in SIZES
]


def images(settings: Settings, seed: int, around: Around) -> Iterator[Measured]:
    """Scores of each scenario, the mean over targets, in the last attacked round and by round.

    Raises:
        DpauditError: the audit cannot be run.
    """
    config = _config(settings, seed)
    folder = around.run.path / "audits" / f"{around.stage}-{around.run.binding[:8]}"
    result = run_audit(
        config,
        folder,
        Runtime(cores=1),
        resume=(folder / "run.json").exists(),
        on_progress=lambda what, done, total: around.on_progress(
            f"{around.stage}: {what}", done, total
        ),
        own=replace(NOTHING, data=around.dataset),
    )
    rounds = sorted(settings["attack.rounds"])
    for scenario in SCENARIOS:
        label = {"scenario": scenario.name}
        found = {k: scored(result.findings, scenario, (k,)) for k in rounds}
        yield from _scores(found[rounds[-1]], label, None)
        for k in rounds if len(rounds) > 1 else ():
            yield from _scores(found[k], label, k)
    guess = blind(result.findings, MESSAGES["CG"], (rounds[-1],))
    yield from _scores(guess, {"scenario": "blind guess"}, None)


def _config(settings: Settings, seed: int) -> AuditConfig:
    table = nested(settings)
    options = {**table.pop("attack"), "name": "gradient-inversion", "batch_sizes": ["training"]}
    attacks = [{**options, "message": message} for message in MESSAGES.values()]
    return AuditConfig.from_dict({**table, "seed": seed, "attack": attacks})


def _scores(found: Scored, labels: Labels, at: int | None) -> Iterator[Measured]:
    for quantity, name, times in NAMED if found.batches else ():
        yield Measured(quantity, times * float(found.scores[name].mean()), at, labels)


def _published(tables: Mapping[str, str]) -> tuple[Published, ...]:
    return tuple(
        number
        for quantity, text in tables.items()
        for number in printed(text, ("scenario",), COLUMNS, quantity)
    )


def _orderings(table: str) -> tuple[Ordering, ...]:
    return (
        Ordering(f"{table}: MSE is larger under DPDL's noise, CG", MSE, "scenario", "DPDL-CG",
                 ("ND-CG",)),
        Ordering(f"{table}: MSE is larger under DPDL's noise, MM", MSE, "scenario", "DPDL-MM",
                 ("ND-MM",)),
        Ordering(f"{table}: an attack without noise is better than a blind guess, which the paper "
                 "does not show, CG", PSNR, "scenario", "ND-CG", ("blind guess",)),
        Ordering("the same, MM", PSNR, "scenario", "ND-MM", ("blind guess",)),
    )  # fmt: skip


_OF_COLUMN: Mapping[str, OfLabel] = {
    "graph": {
        name: {**own, "defense.calibration": 2.0 if name == "ring" else 1.5}
        for name, own in GRAPHS.items()
    },
    "N": lambda label: {"data.n_agents": int(label)},
}
_OPEN = (
    Open("defense.n_rounds", 800, "T; the last attacked round"),
    Open("defense.delta", 1e-5, "delta"),
    Open("defense.c2", 2.0, "c2 of (23)"),
    Open("defense.h", 2.0, "h of (23), which depends on data and noise"),
    Open("data.partition.alpha", 1.0, "alpha_d, of the two that the paper has"),
    Open("defense.batch_size", 8, "the paper trains with 216 and shows single images"),
    Open("attack.targets", 10, "batches attacked in a round, of one agent each"),
    Open("attack.rounds", [800], "of the tables; Figures 5 and 6 have 200, 400 and 800"),
)
_REMARKS = (
    "The paper names neither its attack nor its settings; ours is gradient inversion with what it "
    "chooses by itself. The images of each cell are in report.html of its audit, in audits/.",
)


def _table(table: str, tables: Mapping[str, str], data: str, own: Mapping[str, Any],
           scales: Mapping[str, Scale]) -> Experiment:  # fmt: skip
    published = _published(tables)
    return Experiment(
        paper=PAPER,
        table=table,
        shows="images that gradient inversion reconstructs, in four scenarios",
        measure=images,
        columns=("scenario", "graph", "N"),
        cells=cells_of(published, _OF_COLUMN),
        settings={
            "data.partition.kind": "dirichlet",
            "defense.name": "dpdl",
            "defense.sampling": "fixed",  # as the algorithm box has it
            "defense.momentum": 0.7,
            **own,
        },
        published=published,
        open=_OPEN,
        orderings=_orderings(table.partition(" and")[0]),
        remarks=_REMARKS,
        scales=scales,
        at="round",
        data=data,
    )


_FEW = {
    "defense.n_rounds": 20,
    "defense.batch_size": 1,
    "attack.rounds": [20],
    "attack.targets": 2,
    "attack.iterations": 100,
    "attack.restarts": 1,
}
_QUICK = Scale(
    1,
    200,
    2 * 10**9,
    _FEW,
    {"graph": ("bipartite",), "N": ("10",)},
    "round 20 of 20, batches of 1, 2 targets, 100 iterations, N = 10, bipartite",
)

DPDL_IMAGES = {
    "dpdl-table3-all": _table(
        "Table III and Figure 5",
        {
            MSE: numbers.TABLE_III_MSE,
            PSNR: numbers.TABLE_III_PSNR,
            SSIM: numbers.TABLE_III_SSIM,
        },
        "mnist",
        {
            "model.name": "lenet",
            "defense.learning_rate": 0.005,
            "defense.clip_norm": 2.0,
            "defense.epsilon": 0.5,
        },
        {"quick": _QUICK, "paper": Scale(3, 3600 * 2, 3 * 10**9)},
    ),
    "dpdl-table4": _table(
        "Table IV and Figure 6",
        {MSE: numbers.TABLE_IV_MSE, PSNR: numbers.TABLE_IV_PSNR, SSIM: numbers.TABLE_IV_SSIM},
        "cifar10",
        {
            "model.name": "cnn-dpdl",
            "defense.learning_rate": 0.03,
            "defense.clip_norm": 3.0,
            "defense.epsilon": 4.0,
        },
        {"quick": _QUICK, "paper": Scale(3, 3600 * 7, 4 * 10**9)},
    ),
}
