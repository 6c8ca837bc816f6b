"""Which classes a batch held, read off the gradient of the last layer."""

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

import dpaudit.attack as da
from dpaudit.models.models import parameters_of

_AFTER = (nn.Identity, nn.LogSoftmax, nn.Flatten)  # behind the logits, and change no label


def infer_labels(observed: da.ObservedGradients, task: da.Task, dummies: Tensor) -> Tensor:
    """The labels of each batch, sorted by class, [n_secrets, batch_size].

    A record of class y adds (softmax - e_y) times its clipping factor to the gradient of the last
    bias, so only records of class c can make its entry c negative. Every class with a negative
    entry is therefore given one record, then the largest remainder its next one, until the batch
    is full. What one record takes from its entry (impact), and what the others leave there
    (offset), the attacker measures with dummy images at the known model. Exact for one record
    and a gradient without noise; larger batches need a message whose factor is known. Of several
    gradients of one batch the bias's entries are averaged, and the answers likewise.

    Without a bias the entries are those of the weights along what the batch's features have in
    common: of one record they are the same up to a factor.

    Args:
        dummies: [n_secrets, n, channels, height, width], the nearer to the batches the better.

    Raises:
        NotObservable: the network does not end in a linear layer.

    Source: Wainakh et al. 2022, LLG with auxiliary knowledge from the model, arXiv:2105.09369; of
    weights Zhao et al. 2020, iDLG, arXiv:2001.02610.
    """
    name = last_parameters(task.gradients.module, task.n_classes)
    g = parameters_of(task.gradients.module, observed.gradients)[name]
    along = None if g.ndim == 2 else _in_common(observed.by_secret(g))
    if along is not None:
        along = along if observed.secrets is None else along[observed.secrets]
        g = torch.einsum("mcf,mf->mc", g, along)
    g = observed.by_secret(g)  # [n_secrets, n_classes]
    dummies = dummies if observed.secrets is None else dummies[observed.secrets]
    answers = observed.by_secret(_answers(observed, task, name, dummies, along))
    own = answers.diagonal(dim1=1, dim2=2)
    offset = (answers.sum(1) - own) / (task.n_classes - 1)
    impact = (own - offset) / observed.batch_size

    counts = _counts(g, (g - offset) / impact, observed.batch_size)
    classes = torch.arange(task.n_classes, device=g.device)
    return torch.stack([classes.repeat_interleave(row) for row in counts])


def _counts(g: Tensor, expected: Tensor, batch_size: int) -> Tensor:
    """How many records of each class, [n_secrets, n_classes], where so many are expected."""
    rank = g.argsort(1).argsort(1)
    counts = ((g < 0) & (rank < batch_size)).long()
    remainder = expected - counts  # records still to be given, by class
    while (short := counts.sum(1) < batch_size).any():
        given = one_hot(remainder.argmax(1), g.shape[1]) * short[:, None]
        counts, remainder = counts + given, remainder - given
    return counts


def last_parameters(module: nn.Module, n_classes: int) -> str:
    """The name of the bias of the linear layer that gives the logits, or of its weights.

    The weights are read where there is no bias, or a frozen one, of which no gradient is sent.

    Raises:
        NotObservable: the network does not end in such a layer, or both are frozen.
    """
    layers = [(n, m) for n, m in module.named_modules() if not list(m.children())]
    ends = [(n, m) for n, m in layers if not isinstance(m, _AFTER)] or layers
    path, layer = ends[-1]
    sent = {name for name, _ in module.named_parameters()}
    is_linear = isinstance(layer, nn.Linear) and layer.out_features == n_classes
    names = [f"{path}.{kind}".lstrip(".") for kind in ("bias", "weight") if is_linear]
    if found := [name for name in names if name in sent]:
        return found[0]
    raise da.NotObservable(
        "DPA055",
        "gradient-inversion reads labels off a last linear layer; this network ends in "
        f"{type(layer).__name__}{' whose weights are frozen' if is_linear else ''}",
    )


def _in_common(g: Tensor) -> Tensor:
    """The direction of features [m, f] along which weights [m, n_classes, f] moved most.

    Of one record that of its features. A record's label moves by as much as all other classes
    together, the other way: so the entry that is largest is negative.
    """
    along = torch.linalg.svd(g, full_matrices=False).Vh[:, 0]
    entries = torch.einsum("mcf,mf->mc", g, along)
    largest = entries.gather(1, entries.abs().argmax(1, keepdim=True))
    return torch.where(largest > 0, -along, along)


def _answers(
    observed: da.ObservedGradients, task: da.Task, name: str, dummies: Tensor, along: Tensor | None
) -> Tensor:
    """What dummies of each label give the entries on average, clipped: [m, label, c]."""
    answers = []
    for label in range(task.n_classes):
        labels = torch.full(dummies.shape[:2], label, device=dummies.device)
        total = task.gradients.clipped_sum(observed.models, dummies, labels, observed.clip_norm)
        entries = parameters_of(task.gradients.module, total)[name] / dummies.shape[1]
        if along is not None:
            entries = torch.einsum("mcf,mf->mc", entries, along)
        answers.append(entries)
    return torch.stack(answers, dim=1)
