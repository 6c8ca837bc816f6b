"""Attacks that reconstruct training images from gradients derived from a view."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, PositiveInt, model_validator

import dpaudit.defense as dp
from dpaudit.data.datasets import Dataset
from dpaudit.errors import DataError
from dpaudit.files.finding import Finding
from dpaudit.files.threat import ThreatModel
from dpaudit.progress import OnStep
from dpaudit.rng import Streams
from dpaudit.training.loaded_problem import LoadedProblem
from dpaudit.training.train import Recording

from .contract import WORLDS, Attack, AttackContext, Chooses, InvalidOption, Part, late_rounds
from .image_metrics import refuse_small
from .observed import ObservedGradients, Reconstruction, Task
from .scenario import run_scenario
from .victims import (
    UNMIXED,
    VIEW,
    Join,
    Scenario,
    refuse_many_noises,
    refuse_many_unknowns,
    window_of,
)


class ReconstructionAttack(Attack):
    """Reconstructs training images from gradients that the adversary derived from its view.

    A subclass says how, in ``reconstruct``. It is handed what the adversary holds and what is
    public; the truth, by which it is scored, stays here.
    """

    chooses: ClassVar[Chooses] = {"message": ("observables", "views", "mixtures")}

    joins: ClassVar[Join] = "nothing"  # gradients of a view, where ``join`` does not say

    message: str  # attacked observable of the defense; or "view", or "unmixed"
    rounds: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
    targets: PositiveInt = 8  # victims in each round
    batch_sizes: Annotated[tuple[PositiveInt | Literal["training"], ...], Field(min_length=1)] = (
        "training",
        1,
    )
    join: Join | None = None  # over links of a round, or rounds too; None: as the attack does

    @model_validator(mode="after")
    def _only_views_are_joined(self) -> Self:
        if self.join is not None and self.message != VIEW:
            raise ValueError(
                f'join is for message = "{VIEW}", which tells several gradients of a batch; '
                f'here message is "{self.message}"'
            )
        return self

    @property
    def _joins(self) -> Join:
        return (self.join or self.joins) if self.message == VIEW else "nothing"

    @abstractmethod
    def reconstruct(
        self, observed: ObservedGradients, task: Task, streams: Streams, on_step: OnStep
    ) -> Reconstruction:
        """Attack all observed gradients in one batched optimisation."""

    def validate_options(self, n_rounds: int, n_agents: int) -> Iterator[InvalidOption]:
        return late_rounds(self.rounds, n_rounds)

    def refuse_records(self, dataset: Dataset) -> None:
        """Raises DataError: they are no images, or ones that cannot be scored."""
        if not dataset.is_image:
            raise DataError(
                "DPA033",
                f'data "{dataset.name}" has {dataset.x.ndim - 1}-dimensional records '
                f"{tuple(dataset.x.shape[1:])}; gradient inversion needs images "
                "[n, channels, height, width]",
            )
        refuse_small(dataset.x.shape)

    def refuse(self, learned: LoadedProblem, setting: dp.Setting) -> None:
        """Raises DataError if the data are none that it reconstructs, or no records, or too few for
        a batch; or batches of several rounds are to be joined of which it is not known that they
        recur.
        """
        if learned.dataset is None:
            raise DataError(
                "DPA033",
                "these data are no records, only a cost function for each agent; gradient "
                "inversion needs records",
            )
        self.refuse_records(learned.dataset)
        largest = max((size for size in self.batch_sizes if size != "training"), default=0)
        fewest = min(filter(None, setting.sizes))  # an agent without records draws none
        if largest > fewest:
            raise DataError(
                "DPA032",
                f"attack.batch_sizes: a batch of {largest} cannot be drawn, for an agent has "
                f"{fewest} records; expected 1 to {fewest}",
            )
        if self._joins == "rounds" and set(self.batch_sizes) != {fewest}:
            raise DataError(
                "DPA052",
                'attack.join: "rounds" needs batches whose records are known to recur, all that an '
                "agent holds in every round; which records of smaller batches recur is not "
                f"inferred: expected batch_sizes = [{fewest}], as no agent holds fewer, got "
                f"{list(self.batch_sizes)}",
            )

    def recording(self, defense: dp.Defense) -> Recording:
        """The messages that are needed, and the rounds played at other batch sizes."""
        messages: dict[int, set[str]] = {}
        for k in self.rounds:
            for name, rounds in self._needs(defense, k).items():
                for needed in rounds:
                    messages.setdefault(needed, set()).add(name)
        probed = frozenset(size for size in self._sizes(defense) if self._is_probe(size, defense))
        return Recording(
            {k: frozenset(names) for k, names in messages.items() if k > 0},
            dict.fromkeys(self.rounds, probed),
        )

    def _needs(self, defense: dp.Defense, k: int) -> dict[str, Iterable[int]]:
        """Rounds, by message, that an attack on round k reads."""
        if self.message in (VIEW, UNMIXED):
            rounds = window_of(self.message, k, defense.n_rounds, False)
            return dict.fromkeys(defense.messages, rounds)
        needs = defense.observables[self.message].needs
        return {name: [k + offset for offset in offsets] for name, offsets in needs.items()}

    def parts(self, defense: dp.Defense) -> tuple[Part, ...]:
        """Each batch size, under the defense and without it."""
        return tuple(Part(world, size) for size in self._sizes(defense) for world in WORLDS)

    def refuse_too_large(self, context: AttackContext, threat_model: ThreatModel) -> None:
        """Raises ConfigError: its estimates have too many unknowns, or draw too much noise."""
        if self.message == VIEW:
            refuse_many_unknowns(context, threat_model, self.rounds, context.defense.observables)
        elif self.message == UNMIXED:
            refuse_many_noises(context, self.rounds)

    def measure(
        self, context: AttackContext, threat_model: ThreatModel, on_step: OnStep
    ) -> list[Finding]:
        return run_scenario(self.scenario(context, threat_model), context, on_step)

    def scenario(self, context: AttackContext, threat_model: ThreatModel) -> Scenario:
        """What one part of it attacks of what one adversary sees."""
        part = context.part
        assert part.batch_size is not None  # parts() names one for each
        n_steps = self._local_steps(context)
        return Scenario(
            attack_index=context.index,
            attack_name=context.name,
            reconstruct=self.reconstruct,
            message=self.message,
            rounds=tuple(sorted(set(self.rounds))),
            n_targets=self.targets,
            threat_model=threat_model,
            world=part.world,
            batch_size=part.batch_size * n_steps,
            is_probe=self._is_probe(part.batch_size, context.defense),
            join=self._joins,
            n_steps=n_steps,
        )

    def _local_steps(self, context: AttackContext) -> int:
        """How many the attacked message holds."""
        observable = context.defense.observables.get(self.message)
        if observable is None or observable.local is None:
            return 1
        return len(observable.local(context.defense, context.setting, self.rounds[0]).sizes)

    def _sizes(self, defense: dp.Defense) -> list[int]:
        sizes = (defense.batch_size if b == "training" else b for b in self.batch_sizes)
        return list(dict.fromkeys(sizes))

    def _is_probe(self, size: int, defense: dp.Defense) -> bool:
        """Poisson batches vary in size, so those are attacked in rounds played once more."""
        return defense.drawing != "fixed" or size != defense.batch_size
