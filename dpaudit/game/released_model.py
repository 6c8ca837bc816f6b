"""What an adversary with a final model sees of a game: one message, after the last round.

The model is a function of the state, as a message is. So a defense that sends it in its last round,
on a link from its agent to itself, is attacked and accounted like any other: the algebra of a view,
runs and canaries need no case of their own. A last model may hold what no message does, as noise
that is drawn for a message and not for the model hides the message alone.
"""

import torch
from torch import Tensor

from dpaudit.defense import Defense, Gradient, Graph, Message, Noise, Round, ThreatModel

from .step_inputs import WrappedDefense

FINAL_MODEL = "final model"  # the name of that message


class ReleasedModel(WrappedDefense):
    """The same defense, which also releases a model at the end."""

    model_of: int | None = None  # None: the mean of all agents' models

    def step(self, state: object, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        played = self.of.step(state, k, graph, gradient, noise)
        if k != self.of.n_rounds:
            return played
        end, row = torch.tensor([self.model_of or 0]), torch.zeros(1, dtype=torch.long)
        released = Message(self.released(played.state), end, end, row)
        return played._replace(sent={**played.sent, FINAL_MODEL: released})

    def released(self, state: object) -> Tensor:
        """[..., 1, d]."""
        X = self.of.models(state)
        if self.model_of is None:
            return X.mean(dim=-2, keepdim=True)
        return X[..., self.model_of : self.model_of + 1, :]


def as_seen_by(threat_model: ThreatModel, defense: Defense) -> Defense:
    """The defense, with what the adversary has after the last round among its messages."""
    if not threat_model.has_final_model:
        return defense
    return ReleasedModel.playing(defense, model_of=threat_model.model_of)
