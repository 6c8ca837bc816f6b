"""Updates of several local steps: order, passes, and what one gradient in their place misses."""

from dataclasses import replace
from itertools import permutations

import pytest
import torch
from torch import Tensor

from dpaudit.attack.image_metrics import score
from dpaudit.attack.local_steps import DummyGradient, local_steps
from dpaudit.attack.observed import ObservedGradients, Reconstruction, Task
from dpaudit.attacks.gradient_inversion.attack import GradientInversion
from dpaudit.attacks.gradient_inversion.local import (
    dealt,
    disagreement,
    likely_orders,
    merged,
    of_each,
)
from dpaudit.attacks.gradient_inversion.objective import Objective
from dpaudit.data.datasets import load_dataset
from dpaudit.errors import ConfigError
from dpaudit.files.local_training import LocalTraining
from dpaudit.models.gradients import Gradients
from dpaudit.models.models import build_network, initial_parameters
from dpaudit.rng import Streams

STREAMS = Streams(20251126)
SIZES = (1, 1, 1)


def sent(n_agents: int, **options: object) -> tuple[Task, ObservedGradients, Tensor, Tensor]:
    """What agents with three digits each send after SGD on one after the other."""
    digits = load_dataset("digits", seed=1)
    network = build_network("logistic", (1, 8, 8), 10)
    task = Task(Gradients(network), (1, 8, 8), 10, digits.value_range)
    rows = torch.arange(3 * n_agents).view(n_agents, 3)
    images, labels = digits.x[rows], digits.y[rows]
    models = [initial_parameters(network, STREAMS("model", i)) for i in range(n_agents)]
    X = torch.stack(models)
    training = LocalTraining(optimizer="sgd", learning_rate=0.1, **options)
    steps = local_steps(training, SIZES * training.epochs)
    order = torch.cat([torch.randperm(3, generator=STREAMS("order")) for _ in range(4)])
    order = order[: 3 * training.epochs]
    oracle = DummyGradient(task.gradients, images[:, order], labels[:, order], steps.sizes)
    with torch.no_grad():
        seen = steps.mean_gradient(oracle, X)
    return (
        task,
        ObservedGradients(seen, X, 3, None, torch.zeros(n_agents), local=steps),
        images,
        labels,
    )


def attacked(task: Task, observed: ObservedGradients, **options: object) -> Reconstruction:
    attack = GradientInversion(message="gradient", rounds=(1,), **options)
    return attack.reconstruct(observed, task, STREAMS, lambda done, total: None)


def test_the_truth_explains_an_update_whose_steps_are_played() -> None:
    task, observed, images, labels = sent(2, momentum=0.5)
    order = torch.randperm(3, generator=STREAMS("order"))
    points, victims = images[:, order].flatten(1), torch.arange(2)

    def mismatch(observed: ObservedGradients) -> Tensor:
        return Objective(observed, task, labels[:, order], "euclidean", 0.0)(points, victims)

    assert (mismatch(observed) < 1e-10).all()
    assert (mismatch(replace(observed, local=None)) > 0.1).all()


@pytest.mark.slow
def test_played_steps_give_what_one_gradient_does_not() -> None:
    task, observed, images, labels = sent(1)
    found = attacked(task, observed, iterations=60)
    alone = attacked(task, replace(observed, local=None), iterations=60, method="optimised")
    assert torch.equal(found.labels.sort(1).values, labels.sort(1).values)
    psnr, of_one = (score(images, one.images, task.value_range).psnr for one in (found, alone))
    assert (psnr > of_one + 3).all()


def test_images_of_two_passes_are_those_of_both() -> None:
    task, observed, images, _ = sent(1, epochs=2)
    assert observed.local.passes == 2
    assert observed.local.sizes == (1,) * 6
    found = attacked(task, observed, iterations=2)
    assert found.images.shape == images.shape
    assert found.labels.shape == (1, 3)


def test_passes_are_matched_by_label_and_averaged() -> None:
    first = torch.arange(4.0).view(1, 4, 1, 1, 1)
    second = first[:, [1, 0, 2, 3]] + 0.2
    labels = torch.tensor([[5, 5, 6, 7]]).repeat(1, 2)
    both = torch.cat([first, second], dim=1)
    torch.testing.assert_close(merged(both, labels, 2), first + 0.1)
    torch.testing.assert_close(disagreement(both, 2), torch.tensor([0.1**2]))


def misplaced(images: Tensor, labels: Tensor) -> Tensor:
    """How far labels are from their places, of records whose image is their label."""
    assert torch.equal(images.flatten(1), labels.float())
    return (labels - torch.arange(labels.shape[1])).abs().sum(1).float()


@pytest.mark.parametrize("n", [4, 7])  # all orders, exchanges
def test_the_best_of_the_likely_orders_has_the_least_loss(n: int) -> None:
    labels = torch.stack([torch.arange(n).flip(0), torch.arange(n).roll(1)])
    orders = likely_orders(labels, labels.float().view(2, n, 1, 1, 1), [1] * n, misplaced)
    assert orders.shape == (2, 8, n)
    assert torch.equal(orders[:, 0], torch.arange(n).expand(2, n))
    assert len({tuple(order) for order in orders[0].tolist()}) == 8


def test_orders_that_differ_within_a_step_are_one() -> None:
    labels = torch.tensor([[2, 3, 0, 1]])
    orders = likely_orders(labels, labels.float().view(1, 4, 1, 1, 1), [2, 2], misplaced)
    steps = {tuple(map(tuple, order.view(2, 2).sort(1).values.tolist())) for order in orders[0]}
    assert len(steps) == 6


def test_a_short_search_tells_the_order_that_was_taken(monkeypatch) -> None:
    task, observed, _, labels = sent(1)
    true = labels[:, torch.randperm(3, generator=STREAMS("order"))]
    orders = torch.stack([true[:, list(order)] for order in permutations((2, 1, 0))], dim=1)
    name = "dpaudit.attacks.gradient_inversion.attack.likely_orders"
    monkeypatch.setattr(name, lambda *given: orders)
    assert torch.equal(orders[:, -1], true)
    assert torch.equal(attacked(task, observed, iterations=20).labels, true)


def test_each_order_has_what_was_observed_of_its_victim() -> None:
    rows = torch.arange(3.0)[:, None]
    observed = ObservedGradients(rows, -rows, 4, None, rows[:, 0], torch.tensor([0, 1, 1]))
    tripled = of_each(observed, 3)
    assert tripled.n_secrets == 6
    for secret in range(6):
        mine = tripled.gradients[tripled.secrets == secret, 0]
        assert mine.tolist() == [[0.0], [1.0, 2.0]][secret // 3]
    assert torch.equal(tripled.gradients, -tripled.models)
    alone = of_each(replace(observed, secrets=None), 2)
    assert alone.std.tolist() == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]


def test_passes_of_one_step_have_no_order(monkeypatch) -> None:
    task, observed, _, labels = sent(1)
    local = local_steps(LocalTraining(optimizer="sgd", learning_rate=0.1, epochs=2), (3, 3))
    monkeypatch.delattr("dpaudit.attacks.gradient_inversion.attack.likely_orders")
    found = attacked(task, replace(observed, local=local), iterations=2)
    assert found.labels.shape == labels.shape


def test_labels_are_dealt_out_over_the_steps_of_a_pass() -> None:
    _, observed, *_ = sent(1)
    local = local_steps(LocalTraining(optimizer="sgd", learning_rate=1.0, epochs=2), (2, 1, 2, 1))
    observed = replace(observed, local=local)
    assert dealt(torch.tensor([[0, 0, 1]]), observed).tolist() == [[0, 1, 0]]


def test_steps_that_do_not_fit_in_memory_are_refused(monkeypatch) -> None:
    task, observed, *_ = sent(1)
    monkeypatch.setattr("dpaudit.attacks.gradient_inversion.local._MEMORY", 10_000)
    with pytest.raises(ConfigError, match="3 local steps of up to 1 records .* GiB") as error:
        attacked(task, observed)
    assert "\n" not in str(error.value)
