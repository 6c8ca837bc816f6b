"""An image from the gradient of a vision transformer, in closed form.

The patches P [n, c p^2] of an image are projected, z = P W' + b, and a position embedding is added.
So the gradient of the position embedding holds dL/dz, row by row, and that of the projection is
dL/dW = (dL/dz)' P. If the rows of dL/dz are independent, P is the solution of these equations,
whatever comes after the embedding, and whatever factor both gradients have.

Source: the position embedding's gradient as the key is that of Lu et al. 2022 (APRIL), CVPR, arXiv:
2112.14087. Departure: it solves for z by the first attention layer, which must then have neither
normalisation nor a residual; the projection's own gradient needs no such layer.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dpaudit.attack as da
from dpaudit.models.models import parameters_of

_FITS = 1e-2  # relative to the length of dL/db, which is the sum of the rows of dL/dz
_INDEPENDENT = 1e-7  # relative to the largest singular value; float32 resolves no less


def image_of_patches(task: da.Task, gradient: Tensor) -> Tensor | None:
    """The image [1, *shape] of one record's gradient [d]; None: the network has no such embedding.

    Raises:
        NotObservable: some patches receive the same gradient as others, or none.
    """
    module, (c, height, width) = task.gradients.module, task.shape
    found = _projection(module)
    if found is None:
        return None
    path, conv = found
    p = conv.kernel_size[0]
    n, size = (height // p) * (width // p), conv.out_channels
    parts = {name: g.double() for name, g in parameters_of(module, gradient).items()}
    shapes = ((n, size), (n + 1, size))
    names = [name for name, g in parts.items() if g.ndim > 1 and tuple(g.shape[-2:]) in shapes]
    for name in names:
        dz = parts[name].reshape(-1, size)[-n:]
        off = parts[f"{path}.bias"] - dz.sum(0)
        if off.norm() <= _FITS * dz.sum(0).norm():
            break
    else:
        return None
    S = torch.linalg.svdvals(dz)
    if len(S) < n or S[-1] <= _INDEPENDENT * S[0]:
        raise da.NotObservable(
            "DPA055",
            f"the {n} patches of an image receive gradients of rank "
            f"{int((_INDEPENDENT * S[0] < S).sum())}: their equations leave part of it open",
        )
    P = torch.linalg.pinv(dz.mT) @ parts[f"{path}.weight"].flatten(1)
    folded = F.fold(P.mT[None], (height, width), kernel_size=p, stride=p)
    assert folded.shape[1] == c
    return folded


def label_of(task: da.Task, gradient: Tensor, model: Tensor, image: Tensor) -> Tensor:
    """The class with which an image [1, *shape] has the gradient that is most like one, [1]."""
    n = task.n_classes
    models, labels = model.expand(n, -1), torch.arange(n, device=model.device)[:, None]
    found = task.gradients.mean(models, image.expand(n, 1, *image.shape[1:]), labels)
    return F.cosine_similarity(found, gradient[None]).argmax(0, keepdim=True)


def _projection(module: nn.Module) -> tuple[str, nn.Conv2d] | None:
    """The first convolution, if it reads patches that do not overlap, and has a bias.

    None where one of its own is frozen, so that no gradient of it is sent.
    """
    sent = {name for name, _ in module.named_parameters()}
    for path, layer in module.named_modules():
        if isinstance(layer, nn.Conv2d):
            p = layer.kernel_size[0]
            plain = layer.kernel_size == layer.stride == (p, p) and layer.padding in ((0, 0), 0)
            whole = {f"{path}.{kind}".lstrip(".") for kind in ("weight", "bias")} <= sent
            fits = plain and p > 1 and layer.groups == 1 and whole
            return (path, layer) if fits else None
    return None
