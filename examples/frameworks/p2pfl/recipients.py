"""The last step of a round of p2pfl 0.4.4 on a node with four neighbours: what each of them reads.

The stage, the gossiper, the model and the compression are p2pfl's own. Neighbours take every model
that they are offered, and the node hears late that they have it, as over a slow link.
"""

import tempfile

import numpy as np
from mechanism import WithNumpy
from p2pfl.settings import Settings

Settings.general.DISABLE_RAY = True  # which p2pfl otherwise starts as it is imported
Settings.general.LOG_DIR, Settings.general.LOG_LEVEL = tempfile.mkdtemp(), "ERROR"

from p2pfl.communication.protocols.protobuff.gossiper import Gossiper  # noqa: E402
from p2pfl.experiment import Experiment  # noqa: E402
from p2pfl.learning.compression import COMPRESSION_STRATEGIES_REGISTRY  # noqa: E402
from p2pfl.learning.frameworks.p2pfl_model import P2PFLModel  # noqa: E402
from p2pfl.node_state import NodeState  # noqa: E402
from p2pfl.stages.base_node.gossip_model_stage import GossipModelStage  # noqa: E402

NEIGHBOURS = ("a", "b", "c", "d")


class Model(P2PFLModel):
    """One array of NumPy."""

    def get_parameters(self):
        return [self.model]

    def set_parameters(self, params):
        (self.model,) = params


class Neighbour:
    def __init__(self, address, on_model):
        self.nei_addr, self._on_model = address, on_model

    def send(self, message, temporal_connection=False):
        if message == "offer":
            return "true"
        self._on_model(self.nei_addr, message)
        return "true"


class Protocol:
    """The few things that the stage asks a communication protocol for."""

    def __init__(self, neighbours):
        self._neighbours = {one.nei_addr: (one, None) for one in neighbours}
        self._gossiper = Gossiper(self, lambda *given, **named: "offer")
        self._gossiper.set_addr("node")

    def get_all(self, only_direct=True):
        return self._neighbours

    def get_neighbors(self, only_direct=True):
        return list(self._neighbours)

    def build_weights(self, command, round_number, encoded_model):
        return encoded_model

    def gossip_weights(self, *stage):
        self._gossiper.gossip_weights(*stage, 0.0, False)


class Learner:
    def __init__(self, model):
        self.get_model = lambda: model


def sent_to(update, ticks=1):
    """The noised numbers of every message, in the order of sending.

    Args:
        ticks: of the gossiper, after which the node hears that a neighbour has the model.
    """
    model, state = Model(update, compression={"dp": {}}), NodeState("node")
    state.experiment = Experiment("audit", 1)
    state.nei_status = dict.fromkeys(NEIGHBOURS, -1)
    found, heard = [], dict.fromkeys(NEIGHBOURS, 0)

    def on_model(address, message):
        found.append(model.decode_parameters(message)[0][0])
        heard[address] += 1
        if heard[address] == ticks:
            state.nei_status[address] = state.round

    protocol = Protocol([Neighbour(name, on_model) for name in NEIGHBOURS])
    GossipModelStage._GossipModelStage__gossip_model_difusion(state, protocol, Learner(model))
    return found


def four_recipients(update):
    """[4, d]: one message to each neighbour."""
    return np.stack(sent_to(update))


def with_noise_of_numpy(update):
    """The same, with noise that an audit recognises."""
    of_opendp = COMPRESSION_STRATEGIES_REGISTRY["dp"]
    COMPRESSION_STRATEGIES_REGISTRY["dp"] = WithNumpy
    try:
        return four_recipients(update)
    finally:
        COMPRESSION_STRATEGIES_REGISTRY["dp"] = of_opendp


if __name__ == "__main__":
    for ticks in (1, 3):
        messages = sent_to(np.ones(20), ticks)
        different = len({m.tobytes() for m in messages})
        print(f"told after {ticks} ticks: {len(messages)} messages, {different} different")
