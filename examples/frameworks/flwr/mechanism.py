"""What a client of Flower 1.42 sends with LocalDpMod: clip norm 1, epsilon 1, delta 1e-5."""

import logging

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod
from flwr.supercore.differential_privacy import (
    add_gaussian_noise_inplace,
    compute_clip_model_update,
)
from flwr.supercore.task_identity import TaskIdentity

logging.getLogger("flwr").setLevel(logging.ERROR)
TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
MOD = LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=1.0, delta=1e-5)
TINY = 1e-12  # LocalDpMod divides by the norm of the update


def reply_to(arrays, updates):
    """The arrays that a client sends, which has added updates to those that it was given."""
    asked = Message(RecordDict({"model": ArrayRecord(arrays)}), dst_node_id=1, message_type="train")
    trained = ArrayRecord([array + update for array, update in zip(arrays, updates, strict=True)])
    reply = MOD(asked, None, lambda m, c: Message(RecordDict({"model": trained}), reply_to=m))
    if reply.has_error():
        raise RuntimeError(reply.error.reason)
    return reply.content["model"].to_numpy_ndarrays()


def local_dp(update):
    return reply_to([np.zeros_like(update)], [update + TINY])[0]


def by_its_functions(update):
    """The same without messages, which is faster: the two calls that LocalDpMod makes."""
    arrays = [update + TINY]
    compute_clip_model_update(arrays, [np.zeros_like(update)], MOD.clipping_norm)
    scale = MOD.sensitivity * np.sqrt(2 * np.log(1.25 / MOD.delta)) / MOD.epsilon
    add_gaussian_noise_inplace(arrays, scale)
    return arrays[0]


def beside_a_counter(update):
    """The same with one batch counted, as a batch normalization of torch does."""
    arrays = [np.zeros_like(update), np.zeros(1, np.int64)]
    model, counter = reply_to(arrays, [update, np.ones(1, np.int64)])
    return np.append(model, counter)


def unchanged(update):
    """Without help for an update of norm 0."""
    return reply_to([np.zeros_like(update)], [update])[0]
