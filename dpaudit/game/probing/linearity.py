"""Is a defense affine in its noise, in this run?

The adversary's algebra is that of a system F(z, r) that is affine in all noise z of the run and in
the record r together. With draws z1 and z2, and scales s, that says

    F(s (z1 + z2), r) - F(0, r) = F(s z1, r) - F(0, r) + F(s z2, r) - F(0, r)
    F(2 s z1, r) - F(0, r)      = 2 (F(s z1, r) - F(0, r))
    F(z1, 1) - F(0, 1)          = F(z1, 0) - F(0, 0)

for every message and for the state after every round. All of it is played: the defense's own step,
on states as they arise, with random draws of several sizes, with the record in every batch and in
none. A norm of one number is its absolute value, so the model has several coordinates here.

Where it fails, the shift of a message in units of its noise is no leak: dividing a noisy gradient
by its own norm, rounding it or taking its sign are functions of a protected value, which reveal no
more than that value does. Runs judge them. One thing is certain whatever the step is: a value that
differs with the record and is the same under all noise, of any size, shows the record noiseless.

The game's model has one coordinate. A step that takes coordinates by number fails there, one that
shapes them as the layers of its model needs all of them, and a standard deviation of one coordinate
is no number. Such a step is played at the fewest coordinates at which it gives numbers.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dpaudit.defense import Defense, Gradient, Graph, Messages, Noise, Round, Setting, ThreatModel
from dpaudit.errors import NotObservable
from dpaudit.game.game import LENGTH, Game
from dpaudit.game.step_inputs import (
    ChosenNoise,
    WrappedDefense,
    every_agent_holds,
    flat_state,
    state_of,
)
from dpaudit.rng import Streams

from .observer import visible_rows

COORDINATES = 8  # coordinates of the probed model
SIZES = (0.1, 1.0, 10.0)  # standard deviations of the noise that is added and scaled
ANY_SIZE = (1.0, -1.0, 1e9, -1e9)  # sizes of the noise that reaches a message at all
ROUNDING = 1e-12  # relative to the largest value in a message
RELATIVE = 1e-9  # relative to the effect of noise
PLAYED = 64  # coordinates that runs play at most where one is not enough and fewer than all do
FIRST = 2  # rounds that are played
ENTRIES = 10**7  # numbers of a round


def fewest_coordinates(game: Game) -> int:
    """The fewest, of 1, ``PLAYED`` and the model's own, at which the step gives numbers; else 1.

    The model's own are not played where a round has more than ``ENTRIES`` numbers.
    """

    def gives_numbers(d: int) -> bool:
        start = partial(game.start, 1, coordinates=d)
        return _gives_finite_numbers(game.defense, game.setting, start)

    some, every = min(PLAYED, game.coordinates), game.coordinates
    found = next((d for d in (1, some) if gives_numbers(d)), None)
    if found is not None:
        return found
    graph = game.setting.network.at(1)
    is_large = (graph.n_edges + graph.n_agents) * every > ENTRIES
    return every if is_large or gives_numbers(every) else 1


def refuse_several(defense: Defense, setting: Setting) -> None:
    """For what plays a step on the model of this setting, which has few coordinates.

    Raises:
        NotObservable: it fails there, or gives no number.
    """
    X = torch.zeros(1, setting.n_agents, setting.d, dtype=torch.float64)
    if not _gives_finite_numbers(defense, setting, lambda: defense.start(X, setting)):
        raise NotObservable(
            "DPA054",
            f"gradients are told by algebra at d = {setting.d}, and there the step fails "
            "or gives no number",
        )


def _gives_finite_numbers(defense: Defense, setting: Setting, start: Callable[[], Any]) -> bool:
    """Whether the first rounds give them, of agents that all hold a record, under noise."""
    gradient = every_agent_holds(LENGTH, defense.batch_size)
    try:
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the deviation of one coordinate is undefined
            state: Any = start()
            for k in range(1, 1 + min(FIRST, defense.n_rounds)):
                graph, noise = setting.network.at(k), Noise(Streams(0), k)
                state, sent, *_ = defense.step(state, k, graph, gradient, noise)
                values = [flat_state(state), *(message.payload for message in sent.values())]
                if not all(bool(value.isfinite().all()) for value in values):
                    return False
    except Exception:  # whatever a step raises of coordinates that are not there
        return False
    return True


class Nonlinear(NamedTuple):
    """Where a step is not affine in its noise and the record."""

    round: int
    message: str  # the first; or "state"
    affine: frozenset[str]  # messages that are, in all rounds
    quiet: bool  # whether all is affine in the noise alone, where there is no record
    defined: bool  # whether the run without noise and record consists of numbers
    noiseless: tuple[int, str] | None  # round and message that the record reaches and no noise does
    fewest: int = 1  # coordinates of the model at which the step can be played

    @property
    def note(self) -> str:
        if self.fewest > 1:
            return (
                f"played at {self.fewest} coordinates: on fewer the step fails or gives no number. "
                "The algebra is of one; it gives no figure here. Runs and measured sensitivities "
                "hold all the same"
            )
        what = "the state" if self.message == "state" else f'"{self.message}"'
        how = "" if self.defined else ", which is no number without noise"
        alone = ", ".join(f'"{name}"' for name in sorted(self.affine))
        left = f"the figure is that of {alone} alone" if alone else "it gives no figure here"
        return (
            f"not linear in its noise: {what}, from round {self.round} on{how}. The algebra is of "
            f"linear steps; {left}. Runs and measured sensitivities hold all the same"
        )


def nonlinearity(game: Game, threat_model: ThreatModel, n_rounds: int) -> Nonlinear | None:
    """What in ``n_rounds`` is not affine in noise and record; None: all is.

    None too where the defense overflows with noise or without, or has randomness of its own beside
    the noise that it is handed, so that two equal runs differ: both are for others to say. All is
    taken not to be where the step cannot be played on the game's model of one coordinate.
    """
    fewest = fewest_coordinates(game)
    if fewest > 1:
        return Nonlinear(1, "state", frozenset(), False, False, None, fewest)
    several = wide(game)
    first: tuple[int, str] | None = None
    broken: set[str] = set()
    names: dict[str, None] = {}
    quiet = defined = True
    # of two draws: nothing, twice; in each size the first, the second, their sum, twice the first
    one = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 0.0]], dtype=torch.float64)
    combinations = torch.cat([one[:2] * 0, *(size * one for size in SIZES)])
    for k, sent, state in _played(several, combinations, n_rounds):
        parts = {name: s.payload.flatten(1) for name, s in sent.items()} | {"state": state}
        names |= dict.fromkeys(sent)
        for name, values in parts.items():
            if not torch.allclose(values[0], values[1], RELATIVE, 0.0, equal_nan=True):
                return None
            if values.shape[1] and not _is_affine(values):
                first = first or (k, name)
                broken.add(name)
                quiet = quiet and _is_affine(values, with_record=False)
                defined = defined and bool(values[0].isfinite().all())
    if first is None or not (defined or _is_defined(several, n_rounds)):
        return None
    affine = frozenset(names) - broken
    return Nonlinear(*first, affine, quiet, defined, _noiseless(several, threat_model, n_rounds))


def wide(game: Game) -> Game:
    """The same game on a model of several coordinates."""
    return replace(game, setting=game.setting.stand_in(COORDINATES))


def _is_affine(values: Tensor, with_record: bool = True) -> bool:
    """Whether values [2 trials, n] are affine: combinations without the record, then with it.

    Noise adds up, and adds the same with the record and without, however it is made of draws.
    """
    absent, present = (v - v[0] for v in values.chunk(2))
    if not with_record:
        return _adds_up(absent, values[: len(absent)])
    size = torch.maximum(absent, present).abs().amax()
    allowed = RELATIVE * size + ROUNDING * values.abs().amax()
    if not (present - absent).abs().max() <= allowed:  # NaN is not
        return False
    return _adds_up(absent, values) and _adds_up(present, values)


def _adds_up(moved: Tensor, values: Tensor) -> bool:
    """Whether what draws do to a message [trials, n] adds up, to rounding of its ``values``."""
    for first, second, both, twice in moved[2:].split(4):
        size = torch.stack([first, second, both]).abs().amax()
        allowed = RELATIVE * size + ROUNDING * values.abs().amax()
        off = torch.maximum((both - first - second).abs().max(), (twice - 2 * first).abs().max())
        if not off <= allowed:
            return False
    return True


def _noiseless(game: Game, threat_model: ThreatModel, n_rounds: int) -> tuple[int, str] | None:
    """The first visible value that the record changes and no noise of any size does."""
    weights = torch.tensor([[s, 0.0] for s in ANY_SIZE] + [[0.0, s] for s in ANY_SIZE])
    for k, sent, _ in _played(game, weights.double(), n_rounds):
        for name, s in sent.items():
            seen = s.payload[..., visible_rows(s, threat_model), :].flatten(1)
            absent, present = seen.chunk(2)
            still = ((absent == absent[0]) & (present == present[0])).all(0)
            if bool((still & (absent[0] != present[0])).any()):
                return k, name
    return None


def _is_defined(game: Game, n_rounds: int) -> bool:
    """Whether all are numbers where every agent has a gradient and noise: no sum is zero."""
    noise = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    everybody = every_agent_holds(game.length, game.defense.batch_size)
    return all(
        bool(state.isfinite().all())
        and all(bool(s.payload.isfinite().all()) for s in sent.values())
        for _, sent, state in _played(game, noise, n_rounds, everybody)
    )


def _played(
    game: Game, weights: Tensor, n_rounds: int, gradient: Gradient | None = None
) -> Iterator[tuple[int, Messages, Tensor]]:
    """Each round's messages and state of runs under these combinations [trials, 2] of two draws.

    Without the record and then with it, unless all runs have another ``gradient``.
    """
    if gradient is None:
        drawn = torch.arange(2, dtype=torch.float64).repeat_interleave(len(weights))
        weights, gradient = weights.repeat(2, 1), game.gradient(drawn)
    generator = torch.Generator().manual_seed(0)
    X = torch.zeros(len(weights), game.setting.n_agents, COORDINATES, dtype=torch.float64)
    state: Any = game.defense.start(X, game.setting)
    for k in range(1, n_rounds + 1):
        asked = ChosenNoise()
        game.step(state, k, gradient, asked)
        two = {name: draws.normal_(generator=generator) for name, draws in asked.zeros(2).items()}
        noise = ChosenNoise({m: torch.einsum("tb,bmd->tmd", weights, z) for m, z in two.items()})
        state, sent, *_ = game.step(state, k, gradient, noise)
        yield k, sent, flat_state(state)


class Defined(WrappedDefense):
    """Another defense with 0 wherever it gives no number.

    An adversary predicts by it where the defense divides zero by zero without noise and record.
    """

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        played = self.of.step(state, k, graph, gradient, noise)
        sent = {name: replace(s, payload=_numbers(s.payload)) for name, s in played.sent.items()}
        after = state_of(played.state, _numbers(flat_state(played.state)))
        return played._replace(state=after, sent=sent)


def defined(game: Game) -> Game:
    """The same game with 0 wherever the defense gives no number."""
    return replace(game, defense=Defined.playing(game.defense))


def _numbers(values: Tensor) -> Tensor:
    return values.nan_to_num(0.0, 0.0, 0.0)
