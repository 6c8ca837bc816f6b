"""The linear system of a window: what all of its unknowns do to all that is read.

Of many agents those that do not meet are moved in one trial. As in ``sparse_probe``, what has moved
is put down to the unknown of the colour that reaches there. A trial of a random half of each colour
refutes what is not so: it must move what is put down to that half. That holds for steps that are
not linear, too.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from dpaudit.game.matrices import Array, Indices, NotLocal, largest
from dpaudit.game.probing.locality import HOPS, Footprints, Units, agents_of, footprints, in_parts
from dpaudit.game.probing.observer import senders_by_row
from dpaudit.game.probing.sparse_probe import RELATIVE
from dpaudit.game.probing.states import varying

from .window import WIDTH, GradientInput, ProbedWindow

ROUNDING = 1e-11  # of the largest effect: what is less has not moved


class System(NamedTuple):
    """o = unknowns x + noise z, and models likewise, in every coordinate; x = (states, inputs)."""

    observed: list[tuple[int, str, int]]  # round, message, row of what the adversary reads of it
    inputs: list[GradientInput]
    unknowns: Tensor  # [n, n_states + n_inputs]
    noise: Tensor  # [n, n_draws]
    models: Tensor  # [n_inputs, n_states + n_inputs]: of the model that each input is taken at
    model_noise: Tensor  # [n_inputs, n_draws]

    @classmethod
    def of(cls, played: ProbedWindow) -> "System":
        n, n_o = played.shape.states + played.shape.inputs, played.shape.observed
        effects = _effects(played, np.arange(played.shape.unknowns)).mT
        o, x = effects[:n_o], effects[n_o:]
        return cls(played.observed, played.asked.inputs, o[:, :n], o[:, n:], x[:, :n], x[:, n:])


def noise_of(played: ProbedWindow) -> Tensor:
    """That of the system alone, [n, n_draws]."""
    shape = played.shape
    draws = np.arange(shape.states + shape.inputs, shape.unknowns)
    return _effects(played, draws).mT[: shape.observed]


def _effects(played: ProbedWindow, some: Indices) -> Tensor:
    """How observations and after them models move with some unknowns, [m, n_o + n_inputs]."""
    try:
        return _of_colours(played, some)
    except NotLocal:
        pass
    found = torch.zeros(len(some), played.shape.observed + played.shape.inputs, dtype=torch.float64)
    parts = torch.from_numpy(some).split(played.shape.at_once)
    for rows, part in zip(found.split(played.shape.at_once), parts, strict=True):
        if len(part):
            rows[:] = played.moved(one_hot(part, played.shape.unknowns).double())
    return found


def trials_of(played: ProbedWindow) -> int:
    """How many moves ``System.of`` and ``noise_of`` play, about."""
    shape = played.shape
    try:
        units, kinds = _units(played, np.arange(played.shape.unknowns))
        reach, groups = next(_colours(played, units, kinds))
        units.effects(groups[:1], reach, _places(played), partial(_moved, played), 1)
        return 2 * len(groups) * (shape.unknowns + shape.draws) // shape.unknowns
    except (NotLocal, StopIteration):
        return shape.unknowns + shape.draws


def _of_colours(played: ProbedWindow, some: Indices) -> Tensor:
    """Raises NotLocal: the rounds reach too far, or it takes as many trials."""
    why, at_once = NotLocal(""), max(1, played.shape.at_once // 2)
    units, kinds = _units(played, some)
    for reach, groups in _colours(played, units, kinds):
        try:
            move = partial(_moved, played)
            effects = units.effects(groups, reach, _places(played), move, at_once)
            draws = np.random.default_rng(played.rounds.start)
            for part in in_parts(groups, at_once):
                half = [group[draws.random(len(group)) < 0.5] for group in part]
                predicted = np.stack([effects[group].sum(0) for group in half])
                size = max(largest(effects[group]) for group in part)
                if np.abs(move(half) - predicted).max() > RELATIVE * size:
                    raise NotLocal("its steps reach further than a few links")
            return torch.from_numpy(effects[some].toarray())
        except NotLocal as reason:
            why = reason
    raise why


def _colours(
    played: ProbedWindow, units: Units, kinds: Indices
) -> Iterator[tuple[Footprints, list[Indices]]]:
    """Who may be reached, less far first, and which of the unknowns are moved together.

    Raises:
        NotLocal: of few agents, or where many meet, it takes as many trials as one by one.
    """
    network, rounds = played.setting.network, played.rounds
    graph = network.at(rounds[0])
    if any(network.at(k) is not graph for k in rounds):
        raise NotLocal("the graph varies")
    for hops in HOPS:
        reach = footprints(graph, hops * len(rounds))
        groups = units.groups(reach, kinds)
        if 4 * len(groups) > len(units.live):
            raise NotLocal("it takes as many trials as there are unknowns")
        yield reach, groups


def _moved(played: ProbedWindow, groups: list[Indices]) -> Array:
    """What moves where all of a group do, [groups, n_read]; rounding is 0."""
    moves = torch.zeros(len(groups), played.shape.unknowns, dtype=torch.float64)
    for row, group in zip(moves, groups, strict=True):
        row[group] = 1.0
    moved = np.asarray(played.moved(moves).numpy())
    moved[np.abs(moved) <= ROUNDING * np.abs(moved).max(initial=0.0)] = 0.0
    return moved


def _units(played: ProbedWindow, some: Indices) -> tuple[Units, Indices]:
    """The unknowns, of which some are moved; and what each is one of, as a number."""
    graph, parts = played.setting.network.at(played.rounds[0]), []
    for tensor in varying(played.start).values():
        if tensor.shape[-1] == WIDTH:
            each = tensor[0, 0].numel() // WIDTH if tensor.shape[1] else 0
            parts.append(np.repeat(agents_of(tensor.shape[1], graph), each))
    for k in played.rounds:
        parts.append(np.array([one.agent for one in played.asked.inputs if one.round == k]))
    for draws in played.asked.noise.values():
        wide = (draw.shape for draw in draws.values() if draw.shape[-1] == WIDTH)
        parts += [agents_of(shape[-2], graph) for shape in wide]
    kinds = np.repeat(np.arange(len(parts)), list(map(len, parts)))
    return Units(np.concatenate(parts).astype(np.int64), some), kinds


def _places(played: ProbedWindow) -> Indices:
    """The agent of all that is read: that which sent it, or whose gradient it is."""
    found = []
    for (k, name), rows in played.seen.items():
        found.append(senders_by_row(played.asked.sent[k][name])[rows])
    agents = torch.tensor([one.agent for one in played.asked.inputs], dtype=torch.long)
    return np.asarray(torch.cat([*found, agents]).numpy())
