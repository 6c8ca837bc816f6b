"""Tables of reconstructed images: what audits find, beside what a paper prints.

A paper's table is data: its scenarios with the published scores, what is assumed, and one audit for
each way to read what the paper leaves open. ``lines`` runs these audits and prints.
"""

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpaudit.attack.contract import World
from dpaudit.attack.image_metrics import RANGES, Estimate, interval
from dpaudit.attack.noise_limits import bits, decibels, together, without_prior
from dpaudit.defense.contract import Defense, Setting
from dpaudit.files.config import AuditConfig
from dpaudit.files.finding import Column, Finding, Name, Role
from dpaudit.files.result import AuditResult
from dpaudit.game.estimating.estimate import Window
from dpaudit.pipeline.jobs import Prepared
from dpaudit.pipeline.run import Runtime, prepare, run_audit

from .blocks import Block, Keep, at_once

SCORES = (Name.MSE, Name.PSNR, Name.SSIM)
BLIND = "blind guess"
Numbers = NDArray[np.float64]


class Scenario(NamedTuple):
    """A row: which message is attacked in which world, and what the paper prints for it."""

    name: str
    message: str  # an observable of the defense, or "view"
    world: World
    published: tuple[float, float, float] | None = None  # MSE, PSNR, SSIM
    beside: str | None = None  # the scenario over which its gain is printed


class Reading(NamedTuple):
    """One way to fill what a paper leaves open, as an audit without its attacks."""

    title: str
    config: dict[str, Any]
    # Those that a row each pools; the published ones last. None: not run, only what noise leaves.
    rounds: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class ImageTable:
    """A paper's table of reconstructed images."""

    title: str
    scenarios: tuple[Scenario, ...]
    published_for: str  # which of the paper's settings the published scores are for
    assumed: tuple[str, ...]  # what the paper does not say, and how it is read
    readings: tuple[Reading, ...]
    attack: dict[str, Any]  # options of gradient inversion, but for message, rounds, batch sizes


class Scored(NamedTuple):
    """Scores of a row, one for each target."""

    batches: list[tuple[int, int]]  # round, victim
    scores: dict[Name, Numbers]

    def estimate(self, name: Name) -> Estimate:
        return interval(self.scores[name], RANGES[name])

    def gains(self, other: "Scored") -> Numbers:
        """Decibels above another row, for each batch that both attacked."""
        place = {batch: i for i, batch in enumerate(other.batches)}
        pairs = [(i, place[batch]) for i, batch in enumerate(self.batches) if batch in place]
        own, others = (list(rows) for rows in zip(*pairs, strict=True))
        return self.scores[Name.PSNR][own] - other.scores[Name.PSNR][others]


def lines(
    table: ImageTable, seed: int, data_root: Path | None, keep: Keep = at_once
) -> Iterator[str]:
    """The printed form: what is assumed, and for each reading a row for each scenario.

    Raises:
        DpauditError: an audit cannot be run, as data are missing.
    """
    yield table.title
    yield "Assumed, as the paper does not say:"
    yield from (f"  {line}" for line in table.assumed)
    runtime = Runtime(data_root=data_root)
    for reading in table.readings:
        config = _config(table, reading, seed)
        prepared = prepare(config, runtime)
        yield ""
        yield f"{reading.title}, seed {seed}"
        yield from _limits(prepared, config)
        if reading.rounds:
            dataset = prepared.learned.dataset
            key = f"{config} {dataset and dataset.fingerprint}"
            yield from keep(key, partial(_attacked, table, reading, config, runtime)).lines
    yield ""
    yield from _REMARKS
    yield f"Published: {table.published_for}."


_REMARKS = (
    "Each score: ours with its 95% Student-t interval over n batches of one run, and the published",
    "one in brackets. Over blind: decibels above the blind guess, paired by batch, and for how",
    "many batches it is above. That guess sees no message; it is the better, by MSE, of the mean",
    "of public images and an image of another class. Bits: capacity of the Gaussian noise. Without",
    "prior: of one record, all others known, if the first layer were linear and its gradient",
    "clipped; LeNet's is convolutional, so that this is a yardstick and no bound.",
)


def scored(findings: Iterable[Finding], scenario: Scenario, rounds: tuple[int, ...]) -> Scored:
    """A scenario's targets in these rounds; none if its adversary could attack none."""
    return _pooled(
        finding
        for finding in findings
        if finding.role is Role.RECONSTRUCTION
        and (finding.message, finding.world) == (scenario.message, scenario.world)
        and finding.series
        and set(finding.rounds) <= set(rounds)
    )


def blind(findings: Iterable[Finding], message: str, rounds: tuple[int, ...]) -> Scored:
    """The guesses at a message's targets without it, of each round those with the least MSE."""
    least: dict[tuple[int, ...], Finding] = {}
    for finding in (f for f in findings if f.role is Role.RECONSTRUCTION):
        here = finding.message == message and set(finding.rounds) <= set(rounds)
        if here and finding.world == "blind":
            best = least.setdefault(finding.rounds, finding)
            least[finding.rounds] = min(best, finding, key=lambda f: f.metrics[Name.MSE].value)
    return _pooled(least.values())


def _pooled(findings: Iterable[Finding]) -> Scored:
    found = list(findings)
    batches = [
        (finding.rounds[0], int(victim))
        for finding in found
        for victim in finding.series[Column.VICTIM]
    ]
    scores = {
        name: np.array([value for finding in found for value in finding.series[name]])
        for name in SCORES
    }
    return Scored(batches, scores)


def _config(table: ImageTable, reading: Reading, seed: int) -> AuditConfig:
    """The audit of a reading, with an attack on each message of the table."""
    messages = dict.fromkeys(scenario.message for scenario in table.scenarios)
    attack = {
        **table.attack,
        "name": "gradient-inversion",
        "rounds": sorted({k for rounds in reading.rounds for k in rounds}),
        "batch_sizes": ["training"],
    }
    attacks = [{**attack, "message": message} for message in messages] if reading.rounds else []
    return AuditConfig.from_dict({**reading.config, "seed": seed, "attack": attacks})


def _attacked(table: ImageTable, reading: Reading, config: AuditConfig, runtime: Runtime) -> Block:
    result = _result(config, runtime)
    return Block([_utility(result), *_rows(table, reading, result.findings)])


def _result(config: AuditConfig, runtime: Runtime) -> AuditResult:
    with tempfile.TemporaryDirectory(prefix="dpaudit-") as folder:
        return run_audit(config, Path(folder) / "run", runtime)


def _utility(result: AuditResult) -> str:
    curves = ((world, result.utility[world]) for world in ("defense", "no-defense"))
    shares = (f"{np.mean(curve.accuracy[-1]):.1%} ({world})" for world, curve in curves)
    return f"  test accuracy after the last round, mean over agents: {', '.join(shares)}"


def _rows(table: ImageTable, reading: Reading, findings: tuple[Finding, ...]) -> Iterator[str]:
    yield (
        f"  {'scenario':16} {'rounds':>8} {'n':>3}  {'MSE':26} {'PSNR, dB':27} "
        f"{'SSIM x 100':29} over blind, dB"
    )
    for rounds in reading.rounds:
        found = {s.name: scored(findings, s, rounds) for s in table.scenarios}
        for scenario in table.scenarios:
            own = found[scenario.name]
            if not own.batches:
                yield f"  {scenario.name:16} {_span(rounds):>8}   0  out of this adversary's reach"
                continue
            guess = blind(findings, scenario.message, rounds)
            published = scenario.published if rounds == reading.rounds[-1] else None
            yield _row(scenario.name, rounds, own, published) + _over(own.gains(guess))
        first = table.scenarios[0]
        yield _row(BLIND, rounds, blind(findings, first.message, rounds), None).rstrip()
        for scenario in table.scenarios:
            if scenario.beside is not None and found[scenario.name].batches:
                gains = found[scenario.name].gains(found[scenario.beside])
                yield f"  {scenario.name} over {scenario.beside}, dB: {_over(gains)}"


def _row(
    name: str, rounds: tuple[int, ...], own: Scored, published: tuple[float, float, float] | None
) -> str:
    printed = published or (None, None, None)
    cells = (
        _score(own.estimate(score), beside, digits, times, width)
        for score, beside, digits, times, width in zip(
            SCORES, printed, (2, 1, 1), (1, 1, 100), (26, 27, 29), strict=True
        )
    )
    return f"  {name:16} {_span(rounds):>8} {len(own.batches):>3}  {' '.join(cells)} "


def _score(found: Estimate, published: float | None, digits: int, times: float, width: int) -> str:
    text = f"{times * found.value:.{digits}f}"
    if found.low is not None and found.high is not None:
        text += f" [{times * found.low:.{digits}f}, {times * found.high:.{digits}f}]"
    if published is not None:
        text += f" ({times * published:.2f})"
    return f"{text:{width}}"


def _over(gains: Numbers) -> str:
    """The mean gain, its interval, and for how many batches there is one."""
    found = interval(gains)
    text = f"{found.value:+.1f}"
    if found.low is not None and found.high is not None:
        text += f" [{found.low:+.1f}, {found.high:+.1f}]"
    return f"{text}, {(gains > 0).sum()} of {len(gains)}"


def _span(rounds: tuple[int, ...]) -> str:
    return f"{rounds[0]}" if len(rounds) == 1 else f"{rounds[0]}-{rounds[-1]}"


def _limits(prepared: Prepared, config: AuditConfig) -> Iterator[str]:
    """What the noise alone leaves to an attacker who reads one message, or the whole view."""
    defense, setting = prepared.defenses["defense"], prepared.setting
    dataset = prepared.learned.dataset
    assert dataset is not None  # images are attacked
    low, high = dataset.value_range
    pixels = dataset.x[0].numel()
    told = _told(defense, setting, config)
    yield (
        f"  {dataset.name}, {len(dataset.x)} records, {min(setting.sizes)} to "
        f"{max(setting.sizes)} an agent; d = {setting.d}; batches of {defense.batch_size}; T = "
        f"{defense.n_rounds}"
    )
    squared_norm = float(dataset.x_test.flatten(1).square().sum(1).mean())
    for what, noises in (
        (f"one message, noise multiplier {max(told):.4g}", [max(told)]),
        (f"the {len(told)} gradients of a round that all links tell", told),
    ):
        mse = without_prior(together(noises), squared_norm)
        enough = bits(noises, setting.d, defense.batch_size) / (defense.batch_size * pixels)
        yield (
            f"  {what}: at most {enough:.2g} bits a pixel; "
            f"without prior MSE {mse:.3g}, {decibels(mse, high - low):.1f} dB"
        )


def _told(defense: Defense, setting: Setting, config: AuditConfig) -> list[float]:
    """Noise over clip norm of each gradient of agent 0 that the view tells of the last round."""
    last = defense.n_rounds
    window = Window(defense, setting, config.threat_model[0], range(last - 1, last + 1))
    clip_norm = defense.clip_norm_in(last)
    assert clip_norm is not None  # else no noise hides a record
    wanted = (one for one in window.inputs if (one.round, one.agent) == (last, 0))
    return [window.std(one) * defense.batch_size / clip_norm for one in wanted]
