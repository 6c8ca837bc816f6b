"""What all releases of a run reveal by themselves: an upper end for every weather.

A step of agent i in round t adds its release r_it = (its clipped gradient + its own fresh noise) to
its model, and nothing else depends on data. What links carry are public linear functions of initial
models and releases: which ones is the weather, drawn before the run and independent of data. So
whoever is given all releases computes the messages of any weather (post-processing), whatever is
lost, late, or not heard. A curious agent's own noise and gradients are its own releases, and
independent of the victim's noise.

It remains to say what all releases reveal. Without weather, an adversary of every link computes
them from messages if these determine models (nothing ``reacts``). If each use of a record then
shows in its own round alone (``Leak.separate``), releases are composed adaptively, and what they
reveal of the uses does not depend on where later gradients are taken. An agent that skips steps
uses its record less often. So the leak without weather, of every link, is at least that of any
weather in which the victim takes no other steps.

The argument fails for noise that agents share or that cancels between them: a lost message leaves
a part of it out of the sums in which it was to cancel. Nothing is proven of it here.
"""

from dataclasses import replace

from dpaudit.files.threat import ThreatModel
from dpaudit.game.game import Game
from dpaudit.game.step_inputs import ChosenNoise
from dpaudit.graphs.graph import Network

from .adversary import Adversary, with_every_link

SHARED = "agents share draws of the noise"
NOT_ALONE = (
    "without weather, too, a record shows in more than its own release, or no message shows a model"
)


def every_release(
    game: Game, threat_model: ThreatModel, n_rounds: int, network: Network
) -> Adversary | str:
    """The adversary to whom every release shows; or why its leak is no bound over weathers.

    Args:
        game: about the victim's record.
        threat_model: whose own noise, gradients and secrets it knows.
        network: without weather: in which all messages arrive.
    """
    heard = replace(game, setting=replace(game.setting, network=network))
    asked = ChosenNoise()
    heard.step(heard.start(1), 1, heard.silent(), asked)
    if asked.known_to:
        return SHARED
    adversary = Adversary(heard, with_every_link(threat_model), n_rounds)
    leak = adversary.leak
    if adversary.reacts is not None or not leak.separate or leak.noiseless:
        return NOT_ALONE
    return adversary
