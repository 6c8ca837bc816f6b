"""Reconstructions scored against the truth and a blind guess, whatever gradients they came from."""

from typing import NamedTuple

import torch
from torch import Tensor

from dpaudit.checkpoint import Checkpoint
from dpaudit.data.datasets import Dataset
from dpaudit.defense.contract import Target
from dpaudit.files.finding import Finding, Metric, Name, Role
from dpaudit.models.gradients import Gradients
from dpaudit.rng import Streams
from dpaudit.training.run_directory import RunDirectory

from .by_target import Columns, course, restarts, scored_targets
from .image_metrics import (
    FEWEST,
    PSNR_CAP,
    SHARE,
    SSIM_WINDOW,
    Estimate,
    Scores,
    blind,
    estimates,
    interval,
    paired,
    score,
)
from .observed import Reconstruction, Task
from .strips import strip
from .victims import Scenario


class Truth(NamedTuple):
    """What the attack of one finding was after."""

    rounds: tuple[int, ...]
    targets: list[Target]
    images: Tensor  # [m, batch_size, channels, height, width]
    labels: Tensor  # [m, batch_size]


def scored(
    scenario: Scenario,
    found: Reconstruction,
    truth: Truth,
    dataset: Dataset,
    streams: Streams,
    run: RunDirectory,
) -> list[Finding]:
    """The findings of rounds: the attack's, and what attackers without messages would get."""
    picture = _Picture(scenario, truth, dataset.value_range, run)
    generator = attack_streams(scenario, streams)("blind", truth.rounds[0])
    guesses = blind(truth.labels, dataset.x_test, dataset.y_test, generator)._asdict()
    baselines = {name: score(truth.images, g, dataset.value_range) for name, g in guesses.items()}
    best = max(baselines, key=lambda name: baselines[name].ssim.mean())
    own = _attacked(picture, found, baselines[best]).model_copy(
        update={
            "notes": (
                *_scale(dataset),
                *_few(len(truth.targets)),
                f"{Name.SSIM_OVER_BLIND} is against the {_BLIND[best]}, the better",
                *found.notes,
            )
        }
    )
    if scenario.world != "defense":  # the same truth, so the same baselines
        return [own]
    return [own] + [
        _finding(picture, "blind", baselines[name], guesses[name], notes=(_BLIND[name],))
        for name in baselines
    ]


def _attacked(picture: "_Picture", found: Reconstruction, baseline: Scores) -> Finding:
    """What the attack reached, beside a blind baseline."""
    truth = picture.truth
    scores = score(truth.images, found.images, picture.value_range)
    labels_found = _labels_found(found.labels, truth.labels)
    losses = restarts(found.losses.double())
    series = {
        Name.SSIM_OVER_BLIND: tuple((scores.ssim - baseline.ssim).tolist()),
        Name.LABEL_ACCURACY: tuple(labels_found),
    }
    finding = _finding(
        picture,
        picture.scenario.world,
        scores,
        found.images,
        extra={
            Name.SSIM_OVER_BLIND: paired(scores.ssim, baseline.ssim),
            Name.LABEL_ACCURACY: interval(labels_found, SHARE),
            Name.LOSS: interval(losses[Name.LOSS]),
        },
        columns=series | losses,
    )
    trace = course(found.trace, truth.images, picture.value_range)
    return finding.model_copy(update={"trace": trace})


def _few(n: int) -> tuple[str, ...]:
    return (f"too few targets for an interval: {n}, expected at least {FEWEST}",) * (n < FEWEST)


_BLIND = {"mean_image": "mean of the public images", "other_class": "image of another class"}


def _scale(dataset: Dataset) -> tuple[str, ...]:
    low, high = dataset.value_range
    return (
        f"pixels in [{low:g}, {high:g}]; MSE on that scale, PSNR with data range {high - low:g} "
        f"and capped at {PSNR_CAP:g} dB, SSIM with a window of {SSIM_WINDOW}",
    )


class _Picture(NamedTuple):
    """Where pictures of a scenario's rounds go, and what is true on them."""

    scenario: Scenario
    truth: Truth
    value_range: tuple[float, float]
    run: RunDirectory

    def save(self, world: str, what: str, images: Tensor) -> str:
        """A strip of the first record of each target's batch; its path in the run directory."""
        start = f"{self.scenario.name}-round-{self.truth.rounds[0]:06d}"
        name = f"artifacts/{start}-{world}-{what}.png"
        self.run.write(name, strip(images[:, 0].numpy(), self.value_range))
        return name


def _finding(
    picture: _Picture,
    world: str,
    scores: Scores,
    images: Tensor,
    extra: dict[str, Estimate] | None = None,
    columns: Columns | None = None,
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
        rounds=picture.truth.rounds,
        world=world,
        batch_size=scenario.batch_size,
        metrics={
            name: Metric(**estimate._asdict())
            for name, estimate in (estimates(scores) | (extra or {})).items()
        },
        notes=notes,
        series=scored_targets(picture.truth.targets, scores) | (columns or {}),
        artifacts={
            "images": picture.save(world, what, aligned),
            "truth": picture.save(world, "truth", picture.truth.images),
        },
    )


def not_available(scenario: Scenario, refusals: list[str]) -> Finding:
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


def task_of(gradients: Gradients, dataset: Dataset, checkpoint: Checkpoint) -> Task:
    """What is public: the architecture, and the form of images by those that are no target."""
    shape = tuple(dataset.x.shape[1:])
    low, high = dataset.value_range
    steps = [dataset.x_test.diff(dim=side).abs().mean() for side in (-1, -2)]
    contrast = float(sum(steps)) / (high - low)
    return Task(gradients, shape, dataset.n_classes, dataset.value_range, checkpoint, contrast)


def attack_streams(scenario: Scenario, streams: Streams) -> Streams:
    """The same draws for a message with and without defense, and apart from those of the run."""
    name = (scenario.attack_index, scenario.threat_model.name, scenario.batch_size)
    seed = streams.numpy("attack", *name).integers(2**62).item()
    return Streams(seed, streams.device)
