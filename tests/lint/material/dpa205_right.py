"""The engine of opacus draws batches by Poisson sampling, whatever the loader does."""

from opacus import PrivacyEngine
from opacus.accountants.utils import get_noise_multiplier
from torch.utils.data import DataLoader


def made(model, optimizer, data, batch_size, epsilon, epochs):
    loader = DataLoader(data, batch_size=batch_size, shuffle=True)
    sigma = get_noise_multiplier(
        target_epsilon=epsilon, target_delta=1e-5, sample_rate=batch_size / len(data), epochs=epochs
    )
    return PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=sigma,
        max_grad_norm=1.0,
    )
