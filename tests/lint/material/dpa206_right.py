"""A private sum that is divided by a setting; lengths that have nothing to do with noise."""

import torch


def by_setting(records, gradient_of, c, sigma, batch_size):
    total = 0
    for record in records:
        g = gradient_of(record)
        total = total + g * min(1.0, c / g.norm())
    return (total + sigma * c * torch.randn_like(total)) / batch_size


def by_expectation(per_sample, c, sigma, rate, dataset):
    norms = per_sample.norm(dim=1)
    summed = torch.einsum("i,ij->j", (c / norms).clamp(max=1.0), per_sample)
    return (summed + sigma * c * torch.randn_like(summed)) / (rate * len(dataset))


def accuracy(hits, batch):
    return hits.sum() / len(batch)
