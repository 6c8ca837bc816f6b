"""Whether gradients that are found in one pass are right for a network of somebody else."""

from typing import TYPE_CHECKING

import torch

from dpaudit.errors import DpauditError

from .models import initial_parameters
from .networks import Shape

if TYPE_CHECKING:
    from .gradients import Engine, OneByOne

SAME = 1e-3  # relative to the largest number of a gradient: less is rounding


def agrees(
    fast: "Engine", plain: "OneByOne", shape: Shape, dtype: torch.dtype, positions: int
) -> bool:
    """Whether each of two records has the gradient of automatic differentiation.

    A network may use its layers otherwise: twice, never, or their weights by themselves. It may
    change by hooks what they give, or have its records in another order within.

    Args:
        plain: gradients of the same network, one by one.
        shape, dtype: of a record; token ids are 0.
        positions: of a record that have labels; 0: it has one.
    """
    generator = torch.Generator().manual_seed(0)
    X = initial_parameters(plain.module, generator)[None, None]
    X += 0.02 * torch.randn(X.shape, generator=generator)
    inputs = torch.zeros(1, 2, *shape, dtype=None if dtype.is_floating_point else dtype)
    if dtype.is_floating_point:
        inputs.normal_(generator=generator)
    labels = torch.tensor([[0, -1]])
    labels = labels[..., None].expand(1, 2, positions) if positions else labels
    try:
        labels = labels % fast.logits(X, inputs).shape[-1]
        found = fast.records(X, inputs, labels, create_graph=False).each()
    except (AttributeError, DpauditError, LookupError, RuntimeError):
        return False
    model = X.flatten().requires_grad_()
    try:  # not by torch.func, which takes seconds to load
        with torch.enable_grad():
            losses = [plain.loss(model, inputs[:, i], labels[:, i]) for i in (0, 1)]
        expected = torch.cat([torch.autograd.grad(one, model)[0] for one in losses])
    except Exception:  # a caller's code may raise anything: there is nothing to compare with
        return True
    if found.numel() != expected.numel():
        return False
    near = (found.flatten() - expected).abs() <= SAME * expected.abs().max()
    return bool(near.all()) or not expected.isfinite().all()
