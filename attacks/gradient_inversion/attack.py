"""Gradient inversion: images whose gradient at the known model is the one that was observed."""

import math
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor
from torch.nn.functional import one_hot

import dpaudit.attack as da
import dpaudit.defense as dp
from dpaudit.attack.reconstruction import Join

from .exact import ExactBatch, recover
from .labels import infer_labels, last_parameters
from .local import (
    at_once,
    dealt,
    halfway,
    likely_orders,
    merged,
    n_dummies,
    of_each,
    one_pass,
    repeated,
)
from .objective import Mismatch, Objective, first_logits
from .plan import Optimizer, Plan, plan
from .search import LBFGS, Adam, Minimum, Problems, Track, minimise, traced

# mismatches at which float32 gradients agree
_ROUNDING = {"l1": 3e-6, "cosine": 1e-11, "chord": 5e-6, "euclidean": 1e-11, "likelihood": 0.0}
_EXPLAINED = 1e-3  # mismatch, without a prior, up to which an exact attack's batch is the batch
_LOW = 1e-6  # mismatch at which a victim gets no other start
_DUMMIES = 16  # random images by which the attacker first learns how the known model answers
_REHEARSALS, _REHEARSED_STEPS = 2, 20
_ORDERED_STEPS = 60  # steps of a search that distinguishes orders


class Attempt(NamedTuple):
    """One search for each victim from several starts; an infinite loss where there was none."""

    points: Tensor  # [m, r, D]
    losses: Tensor  # [m, r]
    track: Track  # the losses of m groups

    def among(self, m: int, victims: Tensor) -> "Attempt":
        """These attempts as rows ``victims`` of m."""

        def placed(rows: Tensor, elsewhere: float = 0.0) -> Tensor:
            every = rows.new_full((m, *rows.shape[1:]), elsewhere)
            return every.index_copy(0, victims, rows)

        track = Track(*(placed(rows.transpose(0, 1)).transpose(0, 1) for rows in self.track))
        return Attempt(placed(self.points), placed(self.losses, torch.inf), track)


class GradientInversion(da.ReconstructionAttack):
    """Optimise dummy images until their gradient matches the observed one.

    The attacker simulates the victim's message: the mean over the batch of per-record gradients,
    clipped as publicly known, at the known model, with labels inferred first or found along with
    the images. All victims and restarts are one batched optimisation. Each keeps its best iterate,
    and each victim its best restart, by the attacker's own loss (`Objective`). What is not set is
    chosen by what the attacker knows (`plan`).

    Source: Geiping et al. 2020, arXiv:2003.14053 (cosine, total variation, signed Adam); Zhu et al.
    2019, arXiv:1906.08935 (euclidean, L-BFGS, joint labels); Zhao et al. 2020, arXiv:2001.02610
    (labels first); Deng et al. 2021, arXiv:2103.06819 (L1 beside L2).
    Departures: the simulated gradients are clipped as the victim's are; images stay in the value
    range by projection; the L1 distance is taken off the simulated direction, so that neither an
    unknown factor nor noise, which lengthens the observed gradient, counts against the truth.
    """

    joins: ClassVar[Join] = "links"

    method: Literal["auto", "exact", "optimised"] = "auto"
    optimizer: Optimizer | None = None
    objective: Mismatch | None = None
    total_variation: NonNegativeFloat | None = None  # weight, with pixels in half value ranges
    labels: Literal["inferred", "joint"] | None = None  # None: inferred where the network lets it
    signed: bool | None = None  # adam follows the signs of the gradient; None: the plan says
    restarts: PositiveInt | None = None  # None: 2 for one record, 1 for a batch
    iterations: PositiveInt | None = None  # upper limit
    learning_rate: PositiveFloat = 0.7  # of Adam, in half value ranges

    def refuse(self, learned: da.LoadedProblem, setting: dp.Setting) -> None:
        """Raises NotObservable: labels are to be inferred, and the network does not reveal them."""
        super().refuse(learned, setting)
        if self.labels == "inferred" and isinstance(learned.problem, da.Classification):
            last_parameters(learned.problem.gradients.module, learned.problem.dataset.n_classes)

    def reconstruct(
        self, observed: da.ObservedGradients, task: da.Task, streams: da.Streams, on_step: da.OnStep
    ) -> da.Reconstruction:
        """Attack all secrets: by equations where they hold (`exact`), else optimised.

        Gradients of a secret at one model are averaged, those at different models explained
        together. Equations take the least noisy one.

        Where equations give batches that do not explain all gradients, as under noise, each victim
        gets what has the lesser loss.

        Raises:
            NotObservable: ``method`` is "exact" and a batch does not follow from its gradient; or
                labels are to be inferred, and the network ends in no linear layer.
            DpauditError: the targets are no images, a gradient or model is not finite, the
                likelihood is asked for without knowledge of the noise.
        """
        _check(observed, task)
        observed = observed.pooled()
        chosen = self._plan(observed, task)
        if self.method == "optimised" or observed.local is not None:
            return self._optimised(observed, task, chosen, streams, on_step)
        batches = recover(observed.surest(), task, streams)
        exact = _scored(batches, observed, task, chosen)
        refusals = [batch for batch in batches if isinstance(batch, da.NotObservable)]
        if self.method == "exact":
            if refusals:
                raise refusals[0]
            return exact
        plain = chosen._replace(total_variation=0.0)
        if (_scored(batches, observed, task, plain).losses <= _EXPLAINED).all():
            on_step(1, 1)
            return exact
        return _better(exact, self._optimised(observed, task, chosen, streams, on_step))

    def _optimised(
        self,
        observed: da.ObservedGradients,
        task: da.Task,
        chosen: Plan,
        streams: da.Streams,
        on_step: da.OnStep,
    ) -> da.Reconstruction:
        """Dummy images whose gradients match."""
        victims = torch.arange(observed.n_secrets, device=observed.models.device)
        draw = partial(_starts, observed, task, chosen.restarts, streams("attack", "start"))
        starts = draw(len(victims))
        guess, chosen = self._guess_labels(observed, task, chosen, starts, streams)
        joint = self.labels == "joint" or guess is None
        objective = _objective(observed, task, chosen, None if joint else guess)
        search = partial(self._search, objective, chosen, guess)
        found = [search(victims, starts, on_step, task.checkpoint.stage(0))]
        for attempt in range(1, chosen.attempts):
            losses = torch.cat([other.losses for other in found], dim=1)
            unsolved = victims[losses.amin(1) > _LOW]
            if len(unsolved) == 0:
                break
            starts = draw(len(unsolved))
            more = search(unsolved, starts, da.silent, task.checkpoint.stage(attempt))
            found.append(more.among(len(victims), unsolved))
        return _best(objective, found, chosen)

    def _plan(self, observed: da.ObservedGradients, task: da.Task) -> Plan:
        """What the attacker's knowledge suggests, but for what the options say."""
        chosen = plan(observed, task, self.objective, self.optimizer)
        variation = self.total_variation
        return chosen._replace(
            total_variation=chosen.total_variation if variation is None else variation,
            restarts=self.restarts or chosen.restarts,
            n_steps=self.iterations or chosen.n_steps,
            signed=chosen.signed if self.signed is None else self.signed,
        )

    def _guess_labels(
        self,
        observed: da.ObservedGradients,
        task: da.Task,
        chosen: Plan,
        starts: Tensor,
        streams: da.Streams,
    ) -> tuple[Tensor | None, Plan]:
        """Infer labels with random dummies; for a batch, again with the images of short searches.

        These answer more like the records. None: the network does not reveal labels, as the plan
        then says.
        """
        try:
            last_parameters(task.gradients.module, task.n_classes)
        except da.NotObservable as reason:
            if self.labels == "inferred":
                raise
            note = f"{reason}: they were searched along with the images"
            return None, chosen._replace(notes=(*chosen.notes, note))
        generator = streams("attack", "labels")
        seen = halfway(observed)
        labels = dealt(infer_labels(seen, task, _dummies(observed, task, generator)), observed)
        if observed.batch_size == 1:
            return labels, chosen
        victims = torch.arange(len(labels), device=labels.device)
        short = chosen._replace(n_steps=_REHEARSED_STEPS, attempts=1)
        one_step = replace(observed, local=None)  # all steps as one, in no order
        of_a_pass = starts[..., : observed.batch_size * math.prod(task.shape)]
        for i in range(_REHEARSALS):
            objective = _objective(one_step, task, chosen, labels)
            checkpoint = task.checkpoint.stage(f"rehearsal-{i}")
            rehearsed = self._search(
                objective, short, labels, victims, of_a_pass, da.silent, checkpoint
            )
            images = _best(objective, [rehearsed], short).images
            counted = infer_labels(seen, task, images)
            same = (counted == labels.sort(1).values).all(1)
            labels = torch.where(same[:, None], labels, dealt(counted, observed))
        if observed.local is not None and len(one_pass(observed.local, observed.batch_size)) > 1:
            labels = self._in_order(observed, task, chosen, labels, images, starts)
        return labels, chosen

    def _in_order(
        self,
        observed: da.ObservedGradients,
        task: da.Task,
        chosen: Plan,
        labels: Tensor,
        images: Tensor,
        starts: Tensor,
    ) -> Tensor:
        """The labels [m, n] in the order of steps whose short search explains the message best.

        All orders are searched at once, and compete as restarts do. ``images`` [m, n, ...] choose
        the orders that are searched.
        """
        victims = torch.arange(len(labels), device=labels.device)

        @torch.no_grad()
        def loss(images: Tensor, labels: Tensor) -> Tensor:
            points = repeated(images, observed).flatten(1)
            return _objective(observed, task, chosen, labels)(points, victims)

        assert observed.local is not None  # else there is no order
        sizes = one_pass(observed.local, observed.batch_size)
        orders = likely_orders(labels, images, sizes, loss)  # [m, k, n]
        k = orders.shape[1]
        objective = _objective(of_each(observed, k), task, chosen, orders.flatten(0, 1))
        short = chosen._replace(n_steps=min(_ORDERED_STEPS, chosen.n_steps))
        rows, losses = torch.arange(len(victims) * k, device=victims.device), []
        for i, some in enumerate(rows.split(at_once(observed, observed.most_joined))):
            groups, checkpoint = some // k - some[0] // k, task.checkpoint.stage(f"order-{i}")
            start = starts[some // k, 0]
            found = self._minimum(objective, short, some, start, groups, da.silent, checkpoint)
            losses.append(found.losses)
        return orders[victims, torch.cat(losses).view(-1, k).argmin(1)]

    def _search(
        self,
        objective: Objective,
        chosen: Plan,
        guess: Tensor | None,
        victims: Tensor,
        starts: Tensor,
        on_step: da.OnStep,
        checkpoint: da.Checkpoint,
    ) -> Attempt:
        """Restarts at ``starts`` [n, r, D'] for n of the victims, as many at once as memory has."""
        if objective.labels is None:
            shape = len(victims), objective.observed.batch_size, objective.task.n_classes
            likely = starts.new_zeros(shape) if guess is None else one_hot(guess[victims], shape[2])
            logits = first_logits(likely, objective.task).to(starts)
            starts = torch.cat([starts, logits[:, None].expand(-1, starts.shape[1], -1)], dim=2)
        observed = objective.observed
        rows = starts.shape[1] * observed.most_joined
        size = at_once(observed, rows)
        chunks = torch.arange(len(victims), device=victims.device).split(size)
        minima = []
        for i, chunk in enumerate(chunks):
            groups = torch.arange(len(chunk), device=chunk.device)
            groups = groups.repeat_interleave(starts.shape[1])
            progress = partial(da.step_of_part, on_step, i, len(chunks))
            own, start = victims[chunk][groups], starts[chunk].flatten(0, 1)
            minima.append(
                self._minimum(objective, chosen, own, start, groups, progress, checkpoint.stage(i))
            )
        points = torch.cat([minimum.points for minimum in minima]).view_as(starts)
        least = torch.cat([minimum.losses for minimum in minima]).view(starts.shape[:2])
        tracks = zip(*(minimum.track for minimum in minima), strict=True)
        return Attempt(points, least, Track(*(torch.cat(parts, dim=1) for parts in tracks)))

    def _minimum(
        self,
        objective: Objective,
        chosen: Plan,
        victims: Tensor,
        start: Tensor,
        groups: Tensor,
        on_step: da.OnStep,
        checkpoint: da.Checkpoint,
    ) -> Minimum:
        """Searches from ``start`` [p, D] for so many victims; those of a group compete."""
        losses = partial(_losses, objective, victims)
        tolerance = 0.0 if chosen.total_variation else _ROUNDING[chosen.mismatch]
        problems = Problems(losses, start, objective.task.value_range, tolerance, groups)
        rate = self.learning_rate * problems.width / 2
        method = LBFGS() if chosen.optimizer == "lbfgs" else Adam(rate, chosen.signed)
        return minimise(problems, method, chosen.n_steps, on_step, checkpoint)


def _objective(
    observed: da.ObservedGradients, task: da.Task, chosen: Plan, labels: Tensor | None
) -> Objective:
    return Objective(observed, task, labels, chosen.mismatch, chosen.total_variation)


def _losses(objective: Objective, victims: Tensor, points: Tensor, problems: Tensor) -> Tensor:
    return objective(points, victims[problems])


def _best(objective: Objective, found: list[Attempt], chosen: Plan) -> da.Reconstruction:
    """The restart with the least loss, for each victim."""
    losses = torch.cat([attempt.losses for attempt in found], dim=1)
    points = torch.cat([attempt.points for attempt in found], dim=1)
    victims = torch.arange(len(losses), device=losses.device)
    points = points[victims, losses.argmin(1)]
    labels = objective.labels_of(points, victims)
    labels = labels if labels.ndim == 2 else labels.argmax(-1)
    trace = _trace(objective, found, chosen.n_steps, labels)
    images, n = _merged(objective, points, labels), objective.observed.batch_size
    return da.Reconstruction(images, labels[:, :n], losses, chosen.notes, trace)


def _merged(objective: Objective, points: Tensor, labels: Tensor) -> Tensor:
    """The batches [m, batch_size, ...] of points [m, D], of all passes over them."""
    local, images = objective.observed.local, objective.images(points)
    return images if local is None else merged(images, labels, local.passes)


def _trace(objective: Objective, found: list[Attempt], n_steps: int, labels: Tensor) -> da.Trace:
    """The search by which each victim's best restart was found, and the others of its attempt."""
    attempt = torch.stack([other.losses.amin(1) for other in found]).argmin(0)
    losses, points = found[0].track
    for i, other in enumerate(found[1:], start=1):
        here = attempt == i
        losses = torch.where(here, other.track.losses, losses)
        points = torch.where(here[:, None], other.track.points, points)
    each = labels.repeat_interleave(len(losses), dim=0)
    images = _merged(objective, points.transpose(0, 1).flatten(0, 1), each)
    return da.Trace(traced(n_steps), losses.T, images.unflatten(0, losses.T.shape))


def _scored(
    batches: list[ExactBatch | da.NotObservable],
    observed: da.ObservedGradients,
    task: da.Task,
    chosen: Plan,
) -> da.Reconstruction:
    """Batches that equations gave, with the attacker's loss; an infinite one where they did not."""
    m, B = len(batches), observed.batch_size
    images = observed.gradients.new_zeros(m, B, *task.shape)
    labels = torch.zeros((m, B), dtype=torch.long, device=images.device)
    losses = images.new_full((m, 1), torch.inf)
    for i, batch in enumerate(batches):
        if isinstance(batch, ExactBatch):
            images[i], labels[i] = batch
            objective = _objective(observed, task, chosen, labels)
            victim = torch.tensor([i], device=images.device)
            losses[i] = objective(images[i].flatten()[None], victim).detach()
    return da.Reconstruction(images, labels, losses.nan_to_num(torch.inf, torch.inf), chosen.notes)


def _better(exact: da.Reconstruction, optimised: da.Reconstruction) -> da.Reconstruction:
    """For each victim the one with the lesser loss."""
    if exact.losses.isinf().all():
        return optimised
    by_equations = exact.losses[:, 0] < optimised.losses.amin(1)
    images = torch.where(by_equations.view(-1, 1, 1, 1, 1), exact.images, optimised.images)
    labels = torch.where(by_equations[:, None], exact.labels, optimised.labels)
    losses = torch.cat([optimised.losses, exact.losses], dim=1)
    trace = optimised.trace
    if trace is not None:
        searched = trace.losses.masked_fill(by_equations[:, None], torch.nan)
        trace = replace(trace, losses=searched)
    return da.Reconstruction(images, labels, losses, optimised.notes, trace)


def _starts(
    observed: da.ObservedGradients, task: da.Task, restarts: int, generator: torch.Generator, n: int
) -> Tensor:
    """Images near the middle of the value range for n victims, [n, restarts, D]."""
    low, high = task.value_range
    size = (n * restarts, n_dummies(observed) * math.prod(task.shape))
    z = torch.randn(size, generator=generator, device=generator.device).to(observed.models)
    starts = ((low + high) / 2 + 0.1 * (high - low) / 2 * z).clamp(low, high)
    return starts.unflatten(0, (n, restarts))


def _dummies(observed: da.ObservedGradients, task: da.Task, generator: torch.Generator) -> Tensor:
    """The same uniformly random images for every victim, [m, n, *shape]."""
    low, high = task.value_range
    z = torch.rand((_DUMMIES, *task.shape), generator=generator, device=generator.device)
    images = (low + (high - low) * z).to(observed.models)
    return images.expand(observed.n_secrets, *images.shape)


def _check(observed: da.ObservedGradients, task: da.Task) -> None:
    """Raises DpauditError for what cannot be attacked."""
    if len(task.shape) != 3:
        raise da.DataError(
            "DPA033",
            f"gradient inversion needs images [channels, height, width], got records of shape "
            f"{list(task.shape)}",
        )
    for what, vectors in (("gradient", observed.gradients), ("model", observed.models)):
        finite = vectors.isfinite().all(1)
        if not finite.all():
            raise da.DpauditError(
                "DPA046",
                f"gradient inversion: the {what} of victim {int(finite.int().argmin())} of "
                f"{len(finite)} has entries that are no finite numbers; the run has diverged there",
            )
