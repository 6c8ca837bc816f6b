"""Messages after several local steps: their batches, labels and dummies.

The order in which an agent took its records is not known, and a step moves the logits of those
after it. A search that takes all steps for one gives images in no order. The orders in which these
explain the message best are each searched shortly, and the best one at length. Where several passes
have orders of their own, each has dummies of its own, of which only the mean over all of a pass's
images must agree; they are matched and averaged in the end.

Source: Dimitrov et al. 2022, Data leakage in federated averaging, arXiv:2206.12395, sections 4 and
5.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, combinations, cycle, islice, pairwise, permutations

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

import dpaudit.attack as da
import dpaudit.defense as dp
from dpaudit.attack.local_steps import DummyGradient

_MEMORY = 2**30  # bytes: victims beyond are attacked in the next chunk
_COPIES = 8  # copies of per-record gradients that a derivative keeps alive
_KEPT = 8  # vectors like a model that each local step leaves to be differentiated, at most
_TRIED = 200  # orders of the records that are tried with the same images, at most
_ORDERS = 8  # orders that are searched
_OTHER_LABEL = 1e6  # squared distance of images that are of two records


def n_dummies(observed: da.ObservedGradients) -> int:
    """Images that are optimised for each victim: the records, for each pass over them."""
    return observed.batch_size * (1 if observed.local is None else observed.local.passes)


def one_pass(local: dp.LocalSimulation, n: int) -> list[int]:
    """Records of each step of the first pass over n of them."""
    before = [min(n, end) for end in accumulate(local.sizes, initial=0)]
    return [end - start for start, end in pairwise(before) if end > start]


def dealt(labels: Tensor, observed: da.ObservedGradients) -> Tensor:
    """Sorted labels [m, batch_size] dealt out over the steps of a pass: each has several."""
    if observed.local is None:
        return labels
    sizes, n = one_pass(observed.local, observed.batch_size), observed.batch_size
    steps: list[list[int]] = [[] for _ in sizes]
    i = 0
    while i < n:
        for step, size in zip(steps, sizes, strict=True):
            if len(step) < size and i < n:
                step.append(i)
                i += 1
    return labels[:, [row for step in steps for row in step]]


def likely_orders(
    labels: Tensor,
    images: Tensor,
    sizes: Sequence[int],
    loss: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """Labels [m, k, n] in the orders that explain the message best, the best one first.

    Images [m, n, ...] move along with their labels [m, n], and the loss is [m]. All orders are
    tried where these are ``_TRIED`` at most, else pairs are exchanged while the loss falls. Orders
    within a step, of ``sizes`` records, are one. Of fewer than k the first one is repeated.
    """
    m, n = labels.shape
    rows = torch.arange(m, device=labels.device)[:, None]
    best, least = torch.arange(n, device=labels.device).expand(m, n), loss(images, labels)
    orders, losses = [best], [least]
    for change in islice(_changes(sizes), _TRIED):
        order = best[:, change]
        orders.append(order)
        losses.append(loss(images[rows, order], labels[rows, order]))
        if math.factorial(n) > _TRIED:
            best = torch.where((losses[-1] < least)[:, None], order, best)
            least = least.minimum(losses[-1])
    by_loss = torch.stack(losses).argsort(0)  # [t, m]
    tried = labels[rows, torch.stack(orders)[by_loss, rows.T]]
    return torch.stack([_distinct(tried[:, i], sizes) for i in range(m)])


def _changes(sizes: Sequence[int]) -> Iterator[list[int]]:
    """All orders of the records, or exchanges of two of different steps, again and again."""
    step = [s for s, size in enumerate(sizes) for _ in range(size)]
    n = len(step)
    if math.factorial(n) <= _TRIED:
        yield from map(list, permutations(range(n)))
        return
    for i, j in cycle(combinations(range(n), 2)):
        if step[i] != step[j]:
            yield [j if row == i else i if row == j else row for row in range(n)]


def _distinct(tried: Tensor, sizes: Sequence[int]) -> Tensor:
    """The first ``_ORDERS`` of the rows [t, n] that put other labels into steps, [_ORDERS, n]."""
    found: dict[tuple[tuple[int, ...], ...], Tensor] = {}
    for row in tried:
        found.setdefault(
            tuple(tuple(sorted(step.tolist())) for step in row.split(list(sizes))), row
        )
    orders = list(found.values())[:_ORDERS]
    return torch.stack(orders + orders[:1] * (_ORDERS - len(orders)))


def of_each(observed: da.ObservedGradients, k: int) -> da.ObservedGradients:
    """The same with each secret k times, one behind the other."""
    device, secrets = observed.models.device, observed.secrets
    rows = torch.arange(len(observed.gradients), device=device).repeat_interleave(k)
    if secrets is not None:
        secrets = (secrets[:, None] * k + torch.arange(k, device=device)).flatten()
    std = None if observed.std is None else observed.std[rows]
    gradients, models = observed.gradients[rows], observed.models[rows]
    return replace(observed, gradients=gradients, models=models, std=std, secrets=secrets)


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
        one = rows * _graph(observed, max(local.sizes))  # for one step at a time
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
