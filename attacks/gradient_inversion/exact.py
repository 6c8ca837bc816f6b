"""Images that follow from a gradient by equations: exact where the message has no noise."""

import math
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dpaudit.attack as da
from dpaudit.models.models import parameters_of
from dpaudit.models.networks import call, logits_of

from .patches import image_of_patches, label_of
from .recursion import LeadingLayers, front, image_before, input_of_linear

_GAP = 3.0  # singular value b over the next: the batch's rank stands out of the noise
_DRAWS = 256  # searches side by side
_MOST_DRAWS = 2**17  # before the search is given up
_PATIENCE = 2**11  # draws without a better direction, for each direction found and one more
_STEPS = 25  # steps of a search
_LOWEST_POWER = 0.7  # the sums of |z|^p that are made small have p between this and 1
_WIDTH, _NARROWING = 0.01, 0.7  # width that counts as zero, in unit rows, and its factor per step
_LAST_WIDTH = _WIDTH * _NARROWING**_STEPS
_UNDRAWN, _RIDGE = 1e-8, 1e-13  # weights of rows that a search does not start from; of nothing
_TYLER = 10  # steps towards rows that are alike in all directions
_SIGMAS = 8.0  # values within so many standard deviations of a row's noise count as 0
_BEYOND_CHANCE = 0.1  # share of zeros beyond the b - 1 that any direction can have
_NEW = 1e-3  # least sine of the angle between a direction and those already chosen
_OFF = 0.1  # least share of units that a random image leaves off, where there is a ReLU
_AGREEMENT = 0.98  # share of units at which zeros must be where the image's ReLU are off


class ExactBatch(NamedTuple):
    """One victim's batch."""

    images: Tensor  # [batch_size, *shape], within the value range
    labels: Tensor  # [batch_size]


def recover(
    observed: da.ObservedGradients, task: da.Task, streams: da.Streams
) -> list[ExactBatch | da.NotObservable]:
    """Each victim's batch, or why it does not follow from the gradient.

    One record is read off the patches of a vision transformer (`patches`), or off the first linear
    layer with bias, and taken back through the layers before that (`recursion`); a batch is
    separated at a first linear layer with ReLU (`separate`). None needs labels, the clip norm or
    the factor of the message. Noise is not refused where equations can still be solved: whether the
    images fit is for the attacker's loss to say.
    """
    batches: list[ExactBatch | da.NotObservable] = []
    for gradient, model in zip(observed.gradients, observed.models, strict=True):
        try:
            batches.append(_recover(observed.batch_size, task, gradient, model, streams))
        except da.NotObservable as reason:
            batches.append(reason)
    return batches


def _recover(
    b: int, task: da.Task, gradient: Tensor, model: Tensor, streams: da.Streams
) -> ExactBatch:
    if b == 1 and (found := image_of_patches(task, gradient)) is not None:
        image = found.clamp(*task.value_range).to(gradient)
        return ExactBatch(image, label_of(task, gradient, model, image))
    ahead = front(task, gradient, model)
    if b == 1:
        signal = input_of_linear(ahead)
        images, slopes = image_before(ahead, signal), ahead.augmented[:, -1:]
    else:
        _require_first_with_relu(task, model, ahead)
        images, slopes = separate(ahead, b, streams("attack", "exact"))
    images = images.view(b, *task.shape).clamp(*task.value_range).to(gradient)
    return ExactBatch(images, _labels(task, model, ahead, images, slopes))


def _labels(
    task: da.Task, model: Tensor, ahead: LeadingLayers, images: Tensor, slopes: Tensor
) -> Tensor:
    """The class with which each image answers most like the slopes seen of it, [b]."""
    answers = _answers(task, model, ahead, images).to(slopes)
    return F.cosine_similarity(answers, slopes.T[:, None], dim=2).argmax(1)


def _answers(task: da.Task, model: Tensor, ahead: LeadingLayers, images: Tensor) -> Tensor:
    """The slopes that the first linear layer's units have at images, by their label, [b, c, m]."""
    outputs: list[Tensor] = []

    def begin_here(layer: nn.Module, inputs: tuple[Tensor, ...], z: Tensor) -> Tensor:
        outputs.append(z.detach().requires_grad_())
        return outputs[0].clone()  # a later layer may overwrite it

    module = task.gradients.module
    hook = ahead.linear.layer.register_forward_hook(begin_here)
    try:
        with torch.enable_grad():
            logits = logits_of(call(module, parameters_of(module, model), images))
            totals = -logits.log_softmax(1).sum(0)
    finally:
        hook.remove()
    slopes = [torch.autograd.grad(t, outputs[0], retain_graph=True)[0] for t in totals]
    return torch.stack(slopes, dim=1)


def _require_first_with_relu(task: da.Task, model: Tensor, ahead: LeadingLayers) -> None:
    if not ahead.is_first:
        raise da.NotObservable(
            "DPA055",
            "a batch is told apart at a linear layer that comes first; here other layers come "
            "before it",
        )
    low, high = task.value_range
    generator = torch.Generator(model.device).manual_seed(0)
    z = torch.rand((2, *task.shape), generator=generator, device=model.device).to(model)
    off = (_answers(task, model, ahead, low + (high - low) * z)[:, 0] == 0).double().mean()
    if off < _OFF:
        raise da.NotObservable(
            "DPA055",
            "a batch is told apart by the units of the first layer that a record leaves off; "
            "this network has no ReLU behind that layer",
        )


class SeparatedRecords(NamedTuple):
    """The records of a batch, separated."""

    inputs: Tensor  # [b, n] of the linear layer
    slopes: Tensor  # [m, b], the loss's slope in z of each record, as it counts in the message


class _Problem(NamedTuple):
    """G = L R up to noise, in coordinates in which searches are easy."""

    rows: Tensor  # [m, b], L T at unit length, of the units that answer to any record
    noise: Tensor  # [m], of a row: standard deviation of its product with a q of |T q| = 1
    units: Tensor  # [m], which rows of the gradient these are
    L: Tensor  # [n_units, b]
    R: Tensor  # [b, n + 1], orthonormal
    T: Tensor  # [b, b]

    def is_zero(self, q: Tensor, width: float = 0.0) -> Tensor:
        """Which rows directions q [k, b] are orthogonal to, as far as noise lets see, [k, m]."""
        noise = (q @ self.T.T).norm(dim=1)[:, None] * self.noise
        return (q @ self.rows.T).abs() <= _SIGMAS * noise.clamp(min=width)


class _Pool(NamedTuple):
    """Independent directions, those with most zeros first."""

    q: Tensor  # [k, b], at unit length
    zeros: Tensor  # [k], share of the rows


def separate(front: LeadingLayers, batch_size: int, generator: torch.Generator) -> SeparatedRecords:
    """What each record of a batch fed to the first linear layer, exactly.

    With Z = X W' + c, the gradient G = [dL/dW, dL/dc] is D [X, 1] for D = dL/dZ' [m, b]: of rank b.
        1.  G = L R by a thin SVD, so that D = L Q and [X, 1] = Q^-1 R for a Q [b, b]
        2.  D is 0 where a ReLU is off, so a column q of Q is orthogonal to about half of the rows
            of L: search directions with far more zeros in L q than chance has
        3.  refit each to the rows it is orthogonal to; choose new directions, most zeros first
        4.  [X, 1] = Q^-1 R up to a factor for each row, which its last entry reveals
        5.  believe it if the zeros of L Q lie where W x + c <= 0
    Factors of records, as those of clipping, stay in D and do not touch X.

    Raises:
        NotObservable: the batch is too large for the layer, its gradient has no rank of
            ``batch_size``, or no zeros that separate records were found.

    Source: Dimitrov et al., NeurIPS 2024 (SPEAR), arXiv:2403.03945. Departures: the kernel of
    b - 1 rows drawn at random is only where a search starts, which makes sum |L q|^p small by
    reweighted least squares (Chartrand and Yin 2008) after rows have been made alike in all
    directions (Tyler 1987): a hit takes a hundred searches at b = 20 where it takes 26,000 draws;
    the bias is one more column of G, so the scale needs no step of its own; what counts as zero
    follows from the noise that is left of each row beyond rank b.
    """
    problem = _problem(front, batch_size)
    pool = _Pool(problem.rows[:0], problem.rows[:0, 0])
    draws = changed = 0
    while draws < min(_MOST_DRAWS, changed + _PATIENCE * (1 + len(pool.q))):
        draws += _DRAWS
        better = _improved(problem, pool, _search(problem, generator))
        better = _completed(front, problem, better)
        changed = draws if better.zeros.sum() > pool.zeros.sum() else changed
        pool = better
        separated = _separated(front, problem, pool)
        if separated is not None:
            return separated
    raise da.NotObservable(
        "DPA056",
        f"a batch of {batch_size}: {draws} searches found {len(pool.q)} directions with zeros, "
        "and no batch that fits them; the layer has no ReLU, too few units or much noise",
    )


def _problem(front: LeadingLayers, b: int) -> _Problem:
    """Step 1. Raises NotObservable."""
    G = front.augmented
    if b >= min(G.shape):
        raise da.NotObservable(
            "DPA056",
            f"a batch of {b} cannot be told apart by a layer of {G.shape[0]} units with "
            f"{G.shape[1] - 1} inputs: it needs more of both",
        )
    U, S, Vh = torch.linalg.svd(G, full_matrices=False)
    if not S[b - 1] > _GAP * S[b].clamp(min=_rounding(S)):
        raise da.NotObservable(
            "DPA056",
            f"the first layer's gradient has no rank of {b}: its singular value {b} is "
            f"{S[b - 1]:.1e} and the next {S[b]:.1e}; the message has noise, or other records "
            "in it, or a record twice",
        )
    L, R = U[:, :b] * S[:b], Vh[:b]
    noise = (G - L @ R).norm(dim=1) / math.sqrt(G.shape[1] - b) + _rounding(S)
    units = (L.norm(dim=1) > _SIGMAS * noise).nonzero()[:, 0]
    if len(units) <= b:
        raise da.NotObservable(
            "DPA056", f"a batch of {b} needs more than {b} units that answer to it"
        )
    T = _alike(L[units])
    rows = L[units] @ T
    return _Problem(F.normalize(rows), noise[units] / rows.norm(dim=1), units, L, R, T)


def _rounding(S: Tensor) -> float:
    return float(S[0]) * torch.finfo(S.dtype).eps


def _alike(L: Tensor) -> Tensor:
    """T [b, b] by which the rows of L, at unit length, are alike in all directions."""
    m, b = L.shape
    T = torch.eye(b).to(L)
    for _ in range(_TYLER):
        rows = F.normalize(L @ T)
        factor = torch.linalg.cholesky_ex(b / m * rows.T @ rows)[0]
        T = torch.linalg.solve_triangular(factor.T, T, upper=True, left=False)
    return T / T.norm()


def _search(problem: _Problem, generator: torch.Generator) -> Tensor:
    """Step 2: directions [k, b] nearly orthogonal to many rows."""
    rows = problem.rows
    m, b = rows.shape
    draw = partial(torch.rand, generator=generator, device=generator.device, dtype=rows.dtype)
    power = _LOWEST_POWER + (1 - _LOWEST_POWER) * draw((_DRAWS, 1)).to(rows)
    drawn = draw((_DRAWS, m)).to(rows).topk(b - 1, dim=1).indices
    weights = torch.full((_DRAWS, m), _UNDRAWN).to(rows).scatter(1, drawn, 1.0)
    q = draw((_DRAWS, b)).to(rows) - 0.5
    squares = (rows[:, :, None] * rows[:, None, :]).flatten(1)  # [m, b * b]
    ridge = _RIDGE * torch.eye(b).to(rows)
    width = _WIDTH
    for _ in range(_STEPS):
        A = (weights @ squares).view(-1, b, b)
        A = A / A.diagonal(dim1=1, dim2=2).mean(1)[:, None, None] + ridge
        q = F.normalize(torch.linalg.solve_ex(A, q)[0].nan_to_num())  # towards the kernel of A
        weights = ((q @ rows.T) ** 2 + width**2) ** (power / 2 - 1)
        width *= _NARROWING
    return q


def _improved(problem: _Problem, pool: _Pool, q: Tensor) -> _Pool:
    """Step 3: the pool, with what is better in the directions q [k, b]."""
    found = _promising(problem, torch.cat([q, pool.q]), _LAST_WIDTH)
    parts = _without(problem, found.q, pool)
    found = _sparsest(found, _promising(problem, parts, _LAST_WIDTH))
    return _sparsest(pool, _refitted(problem, found))


def _promising(problem: _Problem, q: Tensor, width: float = 0.0) -> _Pool:
    """The directions that have more zeros than chance gives them."""
    m, b = problem.rows.shape
    zeros = problem.is_zero(q, width).to(q).mean(1)
    many = zeros > (b - 1) / m + _BEYOND_CHANCE
    return _Pool(q[many], zeros[many])


def _without(problem: _Problem, q: Tensor, pool: _Pool) -> Tensor:
    """Each of q [k, b] less what it has of each of the pool: a sum of two columns is one of them.

    The factor r of q - r p is the commonest quotient of their products with the rows.
    """
    r = ((q @ problem.rows.T)[:, None] / (pool.q @ problem.rows.T)).sort(dim=2).values  # [k, n, m]
    window = math.ceil(_BEYOND_CHANCE * r.shape[2])
    spread = (r[:, :, window:] - r[:, :, :-window]).nan_to_num(torch.inf)
    middle = spread.argmin(dim=2, keepdim=True) + window // 2
    r = r.gather(2, middle).nan_to_num(0.0, 0.0, 0.0)
    return F.normalize(q[:, None] - r * pool.q, dim=2).flatten(0, 1)


def _refitted(problem: _Problem, pool: _Pool) -> _Pool:
    """Step 3, first half: each direction as orthogonal as can be to the rows that it nearly is."""
    nearly = _refitted_to(problem, problem.is_zero(pool.q, _LAST_WIDTH))
    return _refitted_to(problem, problem.is_zero(nearly.q))


def _refitted_to(problem: _Problem, zero: Tensor) -> _Pool:
    """Directions as orthogonal as can be to the rows marked in ``zero`` [k, m], by their noise."""
    weighted = (zero / problem.noise)[:, :, None] * problem.rows
    return _promising(problem, torch.linalg.svd(weighted, full_matrices=False).Vh[:, -1])


def _sparsest(*pools: _Pool) -> _Pool:
    """Step 3, second half: as many independent directions as there are, most zeros first."""
    q, zeros = (torch.cat(parts) for parts in zip(*pools, strict=True))
    chosen: list[int] = []
    span = q[:0]
    for i in zeros.argsort(descending=True, stable=True).tolist():
        rest = q[i] - span.T @ (span @ q[i])
        rest = rest - span.T @ (span @ rest)
        if rest.norm() > _NEW:
            chosen.append(i)
            span = torch.cat([span, F.normalize(rest, dim=0)[None]])
        if len(chosen) == q.shape[1]:
            break
    return _Pool(q[chosen], zeros[chosen])


def _completed(front: LeadingLayers, problem: _Problem, pool: _Pool) -> _Pool:
    """The pool with its last direction found: the others reveal its record, that its ReLU.

    Row j of Q^-1 is orthogonal to all columns but column j, so it needs no column j.
    """
    b = problem.rows.shape[1]
    if len(pool.q) < b - 1:
        return pool
    q = torch.cat([pool.q, torch.linalg.svd(pool.q).Vh[len(pool.q) :]])
    zero = _off(front, problem, _inputs(problem, q))
    return _sparsest(pool, _refitted_to(problem, zero))


def _inputs(problem: _Problem, q: Tensor) -> Tensor:
    """Step 4: [b, n] from directions q [b, b]."""
    X = torch.linalg.solve(problem.T @ q.T, problem.R)  # each row up to a factor
    return X[:, :-1] / X[:, -1:]


def _off(front: LeadingLayers, problem: _Problem, inputs: Tensor) -> Tensor:
    """Which units these inputs leave off, [b, m]."""
    W, c = front.linear.parameters["weight"], front.linear.parameters["bias"]
    return (inputs @ W.T + c <= 0)[:, problem.units]


def _separated(front: LeadingLayers, problem: _Problem, pool: _Pool) -> SeparatedRecords | None:
    """Steps 4 and 5; None while directions are missing, or fit no batch."""
    if len(pool.q) < len(problem.R):
        return None
    inputs = _inputs(problem, pool.q)
    zero = problem.is_zero(pool.q)
    agreement = (_off(front, problem, inputs) == zero).to(inputs).mean(1)
    if not agreement.min() >= _AGREEMENT:
        return None
    extended = torch.cat([inputs, torch.ones_like(inputs[:, :1])], dim=1)
    return SeparatedRecords(inputs, torch.linalg.lstsq(extended.T, front.augmented.T).solution.T)
