"""dpaudit.audit: one audit from Python, on a caller's own objects if it brings them."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from dpaudit.data.datasets import Dataset
from dpaudit.data.records import IndexedRecords, from_records
from dpaudit.defense.contract import Defense
from dpaudit.errors import ConfigError, RunError
from dpaudit.files.config import AuditConfig, read_toml, with_fixed_model
from dpaudit.files.result import AuditResult
from dpaudit.memory import bytes_of
from dpaudit.pipeline.caller_objects import CallerObjects
from dpaudit.pipeline.requirements import torch_device
from dpaudit.pipeline.run import Runtime, run_audit
from dpaudit.progress import OnProgress, unreported

from .running import in_notebook, notebook_progress
from .step_function import Step, StepFunction, config_of, refuse_missing

_FROM_PYTHON = "# This audit was called from Python; its config is in audit.json.\n"


def audit(
    config: str | Path | Mapping[str, Any] | AuditConfig | Step,
    data: Dataset | tuple[Any, Any] | IndexedRecords | None = None,
    *,
    out: str | Path | None = None,
    defense: Defense | None = None,
    model: nn.Module | str | None = None,
    on_progress: OnProgress | None = None,
    device: str | torch.device = "cpu",
    data_root: str | Path | None = None,
    cores: int | None = None,
    max_memory: int | str | None = None,
    fix_model: bool = False,
    **settings: Any,
) -> AuditResult:
    """Audit the privacy claims of a config, or of one function: train, intercept, attack, judge.

    A caller's own objects take the place of what the config would name, whose tables can be left
    out. Those that no other process can import, as from a notebook, are audited on one core.

    Args:
        config: an audit.toml, its content, an AuditConfig, or a step (``StepFunction``).
        out: run directory for transcript, audit.json and report.html; None keeps nothing on disk.
        defense: in the place of ``[defense]``.
        data: a Dataset, or arrays (x, y): float [n, features] or [n, channels, height, width],
            uint8 images [n, height, width(, channels)]; integer or string labels [n]. Or a data set
            of PyTorch or Hugging Face: pairs or dictionaries by index.
        model: a network from records [b, ...] to logits [b, n_classes]; every agent starts as it.
        on_progress: called as ``on_progress(what, done, total)`` in this process, with a total of 0
            for what is ahead; None: a notebook shows a line below its cell, a script nothing.
        device: where to compute.
        data_root: folder of mnist, fashion-mnist and cifar10.
        cores: processes at most; None: one for each core.
        max_memory: of all processes together, in bytes or like "8GB"; None: what is free.
        fix_model: put a GroupNorm in the place of each BatchNorm; a note of the result says so.
        settings: of a function: ``n_rounds``, ``batch_size``, ``clip_norm``, ``noise_multiplier``,
            ``n_agents``, ``graph``, ``claim`` ``model`` by name, and other keys of an audit file.

    Raises DpauditError: config, objects or run directory do not allow it; a line for each problem.
    """
    content, text, path, step = _read(config, settings | _named(model))
    if data is not None and not isinstance(data, Dataset):
        data = from_records(data, seed=_whole("seed", content.get("seed", 0), 0))
    own = CallerObjects(_one(step, defense), data, _plain(model))
    checked = _checked(own.fill(content), text, path, own.defense, fix_model)
    cores = _whole("cores", cores or Runtime.cores, 1)
    runtime = Runtime(
        torch_device(device, f'device = "{device}"'),
        None if data_root is None else Path(data_root),
        cores=cores if own.travels else 1,
        max_memory=None if max_memory is None else bytes_of(str(max_memory), "max_memory"),
    )
    place = TemporaryDirectory(prefix="dpaudit-") if out is None else nullcontext(str(out))
    try:
        with place as folder, _reporting(on_progress) as told:
            at = Path(folder)
            return run_audit(checked, at, runtime, text, False, told, own, None, bool(out))
    except SystemExit as error:  # it would end the caller's script, with an exit code of its own
        said = f"no answer: code that is audited raised SystemExit({error})"
        raise RunError("DPA026", said) from error


def _one(step: Defense | None, defense: Defense | None) -> Defense | None:
    """Raises ConfigError: what is no defense, or one beside a function."""
    if defense is not None and (step is not None or not isinstance(defense, Defense)):
        said = "beside a function" if step is not None else _kind(defense)
        raise ConfigError("DPA005", f"defense: {said}; expected an object of a defense, or none")
    return step or defense


def _whole(name: str, number: Any, least: int) -> int:
    """Raises ConfigError: it is no whole number, or too small."""
    if not isinstance(number, int) or number < least:
        said = f"{name}: {number!r}; expected a whole number, {least} or more"
        raise ConfigError("DPA005", said)
    return number


def _named(model: nn.Module | str | None) -> dict[str, str]:
    return {"model": model} if isinstance(model, str) else {}


def _plain(model: nn.Module | str | None) -> nn.Module | None:
    """The network that ``torch.compile`` was given: it would compile each audit's calls anew.

    Raises ConfigError: it is no network.
    """
    if model is None or isinstance(model, str):
        return None
    plain: nn.Module = getattr(model, "_orig_mod", model)
    if not isinstance(plain, nn.Module):
        expected = "expected a torch.nn.Module, or the name of a network"
        help = f"give an object of it: {plain.__name__}(...)" if isinstance(plain, type) else ""
        raise ConfigError("DPA035", f"model: {_kind(plain)}; {expected}", help)
    return plain


def _kind(given: object) -> str:
    if isinstance(given, type):
        return f"the class {given.__name__}"
    return f"a {type(given).__name__}"


def _read(
    config: str | Path | Mapping[str, Any] | AuditConfig | Step, settings: Mapping[str, Any]
) -> tuple[dict[str, Any], str, Path | None, Defense | None]:
    """The content of a config, its text, the file that it comes from, and a function's defense."""
    if isinstance(config, Defense) or (isinstance(config, type) and issubclass(config, Defense)):
        name = getattr(config, "__name__", type(config).__name__)
        help = f"dpaudit.audit({{...}}, defense={name}(...)) takes an object of it"
        raise ConfigError("DPA005", f"{name} is a defense; expected a config before it", help)
    if callable(config):
        content, defense = config_of(config, settings)
        return content, _FROM_PYTHON, None, defense
    if settings:
        said = f"{next(iter(settings))}: this is an option of an audit of a function"
        raise ConfigError("DPA013", said, "write it into the config")
    if not isinstance(config, str | Path | Mapping | AuditConfig):
        expected = "expected a path, a dictionary, an AuditConfig or a function"
        raise ConfigError("DPA005", f"config: {expected}, got {type(config).__name__}")
    if isinstance(config, str | Path):
        path = Path(config)
        return *read_toml(path), path, None
    content = config.model_dump(mode="json") if isinstance(config, AuditConfig) else dict(config)
    return content, _FROM_PYTHON, None, None


def _checked(
    content: dict[str, Any], text: str, path: Path | None, defense: Defense | None, fix_model: bool
) -> AuditConfig:
    content = with_fixed_model(content, "fix_model") if fix_model else content
    if isinstance(defense, StepFunction):
        refuse_missing(content)
    if path is None:
        return AuditConfig.from_dict(content, defense)
    return AuditConfig.from_table(content, path, text, (), defense)


def _reporting(on_progress: OnProgress | None) -> AbstractContextManager[OnProgress]:
    """Report progress to the caller, below the cell of a notebook, or nowhere."""
    if on_progress is None and in_notebook():
        return notebook_progress()
    return nullcontext(on_progress or unreported)
