"""``reacting`` with sparse matrices: gradients of many agents, of which each moves few numbers."""

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from dpaudit.files.threat import ThreatModel
from dpaudit.game.probing.dense_probe import NOISELESS

from .block_matrices import Mask, Matrix, factors
from .gradient_reaction import Reaction
from .kalman import LocalProbed
from .relevance import Ahead


def local_reaction(threat_model: ThreatModel, out: LocalProbed, ahead: Ahead) -> Reaction | None:
    """The first gradient of a round that reacts to what the view does not show; None: none does.

    Args:
        ahead: what later rounds make of it.

    Raises:
        NotLocal: too much hangs together.
    """
    known = np.isin(out.askers, threat_model.agents)
    noise, record = out.models_noise, torch.cat([out.models_remnants, out.models_record])
    if not (_moves(noise, record, out) & ~known).any():
        return None
    told = factors(sparse.csr_array(out.observed_noise[:, ahead.before]), NOISELESS)
    foretold = told.V @ noise
    seen = torch.cat([out.remnants_seen, out.record_seen]).numpy()[:, ahead.before]
    of_record = ((seen @ told.U) / told.S) @ foretold
    noise = sparse.csr_array(noise - told.V.T @ foretold)
    hidden = _moves(noise, record - torch.from_numpy(of_record), out)
    first = np.flatnonzero(hidden & ahead.shows & ~known)
    return Reaction(out.round, out.askers[int(first[0])]) if len(first) else None


def _moves(noise: Matrix, record: Tensor, out: LocalProbed) -> Mask:
    """Which models [n_asked] noise or record moves, by what they do to each."""
    sizes = [np.abs(m.data).max(initial=0.0) for m in (out.models_noise, out.state_noise)]
    by_noise = np.zeros(noise.shape[1], dtype=bool)
    by_noise[noise.tocoo().coords[1][np.abs(noise.tocoo().data) > NOISELESS * max(sizes)]] = True
    by_record = (record.abs() > NOISELESS * out.scale).any(dim=0)
    return np.asarray(by_noise | by_record.numpy())
