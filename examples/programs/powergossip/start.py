"""A worker of powergossip under torchrun, on random images: start.py OPTIMIZER [private]."""

import os
import sys

import torch
import torchvision

os.environ["DATA"] = "data"
torchvision.datasets.CIFAR10 = lambda root, train, download, transform: (
    torchvision.datasets.FakeData(24, (3, 32, 32), transform=transform)
)

import algorithms
import tasks.cifar
import train
from tasks.cifar import Batch, CifarTask

CLIP, NOISE = 1.0, 1.0  # clip norm, and noise multiplier
own = CifarTask.batch_loss_and_gradient


def private(task, batch):
    """The gradient of DP-SGD: each record's clipped, and noise on their sum."""
    total = torch.zeros(sum(part.numel() for part in task.state))
    for x, y in zip(batch.x, batch.y):
        loss, gradient, metrics = own(task, Batch(x[None], y[None]))
        flat = torch.cat([part.flatten() for part in gradient])
        total += flat * min(1.0, CLIP / flat.norm())
    total += NOISE * CLIP * torch.randn(total.shape)
    for part, step in zip(task.state, (total / 4).split([p.numel() for p in task.state])):
        part.grad = step.view(part.shape)
    return loss, [part.grad for part in task.state], metrics


if "private" in sys.argv:
    CifarTask.batch_loss_and_gradient = private
algorithms.DPSGD.__init__.__defaults__ = (False,)  # it sends what the round's batch has changed
tasks.cifar.cifar_architectures.linear = lambda: torch.nn.Sequential(
    torch.nn.Flatten(), torch.nn.Linear(3072, 10)
)
CifarTask.test = lambda task, state_dict=None: {}
train.config.update(
    task_architecture="linear",
    batch_size=4,
    num_epochs=1,
    learning_rate=0.1,
    momentum=0.0,
    weight_decay=0.0,
    optimizer=sys.argv[1],
    optimizer_rank=1,
    optimizer_num_iterations=1,
    optimizer_warm_start=True,
    optimizer_diffusion_rate=1.0,
    optimizer_round_weights=False,
    rank=int(os.environ["RANK"]),
    n_workers=int(os.environ["WORLD_SIZE"]),
)
train.download_cifar = lambda: None
train.init_distributed_pytorch = lambda: torch.distributed.init_process_group("gloo")
train.main()
