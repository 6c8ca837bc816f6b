"""The attack `dager`: text from gradients of transformers, by algebra."""

import json
from collections.abc import Sequence
from functools import partial
from math import isnan
from typing import NamedTuple

import torch
from torch import Tensor

import dpaudit.attack as da
import dpaudit.defense as dp
from dpaudit.attack.image_metrics import SHARE, by_batch, interval
from dpaudit.attack.scenario import attack_streams, finding_of, observed_gradients, truth_of
from dpaudit.attack.text_metrics import TextScores, blind, score
from dpaudit.attack.victims import Scenario, derived_targets
from dpaudit.data.datasets import Dataset
from dpaudit.memory import available, size_text
from dpaudit.models.gradients import Gradients
from dpaudit.progress import step_of_part

from .front import TransformerFront
from .peeling import peeled
from .sequences import choices, decoded, exchanged
from .span import Span, members, span_of

_CHOICES = 4  # times the batch size: tokens tried at a position under noise, the nearest ones


class RecoveredBatch(NamedTuple):
    """What an attacker makes of one gradient."""

    ids: Tensor  # [batch_size, length]
    found: Tensor  # [n_tokens], which tokens of the vocabulary it takes to be in the batch
    far: float  # mean distance of the sequences from the span, the attacker's own loss
    span: Span


class Dager(da.ReconstructionAttack):
    """Recovers text from a transformer's gradient: tokens by its span, then their order.

    The first attention layer's gradient has the embeddings of a batch's tokens in its span
    (`span`), so the vocabulary is tested token by token. The second layer's says which of them
    follow each other (`sequences`), of an encoder one sequence after another (`peeling`). Without
    noise that is exact if a batch has fewer tokens than the embedding has directions; under
    Gaussian noise the rank and the tokens follow from tests.

    Source: Petrov et al. 2024, NeurIPS, arXiv:2405.15586. Departures: see `span`; an encoder's
    sequences are taken off the gradient one by one, or under noise, and with labels at positions,
    searched by exchanging single tokens. Of LoRA adapters, spans are those of the
    gradient of A, or while B is 0, of the gradient of B, which holds A x.
    """

    def refuse_records(self, dataset: Dataset) -> None:
        """Raises DataError: they are no token ids."""
        if not dataset.n_tokens:
            raise da.DataError(
                "DPA033",
                f'data "{dataset.name}" are numbers; dager recovers text and needs token ids, such '
                'as name = "text"',
            )

    def refuse(self, learned: da.LoadedProblem, setting: dp.Setting) -> None:
        """Raises NotObservable: no linear layer of the network reads tokens one by one.

        ConfigError: not even the agents' models and gradients fit in memory.
        """
        super().refuse(learned, setting)
        need, free = 8 * setting.n_agents * setting.d, available()
        if free is not None and need > free:
            raise da.ConfigError(
                "DPA021",
                f"models and gradients of {setting.n_agents} agents with {setting.d:,} parameters "
                f"take {size_text(need)} of memory, and {size_text(free)} is free",
                "lower data.text.vocabulary, of which the embedding and the head have a row for "
                "each token, or model.width",
            )
        problem = learned.problem
        if isinstance(problem, da.Classification):
            _front(problem, problem.initial(da.Streams(0))[0])

    def reconstruct(
        self, observed: da.ObservedGradients, task: da.Task, streams: da.Streams, on_step: da.OnStep
    ) -> da.Reconstruction:
        """The same as token ids in the place of images: [m, batch_size, length]."""
        n_tokens = int(task.value_range[1]) + 1
        found = [
            recovered(
                TransformerFront(task.gradients.module, x, task.shape[0], n_tokens),
                observed,
                i,
                task.gradients,
                on_step,
            )
            for i, x in enumerate(observed.models)
        ]
        ids = torch.stack([one.ids for one in found])
        losses = torch.tensor([[one.far] for one in found])
        return da.Reconstruction(ids, torch.zeros(ids.shape[:2], dtype=torch.long), losses)

    def measure(
        self, context: da.AttackContext, threat_model: da.ThreatModel, on_step: da.OnStep
    ) -> list[da.Finding]:
        scenario, problem = self.scenario(context, threat_model), context.problem
        assert isinstance(problem, da.Classification)  # the others were refused
        defended = scenario.world == "defense"
        defense = context.defense if defended else context.defense.without_noise()
        streams = da.Streams(context.seed, context.streams.device)
        initial = problem.initial(streams)[0]
        every, refusals = derived_targets(
            scenario, defense, context.setting, streams, context.run, initial
        )
        if not every:
            return [_finding(scenario, scenario.rounds, scenario.world, (_unseen(refusals[0]),))]
        findings = []
        for k in sorted({one.target.round for one in every}):
            some = [one for one in every if one.target.round == k]
            observed, targets = observed_gradients(scenario, some, defense.clip_norm_in(k))
            observed = observed.surest()
            ids, _ = truth_of(scenario, targets, problem, streams)
            found, why = [], ""
            for i, model in enumerate(observed.models):
                progress = partial(step_of_part, on_step, i, len(targets))
                try:
                    front = _front(problem, model)
                    found.append(recovered(front, observed, i, problem.gradients, progress))
                except da.NotObservable as reason:
                    why = str(reason)
                    break
            if why:
                findings.append(_finding(scenario, (k,), scenario.world, (_unseen(why),)))
                continue
            findings += ScoredText(scenario, problem, context, k, streams).findings(
                ids, found, targets
            )
        return findings


def recovered(
    front: TransformerFront,
    observed: da.ObservedGradients,
    i: int,
    gradients: Gradients,
    on_step: da.OnStep,
) -> RecoveredBatch:
    """The batch of gradient i, by ``gradients`` of the network's records.

    Raises:
        NotObservable: the gradient has full rank, or is not finite.
    """
    g, n = observed.gradients[i], observed.batch_size
    std = None if observed.std is None else float(observed.std[i])
    if not g.isfinite().all():
        raise da.NotObservable("DPA046", "the gradient has entries that are no finite numbers")
    block = next((b for b in front.first if front.gradient(g, b).any()), front.first[0])
    spans = span_of(front, block, g, std)
    outside, found = members(front, block, spans)
    on_step(1, front.length + 1)
    given, second = choices(outside, found, _CHOICES * n, spans[0].is_exact), front.after(block)

    def progress(p: int) -> None:
        on_step(p + 1, front.length + 1)

    if second is None or (n == 1 and all(len(one.tokens) == 1 for one in given)):
        rows = torch.stack([one.tokens[torch.arange(n) % len(one.tokens)] for one in given], dim=1)
        far = float(outside.take_along_dim(rows, dim=0).mean())
        return RecoveredBatch(rows, found.any(1), far, spans[0])
    span, _ = span_of(front, second, g, std)
    if front.is_causal(second):
        rows, distances = decoded(front, second, span, given, n, progress)
    elif not spans[0].is_exact or gradients.positions:
        rows, distances = exchanged(front, second, span, given, n, progress)
    else:
        one = peeled(front, gradients, observed, i, (block, second), progress)
        rows, distances = one.found, span.outside(front.inputs(one.found, second)).mean(1).cpu()
        if len(rows) == n:  # then its tokens are known, beside all others in the span
            found = torch.zeros_like(found).index_fill(0, rows.unique(), True)
        else:
            more = exchanged(front, second, one.span, one.given, n - len(rows), progress)
            rows, distances = torch.cat([rows, more[0]]), torch.cat([distances, more[1]])
    return RecoveredBatch(rows, found.any(1), float(distances.mean()), spans[0])


class ScoredText(NamedTuple):
    """Recovered text of one round beside the truth."""

    scenario: Scenario
    problem: da.Classification
    context: da.AttackContext
    k: int
    streams: da.Streams

    def findings(
        self, truth: Tensor, found: list[RecoveredBatch], targets: list[dp.Target]
    ) -> list[da.Finding]:
        """The attack's, and under the defense those of blind guesses."""
        ids = torch.stack([one.ids for one in found]).cpu()
        scores = score(truth, ids)
        rates = [_rates(rows, one.found) for rows, one in zip(truth, found, strict=True)]
        more = dict(zip((da.Name.TPR, da.Name.FPR), zip(*rates, strict=True), strict=True))
        more[da.Name.LOSS] = tuple(one.far for one in found)
        ranks = [one.span.rank for one in found]
        notes = (
            f"ranks {min(ranks)} to {max(ranks)} of {found[0].span.d} directions; "
            + ("what was taken for noise is rounding" if found[0].span.is_exact else "under noise"),
        )
        own = self._scored(self.scenario.world, notes, truth, ids, scores, targets, more)
        if self.scenario.world != "defense":
            return [own]
        generator = attack_streams(self.scenario, self.streams)("blind", self.k)
        guesses = blind(self.problem.dataset.x_test, truth.shape[:2], generator)
        return [own] + [
            self._scored("blind", (name,), truth, guess, score(truth, guess), targets, {})
            for name, guess in guesses.items()
        ]

    def _scored(
        self,
        world: str,
        notes: tuple[str, ...],
        truth: Tensor,
        ids: Tensor,
        scores: TextScores,
        targets: list[dp.Target],
        more: dict[str, tuple[float, ...]],
    ) -> da.Finding:
        rows = {name: tuple(values.tolist()) for name, values in scores.by_name().items()} | more
        victims = tuple(float(target.victim) for target in targets)
        metrics = {
            name: da.Metric(**interval(known, *_ranges(name))._asdict())
            for name, values in rows.items()
            if (known := _of_batches(name, by_batch(values, victims).tolist()))
        }
        what = "text" if world != "blind" else notes[0].replace(" ", "-")
        path = f"artifacts/{self.scenario.name}-round-{self.k:06d}-{world}-{what}.json"
        aligned = ids.take_along_dim(scores.order[..., None], dim=1)
        self.context.run.write(path, self._text(truth, aligned, victims))
        return _finding(self.scenario, (self.k,), world, notes).model_copy(
            update={
                "metrics": metrics,
                "series": {da.Column.VICTIM: victims, **rows},
                "artifacts": {"text": path},
            }
        )

    def _text(self, truth: Tensor, found: Tensor, victims: tuple[float, ...]) -> bytes:
        """Tokens as they are written: of each victim, sequences as pairs of truth and recovered."""
        known = self.problem.dataset.vocabulary

        def written(ids: Tensor) -> list[str]:
            return [known[i] if i < len(known) else f"#{i}" for i in ids.tolist()]

        content = [
            {
                "agent": int(victim),
                "sequences": [
                    {"truth": written(t), "recovered": written(f)}
                    for t, f in zip(truth[i], found[i], strict=True)
                ],
            }
            for i, victim in enumerate(victims)
        ]
        return json.dumps(content).encode()


def _ranges(name: str) -> tuple[tuple[float, float], ...]:
    """The range of a metric; none of a loss."""
    return () if name == da.Name.LOSS else (SHARE,)


def _of_batches(name: str, values: Sequence[float]) -> list[float]:
    """The values that a mean is over: a batch with all tokens has no false positive rate."""
    return [value for value in values if name != da.Name.FPR or not isnan(value)]


def _rates(truth: Tensor, found: Tensor) -> tuple[float, float]:
    """The shares of a batch's tokens, and of the rest of the vocabulary, that were found.

    NaN of a rest of no tokens.
    """
    true = torch.zeros(len(found), dtype=torch.bool)
    true[truth.flatten()] = True
    return float(found[true].double().mean()), float(found[~true].double().mean())


def _front(problem: da.Classification, model: Tensor) -> TransformerFront:
    dataset = problem.dataset
    return TransformerFront(problem.gradients.module, model, dataset.x.shape[1], dataset.n_tokens)


def _unseen(why: str) -> str:
    return f"not available to this adversary: {why}"


def _finding(
    scenario: Scenario, rounds: tuple[int, ...], world: str, notes: tuple[str, ...]
) -> da.Finding:
    own = {"role": da.Role.TEXT_RECOVERY, "title": f"text from {scenario.message}"}
    return finding_of(scenario, rounds, world, notes).model_copy(update=own)
