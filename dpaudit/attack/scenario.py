"""Reconstruction attacks held against the truth, the no-defense twin and the blind baseline."""

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from dpaudit.data.datasets import Dataset
from dpaudit.defense.contract import Defense, Target
from dpaudit.errors import DpauditError
from dpaudit.files.finding import Finding, Metric, Name, Role
from dpaudit.kept import Kept
from dpaudit.progress import OnStep
from dpaudit.rng import Streams
from dpaudit.training.classification import Classification
from dpaudit.training.run_directory import RunDirectory

from .by_target import Columns, course, restarts, scored_targets
from .contract import Bench
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
    score_each,
)
from .observed import Observed, Reconstruction, Task
from .reconstructed_share import Reached, reconstructed_share
from .strips import strip
from .victims import Attacked, Scenario, derived_targets


def run_scenario(scenario: Scenario, bench: Bench, on_step: OnStep) -> list[Finding]:
    """Attack and score; findings of the attack and of the blind baseline, round by round."""
    problem, setting, run = bench.problem, bench.setting, bench.run
    assert isinstance(problem, Classification)  # the others were refused
    defense = bench.defense if scenario.world == "defense" else bench.defense.without_noise()
    streams = Streams(bench.seed, bench.streams.device)
    initial = problem.initial(streams)[0]
    attacked = derived_targets(scenario, defense, setting, streams, run, initial)
    if not attacked.targets:
        return [_not_available(scenario, attacked.refusals)]
    groups = _by_clip_norm(defense, attacked, scenario)
    findings: dict[tuple[int, ...], list[Finding]] = {}
    reached: list[Reached] = []
    for i, group in enumerate(groups):
        reconstruction = scenario.reconstruct(
            group.observed,
            _task(problem, bench.kept.stage(i)),
            _attack_streams(scenario, streams),
            partial(_progress, on_step, i, len(groups)),
        )
        _require_each(scenario, group, len(reconstruction.images))
        images, labels = _truth(scenario, group.targets, problem, streams)
        joined = _joined(scenario, group)
        if scenario.world == "defense":
            found = _of(reconstruction, list(range(len(images))), ())
            each = score_each(images, found.images, problem.dataset.value_range)
            reached.append(Reached(group.targets, images, labels, each, group.rounds))
        for rounds in group.rounds:
            rows = [i for i, target in enumerate(group.targets) if target.round in rounds]
            truth = _Truth(rounds, [group.targets[i] for i in rows], images[rows], labels[rows])
            found = _of(reconstruction, rows, joined)
            findings[rounds] = _scored(scenario, found, truth, problem.dataset, streams, run)
    scored = [finding for rounds in sorted(findings) for finding in findings[rounds]]
    return scored + (
        reconstructed_share(scenario, bench, problem.dataset, reached) if reached else []
    )


class _Group(NamedTuple):
    """What is reconstructed together: targets whose rounds clip to the same norm."""

    observed: Observed
    targets: list[Target]  # of each secret
    rounds: list[tuple[int, ...]]  # of each finding


def _by_clip_norm(defense: Defense, attacked: Attacked, scenario: Scenario) -> list[_Group]:
    """What was derived, in order of rounds."""
    together: dict[float | None, list[int]] = {}
    for i, target in enumerate(attacked.targets):
        together.setdefault(defense.clip_norm_in(target.round), []).append(i)
    return [_group(attacked, rows, clip_norm, scenario) for clip_norm, rows in together.items()]


def _group(
    attacked: Attacked, rows: list[int], clip_norm: float | None, scenario: Scenario
) -> _Group:
    derived, targets = attacked.derived, [attacked.targets[i] for i in rows]
    whose: dict[tuple[int, ...], list[int]] = {}  # gradients, by what is known to be one batch
    for i, target in enumerate(targets):
        batch = {
            "nothing": (i,),
            "links": (target.victim, target.round),
            "rounds": (target.victim,),
        }
        whose.setdefault(batch[scenario.join], []).append(i)
    numbers = {i: secret for secret, own in enumerate(whose.values()) for i in own}
    secrets = torch.tensor([numbers[i] for i in range(len(targets))])
    gradients = torch.stack([derived[i].gradient for i in rows])
    observed = Observed(
        gradients=gradients,
        models=torch.stack([derived[i].model for i in rows]),
        batch_size=scenario.batch_size,
        clip_norm=clip_norm,
        std=_stds([attacked.stds[i] for i in rows], gradients),
        secrets=secrets.to(gradients.device) if len(whose) < len(rows) else None,
    )
    rounds = sorted({target.round for target in targets})
    apart = [rounds] if scenario.join == "rounds" else [[k] for k in rounds]
    return _Group(observed, [targets[own[0]] for own in whose.values()], list(map(tuple, apart)))


def _joined(scenario: Scenario, group: _Group) -> tuple[str, ...]:
    """What was taken to be of one batch, and by which knowledge."""
    if group.observed.secrets is None:
        return ()
    counts = group.observed.secrets.bincount()
    fewest, most = int(counts.min()), int(counts.max())
    each = f"{most}" if fewest == most else f"{fewest} to {most}"
    if scenario.join == "links":
        return (f"each batch from {each} gradients of its round, joined",)
    return (
        f"each batch from {each} gradients of all these rounds, joined; that its records recur is "
        "given, as they are all that the agent holds",
    )


def _require_each(scenario: Scenario, group: _Group, n: int) -> None:
    if n != len(group.targets):
        raise DpauditError(
            f"{scenario.attack_name} handed back {n} reconstructions of {len(group.targets)} "
            "batches; expected one for each of observed.secrets"
        )


def _stds(stds: list[float | None], like: Tensor) -> Tensor | None:
    """[m] in the type of the gradients; None if one is not known."""
    known = [std for std in stds if std is not None]
    return like.new_tensor(known) if len(known) == len(stds) else None


def _progress(on_step: OnStep, group: int, n_groups: int, done: int, total: int) -> None:
    on_step(group * total + done, n_groups * total)


def _task(problem: Classification, kept: Kept) -> Task:
    dataset = problem.dataset
    shape = tuple(dataset.x.shape[1:])
    low, high = dataset.value_range
    steps = [dataset.x_test.diff(dim=side).abs().mean() for side in (-1, -2)]
    contrast = float(sum(steps)) / (high - low)
    return Task(problem.gradients, shape, dataset.n_classes, dataset.value_range, kept, contrast)


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


class _Truth(NamedTuple):
    """What the attack of one finding was after."""

    rounds: tuple[int, ...]
    targets: list[Target]
    images: Tensor  # [m, batch_size, channels, height, width]
    labels: Tensor  # [m, batch_size]


def _of(found: Reconstruction, rows: list[int], joined: tuple[str, ...]) -> Reconstruction:
    """The reconstruction of some of the targets, where it is scored, and what it was made from."""
    images, labels, losses = (t[rows].cpu() for t in (found.images, found.labels, found.losses))
    trace = found.trace
    if trace is not None:
        trace = replace(trace, losses=trace.losses[rows].cpu(), images=trace.images[rows].cpu())
    notes = (*joined, *found.notes)
    return replace(found, images=images, labels=labels, losses=losses, notes=notes, trace=trace)


def _scored(
    scenario: Scenario,
    found: Reconstruction,
    truth: _Truth,
    dataset: Dataset,
    streams: Streams,
    run: RunDirectory,
) -> list[Finding]:
    """The findings of rounds: the attack's, and what attackers without messages would get."""
    picture = _Picture(scenario, truth, dataset.value_range, run)
    generator = _attack_streams(scenario, streams)("blind", truth.rounds[0])
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
    truth: _Truth
    value_range: tuple[float, float]
    run: RunDirectory

    def save(self, world: str, what: str, images: Tensor) -> str:
        """A strip of the first record of each target's batch; its path in the run directory."""
        start = f"{self.scenario.name}-round-{self.truth.rounds[0]:06d}"
        name = f"artifacts/{start}-{world}-{what}.png"
        self.run.write_bytes(name, strip(images[:, 0].numpy(), self.value_range))
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
