"""What a guest's receivers got, written down by themselves, to be held beside what was recorded."""

import inspect
import json
import os
import threading

import torch
from torch.distributed import distributed_c10d


class Sheet:
    """The answers of one rank: a line for each tensor that it received."""

    def __init__(self, rank):
        self.rank, self._lock = rank, threading.Lock()
        self._path = os.path.join(os.environ["SHEETS"], f"rank-{rank}.jsonl")

    def got(self, source, tensor):
        """A message from a rank of the default group."""
        self._write({"source": source, "got": [_described(tensor)]})

    def got_object(self, source, numbers, *objects):
        """Objects, which travel as their lengths and as their bytes, one after the other.

        They are known by the numbers that they hold, or by their bytes if they hold none.
        """
        pairs = [_as_sent(one) for one in objects]
        self.got(source, torch.cat([size for _, size in pairs]))
        whole = [torch.cat([content for content, _ in pairs])]
        self._write({"source": source, "got": [_described(one) for one in numbers or whole]})

    def got_sum(self, total, own):
        """What a reduction gave, and what this rank gave to it."""
        self._write({"sum": _described(total), "own": _described(own)})

    def _write(self, answer):
        with self._lock, open(self._path, "a") as file:
            file.write(json.dumps({"rank": self.rank, **answer}) + "\n")


def _as_sent(one):
    """An object as torch sends it, whose function takes a group from some version on."""
    convert = inspect.unwrap(distributed_c10d._object_to_tensor)  # not the recorder's
    return convert(one, torch.device("cpu"), *[None] * (convert.__code__.co_argcount - 2))


def _described(tensor):
    flat = tensor.detach().clone().contiguous().flatten()
    content = flat.view(torch.uint8).numpy().tobytes().hex()
    return {"shape": list(tensor.shape), "dtype": str(tensor.dtype)[6:], "bytes": content}


def forked(n, play, port_file):
    """Play n ranks in forks of this process; exits with 1 if one of them fails."""
    children = []
    for rank in range(n):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                torch.set_num_threads(1)
                torch.distributed.init_process_group(
                    "gloo", init_method=f"file://{port_file}", rank=rank, world_size=n
                )
                play(rank, n, Sheet(rank))
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
    codes = [os.waitpid(pid, 0)[1] for pid in children]  # as a status, for Python 3.8
    raise SystemExit(any(codes))
