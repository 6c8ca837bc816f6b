"""Gradient inversion of a message that is, but for noise and a factor, the gradient of a batch.

Weights, and changes of weights after local steps, count as one too: see ``local_steps``.

A run without noise shows first whether it is: where the message is not the gradient of the named
model on the recorded batch, nothing is attacked. The factor, such as a learning rate, is public, as
is how much noise the program adds to each number, which was measured.
"""

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from dpaudit.accounting.privacy_loss import Array
from dpaudit.attack.observed import ObservedGradients as Gradients
from dpaudit.attack.reconstruction import ReconstructionAttack
from dpaudit.attack.scenario import Truth, attack_streams, not_available, scored, task_of
from dpaudit.attack.victims import Scenario
from dpaudit.checkpoint import Checkpoint
from dpaudit.data.datasets import Dataset
from dpaudit.defense.contract import Target
from dpaudit.errors import NotObservable, RunError, nearest
from dpaudit.files.captured_file import CapturedConfig, GradientInversion, ProgramOptions
from dpaudit.files.finding import Finding
from dpaudit.files.recorded import Event
from dpaudit.files.threat import ThreatModel
from dpaudit.models.gradients import Gradients as Engine
from dpaudit.models.models import architecture
from dpaudit.rng import Streams
from dpaudit.source import NOT_SOURCE
from dpaudit.training.run_directory import RunDirectory

from .local_steps import SEVERAL, LocalSteps, mixing_of, said_of
from .program import Program
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


class Seen(NamedTuple):
    """What one run shows of one gradient."""

    target: Target
    parts: tuple[MessageId, ...]  # of the message, in the order in which they were sent
    message: Tensor  # [n]
    weights: Tensor  # [d], at which it was taken
    links: tuple[frozenset[tuple[int, int]], ...]  # by which these weights came; none: are public
    batch: ImageBatch  # of all local steps
    sizes: tuple[int, ...]  # records of each local step
    before: Tensor  # [m, d]: weights that were sent before and averaged; none: weights are as above


class KnownModel(NamedTuple):
    """An attack, its model, and where that is if no message brings its weights."""

    attack: GradientInversion
    module: nn.Module
    weights: Tensor  # [d]


def known_models(config: CapturedConfig) -> dict[int, KnownModel]:
    """By attack, before anything is run. Raises RunError where one cannot be made or read."""
    known = {}
    for i, attack in enumerate(config.attack):
        if isinstance(attack, GradientInversion):
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
    def options(self) -> GradientInversion:
        return self.known.attack

    def findings(self, program: Program, checkpoint: Checkpoint) -> Iterator[Finding]:
        """Of every round and adversary, with the program's noise and without.

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
                by_size: dict[int, list[Seen]] = defaultdict(list)
                for one in _read(shown.seen, threat_model):
                    by_size[len(one.batch.labels)].append(self._updated(one, steps[one.parts]))
                if not by_size and world == "defense":
                    scenario = self._scenario(threat_model, world, k, 1)
                    yield not_available(scenario, ["it does not read the message and the weights"])
                for size, some in by_size.items():
                    scenario = self._scenario(threat_model, world, k, size)
                    where = stage.stage(world).stage(size)
                    yield from self._attacked(scenario, engine, steps, some, quiet, where)

    def _attacked(
        self,
        scenario: Scenario,
        engine: Engine,
        steps: Mapping[tuple[MessageId, ...], LocalSteps],
        seen: Sequence[Seen],
        quiet: "_Shown",
        checkpoint: Checkpoint,
    ) -> list[Finding]:
        """The findings of one batch size in one world."""
        public, streams = self._public(engine, seen, quiet), Streams(self.worlds.config.seed)
        noisy = scenario.world == "defense"
        gradients = Gradients(
            gradients=torch.stack([one.message / steps[one.parts].factor for one in seen]).float(),
            models=torch.stack([one.weights for one in seen]).float(),
            batch_size=scenario.batch_size,
            clip_norm=self.options.clip_norm,
            std=torch.tensor(
                [self._std(one) / abs(steps[one.parts].factor) * noisy for one in seen]
            ),
        )
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
        what = said_of([(len(one.sizes), steps[one.parts]) for one in seen])
        notes = (f"{what} of {self.options.model}, as it is sent", KNOWN, PUBLIC)
        scores = scored(scenario, found, truth, public, streams, self.run)
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

    def _seen(self, k: int, run: ProgramRun) -> "_Shown":
        victims = self.worlds.rounds[k].places
        seen = [one for victim in victims for one in self._of_victim(k, victim, run)]
        return _Shown(seen, [one for parts in run.records.values() if (one := batch_in(parts))])

    def _of_victim(self, k: int, victim: int, run: ProgramRun) -> Iterator[Seen]:
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
            yield Seen(target, tuple(parts), content, weights, links, batch, sizes, before)

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
        by_source: dict[int, list[tuple[Event, Array]]] = defaultdict(list)
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

    def _updated(self, one: Seen, steps: LocalSteps) -> Seen:
        """The same with the update that its agent made, in the place of weights that it sent."""
        if not self._sends_weights:
            return one
        start = one.before.T @ steps.mixing if len(one.before) else one.weights
        return one._replace(message=one.message - start, weights=start)

    def _step(self, engine: Engine, one: Seen) -> LocalSteps:
        """What a message without noise is of a mean gradient. Raises RunError if it is none."""

        def gradient(weights: Tensor, factor: float) -> Tensor:
            total, images, labels = torch.zeros_like(weights), *one.batch
            for x, y in zip(images.split(one.sizes), labels.split(one.sizes), strict=True):
                at = (weights + factor / len(one.sizes) * total).float()[None]
                summed = engine.clipped_sum(at, x[None], y[None], self.options.clip_norm)
                total = total + summed[0].detach().double() / len(y)
            return total / len(one.sizes)

        mixing = mixing_of(one.message, one.before, gradient)
        update = self._updated(one, LocalSteps(mixing, 0.0, 0.0))
        steps = LocalSteps.of(mixing, update.message, gradient(update.weights, 0.0))
        if not steps.agrees(len(one.sizes)):
            least = f"{SEVERAL:g} at least" if one.sizes[1:] else "1"
            raise self._error(
                "message",
                f"{one.parts[0]} is not the gradient of {self.options.model} on the batch of agent "
                f"{one.target.victim}, not even without noise: cosine {steps.cosine:.3g}, expected "
                f"{least}; is it at these weights, of the cross-entropy, clipped as clip_norm says,"
                " and does messages.weights name the lines that send weights?",
            )
        return steps

    def _public(self, engine: Engine, seen: Sequence[Seen], quiet: "_Shown") -> Dataset:
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

    seen: list[Seen]
    batches: list[ImageBatch]


def _read(seen: Sequence[Seen], threat_model: ThreatModel) -> Iterator[Seen]:
    """Of each victim that is none of its own the first gradient that an adversary reads."""
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


def batch_in(parts: Sequence[Tensor]) -> ImageBatch | None:
    """Its first floating-point part is the images, its first of integers the labels.

    None: it is no batch of images.
    """
    images = next((part for part in parts if part.is_floating_point()), None)
    labels = next((p for p in parts if not p.is_floating_point() and p.ndim == 1), None)
    if images is None or labels is None or images.ndim not in (3, 4):
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


def named_model(name: str, program: ProgramOptions, seed: int) -> nn.Module:
    """What "module:Class" makes when it is called, right after torch was seeded.

    The module is imported as the program would, with its arguments, and forgotten, so that
    another program's of the same name is not taken for it.

    Raises:
        RunError: it cannot be imported or called, or makes no network; or the network keeps state
            beside its parameters, as batch normalisation does.
    """
    module, _, attribute = name.partition(":")
    try:
        with _importing_from(program), torch.random.fork_rng(devices=[]):
            maker: Any = import_module(module)
            for part in attribute.split("."):
                maker = getattr(maker, part)
            torch.manual_seed(seed)
            made = maker()
    except (Exception, SystemExit) as error:  # whatever somebody's module does
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise RunError(
            "DPA042", f'model "{name}" cannot be made in {program.folder}: {said}'
        ) from None
    if not isinstance(made, nn.Module):
        raise RunError("DPA035", f'model "{name}" is of {type(made).__name__}; expected a network')
    if not list(made.parameters()):
        raise RunError("DPA035", f'model "{name}" has no parameters, and so no gradient')
    if buffers := [key for key, _ in made.named_buffers()]:
        raise RunError(
            "DPA036",
            f'model "{name}" keeps state beside its parameters ({buffers[0]}), which its gradients '
            "depend on and no message holds",
        )
    return made.float()


def n_classes_of(model: nn.Module, shape: tuple[int, ...]) -> int:
    """How many logits it makes of a record. Raises RunError if it takes none of this shape."""
    device = next(model.parameters()).device
    try:
        with torch.no_grad():
            return int(model(torch.zeros(2, *shape, device=device)).shape[-1])
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
        said = str(error).splitlines()[0]
        name = type(model).__name__
        raise RunError(
            "DPA034", f"{name} cannot take records of shape {list(shape)}: {said}"
        ) from None


def stored_weights(path: Path, model: nn.Module) -> Tensor:
    """[d] of a file of the model's state. Raises RunError where the two do not fit."""
    try:
        stored = load_file(path)
    except (OSError, SafetensorError) as error:
        raise RunError("DPA035", f"{path}: {' '.join(str(error).split())}") from None
    for name, parameter in model.named_parameters():
        if name not in stored or stored[name].shape != parameter.shape:
            found = list(stored[name].shape) if name in stored else "nothing"
            raise RunError(
                "DPA035", f"{path}: {name}: expected {list(parameter.shape)}, found {found}"
            )
    return torch.cat([stored[name].flatten().float() for name, _ in model.named_parameters()])


@contextmanager
def _importing_from(program: ProgramOptions) -> Iterator[None]:
    before, path, arguments = set(sys.modules), list(sys.path), list(sys.argv)
    command, folder = list(program.command), program.folder
    sys.path.insert(0, str(folder))
    sys.argv[:] = command[[part.endswith(".py") for part in command].index(True) :]
    try:
        yield
    finally:
        sys.path[:], sys.argv[:] = path, arguments
        for name in set(sys.modules) - before:
            path_of = Path(getattr(sys.modules[name], "__file__", None) or "/")
            if path_of.is_relative_to(folder) and not {*path_of.parts} & {*NOT_SOURCE}:
                del sys.modules[name]
