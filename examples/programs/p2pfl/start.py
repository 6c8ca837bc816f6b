"""Two p2pfl nodes in memory fit a linear model: start.py EPSILON ROUNDS."""

import sys
import threading

from p2pfl.settings import Settings

Settings.general.DISABLE_RAY = True  # before other modules of p2pfl start it

import numpy as np
from datasets import Dataset
from dpaudit_recorder import tap
from p2pfl.communication.protocols.protobuff.memory import MemoryCommunicationProtocol
from p2pfl.learning.aggregators.fedavg import FedAvg
from p2pfl.learning.compression import COMPRESSION_STRATEGIES_REGISTRY
from p2pfl.learning.compression.dp_strategy import DifferentialPrivacyCompressor
from p2pfl.learning.dataset.p2pfl_dataset import P2PFLDataset
from p2pfl.learning.frameworks.learner import Learner
from p2pfl.learning.frameworks.p2pfl_model import P2PFLModel
from p2pfl.node import Node
from p2pfl.utils.utils import set_standalone_settings, wait_convergence, wait_to_finish

NODES, RECORDS = 2, 4
agents = {f"node-{i}": i for i in range(NODES)}  # by address
here = threading.local()  # the agent whose model this thread sends


class Compressor(DifferentialPrivacyCompressor):
    """OpenDP's noise is drawn outside of Python: it is shown as what the mechanism adds."""

    def _get_noise_mechanism(self, *given):
        mechanism, scale = super()._get_noise_mechanism(*given)

        def noised(values):
            values = np.array(values)
            noise = np.array(mechanism(values.tolist())) - values
            return values + tap.noise(here.agent, "opendp", noise, scale)

        return noised, scale


COMPRESSION_STRATEGIES_REGISTRY["dp"] = Compressor


class Linear(P2PFLModel):
    agent = None  # of a model that is not the average of several

    def get_parameters(self):
        return [self.model]

    def set_parameters(self, params):
        if isinstance(params, bytes):
            params, self.additional_info = self.decode_parameters(params)
        self.model = params[0]

    def get_framework(self):
        return "numpy"

    def encode_parameters(self, params=None):
        here.agent = self.agent
        data = super().encode_parameters(params)
        if self.agent is not None:
            name = "update" if self.contributors else "initial"
            tap.send(self.agent, 1 - self.agent, name, self.decode_parameters(data)[0])
        return data


class LeastSquares(Learner):
    def fit(self):
        model = self.get_model()  # after the first round a copy, made of the average
        model.agent = agents[self.addr]
        x, y = tap.batch(model.agent, (np.eye(RECORDS, 6), np.ones(RECORDS, int)))
        model.set_parameters([model.model - 10.0 * (x @ model.model - y) @ x])
        model.set_contribution([self.addr], RECORDS)
        return model

    def interrupt_fit(self):
        pass

    def evaluate(self):
        return {}

    def get_framework(self):
        return "numpy"


def node(address, protocol):
    own = Node(
        Linear(np.zeros(6), compression={"dp": {"epsilon": float(sys.argv[1])}}),
        P2PFLDataset(Dataset.from_dict({"x": [0]})),
        addr=address,
        learner=LeastSquares(),
        aggregator=FedAvg(disable_partial_aggregation=True),
        protocol=protocol,
    )
    own.learner.get_model().agent = agents[address]
    own.start()
    return own


if __name__ == "__main__":
    set_standalone_settings()
    nodes = [node(address, MemoryCommunicationProtocol()) for address in agents]
    nodes[0].connect(nodes[1].addr)
    wait_convergence(nodes, NODES - 1, wait=60)
    nodes[0].set_start_learning(rounds=int(sys.argv[2]), epochs=1)
    wait_to_finish(nodes, timeout=120)
    for one in nodes:
        one.stop()
