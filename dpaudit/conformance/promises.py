"""What every defense must keep to, ours and other people's: one named check for each promise.

In the tests of a package that brings a defense:

    @pytest.mark.parametrize("promise", PROMISES)
    def test_silent_keeps(promise):
        check_defense(Silent(), promise)

The checks play a few rounds of a small problem: eight agents, records of five features in three
classes, softmax regression (d = 18). They find what breaks an audit without a word: an audit
believes the messages, the noise and the mechanism that a defense declares, replays single rounds,
and compares two runs that differ in one record.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from itertools import islice

import torch
from torch import Tensor

from dpaudit.defense.contract import Defense, Round
from dpaudit.defense.gossip import AVERAGE
from dpaudit.defense.noise import Noise
from dpaudit.defense.transcript import Message, Messages, kind_of
from dpaudit.errors import DpauditError
from dpaudit.files.options import FixedGraph, GraphOptions
from dpaudit.training.partial_inputs import global_randomness

from . import declarations
from .case import (
    N_AGENTS,
    N_ROUNDS,
    ROUNDS,
    TRIALS,
    BrokenPromise,
    Case,
    CheckedGradient,
    TrialNoise,
    everything,
    fields,
    listed,
    require,
    same_rounds,
    shape,
    small_problem,
)

RING = FixedGraph(name="ring", lazy=True)  # symmetric, no negative eigenvalue: allowed by most


def check_defense(
    defense: Defense,
    promise: str | None = None,
    *,
    graph: GraphOptions = RING,
    beyond_graph: Collection[str] = (),
    weights: Collection[str] = (),
    device: str = "cpu",
) -> None:
    """Check one promise of ``PROMISES``, or all of them in order.

    Args:
        defense: with few rounds and small batches; every agent holds two batches of records.
        promise: a key of ``PROMISES``.
        graph: one of eight agents that the defense's theory allows.
        beyond_graph: messages that by design also travel where the graph has no edge.
        weights: streams of random numbers that are no noise, but part of the algorithm: its twin
            without noise draws them too.
        device: where everything is computed.

    Raises:
        BrokenPromise: in one line, what is promised and what was found.
        ValueError: no such promise.
    """
    if promise is not None and promise not in PROMISES:
        raise ValueError(f'no promise is called "{promise}": {", ".join(PROMISES)}')
    beyond, unnoised, where = frozenset(beyond_graph), frozenset(weights), torch.device(device)
    for name in PROMISES if promise is None else (promise,):
        try:
            PROMISES[name](Case.of(defense, graph, where, beyond, unnoised))
        except Exception as error:
            expected = isinstance(error, BrokenPromise | DpauditError)
            what = f"{error}" if expected else f"it raises {type(error).__name__}: {error}"
            line = " ".join(what.split())
            raise BrokenPromise(f"{type(defense).__name__}: {name}: {line}") from error


def _state(case: Case) -> None:
    """Its state is a NamedTuple of tensors, its models are [n_agents, d]."""
    for round in case.play():
        models, expected = case.defense.models(round.state), case.initial().shape
        require(models.shape == expected, f"models {shape(models)}, expected {shape(expected)}")
        require(bool(models.isfinite().all()), "models are not finite")


def _messages(case: Case) -> None:
    """The messages it names are those it sends."""
    sent = {kind_of(name) for round in case.play() for name in round.sent}
    named = set(case.defense.messages)
    require(sent <= named, f"it sends {listed(sent - named)}, which messages does not name")
    named -= {AVERAGE} if case.setting.network.server is None else set()
    require(
        named <= sent, f"messages names {listed(named - sent)}, never sent in {N_ROUNDS} rounds"
    )


def _links(case: Case) -> None:
    """Every message is a detached tensor on links that the graph has."""
    for k, round in enumerate(case.play(), start=1):
        graph = case.setting.network.at(k)
        for name, sent in round.sent.items():
            what, links = f'"{name}" in round {k}', _pairs(sent)
            require(not sent.payload.requires_grad, f"{what}: payload is not detached")
            require(bool(sent.payload.isfinite().all()), f"{what}: payload is not finite")
            require(len(set(links)) == len(links), f"{what}: a link carries it twice")
            require(all(j != i for j, i in links), f"{what}: an agent sends to itself")
            beyond = sorted(set(links) - set(graph.links))
            if beyond and name not in case.beyond_graph:
                j, i = beyond[0]
                raise BrokenPromise(f"{what}: travels {j} -> {i}, where the graph has no edge")


def _trials(case: Case) -> None:
    """Trials stacked in front give what single trials give."""
    defense, X = case.defense, case.initial()
    starts = torch.stack([X * (1 + trial) for trial in range(TRIALS)])
    stacked = defense.start(starts, case.setting)
    single = [defense.start(x, case.setting) for x in starts]
    for k in ROUNDS:
        round = case.step(defense, stacked, k, noise=TrialNoise(case.streams, k, None))
        for trial in range(TRIALS):
            noise = TrialNoise(case.streams, k, trial)
            alone = case.step(defense, single[trial], k, noise=noise)
            for name, value in everything(defense, alone).items():
                where = f"{name} of trial {trial} in round {k}"
                _same_trial(where, everything(defense, round)[name], value, trial)
            single[trial] = alone.state
        stacked = round.state


def _same_trial(what: str, stacked: Tensor, alone: Tensor, trial: int) -> None:
    if stacked.shape == alone.shape:  # the same for all trials, such as a mask
        mine = stacked
    else:
        require(
            stacked.shape == (TRIALS, *alone.shape),
            f"{what} is {shape(stacked)} in a stack of {TRIALS}, alone {shape(alone)}",
        )
        mine = stacked[trial]
    close = torch.allclose(mine.double(), alone.double(), rtol=1e-9, atol=1e-11)
    require(close, f"{what} differs from the one that was played alone")


def _untouched(case: Case) -> None:
    """A step changes nothing in the state it starts from."""
    X = case.initial()
    before = X.clone()
    state = case.defense.start(X, case.setting)
    for k in ROUNDS:
        kept = {name: value.clone() for name, value in fields(state).items()}
        after = case.step(case.defense, state, k).state
        for name, value in fields(state).items():
            require(
                torch.equal(value, kept[name]), f"round {k} changes {name} of its state in place"
            )
        state = after
    require(torch.equal(X, before), "the initial models are changed in place")


def _determined(case: Case) -> None:
    """The same streams give the same run."""
    one, two = (_played(case, global_seed=0) for _ in range(2))
    same_rounds(case.defense, one, two, "differs between two runs with the same streams")


def _global(case: Case) -> None:
    """No global generator has an effect: the noise is that of the object it is given."""
    one, two = (_played(case, global_seed=seed) for seed in range(2))
    same_rounds(case.defense, one, two, "changes with the seed of a global generator")


def _played(case: Case, global_seed: int) -> list[Round]:
    """All rounds with this seed in every global generator, which are left as they were."""
    with global_randomness(global_seed):
        return case.play()


def _resumed(case: Case) -> None:
    """A round played from a checkpoint, by a new object, gives what it gave in the run."""
    rounds = case.play()
    kind = type(case.given)
    for k, before in enumerate(rounds[:-1], start=2):
        fresh = kind.model_validate(case.given.model_dump(mode="json")).calibrate(case.setting)
        state = before.state
        tensors = {name: value.detach().clone() for name, value in fields(state).items()}
        again = case.step(fresh, type(state)(**tensors), k)
        what = f"differs when round {k} is played from a checkpoint"
        same_rounds(case.defense, [rounds[k - 1]], [again], what)


def _precision(case: Case) -> None:
    """Everything it computes has the precision and is on the device of the initial models."""
    device = case.streams.device
    for dtype in (torch.float32, torch.float64):
        servers = 0 if case.setting.network.server is None else 1
        problem, _ = small_problem(case.given, case.streams, dtype, servers)
        for round in replace(case, problem=problem).play():
            for name, value in everything(case.defense, round).items():
                right = not value.is_floating_point() or value.dtype == dtype
                require(right, f"{name} is {value.dtype} where the initial models are {dtype}")
                here = value.device.type == device.type
                require(here, f"{name} is on {value.device}, the initial models on {device}")


def _reached(case: Case) -> None:
    """An agent's batch moves what others hold and send only by messages to them."""
    source = case.victim
    for k, state, plain in islice(case.rounds(), 3):
        other = CheckedGradient(case.gradient(k), source)
        moved = case.step(case.defense, state, k, gradient=other)
        links = _changed_links(plain.sent, moved.sent)
        reached = _reached_from(links, source)
        for name, sender, receiver in _unreached_senders(links, reached):
            raise BrokenPromise(
                f'"{name}" on {sender} -> {receiver} in round {k} changes with the batch of agent '
                f"0, of which no message tells agent {sender}"
            )
        knowing = {agent for agent, _ in reached}
        for name, value in fields(plain.state).items():
            if value.ndim >= 2 and value.shape[-2] == N_AGENTS:
                differs = (value != fields(moved.state)[name]).any(dim=-1)
                for agent in sorted({*differs.nonzero().flatten().tolist()} - knowing):
                    raise BrokenPromise(
                        f"{name} of agent {agent} after round {k} changes with the batch of agent "
                        f"{source}, of which no message tells it"
                    )


Link = tuple[str, int, int]  # message, sender, receiver
Reached = set[tuple[int, frozenset[str]]]  # an agent, and the messages over which it was reached


def _pairs(sent: Message) -> list[tuple[int, int]]:
    """(sender, receiver) of each link."""
    return list(zip(sent.senders.tolist(), sent.receivers.tolist(), strict=True))


def _changed_links(one: Messages, other: Messages) -> list[Link]:
    """The links on which the payload differs between two rounds."""
    changed = []
    for name, sent in one.items():
        differs = (sent.payload != other[name].payload).any(dim=-1)[sent.rows]
        links = _pairs(sent)
        changed += [(name, *links[e]) for e in differs.nonzero().flatten().tolist()]
    return changed


def _reached_from(links: list[Link], source: int) -> Reached:
    """Whom the source's batch may have reached over these links, itself over none."""
    reached: Reached = {(source, frozenset())}
    new = set(reached)
    while new:
        new = {
            (receiver, used | {name})
            for agent, used in new
            for name, sender, receiver in links
            if sender == agent and name not in used
        } - reached
        reached |= new
    return reached


def _unreached_senders(links: list[Link], reached: Reached) -> list[Link]:
    """Links whose message changed although no other changed message reached its sender."""
    return [
        (name, sender, receiver)
        for name, sender, receiver in links
        if not any(agent == sender and name not in used for agent, used in reached)
    ]


def _batches(case: Case) -> None:
    """It draws as many batches in a round as it says: each is accounted by itself."""
    declared, found = case.defense.batches_per_round, set[int]()
    gradients = {k: CheckedGradient(case.gradient(k)) for k in ROUNDS}
    for k, _, _ in case.rounds(gradient=gradients.__getitem__):
        beyond = sorted(s for s in gradients[k].steps if s >= declared)
        require(
            not beyond,
            f"round {k} takes the batch of local step {beyond and beyond[0]}; batches_per_round is "
            f"{declared}",
        )
        found |= gradients[k].steps
    unused = sorted(set(range(declared)) - found)
    require(
        not unused,
        f"batches_per_round is {declared}, but the batch of local step {unused and unused[0]} is "
        f"never taken in {N_ROUNDS} rounds",
    )


def _waiting(case: Case) -> None:
    """If agents may wait, the data of one that takes no step in a round have no effect in it."""
    if not case.defense.waits:
        return
    for k, state, plain in case.rounds():
        active, holders = case.setting.network.at(k).active, case.setting.holders
        for agent in [i for i in holders if active is not None and i not in active][:2]:
            other = CheckedGradient(case.gradient(k), agent)
            moved = everything(case.defense, case.step(case.defense, state, k, gradient=other))
            private = {f'private "{name}"' for name in plain.private}
            for name, value in everything(case.defense, plain).items():
                if name not in private:
                    require(
                        torch.equal(value, moved[name]),
                        f"{name} in round {k} changes with the data of agent {agent}, which takes "
                        "no step in it",
                    )


def _secrets(case: Case) -> None:
    """Shared noise says of each of its rows which agents know it."""
    noises = {k: _NotingShares(case, k) for k in ROUNDS}
    for k, _, _ in case.rounds(noise=noises.__getitem__):
        noise = noises[k]
        again = noise.shares.keys() & noise.unshared
        require(not again, f"round {k} draws {listed(set(again))} both shared and by itself")
        for name, (rows, known_to) in noise.shares.items():
            what = f'the shared noise "{name}" in round {k}'
            right = known_to.ndim == 2 and len(known_to) == rows
            require(right, f"{what} has {rows} rows, known to {shape(known_to)}")
            inside = bool(((known_to >= 0) & (known_to < case.setting.n_agents)).all())
            require(inside, f"{what} is known to an agent that there is not")


class _NotingShares(Noise):
    """The noise of a round; which draws are shared, and with whom, is noted."""

    def __init__(self, case: Case, round: int) -> None:
        super().__init__(case.streams, round)
        self.shares: dict[str, tuple[int, Tensor]] = {}
        self.unshared: set[str] = set()

    def shared(self, message: str, std: float | Tensor, like: Tensor, known_to: Tensor) -> Tensor:
        self.shares[message] = like.shape[-2], known_to
        self.known_to[message] = known_to  # whatever it holds: that is what is looked at
        before = set(self.unshared)
        drawn = self.gaussian(message, std, like)
        self.unshared = before
        return drawn

    def gaussian(self, message: str, std: float | Tensor, like: Tensor) -> Tensor:
        self.unshared.add(message)
        return super().gaussian(message, std, like)


PROMISES: Mapping[str, Callable[[Case], None]] = {
    "options": declarations.options,
    "state": _state,
    "messages": _messages,
    "links": _links,
    "untouched": _untouched,
    "determined": _determined,
    "global generators": _global,
    "resumed": _resumed,
    "trials": _trials,
    "precision and device": _precision,
    "reached by messages": _reached,
    "batches": _batches,
    "waiting": _waiting,
    "secrets": _secrets,
    "calibration": declarations.calibration,
    "mechanism": declarations.mechanism,
    "twin": declarations.twin,
    "sensitivity": declarations.sensitivity,
    "clip norms": declarations.clip_norms,
    "private": declarations.private,
    "observables": declarations.observables,
    "combinations": declarations.combinations,
}
