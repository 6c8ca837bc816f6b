"""Two clients with Flower's local differential privacy, each a SuperNode; one round."""

import numpy as np
from dpaudit_recorder import tap
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

CLIENTS, RECORDS, CLIP, EPSILON, DELTA = 2, 4, 1.0, 1.0, 1e-5


def sending(message, context, call_next):
    reply = call_next(message, context)
    client = int(context.node_config["partition-id"])
    tap.send(client, CLIENTS, "reply", reply.content.array_records["arrays"].to_numpy_ndarrays())
    return reply


client_app = ClientApp(mods=[sending, LocalDpMod(CLIP, CLIP, EPSILON, DELTA)])


@client_app.train()
def train(message, context):
    [w] = message.content["arrays"].to_numpy_ndarrays()
    data = np.eye(RECORDS, len(w)), np.ones(RECORDS)
    x, y = tap.batch(int(context.node_config["partition-id"]), data)
    w = w - 10.0 * (x @ w - y) @ x  # a step of least squares
    content = {"arrays": ArrayRecord([w]), "metrics": MetricRecord({"num-examples": RECORDS})}
    return Message(content=RecordDict(content), reply_to=message)


server_app = ServerApp()


@server_app.main()
def main(grid, context):
    everyone = {"min_train_nodes": CLIENTS, "min_available_nodes": CLIENTS}
    FedAvg(fraction_evaluate=0.0, **everyone).start(grid, ArrayRecord([np.zeros(6)]), num_rounds=1)
