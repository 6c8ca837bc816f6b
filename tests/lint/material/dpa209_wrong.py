"""Each layer clipped to the bound of the whole."""

import numpy as np
import tensorflow as tf
import torch


def torch_layers(model, c, sigma):
    for p in model.parameters():
        norm = p.grad.norm()
        p.grad.mul_(min(1.0, c / norm))  # hint: DPA209
        p.grad.add_(torch.randn_like(p.grad), alpha=sigma * c)


def clipped(array, c):
    return array / max(1.0, np.linalg.norm(array) / c)  # hint: DPA209


def by_a_function_of_the_file(ndarrays, c, sigma):
    short = [clipped(array, c) for array in ndarrays]
    return [array + np.random.normal(0, sigma * c, array.shape) for array in short]


def tensorflow_layers(weights, c, sigma):
    noised = []
    for layer in weights:
        layer = tf.clip_by_norm(layer, c)  # hint: DPA209
        noised.append(layer + tf.random.normal(layer.shape, stddev=sigma * c))
    return noised
