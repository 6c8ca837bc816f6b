"""Weather: which messages of a run are lost or late, and which agents are absent or slow.

A weather is drawn before the run, from nothing but a seed: it does not depend on data, and it is
public. Who knows the algorithm knows which messages arrived, and when.

- **loss**: in each round a link loses what is sent on it. Nobody reads a lost message.
- **delay**: each directed link takes a number of rounds of its own, drawn once. What is sent in
  round t is mixed in round t + delay, where a prompt message is mixed in round t.
- **churn**: an absent agent takes no step and sends nothing. A prompt message to it is lost. One on
  its way is mixed into its model when it arrives: as it sends nothing meanwhile, this is the same
  as if messages waited, and it mixed them round after round on its return, before it sends.
- **stragglers**: a slow agent takes no step. It still mixes and sends.

Where does the weight of a message go that does not arrive?

On graphs of symmetric W (gossip), a link loses both directions at once, as in Kar and Moura 2009,
arXiv:0711.3915. The weight goes back to the receiver's own model in the round in which the message
would be mixed. Rows sum to 1, and without a delay W stays symmetric and doubly stochastic. With a
delay it is the model of Nedic and Ozdaglar 2010 (consensus with delays), W is only row-stochastic,
and the mean over agents is not kept.

On other graphs, whose columns sum to 1 (push-sum), each direction is lost by itself, and the weight
stays with the sender, as in Kempe, Dobra and Gehrke 2003: a sender learns that its message is lost.
What is on its way counts as mass, so that sums over agents and messages are kept (Hadjicostis and
Charalambous 2014). The variants in which mass is lost for ever are not modelled.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import breadth_first_order

from dpaudit.errors import ConfigError
from dpaudit.files.options import GraphOptions

from .mixing import MOST_WEIGHTS, Links, Matrix

Bools = NDArray[np.bool_]


class Calm(NamedTuple):
    """A round without weather: its mixing matrix, and who takes a step in it."""

    W: Matrix  # [n_agents, n_agents]
    active: tuple[int, ...] | None


class WeatheredRound(NamedTuple):
    """A round under weather."""

    W: Matrix  # weights of own models and of messages that are mixed in the round they are sent in
    active: tuple[int, ...] | None
    slow: Matrix | None  # weights of messages that are sent in this round and mixed later
    late: tuple[Matrix, ...]  # [d - 1]: of messages that were sent d rounds ago and are mixed now


class _Sent(NamedTuple):
    """What is sent in a round and arrives, on links in order of rows."""

    receivers: NDArray[np.int64]
    senders: NDArray[np.int64]
    weights: NDArray[np.float64]
    delays: NDArray[np.int64]

    def matrix(self, n: int, delay: int) -> Matrix:
        """Mixing matrix of the messages with this delay."""
        its = self.delays == delay
        at = self.receivers[its], self.senders[its]
        return sparse.csr_array((self.weights[its], at), shape=(n, n))


def weathered(
    options: GraphOptions, calm: Sequence[Calm], n_rounds: int, rng: np.random.Generator
) -> list[WeatheredRound]:
    """Rounds 1 to ``n_rounds`` of a graph under the weather that ``rng`` draws.

    Loss, delays, absence and slowness have streams of their own, so that more of one changes no
    draw of another.

    Args:
        calm: the rounds of one period.

    Raises:
        ConfigError: the graph has a server, or varies where it may not under a delay; delays
            outlast the run; there are too many weights.
    """
    by_gossip = _is_symmetric(calm)
    _refuse(options, calm, n_rounds, by_gossip)
    n = calm[0].W.shape[0]
    lost, slow, absent, skip = rng.spawn(4)
    delays = _delays(calm, options.delay, slow)
    rounds, sent = list[WeatheredRound](), list[_Sent]()
    for k in range(n_rounds):
        W, active = calm[k % len(calm)]
        there = absent.random(n) >= options.churn
        acts = there & (skip.random(n) >= options.stragglers)
        sent.append(_sent(W, delays, there, options.loss, by_gossip, lost))
        late = tuple(sent[k - d].matrix(n, d) for d in range(1, min(k, options.delay) + 1))
        prompt, on_way = sent[k].matrix(n, 0), None
        if options.delay:
            on_way = sent[k]._replace(delays=np.minimum(sent[k].delays, 1)).matrix(n, 1)
        elsewhere: tuple[Matrix, ...] = late if by_gossip else (on_way,) if options.delay else ()
        mixed = sum(elsewhere, prompt)  # at the receiver, or of the sender
        own = sparse.diags_array(1.0 - mixed.sum(1 if by_gossip else 0), format="csr")
        rounds.append(WeatheredRound(prompt + own, _acting(options, active, acts), on_way, late))
    return rounds


def _is_symmetric(calm: Sequence[Calm]) -> bool:
    return all(one.W.shape and abs(one.W - one.W.T).max() <= 1e-12 for one in calm)


def _refuse(options: GraphOptions, calm: Sequence[Calm], n_rounds: int, by_gossip: bool) -> None:
    if options.name == "server":
        raise ConfigError(
            "DPA037",
            "graph server: loss, delay, churn and stragglers are of links between agents",
            "use participation, the share of agents that take part in a round",
        )
    if (late := options.never_arrives(n_rounds)) is not None:
        raise ConfigError("DPA005", f"graph {options.name}: delay: {late}")
    if options.delay and by_gossip and len(calm) > 1:
        raise ConfigError(
            "DPA037",
            f"graph {options.name}: it varies by round, so that the weights of late messages need "
            "not fit those of the round in which they arrive",
            "leave delay out, or take a graph that does not vary or a directed one",
        )
    weights = n_rounds * max(one.W.nnz for one in calm) * (1 + options.delay)
    if weights > MOST_WEIGHTS:
        raise ConfigError(
            "DPA022",
            f"graph {options.name}: {n_rounds} rounds of weather have {weights:.2g} weights; "
            f"expected at most {MOST_WEIGHTS:.2g}",
            "take fewer rounds, a sparser graph or a shorter delay",
        )


def _delays(calm: Sequence[Calm], most: int, rng: np.random.Generator) -> Matrix:
    """Delay of each directed link of any round, plus one."""
    links = sum((one.W for one in calm[1:]), calm[0].W).copy()
    links.data = 1.0 + rng.integers(0, most + 1, size=links.nnz)
    return links


def _sent(
    W: Matrix,
    delays: Matrix,
    there: Bools,
    loss: float,
    both_ways: bool,
    rng: np.random.Generator,
) -> _Sent:
    """What of a round's messages is sent and not lost."""
    receivers, senders = W.nonzero()
    apart = receivers != senders
    i, j, weights = receivers[apart], senders[apart], W.data[apart]
    pairs = np.maximum(i, j) * W.shape[0] + np.minimum(i, j)
    of_link = np.unique(pairs, return_inverse=True)[1] if both_ways else np.arange(len(i))
    kept = rng.random(int(of_link.max(initial=-1)) + 1)[of_link] >= loss
    rounds = _entries(delays, i, j).astype(np.int64) - 1
    arrives = kept & there[j] & (there[i] | (rounds > 0))
    return _Sent(i[arrives], j[arrives], weights[arrives], rounds[arrives])


def _entries(W: Matrix, i: NDArray[np.int64], j: NDArray[np.int64]) -> NDArray[np.float64]:
    """W[i, j] of entries that it has, in order of rows."""
    at = np.asarray(sparse.coo_array(W).coords)
    places = at[0] * W.shape[0] + at[1]
    found: NDArray[np.float64] = W.data[np.searchsorted(places, i * W.shape[0] + j)]
    return found


def _acting(
    options: GraphOptions, active: tuple[int, ...] | None, acts: Bools
) -> tuple[int, ...] | None:
    """Who takes a step; None: everybody, whatever the weather."""
    if not (options.churn or options.stragglers):
        return active
    may = range(len(acts)) if active is None else active
    return tuple(i for i in may if acts[i])


def unheard(links: Links) -> tuple[int, int] | None:
    """(agent, other) of whom ``agent`` never hears, directly or by others; None: nobody.

    Args:
        links: [receiver, sender], of all rounds.
    """
    everybody = set(range(links.shape[0]))
    for graph, hears in ((links, True), (links.T, False)):
        reached = breadth_first_order(graph.tocsr(), 0, return_predecessors=False)
        if far := everybody - set(reached.tolist()):
            return (0, min(far)) if hears else (min(far), 0)
    return None
