"""Whether the messages of the real run carry the independent noise that they are said to."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor

from dpaudit.accounting.binomial import more_than
from dpaudit.accounting.privacy_loss import Array, NoiseFamily
from dpaudit.accounting.releases import Mechanism
from dpaudit.defense.contract import Defense, Setting
from dpaudit.files.finding import Finding, Metric, Name, Role
from dpaudit.files.threat import ThreatModel
from dpaudit.files.verdict import Verdict
from dpaudit.game.runs.noise_law import hiding_without
from dpaudit.progress import OnStep
from dpaudit.rng import Streams
from dpaudit.statistics.noise_tests import (
    lag_p_values,
    parallel_pairs,
    scale_p_values,
    sign_p_value,
    size_of_draws,
)
from dpaudit.training.costs import too_large_to_examine
from dpaudit.training.message_response import Heard, heard
from dpaudit.training.noise_rounds import RealRound, RealRounds, streams_of

from .jobs import Prepared, reason_not_examined

ROUNDS = 2  # the first ones, and as many last: noise over gradients of the round before, too
DRAWN = 11  # rounds between them: all of them miss what is in a third with probability 1.2%
DIFFERENT = (
    1e-6  # p-value, of all tests of an audit together, below which noise is not as it should
)
SHOWN = 1e-5  # relative to the largest: least gradient in an examined coordinate
DIFFERENCE = 1e-3  # relative difference of gradients in rows or coordinates that are not equal
CANCELLED = 1e-4  # sums with a smaller share of a layer's noise have none
SILENT = 1e-7  # coordinates with a smaller share of a row's noise have none
SELDOM = 0.1  # quantile of how often noise reaches the coordinates that it reaches
PIECES = 3  # ranges of rounds in a sentence, at most
CONFIDENCE = 0.05  # probability that an interval misses the size of the noise
DIRECTIONS = "directions of a large message"
UNSEEN = "its numbers share their noise, and no gradient was seen in it"
FLOATS = (
    "the low bits of float32 and float64 sums tell which of two numbers was noised (Mironov 2012); "
    "this is not tested and decides nothing: snap what is sent to a grid far coarser than "
    "rounding, or draw discrete noise"
)
EVERYBODY = ThreatModel(name="every link")


class NoiseTest(NamedTuple):
    """One test of the noise of one message; ``p`` is 0 where it leaves no doubt."""

    p: float
    among: int  # number of tests of which this is the most striking
    message: str
    rounds: tuple[int, ...]
    says: str


def n_examined(n_rounds: int) -> int:
    """How many rounds of a run are examined."""
    return min(n_rounds, ROUNDS + DRAWN + ROUNDS)


def examined_rounds(n_rounds: int, streams: Streams) -> tuple[int, ...]:
    """Rounds to examine, in order: the first ones, the last, and one of each part between."""
    ks, rng = np.arange(1, n_rounds + 1), streams.numpy("rounds")
    drawn = [rng.choice(part) for part in np.array_split(ks[ROUNDS:-ROUNDS], DRAWN) if len(part)]
    return tuple(sorted({int(k) for k in (*ks[:ROUNDS], *drawn, *ks[-ROUNDS:])}))


def examine_noise(
    prepared: Prepared,
    adversaries: tuple[ThreatModel, ...],
    on_step: OnStep = lambda done, total: None,
) -> Finding:
    """Rounds of the real problem under several streams of noise.

    Noise that is not independent is no fault where it comes on top of noise that is.

    Args:
        adversaries: adversaries; what none of them reads is not looked at.
    """
    found = _examined(prepared, adversaries, on_step)
    if found.verdict is None:
        return found
    defense = prepared.defense
    for fewer in hiding_without(defense, prepared.setting, adversaries, defense.n_rounds):
        without = prepared._replace(defenses={**prepared.defenses, "defense": fewer})
        again = _examined(without, adversaries)
        if again.verdict is None and set(again.not_examined) <= set(found.not_examined):
            p = found.metrics[Name.P_VALUE].value
            notes = (fewer.note, f"with these draws: {found.title} (p = {p:.2g})")
            return again.model_copy(update={"notes": (*notes, *again.notes)})
    return found


def _examined(
    prepared: Prepared,
    adversaries: tuple[ThreatModel, ...],
    on_step: OnStep = lambda done, total: None,
) -> Finding:
    seed = prepared.streams
    own = seed.child("noise of the run")
    defense, setting, problem = prepared.defense, prepared.setting, prepared.learned.problem
    rounds = examined_rounds(defense.n_rounds, own)
    some: list[Heard] = []
    missed = defaultdict[tuple[str, str], list[int]](list)
    try:
        reason = too_large_to_examine(defense, problem, setting, len(rounds))
        if reason is None:
            with torch.no_grad():
                played = RealRounds(defense, problem, setting, seed, own, adversaries, rounds)
                for round in played.play(lambda done: on_step(done, len(rounds))):
                    some += _heard(round, missed)
    except Exception as error:
        reason = reason_not_examined(error)
    if reason is not None:
        return _finding([], 0, (f"not examined: {reason}",), (f"all messages ({reason})",))
    by_name = {h.name: [one for one in some if one.name == h.name] for h in some}
    tests = [test for group in by_name.values() for test in _tests(group, setting, own)]
    tests += [test for k in {h.round for h in some} for test in _rows(some, k, own)]
    for name, ks in by_name.items():  # directions of a large message are examined in a round
        directions = missed.get((name, DIRECTIONS), [])
        if len(directions) < len(ks):
            missed.pop((name, DIRECTIONS), None)
    left = [f'"{message}" in {_ranges(ks)} ({why})' for (message, why), ks in missed.items()]
    n = streams_of(setting, len(rounds)) * len(rounds)
    found = _finding(tests, n, tuple(_notes(some)), tuple(left))
    examined = {Name.ROUNDS: Metric(value=len(rounds), n=defense.n_rounds)}
    size = _size(by_name, {r.family for r in _every_release(defense, setting)})
    if size is not None:
        examined[Name.NOISE_OVER_DECLARED] = size
    return found.model_copy(update={"metrics": {**found.metrics, **examined}})


def _every_release(defense: Defense, setting: Setting) -> Mechanism:
    return defense.mechanism(setting, EVERYBODY, setting.holders[0]).most


def _size(by_name: Mapping[str, list[Heard]], families: set[NoiseFamily]) -> Metric | None:
    """The noise that is really sent over the declared one, of the message that has least of it.

    None where no message has one draw of a known law in each number.
    """
    every = list[Metric]()
    for group in by_name.values() if len(families) == 1 else ():
        (family,) = families
        total, n = 0.0, 0
        for h in (h for h in group if h.per_draw is not None and h.is_tested):
            assert h.per_draw is not None
            used = h.per_draw > SHOWN * h.per_draw.max()
            units = (h.noise / h.per_draw)[used].double()
            total += float((units.abs() if family == "laplace" else units.square()).sum())
            n += units.numel()
        if n > 0:
            value, low, high = size_of_draws(total, n, family, CONFIDENCE / len(by_name))
            every.append(Metric(value=value, low=low, high=high, n=n))
    return min(every, key=lambda metric: metric.ends[0], default=None)


def _heard(round: RealRound, missed: dict[tuple[str, str], list[int]]) -> Iterator[Heard]:
    """The messages of a round, and into ``missed`` rounds by message and why it is not tested."""
    for message in round.messages():
        found = heard(message)
        if isinstance(found, str):
            missed[message.name, found].append(message.round)
            continue
        if found.left_out:
            missed[found.name, f"{found.left_out} of its senders or links"].append(found.round)
        if found.no_directions:
            missed[found.name, DIRECTIONS].append(found.round)
        if found.noise.any() and not found.is_tested:
            why = "coordinates are mixed"
            if found.own:
                why = "it is of draws of its own, which cannot be set"
            elif not (found.linear or found.loudly_linear):
                why = "the message is not linear in it"
            missed[found.name, why].append(found.round)
        elif found.shares_unseen(DIFFERENT):
            missed[found.name, UNSEEN].append(found.round)
        yield found


def _ranges(numbers: list[int]) -> str:
    """Such as "rounds 1 to 3, 7", or how many rounds these are if they are in many pieces."""
    runs: list[list[int]] = []
    for n in sorted(set(numbers)):
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    if len(runs) > PIECES:
        return f"{len(set(numbers))} rounds"
    said = ", ".join(f"{a}" if a == b else f"{a} to {b}" for a, b in runs)
    return f"{'rounds' if len(set(numbers)) > 1 else 'round'} {said}"


def _finding(
    tests: list[NoiseTest], n: int, notes: tuple[str, ...], not_examined: tuple[str, ...]
) -> Finding:
    count = sum(test.among for test in tests)
    worst = min(tests, key=lambda test: test.p, default=None)
    p = 1.0 if worst is None else min(1.0, count * worst.p)
    shown = worst if p < DIFFERENT else None
    said = (
        f"{n} plays of a round under as many streams of noise; {count} tests of every coordinate, "
        "of coordinates, rows, rounds and streams against one another",
        f"the verdict is at p < {DIFFERENT:g} for all of them together, apart from the 5% of "
        "refutations",
    )
    return Finding(
        role=Role.NOISE,
        kind="control",
        title=shown.says if shown else "noise of the real run",
        message=shown.message if shown else None,
        rounds=shown.rounds if shown else (),
        world="defense",
        metrics={Name.P_VALUE: Metric(value=p, n=n)} if tests else {},
        verdict=Verdict.UNSUPPORTED if shown else None,
        notes=(*(said if tests else ()), *notes, FLOATS),
        not_examined=not_examined,
    )


def _notes(heard: list[Heard]) -> Iterator[str]:
    for name in dict.fromkeys(h.name for h in heard):
        some = [h for h in heard if h.name == name]
        if not any(h.noise.any() for h in some):
            yield f'"{name}" carries no noise of its own'
        elif all(h.own for h in some):
            yield f'"{name}" differs whenever its round is played: its coordinates are not tested'
        elif not any(h.linear or h.loudly_linear for h in some):
            yield f'"{name}" is not linear in its noise: its coordinates are not tested'
        elif not any(h.is_tested for h in some):
            yield f'"{name}" mixes coordinates of gradients: its coordinates are not tested'


def _tests(group: list[Heard], setting: Setting, own: Streams) -> Iterator[NoiseTest]:
    """All of one message, by itself."""
    layers = _Layers(setting, group[0].noise.shape[-1])
    for h in group:
        yield from _without_noise(h, layers)
        if h.is_tested:
            yield from _sums_without_noise(h, layers)
        yield from _too_fine_or_quiet(h)
    tested = [h for h in group if h.is_tested]
    if not tested:
        return
    units = [_in_units(h) for h in tested]
    rounds = tuple(h.round for h in tested)
    name = group[0].name
    if not all(h.enough for h in tested):
        yield from _scales(units, tested, layers, rounds)
    yield from _coordinates(units, tested, layers, own)
    signs = [np.sign(u).astype(np.float32) for u in units]
    for a, b in combinations(range(len(units)), 2):
        if units[a].shape == units[b].shape:
            total = np.einsum("srd,srd->r", signs[a], signs[b])  # by row: agreeing minus others
            p = _least(sign_p_value(total, signs[a].shape[0] * signs[a].shape[2]))[0]
            says = f'the noise of "{name}" in rounds {rounds[a]} and {rounds[b]} is not independent'
            yield NoiseTest(p, len(total), name, (rounds[a], rounds[b]), says)
    yield from _between_streams(units, name, rounds)


def _too_fine_or_quiet(h: Heard) -> Iterator[NoiseTest]:
    """Data that show more finely than the noise, or a direction of rows with less noise than data
    in it ask for."""
    if h.finer is not None:
        yield NoiseTest(0.0, 1, h.name, (h.round,), h.finer)
    if h.quiet is not None:
        p, among, rows, share = h.quiet
        less = "no noise" if share < SILENT else f"{share**0.5:.2g} times the noise of others"
        named = [_of(h, r).removeprefix("of ") for r in rows[:3]]
        named += [f"{len(rows) - 3} more"] if len(rows) > 3 else []
        together = f"of {', '.join(named[:-1])} and {named[-1]} together"
        where = _of(h, rows[0]) if len(rows) == 1 else together
        says = f'{less} in a direction of "{h.name}" {where} in round {h.round}'
        yield NoiseTest(p, among, h.name, (h.round,), says)


def _without_noise(h: Heard, layers: "_Layers") -> Iterator[NoiseTest]:
    """Coordinates or rows that no noise moves, of a message with noise, though gradients do.

    A step may leave coordinates out by chance, as the smaller half of what was noised: there those
    that are left out in all streams are as many as such rates make them.
    """
    silent = h.louder.abs() <= SILENT * h.louder.abs().max()  # [streams, rows, d]
    moved = h.largest_data
    moves = moved > DIFFERENCE * moved.square().mean().sqrt()
    noiseless = moves & silent.all(dim=0)
    if silent.all() or not noiseless.any():
        return
    row = int(noiseless.sum(dim=1).argmax())
    which = noiseless[row].nonzero().flatten()
    p = float(more_than(len(which) - 1, int(moves[row].sum()), _left_out(silent[:, row])))
    what = "" if len(which) == noiseless.shape[1] else f"{layers.named(which.tolist())} of "
    says = f'no noise on {what}"{h.name}" {_of(h, row)} in round {h.round}'
    yield NoiseTest(p, len(noiseless), h.name, (h.round,), says)


def _left_out(silent: Tensor) -> float:
    """How likely chance leaves a coordinate out in all streams, of ``silent`` [streams, d].

    By those that noise reaches seldom, of all that it reaches in any of n streams: reached with
    probability q in each, they are in n q / (1 - (1 - q)^n) of them on average.
    """
    n, reached = len(silent), (~silent).sum(dim=0).double()
    if not reached.any():
        return 0.0
    seldom = float(np.quantile(reached[reached > 0].numpy(), SELDOM))
    if seldom <= 1:
        return 1.0
    q: float = brentq(lambda q: n * q / (1 - (1 - q) ** n) - seldom, 1e-9, 1.0)
    return (1 - q) ** n


def _sums_without_noise(h: Heard, layers: "_Layers") -> Iterator[NoiseTest]:
    """Sums over a layer, or over all, in which the noise cancels and gradients do not.

    Of independent noise the sums of a row are this small in all streams, three at least, with a
    probability below 1e-12.
    """
    whole = ("all coordinates", slice(0, h.noise.shape[-1]))
    for part, s in (whole, *layers.parts):
        noise, data = h.louder[..., s].double(), [x[:, s].double() for x in h.data]
        if noise.shape[-1] < 2:
            continue
        sums, sizes = noise.sum(dim=-1).abs(), torch.linalg.vector_norm(noise, dim=-1)
        cancels = ((sums <= CANCELLED * sizes) & (sizes > 0)).all(dim=0)
        moves = [
            x.sum(dim=-1).abs() > DIFFERENCE * torch.linalg.vector_norm(x, dim=-1) for x in data
        ]
        rows = (cancels & torch.stack(moves).any(dim=0)).nonzero().flatten()
        if len(rows):
            says = f'no noise on the sum over {part} of "{h.name}" {_of(h, int(rows[0]))}'
            yield NoiseTest(0.0, 1, h.name, (h.round,), f"{says} in round {h.round}")


def _in_units(h: Heard) -> Array:
    """Noise by the scale that it should have, 0 where no gradient shows, [streams, rows, d].

    That scale is the one that is asked, times what later steps make of gradients and noise alike.
    """
    data = h.largest_data
    known = h.noise_stays and h.data_stays
    scale = h.asked * data if known else (data > 0).to(data)
    used = scale > SHOWN * scale.max()
    noise = h.noise if h.linear else h.louder
    units = torch.where(used, noise / torch.where(used, scale, 1.0), 0.0).double()
    return (units / units.square().mean(dim=-1, keepdim=True).sqrt().clamp(min=1e-300)).numpy()


def _scales(
    units: list[Array], tested: list[Heard], layers: "_Layers", rounds: tuple[int, ...]
) -> Iterator[NoiseTest]:
    """Coordinates with less noise than others, in all rows or in the one with least; or more."""
    name, n_rows = tested[0].name, min(u.shape[1] for u in units)
    used = np.logical_and.reduce([(u != 0).any(axis=(0, 1)) for u in units])
    if used.sum() < 2:
        return
    squares = [np.square(u[..., used]) for u in units]
    by_row = np.mean([x[:, :n_rows].mean(axis=0) for x in squares], axis=0)  # [rows, coordinates]
    middle = np.median(by_row, axis=1)
    row = int(np.argmin(np.where(middle > 0, by_row.min(axis=1) / middle.clip(1e-300), np.inf)))
    less, more = scale_p_values(np.concatenate([x.mean(axis=1) for x in squares]))
    less_in_row, _ = scale_p_values(np.concatenate([x[:, row] for x in squares]))
    whose = f" {_of(tested[0], row)}"
    tests = [(less, "less", "", 1), (less_in_row, "less", whose, n_rows), (more, "more", "", 1)]
    for p, what, of, times in tests[: 3 if all(h.noise_stays for h in tested) else 2]:
        least, c = _least(p)
        like = np.flatnonzero(p < 100 * max(least, 1e-300)) if least < DIFFERENT else [c]
        where = layers.named([int(np.flatnonzero(used)[i]) for i in like])
        says = f'{where} of "{name}"{of} carries {what} noise than other coordinates'
        yield NoiseTest(least, times * len(p), name, rounds, says)


def _coordinates(
    units: list[Array], tested: list[Heard], layers: "_Layers", own: Streams
) -> Iterator[NoiseTest]:
    name, rounds = tested[0].name, tuple(h.round for h in tested)
    rng = own.numpy("projection", name)
    n_rows = min(u.shape[1] for u in units)
    for r in range(n_rows):
        noise = np.concatenate([u[:, r] for u in units])  # [streams x rounds, d]
        if noise.shape[1] > 1:
            p = lag_p_values(noise)
            least, lag = _least(p)
            says = f'coordinates {lag + 1} apart of "{name}" {_of(tested[0], r)} share their noise'
            yield NoiseTest(least, len(p), name, rounds, says)
        for (one, a), (other, b) in combinations(layers.parts, 2):
            size = min(a.stop - a.start, b.stop - b.start)
            first, second = (noise[:, s.start : s.start + size] for s in (a, b))
            p = sign_p_value(np.sum(np.sign(first) * np.sign(second)), first.size)
            says = f'layers "{one}" and "{other}" of "{name}" {_of(tested[0], r)} share their noise'
            yield NoiseTest(float(p), 1, name, rounds, says)
        for i, j in parallel_pairs(noise.T, rng):
            if _data_differ(tested[0], r, i, j, noise):
                where = layers.named([i, j])
                says = f'{where} of "{name}" {_of(tested[0], r)} share their noise'
                yield NoiseTest(0.0, 1, name, rounds, says)
                break


def _data_differ(h: Heard, row: int, i: int, j: int, noise: Array) -> bool:
    """Whether two coordinates with the same noise show something of gradients between them."""
    data = h.largest_data
    scale = h.asked * data if h.noise_stays and h.data_stays else torch.ones_like(data)
    a = float(noise[:, i] @ noise[:, j] / (noise[:, i] @ noise[:, i]))
    for data in h.data:
        x, y = (float(data[row, c] / scale[row, c]) for c in (i, j))
        if abs(y - a * x) > DIFFERENCE * max(abs(x), abs(y)):
            return True
    return False


def _between_streams(units: list[Array], name: str, rounds: tuple[int, ...]) -> Iterator[NoiseTest]:
    same_shape = len({u.shape for u in units}) == 1
    signs = np.sign(np.concatenate(units, axis=2) if same_shape else units[0])
    above = np.triu_indices(len(signs), 1)
    for r in range(signs.shape[1]):
        rows = signs[:, r].astype(np.float32)
        p = sign_p_value((rows @ rows.T)[above], rows.shape[1])
        says = f'the noise of "{name}" is not independent between runs of other seeds'
        yield NoiseTest(_least(p)[0], len(p), name, rounds, says)


def _rows(heard: list[Heard], k: int, own: Streams) -> Iterator[NoiseTest]:
    """Rows of the messages of a round whose noise is the same, while their data differ."""
    rows: list[tuple[Heard, int, Array]] = []
    for h in heard:
        if h.round == k and (h.linear or h.loudly_linear or h.own):
            noise = (h.noise if h.own else h.louder)[:4].double().numpy()
            rows += [(h, r, noise[:, r].ravel()) for r in range(noise.shape[1])]
    for width in {h.noise.shape[-1] for h, _, _ in rows} - {1}:
        some = [x for x in rows if x[0].noise.shape[-1] == width and np.mean(x[2] != 0) > 0.5]
        if len(some) < 2:
            continue
        vectors = np.stack([x[2] for x in some])
        for i, j in parallel_pairs(vectors, own.numpy("rows", k, width)):
            (one, r, x), (other, s, y) = some[i], some[j]
            ratio = float(x @ y / (x @ x))
            if one.adversaries[r] & other.adversaries[s] and _differ(
                one.data, other.data, r, s, ratio
            ):
                says = (
                    f'"{one.name}" {_of(one, r)} and "{other.name}" {_of(other, s)} carry the same '
                    f"noise in round {k}: their difference has none"
                )
                yield NoiseTest(0.0, 1, one.name, (k,), says)
                return


def _differ(
    one: tuple[Tensor, ...], other: tuple[Tensor, ...], r: int, s: int, ratio: float
) -> bool:
    for x, y in zip(one, other, strict=True):
        size = max(y[s].abs().max().item(), abs(ratio) * x[r].abs().max().item())
        if (y[s] - ratio * x[r]).abs().max().item() > DIFFERENCE * size:
            return True
    return False


def _least(p: Array) -> tuple[float, int]:
    i = int(np.argmin(p)) if np.size(p) else 0
    return (float(np.ravel(p)[i]) if np.size(p) else 1.0), i


def _of(h: Heard, row: int) -> str:
    sender, receiver = h.rows[row]
    return f"of agent {sender}" + ("" if receiver is None else f" to agent {receiver}")


class _Layers:
    """The layers of a model, by which coordinates of a message are called."""

    def __init__(self, setting: Setting, width: int) -> None:
        self.parts: list[tuple[str, slice]] = []
        start = 0
        for name, size in setting.layers if width == setting.d else ():
            self.parts.append((name, slice(start, start + size)))
            start += size

    def named(self, coordinates: list[int]) -> str:
        first, last = min(coordinates), max(coordinates)
        range_ = f"{first}" if first == last else f"{first} to {last}"
        many = "coordinate" if first == last else "coordinates"
        among = "" if last - first < len(coordinates) else f"{len(coordinates)} of "
        layers = [n for n, s in self.parts if any(s.start <= c < s.stop for c in coordinates)]
        inside = f" ({', '.join(layers[:3])}{', ...' if len(layers) > 3 else ''})" if layers else ""
        return f"{among}{many} {range_}{inside}"
