"""What a run leaves on disk, without pickle and never half-written, and where --resume starts."""

import json
import os
import re
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
from dpaudit.files.documents import read_json, reason

from .run_lock import LOCK, Mark, locked, mark_of

_PARTIAL = ".partial"  # ends the names of files that are being written; a killed run leaves them
_SENT = ("payload", "senders", "receivers", "rows", "readers")
_ROUND = re.compile(r"round-(\d{6,18})")  # of a transcript, at the batch size of training


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
        with _writing(self.path):
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
        if "\0" in str(self.path):
            raise ValueError("embedded null byte")
        if resume and not self.has("run.json"):
            raise RunError(f"{self.path}: nothing to resume: no run.json in it")
        ours = self.has("run.json") or self.has(LOCK)
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
            return read_json(self._at(name))
        except OSError as error:
            raise RunError(f"{self.path / name}: {reason(error)}") from None
        except ValueError as error:
            raise RunError(
                f"{self.path / name}: damaged: not valid JSON: {reason(error)}"
            ) from None

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
        with _reading(path):
            with safetensors.safe_open(path, "pt") as file:
                note = (file.metadata() or {}).get("note", "")
            return load_file(path, device=str(device)), note

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
        """The inverse of ``write_capture``. Raises RunError if missing or damaged."""
        file = _capture_name(world, round, batch_size)
        tensors, _ = self.read_tensors(file, device)
        names = dict.fromkeys(key.rpartition("/")[0] for key in tensors)
        with _reading(self.path / file):
            return {name: _sent(tensors, name) for name in names}

    def has_capture(
        self, world: str, round: int, batch_size: int | None, names: frozenset[str]
    ) -> bool:
        """Whether these messages of a round were recorded."""
        path = self._at(_capture_name(world, round, batch_size))
        if not path.exists():
            return False
        with _reading(path), safetensors.safe_open(path, "pt") as file:
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
        self._rounds = [int(found[1]) for f in files if (found := _ROUND.fullmatch(f.stem))]

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


def _sent(tensors: Mapping[str, Tensor], name: str) -> Sent:
    """One message of a capture. Raises ValueError if its tensors do not fit one another."""
    payload, *edges = (tensors.get(f"{name}/{field}") for field in _SENT)
    if payload is None or any(edge is None for edge in edges[:3]):
        raise ValueError(f'message "{name}" lacks one of {", ".join(_SENT[:4])}')
    given = [edge for edge in edges if edge is not None]
    whole = all(e.dtype == torch.int64 and e.shape == given[0].shape[:1] for e in given)
    if not whole or not payload.is_floating_point() or payload.ndim < 2:
        raise ValueError(f'message "{name}" has tensors of other types or shapes')
    senders, receivers, rows = given[:3]
    if any(len(e) and int(e.min()) < 0 for e in given):
        raise ValueError(f'message "{name}" has a negative index')
    if len(rows) and int(rows.max()) >= payload.shape[-2]:
        raise ValueError(f'message "{name}" has an edge without a row')
    return Sent(payload, senders, receivers, rows, edges[3])


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Whatever is wrong with a file of tensors is one line."""
    try:
        if path.exists() and not path.is_file():
            raise ValueError("not a regular file")
        yield
    except (OSError, ValueError, TypeError, safetensors.SafetensorError) as error:
        what = " ".join(str(error).split())
        raise RunError(f"{path}: missing or damaged: {what}") from None


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot write: {reason(error)}") from None
