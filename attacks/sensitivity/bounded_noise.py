"""Noise that ends: what lies beyond all that it reaches shows a record for certain.

Noise that is cut off at a few standard deviations, or left out beyond them, reaches no further. A
message of a run with the record may be where no noise brings one without it. That the probability
of it is more than delta refutes (epsilon, delta)-DP at every epsilon. It is computed, not sampled:
all numbers of a draw are given one value after another, in both worlds.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import ndtr
from torch import Tensor

from dpaudit.accounting.privacy_loss import Array, NoiseFamily, laplace_cdf

from .worlds import CoupledWorlds, PlayedWorld, all_without_first

ENDLESS = 1e4  # times the scale of noise, which moves a message by no more where that has an end
SPAN: dict[NoiseFamily, float] = {"gaussian": 6.0, "laplace": 20.0}
COARSE = 25  # values over the span
FINE, FINEST = 0.02, 0.001  # steps near the end, and nearer
SLACK = 0.25  # numbers this far beyond the end are not counted, relative to the move
SAME = 1e-9  # relative to the largest number
NUMBERS = 20_000  # numbers of a message that are examined, at most
PATTERNS = 2  # patterns of values that vary over a draw


class BeyondNoise(NamedTuple):
    """What a message shows of a record that is in the batch."""

    message: str
    probability: float  # of a number that is impossible without the record
    moved: float  # how far the record moves the message


def beyond_the_noise(coupled: CoupledWorlds) -> BeyondNoise | None:
    """What shows beyond the noise of round 1, if that is one draw, number by number."""
    try:
        return _beyond(coupled)
    except Exception:  # whatever a step raises under noise as large as no run's
        return None


def _beyond(coupled: CoupledWorlds) -> BeyondNoise | None:
    oracle, victim = coupled.kept_batches(1), coupled.victim
    state = coupled.start()
    here, there = (
        PlayedWorld(coupled, state, 1, all_without_first(oracle, with_record, (victim,)))
        for with_record in (False, True)
    )
    draws = here.noisy.draws
    if len(draws) != 1:
        return None
    [draw] = draws
    cdf: Callable[[Array], Array] = ndtr if draw.family == "gaussian" else laplace_cdf
    for name, message in here.noisy.sent.items():
        rows = coupled.own(message).shape
        if rows[-2:] != (1, draw.shape[-1]) or draw.shape[-2] != coupled.setting.n_agents:
            continue

        def sent(level: float | Tensor, name: str = name) -> Array:
            levels = {draw.stream: level}
            plays = (replace(world, levels=levels).noisy for world in (here, there))
            own = (coupled.own(play.sent[name]).flatten()[:NUMBERS] for play in plays)
            return np.stack([one.double().cpu().numpy() for one in own])

        found = _probability(sent, draw.shape, victim, SPAN[draw.family], cdf)
        if found is not None:
            return BeyondNoise(name, *found)
    return None


def _probability(
    sent: Callable[[float | Tensor], Array],
    shape: torch.Size,
    victim: int,
    span: float,
    cdf: Callable[[Array], Array],
) -> tuple[float, float] | None:
    """Probability of a number beyond the end, and how far the record moves; None: no end.

    Args:
        sent: of a value of all numbers, or [rows, d] of them: both worlds' messages [2, d].
    """
    values = np.linspace(-span, span, COARSE)
    coarse = np.stack([sent(value) for value in values.tolist()])  # [values, 2, d]
    ends = np.stack([sent(-ENDLESS), sent(ENDLESS)])
    middle = coarse[COARSE // 2]
    if np.abs(ends - middle).max() > 2 * np.abs(coarse - middle).max():
        return None
    known = np.concatenate([coarse, ends])[:, 0]
    if not ((coarse[:, 1] > known.max(axis=0)) | (coarse[:, 1] < known.min(axis=0))).any():
        return None
    generator = np.random.default_rng(0)
    for _ in range(PATTERNS):
        chosen = generator.integers(COARSE, size=tuple(shape))
        both = sent(torch.from_numpy(values[chosen]))
        numbers = np.arange(coarse.shape[-1])
        expected = coarse[chosen[..., victim, :].ravel()[numbers], :, numbers].T
        if np.abs(both - expected).max() > SAME * np.abs(coarse).max():
            return None
    return _beyond_the_end(sent, values, coarse, ends, cdf)


def _beyond_the_end(
    sent: Callable[[float | Tensor], Array],
    values: Array,
    coarse: Array,
    ends: Array,
    cdf: Callable[[Array], Array],
) -> tuple[float, float] | None:
    """The same by finer values near the largest and the least noise of all numbers together.

    A number whose own end was not seen so closely is left out.
    """
    middle, every, messages = COARSE // 2, values, coarse
    slope = np.abs(coarse[middle + 1, 0] - coarse[middle, 0]) / (values[1] - values[0])
    towards = np.sign(coarse[middle + 1, 0] - coarse[middle, 0])
    near: Array = np.zeros(2)
    window = 0.0
    for step, window in ((FINE, 1.1 * (values[1] - values[0])), (FINEST, 1.1 * FINE)):
        sums = ((messages[:, 0] - coarse[middle, 0]) * towards).sum(axis=1)  # along the noise
        near = every[[sums.argmin(), sums.argmax()]]
        further = np.concatenate([np.arange(v - window, v + window, step) for v in near])
        every = np.concatenate([every, further])
        messages = np.concatenate([messages, [sent(v) for v in further.tolist()]])
    every = np.concatenate([every, [-ENDLESS, ENDLESS]])
    messages = np.concatenate([messages, ends])
    order = np.argsort(every, kind="stable")
    every, messages = every[order], messages[order]
    without, apart = messages[:, 0], np.abs(coarse[middle, 1] - coarse[middle, 0])
    slack = SLACK * apart + SAME * np.abs(messages).max()
    close = (np.abs(every[:, None] - near) <= window).any(axis=1, keepdims=True)
    sure = (close & (slack > 2 * FINEST * slope)) | (np.abs(every) == ENDLESS)[:, None]
    most, least = without.max(axis=0), without.min(axis=0)
    seen = (sure & (without == most)).any(axis=0) & (sure & (without == least)).any(axis=0)
    outside = seen & ((messages[:, 1] > most + slack) | (messages[:, 1] < least - slack))
    cells = np.diff(cdf(every))[:, None] * (outside[1:] & outside[:-1])
    with np.errstate(divide="ignore"):  # the number may be outside for certain
        probability = -np.expm1(np.log1p(-cells.sum(axis=0)).sum())
    return (float(probability), float(np.linalg.norm(apart))) if probability > 0 else None
