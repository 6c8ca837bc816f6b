"""How far the queries of two agents are apart, of which one takes the other's place."""

from typing import Any

import torch

from dpaudit.attack import ConfigError

from .examination import RoundExamination
from .message_move import Row
from .worlds import lengths


def between_agents(examination: RoundExamination, state: Any, k: int) -> list[Row]:
    """One agent's query is replaced by another's: how far apart any two are, before noise.

    Raises:
        ConfigError: the defense states no bound on that.
    """
    coupled = examination.coupled
    here = coupled.play(state, k, coupled.oracle(k), silent=True)
    stated = examination.stated(k, "agent-identity", here.sent)
    if not stated:
        raise ConfigError(
            "DPA047",
            "claim.adjacency: agent-identity needs a stated bound on how far the queries of "
            "two agents are apart, and this defense states none",
            "claim add-remove or replace-one",
        )
    rows = []
    for name, (norm, value) in stated.items():
        sent = here.sent[name]
        queries = sent.payload[sent.rows.unique()]
        spread = torch.cdist(queries, queries, p=norm).max().item()
        tolerance = examination.tolerance(lengths(queries, norm).item(), spread)
        rows.append(Row(name, k, norm, {"two agents": spread}, value, tolerance))
    return rows
