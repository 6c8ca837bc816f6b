"""One run of somebody's program, as an audit wants it: which noise it adds, which record differs.

Draws of noise are called by agent, by how many of this name the agent has drawn before, and by
name; a record is in the batch that its agent takes as its first, second, ... one.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from dpaudit.recorder.player import DONE
from dpaudit.strict import Strict

TAPE = "tape.safetensors"  # the draws of a run
Noise = Literal["gaussian", "laplace"]
OTHER_INPUTS = "present|absent|put-last|scaled|negated|zeroed|other-label"
FAR_OUT = "(own|level|few):-?(3|1e(-3|[236]|22|160))(:other-label)?"
How = Annotated[str, Field(pattern=f"^({OTHER_INPUTS}|{FAR_OUT})$")]
FAR: tuple[How, ...] = tuple(
    f"{direction}:{sign}{size}"
    for size in ("1e3", "1e6:other-label")
    for direction in ("own", "level", "few")
    for sign in ("", "-")
)  # up to where clips are looked for
NEARER: tuple[How, ...] = ("own:3", "own:-3", "own:1e2", "own:-1e2")
OVERFLOWING: tuple[How, ...] = (  # squares overflow, in single and in double precision
    *("own:1e22", "own:-1e22"),
    *("own:1e160", "own:-1e160"),
)


class Change(Strict):
    """What becomes of one record of a batch.

    ``absent`` leaves it out, and ``put-last`` puts it behind all others of the batch; the others
    put another in its place: its inputs times 10, or times -10, or 0, or with the label of another
    record of the batch. ``DIRECTION:FACTOR`` is one far out: its own inputs times the factor, or
    that factor in all inputs, or in a few of them alone.
    """

    agent: NonNegativeInt
    batch: PositiveInt
    how: How
    record: NonNegativeInt = 0  # index of the record in the batch


class World(Strict):
    """What a program's run is to be; nothing else in it differs from another world's run."""

    out: Path  # a folder for what is sent, drawn and taken
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0  # initial seed of torch, NumPy and random
    tape: Path | None = None  # draws in the place of its own, by name; None: its own
    same: dict[str, tuple[str, Literal[1, -1]]] = {}  # draws that are another one, or less it
    fresh: dict[str, Noise] = {}  # draws that are drawn anew, by the law that they are of
    noise_seed: NonNegativeInt = 0  # seed of this noise
    silent: tuple[str, ...] = ()  # draws that are 0
    signs: tuple[str, ...] = ()  # draws whose every number is its scale, with a random sign
    sign_seed: NonNegativeInt = 0
    sites: tuple[str, ...] = ()  # call sites whose draws are noise, beside those of tap.noise
    changes: tuple[Change, ...] = ()
    keeps_records: bool = False  # writes down what is in the batches
    last: dict[NonNegativeInt, PositiveInt] = {}  # agent -> messages after which it may end

    @property
    def is_over(self) -> bool:
        """Whether each agent has sent all that this world asks for."""
        return bool(self.last) and all((self.out / f"{DONE}{i}").exists() for i in self.last)


def draw_key(agent: int, occurrence: int, name: str) -> str:
    """What a draw is called: ``occurrence`` counts the earlier ones of this agent and name."""
    return f"{agent}/{occurrence}/{name}"
