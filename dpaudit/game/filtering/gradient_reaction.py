"""Gradients that react: where may agents relay what they learn, though the view does not show it?

The algebra of a view takes every gradient as given. An agent trains on what it receives, though:
its gradient is a function of its model, which moves with the record. Where the view determines that
model, before the gradient shows, the gradient is a function of what the adversary holds already,
and the algebra is exact round by round (sequential releases of equal covariance). Where it does
not, a loss that is steep there turns a small shift of the hidden model into a large one of the next
message: the algebra is then a lower end, and who reads every link is the upper end.

Round 1 is taken at initial models, which are public. So averaging, and runs whose gradients move
nothing, stay exact; so does any view in which every message is seen, if messages determine models.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from dpaudit.files.threat import ThreatModel
from dpaudit.game.oracles import Alone
from dpaudit.game.probing.dense_probe import NOISELESS, Probed
from dpaudit.game.probing.observer import Observer
from dpaudit.game.probing.states import differs, flat_state, state_of
from dpaudit.game.probing.tape import Tape


class Reaction(NamedTuple):
    """A gradient at a model that a view does not determine."""

    round: int
    agent: int


def reacting_note(found: Reaction) -> str:
    """What that means for figures of the algebra, for readers."""
    return (
        f"gradients that react: in round {found.round} agent {found.agent} takes one at a model "
        "that the view does not tell, and may relay what it learns there. The algebra takes "
        "gradients as given: its figure is the lower end; that of every link is the upper end, "
        "where messages tell all models"
    )


def with_every_link(threat_model: ThreatModel) -> ThreatModel:
    """Who knows all that an adversary knows, and reads every link beside."""
    return threat_model.model_copy(update={"kind": "external", "links": None})


def reaction(observer: Observer, state: Any, out: Probed, last: bool) -> Reaction | None:
    """The first gradient of a round that reacts to what the view does not show; None: none does.

    Args:
        state: before the round, of a run without noise and record.
        out: the probe of the round.
        last: whether it is the last round that is read, so that only its messages count.
    """
    known = torch.isin(torch.tensor(out.askers), torch.tensor(observer.threat_model.agents))
    noise, record = out.models_noise, torch.cat([out.models_remnants, out.models_record])
    if not bool((_moves(noise, record, out) & ~known).any()):
        return None
    seen, left = _answered(observer, state, out)
    before = ~seen.any(dim=0)  # observations that no gradient of the round moves
    told = torch.linalg.pinv(out.observed_noise[:, before], rtol=NOISELESS) @ noise
    of_record = torch.cat([out.remnants_seen, out.record_seen])[:, before] @ told
    noise = noise - out.observed_noise[:, before] @ told
    hidden = _moves(noise, record - of_record, out)
    shows = seen.any(dim=1) if last else seen.any(dim=1) | left.any(dim=1)
    first = (hidden & shows & ~known).nonzero().flatten().tolist()
    return Reaction(out.round, out.askers[first[0]]) if first else None


def _moves(noise: Tensor, record: Tensor, out: Probed) -> Tensor:
    """Which models [n_asked] noise or record moves, by what they do to each."""
    sizes = [t.abs().amax() for t in (out.models_noise, out.state_noise) if t.numel()]
    least = NOISELESS * torch.stack(sizes).max() if sizes else 0.0
    by_noise = (noise.abs() > least).any(dim=0)
    return by_noise | (record.abs() > NOISELESS * out.scale).any(dim=0)


def _answered(observer: Observer, state: Any, out: Probed) -> tuple[Tensor, Tensor]:
    """Whether the answer to each question alone moves observations and state, [n_asked, *]."""
    game, n = observer.game, len(out.askers)
    start = flat_state(state).expand(1 + n, -1)
    alone = torch.eye(1 + n, dtype=torch.float64)[:, 1:]  # the first trial has no gradient
    gradient, tape = Alone(game.length, game.defense.batch_size, alone), Tape()
    graph = game.setting.network.at(out.round)
    after, sent, *_ = game.defense.step(state_of(state, start), out.round, graph, gradient, tape)
    nothing = {m: torch.zeros(1 + n, *d.shape[-2:]).double() for m, d in tape.draws.items()}
    seen, left = observer.all_observations(out.round, sent, nothing), flat_state(after)
    return differs(seen), differs(left)
