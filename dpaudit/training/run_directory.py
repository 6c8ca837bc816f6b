"""What a run leaves on disk, without pickle and never half-written, and where --resume starts."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from dpaudit.defense.transcript import Capture, Sent, Transcript
from dpaudit.errors import RunError

_SENT = ("payload", "senders", "receivers", "rows", "readers")


class RunDirectory:
    """One run's folder: config.toml, transcript/, findings/, artifacts/, audit.json, report.html.

    Every file is written beside its place and then renamed, so an interrupted or killed run leaves
    whole files only.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def start(self, config_text: str, fingerprint: Mapping[str, Any], resume: bool) -> None:
        """Claim the folder for one config.

        Raises:
            RunError: it cannot be written, or holds another run, or ``resume`` is asked for and
                there is nothing to resume, or the config differs from the one that began it.
        """
        begun = self.path / "run.json"
        if resume:
            if not begun.exists():
                raise RunError(f"{self.path}: nothing to resume: no run.json in it")
            if self.read_json("run.json") != json.loads(json.dumps(fingerprint)):
                raise RunError(
                    f"{self.path}: cannot resume: config, seed, device or data differ from the run "
                    "that is in it; give another --out, or run without --resume"
                )
            return
        if self.path.exists() and any(self.path.iterdir()):
            if not begun.exists():
                raise RunError(f"{self.path}: not empty, and not a run of dpaudit; give --out")
            with _writing(self.path):
                for name in ("transcript", "checkpoints", "findings", "artifacts"):
                    shutil.rmtree(self.path / name, ignore_errors=True)
                for name in ("audit.json", "report.html", "progress.json"):
                    (self.path / name).unlink(missing_ok=True)
        self.write_text("config.toml", config_text)
        self.write_json("run.json", fingerprint)

    def write_bytes(self, name: str, content: bytes) -> None:
        """Write a file whole or not at all. Raises RunError (full disk, no permission)."""
        target = self.path / name
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        with _writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                partial.write_bytes(content)
                partial.replace(target)
            finally:
                partial.unlink(missing_ok=True)

    def write_text(self, name: str, content: str) -> None:
        self.write_bytes(name, content.encode())

    def write_json(self, name: str, content: Any) -> None:
        self.write_text(name, json.dumps(content, indent=2) + "\n")

    def read_json(self, name: str) -> Any:
        """Raises RunError if the file is missing or damaged."""
        try:
            return json.loads((self.path / name).read_text(encoding="utf-8"))
        except OSError as error:
            raise RunError(f"{self.path / name}: {error.strerror}") from None
        except ValueError:
            raise RunError(f"{self.path / name}: damaged: not valid JSON") from None

    def has(self, name: str) -> bool:
        return (self.path / name).exists()

    def write_tensors(self, name: str, tensors: Mapping[str, Tensor], note: str = "") -> None:
        """A safetensors file, with a text beside the tensors."""
        flat = {  # copies: safetensors refuses two names for one memory
            key: tensor.detach().to("cpu", copy=True).contiguous()
            for key, tensor in tensors.items()
        }
        self.write_bytes(name, save(flat, {"note": note}))

    def read_tensors(self, name: str, device: torch.device) -> tuple[dict[str, Tensor], str]:
        """Tensors and text of a safetensors file. Raises RunError if missing or damaged."""
        path = self.path / name
        try:
            with safetensors.safe_open(path, "pt") as file:
                note = (file.metadata() or {}).get("note", "")
            return load_file(path, device=str(device)), note
        except (OSError, safetensors.SafetensorError) as error:
            raise RunError(f"{path}: missing or damaged: {error}") from None

    def write_capture(
        self, world: str, round: int, batch_size: int | None, capture: Capture
    ) -> None:
        """One recorded round; ``batch_size`` None is the batch size of training."""
        tensors = {
            f"{name}/{field}": tensor
            for name, sent in capture.items()
            for field in _SENT
            if (tensor := getattr(sent, field)) is not None
        }
        self.write_tensors(_capture_name(world, round, batch_size), tensors)

    def read_capture(
        self, world: str, round: int, batch_size: int | None, device: torch.device
    ) -> Capture:
        """The inverse of ``write_capture``."""
        tensors, _ = self.read_tensors(_capture_name(world, round, batch_size), device)
        names = dict.fromkeys(key.rpartition("/")[0] for key in tensors)
        return {
            name: Sent(
                payload=tensors[f"{name}/payload"],
                senders=tensors[f"{name}/senders"],
                receivers=tensors[f"{name}/receivers"],
                rows=tensors[f"{name}/rows"],
                readers=tensors.get(f"{name}/readers"),
            )
            for name in names
        }

    def has_capture(
        self, world: str, round: int, batch_size: int | None, names: frozenset[str]
    ) -> bool:
        """Whether these messages of a round were recorded."""
        path = self.path / _capture_name(world, round, batch_size)
        if not path.exists():
            return False
        with safetensors.safe_open(path, "pt") as file:
            return {f"{name}/payload" for name in names} <= set(file.keys())

    def forget(self, pattern: str) -> None:
        """Delete the files that match, because they are about to be made anew."""
        with _writing(self.path):
            for path in self.path.glob(pattern):
                path.unlink()

    def transcript(self, world: str, device: torch.device) -> Transcript:
        """The recorded rounds of one world, each read when it is asked for."""
        return Transcript(_Stored(self, world, device))


class _Stored(Mapping[int, Capture]):
    """Captures of the training batch size, by round, on disk."""

    def __init__(self, run: RunDirectory, world: str, device: torch.device) -> None:
        self._run, self._world, self._device = run, world, device
        files = sorted((run.path / "transcript" / world).glob("round-[0-9]*.safetensors"))
        self._rounds = [int(f.stem.split("-")[1]) for f in files if "batch" not in f.stem]

    def __getitem__(self, round: int) -> Capture:
        if round not in self._rounds:
            raise KeyError(round)
        return self._run.read_capture(self._world, round, None, self._device)

    def __iter__(self) -> Iterator[int]:
        return iter(self._rounds)

    def __len__(self) -> int:
        return len(self._rounds)


def _capture_name(world: str, round: int, batch_size: int | None) -> str:
    batch = "" if batch_size is None else f"-batch-{batch_size}"
    return f"transcript/{world}/round-{round:06d}{batch}.safetensors"


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(f"{path}: cannot write: {error.strerror or error}") from None
