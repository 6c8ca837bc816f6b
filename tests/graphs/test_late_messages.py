"""What becomes of messages that reach an agent while it is absent, in explicit matrices."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from dpaudit.files.options import graph_options
from dpaudit.graphs.weather import Calm, WeatheredRound, weathered

Array = NDArray[np.float64]
LEAVES = 0.5  # churn, above which a drawn number keeps an agent in the round


class Stream:
    """Draws that are given in advance; without them nothing is lost, and nobody is slow."""

    def __init__(self, drawn: Array | None = None, delays: Array | None = None) -> None:
        self.rows = None if drawn is None else iter(drawn)
        self.delays = delays

    def random(self, n: int) -> Array:
        return np.ones(n) if self.rows is None else next(self.rows)

    def integers(self, _low: int, _high: int, size: int) -> Array:
        return np.zeros(size) if self.delays is None else self.delays[:size]


class Given:
    """In the place of a generator: which agents are there in each round, and the links' delays."""

    def __init__(self, there: Array, delays: Array) -> None:
        self.there, self.delays = there, delays

    def spawn(self, _n: int) -> list[Stream]:
        return [Stream(), Stream(delays=self.delays), Stream(self.there), Stream()]


def rounds(name: str, W: Array, there: Array, delays: Array) -> list[WeatheredRound]:
    options = graph_options(name, churn=LEAVES, delay=max(1, int(delays.max())))
    given: Any = Given(there, delays)
    calm = [Calm(sparse.csr_array(W), None)]
    return weathered(options, calm, len(there), given)


def test_an_absent_agent_mixes_what_reaches_it() -> None:
    """Agent 1 is away in round 2. What agent 0 sent in round 1 is mixed there and then."""
    W, there = np.full((2, 2), 0.5), np.array([[1, 1], [1, 0], [1, 1]], float)
    one, two, three = rounds("ring", W, there, np.ones(4))
    assert one.W.toarray().tolist() == [[1, 0], [0, 1]]
    assert one.late == ()
    assert two.active == (0,)
    assert two.W.toarray().tolist() == [[0.5, 0], [0, 0.5]]
    assert two.late[0].toarray().tolist() == [[0, 0.5], [0.5, 0]]
    assert three.W.toarray().tolist() == [[1, 0], [0, 0.5]]  # agent 1 sent nothing in round 2
    assert three.late[0].toarray().tolist() == [[0, 0], [0.5, 0]]


def test_a_prompt_message_to_an_absent_agent_is_lost() -> None:
    W, there = np.full((2, 2), 0.5), np.array([[1, 0], [1, 1]], float)
    one, two = rounds("ring", W, there, np.zeros(4))
    assert one.W.toarray().tolist() == [[1, 0], [0, 1]]
    assert two.W.toarray().tolist() == W.tolist()


def test_sums_are_kept_while_messages_reach_absent_agents() -> None:
    """Push-sum on three agents in a ring; agent 1 is away in round 2."""
    W = np.array([[0.5, 0, 0.5], [0.5, 0.5, 0], [0, 0.5, 0.5]])
    there = np.array([[1, 1, 1], [1, 0, 1], [1, 1, 1]], float)
    found = rounds("directed-ring", W, there, np.ones(6))
    two = found[1]
    assert two.W.toarray().tolist() == [[0.5, 0, 0], [0, 1, 0], [0, 0, 0.5]]
    assert two.late[0].toarray().tolist() == [[0, 0, 0.5], [0.5, 0, 0], [0, 0.5, 0]]
    for k, one in enumerate(found):
        sent = one.W.sum(0) + one.slow.sum(0)
        assert sent.tolist() == [1, 1, 1], k


def mixed(found: list[WeatheredRound], X: Array) -> list[Array]:
    """Models before each round, as agents that mix what arrives."""
    sent, before = list[Array](), [X]
    for k, one in enumerate(found):
        sent.append(before[-1])
        late = [sent[k - d] for d in range(1, len(one.late) + 1)]
        arrived = sum((A @ Y for A, Y in zip(one.late, late, strict=True)), np.zeros_like(X))
        before.append(one.W @ sent[k] + arrived)
    return before


def waiting(W: Array, there: Array, delay: Array, X: Array, by_gossip: bool) -> list[Array]:
    """The same by single messages: an agent mixes those that wait for it when it returns.

    It takes the rounds in which they came one after another, before it sends anything.
    """
    n, x, before = len(W), X.copy(), [X.copy()]
    on_way: dict[int, list[tuple[int, float, Array]]] = {}
    waits: dict[int, list[list[tuple[float, Array]]]] = {i: [] for i in range(n)}

    def open_all(i: int) -> None:
        for batch in waits.pop(i):
            x[i] *= 1 - sum(w for w, _ in batch) if by_gossip else 1.0
            x[i] += sum((w * Y for w, Y in batch), np.zeros_like(x[i]))
        waits[i] = []

    for k, here in enumerate(there):
        for i in np.flatnonzero(here):
            open_all(i)
        sent = x.copy()
        for i, j in zip(*W.nonzero(), strict=True):
            if i != j and here[j] and (here[i] or delay[i, j]):
                on_way.setdefault(k + int(delay[i, j]), []).append((i, W[i, j], sent[j]))
                x[j] -= 0 if by_gossip else W[i, j] * sent[j]
        for i in range(n):
            waits[i].append([(w, Y) for to, w, Y in on_way.get(k, []) if to == i])
        for i in np.flatnonzero(here):
            open_all(i)
        before.append(x.copy())
    return before


@pytest.mark.parametrize("name", ["ring", "directed-ring"])
@pytest.mark.parametrize("n", [2, 3, 4])
def test_it_is_as_if_late_messages_waited(name: str, n: int) -> None:
    """Whoever is there has the same model: nobody reads that of an absent agent."""
    rng, by_gossip = np.random.default_rng(7), name == "ring" or n == 2
    for _ in range(20):
        there = (rng.random((9, n)) < 0.7).astype(float)
        there[-1] = 1  # all are back in the end
        W = np.zeros((n, n))
        for i in range(n):
            for j in {(i + 1) % n} | ({(i - 1) % n} if by_gossip else set()):
                W[j, i] = 1 / 3
        W += np.diag(1 - W.sum(0))
        at = sparse.csr_array(W).nonzero()
        delay = np.zeros((n, n))
        delay[at] = rng.integers(0, 3, len(at[0]))
        found = rounds(name, W, there, delay[at])
        X = rng.normal(size=(n, 2))
        for k, (a, b) in enumerate(
            zip(mixed(found, X), waiting(W, there, delay, X, by_gossip), strict=True)
        ):
            present = there[k - 1].astype(bool) if k else np.ones(n, bool)
            assert np.allclose(a[present], b[present], rtol=0, atol=1e-12), k
