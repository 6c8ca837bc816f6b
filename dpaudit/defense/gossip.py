"""What gossip and push-sum methods share: who mixes what, as an adversary replays it.

In all of them an agent starts round k from the mixture of the messages of round k - 1, moves away
from it by a step along its private gradient, and sends where it arrived. Whoever reads those
messages knows the mixture too, since weights are public, and so the step.
"""

import math
from collections.abc import Callable, Iterable
from functools import cache, lru_cache, partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array
from torch import Tensor

from dpaudit.accounting.releases import Mechanism, Release
from dpaudit.errors import NotObservable
from dpaudit.files.threat import ThreatModel
from dpaudit.graphs.graph import Graph

from .contract import Bracket, Defense, Observable, ObservedGradient, Setting, Target
from .transcript import Message, Messages
from .view import View, seen_links

AVERAGE = "average"  # the message with which a server sends its model

GraphOf = Callable[[int], Graph]  # the graph of round k = 1, 2, ...


def from_server(graph: Graph, X: Tensor) -> tuple[Tensor, Messages]:
    """What agents [..., n_agents, d] start a round from, and the message that brings it.

    With a server, agents that take a step start from its row, the message "average" on the links
    from it. Without one, all start from their own rows, and there is no message.
    """
    if graph.server is None:
        return X, {}
    hub = X[..., graph.server : graph.server + 1, :]
    down = graph.senders == graph.server
    senders, receivers = graph.senders[down], graph.receivers[down]
    start = torch.where(graph.acting(X) > 0, hub, X)
    return start, {AVERAGE: Message(hub, senders, receivers, torch.zeros_like(senders))}


def of_acting(graph: Graph, X: Tensor, oracle: Callable[[Tensor, Tensor | None], Tensor]) -> Tensor:
    """What ``oracle`` answers for the agents that take a step, at their rows of X; 0 elsewhere.

    Args:
        oracle: of models [..., m, d] and their agents [m] (None: all); answers [..., m, *].
    """
    if graph.active is None:
        return oracle(X, None)
    if not graph.active:
        return 0 * oracle(X, None)
    acting = torch.tensor(graph.active, device=X.device)
    answer = oracle(X[..., acting, :], acting)
    return answer.new_zeros(*X.shape[:-1], answer.shape[-1]).index_copy(-2, acting, answer)


def stepping(graph: Graph, X: Tensor) -> Tensor:
    """X [..., n_agents, d] at agents that take a step in the round, 0 at others."""
    return X if graph.active is None else graph.acting(X) * X


def mixed(view: View, graph_of: GraphOf, name: str, k: int, agent: int) -> Tensor:
    """What ``agent`` made of the messages of round k: sum_j W[agent, j] message_j, [..., d].

    Messages that arrive late are of the rounds in which they were sent.

    Raises:
        NotObservable: the view lacks one of them, its own included, or k is 0.
    """
    if k == 0:
        raise NotObservable(
            "DPA054", "the initial models are in no message: attack a round after the first"
        )
    graph = graph_of(k)
    heard = [w * view.sent_by(name, k, j) for j, w in graph.heard_by(agent)]
    for d, late in enumerate(graph.late, start=1):
        row = late[[agent]].tocoo()
        pairs = zip(row.coords[1].tolist(), row.data.tolist(), strict=True)
        heard += [w * view.sent_by(name, k - d, j) for j, w in pairs]
    return torch.stack(heard).sum(0)


def start_and_step(
    view: View, graph_of: GraphOf, name: str, target: Target
) -> tuple[Tensor, Tensor]:
    """Where the victim started its round, and how far below it the message sent then is.

    With a server that is the average of the messages of the round before.

    Raises:
        NotObservable: the view does not hold what that takes.
    """
    k, victim, _ = target
    server = graph_of(k).server
    start = mixed(view, graph_of, name, k - 1, victim if server is None else server)
    return start, start - view.sent_by(name, k, victim)


def step_seen(
    message: str,
    rate: Callable[[Any, int, int], float] = lambda defense, k, n_agents: defense.learning_rate,
    weight: str | None = None,
    at: Literal["mixed", "sent"] = "mixed",
) -> Observable:
    """A victim's step over its rate, from the messages of a round and of the one before it.

    Args:
        message: by which models are sent.
        rate: of a defense, a round and a number of agents: what a gradient is multiplied by; may
            raise NotObservable.
        weight: the message with push-sum weights, by which models are divided; None: there is none.
        at: whether gradients of round k are taken where the mixing of round k - 1 ended, or at the
            model that was sent in it.
    """

    def derive(defense: Any, view: View, setting: Setting, target: Target) -> ObservedGradient:
        k, victim, _ = target
        per_gradient = rate(defense, k, setting.n_agents)
        start, step = start_and_step(view, setting.network.at, message, target)
        model = start if at == "mixed" else view.sent_by(message, k - 1, victim)
        if weight is not None:
            model = model / view.sent_by(weight, k, victim)
        return ObservedGradient(step / per_gradient, model)

    said = f"(v_i - {message}_i) over the step size, with v_i mixed from the messages before"
    needs = {message: (-1, 0)} | ({weight: (0,)} if weight else {})
    return Observable(said, needs, message, False, derive)


def gradient_on_link(message: str, at: str) -> Observable:
    """The gradient that a message carries, at the receiver's model, which it sent as ``at``."""

    def derive(defense: Any, view: View, setting: Setting, target: Target) -> ObservedGradient:
        k, victim, receiver = target
        gradient = view.on_edge(message, k, victim, receiver)
        return ObservedGradient(gradient, view.sent_by(at, k, receiver))

    said = f"the {message.replace('_', '-')} as it travels"
    return Observable(said, {message: (0,), at: (0,)}, message, True, derive)


def known_rounds(
    graph_of: GraphOf, n_rounds: int, threat_model: ThreatModel, victim: int
) -> NDArray[np.bool_]:
    """Whether the view gives the victim's step exactly, for each round, [n_rounds].

    The initial models count as public: agents start from a common one.
    """
    rows, of_round = _known_rounds(graph_of, n_rounds, threat_model)
    return rows[of_round, victim]


@lru_cache(maxsize=16)
def _known_rounds(
    graph_of: GraphOf, n_rounds: int, threat_model: ThreatModel
) -> tuple[NDArray[np.bool_], NDArray[np.intp]]:
    """The same of all agents, [n_rows, n_agents], and which row is that of each round.

    An agent's model is known where it is heard, or where the agent takes no step and all is known
    of the round before that it mixes. Where graphs repeat and so does what is known, so does all
    that follows.
    """
    reads = cache(partial(_read, threat_model))
    rows, before = list[NDArray[np.bool_]](), graph_of(1)
    known = list[NDArray[np.bool_]]()  # agents whose messages are known, for each round
    models = np.ones(before.n_agents, dtype=bool)  # models known before the round
    first: dict[object, int] = {}  # row of the first round with these graphs and known models
    for k in range(1, n_rounds + 1):
        graph, now = graph_of(k), len(rows)
        again = first.setdefault((before, graph, models.tobytes(), k == 1), now)
        if again < now:
            later = again + np.arange(n_rounds - now) % (now - again)
            return np.stack(rows), np.concatenate([np.arange(now), later])
        read = reads(graph)
        mixed = models if k == 1 else reads(before).mixes(models)
        for d, late in enumerate(before.late, start=1):  # sent d rounds before round k - 1
            mixed = mixed & (late.astype(bool) @ ~known[k - 2 - d] == 0)
        starts = mixed
        if k > 1 and graph.server is not None:
            starts = mixed[graph.server] | read.down
        rows.append(read.heard & starts)
        models = read.heard | (~read.acting & mixed)
        known.append(models)
        before = graph
    return np.stack(rows), np.arange(n_rounds)


class _Read(NamedTuple):
    """What an adversary reads of a round's graph, of each agent [n_agents]."""

    heard: NDArray[np.bool_]  # its message, or it is the adversary's own
    down: NDArray[np.bool_]  # agents to which a server sends
    acting: NDArray[np.bool_]  # whether it takes a step
    links: csr_array  # [n_agents, n_agents]: what it mixes

    def mixes(self, known: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Whether all that an agent mixes is known, for each agent."""
        missing: NDArray[np.bool_] = self.links @ ~known == 0
        return missing


def _read(threat_model: ThreatModel, graph: Graph) -> _Read:
    heard = np.zeros(graph.n_agents, dtype=bool)
    heard[list(threat_model.agents)] = True
    heard[graph.senders[seen_links(threat_model, graph.senders, graph.receivers)]] = True
    server, n = graph.server, graph.n_agents
    down = [server is not None and threat_model.sees(server, i) for i in range(n)]
    acting = graph.acting(torch.zeros(())).flatten().numpy() > 0
    return _Read(heard, np.array(down), acting, graph.sparse.astype(bool))


@lru_cache(maxsize=128)
def steps_of(graph_of: GraphOf, n_rounds: int, agent: int) -> NDArray[np.bool_]:
    """Whether the agent takes a step, for each round, [n_rounds].

    Who takes part is public: whoever reads a link knows that it carried something.
    """
    active = (graph_of(k).active for k in range(1, n_rounds + 1))
    takes = np.array([acting is None or agent in acting for acting in active])
    takes.flags.writeable = False  # all callers have this one
    return takes


def gaussian_rounds(
    defense: Defense,
    setting: Setting,
    threat_model: ThreatModel,
    victim: int,
    noise_multipliers: ArrayLike,
    known: NDArray[np.bool_] | None = None,
) -> Bracket:
    """Gaussian releases of all rounds at most, and at least of those whose step the view gives.

    Rounds in which the victim takes no step release nothing of it. Of K batches in a round the
    view gives the sum of their noisy gradients: at most each of them, at least K releases under K
    times the variance, which is what a record with another direction in each batch meets.

    Args:
        noise_multipliers: of each round, [n_rounds], or one for all.
        known: [n_rounds]; as ``known_rounds`` has them if absent.
    """
    if known is None:
        known = known_rounds(setting.network.at, defense.n_rounds, threat_model, victim)
    takes = steps_of(setting.network.at, len(known), victim)
    z, known = np.broadcast_to(noise_multipliers, known.shape)[takes], known[takes]
    said = "the initial models, equal at all agents, are public"
    K = defense.batches_per_round
    if K > 1:
        said += (
            f"; of {K} local steps a message shows the sum: the upper end counts each by itself, "
            "the lower end each under the noise of all"
        )
    if not known.all():
        said += (
            f"; the view gives the step of {known.sum()} of {len(known)} rounds exactly: the lower "
            "end counts these alone, the upper end all rounds"
        )
    size = setting.sizes[victim]
    least, most = (np.repeat(some, K) for some in (z[known] * math.sqrt(K), z))
    return Bracket(
        batch_releases(defense, size, least), batch_releases(defense, size, most), (said,)
    )


def clipped_whole(bracket: Bracket, defense: Defense, size: int) -> Bracket:
    """The same releases where the mean of a batch is clipped instead of each of its records.

    One record turns the mean of the others around, from -C to C, and no change of data moves it
    further. The lower end counts that where another record is in every batch. Where a Poisson
    batch may hold no other, it counts a record beside others without a gradient, as ``bracket``.

    Args:
        bracket: noise multipliers are noise / C.
        size: how many records the victim holds.
    """

    def whole(mechanism: Mechanism) -> Mechanism:
        return tuple(
            release.model_copy(
                update={"noise_multiplier": release.noise_multiplier / 2, "clipped": "whole"}
            )
            for release in mechanism
        )

    accompanied = size > 1 and (defense.drawing != "poisson" or defense.batch_size >= size)
    least = whole(bracket.least) if accompanied else bracket.least
    return Bracket(least, whole(bracket.most), bracket.assumptions)


def batch_releases(
    defense: Defense,
    size: int,
    noise_multipliers: ArrayLike,
    family: Literal["gaussian", "laplace"] = "gaussian",
) -> Mechanism:
    """``releases`` of batches that the defense draws from this many records of an agent."""
    rate = defense.sampling_rate(size)
    return releases(noise_multipliers, defense.sampling, rate, family)


def releases(
    noise_multipliers: ArrayLike,
    sampling: Literal["none", "fixed", "poisson"],
    sampling_rate: float,
    family: Literal["gaussian", "laplace"] = "gaussian",
) -> Mechanism:
    """One round for each noise multiplier [n_rounds]; equal ones are one entry with a count."""
    own = np.ravel(np.asarray(noise_multipliers, dtype=float))
    return _releases(tuple(own.tolist()), sampling, sampling_rate, family)


@lru_cache(maxsize=8)
def _releases(
    noise_multipliers: tuple[float, ...],
    sampling: Literal["none", "fixed", "poisson"],
    sampling_rate: float,
    family: Literal["gaussian", "laplace"],
) -> Mechanism:
    """Equal for all agents that hold as many records."""
    values, counts = np.unique(noise_multipliers, return_counts=True)
    pairs: Iterable[tuple[float, int]] = zip(values.tolist(), counts.tolist(), strict=True)
    return tuple(
        Release(
            family=family,
            noise_multiplier=value,
            sampling=sampling,
            sampling_rate=sampling_rate,
            count=count,
        )
        for value, count in pairs
    )
