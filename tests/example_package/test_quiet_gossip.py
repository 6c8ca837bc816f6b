import pytest
from quiet_gossip import QuietGossip

from dpaudit.conformance import PROMISES, check_defense


@pytest.mark.parametrize("promise", PROMISES)
def test_quiet_gossip_keeps(promise: str) -> None:
    check_defense(QuietGossip(n_rounds=6, batch_size=4, epsilon=1.0), promise)
