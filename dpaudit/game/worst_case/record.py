"""The record that is attacked: whose it is, in which batch, and on which coordinates.

Of agents that declare the same noise the one whose record leaks most is the victim. Of a clip's
ball the record is the worst in the norm of the noise that should hide it. Noise of scale b hides a
vector v by mu = |v|_2 / b if it is Gaussian, and by a pure loss of |v|_1 / b if it is Laplace
noise. The longest vectors of the ball that a record is clipped to are

    clip     noise      longest               its length
    L2, C    Gaussian   any                   C              one coordinate
    L1, C    Gaussian   one coordinate        C
    L1, C    Laplace    any                   C              one coordinate
    L2, C    Laplace    C / sqrt(d) in all    C sqrt(d)

so one coordinate is the worst but in the last case. There noise is independent in each coordinate,
and a step that is linear in it acts on each alike: d releases, each with 1 / sqrt(d) of the shift
that one coordinate has. Without sampling they compose as any releases do. With sampling at rate q
all are in a batch or none; the pure loss of a round is then ln(1 + q (e^(sqrt(d) L) - 1)), that of
one release whose shift is sqrt(d) times as large. Above delta = 0 a round of a Poisson sample has

    epsilon(delta) = ln(1 + q (e^(epsilon'(delta / q)) - 1)),  epsilon' of the d unsampled releases

since (1 - q) Q + q P - e^epsilon Q = q (P - e^epsilon' Q) for P and Q with and without the record,
and all rounds leak at least what one of them does. A record on one coordinate is in the ball too:
where it leaks more, its figure is the lower end.

Gradients that nothing clips by record have no longest vector: a record's is ``game.LENGTH`` on one
coordinate, and a function's is moved by the stated L1 distance on one coordinate.
"""

from dataclasses import replace
from functools import lru_cache
from itertools import islice, permutations
from math import ceil, sqrt

import numpy as np
import torch
from torch import Tensor

from dpaudit.accounting.releases import Interval, Mechanism, RecordAdjacency, Release, epsilon
from dpaudit.defense import Gradient, Noise, ThreatModel
from dpaudit.game.filtering.adversary import (
    SPARSE_FROM,
    Adversary,
    leak_by_agent,
    size_by_agent,
)
from dpaudit.game.filtering.leak import grams, worst_directions
from dpaudit.game.game import Game
from dpaudit.game.probing.linearity import COORDINATES, PLAYED, wide
from dpaudit.game.probing.observer import senders_by_row, visible_rows
from dpaudit.game.step_inputs import CanaryGradient, ChosenNoise, ClipNorms, OnFirst
from dpaudit.rng import Streams

FIRST = 2  # rounds: weights that scale noise, as those of push-sum, are 1 in the first
PATTERNS = 2  # patterns of a record's signs over rounds by which agents are compared
LOUDEST = 3  # agents of which each round is followed apart
ROUNDS = 100  # loudest rounds that are compared: each is a trial and a row of Gram matrices
MORE = 1 + 1e-4  # times what is declared, beyond rounding of two accountants
FEWEST, MOST = 32, 4000  # runs by which agents are compared
NUMBERS = 2**22  # numbers of a message in all these runs
TOO_MANY = 2**25  # with more numbers, agents and records are not compared
MORE_BY_MANY = 1.5  # times the squared shift of one coordinate, for which many are worth their time


def of_worst_agent(
    game: Game, threat_model: ThreatModel, delta: float, adjacency: RecordAdjacency
) -> Game:
    """The game of the agent whose record leaks most in the first rounds.

    Agents that declare the same may do different things: one forgets half of its noise, or clips
    otherwise. Another than the game's own victim is taken only if it declares the same noise and
    leaks more. An adversary of some links may see more of it in later rounds, so there it must leak
    more than is declared of as many batches. So must an agent whose record leaks more in the whole
    run, as one that has less noise in a single round. From ``SPARSE_FROM`` agents on the victim
    stays.
    """
    own, n_agents = set(threat_model.agents), game.setting.n_agents
    if n_agents >= SPARSE_FROM or game.held is not None:
        return game
    reads_all = all(threat_model.sees(*link) for link in permutations(range(n_agents), 2))
    declared = _noise(game, threat_model)
    others = [i for i in game.setting.holders if i != game.victim and i not in own]
    alike = [
        game,
        *(g for g in (_of(game, i) for i in others) if _noise(g, threat_model) == declared),
    ]
    if len(alike) == 1:
        return game
    rounds = torch.arange(min(FIRST, game.defense.n_rounds)) + 1
    adversary = Adversary(replace(game, sampling_rate=1.0), threat_model, len(rounds))
    first_leaks = leak_by_agent(adversary, [each.victim for each in alike], rounds)
    if reads_all and not first_leaks.H[0].any():
        return game
    for each in alike:
        if each.victim in first_leaks.noiseless:
            return each
    leaks: dict[Mechanism, Game] = {}
    for each, H in zip(alike, first_leaks.H, strict=True):
        leak = _leaked(each, H)
        low = _epsilon(leak, delta, adjacency).low
        if reads_all or low > MORE * _declared(each, threat_model, delta, adjacency, FIRST):
            leaks.setdefault(leak, each)
    worst = max(leaks, key=lambda leak: _epsilon(leak, delta, adjacency).low, default=None)
    chosen = game if worst is None else leaks[worst]
    return _of_whole_run(chosen, alike, threat_model, delta, adjacency)


def _of_whole_run(
    game: Game,
    alike: list[Game],
    threat_model: ThreatModel,
    delta: float,
    adjacency: RecordAdjacency,
) -> Game:
    """This game, or that of an agent whose record leaks more in all rounds than is declared.

    All are compared by records that are used in every round; of the ``LOUDEST`` each use is
    followed apart, in ``ROUNDS`` at most, and held against as many batches. From the agent on that
    shows one without noise nothing else is compared.
    """
    n_rounds = game.defense.n_rounds
    if n_rounds <= FIRST or game.in_one_round:
        return game
    adversary = Adversary(replace(game, sampling_rate=1.0), threat_model, n_rounds)
    others = {each.victim: each for each in alike if each.victim != game.victim}
    (H, noiseless), by_round = size_by_agent(adversary, list(others), PATTERNS)
    if noiseless:
        return others[min(noiseless)]
    sizes = dict(zip(others, H.diagonal(dim1=1, dim2=2).sum(1).tolist(), strict=True))
    loudest = sorted(others, key=lambda agent: -sizes[agent])[:LOUDEST]
    heard = by_round[[agent in loudest for agent in others]].amax(dim=0)
    used = 1 + heard.topk(min(ROUNDS, n_rounds)).indices.sort().values
    found = leak_by_agent(adversary, [game.victim, *loudest], used).H
    most = _epsilon(_leaked(game, found[0]), delta, adjacency).low
    for agent, H in zip(loudest, found[1:], strict=True):
        low = _epsilon(_leaked(others[agent], H), delta, adjacency).low
        declared = _declared(others[agent], threat_model, delta, adjacency, len(used))
        if low > MORE * max(most, declared):
            game, most = others[agent], low
    return game


def of_most_moved_agent(game: Game, threat_model: ThreatModel, streams: Streams) -> Game:
    """The game of the agent whose own messages records move most, beside their noise.

    For steps that no algebra follows, and for many agents. Runs of the first rounds in which all
    agents hold a record stand beside the same runs, of the same noise, in which none does. Another
    than the game's own victim is taken only if it declares the same noise, and what it sends moves
    further than by what chance makes of so many runs. Any choice is as good for what follows, which
    has runs of its own.
    """
    runs, own = _runs(game, game.played), set(threat_model.agents)
    if game.held is not None or runs == 0:
        return game
    moved = _moved(game, threat_model, runs, streams).tolist()
    enough = (1 + 6 * sqrt(2 / runs)) * moved[game.victim]
    declared = _noise(game, threat_model)
    others = [i for i in game.setting.holders if i not in own and moved[i] > enough]
    for agent in sorted(others, key=lambda i: -moved[i]):
        found = _of(game, agent)
        if _noise(found, threat_model) == declared:
            return found
    return game


def most_moving(game: Game, threat_model: ThreatModel, streams: Streams) -> Game:
    """The game of the record that moves messages most: on one coordinate, or as much on many.

    A step that is not linear may show less of a long shift than of many short ones, as signs do; or
    less of one coordinate alone than of one among others, as a division by the norm of all does.
    More than one are played only if they reveal clearly more, or if the step needs them.
    """
    needed = game.width
    many = needed or min(PLAYED, game.directions)
    among = [] if game.filled > 1 else [replace(game, width=many)]
    alike = replace(game, spread=many)
    runs = _runs(game, many)
    if runs == 0:
        return game
    moved = {
        each: _moved(each, threat_model, runs, streams)[game.victim].item()
        for each in (game, *among, alike)
    }
    most = max(moved, key=lambda each: moved[each])
    return most if needed or moved[most] > MORE_BY_MANY * moved[game] else game


def _runs(game: Game, coordinates: int) -> int:
    """How many separate agents and records; 0: they take too much memory."""
    graph = game.setting.network.at(1)
    numbers = (graph.n_edges + graph.n_agents) * coordinates
    runs = max(FEWEST, min(MOST, NUMBERS // numbers))
    return runs if runs * numbers <= TOO_MANY else 0


def _moved(game: Game, threat_model: ThreatModel, runs: int, streams: Streams) -> Tensor:
    """Squared shifts of each agent's observed messages, in standard deviations, summed."""
    start = game.start(runs, device=streams.device, coordinates=game.played)
    states, total = [start, start], torch.zeros(game.setting.n_agents, dtype=torch.float64)
    with torch.inference_mode():
        for k in range(1, 1 + min(FIRST, game.defense.n_rounds)):
            own = Noise(streams, k)
            rounds = [
                game.step(state, k, _of_every_agent(game, torch.full((runs,), there)), own)
                for state, there in zip(states, (0.0, 1.0), strict=True)
            ]
            states = [round.state for round in rounds]
            still, held = (round.sent for round in rounds)
            for name, message in still.items():
                rows = visible_rows(message, threat_model)
                if not len(rows):
                    continue
                without, there = (sent[name].payload[..., rows, :] for sent in (still, held))
                if game.width is not None:
                    without, there = game.along_record(without), game.along_record(there)
                shift, spread = (there - without).mean(0), without.std(0)
                squares = torch.where(shift == 0, 0.0, shift / spread).square().nan_to_num(0.0)
                total.index_add_(0, senders_by_row(message)[rows], squares.sum(-1).double().cpu())
    return total


def _of_every_agent(game: Game, drawn: Tensor) -> Gradient:
    """The oracle of a round in which each agent holds a canary."""
    oracle = game.played_gradient(drawn)
    if isinstance(oracle, CanaryGradient):
        return replace(oracle, victim=None)
    return OnFirst(replace(game.gradient(drawn), victim=None))


def _declared(
    game: Game, threat_model: ThreatModel, delta: float, adjacency: RecordAdjacency, rounds: int
) -> float:
    """Epsilon of so many rounds at most, by the releases with the least noise."""
    declared: Mechanism = game.defense.mechanism(game.setting, threat_model, game.victim).most
    run = game.defense.n_rounds
    first = ceil(sum(release.count for release in declared) * min(rounds, run) / run)
    by_noise = sorted(declared, key=lambda release: release.noise_multiplier)
    single = [(release.model_copy(update={"count": 1}), release.count) for release in by_noise]
    every = (release for release, count in single for _ in range(count))
    return _epsilon(tuple(islice(every, first)), delta, adjacency).high


@lru_cache(maxsize=256)
def _epsilon(mechanism: Mechanism, delta: float, adjacency: RecordAdjacency) -> Interval:
    """Equal for all agents that release the same."""
    return epsilon(mechanism, delta, adjacency)


def _of(game: Game, agent: int) -> Game:
    """The same game about a record of another agent, drawn at the rate of its own batches."""
    how = None if game.sampling == "none" else game.sampling
    own = Game.of(game.defense, game.setting, agent, game.adjacency, how)
    return replace(
        own,
        in_one_round=game.in_one_round,
        cycle=1 if game.in_one_round else own.cycle,
        coordinates=game.coordinates,
        layers=game.layers,
        filled=game.filled,
        width=game.width,
    )


def _noise(game: Game, threat_model: ThreatModel) -> list[tuple[str, float, int]]:
    """What the defense declares of the victim's noise, whatever its batches are drawn from."""
    declared: Mechanism = game.defense.mechanism(game.setting, threat_model, game.victim).most
    return [(r.family, r.noise_multiplier, r.count) for r in declared]


def _leaked(game: Game, H: Tensor) -> Mechanism:
    """The leak of the first rounds, to six digits, so that rounding chooses nobody."""
    squares = [H.sum()] if game.is_lasting else [*H.diagonal()]
    shifts = [float(f"{sqrt(max(0.0, float(s)) * game.filled):.6g}") for s in squares]
    return game.releases(shift for shift in shifts if shift > 0)


def in_worst_batch(game: Game, threat_model: ThreatModel, n_rounds: int) -> Game:
    """The game with the record in the batch of which a view of so many rounds reveals most.

    Where rounds are alike and noise is fresh in each, that is the first: what a view reveals of
    later ones starts from a state that is less known, and ends sooner. Where graphs vary or noise
    is correlated over rounds it may be any. So uses in all rounds are read at once, each by itself.
    """
    if game.cycle == 1 or not game.is_lasting:
        return game
    apart = Adversary(replace(game, cycle=1, in_one_round=True, spread=1), threat_model, n_rounds)
    by_batch = grams([r.columns for r in apart.rounds], lambda use: (use[1] - 1) % game.cycle)
    leaks = {j: worst_directions(H, game.directions).high for j, (_, H) in by_batch.items()}
    shown = [(j - 1) % game.cycle for j in apart.leak.noiseless]
    first = min(shown) if shown else max(sorted(leaks), key=lambda batch: leaks[batch])
    return replace(game, first=first + 1)


def coordinates(game: Game) -> int:
    """How many coordinates of the model the worst record has, as the first round asks: 1 or all.

    All only where they are alike and apart: the record moves each of a message by the same, each
    has noise of its own, and the noise of one moves no other.
    """
    several = wide(game)
    record, norms = ChosenNoise(), set[int]()
    base = _sent(several, ChosenNoise(), 0.0, set())
    moved = _sent(several, record, 1.0, norms)
    one = {name: torch.zeros(draw.shape).double() for name, draw in record.draws.items()}
    for units in one.values():
        units[..., 0] = 1.0
    heard = [draw for name, draw in record.draws.items() if _is_heard(several, base, name, one)]
    if {draw.family for draw in heard} != {"laplace"} or norms != {2}:
        return 1
    if any(draw.shape[-1] != COORDINATES for draw in heard):
        return 1
    noisy = _sent(several, ChosenNoise(one), 0.0, set())
    for name, payload in base.items():
        shift, noise = moved[name] - payload, noisy[name] - payload
        if not torch.allclose(shift, shift[..., :1].expand_as(shift)) or noise[..., 1:].any():
            return 1
    return game.coordinates


def _is_heard(game: Game, base: dict[str, Tensor], name: str, units: dict[str, Tensor]) -> bool:
    """Whether a draw changes a message of the first round, given messages without noise."""
    noisy = _sent(game, ChosenNoise({name: units[name]}), 0.0, set())
    return any(not torch.equal(noisy[message], payload) for message, payload in base.items())


def record_note(game: Game) -> str | None:
    """What the record is under Laplace noise, where no clip to the norm of that noise says it."""
    if game.filled > 1:
        return (
            f"layers are clipped one by one: the record moves all {game.filled} to the end of its "
            f"clip, {sqrt(game.filled):.3g} times as far as one alone"
        )
    if game.spread > 1:
        return (
            "the record is the worst behind a clip in L2 under Laplace noise: C / sqrt(d) in all "
            f"{game.coordinates} coordinates, or C in one where that leaks more; with sampling and "
            "above delta = 0 the lower end is that of a single round"
        )
    noise, norms = ChosenNoise(), set[int]()
    _sent(wide(game), noise, 1.0, norms)
    if norms != {0} or {draw.family for draw in noise.draws.values()} != {"laplace"}:
        return None
    if game.sampling == "none":
        return f"the agent's gradient is moved by {game.length:g} in L1 on one coordinate"
    return (
        f"no record's gradient is clipped: that of the record is {game.length:g} on one coordinate"
    )


def _sent(game: Game, noise: ChosenNoise, drawn: float, norms: set[int]) -> dict[str, Tensor]:
    """The messages of the first round; adds the ``norms`` that gradients are clipped to."""
    d = game.setting.d
    state = game.start(1, coordinates=d)
    gradient = ClipNorms(game.gradient(torch.full((1,), drawn)), norms)
    return {name: sent.payload for name, sent in game.step(state, 1, gradient, noise).sent.items()}


def played_mechanism(mechanism: Mechanism, d: int) -> Mechanism:
    """What runs of a record in d coordinates release, given what one coordinate does.

    Sampled records are in no coordinate or in all, which no such list says: then that of one.
    """
    sampled = any(release.sampling_rate < 1 for release in mechanism)
    return mechanism if d == 1 or sampled else _spread(mechanism, d)


def _spread(mechanism: Mechanism, d: int) -> Mechanism:
    """Each release once for each of d coordinates, with 1 / sqrt(d) of its shift."""
    return tuple(
        release.model_copy(
            update={
                "noise_multiplier": release.noise_multiplier * sqrt(d),
                "count": release.count * d,
            }
        )
        for release in mechanism
    )


def worst_epsilon(
    mechanism: Mechanism, d: int, delta: float, adjacency: RecordAdjacency
) -> Interval:
    """What the worst record of the ball leaks, given the releases of one in one coordinate.

    Args:
        d: coordinates that the worst record has.
    """
    if not mechanism:
        return Interval(0.0, 0.0)
    one = epsilon(mechanism, delta, adjacency)
    if d == 1 or any(r.family != "laplace" or r.noise_multiplier == 0 for r in mechanism):
        return one
    # one release each with the pure loss of all coordinates
    at_once = [
        r.model_copy(update={"noise_multiplier": r.noise_multiplier / sqrt(d)}) for r in mechanism
    ]
    pure = epsilon(at_once, 0.0, adjacency).high
    if delta == 0:
        return Interval(pure, pure)
    if all(release.sampling_rate == 1 for release in mechanism):
        spread = epsilon(_spread(mechanism, d), delta, adjacency)
        return Interval(max(one.low, spread.low), max(one.high, spread.high))
    rounds = [_of_a_round(r, d, delta) for r in mechanism if adjacency == "add-remove"]
    return Interval(max(one.low, *rounds, 0.0), pure)


def _of_a_round(release: Release, d: int, delta: float) -> float:
    """The epsilon of one round of a Poisson sample; 0 where the sample is another."""
    q = release.sampling_rate
    if release.sampling == "fixed" or delta >= q:
        return 0.0
    alone = {"sampling": "none", "sampling_rate": 1.0, "count": 1}
    unsampled = epsilon(_spread([release.model_copy(update=alone)], d), delta / q).low
    return float(np.logaddexp(np.log1p(-q), np.log(q) + unsampled)) if q < 1 else unsampled
