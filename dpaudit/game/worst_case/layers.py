"""The game of one coordinate beside the real model: its layers, and its dimension.

Where a defense clips layers one by one, a record may fill all of them at once.

The game's model has one coordinate, and a record that fills it. Behind a clip of the whole gradient
no record does more. Behind a clip of each layer one does: it moves every layer by as much as one
coordinate alone, sqrt(L) times as far in all. So rounds are played, until a message shows the
record, with a coordinate for each layer and a record of the same length in all of them. Where each
layer then moves as the one coordinate did, under noise that does so too, the model is L copies of
that of one coordinate: mu^2 is L times as large, and so is the pure loss. Where the record weighs
more in its noise but not alike in all layers, as behind a clip of groups of them, the algebra has
no upper end.

``wider`` asks whether a model of one coordinate stands for the real one.

The game's model has one coordinate, which stands for each of a larger model if a step does to all
of them what it does to one. A defense that reads the size of what it sends, as one whose noise has
a given norm in all and not in each coordinate, does otherwise. So the first round is played at the
real dimension with record and noise on one coordinate alone, and with a coordinate for each layer,
all of which a record of the same length fills. Where the record then weighs more in its noise than
it does in the game, what that message alone reveals is a lower end of the leak, and the algebra of
the game has no upper one. Nor has it where, of record and noise on all coordinates, the record
weighs more at some than at the first of their layer.

A step may mix coordinates, and show at one of them less than at several, as one that takes the mean
over coordinates away shows nothing there. So the round is also played at a few coordinates, with
the record on the first and noise on each: all that a row says of the record is then what the best
linear test of its coordinates says.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf, isinf, isqrt, sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from dpaudit.defense import Messages, Release, Scale, ThreatModel
from dpaudit.defense.noise import turned_sign, turnings
from dpaudit.game.game import Game
from dpaudit.game.probing.linearity import COORDINATES, fewest_coordinates
from dpaudit.game.probing.observer import visible_rows
from dpaudit.game.step_inputs import ChosenNoise, Family

ROUNDS = 100  # played at most until a message shows the record: its agent may not take part
RELATIVE = 1e-6  # equal numbers differ by this share of a message's largest number
ENTRIES = 10**7  # numbers of a round in all plays: of more layers, the first ones are played
MORE = 1.01  # times the record's weight in the game, below which both are called equal
MOST = 512  # units of noise that are played at once
STAYS = 1e-9  # rounding in other coordinates, relative to the own one


class CoordinateMoves(NamedTuple):
    """How far each coordinate of each row of a message moves [rows, d]."""

    by_record: Tensor
    by_noise: Tensor


class _NotPlayed(Exception):
    """Two equal runs differ, noise on one coordinate reaches another, or widths are others."""


def in_layers(game: Game) -> Game:
    """The game of a record that fills all layers, if each moves as one coordinate alone does."""
    every = filling(game)
    if every is None:
        return game
    one, several = every
    moves = any(moved.by_record.any() for moved in one.values())
    alike = moves and all(_are_copies(one[at], moved) for at, moved in several.items())
    return replace(game, filled=len(game.layers)) if alike else game


def filling(
    game: Game,
) -> tuple[dict[tuple[int, str], CoordinateMoves], dict[tuple[int, str], CoordinateMoves]] | None:
    """What record and noise move in a model of one coordinate, and in one with layers.

    The first layers alone where all would take more than ``ENTRIES``. None: there are none, or two
    equal runs differ, or noise of one coordinate reaches another, or one cannot be played.
    """
    graph = game.setting.network.at(1)
    layers = game.layers[: isqrt(ENTRIES // (graph.n_edges + graph.n_agents))]  # [d] plays of d
    if len(layers) < 2 or fewest_coordinates(game) > 1:
        return None
    try:
        one = _moved_in_layers(game, 1)
        several = _moved_in_layers(replace(game, layers=layers, filled=len(layers)), len(layers))
    except _NotPlayed:
        return None
    return (one, several) if one.keys() == several.keys() else None


def _are_copies(one: CoordinateMoves, several: CoordinateMoves) -> bool:
    for alone, each in zip(one, several, strict=True):
        allowed = RELATIVE * alone.abs().amax() if alone.numel() else 0.0
        if alone.shape[:-1] != each.shape[:-1] or not ((each - alone).abs() <= allowed).all():
            return False
    return True


def _moved_in_layers(game: Game, d: int) -> dict[tuple[int, str], CoordinateMoves]:
    found, apart = {}, torch.eye(d, dtype=torch.bool)[:, None]
    asked = ChosenNoise()
    _sent(game, d, 0.0, asked)
    plays = [
        (0.0, 1, ChosenNoise()),
        (0.0, 1, ChosenNoise()),
        (1.0, 1, ChosenNoise()),
        *((0.0, d, _OneByOne(d, turning)) for turning in turnings(len(asked.draws))),
    ]
    states = [game.start(trials, coordinates=d) for _, trials, _ in plays]
    for k in range(1, min(ROUNDS, game.defense.n_rounds) + 1):
        rounds = [
            game.step(state, k, game.drawn_alike(times, trials), noise)
            for state, (times, trials, noise) in zip(states, plays, strict=True)
        ]
        states = [round.state for round in rounds]
        still, again, drawn, *noisy = (round.sent for round in rounds)
        for name, sent in still.items():
            record = drawn[name].payload - sent.payload
            each = torch.stack([way[name].payload - sent.payload for way in noisy])
            noise = each.square().mean(dim=0).sqrt()  # [d, rows, d], of one coordinate in each
            if sent.payload.shape[-1] != d or not torch.equal(sent.payload, again[name].payload):
                raise _NotPlayed
            if not bool((noise.abs() <= STAYS * noise.abs().amax()).logical_or(apart).all()):
                raise _NotPlayed
            found[k, name] = CoordinateMoves(record[0], noise.diagonal(dim1=0, dim2=2))
        if any(moved.by_record.any() for moved in found.values()):
            break
    return found


class _OneByOne(ChosenNoise):
    """Trial l has noise on coordinate l alone, of each row in a size of its own.

    All draws have it, with one of ``turnings`` of their signs: some may be subtracted.
    """

    def __init__(self, d: int, turning: int) -> None:
        super().__init__()
        self._d, self._turning = d, turning
        self._numbers: dict[str, int] = {}

    def _played(self, family: Family, message: str, scale: Scale, like: Tensor) -> Tensor:
        if like.shape[-1] != self._d:
            raise _NotPlayed
        generator = torch.Generator().manual_seed(0)
        sizes = torch.rand(like.shape[-2], 1, generator=generator, dtype=torch.float64) + 0.5
        sizes *= turned_sign(self._numbers.setdefault(message, len(self._numbers)), self._turning)
        self._units = {message: sizes.to(like) * torch.eye(self._d).to(like)[:, None]}
        return super()._played(family, message, scale, like)


Place = tuple[str, int]  # message and row
Units = dict[str, Tensor]  # units of noise by draw


class Wider(NamedTuple):
    """A message of the first round that reveals more at the model's own dimension."""

    message: str
    times: float  # how much more the record weighs in its noise than at one coordinate
    d: int  # coordinates that were played
    where: str  # name of the coordinates
    release: Release | None  # release of the message alone; None: no family of noise
    mixes: bool = False  # whether the step mixes coordinates, so that no one is played by itself

    @property
    def note(self) -> str:
        if isinf(self.times):
            return (
                f'the record shows in "{self.message}" {self.where}, and not at one, of which the '
                "algebra is: no upper end"
            )
        return (
            f'the record weighs {self.times:.3g} times as much in the noise of "{self.message}" '
            f"{self.where} as at one coordinate, of which the algebra is: no upper end"
        )


def wider(game: Game, threat_model: ThreatModel) -> Wider | None:
    """The message that reveals most beside what the game says of it; None: none does.

    The real model is not played where noise or record of one coordinate reach others. No round is
    of which a play, or noise on each number of all its messages, is larger than ``ENTRIES``.
    """
    ways = _by_dimension, _by_layers, _by_coordinate, _by_mixing
    found = [w for w in (way(game, threat_model) for way in ways) if w]
    return max(found, key=lambda wide: wide.times, default=None)


def _heaviest(times: Mapping[Place, float]) -> Place | None:
    """Where the record weighs most, if clearly more than in the game."""
    at = max(times, key=lambda place: times[place], default=None)
    return None if at is None or times[at] < MORE else at


def _visible(sent: Messages, threat_model: ThreatModel) -> list[Place]:
    return [(name, r) for name, s in sent.items() for r in visible_rows(s, threat_model).tolist()]


def _by_layers(game: Game, threat_model: ThreatModel) -> Wider | None:
    """The leak of a record in all layers; None if each layer moves as one coordinate does."""
    played = None if game.filled > 1 or game.held is not None else filling(game)
    if played is None:
        return None
    one, several = ({name: moved[1, name] for k, name in moved if k == 1} for moved in played)
    places = _visible(_sent(game, 1, 0.0, ChosenNoise()), threat_model)
    times = {(name, r): _times(one[name], several[name], r) for name, r in places}
    at = _heaviest(times)
    if at is None:
        return None
    alone = _release(game, threat_model, 1, at)
    if alone is not None:
        noise = alone.noise_multiplier / times[at]
        alone = alone.model_copy(update={"noise_multiplier": noise})
    n_layers = several[at[0]].by_record.shape[-1]
    return Wider(at[0], times[at], n_layers, f"in {n_layers} layers together", alone)


def _times(one: CoordinateMoves, several: CoordinateMoves, row: int) -> float:
    """How much more the record weighs in the noise of a row; infinite: in a layer without any."""
    record, noise = (float(moved[row].abs()) for moved in one)
    if record == 0 or noise == 0:
        return 0.0
    in_each = several.by_record[row] / several.by_noise[row] * noise / record
    return float(torch.linalg.vector_norm(in_each.nan_to_num(0.0, torch.inf, -torch.inf)))


def _by_dimension(game: Game, threat_model: ThreatModel) -> Wider | None:
    """The leak of a record on one coordinate of the real model."""
    d, n_agents = game.coordinates, game.setting.n_agents
    entries = (game.setting.network.at(1).n_edges + n_agents) * d
    if d == 1 or game.held is not None or entries > ENTRIES:
        return None
    one, real = (_weights(game, threat_model, width, _at_once) for width in (1, d))
    if one is None or real is None or one.record.keys() != real.record.keys():
        return None
    norm = torch.linalg.vector_norm
    noises = {at: (float(norm(one.draws[at])), float(norm(real.draws[at]))) for at in one.record}
    times = {
        at: (real.record[at] / one.record[at]) * (narrow / wide)
        for at, (narrow, wide) in noises.items()
        if one.record[at] > 0 and narrow > 0 and wide > 0
    }
    at = _heaviest(times)
    if at is None:
        return None
    alone = _release(game, threat_model, d, at)
    return Wider(at[0], times[at], d, f"at the model's {d} coordinates", alone)


def _by_coordinate(game: Game, threat_model: ThreatModel) -> Wider | None:
    """The leak of a record in every coordinate of the real model, if it weighs more than at
    the first coordinate of that layer. No lower end: it was not played there alone."""
    d, graph = game.coordinates, game.setting.network.at(1)
    if d == 1 or game.held is not None or (graph.n_edges + game.setting.n_agents) * d > ENTRIES:
        return None
    every = replace(game, setting=game.setting.stand_in(d), width=d, spread=d)
    asked = ChosenNoise()
    base = every.first_sent(asked)
    record = _change(base, every.first_sent(ChosenNoise(), 1.0))
    squares: dict[str, Tensor] = {}
    for turning in turnings(len(asked.draws)):
        plain, signed = (
            _change(base, every.first_sent(ChosenNoise(_everywhere(asked, turning, signs))))
            for signs in (False, True)
        )
        for name, noise in plain.items():
            if not (signed[name] - noise).abs().amax() <= RELATIVE * noise.amax():
                return None  # coordinates are mixed
            squares[name] = squares.get(name, 0.0) + noise.square()
    times = {}
    for name, row in _visible(base, threat_model):
        weights = record[name][row] / squares[name][row].sqrt()
        times[name, row] = max(map(_unevenness, _layers_of(game, weights)), default=0.0)
    at = _heaviest(times)
    return None if at is None else Wider(at[0], times[at], d, "at other coordinates", None)


def _change(base: Messages, other: Messages) -> dict[str, Tensor]:
    """How far each number of each message moves, [rows, d]."""
    return {name: (other[name].payload - sent.payload)[0].abs() for name, sent in base.items()}


def _everywhere(asked: ChosenNoise, turning: int, signs: bool) -> Units:
    """All draws together on all coordinates, in a size for each row: alike, or of random signs.

    Draws for parts of the coordinates have the same sizes, so that these are alike.
    """
    units = asked.zeros(1)
    for number, drawn in enumerate(units.values()):
        generator = torch.Generator().manual_seed(0)
        drawn += turned_sign(number, turning)
        drawn *= torch.rand(drawn.shape[-2], 1, generator=generator) + 0.5
        if signs:
            one = torch.Generator().manual_seed(1)
            drawn *= 2 * torch.randint(0, 2, (drawn.shape[-1],), generator=one) - 1
    return units


def _layers_of(game: Game, weights: Tensor) -> tuple[Tensor, ...]:
    sizes = [size for _, size in game.layers]
    return weights.split(sizes) if sum(sizes) == len(weights) else (weights,)


def _unevenness(weights: Tensor) -> float:
    """The largest of a layer's weights over its first; 0 if nothing is known of the first."""
    first = float(weights[0]) if len(weights) else 0.0
    return float(weights.nan_to_num(0.0).max()) / first if 0 < first < inf else 0.0


def _by_mixing(game: Game, threat_model: ThreatModel) -> Wider | None:
    """The leak of a record on one of a few coordinates, if its messages are read in all."""
    d = min(COORDINATES, game.coordinates)
    if game.held is not None or d == 1 or _is_too_wide(game, d):
        return None
    one, several = (_shown(game, threat_model, width) for width in (1, d))
    times = {
        at: (several[at][0] / one[at][0] if one[at][0] > 0 else inf)
        for at in one.keys() & several.keys()
        if several[at][0] > STAYS
    }
    at = _heaviest(times)
    if at is None:
        return None
    mu, is_gaussian = several[at]
    release = game.releases([mu])[0] if is_gaussian else None
    return Wider(at[0], times[at], d, f"at {d} coordinates", release, mixes=True)


def _is_too_wide(game: Game, d: int) -> bool:
    """Whether noise on each number that is drawn makes a play of the round too large."""
    graph = game.setting.network.at(1)
    numbers = (graph.n_edges + graph.n_agents) * d  # in messages, and in draws for each of them
    if numbers**2 > ENTRIES:
        return True
    asked = ChosenNoise()
    sent = _sent(game, d, 0.0, asked)
    return asked.n_draws * sum(message.payload.numel() for message in sent.values()) > ENTRIES


def _shown(game: Game, threat_model: ThreatModel, d: int) -> dict[Place, tuple[float, bool]]:
    """By row: the record's weight in the noise of the first round, and whether that is Gaussian.

    Rows are left out in which a part of the record has no noise, or that are no numbers: that is
    for the game to say.
    """
    asked, times = ChosenNoise(), game.displacement
    base, there = _sent(game, d, 0.0, asked), _sent(game, d, times, ChosenNoise())
    gaussian = all(draw.family == "gaussian" for draw in asked.draws.values())
    shifts = []
    for name, draw in asked.draws.items():
        units = torch.eye(draw.numbers, dtype=torch.float64).view(-1, *draw.shape[-2:])
        shifts += [
            _sent(game, d, 0.0, ChosenNoise({name: some}), len(some)) for some in units.split(MOST)
        ]
    found = {}
    for name, row in _visible(base, threat_model) if shifts else ():
        still = base[name].payload[0, row]
        record = there[name].payload[0, row] - still
        noise = torch.cat([shift[name].payload[:, row] - still for shift in shifts])
        if not (record.isfinite().all() and noise.isfinite().all()):
            continue
        solved = torch.linalg.lstsq(noise.mT, record, driver="gelsd").solution
        if torch.allclose(noise.mT @ solved, record, rtol=1e-6, atol=1e-12):
            found[name, row] = torch.linalg.vector_norm(solved).item() / times, gaussian
    return found


class _Weights(NamedTuple):
    """What record and noise of one coordinate do to that coordinate of the first messages."""

    record: Mapping[Place, float]
    draws: Mapping[Place, Tensor]  # effect of each play of the noise, [plays]
    laplace: Tensor  # [plays] bool: whether it is of Laplace noise


def _weights(
    game: Game, threat_model: ThreatModel, d: int, plays: Callable[[ChosenNoise], list[Units]]
) -> _Weights | None:
    """``plays``: the units of noise that are played, by draw. None: other coordinates move too."""
    asked = ChosenNoise()
    base = _sent(game, d, 0.0, asked)
    played = plays(asked)
    moved = [_moved(base, _sent(game, d, 1.0, ChosenNoise()))]
    moved += [_moved(base, _sent(game, d, 0.0, ChosenNoise(units))) for units in played]
    known = [effect for effect in moved if effect is not None]
    if len(known) < len(moved):
        return None
    places = _visible(base, threat_model)
    effects = {(m, r): torch.stack([effect[m][r] for effect in known]) for m, r in places}
    laplace = [any(asked.draws[m].family == "laplace" for m in units) for units in played]
    record = {place: float(effect[0]) for place, effect in effects.items()}
    noise = {place: effect[1:] for place, effect in effects.items()}
    return _Weights(record, noise, torch.tensor(laplace, dtype=torch.bool))


def _release(game: Game, threat_model: ThreatModel, d: int, at: Place) -> Release | None:
    """Release of one message alone: any number of Gaussian draws, or one Laplace draw."""
    each = _weights(game, threat_model, d, _one_by_one)
    if each is None:
        return None
    draws = each.draws[at]
    is_laplace = bool(((draws > 0) & each.laplace).any())
    if is_laplace and int((draws > 0).sum()) > 1:
        return None
    noise = float(torch.linalg.vector_norm(draws))
    if noise == 0:  # as for a product of draws, none of which acts alone
        return None
    size = each.record[at] / noise * (sqrt(2) if is_laplace else 1.0)
    return game.releases([size], "laplace" if is_laplace else "gaussian")[0]


def _at_once(asked: ChosenNoise) -> list[Units]:
    """All draws together on the first coordinate, each in a size of its own."""
    generator, units = torch.Generator().manual_seed(0), asked.zeros(1)
    for drawn in units.values():
        drawn[0, :, 0] = torch.rand(drawn.shape[-2], generator=generator) + 0.5
    return [units]


def _one_by_one(asked: ChosenNoise) -> list[Units]:
    """A standard deviation of each draw on the first coordinate."""
    found = []
    for name, zeros in asked.zeros(1).items():
        for row in range(zeros.shape[-2]):
            unit = zeros.clone()
            unit[0, row, 0] = 1.0
            found.append({name: unit})
    return found


def _sent(game: Game, d: int, drawn: float, noise: ChosenNoise, trials: int = 1) -> Messages:
    sized = replace(game, setting=game.setting.stand_in(d), width=d)
    return sized.first_sent(noise, drawn, trials)


def _moved(base: Messages, other: Messages) -> dict[str, Tensor] | None:
    """By message: how far each row's first coordinate moves; None if another one moves."""
    found = {}
    for name, sent in base.items():
        moved = (other[name].payload - sent.payload)[0].abs()
        if not bool((moved[:, 1:] <= STAYS * moved[:, :1].amax()).all()):
            return None
        found[name] = moved[:, 0]
    return found
