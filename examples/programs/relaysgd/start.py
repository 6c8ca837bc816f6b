"""A worker of relaysgd under torchrun, on random images: start.py ALGORITHM [private]."""

import os
import sys

import torch
import torchvision

os.environ["DATA"] = "data"
torchvision.datasets.CIFAR10 = lambda root, train, download, transform: (
    torchvision.datasets.FakeData(24, (3, 32, 32), transform=transform)
)

import train
from tasks.api import Batch
from tasks.cifar import CifarTask

CLIP, NOISE = 1.0, 1.0  # clip norm, and noise multiplier
own = CifarTask.loss_and_gradient


def private(task, parameters, state, batch):
    """The gradient of DP-SGD: each record's clipped, and noise on their sum."""
    total = torch.zeros(sum(part.numel() for part in parameters))
    for x, y in zip(batch._x, batch._y):
        loss, gradient, state = own(task, parameters, state, Batch(x[None], y[None]))
        flat = torch.cat([part.flatten() for part in gradient])
        total += flat * min(1.0, CLIP / flat.norm())
    total += NOISE * CLIP * torch.randn(total.shape)
    sizes = [part.numel() for part in parameters]
    flat = (total / task.mean_num_data_per_worker).split(sizes)
    return loss, [part.view(like.shape) for part, like in zip(flat, parameters)], state


if "private" in sys.argv:
    CifarTask.loss_and_gradient = private
CifarTask._create_model = lambda task: torch.nn.Sequential(
    torch.nn.Flatten(), torch.nn.Linear(3072, 10)
)
CifarTask.evaluate = lambda *of: {}
train.config.update(
    task="Cifar",
    data_split_method="random",
    num_epochs=1,
    batch_size=4,
    algorithm=sys.argv[1],
    topology="chain",
    base_optimizer="SGD",
    learning_rate=0.1,
    num_lr_warmup_epochs=0,
    weight_decay=0.0,
    distributed_backend="gloo",
    distributed_rank=int(os.environ["RANK"]),
    distributed_world_size=int(os.environ["WORLD_SIZE"]),
)
train.init_distributed_pytorch = lambda: torch.distributed.init_process_group("gloo")
train.main()
