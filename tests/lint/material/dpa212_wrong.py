"""The gradient of a batch is clipped."""

import tensorflow as tf
import torch


def step(model, optimizer, loss, c, sigma):
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=c)  # hint: DPA212
    for p in model.parameters():
        p.grad.add_(torch.normal(0, sigma * c, p.grad.shape))
    optimizer.step()


def tensorflow_step(tape, loss, weights, c, sigma):
    grads = tape.gradient(loss, weights)
    grads, _ = tf.clip_by_global_norm(grads, c)  # hint: DPA212
    return [grad + tf.random.normal(grad.shape, stddev=sigma * c) for grad in grads]
