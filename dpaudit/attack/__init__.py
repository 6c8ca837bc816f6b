"""The contract of attacks and the scores of reconstructions: what may an attack see and say?

An attack of one's own needs nothing of dpaudit but what this room and ``dpaudit.defense`` name.
"""

from typing import TYPE_CHECKING

from dpaudit.checkpoint import NO_CHECKPOINT, Checkpoint, Progress
from dpaudit.errors import (
    ConfigError,
    DataError,
    DpauditError,
    NotObservable,
    RunError,
    renamed,
)
from dpaudit.files.claim import Claim
from dpaudit.files.finding import KINDS, Column, Evidence, Finding, Metric, Name, Role
from dpaudit.files.threat import ThreatModel
from dpaudit.files.verdict import Verdict
from dpaudit.progress import OnStep, silent, step_of_part
from dpaudit.rng import Streams
from dpaudit.training.classification import Classification
from dpaudit.training.loaded_problem import LoadedProblem
from dpaudit.training.train import Recording
from dpaudit.training.trials import TrialProblem, run_trials

from .contract import (
    WORLDS,
    Attack,
    AttackContext,
    Chooses,
    InvalidOption,
    Part,
    Significance,
    World,
    late_rounds,
    missing_agent,
    too_long,
)
from .observed import ObservedGradients, Reconstruction, Task, Trace
from .reconstruction import ReconstructionAttack

__all__ = [
    "KINDS",
    "NO_CHECKPOINT",
    "WORLDS",
    "Attack",
    "AttackContext",
    "Checkpoint",
    "Chooses",
    "Claim",
    "Classification",
    "Column",
    "ConfigError",
    "DataError",
    "DpauditError",
    "Evidence",
    "Finding",
    "InvalidOption",
    "LoadedProblem",
    "Metric",
    "Name",
    "NotObservable",
    "ObservedGradients",
    "OnStep",
    "Part",
    "Progress",
    "Reconstruction",
    "ReconstructionAttack",
    "Recording",
    "Role",
    "RunError",
    "Significance",
    "Streams",
    "Task",
    "ThreatModel",
    "Trace",
    "TrialProblem",
    "Verdict",
    "World",
    "late_rounds",
    "missing_agent",
    "run_trials",
    "silent",
    "step_of_part",
    "too_long",
]

if not TYPE_CHECKING:  # names of before: a type checker is to miss them
    __getattr__ = renamed(
        __name__,
        {
            "Bench": "AttackContext",
            "Kept": "Checkpoint",
            "Misfit": "InvalidOption",
            "Observed": "ObservedGradients",
        },
    )
