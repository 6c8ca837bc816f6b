"""Many models of one architecture in one pass, and every record's gradient from it.

One pass serves n data holders, r records of each one's batch, and k models on each batch. Holders
and records are the batch dimension, and models share the feature dimension: [n r, k features, ...].
So the network's own forward runs unchanged; only layers with parameters are replaced, by ones that
give each model its own weights and keep their input. What models share is computed once.

The backward pass goes to the outputs of these layers alone: a weight's gradient at a record is the
product of output gradient and input there, so norms and weighted sums over records need no backward
pass per record (Goodfellow 2015, arXiv:1510.01799; Bu et al. 2023, arXiv:2210.00038).
"""

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpaudit.errors import DpauditError

from .gradient_terms import RecordGradients
from .layers import LAYERS, Block, Layer, MaxPool, keep_channels_last
from .models import n_parameters, parameters_of
from .networks import Shape, logits_of

# networks of nothing else keep the features of models apart, so that models can share a batch
_FEATUREWISE = (
    nn.Sequential, nn.Linear, nn.Conv2d, nn.GroupNorm,
    nn.Flatten, nn.Identity, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d,
    nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Softplus, nn.Tanh, nn.Sigmoid,
)  # fmt: skip


class Stacked:
    """One architecture, run at many parameter vectors at once.

    ``shares`` says whether k > 1 is possible: nothing in the network mixes features of models.
    """

    mixes_records = False
    differentiates = True

    def __init__(
        self, module: nn.Module, dtype: torch.dtype = torch.float32, positions: int = 0
    ) -> None:
        self.module, self.dtype, self.positions = module, dtype, positions  # positions of a record
        self.shares = all(map(_featurewise, module.modules()))
        self.network = _counterpart(deepcopy(module), "")
        if self.shares:
            keep_channels_last(self.network)
        self.layers = [m for m in self.network.modules() if isinstance(m, Layer)]

    @staticmethod
    def supports(module: nn.Module) -> bool:
        """Whether every parameter belongs to one layer of a kind that is known here.

        None is frozen: those are buffers, which models side by side would have to repeat.
        """
        if any(True for _ in module.buffers()):
            return False
        owners = [m for m in module.modules() if _has_parameters(m)]
        n_uses = sum(len(list(m.parameters(recurse=False))) for m in owners)
        return n_uses == len(list(module.parameters())) and all(map(_known, owners))

    def logits(self, X: Tensor, inputs: Tensor) -> Tensor:
        block = Block(inputs.shape[0], inputs.shape[1], X.shape[1])
        self._prepare(block, parameters_of(self.module, X))
        logits = logits_of(self.network(inputs.flatten(0, 1)), self.positions > 0)
        return logits.reshape(*block, *logits.shape[1:-1], logits.shape[-1] // block.k)

    def records(
        self, X: Tensor, inputs: Tensor, labels: Tensor, create_graph: bool
    ) -> RecordGradients:
        if not create_graph:
            X, inputs, labels = X.detach(), inputs.detach(), labels.detach()
        with torch.enable_grad():
            logits = self._seen_logits(X, inputs)
            outputs, kept = zip(*(layer.seen[0] for layer in self.layers), strict=True)
            if create_graph:
                loss = cross_entropy(logits, labels).sum()
                gradients = torch.autograd.grad(loss, outputs, create_graph=True)
            else:
                slopes = cross_entropy_slopes(logits.detach(), labels)
                # of a sum, as torch loads its symbolic shapes, for a second, where slopes are given
                gradients = torch.autograd.grad((logits * slopes).sum(), outputs)
        with torch.set_grad_enabled(create_graph):
            parts = zip(self.layers, kept, gradients, strict=True)
            terms = [
                t
                for layer, k, G in parts
                for t in layer.terms(k if create_graph else k.detach(), G)
            ]
        self._prepare(Block(0, 0, 0), {})
        return RecordGradients(terms)

    def _seen_logits(self, X: Tensor, inputs: Tensor) -> Tensor:
        """Logits, after which each layer has its output as it was.

        A layer whose output the network overwrites gives a copy of it from now on.

        Raises:
            DpauditError: it is overwritten otherwise.
        """
        try:
            logits = self.logits(X, inputs)
            overwritten = [layer for layer in self.layers if layer.is_overwritten]
        except RuntimeError as error:  # no gradient is needed before this output
            if "in-place" not in str(error):
                raise
            overwritten = self.layers
        if not overwritten:
            return logits
        for layer in overwritten:
            layer.copies = True
        logits = self.logits(X, inputs)
        if any(layer.is_overwritten for layer in self.layers):
            raise DpauditError(
                "DPA036", "per-record gradients need a network that overwrites no layer's input"
            )
        return logits

    def total(self, X: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        """The sum of all records' gradients, [n, k, d], which can be differentiated.

        No record's own gradient is made: each layer has one sum over records.
        """
        with torch.enable_grad():
            X = X if X.requires_grad else X.detach().requires_grad_()
            loss = cross_entropy(self.logits(X, inputs), labels).sum()
            (total,) = torch.autograd.grad(loss, X, create_graph=True)
        self._prepare(Block(0, 0, 0), {})
        return total

    def floats(self, shape: torch.Size) -> int:
        count = 0

        def add(layer: nn.Module, _: object, y: Tensor) -> None:
            nonlocal count
            count += layer.floats(y) if isinstance(layer, Layer) else 2 * y.numel()

        leaves = [m for m in self.network.modules() if not any(True for _ in m.children())]
        hooks = [m.register_forward_hook(add) for m in leaves]
        with torch.no_grad():
            self.logits(torch.zeros(1, 1, n_parameters(self.module)), self._zeros(shape))
        for hook in hooks:
            hook.remove()
        return count

    def _zeros(self, shape: Shape) -> Tensor:
        """A record [1, 1, *shape], of numbers of torch's default precision."""
        dtype = torch.get_default_dtype() if self.dtype.is_floating_point else self.dtype
        return torch.zeros(1, 1, *shape, dtype=dtype)

    def _prepare(self, block: Block, parameters: dict[str, Tensor]) -> None:
        for layer in self.layers:
            layer.prepare(block, parameters)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Loss of each model at each record [n, r, k]; labels [n, r] or [n, r, n_classes].

    With labels [n, r, positions], the mean over positions of logits [n, r, k, positions, classes].
    """
    n, r, k, *_ = at = logits.shape[:-1]
    labels = labels.unsqueeze(2).expand(n, r, k, *labels.shape[2:])
    rows = labels.flatten(0, len(at) - 1)
    losses = F.cross_entropy(logits.flatten(0, -2), rows, reduction="none")
    return of_records(losses.view(at))


def of_records(values: Tensor) -> Tensor:
    """Values of records [n, r, k]: of values at positions, [n, r, k, positions], their mean."""
    return values.mean(dim=3) if values.ndim > 3 else values


def cross_entropy_slopes(logits: Tensor, labels: Tensor) -> Tensor:
    """Derivatives of ``cross_entropy`` in the logits, as these: softmax - truth.

    Of labels at positions, each is divided by their number.

    Written out because autograd's own softmax over a few classes, which lie side by side in
    memory, takes six times as long.
    """
    slopes = (logits - logits.amax(dim=-1, keepdim=True)).exp_()
    slopes /= slopes.sum(dim=-1, keepdim=True)
    labels = labels.unsqueeze(2)
    if labels.ndim == logits.ndim:  # probabilities, which need not sum to 1
        return slopes * labels.sum(dim=-1, keepdim=True) - labels
    truth = labels.expand(logits.shape[:-1]).unsqueeze(-1)
    slopes = slopes.scatter_add_(-1, truth, slopes.new_full((1,), -1.0).expand(truth.shape))
    return slopes.div_(logits.shape[3]) if logits.ndim > 4 else slopes


def _has_parameters(layer: nn.Module) -> bool:
    return next(layer.parameters(recurse=False), None) is not None


def _known(layer: nn.Module) -> bool:
    if isinstance(layer, nn.LayerNorm) and (layer.bias is None or len(layer.normalized_shape) > 1):
        return False
    if isinstance(layer, nn.Embedding) and (
        layer.max_norm is not None or layer.scale_grad_by_freq or layer.padding_idx is not None
    ):
        return False
    if isinstance(layer, nn.Conv2d):
        padded_plainly = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        if layer.groups > 1 or not padded_plainly:
            return False
    return type(layer) in LAYERS


def _featurewise(layer: nn.Module) -> bool:
    if isinstance(layer, nn.GroupNorm) and not layer.affine:
        return False
    return type(layer) in _FEATUREWISE


def _counterpart(module: nn.Module, path: str) -> nn.Module:
    """The module with its layers replaced; ``path`` is the prefix of its parameters' names."""
    if _has_parameters(module):
        return LAYERS[type(module)](path, module)
    if isinstance(module, nn.MaxPool2d):
        return MaxPool(module)
    if isinstance(module, nn.ReLU):
        return nn.ReLU()  # an in-place ReLU would overwrite outputs that are needed for gradients
    for name, child in module.named_children():
        setattr(module, name, _counterpart(child, f"{path}{name}."))
    return module
