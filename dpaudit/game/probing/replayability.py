"""Can a round be played again? It may depend on nothing but what the step is handed.

An audit plays rounds with and without a record under the same noise, from checkpoints, with unit
noise, and as many trials at once, stacked in front. Of a step that draws from a generator of its
own none of that says anything: its noise counts as an effect of the record, or as no noise. Nor
does it of a step that keeps something beside the state, or that takes the trials for agents. Nor
can rounds be held against each other if other data send other messages.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dpaudit.defense import ConfigError, Noise
from dpaudit.defense.contract import Defense, Gradient, Round, Setting, named, step_as_written
from dpaudit.defense.contract_checks import unchanged_settings
from dpaudit.defense.transcript import Messages, refuse_other_messages
from dpaudit.game.game import LENGTH
from dpaudit.game.step_inputs import (
    AllowedBatches,
    ChosenNoise,
    FurtherBatch,
    RecordedNoise,
    every_agent_holds,
)
from dpaudit.rng import Streams
from dpaudit.unexpected_errors import described, place

from . import chance
from .linearity import COORDINATES, ENTRIES, PLAYED, RELATIVE, ROUNDING

FIRST = 3  # rounds that are played
OTHERS = ((0.0, 0), (-LENGTH, 0), (LENGTH, 1))  # lengths of gradients, and seeds of noise
DIFFERS = (
    "differs when it is played again with the same noise: step draws from a generator of its own, "
    "such as torch's or NumPy's, or keeps something outside of the state; expected "
    "noise.gaussian or noise.laplace, which play again, and all else in the state"
)
KEPT = (
    "when it is played again from the state before it: something is kept outside of the state, "
    "such as on the defense; expected all that a round leaves to the next in the state"
)
STACKED = (
    "when trials are stacked in front, as attacks play them: tensors are [..., n_agents, d]; "
    "expected agents counted from the end, such as X[..., i, :] or X.mean(-2), and no number "
    "over all of a tensor"
)


def refuse_unless_replayable(defense: Defense, setting: Setting) -> int:
    """Play the first rounds again, on a model of few coordinates: as before, and otherwise.

    What cannot be played at all is for the run itself to say.

    Returns:
        How many rounds were the same; 0 if they cannot be played on such a model.

    Raises:
        ConfigError: they fail on other gradients than those of records, as attacks have them; their
            numbers have not the precision of the models, or are made in inference
            mode; or they differ, also from the state of the round before or in a stack of trials,
            or a draw has no row for each agent or link; or they have other messages, or messages
            of another shape, with other gradients or other noise.
    """
    try:
        untouched = defense.model_copy(deep=True)  # a copy that has not played
    except Exception:  # it has what cannot be copied
        untouched = defense
    setting = _narrowed(defense, setting)
    for precision in (torch.float32, torch.float64):
        _refuse_other_numbers(_play(defense, setting, LENGTH, 0, precision), precision)
    first, again = (_play(defense, setting, LENGTH, 0) for _ in range(2))
    for k, (one, other) in enumerate(zip(first, again, strict=False), start=1):
        _refuse_own_randomness(k, one, other, lambda: _play(defense, setting, LENGTH, 0))
    for by in (defense, untouched):
        _refuse_memory(by, setting, first)
    for length, seed in OTHERS:
        runs = zip(first, _play(defense, setting, length, seed), strict=False)
        for k, (one, other) in enumerate(runs, start=1):
            refuse_other_messages(k, one.sent, other.sent)
    _refuse_joined_trials(defense, setting, first)
    return len(first)


def _refusal(why: str) -> ConfigError:
    return ConfigError("DPA044", f"defense: {why}")


def _narrowed(defense: Defense, setting: Setting) -> Setting:
    """The setting with a model of few coordinates, or of as many as the step needs.

    One of more than ``ENTRIES`` numbers is not played.
    """
    fewer, every = setting.stand_in(COORDINATES), setting.d
    for d in dict.fromkeys((COORDINATES, min(PLAYED, every), every)):
        if d * setting.n_agents > ENTRIES:
            break
        narrow = setting if d == every else setting.stand_in(d)
        try:
            _step(defense, narrow, _begun(defense, narrow), 1, Noise(Streams(0), 1))
        except AttributeError as error:
            if isinstance(error.obj, Gradient):
                raise ConfigError(
                    "DPA043",
                    f"defense: step asks for gradient.{error.name}{place(error)}; "
                    "expected no more than a call of it, clipped_sum, per_record, in_parts, part, "
                    "at_step and batch_size, which gradients have that attacks play",
                ) from error
        except FurtherBatch:
            raise
        except Exception:
            continue
        else:
            return narrow
    return fewer


def _begun(defense: Defense, setting: Setting, precision: torch.dtype = torch.float64) -> Any:
    """The state before round 1."""
    return defense.start(torch.zeros(setting.n_agents, setting.d, dtype=precision), setting)


class _Played(NamedTuple):
    """A round: what it began from and sent, the numbers in that and after it, and its noise."""

    before: Any  # the state
    was: Mapping[str, Tensor]  # a copy of it, before the round
    sent: Messages
    values: Mapping[str, Tensor]
    draws: Mapping[str, Tensor]


def _play(
    defense: Defense,
    setting: Setting,
    length: float,
    seed: int,
    precision: torch.dtype = torch.float64,
) -> list[_Played]:
    """The first rounds, under the same noise whenever this seed is given; none if they fail."""
    played: list[_Played] = []
    try:
        state = _begun(defense, setting, precision)
        for k in range(1, 1 + min(FIRST, defense.n_rounds)):
            noise = RecordedNoise(Streams(seed), k)
            was = {name: value.clone() for name, value in state._asdict().items()}
            after = _step(defense, setting, state, k, noise, length)
            values = _values(after)
            if any(v.is_complex() or v.layout is not torch.strided for v in values.values()):
                return []
            played.append(_Played(state, was, after.sent, values, noise.units))
            state = after.state
    except FurtherBatch:
        raise
    except Exception:
        return []
    return played


def _step(
    defense: Defense, setting: Setting, state: Any, k: int, noise: Noise, length: float = LENGTH
) -> Round:
    """One round as the plug-in plays it: what its contract forbids is for the run itself to say."""
    oracle, graph = every_agent_holds(length, defense.batch_size), setting.network.at(k)
    gradient = AllowedBatches(oracle, defense.batches_per_round)
    with unchanged_settings(named(defense)):
        return step_as_written(defense)(defense, state, k, graph, gradient, noise)


def _values(round: Round) -> dict[str, Tensor]:
    """All numbers of a round, by what they are called in a line."""
    sent = {f'message "{name}"': message.payload for name, message in round.sent.items()}
    return {**sent, **{f"{n} of the state": t for n, t in round.state._asdict().items()}}


def _refuse_other_numbers(played: list[_Played], precision: torch.dtype) -> None:
    for k, one in enumerate(played, start=1):
        for name, value in one.values.items():
            if value.is_inference():
                raise ConfigError(
                    "DPA043",
                    f"defense: {name} of round {k} is made in inference mode, in which no gradient "
                    "can be taken after it; expected torch.no_grad() in its place, or neither",
                )
            if value.is_floating_point() and value.dtype != precision:
                raise ConfigError(
                    "DPA043",
                    f"defense: {name} of round {k} is {value.dtype} where the models are "
                    f"{precision}; expected the precision of the models, as torch.zeros_like(X) "
                    "and tensor.to(X) have it: attacks play in both",
                )


def _refuse_own_randomness(
    k: int, one: _Played, again: _Played, play: Callable[[], Any] = list
) -> None:
    """Hold two plays of round k against each other, of the same data and noise.

    Args:
        play: plays them once more, to see what they call; if none is given, nothing is.
    """
    for name, draw in one.draws.items():
        if draw.ndim < 2:
            raise _refusal(
                f'the noise "{name}" of round {k} is drawn without rows; expected it like a tensor '
                "[..., rows, d] with a row for each agent or link that draws; where several share "
                "a draw, expand a row"
            )
    try:
        _refuse_other_values(k, one.values, again.values, DIFFERS)
    except ConfigError as error:
        if not (call := chance.named(play)):
            raise
        [problem] = error.problems
        by = f"it calls {call}: draw by noise.gaussian or noise.laplace, which the audit seeds"
        raise ConfigError.of([problem._replace(help=by)]) from None


def _refuse_memory(defense: Defense, setting: Setting, first: list[_Played]) -> None:
    """Play the rounds after the first by themselves, each from the state that it began from."""
    for k, one in enumerate(first, start=1):
        for name, value in one.was.items():
            if not _same(value, getattr(one.before, name)):
                raise _refusal(
                    f"round {k} changes {name} of the state that it begins from; "
                    f"expected a new tensor, as X - G makes one and X -= G does not"
                )
        if k == 1:  # what ``start`` keeps, it makes anew
            continue
        try:
            alone = _step(defense, setting, one.before, k, RecordedNoise(Streams(0), k))
        except Exception as error:
            raise _refusal(f"round {k} fails {KEPT}: {described(error)}") from error
        _refuse_other_values(k, one.values, _values(alone), f"differs {KEPT}")


def _refuse_other_values(
    k: int, one: Mapping[str, Tensor], other: Mapping[str, Tensor], why: str
) -> None:
    if one.keys() != other.keys():
        raise _refusal(f"which messages are sent in round {k} {why}")
    for name, value in one.items():
        if not _same(value, other[name]):
            raise _refusal(f"{name} of round {k} {why}")


def _refuse_joined_trials(defense: Defense, setting: Setting, first: list[_Played]) -> None:
    """Play a single trial with an axis in front, and three of which two are the same.

    Noise of a generator of its own, which starts anew in every step, is for the audit to find: a
    stack of one has the same, and in a larger one it differs between trials that are the same.
    """
    other = _play(defense, setting, LENGTH, 1)
    if [one.draws.keys() for one in first] != [one.draws.keys() for one in other]:
        return
    for trials in ((first,), (first, first, other)):
        rounds = zip(_stacked(defense, setting, trials), zip(*trials, strict=True), strict=True)
        for k, (values, alone) in enumerate(rounds, start=1):
            if values.keys() != alone[0].values.keys():
                raise _refusal(f"the messages of round {k} are others {STACKED}")
            for name, value in values.items():
                expected = [one.values[name] for one in alone]
                joint = value.shape == expected[0].shape  # the same for all trials, as a mask is
                found = [value] * len(trials) if joint else list(value)
                if len(found) == len(trials) > 1 and not _same(found[0], found[1], ROUNDING):
                    return
                if len(found) != len(trials) or not all(
                    _same(*pair, ROUNDING) for pair in zip(found, expected, strict=True)
                ):
                    raise _refusal(f"{name} of round {k} differs {STACKED}")


def _stacked(
    defense: Defense, setting: Setting, trials: Sequence[list[_Played]]
) -> Iterator[dict[str, Tensor]]:
    """What the rounds of these trials give when all are played at once, under their noise."""
    X = torch.zeros(len(trials), setting.n_agents, setting.d, dtype=torch.float64)
    state: Any = None
    for k, at in enumerate(zip(*trials, strict=True), start=1):
        noise = ChosenNoise({m: torch.stack([one.draws[m] for one in at]) for m in at[0].draws})
        try:
            if state is None:
                state = defense.start(X, setting)
            after = _step(defense, setting, state, k, noise)
        except Exception as error:
            raise _refusal(f"round {k} fails {STACKED}: {described(error)}") from error
        state = after.state
        yield _values(after)


def _same(one: Tensor, other: Tensor, of_largest: float = 0.0) -> bool:
    """Within rounding; ``of_largest``: where sums in another order may cancel."""
    if one.shape != other.shape:
        return False
    one, other = one.double(), other.double()
    largest = one.nan_to_num(0.0, 0.0, 0.0).abs().amax().item() if one.numel() else 0.0
    rounding = of_largest * largest
    return torch.allclose(one, other, RELATIVE, rounding, equal_nan=True)
