"""A program of two agents in this process, whose runs take no time and whose figures are known.

Both take the same batch in every round, clip each record in L2, add noise to the sum and send it to
each other. What a test changes of that is an attribute or a method of ``Toy``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from dpaudit.capture.alignment import Alignments
from dpaudit.capture.runs import MessageId, NamedDraw, ProgramRun, TakenBatch
from dpaudit.capture.visible_output import EqualRuns
from dpaudit.capture.worlds import measured_worlds
from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.world import Change, World

RECORDS = np.array(  # [agents, records, inputs], of lengths 0.5, 2 and 0.1, and 1, 0.2 and 3
    [[[0.3, 0.4], [0.0, 2.0], [0.1, 0.0]], [[0.6, -0.8], [-0.2, 0.0], [3.0, 0.0]]]
)
FACTORS = {"scaled": 10.0, "negated": -10.0, "zeroed": 0.0, "present": 1.0, "other-label": 1.0}
SCALE, CLIP = 2.0, 1.0


class ToyRun(SimpleNamespace):
    """What a run of a real program shows, without files."""

    def __init__(self, world: World) -> None:
        super().__init__(
            world=world, _ids={}, messages={}, draws=[], tape={}, batches=[], taken=[],
            all_draws=[], all_sent=[], summed=frozenset(), as_bytes=frozenset(), beside=(),
            unseen=(), seen_by_receivers=frozenset(), drawing_lines=("z",), left_out=[],
            _processes=(),
        )  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        """All else is made of these as of a real run."""
        of = getattr(ProgramRun, name)
        return of.fget(self) if isinstance(of, property) else of.__get__(self)

    def sent_until(self, k: int) -> dict[int, int]:
        return {}

    def write_tape(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "tape.safetensors"
        save_file({key: torch.from_numpy(values) for key, values in self.tape.items()}, path)
        return path


def become(records: np.ndarray, changes: Sequence[Change]) -> np.ndarray:
    """The records of one batch, as the recorder changes them."""
    rows = [row.copy() for row in records]
    for change in changes:
        if change.how == "absent":
            continue
        direction, _, rest = change.how.partition(":")
        if direction in FACTORS:
            rows[change.record] *= FACTORS[direction]
            continue
        factor, row = float(rest.partition(":")[0]), rows[change.record]
        far = {"own": row * factor, "level": np.full_like(row, factor), "few": 0 * row}
        far["few"][1] = factor
        rows[change.record] = far[direction]
    gone = {change.record for change in changes if change.how == "absent"}
    return np.array([row for i, row in enumerate(rows) if i not in gone]).reshape(-1, 2)


class Toy:
    """In the place of ``Program``; it keeps the worlds that it has played."""

    workers = 1
    rounds = 2
    family: Any = "gaussian"
    records = RECORDS

    def __init__(self, scratch: Path, **instead: Any) -> None:
        self.scratch, self.worlds = scratch, list[World]()
        self.program = self
        vars(self).update(instead)

    def clipped(self, records: np.ndarray) -> np.ndarray:
        """Its rows, none longer than ``CLIP``."""
        largest = np.abs(records).max(axis=1, initial=1e-300, keepdims=True)
        lengths = largest * np.linalg.norm(records / largest, axis=1, keepdims=True)
        return np.asarray(records / np.maximum(1.0, lengths / CLIP))

    def content(self, agent: int, k: int, total: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """What an agent sends of the sum of its clipped records."""
        return total + noise

    def acting(self, k: int) -> Sequence[int]:
        """The agents that take part in a round, in their order."""
        return range(len(self.records))

    def play(self, world: World) -> ToyRun:
        run, clock = ToyRun(world), iter(range(10**6))
        self.run = run  # that is played now
        tape = {} if world.tape is None else load_file(world.tape)
        rng = np.random.default_rng(world.seed)
        signs = np.random.default_rng(world.sign_seed)
        for k in range(1, self.rounds + 1):
            for agent in self.acting(k):
                self._turn(run, clock, agent, k, tape, rng, signs)
        return run

    def _turn(self, run: Any, clock: Any, agent: int, k: int, *noise: Any) -> None:
        """One round of one agent: a batch, noise and a message."""
        world, at = run.world, next(clock)
        digests = tuple(f"{agent}-{i}" for i in range(len(self.records[agent])))
        run.batches.append(TakenBatch(agent, at, len(digests), digests))
        about = {"process": 0, "agent": agent, "records": len(digests)}
        run.taken.append(SimpleNamespace(sequence=at, **about))
        own = agent, sum(taken.agent == agent for taken in run.batches)  # with its number
        changes = [c for c in world.changes if (c.agent, c.batch) == own]
        total = self.clipped(become(self.records[agent], changes)).sum(axis=0)
        drawn, key = self._drawn(world, f"{agent}/{k - 1}/z", *noise), f"{agent}/{k - 1}/z"
        run.tape[key] = drawn
        for operator in ("normal", self.family):
            run.all_draws.append(
                SimpleNamespace(
                    process=0, sequence=next(clock), shape=(2,), operator=operator,
                    call_site="z" if operator == self.family else "toy.py:1", purpose=None,
                    parameters=(),
                )
            )  # fmt: skip
        at = run.all_draws[-1].sequence
        run.draws.append(NamedDraw(key, "z", agent, at, SCALE, self.family, k))
        content = self.content(agent, k, total, drawn)
        self.send(run, next(clock), MessageId(agent, (1 - agent,), "x", k), content)

    def send(self, run: Any, at: int, message: MessageId, content: np.ndarray) -> None:
        tensor = SimpleNamespace(name="0", shape=content.shape, dtype="float64")
        event = SimpleNamespace(
            process=0, sequence=at, source=message.source, destinations=message.destinations,
            operator="tap", call_site=message.name, tag=None, tensors=(tensor,), time=float(at),
        )  # fmt: skip
        run._ids[message] = event
        run.messages[message] = content
        run.all_sent.append((event, content))

    def _drawn(self, world: World, key: str, tape: Any, rng: Any, signs: Any) -> np.ndarray:
        own = SCALE * rng.normal(size=2)
        own = np.asarray(tape[key]) if key in tape else own
        if key in world.signs:
            return SCALE * signs.choice([-1.0, 1.0], 2)
        return 0 * own if key in world.silent else own

    def each(
        self,
        worlds: Sequence[World],
        use: Callable[[Any], Any],
        on_done: Callable[[], None] = lambda: None,
    ) -> list[Any]:
        self.worlds += worlds
        found = []
        for world in worlds:
            found.append(use(self.play(world)))
            on_done()
        return found

    @contextmanager
    def running(self) -> Iterator["Toy"]:
        yield self

    def loaded(self, worlds: Sequence[World]) -> list[Any]:
        return self.each(worlds, lambda run: run)


def config_of(folder: Path, **of: Any) -> CapturedConfig:
    """Victims are both agents, of which one record is left out or ten times as large."""
    (folder / "toy.py").touch()
    record = {"victims": (0, 1), "candidates": ("present", "scaled"), **of.pop("record", {})}
    given: Mapping[str, Any] = {
        "program": {"command": ("python", "toy.py"), "folder": folder},
        "record": record,
        "certify": {"runs": 0},
        **of,
    }
    return CapturedConfig.model_validate(given)


def alignments(toy: Toy, folder: Path, **of: Any) -> Alignments:
    """All of a toy program; each place of a batch has a record of its own."""
    worlds = measured_worlds(config_of(folder, **of), toy)  # type: ignore[arg-type]
    equal = EqualRuns.of(toy, worlds.replay, True)  # type: ignore[arg-type]
    records = {v: {k: (0, 1, 2) for k in range(1, toy.rounds + 1)} for v in (0, 1)}
    return Alignments(worlds, toy, records, lambda: None, equal)  # type: ignore[arg-type]
