"""Plays recorded rounds of a run again, from its seed, and compares every message.

A run directory may come from anyone, so nothing that it names is imported but what is installed
here, outside of it: no class by its module, no program.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpaudit.defense.contract import Defense
from dpaudit.defense.transcript import Messages, tensors_of
from dpaudit.errors import RunError
from dpaudit.files.config import AuditConfig
from dpaudit.files.result import AuditResult
from dpaudit.progress import OnStep, silent
from dpaudit.registry import PluginFamily, installed
from dpaudit.training.run_directory import RunDirectory
from dpaudit.training.train import play_round
from dpaudit.verify.figures import Flaw

from .jobs import WORLDS, Prepared
from .provenance import code_of, provenance_of
from .run import Runtime, prepare
from .workers import one_thread

NO_ROUND = (
    "no round was recorded; rounds are recorded for attacks that read them, such as "
    "gradient-inversion"
)
ROUNDING = 1e-3  # relative to a message's largest number, between platforms or versions


def replay(
    out: Path, result: AuditResult, count: int, runtime: Runtime, on_step: OnStep = silent
) -> list[Flaw]:
    """What differs in rounds that are played again: of each world ``count`` of those recorded.

    They are spread over the run, the last one among them. Messages are compared bit for bit where
    code, versions, platform and device are those of the run, else within rounding.

    Raises:
        DpauditError: it is no run of a trained defense, what it names is not installed here, or its
            data are not there.
    """
    run = RunDirectory(out)
    recorded = run.recorded()
    config = _config(out, recorded)
    if config.model_dump(mode="json") != result.config:
        return [Flaw("run.json", "its config is not that of audit.json", True)]
    prepared = prepare(config, runtime)
    if prepared.learned.fingerprint != result.provenance.data_fingerprint:
        return [Flaw("transcript", "the data here are not those of the run", False)]
    if not any(run.transcript(world, runtime.device).rounds for world in WORLDS):
        return [Flaw("transcript", NO_ROUND, False)]
    exact = _is_same(prepared, result, recorded, runtime)
    found: list[Flaw] = []
    with one_thread():
        for world in WORLDS:
            found += _differences(prepared, run, world, count, exact, on_step)
    return found


def _config(out: Path, recorded: Any) -> AuditConfig:
    """The config that run.json holds, if all that it names is installed here."""
    config = recorded.get("config") if isinstance(recorded, dict) else None
    if not isinstance(config, dict) or "program" in config:
        what = "damaged: no config in it" if config is None else "of a captured program"
        raise RunError(
            "DPA080",
            f"{out / 'run.json'}: {what}; --replay plays the rounds of defenses that are "
            "installed here",
            "check the result without --replay",
        )
    asked: list[tuple[PluginFamily, Any]] = [("defenses", config.get("defense"))]
    asked += [("attacks", attack) for attack in config.get("attack") or ()]
    for family, plugin in asked:
        name = plugin.get("name") if isinstance(plugin, dict) else plugin
        entry = installed(family).get(name) if isinstance(name, str) else None
        place = None if entry is None or entry.dist is None else entry.dist.locate_file("")
        if place is None or Path(str(place)).resolve().is_relative_to(out.resolve()):
            raise RunError(
                "DPA080",
                f"{out / 'run.json'}: {family[:-1]} {name!r} is not installed here, and no code "
                "that a run directory names is run",
                "install the package that the run was made with, if you trust it",
            )
    return AuditConfig.from_dict(config)


def _is_same(
    prepared: Prepared, result: AuditResult, recorded: Mapping[str, Any], runtime: Runtime
) -> bool:
    """Whether code, versions, platform and device are those of the run."""
    learned, of_run = prepared.learned, result.provenance
    here = provenance_of(learned.name, learned.fingerprint, of_run.seed, runtime.device)
    names = ("dpaudit", "python", "packages", "platform", "device")
    code = code_of(type(prepared.defense), *map(type, prepared.attacks))
    alike = all(getattr(here, name) == getattr(of_run, name) for name in names)
    return alike and recorded.get("code") == code


def _differences(
    prepared: Prepared, run: RunDirectory, world: str, count: int, exact: bool, on_step: OnStep
) -> Iterator[Flaw]:
    defense, learned = prepared.defenses[world], prepared.learned
    streams, setting = prepared.streams, prepared.setting
    chosen = _spread(sorted(run.transcript(world, streams.device).rounds), count)
    state = defense.start(learned.problem.initial(streams), setting)
    for k in range(1, max(chosen, default=0) + 1):
        sizes: Sequence[int | None] = _sizes(run, world, k) if k in chosen else ()
        for size in (*sizes, None):
            how = _how(defense, size)
            played = play_round(defense, learned.problem, setting, streams, state, k, *how)
            if k in chosen:
                yield from _compared(run, world, k, size, played.sent, exact)
        state = played.state
        on_step(k, max(chosen))


def _how(defense: Defense, size: int | None) -> tuple[int, str]:
    """Batch size and drawing of a recorded round; None: those of training."""
    return (defense.batch_size, defense.drawing) if size is None else (size, "fixed")


def _spread(rounds: Sequence[int], count: int) -> set[int]:
    """So many of them, evenly apart, with the last."""
    places = np.linspace(len(rounds) - 1, 0, min(count, len(rounds))).round().astype(int)
    return {rounds[i] for i in places.tolist()}


def _sizes(run: RunDirectory, world: str, k: int) -> list[int]:
    """The batch sizes at which a round was recorded beside that of training."""
    files = (run.path / "transcript" / world).glob(f"round-{k:06d}-batch-*.safetensors")
    sizes = (file.stem.rpartition("-")[2] for file in files)
    return sorted(int(size) for size in sizes if size.isdecimal())


def _compared(
    run: RunDirectory, world: str, k: int, size: int | None, sent: Messages, exact: bool
) -> Iterator[Flaw]:
    where = f"transcript/{world}, round {k}" + ("" if size is None else f", batch size {size}")
    try:
        recorded = tensors_of(run.read_messages(world, k, size, torch.device("cpu")))
    except RunError as error:
        yield Flaw(where, str(error).partition(": ")[2], True)
        return
    played = {key: tensor.cpu() for key, tensor in tensors_of(sent).items()}
    for key, tensor in recorded.items():
        other = played.get(key)
        if other is None or other.shape != tensor.shape or other.dtype != tensor.dtype:
            yield Flaw(where, f"no such message is sent: {key}", True)
            continue
        gap = _gap(tensor, other)
        if gap > (0.0 if exact else ROUNDING):
            how = "bit for bit" if exact else f"to {ROUNDING:g}"
            what = f"{key} is not what is sent again, {how}: they differ by {gap:.3g}"
            yield Flaw(where, f"{what} of the largest number", True)


def _gap(recorded: Tensor, played: Tensor) -> float:
    """The largest difference over the largest number; 0 if all bits are equal."""
    if torch.equal(recorded, played):
        return 0.0
    one, other = recorded.double(), played.double()
    gap = float((one - other).abs().max() / other.abs().max().clamp(min=1e-300))
    return gap if gap == gap else float("inf")
