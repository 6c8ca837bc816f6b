"""What a view reveals in truth, beside what a defense declares."""

from dpaudit.accounting.releases import epsilon
from dpaudit.defense.contract import Defense, Setting
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.filtering.leak import Leak
from dpaudit.game.game import Game

EAVESDROPPER = ThreatModel(name="eavesdropper")
DELTA = 1e-5


def curious(agent: int) -> ThreatModel:
    return ThreatModel(name=f"agent {agent}", kind="curious", agents=(agent,))


def reading(*links: tuple[int, int]) -> ThreatModel:
    return ThreatModel(name="some links", links=links)


def leak_within_bracket(
    defense: Defense, setting: Setting, threat_model: ThreatModel, victim: int = 1
) -> Leak:
    """The exact leak, which must lie between the declared ends."""
    game = Game.of(defense, setting, victim, "add-remove")
    leak = Adversary(game, threat_model, defense.n_rounds).leak
    bracket = defense.mechanism(setting, threat_model, victim)
    least, true, most = (
        epsilon(tuple(mechanism), DELTA)
        for mechanism in (bracket.least, leak.mechanism(game, None), bracket.most)
    )
    assert least.low <= true.high * (1 + 1e-6)
    assert true.low <= most.high * (1 + 1e-6)
    return leak
