"""Plants one-line faults by chance and lists those that no fast test of the room finds.

    make mutants                                  # 20 faults, seed 0
    python tests/mutants.py --n 200 --seed 1 [--room dpaudit/accounting ...]

Each fault changes one line of a clean working tree, runs the fast tests of its room until the first
one fails, and is taken back. A fault in a message or in a limit of size may change no verdict: look
at what survives before writing a test. Exit code 1 if more than a tenth survives.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import use_mutation
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator

ROOT = Path(__file__).parents[1]
ROOMS = [
    *(f"dpaudit/{name}" for name in ("accounting", "statistics", "game", "pipeline", "capture")),
    *("dpaudit/check", "dpaudit/files", "attacks", "defenses"),
]
COMPARISONS = ["Lt_LtE", "Lt_Gt", "LtE_Lt", "LtE_GtE", "Gt_GtE", "Gt_Lt", "GtE_Gt", "GtE_LtE"]
ARITHMETIC = ["Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "Pow_Mul"]
STANDARD = [
    *(f"ReplaceComparisonOperator_{pair}" for pair in [*COMPARISONS, "Eq_NotEq", "NotEq_Eq"]),
    *(f"ReplaceBinaryOperator_{pair}" for pair in ARITHMETIC),
    *("ReplaceUnaryOperator_Delete_USub", "ReplaceUnaryOperator_Delete_Not"),
    *("ReplaceAndWithOr", "ReplaceOrWithAnd", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue"),
    "NumberReplacer",
]
SWAPPED = {"min": "max", "max": "min", "low": "high", "high": "low", "any": "all", "all": "any"}
SECONDS = 900  # of the tests of one fault; a fault that takes longer counts as found


class SwapName(Operator):  # type: ignore[misc]
    """``max`` in the place of ``min``, the upper end in the place of the lower one."""

    def mutation_positions(self, node: Any) -> Iterator[Any]:
        if node.type == "name" and node.value in SWAPPED:
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        node.value = SWAPPED[node.value]
        return node

    @classmethod
    def examples(cls) -> tuple[()]:
        return ()


class DropOperand(Operator):  # type: ignore[misc]
    """``a`` in the place of ``a * b`` and of ``a + b``: a factor or a term is forgotten."""

    def mutation_positions(self, node: Any) -> Iterator[Any]:
        if node.type in ("term", "arith_expr"):
            for operand in node.children[2::2]:
                yield operand.start_pos, operand.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        del node.children[2 * index + 1 : 2 * index + 3]
        return node

    @classmethod
    def examples(cls) -> tuple[()]:
        return ()


OPERATORS = [*(get_operator(f"core/{name}")() for name in STANDARD), SwapName(), DropOperand()]


class Fault(NamedTuple):
    room: str
    file: Path
    operator: Operator
    occurrence: int
    line: int

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line} {type(self.operator).__name__}"


def faults_in(room: str, file: Path) -> Iterator[Fault]:
    nodes = list(ast_nodes(get_ast(file.read_text())))
    for operator in OPERATORS:
        positions = (at for node in nodes for at in operator.mutation_positions(node))
        for occurrence, ((line, _), _) in enumerate(positions):
            yield Fault(room, file, operator, occurrence, line)


def faults_of(room: str) -> dict[str, list[Fault]]:
    """The faults that a room can have, by their kind: most would be changed numbers otherwise."""
    kinds: dict[str, list[Fault]] = {}
    for file in sorted((ROOT / room).rglob("*.py")):
        for fault in faults_in(room, file):
            kinds.setdefault(type(fault.operator).__name__, []).append(fault)
    return kinds


def tests_of(file: Path) -> str:
    """The folder, or the file, of the tests of a module: the tree of the tests is that of the code."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    parts = parts[1:] if parts[0] == "dpaudit" else parts
    if parts[0] == "attacks" and len(parts) == 2:
        return f"tests/attacks/test_{parts[1]}.py"
    return "/".join(("tests", *parts[: 2 if parts[0] == "attacks" else 1]))


def is_found(fault: Fault) -> bool:
    """Whether a fast test of the room fails with this fault in the code."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "auto", "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    with use_mutation(fault.file, fault.operator, fault.occurrence):
        try:
            ended = subprocess.run(
                [*command, tests_of(fault.file)],
                cwd=ROOT,
                env=environment,
                capture_output=True,
                timeout=SECONDS,
            )
        except subprocess.TimeoutExpired:
            return True
    return ended.returncode != 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--n", type=int, default=20, help="faults that are planted")
    parser.add_argument("--seed", type=int, default=0, help="of the choice")
    parser.add_argument("--room", action="append", choices=ROOMS, help="default: all of them")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # takes the planted fault back
    changed = subprocess.run(
        ["git", "status", "--porcelain", "--untracked-files=no"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    if changed:
        print(
            f"error: the working tree has changes\n{changed}help: commit them first",
            file=sys.stderr,
        )
        return 2
    choice = random.Random(given.seed)
    rooms = {room: faults_of(room) for room in given.room or ROOMS}
    planted, found = Counter[str](), Counter[str]()
    for _ in range(given.n):
        of_kind = choice.choice([*rooms[choice.choice([*rooms])].values()])
        fault = of_kind.pop(choice.randrange(len(of_kind)))
        is_caught = is_found(fault)
        planted[fault.room] += 1
        found[fault.room] += is_caught
        print("found   " if is_caught else "SURVIVED", fault, flush=True)
    for room, n in planted.items():
        print(f"{room}: {found[room]} of {n}")
    print(f"{found.total()} of {planted.total()} found")
    return int(found.total() < 0.9 * planted.total())


if __name__ == "__main__":
    sys.exit(main())
