"""Two processes send each other noised sums of clipped records, by a transport that others wrote.

    python wires.py socket|asyncio|http|requests|httpx|aiohttp|websockets|grpc|zmq|mpi|ray [halved]

Process 0 answers each message of process 1 with one of its own. `halved` plants a fault: half of
the noise.
"""

import io
import os
import subprocess
import sys

import numpy as np
from dpaudit_recorder import tap

HOW, SIGMA, ROUNDS = sys.argv[1], 0.5 if "halved" in sys.argv else 1.0, 2


class Agent:
    """What one process computes."""

    def __init__(self, rank):
        self.rank, self.w, self.rng = rank, np.zeros(3), np.random.default_rng(rank)
        x = np.random.default_rng(50 + rank).normal(size=(4, 3))
        self.records = x / np.linalg.norm(x, axis=1, keepdims=True)

    def message(self):
        x = tap.batch(self.rank, self.records)
        x = x / np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True))
        return self.w + x.sum(axis=0) + self.rng.normal(0.0, SIGMA, 3)

    def mixed(self, own, other):
        self.w = (own + other) / 8


def packed(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def unpacked(data):
    return np.load(io.BytesIO(data))


def answering(agent):
    """Bytes in, bytes out."""

    def answer(data):
        own = agent.message()
        agent.mixed(own, unpacked(data))
        return packed(own)

    return answer


def asking(agent, ask):
    for _ in range(ROUNDS):
        own = agent.message()
        agent.mixed(own, unpacked(ask(packed(own))))


def whole(link):
    n = int.from_bytes(link.recv(4, 256), "little")  # MSG_WAITALL
    return link.recv(n, 256)


def framed(data):
    return len(data).to_bytes(4, "little") + data


def serve_socket(port, answer):
    import socket

    listening = socket.create_server(("127.0.0.1", port))
    print("up", flush=True)
    link, _ = listening.accept()
    for _ in range(ROUNDS):
        link.sendall(framed(answer(whole(link))))


def ask_socket(port, agent):
    import socket

    with socket.create_connection(("localhost", port)) as link:

        def ask(data):
            link.sendall(framed(data))
            return whole(link)

        asking(agent, ask)


def serve_asyncio(port, answer):
    import asyncio

    async def main():
        over = asyncio.Event()

        async def each(reader, writer):
            for _ in range(ROUNDS):
                n = int.from_bytes(await reader.readexactly(4), "little")
                writer.write(framed(answer(await reader.readexactly(n))))
                await writer.drain()
            over.set()

        await asyncio.start_server(each, "127.0.0.1", port)
        print("up", flush=True)
        await over.wait()

    asyncio.run(main())


def serve_http(port, answer):
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *about):
            pass

        def do_POST(self):
            data = answer(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with HTTPServer(("127.0.0.1", port), Handler) as server:
        print("up", flush=True)
        for _ in range(ROUNDS):
            server.handle_request()


def serve_foreign(port, answer):
    """HTTP by a server that the recorder does not know."""
    import socket

    listening = socket.create_server(("127.0.0.1", port))
    print("up", flush=True)
    for _ in range(ROUNDS):
        link, _ = listening.accept()
        asked = b""
        while b"\r\n\r\n" not in asked:
            asked += link.recv(4096)
        head, _, body = asked.partition(b"\r\n\r\n")
        [length] = [
            int(line[15:]) for line in head.split(b"\r\n") if line[:15] == b"Content-Length:"
        ]
        while len(body) < length:
            body += link.recv(4096)
        data = answer(body)
        link.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        link.close()


def ask_http(port, agent):
    import urllib.request

    def ask(data):
        with urllib.request.urlopen(f"http://localhost:{port}/", data) as reply:
            return reply.read()

    asking(agent, ask)


def ask_requests(port, agent):
    import requests

    session = requests.Session()
    asking(agent, lambda data: session.post(f"http://localhost:{port}/", data).content)


def ask_httpx(port, agent):
    import httpx

    with httpx.Client() as client:
        asking(agent, lambda data: client.post(f"http://localhost:{port}/", content=data).content)


def serve_aiohttp(port, answer):
    import asyncio

    from aiohttp import web

    async def main():
        over = asyncio.Semaphore(0)

        async def one(request):
            reply = web.Response(body=answer(await request.read()))
            await reply.prepare(request)
            await reply.write_eof()
            over.release()  # once it is answered: what comes after closes the link
            return reply

        app = web.Application()
        app.router.add_post("/", one)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        print("up", flush=True)
        for _ in range(ROUNDS):
            await over.acquire()
        await runner.cleanup()

    asyncio.run(main())


def ask_aiohttp(port, agent):
    import asyncio

    import aiohttp

    async def main():
        async with aiohttp.ClientSession() as session:
            for _ in range(ROUNDS):
                own = agent.message()
                async with session.post(f"http://localhost:{port}/", data=packed(own)) as reply:
                    agent.mixed(own, unpacked(await reply.read()))

    asyncio.run(main())


def serve_websockets(port, answer):
    import asyncio

    from websockets.asyncio.server import serve

    async def main():
        over = asyncio.Event()

        async def each(link):
            async for data in link:
                await link.send(answer(data))
            over.set()

        async with serve(each, "127.0.0.1", port):
            print("up", flush=True)
            await over.wait()

    asyncio.run(main())


def ask_websockets(port, agent):
    from websockets.sync.client import connect

    with connect(f"ws://127.0.0.1:{port}/") as link:

        def ask(data):
            link.send(data)
            return link.recv()

        asking(agent, ask)


def serve_grpc(port, answer):
    import threading
    from concurrent import futures

    import grpc

    over = threading.Semaphore(0)

    class Handler(grpc.GenericRpcHandler):
        def service(self, call):
            return grpc.unary_unary_rpc_method_handler(one)

    def one(data, context):
        context.add_callback(over.release)
        return answer(data)

    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((Handler(),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    print("up", flush=True)
    for _ in range(ROUNDS):
        over.acquire()
    server.stop(10).wait()


def ask_grpc(port, agent):
    import grpc

    with grpc.insecure_channel(f"localhost:{port}") as channel:
        asking(agent, channel.unary_unary("/gossip/one"))


def serve_zmq(port, answer):
    import pickle

    import zmq

    router = zmq.Context().socket(zmq.ROUTER)
    router.bind(f"tcp://127.0.0.1:{port}")
    print("up", flush=True)
    for _ in range(ROUNDS):
        peer, data = router.recv_multipart()
        router.send_multipart([peer, pickle.dumps(unpacked(answer(pickle.loads(data))))])


def ask_zmq(port, agent):
    import pickle

    import zmq

    dealer = zmq.Context().socket(zmq.DEALER)
    dealer.connect(f"tcp://127.0.0.1:{port}")

    def ask(data):
        dealer.send(pickle.dumps(data))
        return packed(pickle.loads(dealer.recv()))

    asking(agent, ask)


def gossip_mpi():
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    agent = Agent(world.Get_rank())
    for _ in range(ROUNDS):
        own, other = agent.message(), np.empty(3)
        world.Sendrecv(own, 1 - agent.rank, 0, other, 1 - agent.rank)
        agent.mixed(own, other)


def gossip_ray():
    import ray

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    agents = [ray.remote(num_cpus=0)(Agent).remote(rank) for rank in range(2)]
    for _ in range(ROUNDS):
        one, other = (agent.message.remote() for agent in agents)
        ray.get([agents[0].mixed.remote(one, other), agents[1].mixed.remote(other, one)])
    ray.shutdown()


ask_asyncio = ask_socket
serve_requests = serve_httpx = serve_http
ask_foreign = ask_http


def main():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    each = {**os.environ, "PORT": port}
    command = [sys.executable, *sys.argv]
    server = subprocess.Popen(command, env={**each, "NODE": "0"}, stdout=subprocess.PIPE)
    assert server.stdout.readline() == b"up\n"
    client = subprocess.Popen(command, env={**each, "NODE": "1"})
    sys.exit(client.wait() or server.wait())


if __name__ == "__main__":
    if HOW in ("mpi", "ray"):
        globals()[f"gossip_{HOW}"]()
        sys.exit()
    if "NODE" not in os.environ:
        main()
    here, at = int(os.environ["NODE"]), int(os.environ["PORT"])
    if here:
        globals()[f"ask_{HOW}"](at, Agent(here))
    else:
        globals()[f"serve_{HOW}"](at, answering(Agent(here)))
