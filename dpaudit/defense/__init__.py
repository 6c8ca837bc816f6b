"""The contract of a defense and all that it is written with: what does an algorithm declare?

A defense of one's own needs nothing of dpaudit but what this room names.
"""

from typing import TYPE_CHECKING

from dpaudit.accounting.releases import BudgetDelta, BudgetEpsilon, Mechanism, Release
from dpaudit.errors import (
    ConfigError,
    DpauditError,
    MissingPackage,
    NotObservable,
    OutsideTheory,
    renamed,
)
from dpaudit.files.claim import Adjacency
from dpaudit.files.threat import ThreatModel
from dpaudit.graphs.graph import Graph, Network
from dpaudit.strict import Strict

from .budget import (
    BudgetDefense,
    GaussianDefense,
    GaussianSGD,
    NoiselessDefense,
    NoiselessFunctionDefense,
    refuse_unless_one_is_given,
)
from .clipping import clip, clip_weights, norms
from .contract import (
    CHANGED_RECORDS,
    Bracket,
    Combination,
    Defense,
    Deferred,
    Gradient,
    Models,
    Observable,
    ObservedGradient,
    Round,
    Setting,
    Stated,
    Target,
)
from .delays import arrived, in_flight
from .gossip import (
    AVERAGE,
    batch_releases,
    clipped_whole,
    from_server,
    gaussian_rounds,
    gradient_on_link,
    known_rounds,
    mixed,
    of_acting,
    releases,
    start_and_step,
    step_seen,
    stepping,
    steps_of,
)
from .graph_conditions import (
    GraphCondition,
    column_stochastic,
    does_not_vary,
    doubly_stochastic,
    is_symmetric,
    undirected,
)
from .laplace import (
    Decay,
    Gathering,
    GatheringDefense,
    GeometricDefense,
    L1Moves,
    LaplaceDefense,
    ScaledDefense,
    Tracking,
)
from .local_simulation import LocalSimulation
from .noise import Noise, Scale
from .transcript import Message, Messages, Transcript, broadcast, unicast
from .view import View

__all__ = [
    "AVERAGE",
    "CHANGED_RECORDS",
    "Adjacency",
    "Bracket",
    "BudgetDefense",
    "BudgetDelta",
    "BudgetEpsilon",
    "Combination",
    "ConfigError",
    "Decay",
    "Defense",
    "Deferred",
    "DpauditError",
    "Gathering",
    "GatheringDefense",
    "GaussianDefense",
    "GaussianSGD",
    "GeometricDefense",
    "Gradient",
    "Graph",
    "GraphCondition",
    "L1Moves",
    "LaplaceDefense",
    "LocalSimulation",
    "Mechanism",
    "Message",
    "Messages",
    "MissingPackage",
    "Models",
    "Network",
    "Noise",
    "NoiselessDefense",
    "NoiselessFunctionDefense",
    "NotObservable",
    "Observable",
    "ObservedGradient",
    "OutsideTheory",
    "Release",
    "Round",
    "Scale",
    "ScaledDefense",
    "Setting",
    "Stated",
    "Strict",
    "Target",
    "ThreatModel",
    "Tracking",
    "Transcript",
    "View",
    "arrived",
    "batch_releases",
    "broadcast",
    "clip",
    "clip_weights",
    "clipped_whole",
    "column_stochastic",
    "does_not_vary",
    "doubly_stochastic",
    "from_server",
    "gaussian_rounds",
    "gradient_on_link",
    "in_flight",
    "is_symmetric",
    "known_rounds",
    "mixed",
    "norms",
    "of_acting",
    "refuse_unless_one_is_given",
    "releases",
    "start_and_step",
    "step_seen",
    "stepping",
    "steps_of",
    "undirected",
    "unicast",
]

if not TYPE_CHECKING:  # names of before: a type checker is to miss them
    __getattr__ = renamed(
        __name__,
        {
            "Capture": "Messages",
            "Derived": "ObservedGradient",
            "Moves": "L1Moves",
            "Sent": "Message",
            "of_each_record": "moved_by_record",
            "refuse_unless_column_stochastic": "column_stochastic",
            "refuse_unless_doubly_stochastic": "doubly_stochastic",
            "refuse_unless_symmetric": "undirected",
            "replayed": "gaussian_rounds",
        },
    )
