"""Three clients with Flower's local differential privacy: start.py SENSITIVITY, in clip norms."""

import sys

import numpy as np
from dpaudit_recorder import tap
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

CLIENTS, RECORDS, CLIP, EPSILON, DELTA = 3, 4, 1.0, 1.0, 1e-5


def sending(message, context, call_next):
    reply = call_next(message, context)
    client = context.node_config["partition-id"]
    tap.send(client, CLIENTS, "reply", reply.content.array_records["arrays"].to_numpy_ndarrays())
    return reply


privacy = LocalDpMod(CLIP, float(sys.argv[1]) * CLIP, EPSILON, DELTA)
client_app = ClientApp(mods=[sending, privacy])


@client_app.train()
def train(message, context):
    [w] = message.content["arrays"].to_numpy_ndarrays()
    data = np.eye(RECORDS, len(w)), np.ones(RECORDS)
    x, y = tap.batch(context.node_config["partition-id"], data)
    w = w - 10.0 * (x @ w - y) @ x  # a step of least squares
    content = {"arrays": ArrayRecord([w]), "metrics": MetricRecord({"num-examples": RECORDS})}
    return Message(content=RecordDict(content), reply_to=message)


server_app = ServerApp()


@server_app.main()
def main(grid, context):
    everyone = {"min_train_nodes": CLIENTS, "min_available_nodes": CLIENTS}
    FedAvg(fraction_evaluate=0.0, **everyone).start(grid, ArrayRecord([np.zeros(6)]), num_rounds=2)


if __name__ == "__main__":
    one_worker = {"client_resources": {"num_cpus": 2}, "init_args": {"num_cpus": 2}}
    run_simulation(server_app, client_app, CLIENTS, backend_config=one_worker)
