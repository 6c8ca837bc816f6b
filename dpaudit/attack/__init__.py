"""The contract of attacks and the scores of reconstructions: what may an attack see and say?

An attack of one's own needs nothing of dpaudit but what this room and ``dpaudit.defense`` name.
"""

from dpaudit.files.claim import Claim
from dpaudit.files.finding import KINDS, Column, Finding, Metric, Name, Role
from dpaudit.files.threat import ThreatModel
from dpaudit.files.verdict import Verdict
from dpaudit.kept import Kept, Progress
from dpaudit.progress import OnStep
from dpaudit.rng import Streams
from dpaudit.training.loaded_problem import LoadedProblem
from dpaudit.training.train import Recording
from dpaudit.training.trials import run_trials

from .contract import Attack, Bench, Chooses, Misfit, Part, late_rounds, missing_agent
from .observed import Observed, Reconstruction, Task, Trace
from .reconstruction import ReconstructionAttack

__all__ = [
    "KINDS",
    "Attack",
    "Bench",
    "Chooses",
    "Claim",
    "Column",
    "Finding",
    "Kept",
    "LoadedProblem",
    "Metric",
    "Misfit",
    "Name",
    "Observed",
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
