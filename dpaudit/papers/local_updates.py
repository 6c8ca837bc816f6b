"""Images from one update of federated averaging (Dimitrov, Balunovic, Konstantinov and Vechev).

Each client takes ``epochs`` passes over its own records in orders of its own, in batches, by SGD at
the same initial model, and what its weights change by is attacked. Settings:

    attack      "simulated"; "no order prior", with the same images in all passes, as if each had
                the same order; or "one gradient"
    clients, epochs, batches, batch_size, learning_rate, network
    threshold   PSNR in dB from which an image counts as recovered
    iterations  of the search; absent: as many as the attack chooses
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dpaudit.attack.image_metrics import RANGES, SHARE, interval, score_each
from dpaudit.attack.local_steps import DummyGradient, local_steps
from dpaudit.attack.observed import ObservedGradients
from dpaudit.attack.reconstruction import ReconstructionAttack
from dpaudit.attack.scenario import task_of
from dpaudit.checkpoint import NO_CHECKPOINT
from dpaudit.files.finding import Name
from dpaudit.files.local_training import LocalTraining
from dpaudit.models.gradients import Gradients
from dpaudit.models.models import build_network, initial_parameters
from dpaudit.registry import load_plugin
from dpaudit.rng import Streams

from .experiment import CellContext, MeasuredNumber, Settings

RECOVERED, PSNR = "recovered images, %", "PSNR, dB"


def recovered(settings: Settings, seed: int, context: CellContext) -> Iterator[MeasuredNumber]:
    """The share of images that reach the threshold, and their mean PSNR, over all clients.

    The interval is over the clients, of which each has the mean of its images.
    """
    dataset, streams = context.dataset, Streams(seed)
    assert dataset is not None  # the experiment names one
    clients, batches, B = (settings[key] for key in ("clients", "batches", "batch_size"))
    n = batches * B
    rows = torch.randperm(len(dataset.x), generator=streams("records"))[: clients * n]
    images, labels = (t[rows].unflatten(0, (clients, n)) for t in (dataset.x, dataset.y))
    shape = tuple(images.shape[2:])
    gradients = Gradients(build_network(settings["network"], shape, dataset.n_classes))
    observed = _update(settings, gradients, images, labels, streams)
    if settings["attack"] == "one gradient":
        observed = replace(observed, local=None)
    asked: dict[str, Any] = {"message": "update", "rounds": (1,), "method": "optimised"}
    asked["iterations"] = settings.get("iterations")
    plugin = load_plugin("attacks", "gradient-inversion")
    attack: ReconstructionAttack = plugin.model_validate(asked)
    task = task_of(gradients, dataset, NO_CHECKPOINT)
    found = attack.reconstruct(observed, task, streams.child("attack"), context.on_step)
    psnr = score_each(images, found.images, dataset.value_range).psnr  # [clients, n]
    shares = (psnr >= settings["threshold"]).mean(axis=1)
    for quantity, estimate, times in (
        (RECOVERED, interval(shares, SHARE), 100.0),
        (PSNR, interval(psnr.mean(axis=1), RANGES[Name.PSNR]), 1.0),
    ):
        low, high = (None if end is None else times * end for end in estimate[1:3])
        yield MeasuredNumber(quantity, times * estimate.value, low=low, high=high, n=estimate.n)


def _update(
    settings: Settings, gradients: Gradients, images: Tensor, labels: Tensor, streams: Streams
) -> ObservedGradients:
    """What every client's weights change by, over the factor that is public."""
    clients, n = labels.shape
    epochs, sizes = settings["epochs"], (settings["batch_size"],) * settings["batches"]
    options: dict[str, Any] = {"optimizer": "sgd", "learning_rate": settings["learning_rate"]}
    options |= {"epochs": epochs, "shuffled": settings["attack"] != "no order prior"}
    steps = local_steps(LocalTraining.model_validate(options), sizes * epochs)
    shuffle = streams("order")
    orders = [torch.randperm(n, generator=shuffle) for _ in range(clients * epochs)]
    order = torch.stack(orders).view(clients, -1)
    own = torch.arange(clients)[:, None], order
    oracle = DummyGradient(gradients, images[own], labels[own], steps.sizes)
    X = initial_parameters(gradients.module, streams("model")).expand(clients, -1).contiguous()
    with torch.no_grad():
        sent = steps.mean_gradient(oracle, X)
    return ObservedGradients(sent, X, n, None, torch.zeros(clients), local=steps)
