"""What an agent is answered in the rounds of many trials, whatever its defense makes of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from torch import Tensor

from dpaudit.defense.contract import Gradient
from dpaudit.rng import Streams
from dpaudit.training.trials import TrialProblem


@dataclass(eq=False)
class Overheard(TrialProblem):
    """A problem that notes the first gradient of an agent in the latest round.

    It is the private quantity "gradient" of a defense that names none: the mean over the agent's
    batch, clipped if the defense asks for it clipped.
    """

    problem: TrialProblem
    agent: int
    answer: Tensor | None = field(default=None, init=False)  # [trials, d]

    @property
    def differentiates(self) -> bool:
        return self.problem.differentiates

    @property
    def varies(self) -> str:
        return self.problem.varies

    def for_trials(self, shared: Streams, own: Streams, trials: int, victim: int) -> Self:
        return type(self)(self.problem.for_trials(shared, own, trials, victim), self.agent)

    def initial(self, streams: Streams, trials: int | None = None) -> Tensor:
        return self.problem.initial(streams, trials)

    def gradient(
        self,
        streams: Streams,
        k: int,
        batch_size: int,
        sampling: str = "fixed",
        trials: int | None = None,
    ) -> Gradient:
        self.answer = None
        asked = self.problem.gradient(streams, k, batch_size, sampling, trials)
        return _Listening(asked, self.agent, self._note)

    def _note(self, answer: Tensor) -> None:
        if self.answer is None:
            self.answer = answer


class _Listening(Gradient):
    def __init__(self, asked: Gradient, agent: int, note: Callable[[Tensor], None]) -> None:
        self.asked, self.agent, self.note = asked, agent, note
        self.batch_size = asked.batch_size

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        G = self.asked(X, holders)
        self._listen(G, holders, 1)
        return G

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        S = self.asked.clipped_sum(X, clip_norm, holders, norm)
        self._listen(S, holders, self.batch_size)
        return S

    def per_record(self, X: Tensor, holders: Tensor | None = None, own: bool = False) -> Tensor:
        each = self.asked.per_record(X, holders, own)
        self._listen(each.sum(dim=-2), holders, self.batch_size)
        return each

    def at_step(self, s: int) -> "_Listening":
        return _Listening(self.asked.at_step(s), self.agent, self.note)

    def _listen(self, G: Tensor, holders: Tensor | None, n: int) -> None:
        agents = range(G.shape[-2]) if holders is None else holders.tolist()
        if self.agent in agents:
            self.note(G[..., list(agents).index(self.agent), :] / n)
