"""Two attacks: a record read off the first layer's gradient, and the noise a message carries."""

import math
from collections.abc import Iterator
from typing import Annotated, ClassVar

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from dpaudit.attack import (
    Attack,
    AttackContext,
    Chooses,
    Column,
    Finding,
    InvalidOption,
    LoadedProblem,
    Metric,
    ObservedGradients,
    OnStep,
    Reconstruction,
    ReconstructionAttack,
    Role,
    Streams,
    Task,
    ThreatModel,
    late_rounds,
)
from dpaudit.defense import ConfigError, Messages, Noise, NotObservable, Setting, Transcript, View


class FirstLayer(ReconstructionAttack):
    """Reads records off the gradient of a first linear layer, in closed form.

    If the layer computes A x + b, and e is the loss's gradient in that, one record's gradient is
    e x' in A and e in b: each row of the first divided by its entry of the second is the record.
    That is exact for one record and a gradient without noise, whatever it was scaled by. Of a
    batch, rows give weighted means of its records.

    Source: Phong, Aono, Hayashi, Wang and Moriai 2018, IEEE TIFS 13(5).
    """

    def refuse(self, learned: LoadedProblem, setting: Setting) -> None:
        """Raises ConfigError where the network does not begin with a linear layer."""
        super().refuse(learned, setting)
        assert learned.dataset is not None  # that was refused
        sizes = [size for _, size in learned.layers]
        pixels, n_classes = math.prod(learned.dataset.x.shape[1:]), learned.dataset.n_classes
        if len(sizes) < 2 or sizes[0] != sizes[1] * pixels or sizes[-1] != n_classes:
            raise ConfigError(
                "DPA055",
                f"first-layer: expected a network whose first layer is linear in its {pixels} "
                "pixels, such as logistic or mlp",
            )

    def reconstruct(
        self, observed: ObservedGradients, task: Task, streams: Streams, on_step: OnStep
    ) -> Reconstruction:
        sizes = [p.numel() for p in task.gradients.module.parameters()]
        parts = observed.gradients.split(sizes, dim=1)
        A, b = parts[0].unflatten(1, (sizes[1], -1)), parts[1]  # [m, n_rows, pixels], [m, n_rows]
        records = torch.arange(observed.batch_size, device=b.device)

        rows = b.abs().argsort(dim=1, descending=True)[:, records % sizes[1]]
        images = A.take_along_dim(rows[..., None], dim=1) / b.take_along_dim(rows, dim=1)[..., None]
        labels = parts[-1].argsort(dim=1)[:, records % task.n_classes]
        residual = (A - b[..., None] * images[:, :1]).norm(dim=(1, 2)) / A.norm(dim=(1, 2))
        on_step(1, 1)
        return Reconstruction(
            images.nan_to_num().clamp(*task.value_range).unflatten(2, task.shape),
            labels,
            residual[:, None],  # 0 if all rows are of one record
        )


class NoiseLevel(Attack):
    """Measures the noise that each round really adds to a message.

    Each round is played ``trials`` times from one state and with the same batches, so that nothing
    but the noise of that round differs.
    """

    chooses: ClassVar[Chooses] = {"message": ("messages",)}

    message: str
    rounds: tuple[PositiveInt, ...] = (1,)
    trials: Annotated[int, Field(ge=2)] = 20

    def validate_options(self, n_rounds: int, n_agents: int) -> Iterator[InvalidOption]:
        return late_rounds(self.rounds, n_rounds)

    def measure(
        self, context: AttackContext, threat_model: ThreatModel, on_step: OnStep
    ) -> list[Finding]:
        stds: dict[int, float] = {}
        unread = ""
        for k, sent in self._played(context, on_step):
            view = View.of(threat_model, Transcript({k: sent}), {k})
            try:
                stds[k] = self._least(view, k)
            except NotObservable as reason:
                unread = f"not available to this adversary: {reason}"
        return [self._finding(context, threat_model, stds, unread)]

    def _played(self, context: AttackContext, on_step: OnStep) -> Iterator[tuple[int, Messages]]:
        """The rounds asked for, and what was sent in all trials of each."""
        defense, problem, streams = context.defense, context.problem, context.streams
        state = defense.start(problem.initial(streams, self.trials), context.setting)
        last = max(self.rounds)
        for k in range(1, last + 1):
            gradient = problem.gradient(streams, k, defense.batch_size, defense.drawing)
            graph = context.setting.network.at(k)
            round = defense.step(state, k, graph, gradient, Noise(streams, k))
            if k in self.rounds:
                yield k, round.sent
            state = type(state)(*(part[:1].expand_as(part) for part in round.state))
            on_step(k, last)

    def _least(self, view: View, k: int) -> float:
        """The smallest noise among the other agents that are heard."""
        heard = {sender for sender, _ in view.edges(self.message, k)}
        others = sorted(heard - {*view.threat_model.agents})
        if not others:
            raise NotObservable("DPA054", f'no "{self.message}" of another agent is read')
        return min(_std(view.sent_by(self.message, k, agent)) for agent in others)

    def _finding(
        self, context: AttackContext, threat_model: ThreatModel, stds: dict[int, float], unread: str
    ) -> Finding:
        n = self.trials * context.setting.d
        least = {"least noise": Metric(value=min(stds.values()), n=n)} if stds else {}
        method = "smallest standard deviation among agents; runs differ in one round's noise alone"
        return Finding(
            role=Role.NOISE,
            kind="control",
            title=f"noise of {self.message}, measured",
            attack=context.name,
            threat_model=threat_model.name,
            message=self.message,
            rounds=self.rounds,
            world="defense",
            metrics=least,
            notes=(method, unread) if unread else (method,),
            series={Column.ROUND: tuple(stds), "least noise": tuple(stds.values())},
        )


def _std(sent: Tensor) -> float:
    """Of payloads [trials, d] around their mean over trials."""
    return float(sent.double().var(dim=0).mean().sqrt())
