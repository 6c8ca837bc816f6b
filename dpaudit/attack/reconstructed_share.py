"""What share of targets was reconstructed at least how well, beside the most that is possible.

The bound gamma(kappa) is of an attacker that knows all but the target
(``dpaudit.accounting.reconstruction``), with kappa given the target's label. It is taken at the
epsilon of each claim, and at the releases that the defense declares, of the whole run, which is
more than an attack on one round reads. Targets are known to be in the batches that are attacked: so
many of the declared releases are accounted without their sampling. A batch of b images is b
guesses at each of its records, of which the nearest counts, so that kappa is b times as large.

A share above what a claim allows refutes it where that claim is of one record over the whole run,
each target's batch is that record alone and it is in the batch whatever is drawn; ``untestable``
says why not. How the channels of different targets in one run depend on one another is not assumed
to be known: the test (``dpaudit.statistics.successes``) holds however they do. Its threshold is
chosen by public images alone.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from dpaudit.accounting.families import GAUSSIAN
from dpaudit.accounting.privacy_loss import Array
from dpaudit.accounting.reconstruction import accounted
from dpaudit.accounting.releases import Mechanism, Release
from dpaudit.data.datasets import Dataset
from dpaudit.defense.claim_accounting import claimed_delta, claimed_epsilon
from dpaudit.defense.contract import Target
from dpaudit.files.claim import Claim
from dpaudit.files.finding import KINDS, Column, Finding, Metric, Name, Role, claim_column
from dpaudit.statistics.bounds import clopper_pearson
from dpaudit.statistics.successes import EpsilonPromise, MuPromise, Promise, Successes

from .blind_success import BlindSuccess, blind_success, share_without_prior, together
from .contract import AttackContext
from .image_metrics import PSNR_CAP, Scores
from .victims import Scenario

ALPHA = 0.05  # probability of a false lower bound
DECIBELS = np.arange(0.0, PSNR_CAP + 1)  # thresholds of the PSNR
SIMILARITIES = np.linspace(0, 1, len(DECIBELS))  # thresholds of SSIM
RECORD = ("add-remove", "replace-one")


class ReachedScores(NamedTuple):
    """What a scenario attacked in some rounds, and how near each image came."""

    targets: list[Target]  # [m]
    truth: Tensor  # [m, batch_size, channels, height, width]
    labels: Tensor  # [m, batch_size]
    each: Scores  # one per image
    rounds: list[tuple[int, ...]]  # attacked, those whose gradients were joined together

    @property
    def batches(self) -> set[tuple[int, int]]:
        """Victim and round of each."""
        return {(target.victim, target.round) for target in self.targets}


def reconstructed_share(
    scenario: Scenario, context: AttackContext, dataset: Dataset, reached: Sequence[ReachedScores]
) -> list[Finding]:
    """The share beside its bounds, and a test of every claim that it can refute."""
    curve = _Curve.of(scenario, context, dataset, reached)
    claims = {
        i: claim
        for i, claim in enumerate(context.claims)
        if claim.threat_model in (None, scenario.threat_model.name)
    }
    whole = curve.mechanism
    why = {i: untestable(claim, scenario, whole) for i, claim in claims.items()}
    notes = [
        f'"{claims[i].text}" is held against no share: {said}' for i, said in why.items() if said
    ]
    tests = [curve.test(i, claims[i]) for i, said in why.items() if said is None]
    return [curve.finding(claims, notes), *tests]


def untestable(claim: Claim, scenario: Scenario, mechanism: Mechanism) -> str | None:
    """Why a share cannot refute a claim; None: it can."""
    if claim.scope != "run" or claim.adjacency not in RECORD:
        return "it is not of one record over the whole run"
    if scenario.batch_size > 1:
        return "targets share a batch, so that they are not hidden one by one"
    if scenario.is_probe:
        return "the attacked rounds were played again with batches of another size"
    if any(release.sampling_rate < 1 for release in mechanism):
        return (
            "targets are known to be in the batch, while the claim counts on its being drawn at "
            "random"
        )
    return None


_SAID = (
    "the share is of images, by PSNR; intervals are 95% at each threshold by itself, with targets "
    "taken to be independent, and several gradients of one batch to be one target",
    "blind: given the label, on public images of the class, which are taken to be draws of the "
    "same kind as the targets; by SSIM from below only, where nothing is bounded",
    "measured far below what accounting allows is the attack's weakness, and no protection",
)


class _Curve(NamedTuple):
    """Shares and bounds at all thresholds, [t] each."""

    scenario: Scenario
    n: int  # reconstructed images
    n_different: int  # different images: one batch may give several gradients
    hits: Array  # images whose PSNR reaches the threshold
    similar: Array  # images whose SSIM reaches the threshold
    blind: BlindSuccess
    kappa: Array  # an upper end, for as many guesses as there are images in a batch
    without_prior: Array
    rounds: tuple[int, ...]
    mechanism: Mechanism  # declared to this adversary, of the victim that is worst off
    known: int  # releases that are known to be of the target

    @classmethod
    def of(
        cls,
        scenario: Scenario,
        context: AttackContext,
        dataset: Dataset,
        reached: Sequence[ReachedScores],
    ) -> "_Curve":
        low, high = dataset.value_range
        mse = (high - low) ** 2 * 10 ** (-DECIBELS / 10)
        psnr = np.concatenate([part.each.psnr.ravel() for part in reached])
        ssim = np.concatenate([part.each.ssim.ravel() for part in reached])
        truth = [x for part in reached for x in part.truth.flatten(0, 1)]
        labels = [int(y) for part in reached for y in part.labels.flatten()]
        blind = blind_success(dataset, truth, labels, mse, SIMILARITIES)
        targets = [target for part in reached for target in part.targets]
        mechanism = _declared(scenario, context, targets)
        looks = max(len(rounds) for part in reached for rounds in part.rounds)
        return cls(
            scenario,
            len(psnr),
            scenario.batch_size * sum(len(part.batches) for part in reached),
            (psnr >= DECIBELS[:, None]).sum(axis=1).astype(float),
            (ssim >= SIMILARITIES[:, None]).sum(axis=1).astype(float),
            blind,
            np.minimum(1.0, scenario.batch_size * blind.kappa.high),
            _without_prior(mse, mechanism, truth, looks),
            tuple(sorted({k for part in reached for rounds in part.rounds for k in rounds})),
            mechanism,
            looks * context.defense.batches_per_round,
        )

    @property
    def chosen(self) -> int:
        """Which threshold the test is at: by public images alone."""
        return int(self.blind.public.argmin())

    def finding(self, claims: dict[int, Claim], notes: list[str]) -> Finding:
        low, high = self._interval(self.hits)
        similar_low, similar_high = self._interval(self.similar)
        allowed = np.full(len(DECIBELS), np.nan)
        metrics = self._at_threshold()
        if self.mechanism:
            allowed = accounted(self.kappa, in_the_batch(self.mechanism, self.known))
            metrics[Name.ACCOUNTING_ALLOWS] = Metric(value=float(allowed[self.chosen]))
        columns: dict[str, Array] = {
            Column.PSNR_AT_LEAST: DECIBELS,
            Column.SHARE: self.hits / self.n,
            Column.LOW: low,
            Column.HIGH: high,
            Column.BLIND_AT_LEAST: self.blind.kappa.low,
            Column.BLIND_AT_MOST: self.kappa,
            Column.WITHOUT_PRIOR: self.without_prior,
            Column.SSIM_AT_LEAST: SIMILARITIES,
            Column.SSIM_SHARE: self.similar / self.n,
            Column.SSIM_LOW: similar_low,
            Column.SSIM_HIGH: similar_high,
            Column.SSIM_BLIND: self.blind.by_ssim,
            Column.ACCOUNTING_ALLOWS: allowed,
        }
        for i, claim in claims.items():
            columns[claim_column(i)] = np.array([_promise(claim).gamma(k) for k in self.kappa])
        series = {name: tuple(values.tolist()) for name, values in columns.items()}
        return self._finding(Role.RECONSTRUCTED_SHARE, None, metrics, (*_SAID, *notes), series)

    def test(self, index: int, claim: Claim) -> Finding:
        """Test a claim by the share at the chosen threshold."""
        promise, i = _promise(claim), self.chosen
        found = Successes(int(self.hits[i]), self.n, float(self.kappa[i]), apart=False)
        bound, top = found.bound(promise, ALPHA), found.ceiling(promise, ALPHA)
        metrics: dict[Name, Metric] = {
            Name.EPSILON_LOWER_BOUND: Metric(value=_epsilon(claim, bound)),
            Name.CLAIMED_EPSILON: Metric(value=claimed_epsilon(claim)),
            Name.DELTA: Metric(value=claimed_delta(claim)),
            Name.CONFIDENCE: Metric(value=1 - ALPHA),
            Name.P_VALUE: Metric(value=found.p_value(promise)),
            **self._at_threshold(),
            Name.CLAIM_ALLOWS: Metric(value=promise.gamma(found.kappa)),
            Name.CEILING: Metric(value=_epsilon(claim, top)),
            # infinite where no share of one run refutes the claim
            Name.TRIALS_NEEDED: Metric(value=1.0 if promise.gamma(found.kappa) < ALPHA else np.inf),
        }
        if claim.mu is not None:
            metrics[Name.MU_LOWER_BOUND] = Metric(value=bound)
            metrics[Name.CLAIMED_MU] = Metric(value=claim.mu)
        said = (
            "one run: the share is held against what the claim allows by Markov's inequality, "
            "which holds however targets depend on one another; the threshold is the least at "
            "which public images of a class are told apart best",
        )
        return self._finding(Role.TEST, index, metrics, said, {})

    def _interval(self, hits: Array) -> tuple[Array, Array]:
        """Intervals of shares, as if there were only the different images."""
        return _interval(hits * self.n_different / self.n, self.n_different)

    def _at_threshold(self) -> dict[Name, Metric]:
        i = self.chosen
        low, high = (float(ends[i]) for ends in self._interval(self.hits))
        return {
            Name.THRESHOLD: Metric(value=float(DECIBELS[i])),
            Name.RECONSTRUCTED: Metric(
                value=float(self.hits[i]) / self.n, low=low, high=high, n=self.n_different
            ),
            Name.RECONSTRUCTED_BLINDLY: Metric(value=float(self.kappa[i])),
        }

    def _finding(
        self,
        role: Role,
        claim: int | None,
        metrics: dict[Name, Metric],
        notes: tuple[str, ...],
        series: dict[str, tuple[float, ...]],
    ) -> Finding:
        scenario = self.scenario
        return Finding(
            role=role,
            kind=KINDS[role],
            title="share of targets reconstructed at least this well",
            claim=claim,
            attack=scenario.attack_name,
            threat_model=scenario.threat_model.name,
            message=scenario.message,
            rounds=self.rounds,
            world="defense",
            batch_size=scenario.batch_size,
            metrics=dict(metrics),
            notes=notes,
            series=series,
        )


def _declared(scenario: Scenario, context: AttackContext, targets: Sequence[Target]) -> Mechanism:
    """Mechanism of the victim that is worst off; () if what is declared is not about a record."""
    if context.defense.function_distance() is not None:
        return ()
    victims = sorted({target.victim for target in targets})
    return worst_off(
        [context.defense.mechanism(context.setting, scenario.threat_model, i).most for i in victims]
    )


def worst_off(mechanisms: Sequence[Mechanism]) -> Mechanism:
    """What reveals at least as much as each of several mechanisms; () of none.

    Release by release the larger rate and the smaller noise: a smaller rate is the larger one with
    some outcomes drawn anew without the record. Of mechanisms that differ otherwise, releases of
    all together.
    """
    shapes = {tuple((r.family, r.sampling, r.count) for r in one) for one in mechanisms}
    if len(shapes) != 1:
        return tuple(release for one in dict.fromkeys(map(tuple, mechanisms)) for release in one)
    return tuple(
        some[0].model_copy(
            update={
                "noise_multiplier": min(r.noise_multiplier for r in some),
                "sampling_rate": max(r.sampling_rate for r in some),
            }
        )
        for some in zip(*mechanisms, strict=True)
    )


def in_the_batch(mechanism: Mechanism, known: int) -> Mechanism:
    """The same with the record in the batch of so many releases, those of least noise."""
    found: list[Release] = []
    for release in sorted(mechanism, key=lambda r: r.noise_multiplier):
        sure = min(known, release.count)
        known -= sure
        if sure:
            update = {"sampling": "none", "sampling_rate": 1.0, "count": sure}
            found.append(release.model_copy(update=update))
        if sure < release.count:
            found.append(release.model_copy(update={"count": release.count - sure}))
    return tuple(found)


def _promise(claim: Claim) -> Promise:
    if claim.mu is not None:
        return MuPromise(claim.mu)
    return EpsilonPromise(claimed_epsilon(claim), claim.delta)


def _epsilon(claim: Claim, bound: float) -> float:
    """A bound on the claim's parameter as one on epsilon."""
    return bound if claim.mu is None else GAUSSIAN.epsilon(bound, claimed_delta(claim))


def _interval(hits: Array, n: int) -> tuple[Array, Array]:
    """95% of each share by itself (Clopper and Pearson)."""
    return 1 - clopper_pearson(n - hits, n, 0.025), clopper_pearson(hits, n, 0.025)


def _without_prior(mse: Array, mechanism: Mechanism, images: Sequence[Tensor], looks: int) -> Array:
    """The mean law of an attacker who knows nothing of images; nan where it is not derived."""
    noises = [r.noise_multiplier for r in mechanism if r.family == "gaussian"]
    if not noises or min(noises) == 0:
        return np.full(len(mse), np.nan)
    s = together([min(noises)] * looks)
    laws = [share_without_prior(mse, s, float(x.square().sum()), x.numel()) for x in images]
    return np.asarray(np.mean(laws, axis=0))
