"""How far one record moves a program's messages in one round, in units of the noise they carry.

Given everything that was sent before, and the data of all others, the messages of the round are
fixed contents and the noise drawn for them. Worlds that share every draw but one show which numbers
of which messages that draw moves, and by how much: the matrix B, a column for each number of each
draw. Worlds that share every draw show how far the record moves each number: the vector a. What an
eavesdropper learns in the round from all the messages that it reads together is

    mu^2 = a' (B B')^+ a = |x|^2,  x = B^+ a,  epsilon = sum of |x|

for Gaussian and for Laplace noise of scale 1. Draws that several messages share, of one agent or of
several, are columns like others; draws that the adversary knows are left out. A record that moves
messages in a direction in which B moves nothing is shown: mu is infinite.

Rests on: messages are linear in the noise drawn for them, number by number, which two worlds with
other signs and the draw itself test; and the agent's state is known once its messages, their noise
and its data are, which holds where the messages determine the draws. Records that were not tried
may move a message further: a lower bound on the release.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from dpaudit.accounting.privacy_loss import Array, Integers
from dpaudit.errors import RunError

from .draw_order import numbers_that_move
from .runs import AgentRound, MessageId, ProgramRun

Booleans = NDArray[np.bool_]
MOST_ENTRIES = 10**7  # per block of B
NOTHING = 1e-5  # moves below this share of a round's largest one count as rounding
MOST_LAPLACE = 16  # draws of a round whose moves are kept one by one
CLIPPED = (
    "if the noise is clipped or normalised with the gradient, add it after that; if the noised "
    "numbers alone are rounded, selected or scaled, or serve another step before the agent sends, "
    "show them to tap.send in the place of what is made of them; or leave the message out with "
    "messages.ignore"
)
SUMMED = "; if several numbers of noise are added up, show their sum to tap.noise"
AGREE = 1e-3  # relative, between two measurements of one number


class NotMeasured(RunError):
    """A message of another size, or that noise does not move number by number: there is no B."""


class Response(NamedTuple):
    """What one draw moves in one message, and how far by one unit of its scale."""

    draw: int  # an index into the draws of the place
    places: Integers  # [m]: of the message's numbers
    number: Integers  # [m]: which of the draw's numbers
    size: Array  # [m]; negative where the draw is subtracted


class FilteredNumbers(NamedTuple):
    """The numbers of one message that a likelihood ratio adds up."""

    places: Integers  # [m]: of the message's numbers
    size: Array  # [m]: their unit
    ratio: Array  # [m]: the weight of a number in that unit
    laplace: Array  # [m]: whether it is a Laplace draw, which the record moves by the ratio


class RoundLeak(NamedTuple):
    """What the messages of one round show of one record."""

    mu: float  # under Gaussian noise
    epsilon: float  # under Laplace noise, in addition
    noiseless: MessageId | None = None  # shows the record without noise; both are infinite then
    upper: bool = False  # an upper end alone, as hidden noise may add to what is there
    hidden: bool = False  # the messages do not determine the draws
    filters: dict[MessageId, FilteredNumbers] = {}
    laplace: tuple[float, ...] = ()  # the largest parts of epsilon, each of one draw

    @property
    def size(self) -> float:
        """By which the worst of several records is chosen."""
        return self.mu + self.epsilon

    def times(self, factor: float) -> "RoundLeak":
        """A part of it; of the noise the score is the same."""
        parts = tuple(factor * part for part in self.laplace)
        return self._replace(mu=factor * self.mu, epsilon=factor * self.epsilon, laplace=parts)


NO_LEAK = RoundLeak(0.0, 0.0)


def of_other_sizes(
    base: ProgramRun, runs: Sequence[ProgramRun], messages: Sequence[MessageId]
) -> dict[MessageId, NotMeasured]:
    """Messages that some run does not send, or not with as many numbers."""
    found = {}
    for message in messages:
        sizes = {len(run.messages[message]) if message in run.messages else None for run in runs}
        if sizes - {len(base.messages[message])}:
            found[message] = NotMeasured(
                "DPA063",
                f"{message} is not sent, or has another size, where a record or noise differs",
                "send it in every round, in one size; or leave it out with messages.ignore",
            )
    return found


def noise_of(
    place: AgentRound,
    base: ProgramRun,
    silent: Sequence[ProgramRun],
    signed: Sequence[tuple[ProgramRun, ProgramRun]],
) -> tuple[dict[MessageId, tuple[Response, ...]], dict[MessageId, NotMeasured]]:
    """The noise of each message of a place, its agent's own and those of others with its noise.

    An own message that is not linear in its agent's noise is left out, with the reason beside it.

    Draws of others that move a message in a way that is not linear count as received by it: what
    an adversary reads of them is what it reads of their messages. Messages of others that the
    agent's own noise moves so are left out.

    Args:
        base: the run with every draw.
        silent: by draw of the place: the run without that draw.
        signed: by draw: two runs in which its numbers are its scale with other signs.
    """
    found, unmeasured = {}, dict[MessageId, NotMeasured]()
    for message in (*place.messages, *place.others):
        responses: list[Response] = []
        for j, draw in enumerate(place.draws):
            is_own = place.victim in place.owners_of(draw)
            try:
                response = _response(place, message, j, base, silent[j], *signed[j])
            except NotMeasured as error:
                if not is_own:
                    continue
                if message in place.messages:
                    unmeasured[message] = error
                break
            if response is not None:
                responses.append(response)
        else:
            found[message] = tuple(responses)
    return found, unmeasured


def _response(
    place: AgentRound,
    message: MessageId,
    j: int,
    base: ProgramRun,
    silent: ProgramRun,
    one: ProgramRun,
    two: ProgramRun,
) -> Response | None:
    """What draw j moves in a message; None: nothing."""
    draw, mean = place.draws[j], silent.messages[message]
    moved = [apart(run.messages[message], mean) for run in (one, two, base)]
    if not all(np.isfinite(m).all() for m in moved):
        raise NotMeasured(
            "DPA063",
            f'{message} is not linear in noise "{draw.name}": it holds numbers that are finite or '
            "not, as the noise is",
            CLIPPED,
        )
    *moved, drawn = moved
    signs = [np.sign(run.tape[draw.key]) for run in (one, two)]
    largest = max(float(np.abs(m).max(initial=0.0)) for m in moved)
    if largest <= 1e-12 * float(np.abs(mean).max(initial=0.0)):
        return None
    there = np.flatnonzero(np.maximum(*np.abs(moved)) > NOTHING * largest)
    if message in base.as_bytes:
        raise NotMeasured(
            "DPA063",
            f'noise "{draw.name}" moves {message}, which is bytes (uint8) in which no numbers were '
            "recognised",
            "send npy, npz, safetensors or JSON, or use struct.pack; or show the numbers to "
            "tap.send, and name the line of the bytes in messages.ignore",
        )
    number = numbers_that_move(
        [m[there] for m in moved], signs, drawn[there], base.tape[draw.key] / draw.scale
    )
    if number is None:
        raise NotMeasured(
            "DPA063",
            f'{message} is not linear in noise "{draw.name}", which has {len(signs[0])} numbers '
            f"and moves {len(there)} of it; expected one each, or some of them",
            CLIPPED + (SUMMED if len(signs[0]) > len(there) else ""),
        )
    a, b = (m[there] * s[number] for m, s in zip(moved, signs, strict=True))
    own = (a + b) / 2 * base.tape[draw.key][number] / draw.scale
    least = AGREE * largest  # on a grid, one scale may be whole steps, and the draw is not
    if not all(np.allclose(x, y, AGREE, least) for x, y in ((a, b), (own, drawn[there]))):
        own_round = (
            f'; if each is a round of its own, say messages.round_starts_at = "{message.name}", or '
            "show each batch to tap.batch"
        )
        raise NotMeasured(
            "DPA063",
            f'{message} is not linear in noise "{draw.name}", number by number; what it shows '
            f"cannot be measured in this way{own_round if message.nth else ''}",
            CLIPPED,
        )
    return Response(j, there, number, (a + b) / 2)


def apart(one: Array, other: Array) -> Array:
    """The difference; 0 where both are the same, and no finite number either."""
    with np.errstate(invalid="ignore"):
        return np.where((one == other) | (np.isnan(one) & np.isnan(other)), 0.0, one - other)


def leak(
    place: AgentRound,
    noised: Mapping[MessageId, Sequence[Response]],
    read: Sequence[MessageId],
    without: ProgramRun,
    having: ProgramRun,
    known: Collection[int] = (),
    rounding: float = 0.0,
) -> RoundLeak:
    """What the messages that are read show of the difference between two runs.

    Args:
        known: draws of the place that the adversary knows, by their index.
        rounding: how far numbers with noise may be off.
    """
    changes = {m: apart(having.messages[m], without.messages[m]) for m in read}
    for message, change in changes.items():
        if not np.isfinite(change).all():
            return RoundLeak(inf, inf, message)
    largest = max((float(np.abs(c).max(initial=0.0)) for c in changes.values()), default=0.0)
    if largest == 0.0:
        return NO_LEAK
    hiding = {m: [r for r in noised[m] if r.draw not in known] for m in read}
    for message, change in changes.items():
        shown = np.abs(change) > NOTHING * largest
        for response in hiding[message]:
            shown[response.places] = False
        if shown.any():
            return RoundLeak(
                inf, inf, noiseless=message, filters={message: _noiseless(change, shown)}
            )
    return _together(place, hiding, changes, rounding)


def _noiseless(change: Array, shown: Booleans) -> FilteredNumbers:
    """Numbers without noise, weighed as if they had a thousandth of the change as noise."""
    index = np.flatnonzero(shown)
    size = np.full(len(index), 1e-3 * float(np.abs(change[index]).max()))
    return FilteredNumbers(index, size, change[index] / size, np.zeros(len(index), bool))


class _Part(NamedTuple):
    """Parts of B of one shape that share no draw and no number with any other: n of them."""

    rows: Integers  # [n, r]
    columns: Integers  # [n, c]
    B: Array  # [n, r, c]

    def solved(self, a: Array) -> tuple[Array, Array, Integers]:
        """x = B^+ a [n, c], the weights B^+' x [n, r] of a likelihood ratio, and ranks [n]."""
        if self.B.shape[2] == 1:
            b = self.B[..., 0]
            x = (b * a).sum(1, keepdims=True) / (b**2).sum(1, keepdims=True)
            return x, x * b / (b**2).sum(1, keepdims=True), np.ones(len(b), int)
        U, S, V = np.linalg.svd(self.B, full_matrices=False)
        kept = NOTHING * S[:, :1] < S
        inverse = np.where(kept, 1 / np.where(kept, S, 1.0), 0.0)
        along = inverse * np.einsum("nrk,nr->nk", U, a)
        x = np.einsum("nkc,nk->nc", V, along)
        return x, np.einsum("nrk,nk->nr", U, inverse * along), kept.sum(1)


class _System(NamedTuple):
    """B and a of several messages together, B as its entries that are not 0."""

    offsets: Mapping[MessageId, int]  # first row of each message
    a: Array  # [rows]
    row: Integers  # [entries]
    column: Integers  # [entries]
    size: Array  # [entries]
    draw: Integers  # [columns]: an index into the draws of the place
    number: Integers  # [columns]: which of the draw's numbers

    @classmethod
    def of(
        cls, hiding: Mapping[MessageId, Sequence[Response]], changes: Mapping[MessageId, Array]
    ) -> "_System":
        """Args: ``hiding``: the noise of each message; ``changes``: how far each was moved."""
        lengths = [len(change) for change in changes.values()]
        offsets = dict(zip(changes, np.cumsum([0, *lengths[:-1]]).tolist(), strict=True))
        parts = [(offsets[m], response) for m in changes for response in hiding[m]]
        row = np.concatenate([offset + response.places for offset, response in parts])
        draw = np.concatenate([np.full(len(r.places), r.draw) for _, r in parts])
        number = np.concatenate([response.number for _, response in parts])
        size = np.concatenate([response.size for _, response in parts])
        ids, column = np.unique(draw * (number.max() + 1) + number, return_inverse=True)
        of_draw, of_number = np.divmod(ids, number.max() + 1)
        a = np.concatenate(list(changes.values()))
        return cls(offsets, a, row, column, size, of_draw, of_number)


class NoiseMove(NamedTuple):
    """How noise is moved to make up for changes, and what that does not reach."""

    units: Mapping[int, Array]  # draw of the place -> its numbers, divided by its scale
    left: float = 0.0  # the largest change that noise does not make up for, in units of the noise
    bare: float = 0.0  # the largest change of a number without noise
    hidden: bool = False  # the messages do not determine the draws


def making_up_for(
    noised: Mapping[MessageId, Sequence[Response]],
    changes: Mapping[MessageId, Array],
    lengths: Mapping[int, int],
) -> NoiseMove:
    """The least noise x = B^+ a that changes messages as they were changed.

    Args:
        noised: the noise of each message, at least of those that were changed.
        lengths: how many numbers each draw of the place has.
    """
    units = {j: np.zeros(n) for j, n in lengths.items()}
    if not any(noised[m] for m in changes):
        return NoiseMove(
            units, bare=max((np.abs(a).max(initial=0.0) for a in changes.values()), default=0.0)
        )
    system = _System.of(noised, changes)
    noise = np.sqrt(np.bincount(system.row, system.size**2, len(system.a)))
    bare = float(np.abs(system.a[noise == 0]).max(initial=0.0))
    left, hidden, x = 0.0, False, np.zeros(len(system.draw))
    for block in _blocks(system.row, system.column, system.size, len(system.a), len(x)):
        moved = system.a[block.rows]
        x[block.columns], _, rank = block.solved(moved)
        stays = moved - np.einsum("nrc,nc->nr", block.B, x[block.columns])
        left = max(left, float((np.abs(stays) / noise[block.rows]).max()))
        hidden |= bool((rank < block.B.shape[2]).any())
    for j, own in units.items():
        own[system.number[system.draw == j]] = x[system.draw == j]
    return NoiseMove(units, left, bare, hidden)


def _together(
    place: AgentRound,
    hiding: Mapping[MessageId, Sequence[Response]],
    changes: Mapping[MessageId, Array],
    rounding: float,
) -> RoundLeak:
    """a' (B B')^+ a of all messages, over parts of B that have nothing in common."""
    system = _System.of(hiding, changes)
    offsets, a, row, size = system.offsets, system.a, system.row, system.size
    lengths = [len(change) for change in changes.values()]
    laplace = np.array([place.draws[i].family == "laplace" for i in system.draw])
    noise = np.sqrt(np.bincount(row, size**2, len(a)))  # standard deviation of each number
    largest = float((np.abs(a[noise > 0]) / noise[noise > 0]).max())
    mu2, hidden, upper = 0.0, False, False
    parts = [np.zeros(0)]  # epsilon of each block
    unit, weight, is_laplace = np.ones(len(a)), np.zeros(len(a)), np.zeros(len(a), bool)
    for block in _blocks(row, system.column, size, len(a), len(system.draw)):
        moved = a[block.rows]
        x, weights, rank = block.solved(moved)
        stays = np.abs(moved - np.einsum("nrc,nc->nr", block.B, x))
        left = (stays - rounding) / noise[block.rows]
        if left.max() > AGREE * largest:
            at = int(block.rows.flat[int(left.argmax())])
            return RoundLeak(
                inf, inf, noiseless=max((o, m) for m, o in offsets.items() if o <= at)[1]
            )
        of_laplace = laplace[block.columns]
        mu2 += float((x[~of_laplace] ** 2).sum())
        parts.append(np.abs(x[of_laplace]))
        undetermined = rank < block.B.shape[2]
        hidden |= bool(undetermined.any())
        upper |= bool((undetermined & of_laplace.any(1)).any())
        weight[block.rows] = weights
        if block.B.shape[2] == 1:  # one number that a Laplace draw moves is enough
            alone = of_laplace[:, 0]
            rows = block.rows[alone]
            weight[rows], is_laplace[rows[:, 0]] = 0.0, True
            unit[rows[:, 0]], weight[rows[:, 0]] = block.B[alone, 0, 0], x[alone, 0]
    filters = {}
    for message, length in zip(changes, lengths, strict=True):
        of = slice(offsets[message], offsets[message] + length)
        places = np.flatnonzero(weight[of])
        filters[message] = FilteredNumbers(
            places, unit[of][places], weight[of][places], is_laplace[of][places]
        )
    each = np.sort(np.concatenate(parts))[::-1]
    most = tuple(float(part) for part in each[:MOST_LAPLACE] if part > 0)
    return RoundLeak(
        float(np.sqrt(mu2)), float(each.sum()), None, upper, hidden, filters, laplace=most
    )


def _blocks(
    row: Integers, column: Integers, size: Array, n_rows: int, n_columns: int
) -> Iterator[_Part]:
    """The connected parts of B, those of one shape together."""
    n = n_rows + n_columns
    links = coo_matrix((np.ones(len(row)), (row, n_rows + column)), (n, n))
    _, label = connected_components(links, directed=False)
    for_row, for_column = np.unique(row), np.arange(n_columns)
    order_r = for_row[np.argsort(label[for_row], kind="stable")]
    order_c = for_column[np.argsort(label[n_rows + for_column], kind="stable")]
    labels, rows_of = np.unique(label[order_r], return_counts=True)
    columns_of = np.unique(label[n_rows + order_c], return_counts=True)[1]
    first_r, first_c = np.cumsum(rows_of) - rows_of, np.cumsum(columns_of) - columns_of
    part = np.searchsorted(labels, label[row])  # index of each entry's block
    place_r, place_c = np.zeros(n_rows, int), np.zeros(n_columns, int)  # within a part
    place_r[order_r] = np.arange(len(order_r)) - np.repeat(first_r, rows_of)
    place_c[order_c] = np.arange(n_columns) - np.repeat(first_c, columns_of)
    shapes, kind = np.unique(np.stack([rows_of, columns_of], 1), axis=0, return_inverse=True)
    for i, (r, c) in enumerate(shapes.tolist()):
        which = np.flatnonzero(kind.ravel() == i)
        number = np.full(len(labels), -1)
        number[which] = np.arange(len(which))
        if r * c > MOST_ENTRIES:
            raise RunError(
                "DPA063",
                f"{c} numbers of noise move {r} numbers of messages together; expected parts of "
                f"{MOST_ENTRIES:g} pairs at most, as where noise is added number by number",
            )
        of = number[part] >= 0
        B = np.zeros((len(which), r, c))
        np.add.at(B, (number[part[of]], place_r[row[of]], place_c[column[of]]), size[of])
        yield _Part(
            order_r[first_r[which][:, None] + np.arange(r)],
            order_c[first_c[which][:, None] + np.arange(c)],
            B,
        )


def deviation(
    place: AgentRound,
    noised: Mapping[MessageId, Sequence[Response]],
    sizes: Mapping[MessageId, int],
) -> float:
    """Root mean square of the noise per number of some messages of these sizes."""
    squares = [np.zeros(size) for size in sizes.values()]
    for square, message in zip(squares, sizes, strict=True):
        for response in noised[message]:
            doubled = 1 + (place.draws[response.draw].family == "laplace")  # b: variance 2 b^2
            square[response.places] += doubled * response.size**2
    return float(np.sqrt(np.concatenate(squares).mean()))


def log_likelihood_ratio(found: RoundLeak, run: ProgramRun, mean: ProgramRun) -> float:
    """Log likelihood ratio of runs with and without the record; ``mean``: without, noiseless.

    But for a constant, ln p1/p0 is ratio w for a Gaussian w ~ N(0 or ratio, 1), and
    |w| - |w - ratio| for a Laplace one.
    """
    total = 0.0
    for message, (places, size, ratio, laplace) in found.filters.items():
        w = (run.messages[message][places] - mean.messages[message][places]) / size
        total += float(np.sum(np.where(laplace, np.abs(w) - np.abs(w - ratio), ratio * w)))
    return total
