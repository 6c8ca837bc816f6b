"""Per-record gradients of stacked models: clipped and summed, averaged, or one by one."""

import warnings
from collections.abc import Iterable, Iterator
from functools import partial
from math import ceil, inf, isinf
from sys import maxsize
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from dpaudit.errors import ConfigError, DpauditError, is_out_of_memory
from dpaudit.tensor_memory import counted

from .gradient_check import agrees
from .gradient_terms import Each, RecordGradients
from .lockstep import Lockstep
from .models import n_parameters, parameters_of
from .networks import Shape, call, logits_of
from .perceptron import Perceptron
from .stacked import Stacked, cross_entropy, of_records

_CHUNK = 2**27  # bytes that one pass may hold: less costs calls, more costs memory
_RECORDS = 16  # records in one pass, before several models or holders share it

Rows = Tensor | slice


class Engine(Protocol):
    """How the gradients of a block of n holders, r records and k models are found."""

    shares: bool  # whether k > 1 is possible
    mixes_records: bool  # whether a batch cannot be divided
    differentiates: bool  # whether it needs automatic differentiation

    def logits(self, X: Tensor, inputs: Tensor) -> Tensor:
        """[n, r, k, n_classes] of models X [n, k, d] on inputs [n, r, ...].

        Where records have labels at positions, [n, r, k, positions, n_classes].
        """
        ...

    def records(
        self, X: Tensor, inputs: Tensor, labels: Tensor, create_graph: bool
    ) -> RecordGradients:
        """Every record's gradient of the cross-entropy; labels [n, r] or [n, r, n_classes]."""
        ...

    def floats(self, shape: torch.Size) -> int:
        """How many numbers a pass holds for each record and model; an estimate from above."""
        ...


class Pass(NamedTuple):
    """What is computed at once: models of some holders, and records of these holders' batches."""

    models: Rows  # n k of them
    records: slice  # r of them
    X: Tensor  # [n, k, d]
    inputs: Tensor  # [n, r, ...]
    labels: Tensor  # [n, r], [n, r, positions] or [n, r, n_classes]
    factors: Tensor | None = None  # [n, r, k], of the records; None: 1
    is_all: bool = False  # whether it is the one pass over all models, in order, and all records


class Gradients:
    """Gradients of the cross-entropy loss of one architecture, at many parameter vectors at once.

    Arguments of all methods:
        X: [m, d], one parameter vector per model.
        inputs: [n, b, *image shape], batches of b records of n data holders.
        labels: [n, b] class indices, or [n, b, n_classes] probabilities; [n, b, positions] class
            indices where records have labels at so many ``positions``, whose mean is their loss.
        holders: [m], on whose batch each model is evaluated; default 0, 1, ..., m - 1 (m = n).
        weights: [n, b], a factor for each record after clipping (0 for padding); default 1.
        create_graph: results can be differentiated with respect to X, inputs and soft labels.

    Networks of linear, convolutional and group normalisation layers run stacked
    (`stacked`), others model by model, as do those that use a layer otherwise than once, if they
    are tried on a record, of a shape ``tried_on``; records are of a ``dtype``, token ids of an
    integer one. Memory is bounded by a chunk size, but for
    ``create_graph``, whose graph holds all models and records.
    """

    def __init__(
        self,
        module: nn.Module,
        tried_on: Shape | None = None,
        dtype: torch.dtype = torch.float32,
        positions: int = 0,
    ) -> None:
        self.module, self.dtype, self.positions = module, dtype, positions
        self.d = n_parameters(module)
        self._engine = _engine(module, tried_on, dtype, positions)
        is_stacked = isinstance(self._engine, Stacked) and not positions
        self._lockstep = Lockstep(module) if is_stacked else None
        self._floats: dict[torch.Size, int] = {}
        self._counts: dict[tuple[object, ...], int] = {}  # bytes, by what was asked

    @property
    def differentiates(self) -> bool:
        """Whether they come from automatic differentiation, without ``create_graph`` too."""
        return self._engine.differentiates

    def clipped_sum(
        self,
        X: Tensor,
        inputs: Tensor,
        labels: Tensor,
        clip_norm: float | None,
        norm: int = 2,
        weights: Tensor | None = None,
        holders: Tensor | None = None,
        create_graph: bool = False,
    ) -> Tensor:
        """The sum over records of gradients clipped to L1 or L2 norm ``clip_norm``, [m, d].

        Each gradient g counts as g min(1, C / |g|); C = inf or None clips nothing.

        Raises:
            ConfigError: ``clip_norm`` is not positive.
            DpauditError: the network has batch normalisation, and C is finite.
        """
        C = inf if clip_norm is None else clip_norm
        if not C > 0:
            raise ConfigError("DPA071", f"clip norm must be positive, got {C}")
        fast = None if create_graph or (norm != 2 and not isinf(C)) else self._lockstep
        if fast is not None and fast.takes(X, inputs, labels, holders):
            return fast.clipped_sum(X, inputs, labels, C, weights, holders)
        total = torch.empty_like(X) if inputs.shape[1] else torch.zeros_like(X)
        for p in self._passes(X, inputs, labels, holders, weights, create_graph, not isinf(C)):
            records = self._engine.records(p.X, p.inputs, p.labels, create_graph)
            factors = p.factors
            if not isinf(C):
                clipping = _clipping(records.powers(norm), C, norm)
                factors = clipping if factors is None else clipping * factors
            parts = records.weighted(factors)
            if create_graph:
                parts = iter([torch.cat([*parts], dim=-1)])
            _add(total, p.models, parts, first=p.records.start == 0)
        return total

    def differentiable_sum(self, X: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        """The sum over records of gradients that nothing clips, [m, d], with its graph.

        The same as ``clipped_sum`` with ``create_graph``, but stacked models make no record's own.
        """
        if isinstance(self._engine, Stacked):
            return self._engine.total(X.unsqueeze(1), inputs, labels).squeeze(1)
        return self.clipped_sum(X, inputs, labels, None, create_graph=True)

    def part(
        self,
        X: Tensor,
        inputs: Tensor,
        labels: Tensor,
        coordinates: slice,
        weights: Tensor | None = None,
        holders: Tensor | None = None,
    ) -> Tensor:
        """Coordinates in a row of the sum of gradients that nothing clips, [m, stop - start]."""
        total: Tensor | None = None
        for p in self._passes(X, inputs, labels, holders, weights):
            records = self._engine.records(p.X, p.inputs, p.labels, False)
            sums = records.part(p.factors, coordinates)
            if p.is_all:
                return sums
            total = sums.new_zeros(X.shape[0], sums.shape[1]) if total is None else total
            total[p.models] += sums
        return torch.zeros_like(X[:, coordinates]) if total is None else total

    def mean(
        self,
        X: Tensor,
        inputs: Tensor,
        labels: Tensor,
        weights: Tensor | None = None,
        holders: Tensor | None = None,
        create_graph: bool = False,
    ) -> Tensor:
        """The weighted mean gradient without clipping, [m, d]; 0 where all weights are 0."""
        total = self.clipped_sum(X, inputs, labels, None, 2, weights, holders, create_graph)
        if weights is None:
            return total / max(1, inputs.shape[1])
        counts = weights.sum(dim=1, keepdim=True, dtype=total.dtype)
        counts = counts if holders is None else counts[holders]
        return total / counts.where(counts > 0, 1)

    def norms(
        self,
        X: Tensor,
        inputs: Tensor,
        labels: Tensor,
        norm: int = 2,
        holders: Tensor | None = None,
    ) -> Tensor:
        """L1 or L2 norm of each record's gradient, [m, b]."""
        result = X.new_empty(len(X), inputs.shape[1])
        for p in self._passes(X, inputs, labels, holders, one_by_one=True):
            records = self._engine.records(p.X, p.inputs, p.labels, False)
            lengths = (records.powers(norm) ** (1 / norm)).transpose(1, 2)
            result[p.models, p.records] = lengths.flatten(0, 1)
        return result

    def per_record(
        self,
        X: Tensor,
        inputs: Tensor,
        labels: Tensor,
        holders: Tensor | None = None,
        create_graph: bool = False,
    ) -> Tensor:
        """The gradient of each record, [m, b, d]: for small cases."""
        result = X.new_empty(len(X), inputs.shape[1], self.d)
        for p in self._passes(X, inputs, labels, holders, whole=create_graph, one_by_one=True):
            records = self._engine.records(p.X, p.inputs, p.labels, create_graph)
            result[p.models, p.records] = records.each().transpose(1, 2).flatten(0, 1)
        return result

    def evaluate(
        self, X: Tensor, inputs: Tensor, labels: Tensor, holders: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Mean loss [m] and accuracy [m] of each model on the labelled records.

        Of labels at positions, the accuracy is the share of all positions.
        """
        loss, correct = X.new_zeros(len(X)), X.new_zeros(len(X))
        with torch.no_grad():
            for p in self._passes(X, inputs, labels, holders):
                logits = self._engine.logits(p.X, p.inputs)
                truth = p.labels.argmax(-1) if p.labels.is_floating_point() else p.labels
                hits = of_records((logits.argmax(-1) == truth.unsqueeze(2)).to(X.dtype))
                loss[p.models] += cross_entropy(logits, p.labels).sum(1).flatten()
                correct[p.models] += hits.sum(1).flatten()
        return loss / inputs.shape[1], correct / inputs.shape[1]

    def log_odds(
        self, X: Tensor, inputs: Tensor, labels: Tensor, holders: Tensor | None = None
    ) -> Tensor:
        """ln p / (1 - p) of each record's class indices, [m, b]: p is the model's probability.

        Of labels at positions, the mean over them.
        """
        result = X.new_empty(len(X), inputs.shape[1])
        with torch.no_grad():
            for p in self._passes(X, inputs, labels, holders):
                logits = self._engine.logits(p.X, p.inputs)  # [n, r, k, (positions,) n_classes]
                at = p.labels.unsqueeze(2).unsqueeze(-1).expand(*logits.shape[:-1], 1)
                own = logits.gather(-1, at).squeeze(-1)
                others = logits.scatter(-1, at, -inf).logsumexp(dim=-1)
                odds = of_records(own - others)
                result[p.models, p.records] = odds.transpose(1, 2).flatten(0, 1)
        return result

    def _passes(
        self,
        X: Tensor,
        inputs: Tensor,
        labels: Tensor,
        holders: Tensor | None,
        weights: Tensor | None = None,
        whole: bool = False,
        one_by_one: bool = False,
    ) -> Iterator[Pass]:
        """All in parts, or in one if ``whole``; ``one_by_one``: for gradients of single records."""
        if holders is None and len(X) != len(inputs):
            raise ValueError(f"{len(X)} models on {len(inputs)} batches: say whose with `holders`")
        if self._engine.mixes_records and weights is not None:
            raise DpauditError(
                "DPA036", "with batch normalisation, records cannot be weighted or padded"
            )
        if self._engine.mixes_records and one_by_one:
            raise DpauditError(
                "DPA036",
                "batch normalisation makes a record's gradient depend on the rest of the batch: "
                "clipping it bounds nothing, so choose a network without",
            )
        weights = None if weights is None else weights.to(X.dtype).unsqueeze(-1)
        b = inputs.shape[1]
        pairs = maxsize if whole else self._most_pairs(inputs.shape[2:], X.element_size())
        if holders is None and 0 < inputs.shape[:2].numel() <= pairs:
            everything = slice(0, len(X)), slice(0, b)
            yield Pass(*everything, X.unsqueeze(1), inputs, labels, weights, is_all=True)
            return
        least = b if self._engine.mixes_records else self._least_records(inputs.shape[2:])
        shares = self._engine.shares and not whole
        for models, k, rows, size in _blocks(inputs.shape, holders, shares, pairs, least):
            x, a, y = X[models].unflatten(0, (-1, k)), inputs[rows], labels[rows]
            w = None if weights is None else weights[rows].expand(-1, -1, k)
            for start in range(0, b, size):
                some = slice(start, start + size)
                factors = None if w is None else w[:, some]
                yield Pass(models, some, x, a[:, some], y[:, some], factors)

    def pass_bytes(
        self, models: int, b: int, shape: torch.Size, dtype: torch.dtype = torch.float32
    ) -> int:
        """Memory of ``clipped_sum`` of so many models on batches of b records of this shape.

        Its result is part of it only as far as one pass makes it.
        """
        b = max(b, 2)  # normalisation needs two for statistics
        at_once = max(1, -(-self._most_pairs(shape, dtype.itemsize) // b))
        models = min(models, at_once)
        asked = models, b, shape, dtype
        if asked in self._counts:
            return self._counts[asked]
        size = dtype.itemsize * models * (self.d + b * self._floats_of(shape))
        device = "cpu" if size <= 2 * _CHUNK else "meta"  # the meta device imports torch's compiler
        if device == "meta" and any(True for _ in self.module.buffers()):
            return size  # frozen parameters have values on a device
        X = torch.zeros(models, self.d, dtype=dtype, device=device)
        of_records = dtype if self.dtype.is_floating_point else self.dtype
        inputs = torch.zeros(models, b, *shape, dtype=of_records, device=device)
        labels = torch.zeros(models, b, self.positions or 1, dtype=torch.long, device=device)
        labels = labels if self.positions else labels[..., 0]
        C = None if self._engine.mixes_records else 1.0
        self._counts[asked] = counted(lambda: self.clipped_sum(X, inputs, labels, C))
        return self._counts[asked]

    def _most_pairs(self, shape: torch.Size, itemsize: int) -> int:
        """How many records times models one pass may have."""
        return max(1, _CHUNK // itemsize // self._floats_of(shape))

    def _least_records(self, shape: torch.Size) -> int:
        """So many of a batch that reading the model is the smaller part of a pass."""
        return max(_RECORDS, 4 * self.d // self._floats_of(shape))

    def _floats_of(self, shape: torch.Size) -> int:
        if shape not in self._floats:
            self._floats[shape] = self._engine.floats(shape)
        return self._floats[shape]


def _engine(
    module: nn.Module, tried_on: Shape | None, dtype: torch.dtype, positions: int
) -> Engine:
    """The engine for a network; a network of somebody else is first tried on some records."""
    if any("BatchNorm" in type(layer).__name__ for layer in module.modules()):
        return OneByOne(module, mixes_records=True, at_positions=positions > 0)
    plain = OneByOne(module, mixes_records=False, at_positions=positions > 0)
    fast: Engine | None = None
    if not positions and Perceptron.supports(module):
        fast = Perceptron(module)
    elif Stacked.supports(module):
        fast = Stacked(module, dtype, positions)
    if fast is None or (tried_on and not agrees(fast, plain, tried_on, dtype, positions)):
        return plain
    return fast


class OneByOne:
    """Gradients of any network, one model after the other: slower than `stacked`.

    Where batch normalisation mixes records, a record has no gradient of its own: that of the batch
    stands for them all. Statistics are those of the batch at hand, in evaluation as well.
    """

    shares = True
    differentiates = True

    def __init__(self, module: nn.Module, mixes_records: bool, at_positions: bool = False) -> None:
        self.module, self.mixes_records, self.at_positions = module, mixes_records, at_positions
        self._maps = True  # until a forward turns out to look at the values of its records

    def logits(self, X: Tensor, inputs: Tensor) -> Tensor:
        pairs = zip(X, inputs, strict=True)
        rows = [torch.stack([self._call(x, batch) for x in xs], dim=1) for xs, batch in pairs]
        return torch.stack(rows)

    def records(
        self, X: Tensor, inputs: Tensor, labels: Tensor, create_graph: bool
    ) -> RecordGradients:
        own = self._of_batch if self.mixes_records else partial(self._of_records, create_graph)
        with torch.set_grad_enabled(create_graph):
            batches = zip(X, inputs, labels, strict=True)
            G = [torch.stack([own(x, *batch) for x in xs], dim=1) for xs, *batch in batches]
            return RecordGradients([Each(torch.stack(G))])

    def floats(self, shape: torch.Size) -> int:
        return (1 if self.mixes_records else 3) * n_parameters(self.module)

    def _of_batch(self, x: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        """[1, d]."""
        return grad(self.loss)(x, inputs, labels)[None]

    def _of_records(self, create_graph: bool, x: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        """[r, d]."""
        records, one = (inputs[:, None], labels[:, None]), grad(self.loss)
        with sdpa_kernel(SDPBackend.MATH):  # vmap loops over other kernels, and warns
            if not create_graph and self._maps:
                try:
                    with warnings.catch_warnings():  # advice to torch's authors alone
                        warnings.filterwarnings("ignore", "There is a performance drop")
                        return vmap(one, in_dims=(None, 0, 0))(x, *records)
                except RuntimeError as error:  # vmap's, about the layer; or the loop fails, too
                    if is_out_of_memory(error):
                        raise
                    self._maps = False
            # vmap's result has wrong derivatives for layer normalisation (torch 2.13)
            return torch.stack([one(x, *record) for record in zip(*records, strict=True)])

    def loss(self, x: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        """The sum over records of the loss of a model [d]."""
        logits = self._call(x, inputs)
        return cross_entropy(logits[None, :, None], labels[None]).sum()

    def _call(self, x: Tensor, inputs: Tensor) -> Tensor:
        output = call(self.module, parameters_of(self.module, x), inputs)
        return logits_of(output, self.at_positions)


def _blocks(
    shape: torch.Size, holders: Tensor | None, shares: bool, pairs: int, least: int
) -> Iterator[tuple[Rows, int, Rows, int]]:
    """n k models, k, their n holders, and how many records of their batches make one pass."""
    n, b, *_ = shape
    if holders is None:
        r, _, size = _sizes(b, 1, pairs, least)
        for start in range(0, n, size):
            rows = slice(start, start + size)
            yield rows, 1, rows, r
        return
    models = torch.arange(len(holders), device=holders.device).unsqueeze(1)
    for group in _by_holder(holders) if shares else [models]:
        r, k, size = _sizes(b, group.shape[1], pairs, least)
        for rows_of_models in group.split(size):
            for some in rows_of_models.split(k, dim=1):
                yield _rows(some.flatten()), some.shape[1], _rows(holders[some[:, 0]]), r


def _rows(indices: Tensor) -> Rows:
    """Rows that follow each other as a slice, which takes no copy."""
    start, stop = int(indices[0]), int(indices[-1]) + 1
    follow = torch.arange(start, start + len(indices), device=indices.device)
    return slice(start, stop) if torch.equal(indices, follow) else indices


def _sizes(b: int, k: int, pairs: int, least: int) -> tuple[int, int, int]:
    """r, k and n of a pass with about so many pairs of a record and a model."""
    r = max(1, min(b, max(pairs // k, least)))
    r = ceil(b / ceil(max(b, 1) / r)) or 1  # passes of equal length
    k = min(k, max(pairs // r, 1))
    return r, k, max(pairs // (r * k), 1)


def _by_holder(holders: Tensor) -> list[Tensor]:
    """Models with the same holder in rows: [n, k] for each k that occurs."""
    order = holders.argsort(stable=True)
    n_models = holders.bincount()[holders[order]]
    return [order[n_models == k].view(-1, k) for k in n_models.unique().tolist()]


def _clipping(powers: Tensor, C: float, norm: int) -> Tensor:
    """min(1, C / length) from length^norm; no division by 0, also in its derivative."""
    bound = C**norm
    return (bound / powers.clamp(min=bound)) ** (1 / norm)


def _add(total: Tensor, models: Rows, parts: Iterable[Tensor], first: bool) -> None:
    """Add parts [n k, size], which follow each other in d, to the rows of these models.

    The ``first`` ones that a model is given are written over what was there.
    """
    start = 0
    for part in parts:
        stop = start + part.shape[-1]
        columns = total[:, start:stop]
        if isinstance(models, slice):
            columns[models].copy_(part) if first else columns[models].add_(part)
        else:
            columns.index_copy_(0, models, part) if first else columns.index_add_(0, models, part)
        start = stop
