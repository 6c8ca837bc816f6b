"""The ways in which real scripts send, one after the other, in three forked processes.

Arguments leave ways out, which an older torch does not have.
"""

import os
import sys

import torch
import torch.distributed as dist
from answer_sheet import forked


def main(rank, n, sheet):
    torch.manual_seed(rank)
    for pattern in PATTERNS:
        if pattern.__name__ not in sys.argv[1:]:
            pattern(rank, n, sheet)
            dist.barrier()
    os.write(1, f"rank {rank} is done\n".encode())  # whole: `print` unbuffered writes twice


def ring(rank, n, sheet):
    """isend and irecv, the buffer of each reused in place in the next round."""
    sent, received = torch.randn(5), torch.empty(5)
    for _ in range(4):
        works = [dist.isend(sent, (rank + 1) % n), dist.irecv(received, (rank - 1) % n)]
        for work in works:
            work.wait()
        sheet.got((rank - 1) % n, received)
        sent.mul_(0.5).add_(received)


def blocking(rank, n, sheet):
    """Blocking send and recv with tags, of a list of layers."""
    layers = [torch.randn(2, 3), torch.randn(3), torch.tensor(float(rank))]
    for tag, layer in enumerate(layers):
        if rank == 0:
            dist.send(layer, 1, tag=tag)
        elif rank == 1:
            got = torch.empty_like(layer)
            dist.recv(got, 0, tag=tag)
            sheet.got(0, got)


def from_anyone(rank, n, sheet):
    got = torch.empty(3)
    if rank:
        dist.send(torch.randn(3), 0)
    else:
        for _ in range(n - 1):
            source = dist.recv(got)
            sheet.got(source, got)


def batched(rank, n, sheet):
    got = [torch.empty(4, dtype=torch.bfloat16) for _ in range(n)]
    others = [other for other in range(n) if other != rank]
    mine = torch.randn(4).to(torch.bfloat16)
    ops = [dist.P2POp(dist.isend, mine, other) for other in others]
    ops += [dist.P2POp(dist.irecv, got[other], other) for other in others]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    for other in others:
        sheet.got(other, got[other])


def groups(rank, n, sheet):
    """A broadcast in a group of two as point-to-point, and a gather in one whose ranks differ."""
    pairs = {(a, b): dist.new_group([a, b]) for a in range(n) for b in range(a + 1, n)}
    for (a, b), group in pairs.items():
        for source in (a, b):
            if rank in (a, b):
                value = torch.randn(3) if rank == source else torch.empty(3)
                dist.broadcast(value, source, group=group)
                if rank != source:
                    sheet.got(source, value)
    if rank:
        got = [torch.empty(2) for _ in range(2)] if rank == 1 else None
        dist.gather(torch.randn(2), got, dst=1, group=pairs[1, 2])
        if rank == 1:
            sheet.got(2, got[1])


def gathers(rank, n, sheet):
    others = [other for other in range(n) if other != rank]
    got = [torch.empty(2, 2, dtype=torch.float64) for _ in range(n)]
    work = dist.all_gather(got, torch.randn(2, 2, dtype=torch.float64), async_op=True)
    work.wait()
    for other in others:
        sheet.got(other, got[other])


def gathers_into(rank, n, sheet):
    stack = torch.empty(n, 3)
    dist.all_gather_into_tensor(stack, torch.randn(1, 3))
    for other in range(n):
        if other != rank:
            sheet.got(other, stack[other].reshape(1, 3))


def reductions(rank, n, sheet):
    """Gossip by an all_reduce of a stack that holds nothing but the own row."""
    stack = torch.zeros(n, 4)
    stack[rank] = torch.randn(4)
    own = stack.clone()
    dist.all_reduce(stack)
    sheet.got_sum(stack, own)
    total = torch.full((2,), float(rank))
    dist.reduce(total, 2)
    if rank == 2:
        sheet.got_sum(total, torch.full((2,), float(rank)))


def reduce_scatters(rank, n, sheet):
    shares, share = torch.arange(2.0 * n) + rank, torch.empty(2)
    dist.reduce_scatter_tensor(share, shares)
    sheet.got_sum(share, shares[2 * rank :][:2])


def scatters(rank, n, sheet):
    parts = [torch.randn(3) for _ in range(n)]
    got = torch.empty(3)
    dist.scatter(got, parts if rank == 1 else None, src=1)
    if rank != 1:
        sheet.got(1, got)


def exchanges(rank, n, sheet):
    outputs = [torch.empty(2) for _ in range(n)]
    dist.all_to_all(outputs, list(torch.randn(n, 2)))
    flat = torch.empty(n * 2)
    dist.all_to_all_single(flat, torch.randn(n * 2))
    uneven = torch.empty(n * (rank + 1))
    sizes = [other + 1 for other in range(n)]
    dist.all_to_all_single(uneven, torch.randn(sum(sizes)), [rank + 1] * n, sizes)
    for other in range(n):
        if other != rank:
            sheet.got(other, outputs[other])
            sheet.got(other, flat[2 * other : 2 * other + 2])
            sheet.got(other, uneven[(rank + 1) * other :][: rank + 1])


def objects(rank, n, sheet):
    got = [None] * n
    mine = {"rank": rank, "weights": [0.5, rank / 4], "model": torch.full((2, 3), rank + 0.5)}
    dist.all_gather_object(got, {**mine, "said": "x" * rank})  # shorter ones are filled up
    for other in range(n):
        if other != rank:
            weights = torch.tensor([0.5, other / 4], dtype=torch.float64)
            numbers = [torch.tensor(other), weights, torch.full((2, 3), other + 0.5)]
            sheet.got_object(other, numbers, got[other])
    listed = ["a", {"x": torch.ones(2)}, ("b", 3)] if rank == 0 else [None] * 3
    dist.broadcast_object_list(listed, src=0)
    if rank:
        sheet.got_object(0, [torch.ones(2), torch.tensor(3)], *listed)
    texts = ["no", None] if rank == 0 else [None, None]
    dist.broadcast_object_list(texts, src=0)
    if rank:
        sheet.got_object(0, [], *texts)


def functional_collectives(rank, n, sheet):
    import torch.distributed._functional_collectives as functional

    stack = functional.all_gather_tensor(torch.full((1, 2), rank + 0.5), 0, dist.group.WORLD)
    for other in range(n):
        if other != rank:
            sheet.got(other, stack[other].reshape(1, 2).clone())
    own = torch.full((3,), rank + 0.25)
    total = functional.all_reduce(own, "sum", dist.group.WORLD)
    sheet.got_sum(total.clone(), own)


def without_gradients(rank, n, sheet):
    with torch.inference_mode():
        ring(rank, n, sheet)
    weights = torch.randn(3, requires_grad=True)
    got = torch.empty(3)
    if rank == 0:
        dist.send(weights.detach()[::1], 2)
    elif rank == 2:
        dist.recv(got, 0)
        sheet.got(0, got)


PATTERNS = (
    ring,
    blocking,
    from_anyone,
    batched,
    groups,
    gathers,
    gathers_into,
    reductions,
    reduce_scatters,
    scatters,
    exchanges,
    objects,
    functional_collectives,
    without_gradients,
)

if __name__ == "__main__":
    if functional_collectives.__name__ not in sys.argv[1:]:
        import torch._dynamo  # which it needs: here once for all forks, for it takes a second
    forked(3, main, os.path.join(os.environ["SHEETS"], "store"))
