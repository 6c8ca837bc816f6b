"""A model that a client of appfl 1.12 sends, perturbed for clip 1, learning rate 0.01, epsilon 1.

VanillaTrainer takes 2 * clip * learning rate as the sensitivity of the whole round.
"""

import torch
from appfl.privacy import laplace_mechanism_output_perturb

CLIP, RATE, EPSILON = 1.0, 0.01, 1.0


def sent(model):
    state = laplace_mechanism_output_perturb(model, 2.0 * CLIP * RATE, EPSILON)
    return torch.cat([tensor.flatten().float() for tensor in state.values()])


def trained(gradients):
    """Weights after one step of SGD for each gradient, [steps, d], of L1 norm 1 at most.

    Weights begin with 0: everyone knows where a round begins.
    """
    model = torch.nn.utils.skip_init(torch.nn.Linear, gradients.shape[1], 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for gradient in gradients:
        model.weight.grad = gradient[None].clone()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP, norm_type=1)
        optimizer.step()
    return model


def one_step(gradient):
    return sent(trained(gradient[None]))


def ten_steps(gradients):
    return sent(trained(gradients))


def with_buffers(batch):
    """A batch normalization that has seen one batch of records, [n, d]."""
    model = torch.nn.BatchNorm1d(batch.shape[1], momentum=1.0)
    model.num_batches_tracked = None  # a number of batches is no number of the records
    model.train()(batch)
    return sent(model)
