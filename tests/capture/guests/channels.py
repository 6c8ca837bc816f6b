"""A server and two clients that send arrays on channels, without knowing of dpaudit.

    python channels.py fork|spawn|socket|listener|unix|http|grpc

A client sends [10 client + k, 0], and the server answers with twice as much. Each receiver prints
what it got.
"""

import io
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading

import numpy as np

HOW, ROLE = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None
CLIENTS, ROUNDS = (1, 2), 2


def packed(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def unpacked(data):
    return np.load(io.BytesIO(data))


def said(who, array):
    os.write(1, f"{who} got {array[0]:g}\n".encode())
    return array


def asked(client, k):
    return np.array([10.0 * client + k, 0])


def exactly(link, n):
    data = b""
    while len(data) < n:
        data += link.recv(n - len(data))
    return data


def receive(link):
    return unpacked(exactly(link, struct.unpack("<I", exactly(link, 4))[0]))


def serve_socket(port):
    listening = socket.create_server(("127.0.0.1", port))
    print("up", flush=True)
    links = [listening.accept()[0] for _ in CLIENTS]
    for _ in range(ROUNDS):
        for link in links:
            data = packed(2 * said(0, receive(link)))
            link.sendall(struct.pack("<I", len(data)) + data)


def ask_socket(client, port):
    with socket.create_connection(("localhost", port)) as link:
        for k in range(ROUNDS):
            data = packed(asked(client, k))
            link.sendall(struct.pack("<I", len(data)) + data)
            said(client, receive(link))


def listening(port):
    """An address for ``multiprocessing.connection``; a Unix socket has a name by the port."""
    name = os.path.join(tempfile.gettempdir(), f"channels-{port}")
    return (name if HOW == "unix" else ("localhost", port)), b"a key"


def serve_listener(port):
    from multiprocessing.connection import Listener

    address, key = listening(port)
    with Listener(address, authkey=key) as listener:
        print("up", flush=True)
        links = [listener.accept() for _ in CLIENTS]
        for _ in range(ROUNDS):
            for link in links:
                link.send(2 * said(0, link.recv()))


def ask_listener(client, port):
    from multiprocessing.connection import Client

    address, key = listening(port)
    with Client(address, authkey=key) as link:
        for k in range(ROUNDS):
            link.send(asked(client, k))
            said(client, link.recv())


serve_unix, ask_unix = serve_listener, ask_listener


def serve_http(port):
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *about):
            pass

        def do_POST(self):
            data = self.rfile.read(int(self.headers["Content-Length"]))
            data = packed(2 * said(0, unpacked(data)))
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with HTTPServer(("127.0.0.1", port), Handler) as server:
        print("up", flush=True)
        for _ in range(len(CLIENTS) * ROUNDS):
            server.handle_request()


def ask_http(client, port):
    import urllib.request

    for k in range(ROUNDS):
        with urllib.request.urlopen(f"http://localhost:{port}/", packed(asked(client, k))) as reply:
            said(client, unpacked(reply.read()))


def serve_grpc(port):
    from concurrent import futures

    import grpc

    over = threading.Semaphore(0)

    class Handler(grpc.GenericRpcHandler):
        def service(self, call):
            if call.method == "/gossip/one":
                return grpc.unary_unary_rpc_method_handler(one)
            return grpc.stream_stream_rpc_method_handler(many)

    def one(data, context):
        return packed(2 * said(0, unpacked(data)))

    def many(stream, context):
        for data in stream:
            yield packed(2 * said(0, unpacked(data)))
        over.release()

    server = grpc.server(futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((Handler(),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    print("up", flush=True)
    for _ in CLIENTS:
        over.acquire()
    server.stop(10).wait()


def ask_grpc(client, port):
    import grpc

    with grpc.insecure_channel(f"localhost:{port}") as channel:
        said(client, unpacked(channel.unary_unary("/gossip/one")(packed(asked(client, 0)))))
        for data in channel.stream_stream("/gossip/many")(iter([packed(asked(client, 1))])):
            said(client, unpacked(data))


def ask_pipes(client, inbox, outbox):
    for k in range(ROUNDS):
        outbox.put((client, asked(client, k)))
        said(client, inbox.recv())


def by_pipes(start):
    """Requests in one queue, replies by pipes."""
    import multiprocessing

    context = multiprocessing.get_context(start)
    requests = context.Queue()
    ends = {client: context.Pipe() for client in CLIENTS}
    clients = [
        context.Process(target=ask_pipes, args=(client, ends[client][1], requests))
        for client in CLIENTS
    ]
    for client in clients:
        client.start()
    for _ in range(len(CLIENTS) * ROUNDS):
        client, array = requests.get()
        ends[client][0].send(2 * said(0, array))
    for client in clients:
        client.join()


def by_processes():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    command = [sys.executable, __file__, HOW]
    server = subprocess.Popen([*command, "0", port], stdout=subprocess.PIPE)
    assert server.stdout.readline() == b"up\n"
    clients = [subprocess.Popen([*command, str(client), port]) for client in CLIENTS]
    os.write(1, server.stdout.read())
    sys.exit(any([one.wait() for one in (*clients, server)]))


if __name__ == "__main__":
    if HOW in ("fork", "spawn"):
        by_pipes(HOW)
    elif ROLE is None:
        by_processes()
    elif ROLE:
        globals()[f"ask_{HOW}"](ROLE, int(sys.argv[3]))
    else:
        globals()[f"serve_{HOW}"](int(sys.argv[3]))
