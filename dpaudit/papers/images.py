"""Images that gradient inversion reconstructs from messages of DPDL (Yuan et al., Tables III, IV).

Each cell is an ordinary audit with gradient inversion on several messages, with the noise (DPDL)
and without it (ND); its own report shows the images. A scenario is a world and a message, "ND-CG".
Settings beside those of an audit file:

    images.messages  which of ``MESSAGES`` are attacked
    images.rounds    "all" of ``attack.rounds``, the "last" of them, or "none": then only what the
                     noise leaves is computed
    images.pooled    how many of the last rounds one row of the table has
    images.gains     whether decibels above other scenarios are given, and what the noise leaves
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.attack.blind_success import bits, together, without_prior
from dpaudit.attack.contract import World
from dpaudit.attack.image_metrics import RANGES, Estimate, interval
from dpaudit.defense.contract import Defense, Setting
from dpaudit.files.config import AuditConfig
from dpaudit.files.finding import Column, Finding, Name, Role
from dpaudit.files.result import AuditResult
from dpaudit.game.estimating.estimate import LinearWindow
from dpaudit.pipeline.caller_objects import NOTHING, CallerObjects
from dpaudit.pipeline.run import Runtime, prepare, run_audit

from .experiment import CellContext, Labels, MeasuredNumber, Settings
from .learning import ACCURACY, nested

Numbers = NDArray[np.float64]
MSE, PSNR, SSIM = "MSE", "PSNR, dB", "SSIM x 100"
SCORES = ((MSE, Name.MSE, 1.0), (PSNR, Name.PSNR, 1.0), (SSIM, Name.SSIM, 100.0))
BLIND = "blind guess"
ABOVE_BLIND = f"dB above the {BLIND}"
BETTER = f"batches above the {BLIND}, %"
MESSAGES = {  # of the tables, and what an attacker who knows the algorithm better inverts
    "CG": "cross_gradient",
    "MM": "momentum-difference",
    "MM-exact": "momentum-exact",
    "MM-strip": "momentum-stripped",
    "view": "view",
}
WORLDS: Mapping[str, World] = {"ND": "no-defense", "DPDL": "defense"}
BASELINES = {  # of what an attacker who knows the algorithm better gains, in which scenario
    "ND-MM-exact": "ND-MM",
    "ND-MM-strip": "ND-MM",
    "ND-view": "ND-CG",
    "DPDL-MM-exact": "DPDL-MM",
    "DPDL-MM-strip": "DPDL-CG",
    "DPDL-view": "DPDL-CG",
}


@dataclass(frozen=True)
class ImageScores:
    """Scores of one scenario, one for each batch that was attacked."""

    batches: list[tuple[int, int]]  # round, victim
    scores: dict[Name, Numbers]

    def above(self, other: "ImageScores") -> Numbers:
        """Decibels above another scenario, for each batch that both attacked."""
        place = {batch: i for i, batch in enumerate(other.batches)}
        pairs = [(i, place[batch]) for i, batch in enumerate(self.batches) if batch in place]
        own, others = (list(rows) for rows in zip(*pairs, strict=True))
        return self.scores[Name.PSNR][own] - other.scores[Name.PSNR][others]


def images(settings: Settings, seed: int, context: CellContext) -> Iterator[MeasuredNumber]:
    """Scores of each scenario in the last attacked rounds and, if there are several, in each round.

    Of one run the interval is over its batches.

    Raises:
        DpauditError: the audit cannot be run.
    """
    config, options = _config(settings, seed)
    own = replace(NOTHING, data=context.dataset)
    if options["gains"]:
        yield from _noise_limits(config, Runtime(cores=1), own)
    if not config.attack:
        return
    folder = context.run.path / "audits" / f"{context.stage}-{context.run.binding[:8]}"
    result = run_audit(
        config,
        folder,
        Runtime(cores=1),
        resume=(folder / "run.json").exists(),
        on_progress=lambda what, done, total: context.on_progress(
            f"{context.stage}: {what}", done, total
        ),
        own=own,
    )
    rounds = sorted(config.attack[0].options["rounds"])
    groups = [(None, tuple(rounds[-options["pooled"] :]))]
    groups += [(k, (k,)) for k in rounds if len(rounds) > 1]
    for at, group in groups:
        yield from _measured(result, group, at, options)
    if options["gains"]:
        for prefix, world in WORLDS.items():
            share = 100 * float(np.mean(result.utility[world].accuracy[-1]))
            yield MeasuredNumber(ACCURACY, share, labels={"scenario": prefix})


def _config(settings: Settings, seed: int) -> tuple[AuditConfig, dict[str, Any]]:
    """The audit of a cell, and its options under ``images``."""
    table = nested(settings)
    given = {"messages": ["CG", "MM"], "rounds": "all", "pooled": 1, "gains": False}
    options = {**given, **table.pop("images", {})}
    attack = {**table.pop("attack"), "name": "gradient-inversion", "batch_sizes": ["training"]}
    if options["rounds"] == "last":
        attack["rounds"] = attack["rounds"][-1:]
    messages = [] if options["rounds"] == "none" else options["messages"]
    attacks = [{**attack, "message": MESSAGES[message]} for message in messages]
    return AuditConfig.from_dict({**table, "seed": seed, "attack": attacks}), options


def _measured(
    result: AuditResult, rounds: tuple[int, ...], at: int | None, options: Mapping[str, Any]
) -> Iterator[MeasuredNumber]:
    """The scores of every scenario in these rounds, and of the guess without a message."""
    found = {
        f"{prefix}-{kind}": scored(result.findings, MESSAGES[kind], world, rounds)
        for prefix, world in WORLDS.items()
        for kind in options["messages"]
    }
    guesses = {kind: blind(result.findings, MESSAGES[kind], rounds) for kind in options["messages"]}
    shown = {name: own for name, own in found.items() if own.batches}
    for name, own in {**shown, BLIND: guesses[options["messages"][0]]}.items():
        for quantity, score, times in SCORES:
            estimate = interval(own.scores[score], RANGES[score])
            yield _number(quantity, estimate, {"scenario": name}, at, times)
    for name, own in shown.items() if options["gains"] else ():
        gains = own.above(guesses[name.partition("-")[2]])
        yield _number(ABOVE_BLIND, interval(gains), {"scenario": name}, at)
        yield MeasuredNumber(BETTER, 100 * float((gains > 0).mean()), at, {"scenario": name})
        if other := BASELINES.get(name):
            above = interval(own.above(found[other]))
            yield _number(f"dB above {other}", above, {"scenario": name}, at)


def _number(
    quantity: str, found: Estimate, labels: Labels, at: int | None, times: float = 1.0
) -> MeasuredNumber:
    low, high = (None if end is None else times * end for end in (found.low, found.high))
    return MeasuredNumber(quantity, times * found.value, at, labels, low, high, found.n)


def scored(
    findings: Iterable[Finding], message: str, world: World, rounds: tuple[int, ...]
) -> ImageScores:
    """The batches attacked in these rounds; none if no adversary could attack any."""
    return _pooled(
        finding
        for finding in findings
        if finding.role is Role.RECONSTRUCTION
        and (finding.message, finding.world) == (message, world)
        and finding.series
        and set(finding.rounds) <= set(rounds)
    )


def blind(findings: Iterable[Finding], message: str, rounds: tuple[int, ...]) -> ImageScores:
    """The guesses at a message's batches without it, of each round those with the least MSE."""
    least: dict[tuple[int, ...], Finding] = {}
    for finding in (f for f in findings if f.role is Role.RECONSTRUCTION):
        here = finding.message == message and set(finding.rounds) <= set(rounds)
        if here and finding.world == "blind":
            best = least.setdefault(finding.rounds, finding)
            least[finding.rounds] = min(best, finding, key=lambda f: f.metrics[Name.MSE].value)
    return _pooled(least.values())


def _pooled(findings: Iterable[Finding]) -> ImageScores:
    found = list(findings)
    return ImageScores(
        [(own.rounds[0], int(victim)) for own in found for victim in own.series[Column.VICTIM]],
        {name: np.array([value for own in found for value in own.series[name]]) for name in RANGES},
    )


def _noise_limits(
    config: AuditConfig, runtime: Runtime, own: CallerObjects
) -> Iterator[MeasuredNumber]:
    """What the noise alone leaves to an attacker who reads one message, or the whole view.

    The capacity of the Gaussian noise in bits; and the error of an attacker without prior on one
    record, all others known, if the first layer were linear and its gradient clipped: a yardstick
    and no bound for a convolutional network.
    """
    prepared = prepare(config, runtime, own)
    defense, setting = prepared.defenses["defense"], prepared.setting
    dataset = prepared.learned.dataset
    assert dataset is not None  # images are attacked
    multipliers = noise_multipliers(defense, setting, config)
    squared_norm = float(dataset.x_test.flatten(1).square().sum(1).mean())
    of_batch = defense.batch_size * dataset.x[0].numel()
    for name, noises in (("one message", [max(multipliers)]), ("the view", multipliers)):
        labels = {"scenario": f"noise on {name}"}
        yield MeasuredNumber("noise over clip norm, largest", max(noises), labels=labels)
        capacity = bits(noises, setting.d, defense.batch_size) / of_batch
        yield MeasuredNumber("bits a pixel, at most", capacity, labels=labels)
        error = without_prior(together(noises), squared_norm)
        yield MeasuredNumber("MSE without prior", error, labels=labels)


def noise_multipliers(defense: Defense, setting: Setting, config: AuditConfig) -> list[float]:
    """Noise over clip norm of each gradient of agent 0 that the view reveals of the last round."""
    last = defense.n_rounds
    window = LinearWindow(defense, setting, config.threat_model[0], range(last - 1, last + 1))
    clip_norm = defense.clip_norm_in(last)
    assert clip_norm is not None  # else no noise hides a record
    wanted = (one for one in window.inputs if (one.round, one.agent) == (last, 0))
    return [window.std(one) * defense.batch_size / clip_norm for one in wanted]
