"""Reconstruction attacks held against the truth, the no-defense twin and the blind baseline."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

import dpaudit.defense as dp
from dpaudit.checkpoint import Checkpoint
from dpaudit.data.datasets import Dataset
from dpaudit.errors import DpauditError
from dpaudit.files.atomic_files import STRIP_GAP
from dpaudit.files.finding import Column, Finding, Metric, Name, Role, restart_column
from dpaudit.models.gradients import Gradients
from dpaudit.progress import OnStep, silent, step_of_part
from dpaudit.rng import Streams
from dpaudit.training.classification import Classification
from dpaudit.training.run_directory import RunDirectory

from .contract import AttackContext
from .image_metrics import (
    FEWEST,
    PSNR_CAP,
    RANGES,
    SHARE,
    SSIM_WINDOW,
    Estimate,
    Floats,
    Scores,
    blind,
    by_batch,
    estimates,
    interval,
    paired,
    psnr_alone,
    score,
    score_each,
)
from .observed import ObservedGradients, Reconstruction, Task, Trace
from .reconstructed_share import ReachedScores, reconstructed_share
from .victims import Scenario, TargetGradient, derived_targets

Notes = tuple[str, ...]
Means = Mapping[str, Estimate]
Columns = dict[str, tuple[float, ...]]
_FLAT = 0.1  # images whose border differs by less, relative to the mean step inside, have a frame
_BLIND = {"mean_image": "mean of the public images", "other_class": "image of another class"}


def run_scenario(scenario: Scenario, context: AttackContext, on_step: OnStep) -> list[Finding]:
    """Attack and score; findings of the attack and of the blind baseline, round by round."""
    problem, run = context.problem, context.run
    assert isinstance(problem, Classification)  # the others were refused
    dataset = problem.dataset
    defense = context.defense if scenario.world == "defense" else context.defense.without_noise()
    streams = Streams(context.seed, context.streams.device)
    initial = problem.initial(streams)[0]
    every, refusals = derived_targets(scenario, defense, context.setting, streams, run, initial)
    if not every:
        return [not_available(scenario, refusals)]
    together: dict[tuple[float | None, int], list[TargetGradient]] = {}
    for one in every:  # grouped by clip norm; rounds of local steps one by one
        k = one.target.round
        key = defense.clip_norm_in(k), 0 if one.local is None else k
        together.setdefault(key, []).append(one)
    findings: dict[tuple[int, ...], list[Finding]] = {}
    reached: list[ReachedScores] = []
    for i, ((clip_norm, _), some) in enumerate(together.items()):
        observed, targets = observed_gradients(scenario, some, clip_norm)
        reconstruction = scenario.reconstruct(
            observed,
            task_of(problem.gradients, dataset, context.checkpoint.stage(i)),
            attack_streams(scenario, streams),
            partial(step_of_part, on_step, i, len(together)),
        )
        if (n := len(reconstruction.images)) != len(targets):
            raise DpauditError(
                "DPA043",
                f"{scenario.attack_name} handed back {n} reconstructions of {len(targets)} "
                "batches; expected one for each of observed.secrets",
            )
        images, labels = truth_of(scenario, targets, problem, streams)
        by_round = sorted({one.target.round for one in some})
        joined = scenario.join == "rounds"
        apart: list[tuple[int, ...]] = [tuple(by_round)] if joined else [(k,) for k in by_round]
        if scenario.world == "defense":
            found = _of(reconstruction, list(range(n)), ())
            each = score_each(images, found.images, dataset.value_range)
            reached.append(ReachedScores(targets, images, labels, each, apart))
        for rounds in apart:
            rows = [i for i, target in enumerate(targets) if target.round in rounds]
            truth = Truth(rounds, [targets[i] for i in rows], images[rows], labels[rows])
            found = _of(reconstruction, rows, _joined(scenario, observed))
            findings[rounds] = scored(scenario, found, truth, dataset, streams, run)
            if observed.local is not None:
                task = task_of(problem.gradients, dataset, context.checkpoint.stage(i))
                alone = as_one_gradient(scenario, observed, task, streams)
                findings[rounds] += scored(*alone, truth, dataset, streams, run)[:1]
    found_by_round = [finding for rounds in sorted(findings) for finding in findings[rounds]]
    share = reconstructed_share(scenario, context, dataset, reached) if reached else []
    return found_by_round + share


def observed_gradients(
    scenario: Scenario, some: list[TargetGradient], clip_norm: float | None
) -> tuple[ObservedGradients, list[dp.Target]]:
    """The gradients of targets that are reconstructed together, and a target of each secret."""
    whose: dict[tuple[int, ...], list[int]] = {}  # gradients, by what is known to be one batch
    for i, (target, *_) in enumerate(some):
        batch = {
            "nothing": (i,),
            "links": (target.victim, target.round),
            "rounds": (target.victim,),
        }
        whose.setdefault(batch[scenario.join], []).append(i)
    gradients = torch.stack([one.derived.gradient for one in some])
    secrets = torch.zeros(len(some), dtype=torch.long, device=gradients.device)
    for secret, own in enumerate(whose.values()):
        secrets[own] = secret
    stds = [one.std for one in some if one.std is not None]
    observed = ObservedGradients(
        gradients=gradients,
        models=torch.stack([one.derived.model for one in some]),
        batch_size=scenario.batch_size,
        clip_norm=clip_norm,
        std=gradients.new_tensor(stds) if len(stds) == len(some) else None,
        secrets=secrets if len(whose) < len(some) else None,
        local=some[0].local,
    )
    return observed, [some[own[0]].target for own in whose.values()]


def as_one_gradient(
    scenario: Scenario, observed: ObservedGradients, task: Task, streams: Streams
) -> tuple[Scenario, Reconstruction]:
    """The same attack where local steps are taken for one, at the model where they start.

    Its message has a name of its own, by which findings are told apart.
    """
    alone = replace(scenario, message=f"{scenario.message}, as one gradient")
    draws = attack_streams(scenario, streams)
    task = replace(task, checkpoint=task.checkpoint.stage("as-one-gradient"))
    found = scenario.reconstruct(replace(observed, local=None), task, draws, silent)
    rows = list(range(len(found.images)))
    return alone, _of(found, rows, ())


def _joined(scenario: Scenario, observed: ObservedGradients) -> tuple[str, ...]:
    """What was taken to be of one batch, and by which knowledge."""
    if observed.secrets is None:
        return ()
    counts = observed.secrets.bincount()
    fewest, most = int(counts.min()), int(counts.max())
    each = f"{most}" if fewest == most else f"{fewest} to {most}"
    if scenario.join == "links":
        return (f"each batch from {each} gradients of its round, joined",)
    return (
        f"each batch from {each} gradients of all these rounds, joined; that its records recur is "
        "given, as they are all that the agent holds",
    )


def truth_of(
    scenario: Scenario, targets: list[dp.Target], problem: Classification, streams: Streams
) -> tuple[Tensor, Tensor]:
    """The images [m, batch_size, ...] and labels that were used, drawn again from the seed."""
    rounds = {target.round for target in targets}
    steps = range(scenario.n_steps)
    batches = {
        k: [problem.batch(streams, k, scenario.step_size, step=s) for s in steps] for k in rounds
    }
    images = [torch.cat([b.inputs[t.victim] for b in batches[t.round]]) for t in targets]
    labels = [torch.cat([b.labels[t.victim] for b in batches[t.round]]) for t in targets]
    return torch.stack(images).cpu(), torch.stack(labels).cpu()


def _of(found: Reconstruction, rows: list[int], joined: tuple[str, ...]) -> Reconstruction:
    """The reconstruction of some of the targets, where it is scored, and what it was made from."""
    images, labels, losses = (t[rows].cpu() for t in (found.images, found.labels, found.losses))
    trace = found.trace
    if trace is not None:
        trace = replace(trace, losses=trace.losses[rows].cpu(), images=trace.images[rows].cpu())
    notes = (*joined, *found.notes)
    return replace(found, images=images, labels=labels, losses=losses, notes=notes, trace=trace)


class Truth(NamedTuple):
    """What the attack of one finding was after."""

    rounds: tuple[int, ...]
    targets: list[dp.Target]
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
    generator = attack_streams(scenario, streams)("blind", truth.rounds[0])
    guesses = blind(truth.labels, dataset.x_test, dataset.y_test, generator)._asdict()
    baselines = {name: score(truth.images, g, dataset.value_range) for name, g in guesses.items()}
    best = max(baselines, key=lambda name: baselines[name].ssim.mean())
    victims = tuple(float(target.victim) for target in truth.targets)  # one batch each

    def finding(
        world: str, scores: Scores, images: Tensor, notes: Notes, means: Means, rows: Columns
    ) -> Finding:
        """Beside the means a row for each target, in the order of the strips."""
        aligned = images.cpu().take_along_dim(scores.order[..., None, None, None], dim=1)
        what = "images" if world != "blind" else notes[0].replace(" ", "-")
        start = f"artifacts/{scenario.name}-round-{truth.rounds[0]:06d}-{world}"
        artifacts = {"images": f"{start}-{what}.png", "truth": f"{start}-truth.png"}
        for file, shown in zip(artifacts.values(), (aligned, truth.images), strict=True):
            first = shown[:, 0].numpy()  # the first record of each target's batch
            run.write(file, strip(first, dataset.value_range))
        every = estimates(scores, victims) | dict(means)
        metrics = {name: Metric(**mean._asdict()) for name, mean in every.items()}
        by_score: Columns = {name: tuple(getattr(scores, name).tolist()) for name in RANGES}
        series: Columns = {Column.VICTIM: victims, **by_score, **rows}
        return finding_of(scenario, truth.rounds, world, notes).model_copy(
            update={"metrics": metrics, "series": series, "artifacts": artifacts}
        )

    scores = score(truth.images, found.images, dataset.value_range)
    labels_found = _labels_found(found.labels, truth.labels)
    losses = restarts(found.losses.double())
    against = f"{Name.SSIM_OVER_BLIND} is against the {_BLIND[best]}, the better"
    if scores.ssim.mean() < baselines[best].ssim.mean():
        against += "; the attack is worse than this guess"
    notes = (*_scale(dataset, len(truth.targets), len(set(victims))), against, *found.notes)
    rows = {
        Name.SSIM_OVER_BLIND: tuple((scores.ssim - baselines[best].ssim).tolist()),
        Name.LABEL_ACCURACY: tuple(labels_found),
        **losses,
    }
    means = _means(scores.ssim, baselines[best].ssim, rows, victims)
    trace = course(found.trace, truth.images, dataset.value_range, victims)
    own = finding(scenario.world, scores, found.images, notes, means, rows)
    own = own.model_copy(update={"trace": trace})
    if scenario.world != "defense":  # the same truth, so the same baselines
        return [own]
    return [own] + [
        finding("blind", baselines[name], guesses[name], (_BLIND[name],), {}, {})
        for name in baselines
    ]


def _means(ssim: Floats, blind_ssim: Floats, rows: Columns, victims: Sequence[float]) -> Means:
    """Over the batches, of what the attack alone has."""
    mean = partial(by_batch, batches=victims)
    return {
        Name.SSIM_OVER_BLIND: paired(mean(ssim), mean(blind_ssim)),
        Name.LABEL_ACCURACY: interval(mean(rows[Name.LABEL_ACCURACY]), SHARE),
        Name.LOSS: interval(mean(rows[Name.LOSS])),
    }


def _scale(dataset: Dataset, n_targets: int, n_batches: int) -> Iterator[str]:
    low, high = dataset.value_range
    yield (
        f"pixels in [{low:g}, {high:g}]; MSE on that scale, PSNR with data range {high - low:g} "
        f"and capped at {PSNR_CAP:g} dB, SSIM with a window of {SSIM_WINDOW}"
    )
    if n_batches < FEWEST:
        yield f"too few targets for an interval: {n_batches}, expected at least {FEWEST}"
    if n_batches < n_targets:
        yield (
            f"{n_targets} gradients of {n_batches} batches: means and intervals are over batches, "
            "each of which counts once"
        )


def finding_of(
    scenario: Scenario, rounds: tuple[int, ...], world: str, notes: tuple[str, ...]
) -> Finding:
    """A finding of a scenario, without its numbers."""
    return Finding(
        role=Role.RECONSTRUCTION,
        kind="reconstruction",
        title=f"gradient inversion of {scenario.message}",
        attack=scenario.attack_name,
        threat_model=scenario.threat_model.name,
        message=scenario.message,
        rounds=rounds,
        world=world,
        batch_size=scenario.batch_size,
        notes=notes,
    )


def not_available(scenario: Scenario, refusals: list[str]) -> Finding:
    """A scenario that this adversary's view does not allow, said instead of left out."""
    note = f"not available to this adversary: {refusals[0]}"
    return finding_of(scenario, scenario.rounds, scenario.world, (note,))


def _labels_found(guessed: Tensor, labels: Tensor) -> list[float]:
    """Share of each target's labels that were inferred, whatever their order, [m]."""
    n = int(max(guessed.max(), labels.max())) + 1
    counts = [one_hot(rows.long(), n).sum(1) for rows in (guessed, labels)]
    return (torch.minimum(*counts).sum(1) / labels.shape[1]).tolist()


def task_of(gradients: Gradients, dataset: Dataset, checkpoint: Checkpoint) -> Task:
    """What is public: the architecture, and the form of images by those that are no target."""
    shape = tuple(dataset.x.shape[1:])
    low, high = dataset.value_range
    steps = [dataset.x_test.diff(dim=side).abs().mean() for side in (-1, -2)]
    contrast = float(sum(steps)) / (high - low)
    frame = frame_of(dataset.x_test, _FLAT * contrast * (high - low) / 2)
    form = shape, dataset.n_classes, dataset.value_range
    return Task(gradients, *form, checkpoint, contrast, frame)


def frame_of(images: Tensor, spread: float) -> float | None:
    """The median pixel at the border of images [n, channels, height, width].

    None: the border is no frame, as its pixels differ from the median by more than ``spread`` on
    average.
    """
    sides = (images[..., i] for i in (0, -1)), (images[..., i, :] for i in (0, -1))
    border = torch.cat([side.flatten() for pair in sides for side in pair])
    median = border.median()
    return float(median) if (border - median).abs().mean() <= spread else None


def attack_streams(scenario: Scenario, streams: Streams) -> Streams:
    """The same draws for a message with and without defense, and apart from those of the run.

    They do not depend on the attack's place among others: 0 is that of an attack which is alone.
    """
    return streams.child("attack", 0, scenario.threat_model.name, scenario.batch_size)


def restarts(losses: Tensor) -> Columns:
    """The attacker's loss of each restart [m, n_restarts], and which was chosen by it."""
    chosen = losses.argmin(dim=1)
    columns: Columns = {Name.LOSS: tuple(losses.amin(dim=1).tolist())}
    if losses.shape[1] > 1:
        columns |= {restart_column(i + 1): tuple(row.tolist()) for i, row in enumerate(losses.T)}
        columns[Column.CHOSEN_RESTART] = tuple((chosen + 1.0).tolist())
    return columns


def course(
    trace: Trace | None, truth: Tensor, value_range: tuple[float, float], victims: Sequence[float]
) -> Columns:
    """Means over the batches that a search was made for, by iteration; none: no columns.

    The PSNR, against ``truth`` [m, batch_size, ...], is the scorer's alone: the attacker cannot
    see it. Gradients of one victim [m] are of one batch.
    """
    if trace is None or trace.losses.isnan().any(dim=1).all():
        return {}
    searched = ~trace.losses.isnan().any(dim=1)
    own = [victim for victim, there in zip(victims, searched.tolist(), strict=True) if there]
    losses, images, true = trace.losses[searched].double(), trace.images[searched], truth[searched]
    psnr = [psnr_alone(true, now, value_range) for now in images.unbind(1)]
    return {
        Column.ITERATION: tuple(float(k) for k in trace.iterations),
        Name.LOSS: tuple(float(by_batch(now, own).mean()) for now in losses.unbind(1)),
        Name.PSNR: tuple(float(by_batch(now, own).mean()) for now in psnr),
    }


def strip(images: NDArray[np.floating], value_range: tuple[float, float]) -> bytes:
    """A PNG of images [n, channels, height, width] side by side, one pixel to a pixel.

    One channel is grey, three are colour, of any other number the first is shown; values outside
    the range are cut to it.
    """
    import imageio.v3

    low, high = value_range
    scaled = np.clip((np.nan_to_num(images) - low) / (high - low), 0, 1)
    pixels = (scaled * 255).round().astype(np.uint8)
    pixels = np.moveaxis(pixels if pixels.shape[1] == 3 else pixels[:, :1], 1, -1)
    padded = np.pad(pixels, ((0, 0), (0, 0), (0, STRIP_GAP), (0, 0)), constant_values=255)
    row = np.concatenate(list(padded), axis=1)[:, :-STRIP_GAP]
    return imageio.v3.imwrite(
        "<bytes>", row.squeeze(-1) if row.shape[-1] == 1 else row, extension=".png"
    )
