"""Planted privacy bugs, each one line from a real mistake, beside the correct defense they spoil.

A bug keeps all that its correct twin says of itself: its releases, its bounds on messages, the
scale of its noise.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dpaudit.accounting.releases import RecordAdjacency
from dpaudit.defense import Bracket, Gradient, Noise, Round, Setting, ThreatModel, clip

from .correct import (
    PrivateGossip,
    PrivateMomentum,
    PrivateShares,
    Snapped,
    drawn,
    noisy,
    seeded_as_in_round,
    unclipped,
    variant,
)
from .faults import as_in, one_draw_for_all_links, records_drawn


class ResumedAtFirstDraw(PrivateGossip):
    _rounds: int = 0  # played by this object, which no checkpoint keeps

    def start(self, X: Tensor, setting: Setting) -> Any:
        self._rounds = 0
        return super().start(X, setting)

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        self._rounds += 1
        return super().noise(like, k, seeded_as_in_round(self._rounds, noise))


def in_l2_norm(d: Any, gradient: Gradient, X: Tensor) -> Tensor:
    return gradient.clipped_sum(X, d.clip_norm)


def of_a_fixed_generator(d: Any, like: Tensor, k: int, noise: Noise) -> Tensor:
    generator = torch.Generator(like.device).manual_seed(k)
    scaled: Tensor = torch.empty_like(like).normal_(generator=generator) * d._scale
    return scaled


def releases_of_everybody(
    d: Any, setting: Setting, threat_model: ThreatModel, victim: int
) -> Bracket:
    everybody = Setting(setting.network, (sum(setting.sizes),) * setting.n_agents, setting.d)
    return PrivateGossip.mechanism(d, everybody, threat_model, victim)


def again_under_other_noise(
    d: Any, round: Round, state: Any, k: int, gradient: Gradient, noise: Noise
) -> dict[str, Tensor]:
    again = noise.gaussian("gradient again", d._scale, state.X) / d.batch_size
    return {"x_again": state.V - d.learning_rate * (round.private["gradient"] + again)}


@dataclass(frozen=True)
class Specimen:
    """A defense, and the claim that is made for it: the epsilon of what it declares."""

    defense: PrivateGossip
    claimed: RecordAdjacency = "add-remove"
    accounted: RecordAdjacency = "add-remove"  # for which the claimed epsilon was computed
    sends_floats: bool = False  # the claim is about the float32 numbers that are sent


@dataclass(frozen=True)
class Bug:
    """One planted bug and the correct defense that it spoils."""

    name: str
    mistake: str  # the real mistake that it models
    by: str  # the check that is made for it
    planted: Specimen
    twin: Specimen


GAUSSIAN = Specimen(PrivateGossip())
LAPLACE = Specimen(PrivateGossip(family="laplace"))
ONE_ROUND: dict[str, Any] = {"family": "laplace", "n_rounds": 1}


def bug(
    name: str, mistake: str, by: str, base: type[PrivateGossip] = PrivateGossip, **changes: Any
) -> Bug:
    """A bug in private gossip, or in another correct defense."""
    twin = GAUSSIAN if base is PrivateGossip else Specimen(base())
    return Bug(name, mistake, by, Specimen(variant(base, **changes)), twin)


AGAIN = {"x_again": "the model under other noise, for a receiver that acknowledged nothing"}
BUGS = (
    bug("noise halved", "a standard deviation where code expects twice it, or a variance",
        "exact leak", of_noise=lambda Z, at: Z / 2),
    bug("noise reused across neighbours", "one draw per sender, added to each link's message",
        "exact leak", base=PrivateShares, on_links=one_draw_for_all_links),
    bug("same seed for all agents", "manual_seed(0) at the top of every agent's script",
        "exact leak", noise=lambda d, S, k, z: drawn(d, S[..., :1, :], k, z).expand_as(S)),
    bug("same seed for all rounds", "a generator made anew from the seed in every round",
        "learned score", noise=as_in(lambda k: 1)),
    bug("fixed generator in place of the noise", "a hard-coded seed that was left in the code",
        "exact leak", noise=of_a_fixed_generator),
    bug("noise skipped in round 0", "`if step:` in a loop that counts from 0",
        "exact leak", of_noise=lambda Z, at: Z * (at.k > 1)),
    bug("clip forgotten", "noise for clip norm C on gradients that nothing clips",
        "sensitivity", summed=unclipped),
    bug("clip after averaging", "the batch's mean is clipped, not each record's gradient",
        "sensitivity", summed=lambda d, g, X: clip(g(X), d.clip_norm) * d.batch_size),
    Bug("L2 clip under L1 accounting", "a Gaussian mechanism's clipping kept for Laplace noise",
        "sensitivity", Specimen(variant(family="laplace", summed=in_l2_norm)), LAPLACE),
    Bug("add-remove noise, replace-one claim", "noise for C where replacing moves a sum by 2 C",
        "accounting", Specimen(PrivateGossip(noise_multiplier=1.0), "replace-one"),
        Specimen(PrivateGossip(noise_multiplier=2.0), "replace-one", "replace-one")),
    bug("un-noised self-gradient added", "an agent adds its own gradient as if nobody read it",
        "exact leak", noised=lambda d, S, k, z: noisy(d, S, k, z) + S),
    bug("divided by the realised batch size", "a mean over the batch as it was drawn",
        "sensitivity", averaged=lambda d, S, X, k, g, z: d.noised(S, k, z) / records_drawn(g)),
    bug("sampling rate understated", "B over the records of all agents, not over its own",
        "exact leak", mechanism=releases_of_everybody),
    Bug("generator restored wrongly on resume", "the noise generator is in no checkpoint",
        "contract", Specimen(ResumedAtFirstDraw()), GAUSSIAN),
    bug("noise drawn before a broadcast", "noise of shape [n, 1] added to gradients [n, d]",
        "noise statistics", noise=lambda d, S, k, z: drawn(d, S[..., :1], k, z).expand_as(S)),
    bug("momentum released un-noised", "the momentum is updated before the noise is added",
        "exact leak", base=PrivateMomentum, entering=lambda d, clean, noisy: clean),
    bug("budget spent twice", "a message repeated with fresh noise, accounted once",
        "exact leak", sent=again_under_other_noise, messages=AGAIN),
    Bug("float32 Laplace", "noise sampled and added in float32: low bits tell the sum",
        "floating point", Specimen(PrivateGossip(**ONE_ROUND), sends_floats=True),
        Specimen(Snapped(**ONE_ROUND), sends_floats=True)),
)  # fmt: skip
