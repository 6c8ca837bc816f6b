"""`dpaudit doctor`: what is installed, what is missing for what, how fast the machine is."""

import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from typing import get_args

from packaging.requirements import Requirement

from dpaudit.memory import available, size_text
from dpaudit.registry import PluginFamily
from dpaudit.text import duration
from dpaudit.version import __version__

from .catalogue import catalogue

# The extras of users, and what each is for; the others are for work on dpaudit itself.
EXTRAS = {
    "transformers": "models of transformers, and adapters of peft",
    "fast": "large mutual-information audits: a compiled neighbour search",
    "paillier": "the defense paillier-consensus, whose messages are encrypted",
    "parquet": "a benchmark's leaderboard as leaderboard.parquet",
    "whisper": "the defense whisper, whose noise solves a semidefinite program",
    "ray": "dpaudit benchmark --backend ray",
    "zmq": "programs that send by ZeroMQ",
}
DIGITS = {
    "data": {"name": "digits", "n_agents": 10, "partition": {"kind": "dirichlet", "alpha": 1.0}},
    "graph": {"name": "bipartite"},
    "model": {"name": "lenet"},
    "defense": {"name": "dpdl", "n_rounds": 30, "batch_size": 16, "epsilon": 0.5, "delta": 1e-5},
}  # settings of examples/dpdl-digits.toml
TRAININGS = 38  # trainings of one world that take as long on one core as that audit: 1.1 s and 42 s


def lines() -> Iterator[str]:
    """All of it, line by line; the last one takes a few seconds of computing."""
    import torch

    cores, free = os.cpu_count() or 1, available()
    memory = "unknown memory" if free is None else f"{size_text(free)} of memory free"
    yield f"dpaudit {__version__}, Python {platform.python_version()}, torch {torch.__version__}"
    yield f"machine: {cores} core{'s' * (cores > 1)}, {memory}"
    if torch.cuda.is_available():
        yield f"device: cpu, or --device cuda: {torch.cuda.get_device_name()}"
    else:
        yield "device: cpu; this torch sees no CUDA device"
    for extra, purpose in EXTRAS.items():
        lacking = missing(extra)
        yield f"extra {extra}: " + (
            f'missing: pip install "dpaudit[{extra}]", for {purpose}' if lacking else "installed"
        )
    for family in get_args(PluginFamily):
        if family in ("defenses", "attacks"):
            found = catalogue(family)
            yield f"{family}: {len(found.entries)}"
            yield from (f"warning: {problem}" for problem in found.problems)
    yield f"make audit: about {duration(seconds_of_the_digits(cores))} on {cores} idle cores"


def missing(extra: str) -> list[str]:
    """The packages of an extra of dpaudit that are not installed here."""
    needed = [Requirement(line) for line in requires("dpaudit") or ()]
    chosen = [one for one in needed if one.marker and one.marker.evaluate({"extra": extra})]
    return [one.name for one in chosen if not _is_installed(one)]


def _is_installed(requirement: Requirement) -> bool:
    try:
        return requirement.specifier.contains(version(requirement.name), prereleases=True)
    except PackageNotFoundError:
        return False


def seconds_of_the_digits(cores: int) -> float:
    """How long the audit of ``make audit`` takes here, by one measured round of its training."""
    from dpaudit.files.config import AuditConfig
    from dpaudit.pipeline.costs import estimate_costs
    from dpaudit.pipeline.run import Runtime, prepare

    prepared = prepare(AuditConfig.from_dict(DIGITS), Runtime(cores=cores))
    training = estimate_costs(prepared, None, timed=True).training[0].seconds
    assert training is not None  # a defense of dpaudit can be played
    return TRAININGS * training / min(cores, 2)
