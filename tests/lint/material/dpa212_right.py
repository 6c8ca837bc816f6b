"""The gradient of each record is clipped; or the update of a user, which is what is protected."""

import torch


def records(model, optimizer, batch, loss_of, c, sigma):
    total = [torch.zeros_like(p) for p in model.parameters()]
    for record in batch:
        model.zero_grad()
        loss_of(model, record).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), c)
        for s, p in zip(total, model.parameters(), strict=True):
            s += p.grad
    for s, p in zip(total, model.parameters(), strict=True):
        p.grad = s + torch.normal(0, sigma * c, s.shape)
    optimizer.step()


def client_update(model, loss, c, sigma):
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), c)
    for p in model.parameters():
        p.grad.add_(torch.normal(0, sigma * c, p.grad.shape))


def without_noise(model, optimizer, loss):
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
