"""A process that carries out orders, each in a fork of itself, which finds all modules imported.

Reads an order from each line of stdin, whose end means that whoever asked is gone, and answers each
with a line of JSON on stdout: the exit code of its fork, and what that said on stderr. The code is
0 if the order is done, and 2 with a line for each problem.
"""

import json
import os
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from tempfile import TemporaryFile

from dpaudit.unforeseen import problems_of

BY_EVERY_AUDIT = ("dpaudit.pipeline.run", "matplotlib.figure")


def serve(carry_out: Callable[[str], None], modules: Sequence[str] = BY_EVERY_AUDIT) -> int:
    """Carry out orders until there are no more; of a fork, the exit code of its order.

    Args:
        modules: imported once, before all orders. None of them may start a thread.
    """
    warnings.simplefilter("ignore")
    for module in modules:
        import_module(module)
    answers, nothing = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)  # what is audited may print
    while order := sys.stdin.readline():
        with TemporaryFile() as said:
            fork = os.fork()
            if fork == 0:
                os.dup2(said.fileno(), 2)
                return _carried_out(carry_out, order)
            code = os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
            said.seek(0)
            answer = code, said.read().decode(errors="replace")
        os.write(answers, f"{json.dumps(answer)}\n".encode())
    return 0


def _carried_out(carry_out: Callable[[str], None], order: str) -> int:
    threading.Thread(target=_end_with_the_asker, daemon=True).start()
    try:
        carry_out(order)
    except BaseException as error:  # SystemExit of the code that is audited, too
        for problem in problems_of(error):
            print(problem.code, problem.text, file=sys.stderr)
        return 2
    return 0


def _end_with_the_asker() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)
