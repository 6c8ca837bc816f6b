"""A worker of PartPSP under torchrun: start.py as-it-is|fixed|trained.

"fixed" and "trained" put the gradient of DP-SGD in the place of that of the shared layers, and take
no noise of the program's own. "trained" also trains the local layers, as the program does, on the
same batch before.
"""

import os
import sys
from types import SimpleNamespace

import torch
from torch.utils.data import TensorDataset

SIDE, RECORDS, CLIP, NOISE = 2, 24, 1.0, 1.0  # pixels, records, clip norm, and noise multiplier
how = sys.argv[1]
own = torch.Generator().manual_seed(1 + int(os.environ["RANK"]))


def images(train, **given):
    """In the place of MNIST."""
    numbers, n = torch.Generator().manual_seed(3), RECORDS if train else 4
    x = torch.randn(n, 1, SIDE, SIDE, generator=numbers)
    return TensorDataset(x, torch.randint(10, (n,), generator=numbers))


def small(num_classes, **given):
    """Their smallest network, of fewer inputs."""
    with torch.random.fork_rng():
        torch.manual_seed(4)
        shared = bottleMLP.Com1FrontFFN(SIDE**2, num_classes)
        return shared, bottleMLP.Com1BackFFN(num_classes, SIDE**2, num_classes)


def private(shared, local, criterion, batch, target):
    """The gradient of DP-SGD: each record's clipped, and noise on their sum."""
    parameters = list(shared.parameters())
    total = torch.zeros(sum(part.numel() for part in parameters))
    for x, y in zip(batch, target):
        loss = criterion(local(shared(x[None])), y[None])
        flat = torch.cat([part.flatten() for part in torch.autograd.grad(loss, parameters)])
        total += flat * min(1.0, CLIP / flat.norm())
    total += NOISE * CLIP * torch.randn(total.shape, generator=own)
    for part, step in zip(parameters, total.split([part.numel() for part in parameters])):
        part.grad.copy_(step.view(part.shape))


sys.argv[1:] = ["--dp_noise", "--port", os.environ["MASTER_PORT"], "--world-size", "3"]
sys.argv += ["--strategy", "Generate", "--epochs", "1", "--batch_size", "4", "--pretrained"]
sys.argv += ["--eva_store_path", "."] + ([] if how == "as-it-is" else ["--noi_lr", "0"])
sys.argv += ["--cla_lr", {"fixed": "0", "trained": "1"}.get(how, "0.1")]

import fused_run
import fused_train
from models import bottleMLP

os.makedirs("mnist/fused", exist_ok=True)
fused_train.datasets = SimpleNamespace(MNIST=images)
fused_train.MLPloader = SimpleNamespace(fused_torch_bottmlp_loader=small)
fused_train.private = (lambda *given: None) if how == "as-it-is" else private
fused_run.mp.spawn = lambda fn, args, nprocs: fn(int(os.environ["RANK"]), *args)
fused_run.main()
