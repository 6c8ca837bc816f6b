"""What the tap and the hooks do in one process of a program that is recorded or audited.

All is written to a log as it happens, so that nothing is lost by os._exit. In a run of an audit,
draws of noise are replayed and one record differs. In a program of torch.distributed the agent is
the rank, and draws have the names of their lines. Uniform draws are those that
torch.distributions.Laplace makes its noise from, u on (-1, 1). They are kept as that noise,
t = -sign(u) log(1 - |u|).
"""

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from dpaudit.errors import DpauditError
from dpaudit.files.world import DONE, ERROR, PROCESS, RANKS, WORLD, Noise, World, draw_key

from . import changes

REFUSED = 2  # exit status
NEAR = 1e-4  # a bound of a uniform draw is -1 or 1, but for what single precision leaves out


class TapPlayer:
    """Records what one process does and, in a run of an audit, changes it as the world says.

    Args:
        log: a ``Log`` of dpaudit.capture.inside.
        world: None where a program is recorded and not audited.
    """

    def __init__(self, log: Any, world: World | None = None) -> None:
        self._log, self._world = log, world
        self._tape = None if world is None else changes.NoiseTape(world)

    def batch(self, agent: int, records: Any) -> Any:
        """The records of an agent's next step."""
        if self._world is None:
            return records
        n = changes.n_records(records)
        with self._log.lock:
            number = self._log.count(("batch", agent)) + 1
            record = {"kind": "batch", "number": number, "agent": agent, "records": n}
            record["sequence"] = self._log.number()
            if self._world.tape is None:
                record["digests"] = changes.digests_of(records)
            for change in self._world.changes:
                if (change.agent, change.batch) == (agent, number):
                    records = changes.changed(records, change.how, change.record)
            parts = changes.parts_of(records) if self._world.keeps_records else ()
            self._log.write(record, map(content_of, parts))
        return records

    def noise(self, agent: int, name: str, draw: Any, scale: float, family: Noise) -> Any:
        """A draw of noise, or what takes its place."""
        own = changes.as_noise(name, draw)
        with self._log.lock:
            about = self._log.begun("drawn", family, name, ("drawn", agent, name))
            about |= {"shape": tuple(own.shape), "dtype": _name(own.dtype), "rank": agent}
            if self._world is not None:
                return changes.like(self._replayed(about, agent, own, float(scale), family), draw)
            self._log.write({**about, "parameters": (0.0, float(scale))})
        return draw

    def send(self, source: int, destinations: tuple[int, ...], name: str, value: Any) -> None:
        """A message."""
        to = sorted(set(destinations) - {source})
        with self._log.lock:
            ends = {"source": source, "destinations": to, "ranks": sorted({source, *to})}
            link = {"group": "tap", "number": None, "tag": None}
            about = self._log.begun("sent", "tap", name, ("tap", name))
            self._log.write({**about, **link, **ends}, [content_of(changes.as_tensor(value))])
            self.sent(source)

    def sent(self, agent: int | None = None) -> None:
        """Count a message; a file says when an agent, or this rank, has sent all that is asked."""
        agent = _rank() if agent is None else agent
        if self._world is None or agent is None:
            return
        if self._log.count(("sent", agent)) + 1 == self._world.last.get(agent):
            (self._world.out / f"{DONE}{agent}").touch()
            if RANKS not in os.environ and self._world.is_over:
                os._exit(0)

    def is_noise(self, site: str) -> bool:
        """Whether an audit takes what a line draws for noise."""
        return self._world is not None and site in self._world.sites

    def drawn(self, record: dict[str, Any], result: Tensor, parameters: Sequence[Any]) -> None:
        """Replace a draw at a line of noise by that of this world."""
        site, operator, rank = record["site"], record["operator"], _rank()
        mean, factor, scale, family = 0.0, 1.0, 1.0, "gaussian"
        if rank is None:
            self.refuse(f"{site} draws noise before init_process_group: it is of no rank")
        if is_laplace(operator, parameters):
            u = result.detach().double()
            own, family = -u.sign() * torch.log1p(-u.abs()), "laplace"
        elif operator in ("normal_", "normal"):
            mean, std = parameters[:2]
            scale, factor = (std, 1.0) if isinstance(std, float | int) else (1.0, std)
            own = (result.detach() - mean) / factor
        else:
            self.refuse(
                f"{site} draws by {operator}{tuple(record['parameters'])}; expected of a line of "
                "noise a normal draw, or the uniform one on (-1, 1) of torch.distributions.Laplace"
            )
        try:
            value = self._replayed(record, rank, own, float(scale), family)  # type: ignore[arg-type]
        except DpauditError as error:
            self.refuse(str(error))
        if family == "laplace":
            u = -torch.expm1(-value.abs()).clamp(max=1 - torch.finfo(result.dtype).eps)
            value = -value.sign() * u
        with torch.no_grad():
            result.copy_(value * factor + mean)

    def loaded(self, batch: Any) -> Any:
        """What a data loader hands out; what is no batch of records is left alone."""
        rank = _rank()
        try:
            return batch if rank is None else self.batch(rank, batch)
        except DpauditError:
            return batch

    def refuse(self, why: str) -> NoReturn:
        """End the process, whatever the program catches."""
        assert self._world is not None
        (self._world.out / ERROR).write_text(why)
        os._exit(REFUSED)

    def _replayed(
        self, record: dict[str, Any], rank: int, own: Tensor, scale: float, family: Noise
    ) -> Tensor:
        assert self._tape is not None
        key = draw_key(rank, record["occurrence"], record["site"])
        value = self._tape.draw(key, own, scale, family)
        replayed = {"kind": "noise", "rank": rank, "operator": family, "parameters": (0.0, scale)}
        self._log.write({**record, **replayed}, [content_of(value)])
        return value


def is_laplace(operator: str, parameters: Sequence[float | None]) -> bool:
    """Whether a draw is the uniform one that torch.distributions.Laplace makes its noise from."""
    ends = [a or 0.0 for a in parameters]
    return operator == "uniform_" and abs(ends[0] + 1) < NEAR and abs(ends[1] - 1) < NEAR


def content_of(tensor: Tensor) -> tuple[str, tuple[int, ...], str, bytes]:
    """As the log takes it: name, shape, dtype and bytes."""
    held = tensor.detach().contiguous()
    data = held.reshape(-1).view(torch.uint8).numpy().tobytes()
    return "0", tuple(held.shape), _name(held.dtype), data


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _rank() -> int | None:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    return int(os.environ["RANK"]) if "RANK" in os.environ else None


_here: list[TapPlayer] = []


def begin(log: Any) -> TapPlayer:
    """Play the world of this process, from the seed that it wants."""
    world = World.model_validate_json(Path(os.environ[WORLD]).read_text())
    changes.seed_all(world.seed)
    _here[:] = [TapPlayer(log, world)]
    return _here[0]


def here() -> TapPlayer | None:
    """The player of this process; None in one that has not imported torch.

    A simulation has one process: what another one does would take the place of what that did.
    """
    if RANKS not in os.environ and os.environ[PROCESS] != str(os.getpid()):
        world = World.model_validate_json(Path(os.environ[WORLD]).read_text())
        os.kill(int(os.environ[PROCESS]), signal.SIGKILL)
        TapPlayer(None, world).refuse(
            "dpaudit.tap is called in a process that the program starts; expected a simulation in "
            "one process, or program.ranks, the number of processes that call it"
        )
    return _here[0] if _here else None
