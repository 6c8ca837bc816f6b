"""Two agents, each a process, that post npz to each other's server: posting.py right|half|none.

Each server has a port that the system chooses, which its agent is told by a pipe.
"""

import io
import multiprocessing
import queue
import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
from dpaudit_recorder import tap

AGENTS, ROUNDS, SIZE, RECORDS = 2, 2, 5, 8
SCALE = {"right": 1.0, "half": 0.5, "none": 0.0}[sys.argv[1]]


def serve(came):
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            came.put(np.load(io.BytesIO(body))["weights"])
            self.send_response(204)
            self.end_headers()

        def log_message(self, *given):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


def post(port, weights):
    file = io.BytesIO()
    np.savez(file, weights=weights)
    address = f"http://127.0.0.1:{port}/weights"
    urllib.request.urlopen(urllib.request.Request(address, file.getvalue(), method="POST")).close()


def train(agent, launcher):
    came = queue.Queue()
    launcher.send(serve(came))
    port = launcher.recv()
    data = np.random.default_rng(50 + agent)
    records = data.normal(size=(RECORDS, SIZE))
    labels = (records.sum(1) > 0).astype(int)
    rng, weights = np.random.default_rng(), np.zeros(SIZE)
    for _ in range(ROUNDS):
        x, y = tap.batch(agent, (records, labels))
        each = (1 / (1 + np.exp(-x @ weights)) - y)[:, None] * x
        norms = np.linalg.norm(each, axis=1, keepdims=True)
        step = (each * np.minimum(1, 1 / np.maximum(norms, 1e-12))).sum(0)
        weights = weights - 0.1 * (step + SCALE * rng.normal(0, 1.0, SIZE))
        post(port, weights)
        weights = (weights + came.get(timeout=60)) / 2
    launcher.send("over")
    launcher.recv()  # until the other has posted


if __name__ == "__main__":
    pipes = [multiprocessing.Pipe() for _ in range(AGENTS)]
    ends = [end for end, _ in pipes]
    agents = [
        multiprocessing.Process(target=train, args=(i, end)) for i, (_, end) in enumerate(pipes)
    ]
    for one in agents:
        one.start()
    ports = [end.recv() for end in ends]
    for end, port in zip(ends, reversed(ports), strict=True):
        end.send(port)
    for end in ends:
        end.recv()
    for end in ends:
        end.send("end")
    for one in agents:
        one.join()
    sys.exit(max(one.exitcode for one in agents))
