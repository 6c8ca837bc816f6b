"""What gradient inversion takes from runs of a small network, value by value."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpaudit.attack.local_steps import outer_gradients
from dpaudit.capture import gradient_inversion
from dpaudit.capture.gradient_inversion import (
    ImageBatch,
    Inversion,
    KnownModel,
    RunGradient,
    batch_in,
)
from dpaudit.capture.local_steps import LocalSteps
from dpaudit.capture.record_shift import NotMeasured, Response
from dpaudit.capture.runs import AgentRound, MessageId, NamedDraw
from dpaudit.capture.worlds import NeighbouringRuns
from dpaudit.checkpoint import NO_CHECKPOINT
from dpaudit.defense.contract import Target
from dpaudit.errors import NotObservable, RunError
from dpaudit.files.captured_file import GradientInversionOptions
from dpaudit.files.threat import ThreatModel
from dpaudit.files.world import World
from dpaudit.models.gradients import Gradients as Engine
from dpaudit.models.models import architecture

EVERYONE = ThreatModel(name="every link")
MODULE = nn.Sequential(nn.Flatten(), nn.Linear(4, 2, bias=False))
KNOWN = torch.arange(8.0).double() / 8
ENGINE = Engine(architecture(MODULE, (1, 2, 2), 2))
RNG = torch.Generator().manual_seed(7)
IMAGES, LABELS = torch.rand(6, 1, 2, 2, generator=RNG), torch.tensor([0, 1, 1, 0, 1, 0])


def inversion(rounds: Any = None, weights: tuple[str, ...] = (), **options: Any) -> Inversion:
    about = {"name": "gradient-inversion", "message": "m", "model": "net:Net", **options}
    known = KnownModel(GradientInversionOptions.model_validate(about), MODULE, KNOWN)
    config = SimpleNamespace(
        messages=SimpleNamespace(weights=weights), threat_model=(EVERYONE,), seed=3,
        record=SimpleNamespace(victims=(0,), rounds=(1, 2)),
    )  # fmt: skip
    worlds: Any = SimpleNamespace(
        config=config, rounds=rounds or {}, replay=World(out=Path("out")), base=None
    )
    nothing: Any = None
    return Inversion(1, known, worlds, nothing)


def message(source: int, to: int | tuple[int, ...], k: int, name: str = "m", nth: int = 0) -> Any:
    return MessageId(source, to if isinstance(to, tuple) else (to,), name, k, nth)


class Sent:
    """A run: messages of whichever name in their order, and what is in batches."""

    def __init__(self, *sent: tuple[MessageId, Sequence[float]], records: Any = None) -> None:
        self.sent = [(m, np.array(content, float)) for m, content in sent]
        self.messages = dict(self.sent)
        self.records = records or {}

    def known_before(self, until: MessageId, name: str) -> list[tuple[Any, np.ndarray]]:
        end = [m for m, _ in self.sent].index(until)
        return [
            (SimpleNamespace(source=m.source, destinations=m.destinations, round=m.round), content)
            for m, content in self.sent[:end]
            if m.name == name and until.source in (m.source, *m.destinations)
        ]


def eight(start: float) -> list[float]:
    return [start + i for i in range(8)]


def test_weights_are_those_that_an_agent_last_sent_or_got() -> None:
    of, last = inversion(weights_message="w"), message(0, 9, 2)
    before = [
        (message(2, 0, 1, "w"), eight(10)), (message(1, 0, 1, "w"), eight(20)[:5]),
        (message(1, 0, 1, "w"), eight(30)),
    ]  # fmt: skip

    def found(*sent: Any) -> tuple[list[float], Any]:
        weights, links = of._weights(last, Sent(*sent, (last, [])))  # type: ignore[arg-type]
        return weights.tolist(), links

    assert found(*before) == (eight(30), (frozenset({(1, 0)}),))
    own = (message(0, (3, 4), 1, "w"), eight(40))
    assert found(own, *before) == (eight(40), (frozenset({(0, 3), (0, 4)}),))
    # In parts: the last eight numbers of one source.
    halves = [(message(1, 0, 1, "w", i), eight(50 + 4 * i)[:4]) for i in range(3)]
    assert found(before[0], *halves)[0] == eight(54)
    for sent, n in (((), 0), ((before[0], before[1]), 5)):
        with pytest.raises(RunError, match=f"sent and was sent {n} numbers") as error:
            found(*sent)
        assert str(error.value).startswith("attack[2].weights_message: agent 0 has")
        assert "expected the 8 weights of net:Net" in str(error.value)
    assert inversion()._weights(last, Sent()) == (KNOWN, ())  # type: ignore[arg-type]


def test_a_step_starts_from_weights_that_were_sent_before() -> None:
    """The last of each source, of earlier rounds or before round 1; not of the round itself."""
    last = message(0, 9, 2)
    run: Any = Sent(
        (message(0, 1, None), eight(10)),  # type: ignore[arg-type]
        (message(2, 0, 1), eight(20)),
        (message(2, (0, 5), 1, nth=1), eight(30)[:4]),
        (message(3, 0, 1), eight(40)[:7]),  # too few
        (message(1, 0, 2), eight(50)),
        (last, eight(60)),
    )
    of = inversion(weights=("m",))
    before, links = of._before(last, run)
    assert before.tolist() == [eight(10), [24.0, 25.0, 26.0, 27.0, 30.0, 31.0, 32.0, 33.0]]
    assert links == (frozenset({(0, 1)}), frozenset({(2, 0), (2, 5)}))
    for other in (inversion(), inversion(weights=("m",), weights_message="w")):
        found, links = other._before(last, run)
        assert (found.shape, found.dtype, links) == ((0, 8), torch.float64, ())
    later = message(0, 9, 3)
    run.sent.append((later, np.array(eight(70))))
    assert of._before(later, run)[0].tolist()[-1] == eight(50)


def seen(content: Tensor, **of: Any) -> RunGradient:
    batch = of.pop("batch", ImageBatch(IMAGES[:2], LABELS[:2]))
    about = {
        "target": Target(2, 0, 9), "parts": (message(0, 9, 2),), "weights": KNOWN, "links": (),
        "sizes": (len(batch.labels),), "before": torch.empty(0, 8).double(), **of,
    }  # fmt: skip
    return RunGradient(message=content, batch=batch, **about)


def test_an_update_is_what_weights_differ_by_from_their_start() -> None:
    content, before = torch.tensor(eight(5.0)).double(), torch.tensor([eight(1), eight(3)]).double()
    mixed = LocalSteps(torch.tensor([0.25, 0.75]).double(), 1.0, 1.0)
    named, one = inversion(weights=("m",)), seen(content, before=before)
    found = named._updated(one, mixed)
    assert found.message.tolist() == [2.5] * 8
    assert found.weights.tolist() == eight(2.5)
    alone = named._updated(seen(content), mixed)
    assert alone.message.tolist() == (content - KNOWN).tolist()
    assert alone.weights is KNOWN
    assert inversion()._updated(one, mixed) is one
    outer = one._replace(outer=2.0)
    assert named._updated(outer, mixed) is outer


def test_an_outer_step_is_undone() -> None:
    """From the weights of the seed on, what this agent sent to the same receivers."""
    outer = {"optimizer": "sgd", "learning_rate": 0.1, "outer_learning_rate": 0.5}
    outer |= {"outer_momentum": 0.8}
    sent = [message(0, 9, 1), message(0, 8, 1), message(1, 0, 1), message(0, 9, 2)]
    contents = [torch.rand(8, generator=RNG).double() for _ in sent]
    run: Any = Sent(*zip(sent, (c.tolist() for c in contents), strict=True))
    one = seen(contents[-1], before=torch.ones(2, 8).double())
    of = inversion(weights=("m",), local=outer)
    found = of._before_outer_step(one, run)
    models = torch.stack([KNOWN, contents[0], contents[3]])
    assert torch.equal(found.message, -outer_gradients(models, 0.5, 0.8)[-1])
    assert torch.equal(found.weights, contents[0])
    assert (len(found.before), found.outer) == (0, pytest.approx(1 / (0.5 * 1.8)))
    first: Any = Sent((sent[-1], contents[-1].tolist()))
    found = of._before_outer_step(one, first)
    assert found.message.tolist() == pytest.approx(((contents[-1] - KNOWN) / 0.5 / 1.8).tolist())
    assert torch.equal(found.weights, KNOWN)
    for same in (inversion(), inversion(local={"optimizer": "sgd", "learning_rate": 0.1})):
        assert same._before_outer_step(one, run) is one
    with pytest.raises(RunError, match=r"attack\[2\]\.local\.outer_momentum: .* is not named"):
        inversion(local=outer)._before_outer_step(one, run)


def place(k: int = 2, batch: int = 1, n_batches: int = 1, **of: Any) -> AgentRound:
    return AgentRound(0, k, (message(0, 9, k),), of.get("draws", ()), batch, n_batches)


def neighbours(victim_place: AgentRound, **of: Any) -> Any:
    return NeighbouringRuns(
        {0: victim_place}, of.get("noised", {}), {}, of.get("base"), **of.get("more", {})
    )  # type: ignore[arg-type]


def records(*sizes: int) -> dict[tuple[int, int], list[Tensor]]:
    """Batches of agent 0 of so many records each, one after the other."""
    parts = zip(IMAGES.split(list(sizes)), LABELS.split(list(sizes)), strict=True)
    return {(0, i): [*part] for i, part in enumerate(parts, 1)}


def test_each_message_of_a_victim_is_seen_with_its_batch() -> None:
    """To several receivers it is sent in parts, and to one as a whole."""
    parts = [message(0, (3, 2), 2), message(0, (3, 2), 2, nth=1)]
    run: Any = Sent(
        (parts[0], eight(0)[:3]), (message(1, 0, 2), eight(9)), (parts[1], eight(0)[3:]),
        (message(0, 4, 2), eight(1)), (message(0, 4, 2, "other"), [1.0]),
        (message(0, (), 2), eight(2)), (message(0, 4, 1), eight(3)), records=records(1, 2, 3),
    )  # fmt: skip
    of = inversion({2: neighbours(place(batch=2, n_batches=2))})
    both, one, nobody = of._of_victim(2, 0, run)
    assert [s.target for s in (both, one, nobody)] == [
        Target(2, 0, 2),
        Target(2, 0, 4),
        Target(2, 0, 0),
    ]
    assert (both.parts, one.parts) == (tuple(parts), (message(0, 4, 2),))
    assert (both.message.tolist(), one.message.tolist()) == (eight(0), eight(1))
    assert both.sizes == (2, 3)
    assert torch.equal(both.batch.images, IMAGES[1:])
    assert torch.equal(both.batch.labels, LABELS[1:])
    assert both.weights is KNOWN
    assert (both.links, both.outer, len(both.before)) == ((), None, 0)
    shown = of._seen(2, run)
    assert [s.parts for s in shown.seen] == [s.parts for s in (both, one, nobody)]
    assert [len(batch.labels) for batch in shown.batches] == [1, 2, 3]


def test_what_is_no_gradient_of_the_model_is_refused() -> None:
    of = inversion({2: neighbours(place())})
    for sent, taken, said in (
        ([message(0, 4, 2, "n")], records(6), 'agent 0 sends no "m" in round 2.*it sends n'),
        ([message(0, 4, 2)], records(6), "has 3 numbers, and net:Net has 8 parameters"),
    ):
        with pytest.raises(RunError, match=said) as error:
            list(of._of_victim(2, 0, Sent(*((m, [1.0] * 3) for m in sent), records=taken)))  # type: ignore[arg-type]
        assert str(error.value).startswith("attack[2].message: ")
    for parts, said in (
        ([torch.zeros(2, 3)], r"batch 1 of agent 0 has torch.float32 \[2, 3\]; gradient"),
        ([], "has nothing; gradient inversion needs images"),
        ([IMAGES[:3], LABELS[:2]], r"has torch.float32 \[3, 1, 2, 2\], torch.int64 \[2\]"),
    ):
        with pytest.raises(RunError, match=said) as error:
            of._batch_of(Sent(records={(0, 1): parts}), 0, 1)  # type: ignore[arg-type]
        assert error.value.code == "DPA033"


def test_images_without_a_label_each_are_no_batch() -> None:
    """Of several parts with integers the first that has one for each image is the labels."""
    found = batch_in([IMAGES[:3], torch.zeros(2).long(), LABELS[:3]])
    assert found is not None
    assert torch.equal(found.labels, LABELS[:3])
    assert batch_in([IMAGES[:3], LABELS[:2]]) is None


def gradient(weights: Tensor, rows: slice, clip_norm: float | None = None) -> Tensor:
    """The mean of these records, by autograd, each clipped by itself."""
    total = torch.zeros(8).double()
    for x, y in zip(IMAGES[rows].double(), LABELS[rows], strict=True):
        w = weights.clone().requires_grad_()
        logits = (w.view(2, 4) @ x.flatten())[None]
        [one] = torch.autograd.grad(nn.functional.cross_entropy(logits, y[None]), w)
        norm = float(one.norm())
        total += one if clip_norm is None else one * min(1.0, clip_norm / norm)
    return total / len(LABELS[rows])


@pytest.mark.parametrize("clip_norm", [None, 0.3])
def test_one_step_is_a_factor_of_the_gradient(clip_norm: float | None) -> None:
    own = gradient(KNOWN, slice(2), clip_norm)
    of = inversion(clip_norm=clip_norm)
    found = of._step(ENGINE, seen(-0.7 * own))
    assert found.factor == pytest.approx(-0.7, rel=1e-5)
    assert found.cosine == pytest.approx(-1.0)
    assert found.simulation is None
    changed = inversion(weights=("m",), clip_norm=clip_norm)._step(ENGINE, seen(KNOWN - 0.7 * own))
    assert changed.factor == pytest.approx(-0.7, rel=1e-4)
    with pytest.raises(RunError, match="of agent 0, not even without noise: cosine") as error:
        of._step(ENGINE, seen(torch.tensor(eight(1.0)).double()))
    assert ", expected 1; " in str(error.value)
    assert str(error.value).startswith('attack[2].message: "m" of round 2 from agent 0 to 9 is not')


def test_several_steps_are_found_by_their_mean_gradient() -> None:
    """Two steps of plain SGD, of two records and one, whose second is at where the first ends."""
    rate = 0.2
    first = gradient(KNOWN, slice(0, 2))
    second = gradient(KNOWN - rate * first, slice(2, 3))
    batch = ImageBatch(IMAGES[:3], LABELS[:3])
    found = inversion()._step(ENGINE, seen(-rate * (first + second), batch=batch, sizes=(2, 1)))
    assert found.simulation is not None
    assert found.factor == pytest.approx(-2 * rate, rel=1e-4)
    assert found.cosine == pytest.approx(-1.0, abs=1e-6)
    mean = (first + gradient(KNOWN, slice(2, 3))) / 2
    across = torch.linalg.qr(torch.stack([mean, *torch.eye(8).double()[:2]], 1))[0][:, 1]
    odd = mean / mean.norm() + 2 * across
    with pytest.raises(RunError, match="cosine 0.447, expected 0.9 at least; "):
        inversion()._step(ENGINE, seen(odd, batch=batch, sizes=(2, 1)))


SGD: dict[str, Any] = {"optimizer": "sgd", "learning_rate": 0.5}


def test_declared_training_is_held_against_a_message() -> None:
    of, rate = inversion(weights=("m",), local=SGD), 0.5
    own = gradient(KNOWN, slice(2))

    def at(factor: float) -> RunGradient:
        return seen(KNOWN - factor * rate * own)

    found = of._step(ENGINE, at(1.0))
    assert found.simulation is not None
    assert (found.scale, found.factor) == (pytest.approx(1.0), pytest.approx(-0.5))
    assert of._step(ENGINE, at(1.009)).scale == pytest.approx(1.009, rel=1e-4)
    assert of._step(ENGINE, at(0.991)).scale == pytest.approx(0.991, rel=1e-4)
    for factor in (1.011, 0.989, 3.0):
        with pytest.raises(RunError, match=f"the weights move {factor:.4g} times as far") as error:
            of._step(ENGINE, at(factor))
        assert "is not what 1 steps of sgd make of the batches of agent 0" in str(error.value)
    scaled = inversion(local=SGD)._step(ENGINE, seen(3.0 * rate * own))  # of no weights
    assert (scaled.scale, scaled.factor) == (pytest.approx(3.0), pytest.approx(1.5))
    with pytest.raises(RunError, match=r"attack\[2\]\.local: .*: cosine -?0\.\d+, expected 1; "):
        inversion(local=SGD)._step(ENGINE, seen(torch.tensor(eight(1.0)).double()))


def test_declared_passes_are_over_the_same_records() -> None:
    of = inversion(local={**SGD, "epochs": 2})
    training = of.options.local
    assert training is not None
    twice = ImageBatch(torch.cat([IMAGES[:2], IMAGES[:2].flip(0)]), LABELS[[0, 1, 1, 0]])
    first = gradient(KNOWN, slice(2))
    update = first + gradient(KNOWN - 0.5 * first, slice(2))
    found = of._declared(ENGINE, seen(0.5 * update, batch=twice, sizes=(2, 2)), training)
    assert (found.scale, abs(found.factor)) == (
        pytest.approx(1.0, rel=1e-4),
        pytest.approx(1.0, rel=1e-4),
    )
    three = ImageBatch(IMAGES[:3], LABELS[:3])
    other = ImageBatch(IMAGES[:4], LABELS[:4])
    one = ImageBatch(IMAGES[:1], LABELS[:1])
    for batch, sizes, n in ((three, (2, 1), 3), (other, (2, 2), 4), (one, (1,), 1)):
        with pytest.raises(
            RunError, match=f"takes {n} records in {len(sizes)} steps, which are not 2"
        ):
            of._declared(ENGINE, seen(update, batch=batch, sizes=sizes), training)


def test_public_images_are_those_that_are_not_attacked() -> None:
    batches = [ImageBatch(IMAGES[i : i + 2], LABELS[i : i + 2]) for i in (0, 2, 4)]
    one, quiet = seen(torch.zeros(8)), gradient_inversion._Shown([], batches)
    found = inversion()._public(ENGINE, [one], quiet)
    assert torch.equal(found.x, IMAGES[:2])
    assert torch.equal(found.y, LABELS[:2])
    assert torch.equal(found.x_test, IMAGES[2:])
    assert torch.equal(found.y_test, LABELS[2:])
    assert found.class_names == ("0", "1")
    assert found.value_range == (float(IMAGES.min()), float(IMAGES.max()))
    assert inversion(value_range=(-1.0, 2.0))._public(ENGINE, [one], quiet).value_range == (-1, 2)
    dark = gradient_inversion._Shown([], [ImageBatch(IMAGES[2:] * 0 + 0.5, LABELS[2:])])
    limits = inversion()._public(ENGINE, [one], dark).value_range
    assert limits == (float(IMAGES[:2].min()), float(IMAGES[:2].max()))
    with pytest.raises(RunError, match=r"attack\[2\]: the blind guess"):
        inversion()._public(ENGINE, [one], gradient_inversion._Shown([], batches[:1]))


def test_the_noise_of_an_outer_step_is_longer() -> None:
    draws = (NamedDraw("k", "z", 0, 0, 3.0, "gaussian"),)
    own = message(0, 9, 2)
    response = Response(0, np.arange(8), np.arange(8), np.full(8, -3.0))
    base = SimpleNamespace(messages={own: np.zeros(8)})
    rounds = {2: neighbours(place(draws=draws), noised={0: {own: (response,)}}, base=base)}
    of, one = inversion(rounds), seen(torch.ones(8))
    assert of._std(one, one) == pytest.approx(3.0)
    assert of._std(one._replace(outer=2.5), one) == pytest.approx(7.5)
    error = NotMeasured("DPA063", "not linear")
    rounds = {2: neighbours(place(), more={"unmeasured": {0: {own: error}}})}
    without = seen(torch.tensor([1.0, -2.0] * 4), parts=(message(0, 9, 2, nth=1), own))
    assert inversion(rounds)._std(without, seen(torch.zeros(8))) == pytest.approx(2.5**0.5)


class Attack:
    """It keeps what it was given, or refuses it."""

    def __init__(self, refuses: str = "") -> None:
        self.refuses, self.asked = refuses, list[tuple[Any, Any]]()

    def reconstruct(self, gradients: Any, task: Any, draws: Any, on_progress: Any) -> str:
        self.asked.append((gradients, task))
        on_progress(1, 2)
        if self.refuses:
            raise NotObservable("DPA033", self.refuses)
        return "found"


def attacked(monkeypatch: pytest.MonkeyPatch, attack: Attack, of: Inversion, **given: Any) -> Any:
    """The findings and what was scored, in one world of round 2."""
    scores: list[Any] = []

    def scored(scenario: Any, found: Any, truth: Any, *_: Any) -> list[Any]:
        scores.append((scenario, found, truth))
        names = [f"{scenario.message} {i}" for i in range(2)]
        return [Noted(name) for name in names]

    monkeypatch.setattr(gradient_inversion, "scored", scored)
    monkeypatch.setattr(
        gradient_inversion, "as_one_gradient", lambda scenario, *_: (scenario, "as one")
    )
    monkeypatch.setattr(GradientInversionOptions, "plugin", lambda self, rounds: attack)
    monkeypatch.setattr(Inversion, "_std", lambda self, one, without: 0.6 + float(one.message[0]))
    some, steps = given["seen"], given["steps"]
    quiet = gradient_inversion._Shown(some, [ImageBatch(IMAGES[2:], LABELS[2:])])
    scenario = of._scenario(EVERYONE, given.get("world", "defense"), 2, given.get("n", 2))
    return of._attacked(scenario, ENGINE, steps, some, quiet, NO_CHECKPOINT), scores


class Noted(SimpleNamespace):
    """A finding with its notes."""

    def __init__(self, name: str, notes: Any = ("own",)) -> None:
        super().__init__(name=name, notes=notes)

    def model_copy(self, update: Any) -> "Noted":
        return Noted(self.name, **update)


def test_an_attack_is_given_gradients_and_their_noise(monkeypatch) -> None:
    """In units of a factor that may be negative; without noise there is none."""
    parts = [(message(0, to, 2),) for to in (9, 8)]
    some = [
        seen(torch.full((8,), value).double(), parts=part, target=Target(2, 0, to))
        for value, part, to in ((0.0, parts[0], 9), (0.4, parts[1], 8))
    ]
    steps = {
        part: LocalSteps(torch.empty(0), f, 1.0) for part, f in zip(parts, (-0.5, 2.0), strict=True)
    }
    of, attack = inversion(clip_norm=1.5), Attack()
    findings, scores = attacked(monkeypatch, attack, of, seen=some, steps=steps)
    [(gradients, task)] = attack.asked
    assert gradients.std.tolist() == pytest.approx([1.2, 0.5])
    assert gradients.gradients[:, 0].tolist() == pytest.approx([0.0, 0.2])
    assert gradients.gradients.dtype == gradients.models.dtype == torch.float32
    assert torch.equal(gradients.models, torch.stack([KNOWN.float()] * 2))
    assert (gradients.batch_size, gradients.clip_norm, gradients.local) == (2, 1.5, None)
    assert task.value_range == (float(IMAGES.min()), float(IMAGES.max()))
    [(scenario, found, truth)] = scores
    assert (found, scenario.rounds, scenario.n_targets, scenario.attack_index) == (
        "found",
        (2,),
        1,
        1,
    )
    assert (scenario.message, scenario.world, scenario.is_probe) == ("m", "defense", False)
    assert truth.targets == [Target(2, 0, 9), Target(2, 0, 8)]
    assert torch.equal(truth.images, torch.stack([IMAGES[:2]] * 2))
    assert torch.equal(truth.labels, torch.stack([LABELS[:2]] * 2))
    assert [f.name for f in findings] == ["m 0", "m 1"]
    said = "the gradient of net:Net, as it is sent"
    assert {f.notes for f in findings} == {
        ("own", said, gradient_inversion.KNOWN, gradient_inversion.PUBLIC)
    }
    attacked(monkeypatch, attack, of, seen=some, steps=steps, world="no-defense")
    assert attack.asked[-1][0].std.tolist() == [0.0, 0.0]
    [refused], scores = attacked(monkeypatch, Attack("no"), of, seen=some, steps=steps)
    assert refused.notes == ("not available to this adversary: no",)
    assert scores == []


def test_local_steps_are_attacked_as_one_gradient_too(monkeypatch) -> None:
    """The records of the first of two passes are the truth."""
    twice = ImageBatch(torch.cat([IMAGES[:2]] * 2), torch.cat([LABELS[:2]] * 2))
    one, simulation = seen(torch.zeros(8), batch=twice, sizes=(2, 2)), SimpleNamespace()
    steps: Any = {one.parts: LocalSteps(torch.empty(0), 1.0, 1.0, simulation, 1.5)}  # type: ignore[arg-type]
    of, attack = inversion(local={**SGD, "epochs": 2}), Attack()
    findings, scores = attacked(monkeypatch, attack, of, seen=[one], steps=steps)
    assert attack.asked[0][0].local is simulation
    assert [found for _, found, _ in scores] == ["found", "as one"]
    assert [f.name for f in findings] == ["m 0", "m 1", "m 0"]  # of the second the attack alone
    assert torch.equal(scores[0][2].images, IMAGES[None, :2])
    assert torch.equal(scores[0][2].labels, LABELS[None, :2])
    first, second = findings[0].notes[1:3]
    assert first.startswith("the message is 1.5 times what the declared")
    assert second == "2 local steps, played with dummies, of net:Net, as it is sent"


def test_each_adversary_and_world_has_its_findings(monkeypatch) -> None:
    """By the sizes of local steps; who does not read is told so once."""
    calls: list[Any] = []

    def attack(self: Any, scenario: Any, engine: Any, steps: Any, some: Any, *_: Any) -> list[str]:
        calls.append((scenario.world, scenario.batch_size, [one.parts for one in some]))
        return [f"{scenario.threat_model.name} {scenario.world} {scenario.batch_size}"]

    unread = ThreatModel(name="unread", kind="curious", agents=(5,))
    monkeypatch.setattr(Inversion, "_attacked", attack)
    monkeypatch.setattr(
        Inversion, "_step", lambda self, engine, one: LocalSteps(torch.empty(0), 1, 1)
    )
    monkeypatch.setattr(GradientInversionOptions, "plugin", lambda self, rounds: Attack())
    four = ImageBatch(IMAGES[:4], LABELS[:4])
    several = [
        seen(torch.zeros(8), target=Target(2, v, 9), parts=(message(v, 9, 2),), **of)
        for v, of in ((0, {}), (1, {"batch": four, "sizes": (2, 2)}), (2, {}))
    ]
    shown = gradient_inversion._Shown(several, [])
    of = inversion(local={**SGD, "epochs": 2})
    of.worlds.config.threat_model = (EVERYONE, unread)  # type: ignore[misc]
    worlds = {"defense": shown, "no-defense": shown}
    found: list[Any] = list(of._of_round(2, worlds, shown, NO_CHECKPOINT))
    assert found[:4] == [f"every link {w} {n}" for w in ("defense", "no-defense") for n in (1, 2)]
    [refusal] = found[4:]
    assert refusal.notes == (
        "not available to this adversary: it does not read the message and the weights",
    )
    assert calls[0][2] == [several[0].parts, several[2].parts]
    assert calls[1][2] == [several[1].parts]


@pytest.mark.parametrize("n_draws", [0, 2])
def test_a_run_without_noise_stands_beside_one_with_it(monkeypatch, n_draws: int) -> None:
    """Where no noise is drawn, the two are one world; rounds without a part are left out."""
    draws = tuple(NamedDraw(f"k{i}", "z", 0, i, 3.0, "gaussian") for i in range(n_draws))
    rounds: Any = {1: SimpleNamespace(places={}), 2: neighbours(place(draws=draws))}
    asked: list[Any] = []

    def of_round(self: Any, k: int, worlds: Any, quiet: Any, checkpoint: Any) -> list[Any]:
        return [(k, worlds, quiet)]

    def each(worlds: Any, use: Any) -> list[str]:
        asked.extend(worlds)
        return ["noisy", "quiet"]

    monkeypatch.setattr(Inversion, "_of_round", of_round)
    program: Any = SimpleNamespace(each=each)
    [(k, worlds, quiet)] = inversion(rounds).findings(program, NO_CHECKPOINT)
    assert (k, quiet) == (2, "quiet")
    assert worlds == {"defense": "noisy"} | ({"no-defense": "quiet"} if n_draws else {})
    assert [world.silent for world in asked] == [(), tuple(d.key for d in draws)]
    assert all(world.keeps_records for world in asked)
