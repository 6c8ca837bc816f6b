"""Messages after several local steps: their batches, labels and dummies.

The order in which an agent took its records is not known, and a step moves the logits of those
after it. So records are exchanged between steps as long as that explains the message better, first
with images that show nothing, and again with those of rehearsals. Where several passes have orders
of their own, each has dummies of its own, of which only the mean over all of a pass's images must
agree; they are matched and averaged in the end.

Source: Dimitrov et al. 2022, Data leakage in federated averaging, arXiv:2206.12395, sections 4 and
5.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, cycle, islice

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

import dpaudit.attack as da
from dpaudit.attack.local_steps import DummyGradient

_MEMORY = 2**30  # bytes: victims beyond are attacked in the next chunk
_COPIES = 8  # of the per-record gradients, alive while they are differentiated
_KEPT = 8  # vectors like a model that each local step leaves to be differentiated, at most
_SWAPS = 200  # exchanges of two records that are tried, at most
_OTHER_LABEL = 1e6  # squared distance of images that are of two records


def n_dummies(observed: da.ObservedGradients) -> int:
    """Images that are optimised for each victim: the records, for each pass over them."""
    return observed.batch_size * (1 if observed.local is None else observed.local.passes)


def dealt(labels: Tensor, observed: da.ObservedGradients) -> Tensor:
    """Sorted labels [m, batch_size] dealt out over the steps of a pass: each has several."""
    if observed.local is None:
        return labels
    sizes, n = observed.local.sizes, observed.batch_size
    left = list(sizes[: next(i for i in range(1, len(sizes) + 1) if sum(sizes[:i]) >= n)])
    steps: list[list[int]] = [[] for _ in left]
    i = 0
    while i < n:
        for step, size in zip(steps, left, strict=True):
            if len(step) < size and i < n:
                step.append(i)
                i += 1
    return labels[:, [row for step in steps for row in step]]


def ordered(labels: Tensor, images: Tensor, loss: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The labels [m, n], exchanged along with their images [m, n, ...] while the loss [m] falls.

    All pairs of records in turn, ``_SWAPS`` at most, until none is exchanged.
    """
    pairs = list(combinations(range(labels.shape[1]), 2))
    least, since = loss(images, labels), 0
    for i, j in islice(cycle(pairs), _SWAPS):
        swapped = [t.clone() for t in (images, labels)]
        for new, old in zip(swapped, (images, labels), strict=True):
            new[:, [i, j]] = old[:, [j, i]]
        now = torch.where(labels[:, i] == labels[:, j], torch.inf, loss(*swapped))
        better = now < least
        least = torch.where(better, now, least)
        labels = torch.where(better[:, None], swapped[1], labels)
        images = torch.where(better.view(-1, *[1] * (images.ndim - 1)), swapped[0], images)
        since = 0 if better.any() else since + 1
        if since == len(pairs):
            break
    return labels


def repeated(labels: Tensor, observed: da.ObservedGradients) -> Tensor:
    """The labels of all dummies, pass after pass: [m, n_dummies, ...]."""
    return labels.repeat(1, n_dummies(observed) // observed.batch_size, *[1] * (labels.ndim - 2))


def simulated(
    observed: da.ObservedGradients, task: da.Task, rows: Tensor, images: Tensor, labels: Tensor
) -> Tensor:
    """What dummies [k, n_dummies, ...] would be observed as in the places of ``rows`` [k]."""
    local, models = observed.local, observed.models[rows]
    if local is None:
        total = task.gradients.clipped_sum(
            models, images, labels, observed.clip_norm, create_graph=True
        )
        return total / observed.batch_size
    keeps = len(rows) * _graph(observed, sum(local.sizes)) <= _MEMORY
    oracle = DummyGradient(task.gradients, images, labels, local.sizes, keeps)
    return local.mean_gradient(oracle, models)


def at_once(observed: da.ObservedGradients, rows: int) -> int:
    """How many victims are attacked at once, with so many models each.

    Raises:
        ConfigError: the local steps of one do not fit in memory.
    """
    one = rows * _graph(observed, observed.batch_size)
    local, model = observed.local, observed.models[0]
    if local is not None and (one := rows * _graph(observed, sum(local.sizes))) > _MEMORY:
        one = rows * _graph(observed, max(local.sizes))  # of a step at a time
    if local is not None and one > _MEMORY:
        raise da.ConfigError(
            "DPA022",
            f"gradient inversion: {len(local.sizes)} local steps of up to {max(local.sizes)} "
            f"records at models of {len(model):,} parameters take {one / 2**30:.1f} GiB for {rows} "
            f"starts; expected {_MEMORY / 2**30:.0f} GiB at most",
            "lower attack.restarts, or attack a message of fewer steps or smaller batches",
        )
    return max(1, _MEMORY // one)


def _graph(observed: da.ObservedGradients, n_records: int) -> int:
    """Bytes of one model's steps while they are differentiated, with the graph of some records."""
    steps = 0 if observed.local is None else len(observed.local.sizes)
    return observed.models[0].nbytes * (_COPIES * n_records + _KEPT * steps)


def disagreement(images: Tensor, passes: int) -> Tensor:
    """Mean square of what the mean images of passes [k, passes n, ...] differ by, [k]."""
    means = images.unflatten(1, (passes, -1)).mean(2)
    return (means - means.mean(1, keepdim=True)).square().flatten(1).mean(1)


def merged(images: Tensor, labels: Tensor, passes: int) -> Tensor:
    """The images [m, passes n, ...] of all passes, matched to those of the first, averaged [m, n].

    Images of one label are exchanged alone, such that the squared distances are least.
    """
    every = images.unflatten(1, (passes, -1))
    total = every[:, 0].clone()
    labels = labels[:, : every.shape[2]]
    for i, own in enumerate(every):
        for other in own[1:]:
            cost = torch.cdist(own[0].flatten(1), other.flatten(1)).square()
            cost = cost + _OTHER_LABEL * (labels[i][:, None] != labels[i])
            total[i] += other[linear_sum_assignment(cost.numpy(force=True))[1]]
    return total / passes


def halfway(observed: da.ObservedGradients) -> da.ObservedGradients:
    """The same with models halfway between start and end, where the mean gradient nearly is.

    Their answers are those of all steps on average, but for curvature.
    """
    if observed.local is None:
        return observed
    models = observed.models - observed.local.factor / 2 * observed.gradients
    return replace(observed, models=models, local=None)
