"""One draw for all recipients; and values of which each recipient has its own."""

import numpy as np
import torch
import torch.distributed as dist


def one_draw(x, neighbours, sigma):
    noised = x + sigma * torch.randn_like(x)
    for j in neighbours:
        dist.isend(noised, dst=j)


def of_each_its_own(parts, neighbours, sigma):
    for j in neighbours:
        dist.isend(parts[j] + sigma * torch.randn_like(parts[j]), dst=j)


def masks_that_cancel(x, neighbours, sock):
    total = x
    for j in neighbours:
        mask = np.random.normal(0, 1, x.shape)
        total = total + mask
        sock.send(j, mask)
    return total
