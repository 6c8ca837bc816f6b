"""Gradients that a program sends, inverted: found where they are bare, and not under noise."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from dpaudit.capture.audit import run_captured
from dpaudit.capture.gradient_inversion import Inversion, RunGradient
from dpaudit.capture.record_shift import NotMeasured, Response
from dpaudit.capture.runs import AgentRound, MessageId, NamedDraw
from dpaudit.capture.worlds import NeighbouringRuns
from dpaudit.defense.contract import Target
from dpaudit.errors import DpauditError
from dpaudit.files.captured_file import CapturedConfig
from dpaudit.files.finding import Finding, Name, Role
from dpaudit.files.result import AuditResult

from .sheets import GUESTS
from .test_audited_ranks import TORCHRUN, line

PROGRAMS = Path(__file__).parent / "programs"
ATTACK = {
    "name": "gradient-inversion",
    "message": "gradient",
    "model": "gradients:Net",
    "weights_message": "model",
}


def audited(
    out: Path, sigma: str, *models: dict[str, Any], rounds: tuple[int, ...] = (2,), **attack: Any
) -> AuditResult:
    config = CapturedConfig.model_validate(
        {
            "program": {"command": ("python", "gradients.py", sigma), "folder": PROGRAMS},
            "record": {"victims": (1, 2), "candidates": ("present",), "rounds": rounds},
            "certify": {"runs": 0},
            "attack": ({**ATTACK, **attack},),
            "threat_model": models or ({"name": "eavesdropper"},),
        }
    )
    return run_captured(config, out, cores=1)


def inverted(result: AuditResult, world: str = "defense") -> list[Finding]:
    """The findings of the attack itself, by round."""
    found = [f for f in result.findings if f.role is Role.RECONSTRUCTION]
    assert {f.world for f in found} >= {world}
    return [f for f in found if f.world == world]


def test_a_noiseless_gradient_gives_the_image_and_its_label(tmp_path: Path, report) -> None:
    """The message is the gradient times a learning rate, which the algorithm makes public."""
    links = {"name": "one link", "links": ((0, 1),)}
    own = {"name": "agent 0", "kind": "curious", "agents": (0,)}
    result = audited(tmp_path, "0", {"name": "eavesdropper"}, links, own, rounds=(1, 3))
    found = [f for f in inverted(result) if f.threat_model == "eavesdropper"]
    for k, finding in zip((1, 3), found, strict=True):
        assert finding.rounds == (k,)
        assert finding.batch_size == 1
        assert finding.metrics[Name.SSIM].value > 0.99
        assert finding.metrics[Name.LABEL_ACCURACY].value == 1.0
        assert finding.metrics[Name.SSIM_OVER_BLIND].value > 0.2
    blind = [f for f in inverted(result, "blind") if f.threat_model == "eavesdropper"]
    assert len(blind) == 4
    assert "no-defense" not in {f.world for f in result.findings}
    assert "gradient inversion of gradient" in (tmp_path / "report.html").read_text()
    unread = [f for f in inverted(result) if f.threat_model == "one link"]
    assert all("not available to this adversary" in f.notes[0] for f in unread)
    held = [f for f in inverted(result) if f.threat_model == "agent 0"]
    assert len(held) == 2
    assert all(f.metrics[Name.SSIM].value > 0.99 for f in held)


@pytest.mark.slow
def test_noise_hides_it_and_without_the_noise_it_is_found(tmp_path: Path) -> None:
    result = audited(tmp_path, "1")
    assert all(f.metrics[Name.SSIM].value < 0.4 for f in inverted(result))
    assert all(f.metrics[Name.SSIM].value > 0.99 for f in inverted(result, "no-defense"))


@pytest.mark.slow
def test_weights_of_a_file(tmp_path: Path) -> None:
    """Those that the program begins with, which round 1 is at and round 2 is not."""
    torch.manual_seed(3)
    layer = torch.nn.Linear(64, 4)
    stored = {"last.weight": layer.weight.detach(), "last.bias": layer.bias.detach()}
    save_file(stored, tmp_path / "w.safetensors")
    attack = {"weights": tmp_path / "w.safetensors", "weights_message": None}
    [finding] = inverted(audited(tmp_path / "out", "0", rounds=(1,), **attack))
    assert finding.metrics[Name.SSIM].value > 0.99
    assert "not the gradient of gradients:Net" in refused(tmp_path / "out", **attack)
    save_file({"last.weight": layer.weight.detach()}, tmp_path / "w.safetensors")
    said = "w.safetensors: last.bias: expected [4], found nothing"
    assert said in refused(tmp_path / "out", **attack)


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "found"), [("0", True), ("1", False)])
def test_gradients_of_ranks_sent_layer_by_layer(tmp_path: Path, sigma: str, found: bool) -> None:
    """Weights came by a broadcast before round 1; the class stands in the script itself."""
    script = GUESTS / "gradients.py"
    config = CapturedConfig.model_validate(
        {
            "program": {"command": (*TORCHRUN, script.name, "--sigma", sigma), "folder": GUESTS}
            | {"ranks": 2},
            "noise": {"sites": (line(script, "randn_like"),)},
            "record": {"victims": (0, 1), "candidates": ("present",)},
            "certify": {"runs": 0},
            "attack": (
                {
                    **ATTACK,
                    "message": line(script, "dist.all_gather"),
                    "weights_message": line(script, "dist.broadcast"),
                },
            ),
        }
    )
    [finding] = inverted(run_captured(config, tmp_path, cores=1))
    assert finding.metrics[Name.SSIM].n == 2
    assert (finding.metrics[Name.SSIM].value > 0.95) == found
    assert (finding.metrics[Name.SSIM].value < 0.5) == (not found)


@pytest.mark.parametrize(
    ("attack", "said"),
    [
        ({"model": "gradients:Nett"}, "module 'gradients' has no attribute 'Nett'"),
        ({"model": "gone:Net"}, "ModuleNotFoundError: No module named 'gone'"),
        ({"model": "gradients:SIDE"}, "TypeError: 'int' object is not callable"),
        ({"model": "collections:Counter"}, "is of Counter; expected a network"),
        ({"model": "torch.nn:Flatten"}, 'model "torch.nn:Flatten" has no parameters'),
        ({"weights_message": None, "weights": "gone.safetensors"}, "gone.safetensors: No such"),
    ],
)
def test_a_model_that_cannot_be_made_is_refused_first(
    tmp_path: Path, attack: dict[str, Any], said: str
) -> None:
    assert said in refused(tmp_path, **attack)
    assert not (tmp_path / "run.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attack", "said"),
    [
        (
            {"message": "gradent"},
            'attack[1].message: agent 1 sends no "gradent" in round 2 (did you mean "gradient"?); '
            "it sends gradient",
        ),
        ({"message": "model"}, 'attack[1].message: agent 1 sends no "model" in round 2;'),
        ({"weights_message": None}, "is not the gradient of gradients:Net on the batch of agent 1"),
        ({"weights_message": "modell"}, 'sent and was sent 0 numbers by "modell" before'),
        (
            {"model": "gradients:smaller"},
            "has 260 numbers, and gradients:smaller has 130 parameters",
        ),
    ],
)
def test_what_cannot_be_inverted_is_one_line(
    tmp_path: Path, attack: dict[str, Any], said: str
) -> None:
    assert said in refused(tmp_path, **attack)


def refused(out: Path, **attack: Any) -> str:
    with pytest.raises(DpauditError) as error:
        audited(out, "0", **attack)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(("family", "std"), [("gaussian", 3.0), ("laplace", 3.0 * 2**0.5)])
def test_the_noise_of_a_message_is_known_by_its_deviation(family: Any, std: float) -> None:
    """Of scale 3 on half of the numbers, whose variance is then half as large on average."""
    message = MessageId(0, (1,), "x", 2)
    draws = (NamedDraw("k", "z", 0, 0, 3.0, family),)
    place = AgentRound(0, 2, (message,), draws, batch=1)
    half = Response(0, np.arange(5), np.arange(5), np.full(5, -3.0))
    base = SimpleNamespace(messages={message: np.zeros(10)})
    found = NeighbouringRuns({0: place}, {0: {message: (half,)}}, {}, base)
    worlds = SimpleNamespace(rounds={2: found})
    inversion = Inversion(0, None, worlds, None)
    seen = RunGradient(Target(2, 0, 1), (message,), None, None, (), None, (), None)
    assert inversion._std(seen, seen) == pytest.approx(std / 2**0.5)


def test_noise_that_is_not_measured_is_known_by_what_it_moves() -> None:
    message = MessageId(0, (1,), "x", 2)
    unmeasured = {0: {message: NotMeasured("DPA063", "not linear")}}
    found = NeighbouringRuns({}, {0: {}}, {}, None, unmeasured=unmeasured)
    inversion = Inversion(0, None, SimpleNamespace(rounds={2: found}), None)
    seen = [
        RunGradient(Target(2, 0, 1), (message,), torch.tensor(x), None, (), None, (), None)
        for x in ([1.0, 2.0], [4.0, -2.0])
    ]
    assert inversion._std(*seen) == pytest.approx(12.5**0.5)


def inverted_weights(
    out: Path,
    *arguments: str,
    named: bool = True,
    rounds: tuple[int, ...] = (1, 2),
    **options: object,
) -> list[Finding]:
    config = CapturedConfig.model_validate(
        {
            "program": {"command": ("python", "image_weights.py", *arguments), "folder": PROGRAMS},
            "messages": {"weights": ("weights",) if named else ()},
            "record": {"victims": (1,), "candidates": ("present",), "rounds": rounds},
            "certify": {"runs": 0},
            "attack": (
                {"name": "gradient-inversion", "message": "weights", "model": "gradients:Net"}
                | options,
            ),
        }
    )
    return inverted(run_captured(config, out, cores=1))


def test_weights_give_the_image_of_a_local_step(tmp_path: Path) -> None:
    """From where the step started: the weights of the seed, then an average of all agents'."""
    found = inverted_weights(tmp_path, "1")
    assert [f.rounds for f in found] == [(1,), (2,)]
    for finding in found:
        assert finding.metrics[Name.SSIM].value > 0.99
        assert finding.metrics[Name.LABEL_ACCURACY].value == 1.0


@pytest.mark.slow
def test_several_local_steps_are_played_and_taken_for_one(tmp_path: Path) -> None:
    found = inverted_weights(tmp_path, "2")
    assert [f.batch_size for f in found] == [2] * 4
    assert [f.message for f in found] == ["weights", "weights, as one gradient"] * 2
    assert all("2 local steps, played with dummies," in f.notes[-3] for f in found)
    assert all(f.metrics[Name.LABEL_ACCURACY].value == 1.0 for f in found)
    for played, as_one in zip(found[::2], found[1::2], strict=True):
        assert played.metrics[Name.PSNR].value > as_one.metrics[Name.PSNR].value


@pytest.mark.slow
def test_declared_local_training_is_held_against_the_message(tmp_path: Path) -> None:
    """AdamW and an outer Nesterov step, whose second round needs the momentum of the first."""
    adamw = {"optimizer": "adamw", "learning_rate": 0.01, "weight_decay": 0.1}
    outer = adamw | {"outer_learning_rate": 0.7, "outer_momentum": 0.9}
    found = inverted_weights(tmp_path / "outer", "3", "0", "outer", local=outer)
    assert [f.rounds for f in found] == [(1,), (1,), (2,), (2,)]
    assert all("3 local steps, played with dummies," in f.notes[-3] for f in found)
    sgd = {"optimizer": "sgd", "learning_rate": 0.01}
    with pytest.raises(DpauditError, match="is not what 3 steps of sgd make") as error:
        inverted_weights(tmp_path / "sgd", "3", "0", "outer", local=sgd)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_another_rate_is_refused_or_noted(tmp_path: Path) -> None:
    """One step in the same direction: weights say how long it is, differences may be scaled."""
    steps, rate = "1", 0.1
    right = {"optimizer": "sgd", "learning_rate": rate}
    wrong = right | {"learning_rate": 2 * rate}
    found = inverted_weights(tmp_path / "right", steps, local=right)
    assert not any("times what the declared" in note for f in found for note in f.notes)
    with pytest.raises(DpauditError, match=rf"learning_rate = {rate:.4g} makes it") as error:
        inverted_weights(tmp_path / "wrong", steps, local=wrong)
    assert "the weights move 0.5 times as far" in str(error.value)
    config = inverted_weights(
        tmp_path / "change", steps, "0", "change", named=False, rounds=(1,), local=wrong
    )
    (note,) = {note for f in config for note in f.notes if "times what the declared" in note}
    assert note.startswith("the message is 0.5 times what the declared local training makes")
    assert f"its learning rate is about {rate:.4g}" in note


@pytest.mark.slow
def test_weights_that_are_not_named_as_such_are_no_gradient(tmp_path: Path) -> None:
    with pytest.raises(DpauditError, match="messages.weights"):
        inverted_weights(tmp_path, "1", named=False)


@pytest.mark.slow
def test_images_are_found_under_the_noise_of_several_steps(tmp_path: Path) -> None:
    """Its gradients at noisy weights make the message no linear one in the first step's noise."""
    found = inverted_weights(tmp_path, "2", "0.01", rounds=(1,))
    [psnr] = [f.metrics[Name.PSNR].value for f in found if "as one gradient" not in f.title]
    assert 30 < psnr < 60  # which is without noise
