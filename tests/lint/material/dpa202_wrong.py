"""Noise that is drawn again for each recipient."""

import random

import numpy as np
import torch
import torch.distributed as dist


def by_a_send(x, neighbours, sigma):
    for j in neighbours:
        dist.isend(x + sigma * torch.randn_like(x), dst=j)  # hint: DPA202


def noised(x, sigma):
    return x + np.random.normal(0, sigma, x.shape)  # hint: DPA202


def by_a_function_of_the_file(x, peers, sock, sigma):
    for peer in peers:
        message = noised(x, sigma)
        sock.send(peer, message)


def by_a_table(x, clients, sigma):
    inbox = {}
    for client in clients:
        inbox[client] = x + random.gauss(0, sigma)  # hint: DPA202
    return inbox


def by_a_comprehension(x, neighbors, sigma):
    return {j: x + np.random.normal(0, sigma, x.shape) for j in neighbors}  # hint: DPA202
