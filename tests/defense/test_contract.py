"""What a round leaves behind."""

import pytest
import torch

from dpaudit.defense.contract import Deferred


def test_a_deferred_quantity_is_computed_when_it_is_read() -> None:
    def never() -> torch.Tensor:
        raise AssertionError("nobody asked for this")

    private = Deferred({"gradient": lambda: torch.ones(2), "h": never})
    assert list(private) == ["gradient", "h"]
    assert len(private) == 2
    assert torch.equal(private["gradient"], torch.ones(2))
    with pytest.raises(KeyError):
        private["theta"]
