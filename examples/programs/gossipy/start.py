"""Gossip learning with gossipy on a ring, by DP-SGD: start.py NOISE, in units of the promised."""

import sys
import types

import numpy as np
import torch

sys.modules["torchvision"] = types.ModuleType("torchvision")  # needed for downloads alone

from dpaudit_recorder import tap
from gossipy import CACHE
from gossipy.core import AntiEntropyProtocol, CreateModelMode, StaticP2PNetwork
from gossipy.data import DataDispatcher, load_classification_dataset
from gossipy.data.handler import ClassificationDataHandler
from gossipy.model.handler import TorchModelHandler
from gossipy.model.nn import LogisticRegression
from gossipy.node import GossipNode
from gossipy.simul import GossipSimulator, SimulationEventReceiver

AGENTS, CLIP, BATCH = 4, 1.0, 40
SCALE = float(sys.argv[1]) * CLIP


class PrivateHandler(TorchModelHandler):
    def _local_step(self, x, y):
        x, y = tap.batch(self.agent, (x, y))
        parameters = list(self.model.parameters())
        total = [torch.zeros_like(part) for part in parameters]
        for record in zip(x.split(1), y.split(1)):
            loss = self.criterion(self.model(record[0]), record[1])
            gradient = torch.autograd.grad(loss, parameters)
            norm = float(torch.sqrt(sum(part.square().sum() for part in gradient))) + 1e-12
            total = [t + part * min(1.0, CLIP / norm) for t, part in zip(total, gradient)]
        for part, t in zip(parameters, total):
            noise = tap.noise(self.agent, "noise", SCALE * torch.randn_like(part), SCALE)
            part.grad = (t + noise) / BATCH
        self.optimizer.step()
        self.n_updates += 1


class Messages(SimulationEventReceiver):
    def update_message(self, failed, msg=None):
        if not failed:
            model = CACHE[msg.value[0]].model
            tap.send(msg.sender, msg.receiver, "model", dict(model.state_dict()))

    def update_evaluation(self, round, on_user, evaluation): ...
    def update_timestep(self, t): ...
    def update_end(self): ...


x, y = load_classification_dataset("wine", as_tensor=True)
handler = ClassificationDataHandler(x, y, test_size=0.1)
dispatcher = DataDispatcher(handler, n=AGENTS, eval_on_user=False)
ring = StaticP2PNetwork(AGENTS, np.roll(np.eye(AGENTS), 1, axis=1))
model = PrivateHandler(
    net=LogisticRegression(x.shape[1], 3),
    optimizer=torch.optim.SGD,
    optimizer_params={"lr": 0.5},
    criterion=torch.nn.functional.cross_entropy,
    batch_size=0,
    create_model_mode=CreateModelMode.MERGE_UPDATE,
)
nodes = GossipNode.generate(dispatcher, ring, model, round_len=10, sync=True)
for agent, node in nodes.items():
    node.model_handler.agent = agent
simulator = GossipSimulator(nodes, dispatcher, delta=10, protocol=AntiEntropyProtocol.PUSH)
simulator.add_receiver(Messages())
simulator.init_nodes()
simulator.start(n_rounds=3)
