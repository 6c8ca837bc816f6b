"""Gradient inversion of a message that is, but for noise and a factor, the gradient of a batch.

A run without noise shows first whether it is: where the message is not the gradient of the named
model on the recorded batch, nothing is attacked. The factor, such as a learning rate, is public, as
is how much noise the program adds to each number, which was measured.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from dpaudit.attack.contract import World as Noisy
from dpaudit.attack.observed import ObservedGradients as Gradients
from dpaudit.attack.reconstruction import ReconstructionAttack
from dpaudit.attack.scored import Truth, attack_streams, not_available, scored, task_of
from dpaudit.attack.victims import Scenario
from dpaudit.checkpoint import Checkpoint
from dpaudit.data.datasets import Dataset
from dpaudit.defense.contract import Target
from dpaudit.errors import NotObservable, RunError, nearest
from dpaudit.files.captured_attacks import GradientInversion
from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.finding import Finding
from dpaudit.files.threat import ThreatModel
from dpaudit.models.gradients import Gradients as Engine
from dpaudit.models.models import architecture
from dpaudit.rng import Streams
from dpaudit.training.run_directory import RunDirectory

from .batches import Batch, batch_in, batch_of, others
from .named_model import n_classes_of, named_model, stored_weights, weights_of
from .observed import MessageId, Observed
from .program import Program
from .worlds import Worlds

AGREE = 1e-2  # relative, between a message without noise and the model's gradient
KNOWN = "the adversary knows the factor between the two, and the size of the noise (Kerckhoffs)"
PUBLIC = (
    "public images are those of the run's other batches, beside which a blind guess is better than "
    "without them"
)


class Seen(NamedTuple):
    """What one run shows of one gradient."""

    target: Target
    parts: tuple[MessageId, ...]  # of the message, in the order in which they were sent
    message: Tensor  # [n]
    weights: Tensor  # [d], at which it was taken
    links: frozenset[tuple[int, int]]  # by which these weights came; none: they are public
    batch: Batch


class Known(NamedTuple):
    """The model of an attack, and where it is if no message brings its weights."""

    model: nn.Module
    weights: Tensor  # [d]


def known_models(config: CapturedConfig) -> dict[int, tuple[GradientInversion, Known]]:
    """By attack, before anything is run. Raises RunError where one cannot be made or read."""
    known = {}
    for i, attack in enumerate(config.attack):
        if isinstance(attack, GradientInversion):
            model = named_model(attack.model, config.program, config.seed)
            file = attack.weights
            weights = weights_of(model) if file is None else stored_weights(file, model)
            known[i] = attack, Known(model, weights.double())
    return known


@dataclass(frozen=True)
class Inversion:
    """One attack of captured.toml, and what it needs of the audit."""

    index: int
    options: GradientInversion
    known: Known
    config: CapturedConfig
    worlds: Worlds
    run: RunDirectory

    def findings(self, program: Program, checkpoint: Checkpoint) -> Iterator[Finding]:
        """Of every round and adversary, with the program's noise and without.

        Raises:
            RunError: a run fails; there is no such message; it is not the gradient of the model, or
                the records are no images with labels.
        """
        for k in self.config.record.rounds:
            silent = [d.key for p in self.worlds.rounds[k].places.values() for d in p.draws]
            replay = self.worlds.replay.model_copy(update={"keeps_records": True})
            quiet = replay.model_copy(update={"silent": tuple(silent)})
            shown = program.each([replay, quiet], partial(self._seen, k))
            yield from self._of_round(k, shown[0], shown[1], checkpoint.stage(k))

    def _of_round(
        self, k: int, noisy: "_Shown", quiet: "_Shown", checkpoint: Checkpoint
    ) -> Iterator[Finding]:
        shape = tuple(quiet.seen[0].batch.images.shape[1:])
        model = self.known.model
        engine = Engine(architecture(model, shape, n_classes_of(model, shape)))
        factors = {one.parts: self._factor(engine, one) for one in quiet.seen}
        worlds: dict[Noisy, _Shown] = {"defense": noisy}
        if any(place.draws for place in self.worlds.rounds[k].places.values()):
            worlds["no-defense"] = quiet
        for threat_model in self.config.threat_model:
            stage = checkpoint.stage(threat_model.slug)
            for world, shown in worlds.items():
                by_size: dict[int, list[Seen]] = defaultdict(list)
                for one in _read(shown.seen, threat_model):
                    by_size[len(one.batch.labels)].append(one)
                if not by_size and world == "defense":
                    scenario = self._scenario(threat_model, world, k, 1)
                    yield not_available(scenario, ["it does not read the message and the weights"])
                for size, some in by_size.items():
                    scenario = self._scenario(threat_model, world, k, size)
                    gradients = self._gradients(scenario, some, factors)
                    where = stage.stage(world).stage(size)
                    yield from self._attacked(scenario, engine, gradients, some, quiet, where)

    def _attacked(
        self,
        scenario: Scenario,
        engine: Engine,
        gradients: Gradients,
        seen: Sequence[Seen],
        quiet: "_Shown",
        checkpoint: Checkpoint,
    ) -> list[Finding]:
        """The findings of one batch size in one world."""
        public, streams = self._public(engine, seen, quiet), Streams(self.config.seed)
        task = task_of(engine, public, checkpoint)
        draws = attack_streams(scenario, streams)
        try:
            found = scenario.reconstruct(gradients, task, draws, lambda done, total: None)
        except NotObservable as error:
            return [not_available(scenario, [str(error)])]
        truth = Truth(
            scenario.rounds,
            [one.target for one in seen],
            torch.stack([one.batch.images for one in seen]),
            torch.stack([one.batch.labels for one in seen]),
        )
        notes = (f"the gradient of {self.options.model}, as it is sent", KNOWN, PUBLIC)
        scores = scored(scenario, found, truth, public, streams, self.run)
        return [one.model_copy(update={"notes": (*one.notes, *notes)}) for one in scores]

    def _scenario(self, threat_model: ThreatModel, world: Noisy, k: int, size: int) -> Scenario:
        attack = self.options.plugin(self.config.record.rounds)
        assert isinstance(attack, ReconstructionAttack)
        return Scenario(
            attack_index=self.index,
            attack_name=self.options.name,
            reconstruct=attack.reconstruct,
            message=self.options.message,
            rounds=(k,),
            n_targets=len(self.config.record.victims),
            threat_model=threat_model,
            world=world,
            batch_size=size,
            is_probe=False,
        )

    def _gradients(
        self,
        scenario: Scenario,
        seen: Sequence[Seen],
        factors: Mapping[tuple[MessageId, ...], float],
    ) -> Gradients:
        noisy = scenario.world == "defense"
        return Gradients(
            gradients=torch.stack([one.message / factors[one.parts] for one in seen]).float(),
            models=torch.stack([one.weights for one in seen]).float(),
            batch_size=scenario.batch_size,
            clip_norm=self.options.clip_norm,
            std=torch.tensor([self._std(one) / abs(factors[one.parts]) * noisy for one in seen]),
        )

    def _std(self, one: Seen) -> float:
        """Of the noise in a number of the message, by its mean square."""
        neighbours = self.worlds.rounds[one.target.round]
        draws = neighbours.places[one.target.victim].draws
        squares = []
        for part in one.parts:
            square = np.zeros(len(neighbours.base.messages[part]))
            for response in neighbours.noised[one.target.victim][part]:
                doubled = 1 + (draws[response.draw].family == "laplace")  # scale b: variance 2 b^2
                square[response.places] += doubled * response.size**2
            squares.append(square)
        return float(np.sqrt(np.concatenate(squares).mean()))

    def _seen(self, k: int, run: Observed) -> "_Shown":
        victims = self.config.record.victims
        seen = [one for victim in victims for one in self._of_victim(k, victim, run)]
        return _Shown(seen, [one for parts in run.records.values() if (one := batch_in(parts))])

    def _of_victim(self, k: int, victim: int, run: Observed) -> Iterator[Seen]:
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
        number = self.worlds.rounds[k].places[victim].batch
        for receivers, parts in by_receivers.items():
            content = torch.from_numpy(np.concatenate([run.messages[m] for m in parts]))
            weights, links = self._weights(parts[0], run)
            if len(content) != len(weights):
                raise self._error(
                    "message",
                    f"{parts[0]} has {len(content)} numbers, and {self.options.model} has "
                    f"{len(weights)} parameters; expected a gradient, one number for each",
                )
            batch = batch_of(run.records[victim, number], (victim, number))
            target = Target(k, victim, min(receivers, default=victim))
            yield Seen(target, tuple(parts), content, weights, links, batch)

    def _weights(
        self, message: MessageId, run: Observed
    ) -> tuple[Tensor, frozenset[tuple[int, int]]]:
        known, name = self.known.weights, self.options.weights_message
        if name is None:
            return known, frozenset()
        told = run.told_before(message, name)
        source = next(
            (e.source for e, _ in reversed(told) if e.source == message.source),
            told[-1][0].source if told else None,
        )
        own = [(event, content) for event, content in told if event.source == source]
        held = np.concatenate([content for _, content in own]) if own else np.empty(0)
        if len(held) < len(known):
            raise self._error(
                "weights_message",
                f'agent {message.source} has sent and was sent {len(held)} numbers by "{name}" '
                f"before {message}; expected the {len(known)} weights of {self.options.model}",
            )
        links = frozenset((e.source, to) for e, _ in own[-1:] for to in e.destinations)
        return torch.from_numpy(held[-len(known) :]), links

    def _factor(self, engine: Engine, one: Seen) -> float:
        """Between a message without noise and the mean gradient. Raises RunError if it has none."""
        batch = one.batch
        summed = engine.clipped_sum(
            one.weights.float()[None],
            batch.images[None],
            batch.labels[None],
            self.options.clip_norm,
        )
        gradient = summed[0].detach().double() / len(batch.labels)
        length = float(gradient.norm())
        factor = float(one.message @ gradient) / length**2 if length else 0.0
        off = float((one.message - factor * gradient).norm())
        if not factor or off > AGREE * float(one.message.norm()):
            cosine = factor * length / max(float(one.message.norm()), 1e-30)
            raise self._error(
                "message",
                f"{one.parts[0]} is not the gradient of {self.options.model} on the batch of agent "
                f"{one.target.victim}, not even without noise: cosine {cosine:.3g}, expected 1; "
                "is it at these weights, of the cross-entropy, clipped as clip_norm says?",
            )
        return factor

    def _public(self, engine: Engine, seen: Sequence[Seen], quiet: "_Shown") -> Dataset:
        """What is known of images beside those that are attacked."""
        attacked = [one.batch for one in seen]
        known = others(quiet.batches, attacked, f"attack[{self.index + 1}]")
        values = torch.cat([known.images, *(batch.images for batch in attacked)])
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

    seen: list[Seen]
    batches: list[Batch]


def _read(seen: Sequence[Seen], threat_model: ThreatModel) -> Iterator[Seen]:
    """Of each victim that is none of its own the first gradient that an adversary reads."""
    for victim in dict.fromkeys(one.target.victim for one in seen):
        of = [
            one
            for one in seen
            if one.target.victim == victim
            and all(part.read_by(threat_model) for part in one.parts)
            and (not one.links or any(threat_model.sees(*link) for link in one.links))
        ]
        if victim not in threat_model.agents:
            yield from of[:1]
