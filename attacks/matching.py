"""Which of several candidates was used, for an adversary who knows all else.

Of runs each of which may have used one, the likeliest is that with the largest likelihood ratio.

In a batch whose others are known, an estimate of the mean gradient, less the gradients of the other
records, is the record's own, divided by the batch size B, under noise that is alike and independent
in all coordinates. Of candidates with gradients g the likeliest is that whose g / B is nearest.

Source: the prior-aware attack of Hayes, Mahloujifar and Balle 2023, arXiv:2302.07225.
"""

import numpy as np
import torch
from torch import Tensor

from dpaudit.accounting.privacy_loss import Array


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


def n_matched(used: Array, others: Array, rng: np.random.Generator) -> int:
    """How often the candidate that was used scores highest.

    Args:
        used: [n], its score.
        others: [n, m - 1], those of the other candidates.
        rng: by which equal scores are told apart, as by a guess.
    """
    ties = (others == used[:, None]).sum(axis=1)
    best = (others <= used[:, None]).all(axis=1)
    return int((best & (rng.random(len(used)) * (1 + ties) < 1)).sum())
