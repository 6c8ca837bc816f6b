"""Two hivemind peers average a linear model: start.py NOISE, in units of the promised."""

import sys

import hivemind
import torch
from dpaudit_recorder import tap
from hivemind.averaging import DecentralizedAverager

PEERS, RECORDS, ROUNDS, CLIP = 2, 4, 2, 1.0
SCALE = float(sys.argv[1]) * CLIP
DATA = torch.eye(RECORDS, 6), torch.ones(RECORDS)


def step(peer, w):
    x, y = tap.batch(peer, DATA)
    each = 10 * (x @ w - y)[:, None] * x
    each = each * (CLIP / each.norm(dim=1, keepdim=True)).clamp(max=1)
    noise = tap.noise(peer, "noise", SCALE * torch.randn_like(w), SCALE)
    return w - 0.1 * (each.sum(0) + noise)


def main():
    first = hivemind.DHT(start=True)
    second = hivemind.DHT(initial_peers=first.get_visible_maddrs(), start=True)
    averagers = [
        DecentralizedAverager(
            [torch.zeros(6)], dht, prefix="example", start=True,
            target_group_size=PEERS, min_matchmaking_time=2.0, request_timeout=1.0,
        )
        for dht in (first, second)
    ]  # fmt: skip
    for _ in range(ROUNDS):
        for peer, averager in enumerate(averagers):
            with averager.get_tensors() as (w,):
                w.copy_(tap.send(peer, 1 - peer, "weights", step(peer, w.clone())))
        for one in [averager.step(wait=False) for averager in averagers]:
            one.result()
    for part in (*averagers, first, second):
        part.shutdown()


if __name__ == "__main__":
    main()
