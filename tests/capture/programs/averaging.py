"""Two clients whose updates a server averages, each a process: averaging.py right|FAULT [tobytes].

A message of TCP is what struct packs: the client, and six numbers. The latter are made bytes by
tobytes, if that is the second argument. The server sends the mean of a round in the same round.
"""

import multiprocessing
import socket
import struct
import sys

import numpy as np
from dpaudit_recorder import tap

CLIENTS, ROUNDS, SIZE, RECORDS = 2, 2, 6, 8
FORM = f"<i{SIZE}d"
FAULT, IS_RAW = sys.argv[1], "tobytes" in sys.argv[2:]


def packed(sender, numbers):
    if IS_RAW:
        return struct.pack("<i", sender) + numbers.tobytes()
    return struct.pack(FORM, sender, *numbers)


def receive(file):
    _, *numbers = struct.unpack(FORM, file.read(struct.calcsize(FORM)))
    return np.array(numbers)


def update(weights, x, y, rng, agent, k):
    each = (1 / (1 + np.exp(-x @ weights)) - y)[:, None] * x
    if FAULT != "no-clip":
        norms = np.linalg.norm(each, axis=1, keepdims=True)
        each = each * np.minimum(1, 1 / np.maximum(norms, 1e-12))
    scale = {"half": 0.5, "even-rounds": k % 2, "none": 0.0}.get(FAULT, 1.0)
    return each.sum(0) + scale * rng.normal(0, 1.0, SIZE)


def client(agent, port):
    data = np.random.default_rng(50 + agent)
    x = data.normal(size=(RECORDS, SIZE))
    y = (x.sum(1) > 0).astype(int)
    rng = np.random.default_rng(7 if FAULT == "one-seed" else None)
    weights = np.zeros(SIZE)
    with socket.create_connection(("127.0.0.1", port)) as wire, wire.makefile("rb") as file:
        for k in range(1, ROUNDS + 1):
            step = update(weights, *tap.batch(agent, (x, y)), rng, agent, k)
            wire.sendall(packed(agent, step))
            weights = weights - receive(file) / RECORDS


def serve(listener):
    wires = [listener.accept()[0] for _ in range(CLIENTS)]
    files = [wire.makefile("rb") for wire in wires]
    for _ in range(ROUNDS):
        mean = np.mean(sorted((receive(file) for file in files), key=tuple), 0)
        for wire in wires:
            wire.sendall(packed(0, mean))
    for file in files:
        file.read()  # until the client has ended


if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    clients = [multiprocessing.Process(target=client, args=(i, port)) for i in range(CLIENTS)]
    for one in clients:
        one.start()
    serve(listener)
    for one in clients:
        one.join()
    sys.exit(max(one.exitcode for one in clients))
