import random
import traceback

import numpy as np
import pytest
import torch

from dpaudit.training.partial_inputs import global_randomness


def drawn() -> tuple[float, float, float]:
    return torch.rand(()).item(), float(np.random.rand()), random.random()


def test_generators_are_as_after_a_seed_and_then_as_they_were() -> None:
    with global_randomness(3):
        first = drawn()
    with global_randomness(1):
        other = drawn()
        with global_randomness(3):
            assert drawn() == first
        following = drawn()
    with global_randomness(1):
        assert (drawn(), drawn()) == (other, following)
    assert not {*first} & {*other}


@pytest.mark.skipif(torch.cuda.is_initialized(), reason="its generators are seeded at once")
def test_nothing_is_noted_for_a_gpu_that_nobody_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.manual_seed formats the whole stack for later, which took longer than the round."""

    def noted() -> None:
        raise AssertionError

    monkeypatch.setattr(traceback, "format_stack", noted)
    with global_randomness(3):
        pass
