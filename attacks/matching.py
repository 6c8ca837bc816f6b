"""Which of several candidates was in a batch, for an adversary who knows the batch's others.

An estimate of the mean gradient of a batch, less the gradients of its other records, is the
record's own, divided by the batch size B, under noise that is alike and independent in all
coordinates. Of candidates with gradients g the most likely one is that whose g / B is nearest.

Source: the prior-aware attack of Hayes, Mahloujifar and Balle 2023, arXiv:2302.07225.
"""

import numpy as np
import torch
from torch import Tensor


def is_matched(
    left: Tensor, record: Tensor, decoys: Tensor, batch_size: int, rng: np.random.Generator
) -> bool:
    """Whether the record in the batch is the most likely candidate.

    Args:
        left: [d], the estimate less the other records' share of it.
        record: [d], the clipped gradient of the record in the batch.
        decoys: [m - 1, d], of the other candidates.
        rng: the record's place among the candidates is drawn from it, so that equally likely ones
            are matched as often as by a guess.
    """
    place = int(rng.integers(len(decoys) + 1))
    candidates = torch.cat([decoys[:place], record[None], decoys[place:]])
    distances = candidates.square().sum(dim=1) / (2 * batch_size) - candidates @ left
    return int(distances.argmin()) == place
