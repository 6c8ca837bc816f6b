"""Text from one gradient of a transformer (Petrov et al. 2024, DAGER). Settings:

network, width      of `TOKEN_NETWORKS`; the width is that of an embedding
batch_size, batches how many sequences a gradient is of, and how many gradients are attacked
"""

from collections.abc import Iterator

import torch

from dpaudit.attack.image_metrics import SHARE, interval
from dpaudit.attack.observed import ObservedGradients, Task
from dpaudit.attack.reconstruction import ReconstructionAttack
from dpaudit.attack.text_metrics import score
from dpaudit.errors import NotObservable
from dpaudit.models.gradients import Gradients
from dpaudit.models.models import build_network, initial_parameters
from dpaudit.registry import load_plugin
from dpaudit.rng import Streams

from .experiment import CellContext, MeasuredNumber, Settings

ROUGE_1, ROUGE_2 = "ROUGE-1, %", "ROUGE-2, %"


def recovered(settings: Settings, seed: int, context: CellContext) -> Iterator[MeasuredNumber]:
    """ROUGE of the recovered sequences, a mean over the gradients; 0 of those of full rank."""
    dataset, streams = context.dataset, Streams(seed)
    assert dataset is not None  # the experiment names one
    m, B = settings["batches"], settings["batch_size"]
    rows = torch.stack(
        [torch.randperm(len(dataset.x), generator=streams("records", i))[:B] for i in range(m)]
    )
    ids, labels, length = dataset.x[rows], dataset.y[rows], dataset.x.shape[1]
    sizes = (length,), dataset.n_classes, dataset.n_tokens
    gradients = Gradients(
        build_network(settings["network"], *sizes, settings["width"]), None, torch.long
    )
    X = torch.stack([initial_parameters(gradients.module, streams("model", i)) for i in range(m)])
    G = gradients.mean(X, ids, labels)
    task = Task(gradients, (length,), dataset.n_classes, dataset.value_range)
    plugin = load_plugin("attacks", "dager")
    attack: ReconstructionAttack = plugin.model_validate({"message": "gradient", "rounds": (1,)})
    found = []
    for i in range(m):
        observed = ObservedGradients(G[i : i + 1], X[i : i + 1], B, None)
        try:
            one = attack.reconstruct(observed, task, streams.child("attack", i), context.on_step)
            found.append(one.images[0])
        except NotObservable:
            found.append(torch.full_like(ids[i], -1))
    scores = score(ids, torch.stack(found))
    for quantity, values in ((ROUGE_1, scores.rouge_1), (ROUGE_2, scores.rouge_2)):
        estimate = interval(values, SHARE)
        low, high = (None if end is None else 100 * end for end in estimate[1:3])
        yield MeasuredNumber(quantity, 100 * estimate.value, low=low, high=high, n=m)
