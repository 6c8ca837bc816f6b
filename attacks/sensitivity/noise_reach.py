"""What of the noise of a round reaches the victim's messages.

Each row of each draw is played in one coordinate of its own, which says how much of it reaches a
message; all draws together, at random in all coordinates, say whether it is the same in every
coordinate and adds up. A draw of fewer numbers than the message has, as of one layer, reaches a
block of its coordinates.

Some draws move nothing where there is no data, as a coin that leaves out a record, or counts it
twice. They hide nothing by themselves. So where they are in the way, they are what they are in the
run.
"""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from dpaudit.defense import Gradient, Messages, Noise, Scale
from dpaudit.game.step_inputs import STD, ChosenNoise, Family, RequestedNoise

from .synthetic_records import ScaledGradients
from .worlds import PlayedWorld

SAME = 1e-9  # relative: two ways to play the same noise differ by less
ALL_SENT = "all that is sent"  # all the victim's messages of a round, as one
MOST_TURNS = 32  # plays in which each row of each draw has a coordinate of its own


class Reach(NamedTuple):
    """What of the noise of a round reaches one message of the victim."""

    scales: Tensor  # [rows, draws], of every draw's noise there, by the scale of its family
    families: tuple[str, ...]  # [draws]
    beside: bool = False  # whether there are draws beside these, which move data alone
    blocks: tuple[range, ...] = ()  # [draws], the coordinates that each reaches; (): all of them
    # by draw whose scale is not the same in its whole block: it over its largest [numbers]
    shares: Mapping[int, Tensor] = MappingProxyType({})

    @property
    def cuts(self) -> list[int]:
        """Up to the next cut, every coordinate has the same draws at the same scales."""
        ends = {end for block in self.blocks for end in (block.start, block.stop)}
        within = {
            self.blocks[i].start + change + 1
            for i, share in self.shares.items()
            for change in share.diff().nonzero().flatten().tolist()
        }
        return [cut for cut in sorted(ends | within) if cut < max(ends)] or [0]

    def pieces(self, cuts: Sequence[int]) -> Tensor:
        """The scales [rows, draws, cuts] of what reaches the coordinate of each cut."""
        at = torch.tensor(cuts, device=self.scales.device)
        pieces = self.scales[:, :, None].repeat(1, 1, len(cuts))
        for i, block in enumerate(self.blocks):
            there = (at >= block.start) & (at < block.stop)
            pieces[:, i, ~there] = 0.0
            if i in self.shares:
                pieces[:, i, there] *= self.shares[i][at[there] - block.start]
        return pieces

    def is_where(self, other: "Reach") -> bool:
        """Whether draws reach the same coordinates in the same shares."""
        return (
            self.blocks == other.blocks
            and self.shares.keys() == other.shares.keys()
            and all(
                torch.allclose(share, other.shares[i], SAME, 0.0)
                for i, share in self.shares.items()
            )
        )


class _Rows:
    """All rows of the draws of a round, whose units of noise are one matrix [n, d].

    Args:
        draws: of two dimensions or more.
    """

    def __init__(self, draws: Mapping[str, RequestedNoise]) -> None:
        self._names, self._sizes = list(draws), [draw.shape[-2] for draw in draws.values()]
        self._rows = [(name, row) for name, draw in draws.items() for row in range(draw.shape[-2])]
        self.widths = [draw.shape[-1] for draw in draws.values()]
        self.families = tuple(draw.family for draw in draws.values() for _ in range(draw.shape[-2]))
        self._of_draw = torch.arange(len(draws)).repeat_interleave(torch.tensor(self._sizes))
        taken = Counter[int]()
        places = []  # turns, and coordinates in them, of which rows of one width share none
        for rows, width in zip(self._sizes, self.widths, strict=True):
            places += [divmod(taken[width] + row, width) for row in range(rows)]
            taken[width] += rows
        self._places = places
        self.turns = 1 + max(turn for turn, _ in places)

    def each(self, turn: int) -> Tensor:
        """One unit of each row whose turn it is, in its place."""
        units = torch.zeros(len(self._places), max(self.widths), dtype=torch.float64)
        there = [i for i, (own, _) in enumerate(self._places) if own == turn]
        units[there, [self._places[i][1] for i in there]] = 1.0
        return units

    def at_random(self) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        units = torch.empty(len(self._places), max(self.widths), dtype=torch.float64)
        return units.normal_(generator=generator)

    def units(self, units: Tensor) -> dict[str, Tensor]:
        """The same by draw, each of as many numbers as it has."""
        parts = zip(self._names, units.split(self._sizes), self.widths, strict=True)
        return {name: part[:, :width] for name, part, width in parts}

    def draw_by_draw(self, units: Tensor) -> list[Tensor]:
        """The same for each draw, with none of the others."""
        return [units * (self._of_draw == i)[:, None] for i in range(len(self._names))]

    def reach(
        self,
        blocks: Sequence[range],
        alone: Sequence[Tensor],
        everything: Tensor,
        together: Tensor,
        shares: Mapping[str, Tensor],
    ) -> Reach | None:
        """What reaches a message; None where it is not alike in all coordinates or adds not up.

        Args:
            blocks: the coordinates that each draw reaches, all of its numbers or none.
            alone: what ``each`` does to the message in each turn, [rows, d].
            everything: units [n, ...] at random, which do ``together`` to it, [rows, d].
            shares: by draw whose scale is not one number in each row, it over the largest.
        """
        if not all(len(b) in (0, w) for b, w in zip(blocks, self.widths, strict=True)):
            return None
        by_row = [blocks[i] for i in self._of_draw.tolist()]
        (rows, d), n = together.shape, len(by_row)
        there = [i for i, block in enumerate(by_row) if block]
        if not there:
            return None
        turns = [self._places[i][0] for i in there]
        columns = [by_row[i].start + self._places[i][1] for i in there]
        if len({*zip(turns, columns, strict=True)}) < len(there):
            return None
        of_turns, scales = torch.stack([*alone]), together.new_zeros(rows, n)  # [turns, rows, d]
        scales[:, there] = of_turns[turns, :, columns].T
        of_turns[turns, :, columns] = 0.0
        laid = together.new_zeros(n, d)
        for i, block in enumerate(blocks):
            own = self._of_draw == i
            laid[own, block.start : block.stop] = everything[own, : len(block)]
        if not rows or not scales.any(1).all():
            return None
        if not _is_sum(torch.cat([scales, *of_turns], 1), laid, together):
            return None
        units = scales.new_tensor([STD[family] for family in self.families])
        of_rows = {
            i: shares[name][row].to(scales)
            for i, (name, row) in enumerate(self._rows)
            if name in shares and by_row[i]
        }
        is_whole = not of_rows and all(block == range(d) for block in by_row)
        blocks = () if is_whole else (*by_row,)
        return Reach((scales / units).abs(), self.families, False, blocks, of_rows)


def reaching(world: PlayedWorld) -> dict[str, Reach]:
    """The noise that reaches the victim's messages, where it is alike in all coordinates."""
    round = _Round(world)
    found = round.reaching(frozenset())
    if len(found) < len(round.silent) and len(round.draws) > 1:
        beside = frozenset(name for name in round.draws if not round.moves_alone(name))
        if 0 < len(beside) < len(round.draws):
            found = round.reaching(beside) | found
    return found


class _SomeChosen(ChosenNoise):
    """Plays the chosen units, and of some draws what they really are.

    A draw whose scale differs between coordinates is played at the largest one of each row; what
    the others are of that is noted.

    Args:
        real: the noise of the round.
        drawn: the names of the draws that are real.
    """

    def __init__(
        self, real: Noise, drawn: Set[str], units: Mapping[str, Tensor] | None = None
    ) -> None:
        super().__init__(units)
        self._real, self._drawn = real, drawn
        self.shares: dict[str, Tensor] = {}

    def _played(self, family: Family, message: str, scale: Scale, like: Tensor) -> Tensor:
        if message not in self._drawn:
            if isinstance(scale, Tensor) and scale.ndim and scale.shape[-1] > 1:
                most = scale.abs().amax(-1, keepdim=True)
                if bool((scale != most).any()):
                    share = (scale / most).nan_to_num(1.0).abs().expand(like.shape)
                    self.shares[message] = share.reshape(-1, like.shape[-1])
                scale = most
            return super()._played(family, message, scale, like)
        draw = self._real.gaussian if family == "gaussian" else self._real.laplace
        return draw(message, 1.0, like.detach()) * scale


class _Round:
    """A round that is played with chosen noise."""

    def __init__(self, world: PlayedWorld) -> None:
        self._world, self._nothing = world, ScaledGradients(world.oracle, 0.0)
        self._noise = Noise(world.streams or world.coupled.streams, world.k)
        asked = ChosenNoise()
        self.silent = self._sent(world.oracle, asked)
        self.draws = asked.draws

    def _sent(self, oracle: Gradient, noise: ChosenNoise) -> Messages:
        world = self._world
        graph = world.coupled.setting.network.at(world.k)
        sent = world.coupled.defense.step(world.state, world.k, graph, oracle, noise).sent
        return {name: message for name, message in sent.items() if message.readers is None}

    def moves_alone(self, draw: str) -> bool:
        """Whether a draw moves the victim's messages where nothing else is drawn, nor any data."""
        none, alone = (
            self._sent(self._nothing, _SomeChosen(self._noise, names)) for names in (set(), {draw})
        )
        return any(bool(by.any()) for by in self._world.coupled.differences(none, alone).values())

    def reaching(self, beside: frozenset[str]) -> dict[str, Reach]:
        """By message of the victim; ``beside``: draws that are what they are in the run."""
        draws = {name: draw for name, draw in self.draws.items() if name not in beside}
        if not draws or any(len(draw.shape) < 2 for draw in draws.values()):
            return {}
        rows, coupled = _Rows(draws), self._world.coupled
        if rows.turns > MOST_TURNS:
            return {}

        shares = dict[str, Tensor]()

        def sent(units: Mapping[str, Tensor]) -> Messages:
            noise = _SomeChosen(self._noise, beside, units)
            played = self._sent(self._world.oracle, noise)
            shares.update(noise.shares)
            return played

        silent = sent({}) if beside else self.silent

        def moved(units: Tensor) -> dict[str, Tensor]:
            """What these units of noise [n, d] do to the victim's messages, [rows, d] by name."""
            return coupled.differences(silent, sent(rows.units(units.to(coupled.streams.device))))

        everything = rows.at_random()
        alone = [joined(moved(rows.each(turn))) for turn in range(rows.turns)]
        together = joined(moved(everything))
        by_draw, found = list[dict[str, Tensor]](), dict[str, Reach]()
        for name, by in together.items():
            blocks = [range(width) for width in rows.widths]
            if {*rows.widths} != {by.shape[-1]}:
                if name == ALL_SENT and not _are_apart(found, len(together) - 1):
                    continue  # it is not worth its plays
                by_draw = by_draw or [
                    joined(moved(units)) for units in rows.draw_by_draw(everything)
                ]
                blocks = [_block(one[name]) for one in by_draw]
            each = [one[name] for one in alone]
            reach = rows.reach(blocks, each, everything.to(by), by, shares)
            if reach is not None:
                found[name] = reach._replace(beside=bool(beside))
        return found


def joined(by_name: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same [rows, d] by message, and all messages side by side, where each has one row.

    A record may move each message no further than its noise allows, and all of them further.
    """
    rows = [own.shape[-2] for own in by_name.values()]
    if len(rows) < 2 or {*rows} != {1}:
        return {**by_name}
    return {**by_name, ALL_SENT: torch.cat([*by_name.values()], -1)}


def _are_apart(found: Mapping[str, Reach], n_messages: int) -> bool:
    """Whether each message has noise, and no two that of one draw."""
    there = [reach.scales.any(0) for reach in found.values()]
    return len(there) == n_messages and int(torch.stack(there).sum(0).max()) <= 1


def _block(moved: Tensor) -> range:
    """From the first coordinate that moves in some row [rows, d] to the last one; or none."""
    there = moved.any(0).nonzero().flatten().tolist()
    return range(there[0], there[-1] + 1) if there else range(0)


def _is_sum(alone: Tensor, everything: Tensor, together: Tensor) -> bool:
    """Whether all draws at once do what each does in a coordinate of its own."""
    n = len(everything)
    predicted = alone[:, :n] @ everything
    size = predicted.abs().max()
    spilt = alone[:, n:].abs().max() if alone.shape[1] > n else size * 0
    return bool((together - predicted).abs().max() <= SAME * size and spilt <= SAME * size)
