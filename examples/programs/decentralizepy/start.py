"""Two nodes of decentralizepy train a linear model: start.py [private | shared].

decentralizepy seeds torch alike in all nodes: noise that torch draws by that seed is shared.
"""

import json
import logging
import sys
from pathlib import Path

import torch

sys.path.insert(0, "src")

from decentralizepy.datasets.Dataset import Dataset
from decentralizepy.graphs.FullyConnected import FullyConnected
from decentralizepy.mappings.Linear import Linear
from decentralizepy.models.Model import Model
from decentralizepy.node.DPSGDNode import DPSGDNode
from decentralizepy.training.Training import Training

NODES, ROUNDS, RECORDS, CLIP = 2, 3, 6, 1.0
SIGMA, HOW = 1.0, sys.argv[1:]


class Records(Dataset):
    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        x = torch.randn(RECORDS, 4, generator=torch.Generator().manual_seed(self.uid))
        self.records = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())

    def get_trainset(self, batch_size, shuffle):
        return torch.utils.data.DataLoader(self.records, batch_size, shuffle=shuffle)

    def get_testset(self):
        return None


class Classifier(Model):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2, bias=False)

    def forward(self, x):
        return self.layer(x)


class PrivateTraining(Training):
    def trainstep(self, data, target):
        if not HOW:
            return super().trainstep(data, target)
        own = torch.Generator()
        own.seed()
        weight, total = self.model.layer.weight, 0
        for x, y in zip(data.split(1), target.split(1)):
            [gradient] = torch.autograd.grad(self.loss(self.model(x), y), [weight])
            total = total + gradient * (CLIP / gradient.norm()).clamp(max=1)
        generator = None if HOW == ["shared"] else own
        noise = SIGMA * CLIP * torch.randn(weight.shape, generator=generator)
        weight.grad = (total + noise) / RECORDS
        self.optimizer.step()
        return 0.0


if __name__ == "__main__":
    sys.modules["start"] = sys.modules["__main__"]
    Path("addresses.json").write_text(json.dumps({"0": "localhost"}))
    Path("logs").mkdir(exist_ok=True)
    config = {
        "DATASET": {
            "dataset_package": "start",
            "dataset_class": "Records",
            "model_class": "Classifier",
        },
        "OPTIMIZER_PARAMS": {
            "optimizer_package": "torch.optim",
            "optimizer_class": "SGD",
            "lr": 0.5,
        },
        "TRAIN_PARAMS": {
            "training_package": "start",
            "training_class": "PrivateTraining",
            "batch_size": RECORDS,
            "loss_package": "torch.nn",
            "loss_class": "CrossEntropyLoss",
        },
        "COMMUNICATION": {
            "comm_package": "decentralizepy.communication.TCP",
            "comm_class": "TCP",
            "addresses_filepath": "addresses.json",
        },
        "SHARING": {
            "sharing_package": "decentralizepy.sharing.Sharing",
            "sharing_class": "Sharing",
        },
    }
    shared = [Linear(1, NODES), FullyConnected(NODES), config, ROUNDS, "logs", "logs"]
    never = [logging.WARNING, 100, 100]  # to test, and to evaluate
    nodes = [
        torch.multiprocessing.Process(target=DPSGDNode, args=[rank, 0, *shared, *never, 1])
        for rank in range(NODES)
    ]
    for node in nodes:
        node.start()
    for node in nodes:
        node.join()
