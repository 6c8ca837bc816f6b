"""Three processes that talk by ZeroMQ alone, in the ways of frameworks; each saves what it gets."""

import json
import os

import zmq

FOLDER = os.environ["SHEETS"]
PULL = [f"ipc://{FOLDER}/pull-{rank}" for rank in range(3)]
ROUTER = f"ipc://{FOLDER}/router"
PUB = f"ipc://{FOLDER}/news"


def main(rank):
    context = zmq.Context()
    sheet = []
    pull = context.socket(zmq.PULL)
    pull.bind(PULL[rank])
    push = context.socket(zmq.PUSH)
    push.connect(PULL[(rank + 1) % 3])
    for k in range(3):
        push.send_json({"round": k, "weights": [rank / 4, k / 8]})
        sheet.append([(rank - 1) % 3, pull.recv().hex()])
    talk(rank, context, sheet)
    with open(os.path.join(FOLDER, f"rank-{rank}.json"), "w") as file:
        json.dump(sheet, file)


def talk(rank, context, sheet):
    """Replies to whom they belong, and news for all."""
    news = context.socket(zmq.PUB if rank == 0 else zmq.SUB)
    if rank == 0:
        news.bind(PUB)
        router = context.socket(zmq.ROUTER)
        router.bind(ROUTER)
        asked = {identity: what for identity, what in (router.recv_multipart() for _ in range(2))}
        sheet += [[int(identity), asked[identity].hex()] for identity in sorted(asked)]
        for identity, what in asked.items():
            router.send_multipart([identity, b"you said", what])
        for _ in range(2):
            router.recv_multipart()
        news.send(b"over")
        context.destroy(linger=5000)
    else:
        news.connect(PUB)
        news.subscribe(b"")
        dealer = context.socket(zmq.DEALER)
        dealer.identity = str(rank).encode()
        dealer.connect(ROUTER)
        dealer.send(b"hello of %d" % rank)
        sheet += [[0, part.hex()] for part in dealer.recv_multipart()]
        import time

        time.sleep(0.3)  # a subscription takes a moment
        dealer.send(b"ready")
        sheet.append([0, news.recv().hex()])


if __name__ == "__main__":
    children = []
    for rank in range(3):
        if (pid := os.fork()) == 0:
            main(rank)
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
