"""A sampling rate in the accountant, and shuffled batches."""

from dp_accounting.rdp import compute_rdp
from torch.utils.data import DataLoader


def epsilon_of(n, batch_size, sigma, steps, orders):
    return compute_rdp(q=batch_size / n, noise_multiplier=sigma, steps=steps, orders=orders)


def loaders(train, test, batch_size):
    train_loader = DataLoader(train, batch_size=batch_size, shuffle=True)  # hint: DPA205
    return train_loader, DataLoader(test, batch_size=batch_size)
