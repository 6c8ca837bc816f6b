"""What a run leaves on disk, without pickle and never half-written, and where --resume starts."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from dpaudit.defense.transcript import Capture, Sent, Transcript
from dpaudit.errors import RunError

from .run_lock import LOCK, Mark, locked, mark_of

_PARTIAL = ".partial"  # ends the names of files that are being written; a killed run leaves them
_SENT = ("payload", "senders", "receivers", "rows", "readers")


class RunDirectory:
    """One run's folder: config.toml, transcript/, findings/, artifacts/, audit.json, report.html.

    Every file is written beside its place and then renamed, so an interrupted or killed run leaves
    whole files only. One that is ``held`` has no other writer, and is this very folder: once it is
    moved, replaced or emptied, nothing is read or written any more, here or where it went.
    """

    def __init__(self, path: Path, mark: Mark | None = None) -> None:
        self.path, self._mark = path, mark

    @contextmanager
    def held(self) -> Iterator["RunDirectory"]:
        """The folder for this process, and those that are handed it, until the block ends.

        Raises:
            RunError: another process has it, or it cannot be written.
        """
        with locked(self.path) as mark:
            run = RunDirectory(self.path, mark)
            run.forget(f"**/.*{_PARTIAL}")
            yield run

    @contextmanager
    def begun(
        self, config_text: str, fingerprint: Mapping[str, Any], resume: bool
    ) -> Iterator["RunDirectory"]:
        """The folder, held, for a run of one config.

        Raises:
            RunError: it cannot be written, is in use or holds another run, or ``resume`` is asked
                for and there is nothing to resume, or the config differs from the one that began.
        """
        self._refuse_if_foreign(resume)
        with self.held() as run:
            if resume:
                run._refuse_another(fingerprint)
            else:
                run._clear()
                run.write_text("config.toml", config_text)
                run.write_json("run.json", fingerprint)
            yield run

    def _refuse_if_foreign(self, resume: bool) -> None:
        if resume and not self.has("run.json"):
            raise RunError(f"{self.path}: nothing to resume: no run.json in it")
        ours = self.has("run.json") or self.has(LOCK)
        with _writing(self.path):
            if not ours and self.path.exists() and any(self.path.iterdir()):
                raise RunError(f"{self.path}: not empty, and not a run of dpaudit; give --out")

    def _refuse_another(self, fingerprint: Mapping[str, Any]) -> None:
        if self.read_json("run.json") != json.loads(json.dumps(fingerprint)):
            raise RunError(
                f"{self.path}: cannot resume: config, seed, device or data differ from the run "
                "that is in it; give another --out, or run without --resume"
            )

    def _clear(self) -> None:
        with _writing(self.path):
            for name in ("run.json", "audit.json", "report.html", "progress.json"):
                (self.path / name).unlink(missing_ok=True)
            for name in ("transcript", "checkpoints", "findings", "artifacts"):
                if self.has(name):
                    shutil.rmtree(self.path / name)

    def _at(self, name: str) -> Path:
        """Where a file is. Raises RunError once this is no longer the folder that is held."""
        if self._mark is not None and mark_of(self.path) != self._mark:
            raise RunError(
                f"{self.path}: moved, replaced or emptied while the run was under way; nothing "
                "more was written: run it again"
            )
        return self.path / name

    def write_bytes(self, name: str, content: bytes) -> None:
        """Write a file whole or not at all. Raises RunError (full disk, no permission)."""
        target = self._at(name)
        partial = target.with_name(f".{target.name}.{os.getpid()}{_PARTIAL}")
        with _writing(target):
            self._make_folders(target)
            try:
                with partial.open("wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                self._at(name)
                partial.replace(target)
            finally:
                with suppress(OSError):
                    partial.unlink(missing_ok=True)

    def _make_folders(self, target: Path) -> None:
        """Those between the run's folder and a file in it; never that folder, once it is held."""
        if self._mark is None:
            self.path.mkdir(parents=True, exist_ok=True)
        for folder in reversed(target.relative_to(self.path).parents[:-1]):
            (self.path / folder).mkdir(exist_ok=True)

    def write_text(self, name: str, content: str) -> None:
        self.write_bytes(name, content.encode())

    def write_json(self, name: str, content: Any) -> None:
        self.write_text(name, json.dumps(content, indent=2) + "\n")

    def read_json(self, name: str) -> Any:
        """Raises RunError if the file is missing or damaged."""
        try:
            return json.loads(self._at(name).read_text(encoding="utf-8"))
        except OSError as error:
            raise RunError(f"{self.path / name}: {error.strerror}") from None
        except ValueError:
            raise RunError(f"{self.path / name}: damaged: not valid JSON") from None

    def has(self, name: str) -> bool:
        return self._at(name).exists()

    def write_tensors(self, name: str, tensors: Mapping[str, Tensor], note: str = "") -> None:
        """A safetensors file, with a text beside the tensors."""
        flat = {  # copies: safetensors refuses two names for one memory
            key: tensor.detach().to("cpu", copy=True).contiguous()
            for key, tensor in tensors.items()
        }
        self.write_bytes(name, save(flat, {"note": note}))

    def read_tensors(self, name: str, device: torch.device) -> tuple[dict[str, Tensor], str]:
        """Tensors and text of a safetensors file. Raises RunError if missing or damaged."""
        path = self._at(name)
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
        path = self._at(_capture_name(world, round, batch_size))
        if not path.exists():
            return False
        with safetensors.safe_open(path, "pt") as file:
            return {f"{name}/payload" for name in names} <= set(file.keys())

    def forget(self, pattern: str) -> None:
        """Delete the files that match, because they are about to be made anew."""
        with _writing(self.path):
            for path in self._at("").glob(pattern):
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
