"""The contract of a defense and all that it is written with: what does an algorithm declare?

A defense of one's own needs nothing of dpaudit but what this room names.
"""

from dpaudit.accounting.releases import BudgetDelta, BudgetEpsilon, Mechanism, Release
from dpaudit.errors import (
    ConfigError,
    DpauditError,
    MissingPackage,
    NotObservable,
    OutsideTheory,
)
from dpaudit.files.claim import Adjacency
from dpaudit.files.threat import ThreatModel
from dpaudit.graphs.graph import Graph, Network
from dpaudit.strict import Strict

from .budget import GaussianDefense
from .clipping import clip, clip_weights, norms
from .contract import (
    CHANGED_RECORDS,
    Bracket,
    Combination,
    Defense,
    Deferred,
    Derived,
    Gradient,
    Observable,
    Round,
    Setting,
    Stated,
    Target,
)
from .gossip import (
    AVERAGE,
    GraphOf,
    clipped_whole,
    from_server,
    known_rounds,
    mixed,
    of_acting,
    of_each_record,
    refuse_unless_column_stochastic,
    refuse_unless_symmetric,
    releases,
    replayed,
    start_and_step,
    step_seen,
    steps_of,
)
from .laplace import (
    Decay,
    GeometricDefense,
    LaplaceDefense,
    Moves,
    ScaledDefense,
)
from .noise import Noise, Scale
from .transcript import Capture, Message, Sent, Transcript, broadcast, unicast
from .view import View

__all__ = [
    "AVERAGE",
    "CHANGED_RECORDS",
    "Adjacency",
    "Bracket",
    "BudgetDelta",
    "BudgetEpsilon",
    "Capture",
    "Combination",
    "ConfigError",
    "Decay",
    "Defense",
    "Deferred",
    "Derived",
    "DpauditError",
    "GaussianDefense",
    "GeometricDefense",
    "Gradient",
    "Graph",
    "GraphOf",
    "LaplaceDefense",
    "Mechanism",
    "Message",
    "MissingPackage",
    "Moves",
    "Network",
    "Noise",
    "NotObservable",
    "Observable",
    "OutsideTheory",
    "Release",
    "Round",
    "Scale",
    "ScaledDefense",
    "Sent",
    "Setting",
    "Stated",
    "Strict",
    "Target",
    "ThreatModel",
    "Transcript",
    "View",
    "broadcast",
    "clip",
    "clip_weights",
    "clipped_whole",
    "from_server",
    "known_rounds",
    "mixed",
    "norms",
    "of_acting",
    "of_each_record",
    "refuse_unless_column_stochastic",
    "refuse_unless_symmetric",
    "releases",
    "replayed",
    "start_and_step",
    "step_seen",
    "steps_of",
    "unicast",
]
