"""A client of NVFlare: a step of DP-SGD in each round; its argument is that of start.py."""

import sys

import numpy as np
import nvflare.client as flare
from dpaudit_recorder import tap

CLIENTS, RECORDS, CLIP = 2, 4, 1.0
SCALE = float(sys.argv[1]) * CLIP

flare.init()
client = int(flare.get_site_name().rpartition("-")[2]) - 1
generator = np.random.default_rng()
while flare.is_running():
    w = flare.receive().params["numpy_key"]
    x, y = tap.batch(client, (np.eye(RECORDS, 6), np.ones(RECORDS)))
    each = 10 * (x @ w - y)[:, None] * x
    each *= np.minimum(1, CLIP / np.linalg.norm(each, axis=1, keepdims=True))
    noise = tap.noise(client, "noise", SCALE * generator.standard_normal(6), SCALE)
    w = tap.send(client, CLIENTS, "weights", w - 0.1 * (each.sum(0) + noise))
    flare.send(flare.FLModel(params={"numpy_key": w}, metrics={"accuracy": 0.0}))
