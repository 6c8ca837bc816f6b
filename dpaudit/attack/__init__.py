"""The contract of attacks and the scores of reconstructions: what may an attack see and say?

An attack of one's own needs nothing of dpaudit but what this room and ``dpaudit.defense`` name.
"""

from typing import TYPE_CHECKING

from dpaudit.checkpoint import Checkpoint, Progress
from dpaudit.files.claim import Claim
from dpaudit.files.finding import KINDS, Column, Finding, Metric, Name, Role
from dpaudit.files.threat import ThreatModel
from dpaudit.files.verdict import Verdict
from dpaudit.progress import OnStep
from dpaudit.rng import Streams
from dpaudit.training.loaded_problem import LoadedProblem
from dpaudit.training.train import Recording
from dpaudit.training.trials import run_trials

from .contract import (
    Attack,
    AttackContext,
    Chooses,
    InvalidOption,
    Part,
    late_rounds,
    missing_agent,
)
from .observed import ObservedGradients, Reconstruction, Task, Trace
from .reconstruction import ReconstructionAttack

__all__ = [
    "KINDS",
    "Attack",
    "AttackContext",
    "Checkpoint",
    "Chooses",
    "Claim",
    "Column",
    "Finding",
    "InvalidOption",
    "LoadedProblem",
    "Metric",
    "Name",
    "ObservedGradients",
    "OnStep",
    "Part",
    "Progress",
    "Reconstruction",
    "ReconstructionAttack",
    "Recording",
    "Role",
    "Streams",
    "Task",
    "ThreatModel",
    "Trace",
    "Verdict",
    "late_rounds",
    "missing_agent",
    "run_trials",
]


RENAMED = {
    "Bench": "AttackContext",
    "Kept": "Checkpoint",
    "Misfit": "InvalidOption",
    "Observed": "ObservedGradients",
}

if not TYPE_CHECKING:  # names of before: a type checker is to miss them

    def __getattr__(name: str) -> object:
        if name in RENAMED:
            raise ImportError(f"dpaudit.attack.{name} is now dpaudit.attack.{RENAMED[name]}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
