"""The same nodes, each a process, over gRPC on localhost: over_grpc.py EPSILON ROUNDS."""

import multiprocessing
import os
import socket
import sys

import start
from p2pfl.communication.protocols.protobuff.grpc import GrpcCommunicationProtocol


def play(addresses, i, both):
    start.agents = {address: agent for agent, address in enumerate(addresses)}
    start.set_standalone_settings()
    own = start.node(addresses[i], GrpcCommunicationProtocol())
    both.wait()  # until the other one listens
    if i == 0:
        own.connect(addresses[1])
        start.wait_convergence([own], start.NODES - 1, wait=60)
        own.set_start_learning(rounds=int(sys.argv[2]), epochs=1)
    start.wait_to_finish([own], timeout=120)
    both.wait()
    os._exit(0)  # its servers do not stop by themselves


if __name__ == "__main__":
    free = [socket.create_server(("127.0.0.1", 0)) for _ in range(start.NODES)]
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in free]
    for one in free:
        one.close()
    spawn = multiprocessing.get_context("spawn")
    both = spawn.Barrier(start.NODES)
    processes = [spawn.Process(target=play, args=(addresses, i, both)) for i in range(start.NODES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
