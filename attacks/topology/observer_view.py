"""What an observer without the graph holds: what each agent sent and when, not to whom."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import dpaudit.attack as da
import dpaudit.defense as dp
from dpaudit.defense.transcript import kind_of

MOST_NUMBERS = 2**24  # in memory; of longer models some coordinates are drawn

Pairs = NDArray[np.bool_]  # [n, n], symmetric


@dataclass(frozen=True, eq=False)
class ObservedModels:
    """The models of n agents in s steps, in which each message of a round is a step.

    Of an agent that sends nothing in a step its last model stands, or else its first.
    """

    agents: tuple[int, ...]
    models: Tensor  # [s, n, d], float64
    sends: Tensor  # [s, n] bool: whether the agent sent in the step
    rounding: float  # relative, of the numbers that were sent


def overhear(
    threat_model: da.ThreatModel,
    transcript: dp.Transcript,
    message: str,
    rounds: range,
    rng: np.random.Generator,
) -> ObservedModels | None:
    """What is read of other agents' messages; None: nothing.

    Args:
        rng: which coordinates of long models are held is drawn from it.
    """
    steps: list[dict[int, Tensor]] = []  # sender -> model, for each step
    coordinates, dtype = None, torch.float64
    for k in rounds:
        view = dp.View.of(threat_model, transcript, {k})
        names = [n for n in view.transcript.rounds.get(k, {}) if kind_of(n) == message]
        for name in sorted(names, key=lambda n: (len(n), n)):  # "x/2" before "x/10"
            senders = {sender for sender, _ in view.edges(name, k)} - {*threat_model.agents}
            sent = {j: view.all_sent_by(name, k, j).mean(dim=-2) for j in sorted(senders)}
            if coordinates is None and sent:
                first = next(iter(sent.values()))
                dtype = first.dtype
                most = max(1, MOST_NUMBERS // (len(rounds) * len(names) * len(sent)))
                drawn = rng.permutation(first.numel())[:most]
                coordinates = torch.from_numpy(np.sort(drawn)).to(first.device)
            steps.append({j: x.flatten()[coordinates].double() for j, x in sent.items()})
    agents = tuple(sorted({j for step in steps for j in step}))
    if len(agents) < 2:
        return None
    sends = torch.tensor([[j in step for j in agents] for step in steps])
    trails = [_without_gaps([step.get(j) for step in steps]) for j in agents]
    return ObservedModels(agents, torch.stack(trails, dim=1), sends, torch.finfo(dtype).eps)


def _without_gaps(trail: list[Tensor | None]) -> Tensor:
    """Models [s, d] of one agent, where it sent nothing its last one, or else its first."""
    last = next(x for x in trail if x is not None)
    filled = []
    for x in trail:
        last = last if x is None else x
        filled.append(last)
    return torch.stack(filled)


def linked(setting: dp.Setting, agents: tuple[int, ...], rounds: range) -> Pairs:
    """Which of these agents share a link in some of the rounds, in either direction, [n, n]."""
    place = {agent: i for i, agent in enumerate(agents)}
    pairs = np.zeros((len(agents), len(agents)), dtype=bool)
    network = setting.network
    for k in range(rounds.start, min(rounds.stop, rounds.start + network.period)):
        for sender, receiver in network.at(k).links:
            if sender in place and receiver in place:
                pairs[place[sender], place[receiver]] = True
    return pairs | pairs.T


def known(threat_model: da.ThreatModel, agents: tuple[int, ...]) -> Pairs:
    """Pairs whose link the adversary taps: it knows that these are linked, [n, n]."""
    place = {agent: i for i, agent in enumerate(agents)}
    pairs = np.zeros((len(agents), len(agents)), dtype=bool)
    for sender, receiver in threat_model.links or ():
        if sender in place and receiver in place:
            pairs[place[sender], place[receiver]] = True
    return pairs | pairs.T
