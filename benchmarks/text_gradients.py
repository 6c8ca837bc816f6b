"""Clipped per-record gradients of small transformers beside Opacus, in CPU time of one thread.

    python benchmarks/text_gradients.py [--repeats N]

One batch of 32 records of 16 tokens, on gpt-tiny and bert-tiny of width 64 with 600 words, and the
same with the general path of `Gradients`, which needs no layer to be known. Opacus' sums must agree
with ours up to float32 rounding, or the run fails. Medians of the repeats are compared.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable

import torch
from opacus import GradSampleModule
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dpaudit.models.gradients import Gradients, OneByOne
from dpaudit.models.models import build_network, initial_parameters
from dpaudit.rng import Streams

C, BATCH, LENGTH, WORDS, WIDTH = 1.0, 32, 16, 600, 64
ROUNDING = 1e-4  # of the largest entry, in float32: norms by Gram matrices cancel, vmap gives 1e-7


def of_opacus(module: nn.Module, ids: Tensor, y: Tensor) -> Tensor:
    """The sum of clipped gradients, [d]."""
    cross_entropy(module(ids), y, reduction="sum").backward()
    each = torch.cat([p.grad_sample.flatten(1) for p in module.parameters()], dim=1)
    for p in module.parameters():
        p.grad_sample = p.grad = None
    return (C / each.norm(dim=1)).clamp(max=1) @ each


def seconds(compute: Callable[[], Tensor], repeats: int) -> tuple[float, Tensor]:
    """CPU time, the median, and the last result."""
    took = []
    for _ in range(repeats):
        began = time.process_time()
        found = compute()
        took.append(time.process_time() - began)
    return statistics.median(took), found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    draws = Streams(0)
    ids = torch.randint(WORDS, (BATCH, LENGTH), generator=draws("ids"))
    y = torch.randint(WORDS, (BATCH,), generator=draws("labels"))
    for name in ("gpt-tiny", "bert-tiny"):
        module = build_network(name, (LENGTH,), WORDS, WORDS, WIDTH)
        x = initial_parameters(module, draws("model"))
        gradients = Gradients(module, None, torch.long)
        general = Gradients(module, None, torch.long)
        general._engine = OneByOne(module, False)
        real = build_network(name, (LENGTH,), WORDS, WORDS, WIDTH).to_empty(device="cpu")
        nn.utils.vector_to_parameters(x.clone(), real.parameters())
        opacus = GradSampleModule(real, loss_reduction="sum")
        batch = x[None], ids[None], y[None], C
        peer, theirs = seconds(lambda o=opacus: of_opacus(o, ids, y), repeats)
        print(f"{name}, d = {len(x):,}: Opacus {1000 * peer:.1f} ms")
        for what, one in (("stacked", gradients), ("general", general)):
            took, (ours,) = seconds(lambda g=one, b=batch: g.clipped_sum(*b), repeats)
            off = float((ours - theirs).abs().max() / theirs.abs().max())
            print(f"  {what}: {1000 * took:.1f} ms, {took / peer:.2f} of Opacus; off by {off:.1e}")
            if off > ROUNDING:
                raise SystemExit(f"{name}: {what} differs from Opacus by {off:.1e}")


if __name__ == "__main__":
    main()
