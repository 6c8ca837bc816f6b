"""A private sum that is divided by the length of the batch as it was drawn."""

import torch


def by_len(records, gradient_of, c, sigma):
    total = 0
    for record in records:
        g = gradient_of(record)
        total = total + g * min(1.0, c / g.norm())
    noised = total + sigma * c * torch.randn_like(total)
    return noised / len(records)  # hint: DPA206


def by_shape(x, per_sample, c, sigma):
    norms = per_sample.norm(dim=1)
    summed = torch.einsum("i,ij->j", (c / norms).clamp(max=1.0), per_sample)
    return summed / x.shape[0] + sigma * torch.randn_like(summed)  # hint: DPA206


def by_inverse(batch, per_sample, c, sigma):
    norms = per_sample.norm(dim=1)
    summed = torch.einsum("i,ij->j", (c / norms).clamp(max=1.0), per_sample)
    summed.add_(torch.randn_like(summed), alpha=sigma * c)
    summed.mul_(1 / batch.size(0))  # hint: DPA206
    return summed
