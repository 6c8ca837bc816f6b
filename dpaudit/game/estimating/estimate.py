"""The best linear estimate of an agent's gradients from a view, with its noise, for any defense.

Over a window of rounds every message is a linear function of what the adversary does not know, and
alike in every coordinate:

    o = A s + sum over inputs of a_u u + B z

with s the agents' states before the window, an input u the gradient of one agent in one round at
one of the models where it was asked for (the mean of the batch's, clipped if the defense clips),
and z the noise in standard deviations. A, a_u and B are not written down for each defense but
probed on its own step. An estimate w'o of one input is unbiased, whatever all other inputs and
the states are, if w' of their columns is 0 and w'a = 1. Of these the best has the least variance
w'BB'w (generalised least squares). It holds what hand-written attacks do: differences of push-sum
messages, momentum with known terms subtracted, averages over links that carry one gradient.

A step that is not linear is linearised around a run of noise without records: the momentum of DPDL
weighs a gradient by its cosine with others, so that its estimate is up to a factor.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from dpaudit.defense.contract import Defense, Setting
from dpaudit.defense.view import View
from dpaudit.errors import NotObservable
from dpaudit.files.threat import ThreatModel
from dpaudit.game.probing.observer import recorded_rows
from dpaudit.game.probing.playable_dimension import refuse_several

from .window import WIDTH, GradientInput, ProbedWindow, System, noise_of

RANK = 1e-8  # of the largest singular value: below it a combination of messages has no unknowns
SAME = 0.05  # of the largest effect of noise: what twice the gradients may change in it
TELLS = 1e-6  # of an input's column: what must be left of it, orthogonal to all other unknowns

Told = TypeVar("Told")


class GradientEstimate(NamedTuple):
    """What a view tells about one gradient."""

    input: GradientInput
    gradient: Tensor  # [d]
    model: Tensor  # [d], where it was taken
    std: float | None  # of noise and rounding in each coordinate; None: it depends on gradients
    model_std: float  # of the noise in each coordinate of the model


class Window:
    """The linear system of consecutive rounds, as one adversary sees it.

    Raises:
        NotObservable: the system is too large, or cannot be played at a few coordinates.
    """

    def __init__(
        self, defense: Defense, setting: Setting, threat_model: ThreatModel, rounds: range
    ) -> None:
        refuse_several(defense, setting.stand_in(WIDTH))
        played = ProbedWindow(defense, setting, threat_model, rounds, 1.0)
        self._system, self.rounds = System.of(played), rounds
        self._factors = Decomposition.of(self._system.unknowns)
        other = noise_of(ProbedWindow(defense, setting, threat_model, rounds, 2.0))
        here = self._system.noise
        self.has_known_noise = bool(((other - here).abs() <= SAME * size(here)).all())

    @property
    def observed(self) -> list[tuple[int, str, int]]:
        """What each observation is: round, message, row of what the adversary reads of it."""
        return self._system.observed

    @property
    def inputs(self) -> list[GradientInput]:
        return self._system.inputs

    def estimates(self, view: View, round: int, agent: int) -> list[GradientEstimate]:
        """All of the agent's gradients in a round that the view tells, the most certain first.

        Raises:
            NotObservable: it tells none, or lacks a message of the window.
        """
        o, rounding = self._read(view)
        found = self._each(round, agent, lambda wanted: self._estimate(wanted, o, rounding))
        return [estimate for _, estimate in sorted(found, key=lambda one: one[0])]

    def gradients(self, view: View, round: int, agent: int) -> Tensor:
        """As ``estimates``, by point [..., n, d], whether or not the models are known.

        Of messages with trials in front, the gradients of all trials.
        """
        o, rounding = self._read(view)
        weights = self._each(round, agent, lambda wanted: self.weights(wanted, rounding).to(o))
        return torch.stack([(w @ o.flatten(1)).reshape(o.shape[1:]) for w in weights], dim=-2)

    def _each(self, round: int, agent: int, told: Callable[[GradientInput], Told]) -> list[Told]:
        found, refusal = [], f"no message tells a gradient of agent {agent} in round {round}"
        for wanted in self.inputs:
            if (wanted.agent, wanted.round) == (agent, round):
                try:
                    found.append(told(wanted))
                except NotObservable as reason:
                    refusal = str(reason)
        if not found:
            raise NotObservable("DPA054", refusal)
        return found

    def weights(self, wanted: GradientInput, rounding: Tensor | None = None) -> Tensor:
        """Of the observations [n], in the best unbiased estimate of an input.

        Args:
            rounding: error of each observation [n] beside the noise; None: none.

        Raises:
            NotObservable: the view does not tell it apart from other inputs or states.
        """
        system = self._system
        c = torch.zeros(system.unknowns.shape[1], dtype=torch.float64)
        c[len(c) - len(self.inputs) + self.inputs.index(wanted)] = 1.0
        none = torch.zeros(system.noise.shape[1], dtype=torch.float64)
        return _best(self._factors, system.noise, c, none, rounding)

    def std(self, wanted: GradientInput) -> float:
        """Of the noise in each coordinate of that estimate."""
        return float(torch.linalg.vector_norm(self.weights(wanted) @ self._system.noise))

    def _estimate(
        self, wanted: GradientInput, o: Tensor, rounding: Tensor
    ) -> tuple[float, GradientEstimate]:
        """And the noise that it has where gradients are of the usual size."""
        system = self._system
        w, i = self.weights(wanted, rounding), self.inputs.index(wanted)
        of, noise = system.models[i], system.model_noise[i]
        try:
            m = _best(self._factors, system.noise, of, noise, rounding)
        except NotObservable as reason:
            raise NotObservable(
                "DPA054", f"the model of that gradient is not known: {reason}"
            ) from None
        std = torch.linalg.vector_norm(torch.cat([w @ system.noise, w * rounding]))
        model_std = torch.linalg.vector_norm(m @ system.noise - noise)
        known = float(std) if self.has_known_noise else None
        return float(std), GradientEstimate(
            wanted, w.to(o) @ o, m.to(o) @ o, known, float(model_std)
        )

    def _read(self, view: View) -> tuple[Tensor, Tensor]:
        """What the adversary holds of the window, [n, ..., d], and its rounding, [n]."""
        first, last = self.rounds[0], self.rounds[-1]
        none = f"{view.threat_model.name} reads no message of rounds {first} to {last}"
        o = recorded_rows(view, self.observed, none)
        rms = o.flatten(1).square().mean(dim=1).sqrt()
        return o, torch.finfo(o.dtype).eps * rms.double().cpu()


class Decomposition(NamedTuple):
    """The singular value decomposition of A [n, m], which every estimate from it needs."""

    A: Tensor
    U: Tensor  # [n, n]
    S: Tensor  # [min(n, m)]
    V: Tensor  # [min(n, m) or m, m]
    rank: int

    @staticmethod
    def of(A: Tensor) -> "Decomposition":
        U, S, V = torch.linalg.svd(A, full_matrices=A.shape[0] > A.shape[1])
        return Decomposition(A, U, S, V, int((RANK * S.max() < S).sum()) if S.numel() else 0)


def _best(
    factors: Decomposition, B: Tensor, c: Tensor, c_noise: Tensor, rounding: Tensor | None
) -> Tensor:
    """w with w'A = c that makes w'B - c_noise smallest (Aitken); Raises NotObservable."""
    A, U, S, V, rank = factors
    w = U[:, :rank] @ ((V[:rank] @ c) / S[:rank])
    if torch.linalg.vector_norm(w @ A - c) > TELLS * torch.linalg.vector_norm(c).clamp(min=1e-300):
        raise NotObservable("DPA054", "this view does not tell it from other gradients and states")
    free = U[:, rank:]
    if rounding is not None:
        B = torch.cat([B, torch.diag(rounding)], dim=1)
        c_noise = torch.cat([c_noise, torch.zeros_like(rounding)])
    return w - free @ (torch.linalg.pinv(free.mT @ B, atol=RANK * size(B)).mT @ (w @ B - c_noise))


def size(matrix: Tensor) -> float:
    """The largest entry; 1 of none."""
    return float(matrix.abs().max()) if matrix.numel() else 1.0
