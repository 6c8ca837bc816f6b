"""What a run leaves on disk, without pickle and never half-written, and where --resume starts."""

import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import torch

from dpaudit.defense.transcript import Messages, Transcript, kind_of, messages_of, tensors_of
from dpaudit.errors import RunError
from dpaudit.files.atomic_files import writing
from dpaudit.files.certificate import NAME as CERTIFICATE
from dpaudit.files.documents import read_json, reason
from dpaudit.inputs import recorder
from dpaudit.inputs.inputs import LOG as INPUTS
from dpaudit.inputs.inputs import Inputs
from dpaudit.progress import OnProgress

from .locked_folder import LOCK, Folder
from .seals import bound_to, sealed, sealed_text, unsealed, unsealed_text

NAMED = 5  # things that differ from a run that is to go on
OF_FILES = {  # what is hashed as code
    "code.dpaudit": "the code of dpaudit",
    "code.plug-ins": "the code of a plug-in",
    "code.program": "the Python files in the program's folder",
    "code.weights": "the weights",
}

_ROUND = re.compile(r"round-(\d{6,18})")  # a round of a transcript, at the batch size of training


class RunDirectory(Folder):
    """One run's folder: config.toml, transcript/, findings/, artifacts/, audit.json, report.html.

    One that is ``held`` has no other writer. What later stages rest on is sealed, and believed
    only if it is as the run wrote it, for the same config, seed, data, device and code.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.binding = ""  # hash of all that decides the run

    @contextmanager
    def begun(
        self,
        config_text: str,
        fingerprint: Mapping[str, Any],
        resume: bool,
        say: Callable[[str], None] | None = None,
    ) -> Iterator["RunDirectory"]:
        """The folder, held, for a run of one config, in the place of the run that is in it.

        Args:
            say: called with a line if that run is of another config.

        Raises:
            RunError: it cannot be written, is in use or holds another run, or ``resume`` is asked
                for and there is nothing to resume, or the config differs from the one that began.
        """
        with writing(self.path):
            self._refuse_if_foreign(resume)
        with self.held() as run:
            if not resume:
                if say is not None and (line := run._replaced(fingerprint)):
                    say(line)
                run._clear()
                run.write_text("config.toml", config_text)
                run.write_json("run.json", fingerprint)
            recorded, doubt = run.recorded(), None
            if resume:
                differing = [*_differing(recorded, json.loads(json.dumps(fingerprint)))]
                if differing:
                    doubt = f"not as in the run that is in it: {', '.join(differing[:NAMED])}"
                else:
                    doubt = Inputs.of_log(self.path).doubt()
            if doubt is not None:
                remedy = "give another --out, or run without --resume"
                raise RunError("DPA017", f"{self.path}: cannot resume: {doubt}", remedy)
            recorder.write_to(str(self.path / INPUTS), [str(self.path)])
            yield run

    def recorded(self) -> Any:
        """What decided the run that is in here; it is bound to that. Raises RunError."""
        fingerprint = self.read_json("run.json")
        self.binding = bound_to(fingerprint)
        return fingerprint

    def _replaced(self, fingerprint: Mapping[str, Any]) -> str:
        """A line on a run of another config that a new one takes the place of; "" for none."""
        if not self.has("run.json"):
            return ""
        what = "audit" if self.has("audit.json") else "unfinished audit"
        try:
            before = self.read_json("run.json").get("config")
        except RunError:
            return f"{self.path}: replaces the {what} in it, whose run.json is damaged"
        now = json.loads(json.dumps(fingerprint.get("config")))
        keys = [*_differing(before, now)]
        more = f" and {len(keys) - NAMED} more" if len(keys) > NAMED else ""
        named = f"{', '.join(keys[:NAMED])}{more}"
        return f"{self.path}: replaces the {what} in it, of another config: {named}" if keys else ""

    def _refuse_if_foreign(self, resume: bool) -> None:
        if "\0" in str(self.path):
            raise ValueError("embedded null byte")
        if resume and not self.has("run.json"):
            raise RunError("DPA017", f"{self.path}: nothing to resume: no run.json in it")
        ours = self.has("run.json") or self.has(LOCK)
        if not ours and self.path.exists() and any(self.path.iterdir()):
            raise RunError("DPA015", f"{self.path}: not empty, and not a run of dpaudit")

    def _clear(self) -> None:
        with writing(self.path):
            files = "run.json", "audit.json", "report.html", CERTIFICATE, "progress.json", INPUTS
            for name in files:
                (self.path / name).unlink(missing_ok=True)
            for name in ("transcript", "checkpoints", "findings", "artifacts"):
                if self.has(name):
                    shutil.rmtree(self.path / name)

    def write_text(self, name: str, content: str) -> None:
        self.write(name, content.encode())

    def write_json(self, name: str, content: Any) -> None:
        self.write_text(name, json.dumps(content, indent=2) + "\n")

    def noted(self, on_progress: OnProgress) -> OnProgress:
        """The same, with the latest report of each job in progress.json, at most every second."""
        jobs: dict[str, list[int]] = {}
        written, one_at_a_time = time.monotonic(), threading.Lock()  # reports come of any thread

        def note(what: str, done: int, total: int) -> None:
            nonlocal written
            with one_at_a_time:
                jobs[what] = [done, total]
                if (total or done) and (time.monotonic() - written > 1 or done == total):
                    self.write_json("progress.json", jobs)
                    written = time.monotonic()
            on_progress(what, done, total)

        return note

    def read_json(self, name: str) -> dict[str, Any]:
        """Raises RunError if the file is missing or damaged."""
        path = self.at(name)
        try:
            return read_json(path)
        except OSError as error:
            raise RunError("DPA007", f"{path}: {reason(error)}") from None
        except ValueError as error:
            raise RunError("DPA020", f"{path}: damaged: {reason(error)}") from None

    def has(self, name: str) -> bool:
        return self.at(name).exists()

    def write_result(self, name: str, content: Any, binding: str) -> None:
        """A finished result: JSON, of a computation that ``binding`` decides."""
        self.write_text(name, sealed_text(content, f"{binding} {name}"))

    def read_result(self, name: str, binding: str) -> Any:
        """What was written for the same binding; None if there is nothing, or something else."""
        if not self.has(name):
            return None
        return unsealed_text(self.read(name), f"{binding} {name}")

    def write_messages(
        self, world: str, round: int, batch_size: int | None, messages: Messages
    ) -> None:
        """One recorded round; ``batch_size`` None is the batch size of training."""
        name = _capture_name(world, round, batch_size)
        self.write(name, sealed(tensors_of(messages), "", f"{self.binding} {name}"))

    def read_messages(
        self, world: str, round: int, batch_size: int | None, device: torch.device
    ) -> Messages:
        """The inverse of ``write_messages``. Raises RunError if it is missing or was changed."""
        name = _capture_name(world, round, batch_size)
        found = unsealed(self.read(name), f"{self.binding} {name}")
        if found is None:
            raise RunError(
                "DPA020",
                f"{self.path / name}: missing or damaged: it is not what the run wrote",
                "run dpaudit audit again",
            )
        return messages_of({key: tensor.to(device) for key, tensor in found[0].items()})

    def has_messages(
        self, world: str, round: int, batch_size: int | None, names: frozenset[str]
    ) -> bool:
        """Whether these messages of a round were recorded. Raises RunError if that is damaged."""
        path = self.at(_capture_name(world, round, batch_size))
        if not path.exists():
            return False
        try:
            if not path.is_file():
                raise ValueError("not a regular file")
            with safetensors.safe_open(path, "pt") as file:
                held = {key.removesuffix("/payload") for key in file.keys()}  # noqa: SIM118
        except (OSError, ValueError, TypeError, safetensors.SafetensorError) as error:
            what = " ".join(str(error).split())
            raise RunError("DPA020", f"{path}: missing or damaged: {what}") from None
        return names <= held | {kind_of(name) for name in held}

    def transcript(self, world: str, device: torch.device) -> Transcript:
        """The recorded rounds of one world, each read when it is asked for."""
        return Transcript(_Stored(self, world, device))


class _Stored(Mapping[int, Messages]):
    """Captures of the training batch size, by round, on disk."""

    def __init__(self, run: RunDirectory, world: str, device: torch.device) -> None:
        self._run, self._world, self._device = run, world, device
        files = sorted((run.path / "transcript" / world).glob("round-[0-9]*.safetensors"))
        self._rounds = [int(found[1]) for f in files if (found := _ROUND.fullmatch(f.stem))]

    def __getitem__(self, round: int) -> Messages:
        if round not in self._rounds:
            raise KeyError(round)
        return self._run.read_messages(self._world, round, None, self._device)

    def __iter__(self) -> Iterator[int]:
        return iter(self._rounds)

    def __len__(self) -> int:
        return len(self._rounds)


def _capture_name(world: str, round: int, batch_size: int | None) -> str:
    batch = "" if batch_size is None else f"-batch-{batch_size}"
    return f"transcript/{world}/round-{round:06d}{batch}.safetensors"


def _differing(one: Any, other: Any, at: str = "") -> Iterator[str]:
    """Where two documents differ, such as ``config.claim[1].epsilon``."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in dict.fromkeys((*one, *other)):
            below = f"{at}.{key}" if at else key
            yield from _differing(one.get(key), other.get(key), below)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for i, pair in enumerate(zip(one, other, strict=True), start=1):
            yield from _differing(*pair, f"{at}[{i}]")
    elif one != other:
        yield OF_FILES.get(at, at)
