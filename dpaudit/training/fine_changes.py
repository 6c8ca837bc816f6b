"""Changes of the data that show in a message where as fine changes of its noise do not.

A function of noised values is as deaf to a small change of the data as it is to one of the noise.
What hears the data alone is not noised: the low bits of a sum whose noise has coarser steps, or a
term that is added behind a rounding.
"""

import torch
from torch import Tensor

from .noise_rounds import RoundMessage
from .partial_inputs import PLAYED, SILENT, NormalDirections, RoundMode

CHANGES = tuple(2.0**-i for i in (3, 6, 10, 14, 18, 24, 30, 36))  # relative to the noise
SMALL = 2.0**-6  # move, relative to gradients, at which steps that clip are linear
HIDDEN = 64  # times the noise: a message so large is rounded too coarsely to show all its steps
FINER = 4  # times: data that show are so much smaller than noise that does not
HEARD = 8  # units in the last place that a change of the noise would move a message by
FOREIGN = 2.5  # such units that are no rounding
SAME = 1.6  # such units between two values of one term
SOME = 0.6  # share of the streams
MOVES = (1.0, 64.0, 1 / 16)  # moves of gradients, times their size
SHIFTED = 300  # number of the pattern of spread numbers


def fine_changes(message: RoundMessage) -> str | None:
    """Fine changes of one message, as a clause; ``PLAYED`` and ``SILENT`` must be finite."""
    return _FineChanges(message).found()


class _FineChanges:
    def __init__(self, message: RoundMessage) -> None:
        self._message, self._play = message, message.play
        self._played = self._play(PLAYED)
        self._ulp = _rounding(self._played)  # [streams, rows, d]
        self._deaf = torch.zeros_like(self._played)  # changes of the noise that do not show

    def found(self) -> str | None:
        where = f'"{self._message.name}" of round {self._message.round}'
        if self._is_coarse(gone=False) or (self._is_loud() and self._is_coarse(gone=True)):
            steps = "noise comes in coarser steps than the data under it, whose low bits show"
            return f"{steps}, in {where}"
        residue = self._residue() if self._deaf.any() else None
        if residue is None:
            return None
        moved = f"by {residue:.2g}, in steps finer than those of its noise"
        return f"data without noise move {where} {moved}"

    def _is_loud(self) -> bool:
        """Whether gradients may hide steps of the noise: where they are rounded as coarsely."""
        noise = (self._played - self._play(SILENT)).square().mean()
        hidden = noise * HIDDEN**2 < self._played.square().mean()
        return self._played.dtype == torch.float64 or bool(hidden)

    def _is_coarse(self, gone: bool) -> bool:
        """Whether fine changes of the noise do not show, and still finer ones of the data do.

        Both are signs, of which as much is known as shows by itself, and are made either way. No
        function of noised values is moved by the finer one and not by the other.

        Args:
            gone: gradients are 0, lest they be as coarse as the noise.
        """
        played = self._play(PLAYED._replace(gone=gone))
        ulp = _rounding(played)
        silent = self._play(SILENT._replace(gone=gone))[0]
        ways = (RoundMode(weight=0.0, signs="asked"), RoundMode(weight=0.0, move=SMALL, gone=gone))
        noise = (self._play(ways[0]._replace(weight=1.0, gone=gone))[0] - silent).abs()
        data = (self._play(ways[1])[0] - silent).abs() / SMALL
        both = (noise > 0) & (data > 0)
        if not both.any():
            return False
        even = float((noise[both] / data[both]).median())
        for change in CHANGES:
            heard = change * noise > HEARD * ulp  # [streams, rows, d]
            if not heard.any():
                return False
            stuck = heard
            for way in (1, -1):
                other = RoundMode(added=way * change, gone=gone)
                if not (stuck.any() and self._message.is_finite(other)):
                    break
                stuck = stuck & (self._play(other) == played)
            if not stuck.any():
                continue
            if not gone:
                self._deaf = torch.maximum(self._deaf, stuck * change * noise)
            size = change * even / FINER
            expected = size * data
            shows = stuck & (expected > 2 * ulp) & (expected < 1.5 * change * noise / FINER)
            for way in (1, -1):
                move = RoundMode(move=way * size, gone=gone)
                if not (shows.any() and self._message.is_finite(move)):
                    break
                moved = (self._play(move) - played).abs()
                shows = shows & (moved > 0) & (moved > expected / 4 - ulp)
                shows = shows & (moved < 4 * expected + ulp)
            enough = _some(shows) & (shows.sum(dim=0) > 2)
            if enough.any():
                return True
        return False

    def _residue(self) -> float | None:
        """How far something moves that no noise is in, when noise takes a move of the data back.

        What is noised is then as before, and what is made of it. Left is what the data add beside
        it, which is the same under all streams, and finer than what shows of the noise.
        """
        fine = torch.where(_some(self._deaf > 0), self._deaf.median(dim=0).values, 0.0)
        if not fine.any():
            return None
        ratios = [None, *self._ratios()]
        for size in MOVES:
            way = RoundMode(
                move=size, pattern=SHIFTED, spread=NormalDirections(self._played.shape[-1], True)
            )
            for ratio in ratios:
                shift = None if ratio is None else -size * ratio
                message = self._message.play_shifted(way, shift)
                left = message - self._played  # [streams, rows, d]
                typical = left.median(dim=0).values
                # a difference of its two sides is as exact as the larger one
                ulp = torch.maximum(self._ulp, _rounding(message))
                alike = (left - typical).abs() <= SAME * ulp
                there = (typical.abs() > FOREIGN * ulp) & (typical.abs() <= fine / 2)
                found = _some(alike & there) & ((alike & there).sum(dim=0) > 2)
                if found.any():
                    return float(typical.abs()[found].max())
        return None

    def _ratios(self) -> list[Tensor]:
        """What is added to each draw of a row moves a message as gradients do, [all rows, d].

        Once as the same for all numbers, where it nearly is, and once for each.
        """
        message, d = self._message, self._played.shape[-1]
        spread, silent = NormalDirections(d, True), self._play(SILENT)[0]

        def noisy(x: float) -> RoundMode:
            return RoundMode(weight=x, signs="unit", pattern=SHIFTED, spread=spread)

        def moved(x: float) -> RoundMode:
            return RoundMode(weight=0.0, move=x, pattern=SHIFTED, spread=spread)

        loud, far = message.loudest(lambda x: (noisy(x),)), message.loudest(lambda x: (moved(x),))
        if loud is None or far is None:
            return []
        noise = (self._play(noisy(loud))[0] - silent).double() / loud
        data = (self._play(moved(far))[0] - silent).double() / far
        there = noise.abs() > 1e-9 * noise.abs().max()
        ratio = torch.where(there, data / torch.where(there, noise, 1.0), 0.0)
        numbers = torch.randn(1, d, generator=torch.Generator().manual_seed(SHIFTED + 1))[0]
        typical = float(ratio[there].median()) if there.any() else 0.0
        even = ratio.new_zeros(message.n_rows, d) + typical * numbers
        each = even.clone()
        each[message.seen.rows] = ratio * numbers
        return [even, each]


def _rounding(message: Tensor) -> Tensor:
    """What the last place of a number is worth; of one near 0, of a usual number of its row."""
    usual = message.square().mean(dim=-1, keepdim=True).sqrt()
    return torch.finfo(message.dtype).eps * torch.maximum(message.abs(), usual)


def _some(entries: Tensor) -> Tensor:
    """Where so many streams of [streams, rows, d] have an entry."""
    return entries.float().mean(dim=0) >= SOME
