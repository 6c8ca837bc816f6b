"""The contract of attacks: evidence from what an adversary holds, and no verdict."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

import dpaudit.defense as dp
from dpaudit.checkpoint import NO_CHECKPOINT, Checkpoint
from dpaudit.errors import ConfigError
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Finding, Metric
from dpaudit.files.threat import Access, ThreatModel
from dpaudit.progress import OnStep
from dpaudit.registry import PluginFamily
from dpaudit.rng import Streams
from dpaudit.strict import Strict
from dpaudit.training.loaded_problem import LoadedProblem, Problem
from dpaudit.training.run_directory import RunDirectory
from dpaudit.training.train import NOTHING_RECORDED, Recording

Chooses = Mapping[str, tuple[str, ...]]  # option -> the tables of a defense that name its values
World = Literal["defense", "no-defense"]
WORLDS: tuple[World, ...] = ("defense", "no-defense")
InvalidOption = tuple[str, str]  # an option, and why its value cannot be meant
Significance = Annotated[float, Field(gt=0, le=0.05)]  # of a bound; verdicts are at 95% confidence


class Part(NamedTuple):
    """What can be done apart from the rest of an attack, in a process of its own."""

    world: World = "defense"
    batch_size: int | None = None  # for an attack on batches of several sizes


@dataclass(frozen=True)
class AttackContext:
    """What an attack works on: the calibrated defense, where it runs, and what is claimed."""

    problem: Problem
    setting: dp.Setting
    defense: dp.Defense  # its noise set
    claims: tuple[Claim, ...]
    streams: Streams  # named by attack and adversary, wherever the attack stands in the config
    run: RunDirectory  # has the recorded rounds, takes artifacts
    part: Part = Part()  # part of the attack
    name: str = ""  # name of the attack in the config
    index: int = 0  # index of the attack in the config
    seed: int = 0  # seed of the training run, from which its batches are drawn again
    checkpoint: Checkpoint = (
        NO_CHECKPOINT  # saves the progress of long work, so that a killed run can go on
    )


class Attack(Strict, ABC):
    """Finds out what an adversary learns. Its fields are the options of ``[[attack]]``.

    It gives findings; verdicts on claims are not its business.
    """

    plugin_family: ClassVar[PluginFamily] = "attacks"
    chooses: ClassVar[Chooses] = {}
    per_threat_model: ClassVar[bool] = True  # False: the same whoever the adversary is
    final_model: ClassVar[
        tuple[Access, ...]
    ] = ()  # access to a last model that is enough for the attack

    threat_models: Annotated[tuple[str, ...], Field(min_length=1)] | None = None  # None: all

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "misfits" in vars(cls):
            said = f"attack: {cls.__name__}.misfits is now called validate_options"
            raise ConfigError("DPA043", said)

    def validate_options(self, n_rounds: int, n_agents: int) -> Iterator[InvalidOption]:
        """Options that cannot be meant in a run of so many rounds and agents."""
        return iter(())

    def refuse(self, learned: LoadedProblem, setting: dp.Setting) -> None:
        """Called before anything is run. Raises DpauditError if it could not attack there."""

    def recording(self, defense: dp.Defense) -> Recording:
        """What it reads of the training run; an attack that plays its own runs reads nothing."""
        return NOTHING_RECORDED

    def parts(self, defense: dp.Defense) -> tuple[Part, ...]:
        """Into what its work on one adversary divides."""
        return (Part(),)

    def refuse_too_large(self, context: AttackContext, threat_model: ThreatModel) -> None:
        """Called before anything is run. Raises DpauditError: nothing computes what it asks for."""

    def power(
        self, context: AttackContext, threat_model: ThreatModel, patience: float = inf
    ) -> Iterator[tuple[int, Mapping[str, Metric]]]:
        """What ``measure`` is expected to certify of each claim, by its index, without a run.

        The expected bound, the ceiling and the trials that would be enough of a perfect attack,
        each where it is known; nothing of claims of which nothing can be predicted. No bound is
        expected where it would take about more than ``patience`` seconds to derive.
        """
        return iter(())

    @abstractmethod
    def measure(
        self, context: AttackContext, threat_model: ThreatModel, on_step: OnStep
    ) -> list[Finding]:
        """The findings on one adversary, of one part where the attack has several.

        Raises:
            DpauditError: it cannot be measured on this defense or data; the line says why.
        """


def late_rounds(rounds: Iterable[int], n_rounds: int) -> Iterator[InvalidOption]:
    """Problems with the option ``rounds``: rounds that the run does not reach."""
    for late in (k for k in rounds if k > n_rounds):
        yield "rounds", f"round {late} is beyond the run of {n_rounds} rounds"


def too_long(first: int | None, n_rounds: int) -> Iterator[InvalidOption]:
    """The option ``n_rounds``, the first ones of a run, if the run has fewer."""
    if first is not None and first > n_rounds:
        yield "n_rounds", f"the run has {n_rounds} rounds; expected 1 to {n_rounds}, got {first}"


def missing_agent(victim: int | None, n_agents: int) -> Iterator[InvalidOption]:
    """The option ``victim``, if there is no such agent."""
    if victim is not None and victim >= n_agents:
        there = f"with n_agents = {n_agents} they are 0 to {n_agents - 1}"
        yield "victim", f"there is no agent {victim}; {there}"
