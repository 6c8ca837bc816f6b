"""How much of a batch's text was recovered, and how much a guess without messages gets right."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from dpaudit.files.finding import Name

Floats = NDArray[np.float64]


class TextScores(NamedTuple):
    """Scores of m batches, each a mean over its sequences, aligned to the truth."""

    tokens: Floats  # [m], share of tokens that are right at their positions
    sequences: Floats  # [m], share of sequences that are right as a whole
    rouge_1: Floats  # [m]
    rouge_2: Floats  # [m]
    order: Tensor  # [m, b]: recovered[i, order[i]] is aligned to truth[i]

    def by_name(self) -> dict[str, Floats]:
        return {
            Name.TOKENS_RECOVERED: self.tokens,
            Name.SEQUENCES_RECOVERED: self.sequences,
            Name.ROUGE_1: self.rouge_1,
            Name.ROUGE_2: self.rouge_2,
        }


def score(truth: Tensor, recovered: Tensor) -> TextScores:
    """Score token ids [m, b, length]; each batch is aligned to have most tokens right.

    Of alignments with as many, one with the most sequences that are right as a whole.
    """
    rows, orders = [], []
    for true, found in zip(truth, recovered, strict=True):
        right = true[:, None] == found
        whole = right.all(-1) / (2 * len(true))  # less than one token per batch
        _, columns = linear_sum_assignment(-(right.sum(-1) + whole).numpy())
        order = torch.as_tensor(columns)
        found, pairs = found[order], range(len(true))
        rows.append(
            [
                float((true == found).double().mean()),
                float((true == found).all(1).double().mean()),
                *(
                    float(np.mean([rouge(true[i].tolist(), found[i].tolist(), n) for i in pairs]))
                    for n in (1, 2)
                ),
            ]
        )
        orders.append(order)
    tokens, sequences, rouge_1, rouge_2 = np.array(rows).T
    return TextScores(tokens, sequences, rouge_1, rouge_2, torch.stack(orders))


def rouge(reference: Sequence[int], candidate: Sequence[int], n: int) -> float:
    """ROUGE-N (Lin 2004) as an F1: 2 matches / (all n-grams of both)."""
    grams = [
        Counter(zip(*(text[i:] for i in range(n)), strict=False)) for text in (reference, candidate)
    ]
    total = sum(counts.total() for counts in grams)
    return 2 * (grams[0] & grams[1]).total() / total if total else 0.0


def blind(public: Tensor, shape: Sequence[int], generator: torch.Generator) -> dict[str, Tensor]:
    """Batches that an attacker writes who saw no message, [m, b, length] each.

    Args:
        public: token ids [n, length] of records that nobody holds.
        shape: m, b.
    """
    n_tokens = int(public.max()) + 1
    unigrams = public.flatten().bincount(minlength=n_tokens).double()
    pairs = torch.zeros(n_tokens, n_tokens, dtype=torch.float64)
    pairs.index_put_(
        (public[:, :-1].flatten(), public[:, 1:].flatten()),
        torch.ones(public[:, 1:].numel(), dtype=torch.float64),
        accumulate=True,
    )
    pairs = torch.where(pairs.sum(1, keepdim=True) > 0, pairs, unigrams)
    m, b = shape
    size = m * b, public.shape[1]
    drawn = torch.multinomial(unigrams.expand(size[0], -1), size[1], True, generator=generator)
    chain = [drawn[:, 0]]
    for _ in range(size[1] - 1):
        chain.append(torch.multinomial(pairs[chain[-1]], 1, generator=generator)[:, 0])
    return {
        "unigrams of public text": drawn.unflatten(0, (m, b)),
        "bigrams of public text": torch.stack(chain, 1).unflatten(0, (m, b)),
    }
