"""One update of federated averaging: three attacks on the same clients."""

import pytest

from dpaudit.papers.declared import DECLARED
from dpaudit.papers.local_updates import PSNR, RECOVERED, recovered

SETTINGS = {
    **{"clients": 2, "epochs": 2, "batches": 2, "batch_size": 1, "learning_rate": 0.1},
    **{"network": "logistic", "threshold": 20.0, "iterations": 20},
}


@pytest.mark.slow
def test_played_steps_recover_more_than_one_gradient(context) -> None:
    found = {}
    for attack in ("simulated", "one gradient"):
        numbers = list(recovered({**SETTINGS, "attack": attack}, 1, context))
        assert [number.quantity for number in numbers] == [RECOVERED, PSNR]
        assert [number.n for number in numbers] == [2, 2]
        found[attack] = numbers[1].value
    assert found["simulated"] > found["one gradient"]


def test_the_scripts_of_the_paper_set_the_scale() -> None:
    """Table 1: 10 batches of 5, 1 to 10 epochs, 100 clients, 20 dB."""
    experiment = DECLARED["fedavg-inversion"]
    assert experiment.scales["paper"].only == {"epochs": ["1", "5", "10"]}
    scale = [experiment.settings[key] for key in ("batches", "batch_size", "clients", "threshold")]
    assert scale == [10, 5, 100, 20.0]
    assert experiment.published == ()
