"""How an attack is tried, chosen by what the attacker knows: noise, clip, batch and network."""

import math
from typing import Literal, NamedTuple

from torch import Tensor, nn

import dpaudit.attack as da

from .objective import Mismatch

Optimizer = Literal["adam", "lbfgs"]

_KINKED = (nn.ReLU, nn.LeakyReLU, nn.ReLU6, nn.MaxPool2d, nn.AdaptiveMaxPool2d, nn.Hardtanh)
# weight of the mean step where no noise is known that would give it one
_VARIATION = {"l1": 0.02, "cosine": 0.02, "euclidean": 0.02}
# beside the chord: weight of the mean step in units of that of public images, times sqrt(b)
_PER_STEP = 0.02
_FLATTEST = 1e-3  # mean step: public images without any say nothing of it
_STEPS = {"adam": 300, "lbfgs": 2000}  # upper limits
_COLOURED = 150  # steps: beside the chord colours reveal enough of one record
_LOCAL = 150  # steps: each takes as long as all local steps
_LOCAL_BY_SLOPE = 200  # the same, where a search does without signs
_LOCAL_GREY = 300  # the same of grey images, which have more local minima: from two starts
_FEW = 4  # records: of ten, after local steps, searches by signs came nearer than those without
_AUDIBLE = 0.02  # noise below this share of a gradient's length counts as none
_LITTLE = 20  # steps, where nothing can be reconstructed
_BITS = 0.1  # bits per unknown pixel, below which no image can be reconstructed
_SURE = 2.0  # standard deviations by which the signal's power may be underestimated
_NO_NOISE = (
    'attack.objective: "likelihood" needs noise of a known size in the gradients, and this '
    'adversary knows of none; expected "l1", "cosine", "chord" or "euclidean"'
)


class Plan(NamedTuple):
    """The choices of one attack."""

    mismatch: Mismatch
    total_variation: float
    optimizer: Optimizer
    restarts: int  # searched at once, per victim
    attempts: int  # rounds of restarts, until a victim's loss is low
    n_steps: int  # upper limit per restart
    signed: bool = True  # adam follows the signs of the gradient
    notes: tuple[str, ...] = ()  # what the attacker knows it cannot reconstruct


def plan(
    observed: da.ObservedGradients,
    task: da.Task,
    mismatch: Mismatch | None = None,
    optimizer: Optimizer | None = None,
) -> Plan:
    """What suits what is known of the noise, where ``mismatch`` or ``optimizer`` do not say.

    Unknown noise: the L1 mismatch, which forgives it. None: the chord where rectifiers or pooling
    make kinks, which total variation and long signed steps get across, else the euclidean mismatch
    by L-BFGS, with another start for every victim whose loss is not low. Known noise: its
    likelihood, or hardly anything if so little gets through that only candidates can be compared.
    SGD on few records, beside the chord: Adam of the gradient itself, which comes nearer.

    Raises:
        DpauditError: the likelihood of unknown or no noise is asked for.
    """
    std = observed.std
    noisy = std is not None and _is_audible(observed, std)
    if mismatch == "likelihood" and not noisy:
        raise da.DpauditError("DPA052", _NO_NOISE)
    smooth = not has_kinks(task.gradients.module)
    if mismatch is None:
        quiet: Mismatch = "euclidean" if smooth else "chord"
        mismatch = "l1" if std is None else "likelihood" if noisy else quiet
    if optimizer is None:
        optimizer = "lbfgs" if std is not None and smooth and not noisy else "adam"
    step = max(task.contrast, _FLATTEST)
    weight = 1.0 if mismatch == "likelihood" else _PER_STEP * math.sqrt(observed.batch_size)
    variation = _VARIATION.get(mismatch, weight / step)
    restarts = 2 if observed.batch_size == 1 else 1  # a batch has many starts in it already
    effort = optimizer, restarts, 1, _STEPS[optimizer]
    chosen = Plan(mismatch, variation, *effort, notes=_too_many_unknowns(observed, task))
    if mismatch == "chord" and optimizer == "adam" and observed.batch_size == 1 < task.shape[0]:
        chosen = chosen._replace(restarts=1, n_steps=_COLOURED)
    if observed.local is not None and optimizer == "adam":
        by_slope = mismatch == "chord" and not observed.local.is_adaptive
        signed = not by_slope or observed.batch_size > _FEW
        is_grey = task.shape[0] == 1
        by_slope_steps = _LOCAL_GREY if is_grey else _LOCAL_BY_SLOPE
        chosen = chosen._replace(
            restarts=2 if is_grey and not signed else 1,
            n_steps=_LOCAL if signed else by_slope_steps,
            signed=signed,
        )
    if optimizer == "lbfgs":
        chosen = chosen._replace(total_variation=0.0, restarts=1, attempts=3)
    if std is not None and noisy:
        return _within_capacity(chosen, observed, task, std)
    return chosen


def has_kinks(module: nn.Module) -> bool:
    """Whether rectifiers or pooling leave gradients no second derivative to follow."""
    return any(isinstance(layer, _KINKED) for layer in module.modules())


def _is_audible(observed: da.ObservedGradients, std: Tensor) -> bool:
    """Whether there is noise to speak of beside the gradients."""
    lengths = observed.gradients.norm(dim=1)
    return bool((std * math.sqrt(observed.gradients.shape[1]) > _AUDIBLE * lengths).any())


def _within_capacity(
    chosen: Plan, observed: da.ObservedGradients, task: da.Task, std: Tensor
) -> Plan:
    """Hardly any steps, and a note that says why, where no image can get through the noise."""
    gradients = capacity(observed, std)
    if observed.secrets is not None:
        gradients = std.new_zeros(observed.n_secrets).index_add(0, observed.secrets, gradients)
    bits = float(gradients.max()) / (observed.batch_size * math.prod(task.shape))
    if bits >= _BITS:
        return chosen
    note = (
        f"the noise leaves at most {bits:.2g} bits for each unknown pixel, too few for an image: "
        f"only candidates could be told apart, so the search was cut to {_LITTLE} steps"
    )
    return chosen._replace(restarts=1, n_steps=_LITTLE, notes=(note, *chosen.notes))


def _too_many_unknowns(observed: da.ObservedGradients, task: da.Task) -> tuple[str, ...]:
    """A warning where the images of a batch cannot follow from its gradients."""
    d, b = observed.most_joined * task.gradients.d, observed.batch_size
    if d >= b * math.prod(task.shape):
        return ()
    return (
        f"what is told of a batch of {b}, {d} coordinates, does not determine its "
        f"{b * math.prod(task.shape)} pixels: the prior fills in the rest",
    )


def capacity(observed: da.ObservedGradients, std: Tensor) -> Tensor:
    """Bits that each of the noisy gradients can carry at most about its batch, [m].

    d / 2 log2(1 + P / std^2) for d coordinates of mean power P (Shannon 1949). P is estimated from
    above: observed power less that of the noise, plus two standard deviations of the latter, and
    no more than the public clip norm C allows, C^2 / d.
    """
    d = observed.gradients.shape[1]
    power = observed.gradients.square().mean(1) - std**2 * (1 - _SURE * math.sqrt(2 / d))
    if observed.clip_norm is not None:
        power = power.clamp(max=observed.clip_norm**2 / d)
    return d / 2 * (1 + power.clamp(min=0) / std**2).log2()
