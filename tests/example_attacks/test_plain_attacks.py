import math

import pytest
import torch
from plain_attacks import FirstLayer

import dpaudit
from dpaudit.attack import ObservedGradients, Streams, Task
from dpaudit.defense import ConfigError
from dpaudit.models.gradients import Gradients
from dpaudit.models.models import build_network

SHAPE, N_CLASSES = (1, 4, 4), 3


def attacked(network: str, batch_size: int, noise: float = 0.0):
    """Images and labels of two victims' batches, and what the attack makes of their gradients."""
    torch.manual_seed(7)
    task = Task(Gradients(build_network(network, SHAPE, N_CLASSES)), SHAPE, N_CLASSES, (-1.0, 1.0))
    images = torch.rand(2, batch_size, *SHAPE) * 2 - 1
    labels = torch.randint(N_CLASSES, (2, batch_size))
    models = torch.randn(2, task.gradients.d)
    gradients = task.gradients.mean(models, images, labels)
    gradients += noise * torch.randn_like(gradients)
    attack = FirstLayer(message="gradient", rounds=(1,))
    observed = ObservedGradients(gradients, models, batch_size, clip_norm=None)
    return images, labels, attack.reconstruct(observed, task, Streams(1), lambda *_: None)


@pytest.mark.parametrize("network", ["logistic", "mlp"])
def test_one_record_is_read_exactly(network):
    images, labels, found = attacked(network, batch_size=1)
    torch.testing.assert_close(found.images, images, atol=1e-3, rtol=0)
    assert torch.equal(found.labels, labels)
    assert (found.losses < 1e-3).all()


@pytest.mark.parametrize("changed", [{"noise": 0.5}, {"batch_size": 3}])
def test_what_is_not_one_records_gradient_is_told_by_the_loss(changed):
    images, _, found = attacked("logistic", **{"batch_size": 1, **changed})
    assert (found.images - images).abs().max() > 0.1
    assert (found.losses > 0.01).all()


def audited(sigma, adversary=None, **options):
    """The finding of noise-level on a run of two rounds."""
    defense = {"name": "dp-dpsgd", "n_rounds": 2, "batch_size": 4, "noise_multiplier": sigma}
    config = {
        "data": {"name": "digits", "n_agents": 4},
        "graph": {"name": "ring"},
        "model": {"name": "logistic"},
        "defense": {**defense, "learning_rate": 0.5, "clip_norm": 2.0},
        "threat_model": [adversary or {"name": "eavesdropper"}],
        "attack": [{"name": "noise-level", "message": "x", "rounds": [1, 2], **options}],
    }
    (finding,) = dpaudit.audit(config, cores=1).findings
    return finding


def test_the_noise_measured_in_a_round_is_the_noise_drawn_in_it():
    n = 20 * 650  # a standard deviation errs by 1 / sqrt(2 n) of itself; 7 of that: never
    measured = audited(sigma=3.0)
    assert measured.metrics["least noise"].n == n
    for std in measured.series["least noise"]:
        assert std == pytest.approx(0.5 * 3.0 * 2.0 / 4, rel=7 / math.sqrt(2 * n))
    assert audited(sigma=0.0).series["least noise"] == (0.0, 0.0)


@pytest.mark.parametrize(
    "wrong, key",
    [({"rounds": [3]}, "rounds"), ({"trials": 1}, "trials"), ({"message": "y"}, "message")],
)
def test_what_cannot_be_meant_is_refused(wrong, key):
    with pytest.raises(ConfigError, match=rf"attack\[1\]\.{key}"):
        audited(sigma=1.0, **wrong)


def test_an_adversary_on_one_link_measures_its_sender():
    one_link = {"name": "one link", "kind": "external", "links": [[0, 1]]}
    assert audited(sigma=1.0, adversary=one_link).metrics["least noise"].value > 0
