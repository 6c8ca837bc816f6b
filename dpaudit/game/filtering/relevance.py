"""What later rounds make of a round: of which numbers of the state they tell anything.

A number is relevant if it moves an observation of the next round, a relevant number after it, or a
model at which a gradient is taken that moves either.
"""

from typing import NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from dpaudit.game.oracles import Alone
from dpaudit.game.probing.observer import Observer
from dpaudit.game.probing.sparse_probe import LocalStep, Units, in_parts
from dpaudit.game.probing.states import differs, flat_state, state_of
from dpaudit.game.probing.tape import Tape

from .block_matrices import Mask, Matrix


class Ahead(NamedTuple):
    """Of one round."""

    relevant: Mask  # [width] bool, numbers of the state after it
    shows: Mask  # [n_asked] bool, whose answer moves an observation or a relevant number
    before: Mask  # [n_observations] bool, those that no answer moves


def ahead(observer: Observer, steps: list[LocalStep]) -> list[Ahead]:
    """Of each round. Raises NotLocal: an answer reaches further than the step."""
    found, relevant = [], np.zeros(steps[-1].record.shape[1], dtype=bool)
    for step in steps[::-1]:
        shows, before = _answered(observer, step, relevant)
        found.append(Ahead(relevant, shows, before))
        seen, state, models = step.of_state
        parts = seen, with_columns(state, relevant), with_columns(models, shows)
        relevant = np.logical_or.reduce([np.diff(effects.indptr) > 0 for effects in parts])
    return found[::-1]


def with_columns(effects: Matrix, kept: Mask) -> Matrix:
    """With 0 in all other columns."""
    effects = sparse.csr_array(effects.copy())
    effects.data[~kept[effects.indices]] = 0.0
    effects.eliminate_zeros()
    return effects


def _answered(observer: Observer, step: LocalStep, relevant: Mask) -> tuple[Mask, Mask]:
    """Which questions' answers show [n_asked], and which observations [n] no answer moves."""
    n_asked, n = len(step.askers), step.record_seen.shape[1]
    looked_at = np.append(np.ones(n, dtype=bool), relevant)
    units = Units(np.array(step.askers, dtype=np.int64), np.arange(n_asked))
    shows, before = np.zeros(n_asked, dtype=bool), np.ones(n, dtype=bool)
    groups = units.groups(step.reach, np.zeros(n_asked, dtype=np.int64))
    for part in in_parts(groups, len(step.places)):
        chosen = torch.zeros(1 + len(part), n_asked, dtype=torch.float64)
        for trial, group in enumerate(part, start=1):
            chosen[trial, group] = 1.0
        for group, moved in zip(part, _moved_by(observer, step, chosen), strict=True):
            there = np.flatnonzero(moved)
            who = units.owners(group, step.reach, step.places[there])
            before[there[there < n]] = False
            shows[who[looked_at[there]]] = True
    return shows, before


def _moved_by(observer: Observer, step: LocalStep, chosen: Tensor) -> Mask:
    """Whether answers to some questions move each number of observations and state."""
    game, k, trials = observer.game, step.round, len(chosen)
    start = flat_state(step.before).expand(trials, -1)
    gradient, tape = Alone(game.length, game.defense.batch_size, chosen), Tape()
    graph = game.setting.network.at(k)
    after, sent, *_ = game.defense.step(state_of(step.before, start), k, graph, gradient, tape)
    nothing = {m: torch.zeros(trials, *d.shape[-2:]).double() for m, d in tape.draws.items()}
    seen = observer.all_observations(k, sent, nothing)
    return np.asarray(differs(torch.cat([seen, flat_state(after)], dim=1)).numpy())
