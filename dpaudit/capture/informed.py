"""How much the messages of a round tell about one record: M-NMI over short runs.

The private quantity is the coin by which the record is there, a fair bit. The view is reduced to
the likelihood ratio of the messages by what was measured of them, which loses nothing where that is
right, and otherwise tells less and never more. The runs are those by which claims are tested.
"""

from collections.abc import Iterator
from math import isinf

import numpy as np

from dpaudit.accounting.privacy_loss import Array
from dpaudit.files.captured_attacks import MutualInformation
from dpaudit.files.finding import Column, Finding, Metric, Name, Role
from dpaudit.information.capacity import of_bit_in_gaussian, of_bit_in_randomised_response
from dpaudit.information.estimators import information_correlation
from dpaudit.information.mnmi import MaximumInformation, maximum_information, without_warnings

from .certified import Channel, Played, ShortRuns
from .measured import Leak

METHOD = (
    "random over the runs: a fair coin for the record, and the noise of this round; all else is "
    "the same in every run"
)
REDUCTION = (
    "the view is reduced to the likelihood ratio of the round's messages by what was measured of "
    "them: what is reduced tells less, never more"
)
LIMIT = (
    "capacity: what the measured noise lets through of the presence of this record at most; an "
    "estimate below it proves nothing, and other records may tell more"
)
SAME = "what this adversary reads of the record is the same in all runs: there are 0 bits"


def informed(
    attack: MutualInformation, channel: Channel, played: Played, runs: ShortRuns
) -> Iterator[Finding]:
    """A finding for each victim that is none of the adversary's own."""
    for i, victim in enumerate(played.victims):
        pair = runs.pairs[victim]
        leak = runs.neighbours.leak(victim, channel.threat_model, pair, channel.message)
        score, included = played.values[:, i], played.having[:, i].astype(float)
        metrics, series, notes = _told(attack, score, included, leak, runs)
        yield Finding(
            role=Role.INFORMATION,
            kind="mutual-information",
            title=f"information about the record of agent {victim}: {pair[0]}, or {pair[1]}",
            attack=attack.name,
            threat_model=channel.threat_model.name,
            message=channel.message,
            adjacency=runs.adjacency,
            rounds=(runs.config.record.rounds[0],),
            world="defense",
            metrics=metrics,
            series=series,
            notes=notes,
        )


def _told(
    attack: MutualInformation, score: Array, included: Array, leak: Leak, runs: ShortRuns
) -> tuple[dict[str, Metric], dict[str, tuple[float, ...]], tuple[str, ...]]:
    """Metrics, columns and notes about one victim."""
    limits, about = _capacity(leak)
    if np.ptp(score) == 0:
        if leak.noiseless is not None:
            why = f"not estimated: {leak.noiseless} shows the record beside another message"
            return {}, {}, (why,)
        zero = {Name.INFORMATION: Metric(value=0.0, n=len(score))}
        return zero | limits, {}, (SAME,)
    found = _estimated(attack, score, included, runs.config.seed)
    beyond = tuple(
        f"beyond the noise: at least {found.low:.3g} bits, where the measured noise lets "
        f"{limit.value:.3g} through at most; this speaks against the noise"
        for limit in limits.values()
        if found.low > limit.value
    )
    ksg = (
        f"KSG, k = {attack.k}, max-norm; M-NMI divides by self-information, what the estimator "
        f"makes of the coin about itself at n = {found.n}; the maximum is over one round"
    )
    series: dict[str, tuple[float, ...]] = {
        Column.ROUND: (float(runs.config.record.rounds[0]),),
        Column.INFORMATION: (found.bits,),
        Column.LOW: (found.low,),
        Column.HIGH: (found.high,),
        Column.BASELINE: (found.baseline,),
    }
    notes = (*beyond, METHOD, REDUCTION, ksg, *about)
    return _metrics(attack, found) | limits, series, notes


def _estimated(
    attack: MutualInformation, score: Array, included: Array, seed: int
) -> MaximumInformation:
    rng = np.random.default_rng([seed, 3])
    found, _ = without_warnings(  # that a coin repeats
        lambda: maximum_information(
            [included],
            [score],
            rng,
            k=attack.k,
            n_permutations=attack.n_permutations,
            n_splits=attack.n_splits,
        )
    )
    return found


def _metrics(attack: MutualInformation, found: MaximumInformation) -> dict[str, Metric]:
    correlation = found.correlation
    metrics: dict[str, Metric] = {
        Name.INFORMATION: Metric(value=found.bits, n=found.n),
        Name.M_NMI: Metric(value=found.m_nmi),
        Name.CORRELATION: Metric(value=correlation),
        Name.GAUSSIAN_INFORMATION: Metric(value=found.gaussian),
        Name.SELF_INFORMATION: Metric(value=found.self_information),
    }
    if attack.n_splits:
        low, high = found.low, found.high
        ends = information_correlation(low), information_correlation(high)
        metrics[Name.INFORMATION] = Metric(value=found.bits, low=low, high=high, n=found.n)
        metrics[Name.CORRELATION] = Metric(value=correlation, low=ends[0], high=ends[1])
    if attack.n_permutations:
        metrics[Name.BASELINE] = Metric(value=found.baseline)
        metrics[Name.P_VALUE] = Metric(value=found.p_value)
    return metrics


def _capacity(leak: Leak) -> tuple[dict[str, Metric], tuple[str, ...]]:
    """Of one fair bit, in the noise of one family; none is known for both together."""
    if isinf(leak.mu) or isinf(leak.epsilon):
        return {}, ("no noise hides this record, and so no capacity of it stands beside",)
    if leak.mu and leak.epsilon:
        return {}, ("no capacity is derived for Gaussian and Laplace noise together",)
    most = of_bit_in_gaussian(leak.mu)
    if leak.epsilon:
        most = of_bit_in_randomised_response(leak.epsilon)
    return {Name.CAPACITY_FOR_PRESENCE: Metric(value=most)}, (LIMIT,)
