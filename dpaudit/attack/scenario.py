"""Reconstruction attacks held against the truth, the no-defense twin and the blind baseline."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from dpaudit.data.datasets import Dataset
from dpaudit.defense.contract import Defense, Derived, Observable, Setting, Target
from dpaudit.defense.transcript import Transcript
from dpaudit.defense.view import View
from dpaudit.errors import NotObservable
from dpaudit.files.finding import Finding, Metric, Name, Role
from dpaudit.files.threat import ThreatModel
from dpaudit.progress import OnStep
from dpaudit.rng import Streams
from dpaudit.training.classification import Classification
from dpaudit.training.run_directory import RunDirectory

from .contract import Bench
from .image_metrics import (
    PSNR_CAP,
    SSIM_WINDOW,
    Estimate,
    Scores,
    blind,
    estimates,
    interval,
    paired,
    score,
)
from .observed import Observed, Reconstruct, Task
from .strips import strip

SHOWN = 8  # targets in a picture


@dataclass(frozen=True)
class Scenario:
    """One attack by one adversary on one world at one batch size.

    One batched optimisation of all rounds whose clip norm is the same.
    """

    attack_index: int
    attack_name: str
    reconstruct: Reconstruct
    message: str
    rounds: tuple[int, ...]  # in order
    n_targets: int  # in each round
    threat_model: ThreatModel
    world: str  # "defense" or "no-defense"
    batch_size: int
    is_probe: bool  # whether the batch size is another than the one of training

    @property
    def name(self) -> str:
        what = f"{self.attack_index:02d}-{self.message}-{self.threat_model.slug}"
        return f"{what}-batch-{self.batch_size}-{self.world}"


class Attacked(NamedTuple):
    """The targets that a view sufficed for, and what the adversary derived about them."""

    targets: list[Target]
    derived: list[Derived]
    refusals: list[str]  # why a target was out of reach


def run_scenario(scenario: Scenario, bench: Bench, on_step: OnStep) -> list[Finding]:
    """Attack and score; findings of the attack and of the blind baseline, round by round."""
    problem, setting, run = bench.problem, bench.setting, bench.run
    assert isinstance(problem, Classification)  # the others were refused
    defense = bench.defense if scenario.world == "defense" else bench.defense.without_noise()
    streams = Streams(bench.seed, bench.streams.device)
    attacked = _attacked(scenario, defense, setting, streams, run)
    if not attacked.targets:
        return [_not_available(scenario, attacked.refusals)]
    groups = _by_clip_norm(defense, attacked, scenario.batch_size)
    findings: dict[int, list[Finding]] = {}
    for i, (observed, targets) in enumerate(groups):
        reconstruction = scenario.reconstruct(
            observed,
            _task(problem),
            _attack_streams(scenario, streams),
            partial(_progress, on_step, i, len(groups)),
        )
        truth, labels = _truth(scenario, targets, problem, streams)
        for k in {target.round for target in targets}:
            rows = [i for i, target in enumerate(targets) if target.round == k]
            guess = reconstruction.images[rows].cpu(), reconstruction.labels[rows].cpu()
            losses = reconstruction.losses[rows].min(dim=1).values.cpu()
            right = truth[rows], labels[rows]
            findings[k] = _scored(scenario, k, guess, losses, right, problem.dataset, streams, run)
    return [finding for k in sorted(findings) for finding in findings[k]]


def _by_clip_norm(
    defense: Defense, attacked: Attacked, batch_size: int
) -> list[tuple[Observed, list[Target]]]:
    """What was derived about targets whose rounds clip to the same norm, in order of rounds."""
    together: dict[float | None, list[int]] = {}
    for i, target in enumerate(attacked.targets):
        together.setdefault(defense.clip_norm_in(target.round), []).append(i)
    return [
        (
            Observed(
                gradients=torch.stack([attacked.derived[i].gradient for i in rows]),
                models=torch.stack([attacked.derived[i].model for i in rows]),
                batch_size=batch_size,
                clip_norm=clip_norm,
            ),
            [attacked.targets[i] for i in rows],
        )
        for clip_norm, rows in together.items()
    ]


def _progress(on_step: OnStep, group: int, n_groups: int, done: int, total: int) -> None:
    on_step(group * total + done, n_groups * total)


def _attacked(
    scenario: Scenario, defense: Defense, setting: Setting, streams: Streams, run: RunDirectory
) -> Attacked:
    """Everything derived from views alone: no truth is reachable from here."""
    observable = defense.observables[scenario.message]
    transcript = run.transcript(scenario.world, streams.device)
    targets, derived, refusals = [], [], []
    for k in scenario.rounds:
        view = _view(scenario, observable, transcript, run, k, streams.device)
        for target in _targets(scenario, observable, view, setting, streams, k):
            try:
                derived.append(observable.derive(defense, view, setting, target))
                targets.append(target)
            except NotObservable as reason:
                refusals.append(str(reason))
        if not view.edges(observable.links, k):
            refusals.append(f'{scenario.threat_model.name} reads no link with "{observable.links}"')
    return Attacked(targets, derived, refusals)


def _view(
    scenario: Scenario,
    observable: Observable,
    transcript: Transcript,
    run: RunDirectory,
    k: int,
    device: torch.device,
) -> View:
    """What the adversary holds of the rounds that the observable needs, and no other round."""
    if scenario.is_probe:
        probe = run.read_capture(scenario.world, k, scenario.batch_size, device)
        transcript = transcript.with_round(k, probe)
    rounds = {k + offset for offsets in observable.needs.values() for offset in offsets}
    return View.of(scenario.threat_model, transcript, rounds)


def _targets(
    scenario: Scenario,
    observable: Observable,
    view: View,
    setting: Setting,
    streams: Streams,
    k: int,
) -> list[Target]:
    """Different victims first; then further links of the same victims, where those tell more.

    The order of victims is the same for every attack of a threat model, so that scores compare.
    """
    rng = streams.numpy("targets", scenario.threat_model.name)
    rank = rng.permutation(setting.n_agents)
    links = [
        (victim, receiver)
        for victim, receiver in view.edges(observable.links, k)
        if victim not in scenario.threat_model.agents
    ]
    links.sort(key=lambda link: (rank[link[0]], rank[link[1]]))
    chosen: list[tuple[int, int, int]] = []  # how many of this victim before, victim, receiver
    for victim, receiver in links:
        chosen.append((sum(v == victim for _, v, _ in chosen), victim, receiver))
    if not observable.differs_by_link:
        chosen = [link for link in chosen if link[0] == 0]
    chosen.sort(key=lambda link: (link[0], rank[link[1]]))
    return [Target(k, victim, receiver) for _, victim, receiver in chosen[: scenario.n_targets]]


def _task(problem: Classification) -> Task:
    dataset = problem.dataset
    shape = tuple(dataset.x.shape[1:])
    return Task(problem.gradients, shape, dataset.n_classes, dataset.value_range)


def _attack_streams(scenario: Scenario, streams: Streams) -> Streams:
    """The same draws for a message with and without defense, and apart from those of the run."""
    name = (scenario.attack_index, scenario.threat_model.name, scenario.batch_size)
    seed = streams.numpy("attack", *name).integers(2**62).item()
    return Streams(seed, streams.device)


def _truth(
    scenario: Scenario, targets: list[Target], problem: Classification, streams: Streams
) -> tuple[Tensor, Tensor]:
    """The images [m, batch_size, ...] and labels that were used, drawn again from the seed."""
    batches = {
        k: problem.batch(streams, k, scenario.batch_size) for k in {t.round for t in targets}
    }
    images = [batches[t.round].inputs[t.victim] for t in targets]
    labels = [batches[t.round].labels[t.victim] for t in targets]
    return torch.stack(images).cpu(), torch.stack(labels).cpu()


def _scored(
    scenario: Scenario,
    k: int,
    guess: tuple[Tensor, Tensor],
    losses: Tensor,
    truth: tuple[Tensor, Tensor],
    dataset: Dataset,
    streams: Streams,
    run: RunDirectory,
) -> list[Finding]:
    """The findings of one round: the attack's, and what attackers without messages would get."""
    images, labels = truth
    picture = _Picture(scenario, k, images, dataset.value_range, run)
    generator = _attack_streams(scenario, streams)("blind", k)
    guesses = blind(labels, dataset.x_test, dataset.y_test, generator)._asdict()
    baselines = {name: score(images, g, dataset.value_range) for name, g in guesses.items()}
    best = max(baselines, key=lambda name: baselines[name].ssim.mean())
    scores = score(images, guess[0], dataset.value_range)
    own = _finding(
        picture,
        scenario.world,
        scores,
        guess[0],
        extra={
            Name.SSIM_OVER_BLIND: paired(scores.ssim, baselines[best].ssim),
            Name.LABEL_ACCURACY: interval(_labels_found(guess[1], labels)),
            Name.LOSS: interval(losses.double().numpy()),
        },
        notes=(
            *_scale(dataset),
            f"{Name.SSIM_OVER_BLIND} is against the {_BLIND[best]}, the better",
        ),
    )
    if scenario.world != "defense":  # the same truth, so the same baselines
        return [own]
    return [own] + [
        _finding(picture, "blind", baselines[name], guesses[name], notes=(_BLIND[name],))
        for name in baselines
    ]


_BLIND = {"mean_image": "mean of the public images", "other_class": "image of another class"}


def _scale(dataset: Dataset) -> tuple[str, ...]:
    low, high = dataset.value_range
    return (
        f"pixels in [{low:g}, {high:g}]; MSE on that scale, PSNR with data range {high - low:g} "
        f"and capped at {PSNR_CAP:g} dB, SSIM with a window of {SSIM_WINDOW}",
    )


class _Picture(NamedTuple):
    """Where pictures of a scenario's round go, and what is true on them."""

    scenario: Scenario
    round: int
    truth: Tensor
    value_range: tuple[float, float]
    run: RunDirectory

    def save(self, world: str, what: str, images: Tensor) -> str:
        """A strip of the first record of each target's batch; its path in the run directory."""
        name = f"artifacts/{self.scenario.name}-round-{self.round:06d}-{world}-{what}.png"
        self.run.write_bytes(name, strip(images[:SHOWN, 0].numpy(), self.value_range))
        return name


def _finding(
    picture: _Picture,
    world: str,
    scores: Scores,
    images: Tensor,
    extra: dict[str, Estimate] | None = None,
    notes: tuple[str, ...] = (),
) -> Finding:
    scenario = picture.scenario
    aligned = images.cpu().take_along_dim(scores.order[..., None, None, None], dim=1)
    what = "images" if world != "blind" else notes[0].replace(" ", "-")
    return Finding(
        role=Role.RECONSTRUCTION,
        kind="reconstruction",
        title=f"gradient inversion of {scenario.message}",
        attack=scenario.attack_name,
        threat_model=scenario.threat_model.name,
        message=scenario.message,
        rounds=(picture.round,),
        world=world,
        batch_size=scenario.batch_size,
        metrics={
            name: Metric(**estimate._asdict())
            for name, estimate in (estimates(scores) | (extra or {})).items()
        },
        notes=notes,
        artifacts={
            "images": picture.save(world, what, aligned),
            "truth": picture.save(world, "truth", picture.truth),
        },
    )


def _not_available(scenario: Scenario, refusals: list[str]) -> Finding:
    """A scenario that this adversary's view does not allow, said instead of left out."""
    return Finding(
        role=Role.RECONSTRUCTION,
        kind="reconstruction",
        title=f"gradient inversion of {scenario.message}",
        attack=scenario.attack_name,
        threat_model=scenario.threat_model.name,
        message=scenario.message,
        rounds=scenario.rounds,
        world=scenario.world,
        batch_size=scenario.batch_size,
        notes=(f"not available to this adversary: {refusals[0]}",),
    )


def _labels_found(guessed: Tensor, labels: Tensor) -> list[float]:
    """Share of each target's labels that were inferred, whatever their order, [m]."""
    n = int(max(guessed.max(), labels.max())) + 1
    counts = [
        torch.stack([row.bincount(minlength=n) for row in rows]) for rows in (guessed, labels)
    ]
    return (torch.minimum(*counts).sum(1) / labels.shape[1]).tolist()
