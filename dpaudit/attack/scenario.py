"""Reconstruction attacks held against the truth, the no-defense twin and the blind baseline."""

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from dpaudit.defense.contract import Defense, Target
from dpaudit.errors import DpauditError
from dpaudit.files.finding import Finding
from dpaudit.progress import OnStep
from dpaudit.rng import Streams
from dpaudit.training.classification import Classification

from .contract import AttackContext
from .image_metrics import score_each
from .observed import ObservedGradients, Reconstruction
from .reconstructed_share import Reached, reconstructed_share
from .scored import Truth, attack_streams, not_available, scored, task_of
from .victims import ObservedTargets, Scenario, derived_targets


def run_scenario(scenario: Scenario, context: AttackContext, on_step: OnStep) -> list[Finding]:
    """Attack and score; findings of the attack and of the blind baseline, round by round."""
    problem, setting, run = context.problem, context.setting, context.run
    assert isinstance(problem, Classification)  # the others were refused
    defense = context.defense if scenario.world == "defense" else context.defense.without_noise()
    streams = Streams(context.seed, context.streams.device)
    initial = problem.initial(streams)[0]
    attacked = derived_targets(scenario, defense, setting, streams, run, initial)
    if not attacked.targets:
        return [not_available(scenario, attacked.refusals)]
    groups = _by_clip_norm(defense, attacked, scenario)
    findings: dict[tuple[int, ...], list[Finding]] = {}
    reached: list[Reached] = []
    for i, group in enumerate(groups):
        reconstruction = scenario.reconstruct(
            group.observed,
            task_of(problem.gradients, problem.dataset, context.checkpoint.stage(i)),
            attack_streams(scenario, streams),
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
            truth = Truth(rounds, [group.targets[i] for i in rows], images[rows], labels[rows])
            found = _of(reconstruction, rows, joined)
            findings[rounds] = scored(scenario, found, truth, problem.dataset, streams, run)
    by_round = [finding for rounds in sorted(findings) for finding in findings[rounds]]
    return by_round + (
        reconstructed_share(scenario, context, problem.dataset, reached) if reached else []
    )


class _Group(NamedTuple):
    """What is reconstructed together: targets whose rounds clip to the same norm."""

    observed: ObservedGradients
    targets: list[Target]  # of each secret
    rounds: list[tuple[int, ...]]  # of each finding


def _by_clip_norm(defense: Defense, attacked: ObservedTargets, scenario: Scenario) -> list[_Group]:
    """What was derived, in order of rounds."""
    together: dict[float | None, list[int]] = {}
    for i, target in enumerate(attacked.targets):
        together.setdefault(defense.clip_norm_in(target.round), []).append(i)
    return [_group(attacked, rows, clip_norm, scenario) for clip_norm, rows in together.items()]


def _group(
    attacked: ObservedTargets, rows: list[int], clip_norm: float | None, scenario: Scenario
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
    observed = ObservedGradients(
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
            "DPA043",
            f"{scenario.attack_name} handed back {n} reconstructions of {len(group.targets)} "
            "batches; expected one for each of observed.secrets",
        )


def _stds(stds: list[float | None], like: Tensor) -> Tensor | None:
    """[m] in the type of the gradients; None if one is not known."""
    known = [std for std in stds if std is not None]
    return like.new_tensor(known) if len(known) == len(stds) else None


def _progress(on_step: OnStep, group: int, n_groups: int, done: int, total: int) -> None:
    on_step(group * total + done, n_groups * total)


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


def _of(found: Reconstruction, rows: list[int], joined: tuple[str, ...]) -> Reconstruction:
    """The reconstruction of some of the targets, where it is scored, and what it was made from."""
    images, labels, losses = (t[rows].cpu() for t in (found.images, found.labels, found.losses))
    trace = found.trace
    if trace is not None:
        trace = replace(trace, losses=trace.losses[rows].cpu(), images=trace.images[rows].cpu())
    notes = (*joined, *found.notes)
    return replace(found, images=images, labels=labels, losses=losses, notes=notes, trace=trace)
