"""Gradient inversion of a message that is, but for noise and a factor, the gradient of a batch.

Weights, and changes of weights after local steps, count as one too: see ``local_steps``.

A run without noise shows first whether it is: where the message is not the gradient of the named
model on the recorded batch, nothing is attacked. The factor, such as a learning rate, is public, as
is how much noise the program adds to each number, which was measured.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from dpaudit.accounting.privacy_loss import Array
from dpaudit.attack.local_steps import DummyGradient, local_steps, outer_gradients
from dpaudit.attack.observed import ObservedGradients as Gradients
from dpaudit.attack.reconstruction import ReconstructionAttack
from dpaudit.attack.scenario import (
    Truth,
    as_one_gradient,
    attack_streams,
    not_available,
    scored,
    task_of,
)
from dpaudit.attack.victims import Scenario
from dpaudit.checkpoint import Checkpoint
from dpaudit.data.datasets import Dataset
from dpaudit.defense.contract import Target
from dpaudit.errors import NotObservable, RunError, nearest
from dpaudit.files.captured_file import CapturedConfig, GradientInversionOptions
from dpaudit.files.finding import Finding
from dpaudit.files.local_training import LocalTraining
from dpaudit.files.recorded import RecordedEvent
from dpaudit.files.threat import ThreatModel
from dpaudit.models.gradients import Gradients as Engine
from dpaudit.models.models import architecture
from dpaudit.rng import Streams
from dpaudit.training.run_directory import RunDirectory

from .local_steps import AGREE, SEVERAL, LocalSteps, mixing_of, said_of, unlike_declared
from .named_models import n_classes_of, named_model, stored_weights
from .option_mismatches import other_gradient, other_steps
from .program import Program
from .record_shift import deviation
from .runs import MessageId, ProgramRun
from .worlds import MeasuredRuns

KNOWN = "the adversary knows the factor between the two, and the size of the noise (Kerckhoffs)"
PUBLIC = (
    "public images are those of the run's other batches, beside which a blind guess is better than "
    "without them"
)


class ImageBatch(NamedTuple):
    """The records that one step was computed on."""

    images: Tensor  # [b, channels, height, width]
    labels: Tensor  # [b]


class RunGradient(NamedTuple):
    """What one run shows of one gradient."""

    target: Target
    parts: tuple[MessageId, ...]  # messages that make up the update, in the order of sending
    message: Tensor  # [n]
    weights: Tensor  # [d], at which it was taken
    links: tuple[frozenset[tuple[int, int]], ...]  # by which these weights came; empty: public
    batch: ImageBatch  # the records of all local steps
    sizes: tuple[int, ...]  # records of each local step
    before: Tensor  # [m, d]: weights that were sent before and averaged; none: weights are as above
    outer: float | None = None  # outer step over the message; None: no outer step


class KnownModel(NamedTuple):
    """An attack, its model, and where that is if no message brings its weights."""

    attack: GradientInversionOptions
    module: nn.Module
    weights: Tensor  # [d]


def known_models(config: CapturedConfig) -> dict[int, KnownModel]:
    """By attack, before anything is run. Raises RunError where one cannot be made or read."""
    known = {}
    for i, attack in enumerate(config.attack):
        if isinstance(attack, GradientInversionOptions):
            module = named_model(attack.model, config.program, config.seed)
            weights = nn.utils.parameters_to_vector(module.parameters()).detach()
            if attack.weights is not None:
                weights = stored_weights(attack.weights, module)
            known[i] = KnownModel(attack, module, weights.double())
    return known


@dataclass(frozen=True)
class Inversion:
    """One attack of captured.toml, and what it needs of the audit."""

    index: int
    known: KnownModel
    worlds: MeasuredRuns
    run: RunDirectory

    @property
    def options(self) -> GradientInversionOptions:
        return self.known.attack

    def findings(self, program: Program, checkpoint: Checkpoint) -> Iterator[Finding]:
        """Findings of every round and adversary, with the program's noise and without.

        Raises:
            RunError: a run fails; there is no such message; it is not the gradient of the model, or
                the records are no images with labels.
        """
        for k, neighbours in self.worlds.rounds.items():
            if not neighbours.places:
                continue
            silent = [d.key for p in neighbours.places.values() for d in p.draws]
            replay = self.worlds.replay.model_copy(update={"keeps_records": True})
            without_noise = replay.model_copy(update={"silent": tuple(silent)})
            noisy, quiet = program.each([replay, without_noise], partial(self._seen, k))
            worlds = {"defense": noisy} | ({"no-defense": quiet} if silent else {})
            yield from self._of_round(k, worlds, quiet, checkpoint.stage(k))

    def _of_round(
        self, k: int, worlds: Mapping[str, "_Shown"], quiet: "_Shown", checkpoint: Checkpoint
    ) -> Iterator[Finding]:
        shape = tuple(quiet.seen[0].batch.images.shape[1:])
        module = self.known.module
        engine = Engine(architecture(module, shape, n_classes_of(module, shape)))
        steps = {one.parts: self._step(engine, one) for one in quiet.seen}
        for threat_model in self.worlds.config.threat_model:
            stage = checkpoint.stage(threat_model.slug)
            for world, shown in worlds.items():
                by_size: dict[tuple[int, ...], list[RunGradient]] = defaultdict(list)
                for one in _read(shown.seen, threat_model):
                    by_size[one.sizes].append(self._updated(one, steps[one.parts]))
                if not by_size and world == "defense":
                    scenario = self._scenario(threat_model, world, k, 1)
                    yield not_available(scenario, ["it does not read the message and the weights"])
                for sizes, some in by_size.items():
                    n = sum(sizes) // (self.options.local.epochs if self.options.local else 1)
                    scenario = self._scenario(threat_model, world, k, n)
                    where = stage.stage(world).stage(str(sizes))
                    yield from self._attacked(scenario, engine, steps, some, quiet, where)

    def _attacked(
        self,
        scenario: Scenario,
        engine: Engine,
        steps: Mapping[tuple[MessageId, ...], LocalSteps],
        seen: Sequence[RunGradient],
        quiet: "_Shown",
        checkpoint: Checkpoint,
    ) -> list[Finding]:
        """The findings of one batch size in one world."""
        public, streams = self._public(engine, seen, quiet), Streams(self.worlds.config.seed)
        noisy = scenario.world == "defense"
        without = {one.parts: self._updated(one, steps[one.parts]) for one in quiet.seen}
        std = [self._std(one, without[one.parts]) / abs(steps[one.parts].factor) for one in seen]
        gradients = Gradients(
            gradients=torch.stack([one.message / steps[one.parts].factor for one in seen]).float(),
            models=torch.stack([one.weights for one in seen]).float(),
            batch_size=scenario.batch_size,
            clip_norm=self.options.clip_norm,
            std=torch.tensor(std) * noisy,
        )
        simulation = steps[seen[0].parts].simulation
        gradients = replace(gradients, local=simulation)
        task = task_of(engine, public, checkpoint)
        draws = attack_streams(scenario, streams)
        try:
            found = scenario.reconstruct(gradients, task, draws, lambda done, total: None)
        except NotObservable as error:
            return [not_available(scenario, [str(error)])]
        n = scenario.batch_size  # the records of the first pass
        truth = Truth(
            scenario.rounds,
            [one.target for one in seen],
            torch.stack([one.batch.images[:n] for one in seen]),
            torch.stack([one.batch.labels[:n] for one in seen]),
        )
        scores = scored(scenario, found, truth, public, streams, self.run)
        if simulation is not None:
            alone = as_one_gradient(scenario, gradients, task, streams)
            scores += scored(*alone, truth, public, streams, self.run)[:1]
        what = said_of([(len(one.sizes), steps[one.parts]) for one in seen])
        notes = [f"{what} of {self.options.model}, as it is sent", KNOWN, PUBLIC]
        if self.options.local is not None:
            notes = unlike_declared(self.options.local, steps[seen[0].parts].scale) + notes
        return [one.model_copy(update={"notes": (*one.notes, *notes)}) for one in scores]

    def _scenario(self, threat_model: ThreatModel, world: str, k: int, size: int) -> Scenario:
        attack: ReconstructionAttack = self.options.plugin(self.worlds.config.record.rounds)
        return Scenario(
            attack_index=self.index,
            attack_name=self.options.name,
            reconstruct=attack.reconstruct,
            message=self.options.message,
            rounds=(k,),
            n_targets=len(self.worlds.config.record.victims),
            threat_model=threat_model,
            world=world,
            batch_size=size,
            is_probe=False,
        )

    def _std(self, one: RunGradient, without: RunGradient) -> float:
        """Root mean square of a message's noise; if not measured, of what it moves in this run."""
        neighbours, victim = self.worlds.rounds[one.target.round], one.target.victim
        if not {*one.parts}.isdisjoint(neighbours.unmeasured.get(victim, ())):
            return float((one.message - without.message).square().mean().sqrt())
        sizes = {part: len(neighbours.base.messages[part]) for part in one.parts}
        of_unit = deviation(neighbours.places[victim], neighbours.noised[victim], sizes)
        return of_unit * (one.outer or 1.0)

    def _seen(self, k: int, run: ProgramRun) -> "_Shown":
        victims = self.worlds.rounds[k].places
        seen = [one for victim in victims for one in self._of_victim(k, victim, run)]
        return _Shown(seen, [one for parts in run.records.values() if (one := batch_in(parts))])

    def _of_victim(self, k: int, victim: int, run: ProgramRun) -> Iterator[RunGradient]:
        """Each of the messages that the victim sends by this name, to several agents or to each."""
        sent = [m for m in run.messages if (m.source, m.round) == (victim, k)]
        if self.options.message not in {m.name for m in sent}:
            names = list(dict.fromkeys(m.name for m in sent))
            raise self._error(
                "message",
                f'agent {victim} sends no "{self.options.message}" in round {k}'
                f"{nearest(self.options.message, names)}; it sends {', '.join(names)}",
            )
        by_receivers: dict[tuple[int, ...], list[MessageId]] = defaultdict(list)
        for message in sent:
            if message.name == self.options.message:
                by_receivers[message.destinations].append(message)
        place = self.worlds.rounds[k].places[victim]
        for receivers, parts in by_receivers.items():
            content = torch.from_numpy(np.concatenate([run.messages[m] for m in parts]))
            weights, links = self._weights(parts[0], run)
            before, links_before = self._before(parts[0], run)
            if len(content) != len(weights):
                raise self._error(
                    "message",
                    f"{parts[0]} has {len(content)} numbers, and {self.options.model} has "
                    f"{len(weights)} parameters; expected a gradient, one number for each",
                )
            batches = [
                self._batch_of(run, victim, n)
                for n in range(place.batch, place.batch + place.n_batches)
            ]
            batch = ImageBatch(*(torch.cat(parts) for parts in zip(*batches, strict=True)))
            sizes = tuple(len(one.labels) for one in batches)
            target = Target(k, victim, min(receivers, default=victim))
            links = (*links, *links_before)
            one = RunGradient(target, tuple(parts), content, weights, links, batch, sizes, before)
            yield self._before_outer_step(one, run)

    def _before_outer_step(self, one: RunGradient, run: ProgramRun) -> RunGradient:
        """The same with what its agent's outer step was taken along, if it takes one."""
        local = self.options.local
        if local is None or not local.has_outer_step:
            return one
        if not self._sends_weights:
            raise self._error(
                "local.outer_momentum",
                f"{one.parts[0]} is not named in messages.weights; expected weights, of which an "
                "outer step makes the next ones",
            )
        known = run.known_before(one.parts[0], self.options.message)
        sender = one.parts[0].source, one.parts[0].destinations
        own = [sent for event, sent in known if (event.source, event.destinations) == sender]
        held = torch.from_numpy(np.concatenate(own)) if own else torch.empty(0).double()
        models = torch.cat([self.known.weights, held, one.message]).view(-1, len(one.message))
        mu, rate = local.outer_momentum, local.outer_learning_rate
        along = outer_gradients(models, rate, mu)[-1]
        empty = one.before[:0]
        return one._replace(
            message=-along, weights=models[-2], before=empty, outer=1 / (rate * (1 + mu))
        )

    def _batch_of(self, run: ProgramRun, victim: int, number: int) -> ImageBatch:
        taken = run.records[victim, number]
        if (batch := batch_in(taken)) is None:
            found = ", ".join(f"{part.dtype} {list(part.shape)}" for part in taken) or "nothing"
            raise RunError(
                "DPA033",
                f"batch {number} of agent {victim} has {found}; gradient inversion needs "
                "images [n, channels, height, width] of floating point, and integer labels [n]",
            )
        return batch

    def _weights(
        self, message: MessageId, run: ProgramRun
    ) -> tuple[Tensor, tuple[frozenset[tuple[int, int]], ...]]:
        known, name = self.known.weights, self.options.weights_message
        if name is None:
            return known, ()
        brought = run.known_before(message, name)
        own = [one for one in brought if one[0].source == message.source]
        own = own or [one for one in brought if one[0].source == brought[-1][0].source]
        held = np.concatenate([content for _, content in own]) if own else np.empty(0)
        if len(held) < len(known):
            raise self._error(
                "weights_message",
                f'agent {message.source} has sent and was sent {len(held)} numbers by "{name}" '
                f"before {message}; expected the {len(known)} weights of {self.options.model}",
            )
        links = frozenset((e.source, to) for e, _ in own[-1:] for to in e.destinations)
        return torch.from_numpy(held[-len(known) :]), (links,)

    @property
    def _sends_weights(self) -> bool:
        return self.options.message in self.worlds.config.messages.weights

    def _before(
        self, message: MessageId, run: ProgramRun
    ) -> tuple[Tensor, tuple[frozenset[tuple[int, int]], ...]]:
        """The last weights that each agent sent this one, and its own: what its step starts from.

        None where the message is no weights, or where another message brings those.
        """
        d = len(self.known.weights)
        by_source: dict[int, list[tuple[RecordedEvent, Array]]] = defaultdict(list)
        if self._sends_weights and self.options.weights_message is None:
            for event, content in run.known_before(message, self.options.message):
                if event.round is None or event.round < message.round:
                    by_source[event.source].append((event, content))
        found, links = [], []
        for sent in by_source.values():
            held = np.concatenate([content for _, content in sent])
            if len(held) >= d:
                found.append(torch.from_numpy(held[-d:]))
                links.append(frozenset((e.source, to) for e, _ in sent for to in e.destinations))
        return torch.stack(found) if found else torch.empty(0, d).double(), tuple(links)

    def _updated(self, one: RunGradient, steps: LocalSteps) -> RunGradient:
        """The same with the update that its agent made, in the place of weights that it sent."""
        if not self._sends_weights or one.outer is not None:
            return one
        start = one.before.T @ steps.mixing if len(one.before) else one.weights
        return one._replace(message=one.message - start, weights=start)

    def _step(self, engine: Engine, one: RunGradient) -> LocalSteps:
        """What a message without noise is of a mean gradient. Raises RunError if it is none."""
        if self.options.local is not None:
            return self._declared(engine, one, self.options.local)

        C = self.options.clip_norm

        def gradient(weights: Tensor, factor: float) -> Tensor:
            total, images, labels = torch.zeros_like(weights), *one.batch
            for x, y in zip(images.split(one.sizes), labels.split(one.sizes), strict=True):
                at = (weights + factor / len(one.sizes) * total).float()[None]
                summed = engine.clipped_sum(at, x[None], y[None], C)
                total = total + summed[0].detach().double() / len(y)
            return total / len(one.sizes)

        mixing = mixing_of(one.message, one.before, gradient)
        update = self._updated(one, LocalSteps(mixing, 0.0, 0.0))
        steps = LocalSteps.of(mixing, update.message, gradient(update.weights, 0.0))
        if not steps.agrees(len(one.sizes)):
            least = f"{SEVERAL:g} at least" if one.sizes[1:] else "1"
            helps = other_gradient(engine.module, one, update, gradient, self._sends_weights)
            raise self._error(
                "message",
                f"{one.parts[0]} is not the gradient of {self.options.model} on the batch of agent "
                f"{one.target.victim}, not even without noise: cosine {steps.cosine:.3g}, expected "
                f"{least}; {helps}",
            )
        return steps.played(update.message, partial(gradient, update.weights), one.sizes, C)

    def _declared(self, engine: Engine, one: RunGradient, training: LocalTraining) -> LocalSteps:
        """The same of the local training that the options declare."""
        n = len(one.batch.labels)
        passes = [_set_of(part) for part in one.batch.images.split(max(1, n // training.epochs))]
        if n % training.epochs or any(records != passes[0] for records in passes):
            raise self._error(
                "local.epochs",
                f"agent {one.target.victim} takes {n} records in {len(one.sizes)} steps, which are "
                f"not {training.epochs} times the same ones; expected its passes over its records",
            )
        simulation = local_steps(training, one.sizes, self.options.clip_norm)
        images, labels = one.batch.images.double()[None], one.batch.labels[None]
        oracle = DummyGradient(engine, images, labels, one.sizes)

        def gradient(weights: Tensor, factor: float) -> Tensor:
            with torch.no_grad():
                return simulation.mean_gradient(oracle, weights[None])[0]

        mixing = mixing_of(one.message, one.before, gradient)
        update = self._updated(one, LocalSteps(mixing, 0.0, 0.0))
        steps = LocalSteps.of(mixing, update.message, gradient(update.weights, 0.0))
        scale = abs(steps.factor) / simulation.factor
        other_rate = self._sends_weights and abs(scale - 1) > AGREE
        if other_rate or not steps.agrees(1):
            helps = other_steps(
                engine.module, one, update, oracle, self.options, self._sends_weights
            )
            found = f"cosine {steps.cosine:.3g}, expected 1"
            if steps.agrees(1):
                found = f"the weights move {scale:.4g} times as far"
            raise self._error(
                "local",
                f"{one.parts[0]} is not what {len(one.sizes)} steps of {training.optimizer} make "
                f"of the batches of agent {one.target.victim}, not even without noise: {found}; "
                f"{helps}",
            )
        return steps._replace(simulation=simulation, scale=scale)

    def _public(self, engine: Engine, seen: Sequence[RunGradient], quiet: "_Shown") -> Dataset:
        """What is known of images beside those that are attacked."""
        attacked = [one.batch for one in seen]
        known = others(quiet.batches, attacked, f"attack[{self.index + 1}]")
        values = torch.cat([batch.images for batch in (known, *attacked)])
        n_classes = n_classes_of(engine.module, tuple(known.images.shape[1:]))
        limits = self.options.value_range or (float(values.min()), float(values.max()))
        return Dataset(
            name="the program's own data",
            x=attacked[0].images,
            y=attacked[0].labels,
            x_test=known.images,
            y_test=known.labels,
            class_names=tuple(map(str, range(n_classes))),
            value_range=limits,
        )

    def _error(self, key: str, said: str) -> RunError:
        return RunError("DPA064", f"attack[{self.index + 1}].{key}: {said}")


class _Shown(NamedTuple):
    """What one run shows: gradients, and all batches."""

    seen: list[RunGradient]
    batches: list[ImageBatch]


def _read(seen: Sequence[RunGradient], threat_model: ThreatModel) -> Iterator[RunGradient]:
    """The first gradient that an adversary reads of each victim that is not its own agent."""
    for victim in dict.fromkeys(one.target.victim for one in seen):
        of = [
            one
            for one in seen
            if one.target.victim == victim
            and all(part.read_by(threat_model) for part in one.parts)
            and all(any(threat_model.sees(*link) for link in links) for links in one.links)
        ]
        if victim not in threat_model.agents:
            yield from of[:1]


def _set_of(images: Tensor) -> list[bytes]:
    return sorted(image.numpy().tobytes() for image in images)


def batch_in(parts: Sequence[Tensor]) -> ImageBatch | None:
    """Its first floating-point part is the images, its first of an integer for each the labels.

    None: it is no batch of images.
    """
    images = next((part for part in parts if part.is_floating_point()), None)
    if images is None or images.ndim not in (3, 4):
        return None
    of_each = (len(images),)
    labels = next((p for p in parts if not p.is_floating_point() and p.shape == of_each), None)
    if labels is None:
        return None
    return ImageBatch((images[:, None] if images.ndim == 3 else images).float(), labels.long())


def others(batches: Iterable[ImageBatch], attacked: Sequence[ImageBatch], key: str) -> ImageBatch:
    """Every record that is in no attacked batch, once for each time that it was taken."""
    hidden = {image.numpy().tobytes() for batch in attacked for image in batch.images}
    shape = attacked[0].images.shape[1:]
    rows = [
        (image, label)
        for batch in batches
        for image, label in zip(batch.images, batch.labels, strict=True)
        if image.shape == shape and image.numpy().tobytes() not in hidden
    ]
    if len({int(label) for _, label in rows}) < 2:
        raise RunError(
            "DPA033",
            f"{key}: the blind guess beside gradient inversion needs records of two classes in "
            "batches that are not attacked; expected a run of more rounds or agents",
        )
    images, labels = zip(*rows, strict=True)
    return ImageBatch(torch.stack(images), torch.stack(labels))
