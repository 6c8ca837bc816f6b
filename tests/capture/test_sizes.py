"""Messages whose size shows a record, and those whose size noise decides, too."""

from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from dpaudit.capture.runs import MessageId
from dpaudit.capture.sizes import with_sizes
from dpaudit.capture.worlds import MeasuredRuns, NeighbouringRuns, measured_worlds
from dpaudit.files.threat import ThreatModel

from .toy import Toy, config_of

EVERYONE = ThreatModel(name="every link")
MESSAGE = MessageId(0, (1,), "x", 1)


class Counts(Toy):
    """A message has a further number if the sum of its records is more than 1 in the first input."""

    hidden = False  # by noise

    def content(self, agent: int, k: int, total: np.ndarray, noise: np.ndarray) -> np.ndarray:
        first = total[0] + noise[0] * self.hidden
        return np.append(total + noise, np.zeros(int(first > 0.6)))


class Stops(Toy):
    """An agent sends nothing more where the sum of its records is long."""

    def send(self, run: Any, at: int, message: MessageId, content: np.ndarray) -> None:
        noise = run.tape[f"{message.source}/{message.round - 1}/z"]
        if message.round == 1 or (content - noise)[0] < 0.6:
            super().send(run, at, message, content)


def of_round(toy: Toy, folder: Path, k: int) -> tuple[NeighbouringRuns, int]:
    """What is known of a round, and how many runs were played for sizes."""
    config = config_of(folder, record={"rounds": (k,), "victims": (0,)})
    worlds: MeasuredRuns = measured_worlds(config, toy)  # type: ignore[arg-type]
    before = len(toy.worlds)
    found = with_sizes(worlds, toy)  # type: ignore[arg-type]
    return found.rounds[k], len(toy.worlds) - before


def test_a_size_that_the_record_decides_shows_it(tmp_path: Path) -> None:
    """The first record is [0.3, 0.4], or [3, 4] clipped, among others that add 0.1."""
    found, n = of_round(Counts(tmp_path), tmp_path, 1)
    assert found.sizes == {0: {MESSAGE: {"present": 2, "absent": 2, "scaled": 3}}}
    assert n == 3 * 3
    same, other = (found.leak(0, EVERYONE, ("absent", how)) for how in ("present", "scaled"))
    assert (same.mu, other.mu, other.epsilon, other.noiseless) == (0.0, inf, inf, MESSAGE)
    blind = ThreatModel(name="blind", kind="curious", agents=(2,))
    assert found.leak(0, blind, ("absent", "scaled")).mu == 0.0


def test_a_size_that_noise_decides_too_shows_nothing(tmp_path: Path) -> None:
    found, _ = of_round(Counts(tmp_path, hidden=True), tmp_path, 1)
    assert not any(found.sizes.values())
    assert found.leak(0, EVERYONE, ("absent", "scaled")).noiseless is None


def test_a_message_that_a_record_ends_shows_it(tmp_path: Path) -> None:
    found, _ = of_round(Stops(tmp_path), tmp_path, 2)
    [sizes] = found.sizes[0].values()
    assert sizes == {"present": 2, "absent": 2, "scaled": None}
    leak = found.leak(0, EVERYONE, ("absent", "scaled"))
    assert (leak.mu, leak.noiseless) == (inf, MESSAGE._replace(round=2))


def test_messages_of_one_size_need_no_more_runs(tmp_path: Path) -> None:
    found, n = of_round(Toy(tmp_path), tmp_path, 1)
    assert (n, found.sizes) == (0, {})


def test_a_size_is_looked_at_where_that_of_one_agent_differs(tmp_path: Path) -> None:
    """The first number of agent 0 is 0.4, or 1.1; that of agent 1 is 1.4, or 1.0 without it."""
    config = config_of(tmp_path, record={"rounds": (1,), "victims": (0, 1)})
    toy = Counts(tmp_path)
    worlds: MeasuredRuns = measured_worlds(config, toy)  # type: ignore[arg-type]
    found = with_sizes(worlds, toy).rounds[1]  # type: ignore[arg-type]
    assert [[*found.sizes[v]] for v in (0, 1)] == [[MESSAGE], []]
