"""The contract of measurements: attacks that play runs of their own, and know what is secret."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from dpaudit.defense.contract import Defense, Setting
from dpaudit.files.claim import Claim
from dpaudit.files.finding import Finding
from dpaudit.files.threat import ThreatModel
from dpaudit.progress import OnStep
from dpaudit.rng import Streams
from dpaudit.strict import Strict
from dpaudit.training.loaded_problem import Problem
from dpaudit.training.run_directory import RunDirectory

from .reconstruction import Chooses


@dataclass(frozen=True)
class Bench:
    """What a measurement works on: the calibrated defense, where it runs, and what is claimed."""

    problem: Problem
    setting: Setting
    defense: Defense  # its noise set
    claims: tuple[Claim, ...]
    streams: Streams  # of this measurement alone: nothing drawn from them is drawn elsewhere
    run: RunDirectory  # takes artifacts


class Measurement(Strict, ABC):
    """Plays runs of a defense in which it decides what is secret, and measures what a view tells.

    Its fields are the options of ``[[attack]]``. It gives findings; verdicts on claims are not its
    business.
    """

    chooses: ClassVar[Chooses] = {"message": ("messages",)}
    per_threat_model: ClassVar[bool] = True  # False: the same whoever the adversary is

    threat_models: tuple[str, ...] | None = None  # names; None: all of the audit

    def refuse(self, setting: Setting) -> None:
        """Called before anything is run. Raises ConfigError if it could not measure there."""

    @abstractmethod
    def measure(self, bench: Bench, threat_model: ThreatModel, on_step: OnStep) -> list[Finding]:
        """The findings on one adversary.

        Raises:
            DpauditError: it cannot be measured on this defense or data; the line says why.
        """
