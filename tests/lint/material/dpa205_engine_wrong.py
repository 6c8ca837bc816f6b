"""The engine of opacus without its sampler."""

from opacus import PrivacyEngine


def made(model, optimizer, loader):
    engine = PrivacyEngine()
    private = engine.make_private(  # hint: DPA205
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=1.1,
        max_grad_norm=1.0,
        poisson_sampling=False,
    )
    return private, engine.get_epsilon(1e-5)
