"""A world inside one process of a torch.distributed program, whose hooks call this.

All is written to the log of the hooks as it happens, so that nothing is lost by os._exit. The
agent is the rank. Draws are called by their lines; uniform ones are those of which
torch.distributions.Laplace makes its noise, u on (-1, 1), and are kept as that noise,
t = -sign(u) log(1 - |u|).
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from dpaudit.errors import DpauditError
from dpaudit.files.world import DONE, ERROR, WORLD, Noise, World, draw_key

from .changes import digests_of, in_world, n_records, parts_of
from .recorder import Log, Recorder, content_of, drawn_record
from .seeds import seed_all
from .tape import Tape, as_noise, like

REFUSED = 2  # exit status
NEAR = 1e-4  # a bound of a uniform draw is -1 or 1, but for what single precision leaves out


class RankPlayer:
    """What a process does of one world."""

    def __init__(self, world: World, log: Log) -> None:
        self.world, self._log = world, log
        self._tape, self._recorder = Tape(world), Recorder(log)

    def is_noise(self, site: str) -> bool:
        return site in self.world.sites

    def drawn(self, record: dict[str, Any], result: Tensor, parameters: Sequence[Any]) -> None:
        """A draw at a line of noise: it becomes that of this world."""
        site, operator = record["site"], record["operator"]
        rank = self._rank()
        if rank is None:
            self.refuse(f"{site} draws noise before init_process_group: it is of no rank")
        if operator == "uniform_" and all(
            abs(a - b) < NEAR for a, b in zip(parameters, (-1, 1), strict=False)
        ):
            u = result.detach().double()
            own, scale, family = -u.sign() * torch.log1p(-u.abs()), 1.0, "laplace"
            mean, factor = 0.0, 1.0
        elif operator in ("normal_", "normal"):
            mean, std = parameters[:2]
            scale = std if isinstance(std, float | int) else 1.0
            factor = 1.0 if isinstance(std, float | int) else std
            own, family = (result.detach() - mean) / factor, "gaussian"
        else:
            self.refuse(
                f"{site} draws by {operator}{tuple(record['parameters'])}; expected of a line of "
                "noise a normal draw, or the uniform one on (-1, 1) of torch.distributions.Laplace"
            )
        try:
            value = self._noise(record, rank, own, float(scale), family)  # type: ignore[arg-type]
        except DpauditError as error:
            self.refuse(str(error))
        if family == "laplace":
            u = -torch.expm1(-value.abs()).clamp(max=1 - torch.finfo(result.dtype).eps)
            value = -value.sign() * u
        with torch.no_grad():
            result.copy_(value * factor + mean)

    def sent(self) -> None:
        """One message more of this process; a file says when all are sent that are asked for."""
        rank = self._rank()
        if self._log.count(("sent",)) + 1 == self.world.last.get(-1 if rank is None else rank):
            (self.world.out / f"{DONE}{rank}").touch()

    def loaded(self, batch: Any) -> Any:
        """What a data loader hands out; what is no batch of records is left alone."""
        rank = self._rank()
        try:
            return batch if rank is None else self.batch(rank, batch)
        except DpauditError:
            return batch

    def batch(self, agent: int, records: Any) -> Any:
        n = n_records(records)
        taken = self._log.count(("batch", agent)) + 1
        with self._log.lock:
            about: dict[str, Any] = {"agent": agent, "sequence": self._log.number(), "records": n}
            if self.world.tape is None:
                about["digests"] = digests_of(records)
            found = in_world(self.world, agent, taken, records)
            kept = map(content_of, parts_of(found)) if self.world.keeps_records else ()
            self._log.write({"kind": "batch", "number": taken, **about}, kept)
        return found

    def noise(self, agent: int, name: str, draw: Any, scale: float, family: Noise) -> Any:
        own = as_noise(name, draw)
        with self._log.lock:
            occurrence = self._log.count(("drawn", name))
            record = drawn_record(self._log, name, own, scale, family, occurrence)
            return like(self._noise(record, agent, own, float(scale), family), draw)

    def send(self, source: int, destinations: tuple[int, ...], name: str, value: Any) -> None:
        with self._log.lock:
            self._recorder.send(source, destinations, name, value)
            self.sent()

    def refuse(self, why: str) -> NoReturn:
        """End the process, whatever the program catches."""
        (self.world.out / ERROR).write_text(why)
        os._exit(REFUSED)

    def _noise(
        self, record: dict[str, Any], rank: int, own: Tensor, scale: float, family: Noise
    ) -> Tensor:
        key = draw_key(rank, record["occurrence"], record["site"])
        value = self._tape.draw(key, own, scale, family)
        told = {"rank": rank, "operator": family, "parameters": (0.0, scale)}
        self._log.write({**record, "kind": "noise", **told}, [content_of(value)])
        return value

    def _rank(self) -> int | None:
        if dist.is_available() and dist.is_initialized():
            return dist.get_rank()
        return int(os.environ["RANK"]) if "RANK" in os.environ else None


_here: list[RankPlayer] = []


def player(log: Log) -> RankPlayer:
    """The world of this process, begun with the seed that it wants."""
    world = World.model_validate_json(Path(os.environ[WORLD]).read_text())
    seed_all(world.seed)
    _here[:] = [RankPlayer(world, log)]
    return _here[0]


def here() -> RankPlayer | None:
    """What ``player`` has made in this process; None: it has not imported torch."""
    return _here[0] if _here else None
