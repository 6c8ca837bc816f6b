"""Networks of a program by name, made as the program makes them, and files of their weights."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from dpaudit.errors import RunError
from dpaudit.files.captured_file import ProgramOptions
from dpaudit.source import NOT_SOURCE


def named_model(name: str, program: ProgramOptions, seed: int) -> nn.Module:
    """What "module:Class" makes when it is called, right after torch was seeded.

    The module is imported as the program would, with its arguments, and forgotten, so that
    another program's of the same name is not taken for it.

    Raises:
        RunError: it cannot be imported or called, or makes no network; or the network keeps state
            beside its parameters, as batch normalisation does.
    """
    module, _, attribute = name.partition(":")
    try:
        with _importing_from(program), torch.random.fork_rng(devices=[]):
            maker: Any = import_module(module)
            for part in attribute.split("."):
                maker = getattr(maker, part)
            torch.manual_seed(seed)
            made = maker()
    except (Exception, SystemExit) as error:  # whatever somebody's module does
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise RunError(
            "DPA042", f'model "{name}" cannot be made in {program.folder}: {said}'
        ) from None
    if not isinstance(made, nn.Module):
        raise RunError("DPA035", f'model "{name}" is of {type(made).__name__}; expected a network')
    if not list(made.parameters()):
        raise RunError("DPA035", f'model "{name}" has no parameters, and so no gradient')
    if buffers := [key for key, _ in made.named_buffers()]:
        raise RunError(
            "DPA036",
            f'model "{name}" keeps state beside its parameters ({buffers[0]}), which its gradients '
            "depend on and no message holds",
        )
    return made.float()


def n_classes_of(model: nn.Module, shape: tuple[int, ...]) -> int:
    """How many logits it makes of a record. Raises RunError if it takes none of this shape."""
    device = next(model.parameters()).device
    try:
        with torch.no_grad():
            return int(model(torch.zeros(2, *shape, device=device)).shape[-1])
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
        said = str(error).splitlines()[0]
        name = type(model).__name__
        raise RunError(
            "DPA034", f"{name} cannot take records of shape {list(shape)}: {said}"
        ) from None


def stored_weights(path: Path, model: nn.Module) -> Tensor:
    """[d] of a file of the model's state. Raises RunError where the two do not fit."""
    try:
        stored = load_file(path)
    except (OSError, SafetensorError) as error:
        raise RunError("DPA035", f"{path}: {' '.join(str(error).split())}") from None
    for name, parameter in model.named_parameters():
        if name not in stored or stored[name].shape != parameter.shape:
            found = list(stored[name].shape) if name in stored else "nothing"
            raise RunError(
                "DPA035", f"{path}: {name}: expected {list(parameter.shape)}, found {found}"
            )
    return torch.cat([stored[name].flatten().float() for name, _ in model.named_parameters()])


@contextmanager
def _importing_from(program: ProgramOptions) -> Iterator[None]:
    before, path, arguments = set(sys.modules), list(sys.path), list(sys.argv)
    command, folder = list(program.command), program.folder
    sys.path.insert(0, str(folder))
    sys.argv[:] = command[[part.endswith(".py") for part in command].index(True) :]
    try:
        yield
    finally:
        sys.path[:], sys.argv[:] = path, arguments
        for name in set(sys.modules) - before:
            path_of = Path(getattr(sys.modules[name], "__file__", None) or "/")
            if path_of.is_relative_to(folder) and not {*path_of.parts} & {*NOT_SOURCE}:
                del sys.modules[name]
