"""A worker of stochastic_gradient_push under torchrun: start.py small|resnet18 [private|alike].

The program seeds all workers alike. Noise from that seed is the same in each, so that the
difference of two messages has none. "private" draws it from a generator of each worker's own.
"""

import os
import sys
from collections import OrderedDict

import torch
import torchvision
from torch import nn

CLIP, NOISE = 1.0, 1.0  # clip norm, and noise multiplier
asked = sys.argv[1:]
own = torch.Generator().manual_seed(1 + int(os.environ["RANK"]))


def small():
    """A network whose step takes milliseconds."""
    layers = OrderedDict(pool=nn.AdaptiveAvgPool2d(4), flat=nn.Flatten(), fc=nn.Linear(48, 1000))
    return nn.Sequential(layers)


def private(model, criterion, batch, target):
    """The gradient of DP-SGD: each record's clipped, and noise on their sum."""
    parameters = list(model.module.parameters())
    total = torch.zeros(sum(part.numel() for part in parameters))
    for x, y in zip(batch, target):
        loss = criterion(model.module(x[None]), y[None])
        flat = torch.cat([part.flatten() for part in torch.autograd.grad(loss, parameters)])
        total += flat * min(1.0, CLIP / flat.norm())
    total += NOISE * CLIP * torch.randn(total.shape, generator=own if "private" in asked else None)
    for part, step in zip(parameters, (total / 4).split([p.numel() for p in parameters])):
        part.grad.copy_(step.view(part.shape))


torchvision.models.resnet50 = small if asked[0] == "small" else torchvision.models.resnet18
os.environ["SLURM_PROCID"], os.environ["SLURM_NTASKS"] = os.environ["RANK"], "2"
os.environ["HOSTNAME"] = os.environ["MASTER_ADDR"]
os.makedirs("checkpoints", exist_ok=True)
options = {
    "dataset_dir": "images",
    "checkpoint_dir": "checkpoints/",
    "master_port": os.environ["MASTER_PORT"],
    "batch_size": 4,
    "num_epochs": 1,
    "num_iterations_per_training_epoch": 3,
    "num_dataloader_workers": 0,
    "momentum": 0,
    "weight_decay": 0,
    "lr": 12.8,  # of a batch of 256
    "schedule": 30,
}
sys.argv[1:] = [text for key, value in options.items() for text in (f"--{key}", str(value))]

import gossip_sgd

gossip_sgd.private = private if asked[1:] else lambda *of: None
gossip_sgd.main()
