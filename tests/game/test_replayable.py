"""Steps that cannot be played again, or in a stack of trials, are refused before anything is run."""

from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import PrivateAttr
from torch import Tensor

from dpaudit.defense import Gradient, Graph, Noise, Round, Setting
from dpaudit.errors import ConfigError
from dpaudit.files.options import FixedGraph
from dpaudit.game.probing.replayability import refuse_unless_replayable
from dpaudit.graphs.graph import build_graph
from dpaudit.registry import load_plugin
from dpaudit.selftest.catalogue import judged
from dpaudit.selftest.correct import PrivateGossip

RNG, STEPS = np.random.default_rng(0), count()
SETTING = Setting(build_graph(FixedGraph(name="ring"), 6), (8,) * 6, 20)


class Torch(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return torch.randn_like(like) * self._scale


class NumPy(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return self._scale * torch.as_tensor(RNG.normal(size=like.shape)).to(like)


class LaterOnly(Torch):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        again = PrivateGossip.noise(self, like, k, noise)
        return again if k == 1 else super().noise(like, k, noise)


class SentByChance(PrivateGossip):
    """In every third step of the process."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        round = super().step(state, k, graph, gradient, noise)
        return round if next(STEPS) % 3 else round._replace(sent={})


class OfLargeGradients(PrivateGossip):
    """Says with a second message whether gradients are positive."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        round = super().step(state, k, graph, gradient, noise)
        if bool(gradient(state.X).sum() > 0):
            return round._replace(sent={**round.sent, "also": round.sent["x"]})
        return round


class OfManyNumbers(PrivateGossip):
    """Says it with the number of coordinates."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        round = super().step(state, k, graph, gradient, noise)
        x, n = round.sent["x"], 3 if bool(gradient(state.X).sum() > 0) else 4
        return round._replace(sent={"x": x, "also": replace(x, payload=x.payload[..., :n])})


class Seeded(PrivateGossip):
    """A fault for the audit to find: every round of every run has the same noise."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return torch.randn(like.shape, generator=torch.Generator().manual_seed(0)).to(like)


class Kept(PrivateGossip):
    """A momentum that start makes and every step finds on the defense."""

    _momentum: Any = PrivateAttr(None)

    def start(self, X: Tensor, setting: Setting) -> Any:
        self._momentum = torch.zeros_like(X)
        return super().start(X, setting)

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        self._momentum = 0.9 * self._momentum + super().noise(like, k, noise)
        return self._momentum


class KeptFromTheThirdOn(Kept):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        momentum = super().noise(like, k, noise)
        return momentum if k > 2 else PrivateGossip.noise(self, like, k, noise)


class MadeByStart(PrivateGossip):
    """What a step needs is there for the object alone that started the run."""

    _half: Any = PrivateAttr(None)

    def start(self, X: Tensor, setting: Setting) -> Any:
        self._half = 0.5
        return super().start(X, setting)

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return self._half * super().noise(like, k, noise)


class InPlace(PrivateGossip):
    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        round = super().step(state, k, graph, gradient, noise)
        state.X.mul_(0.5)
        return round


class SetsAnAttribute(PrivateGossip):
    def start(self, X: Tensor, setting: Setting) -> Any:
        self.momentum = torch.zeros_like(X)
        return super().start(X, setting)


class MeanOverTheFirstAxis(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        drawn = super().noise(like, k, noise)
        return drawn - drawn.mean(0, keepdim=True)


class AgentByAgent(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        drawn, out = super().noise(like, k, noise), torch.zeros_like(like)
        for agent in range(6):
            out[agent] = drawn[agent]
        return out


class MixedByHand(PrivateGossip):
    """Right for one trial; of several it mixes trials."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        round = super().step(state, k, graph, gradient, noise)
        X = round.state.X
        mixed = torch.einsum("ij,j...->i...", graph.W[: len(X), : len(X)], X)
        return round._replace(state=round.state._replace(V=mixed))


class NormOfAll(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        drawn = super().noise(like, k, noise)
        return drawn / drawn.norm()


class OfSigns(PrivateGossip):
    """What is mixed of signs is 0 or rounding, whichever the order of the sums makes of it."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return torch.sign(super().noise(like, k, noise)) - like


class InSinglePrecision(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise).float()

    def step(self, state: Any, k: int, graph: Graph, gradient: Gradient, noise: Noise) -> Round:
        round = super().step(state, k, graph, gradient, noise)
        x = round.sent["x"]
        return round._replace(sent={"x": replace(x, payload=x.payload.float())})


class OfDoubles(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        return super().noise(like, k, noise) * torch.ones(like.shape[-1], dtype=torch.float64)


class InInferenceMode(PrivateGossip):
    @torch.inference_mode()
    def step(self, *arguments: Any) -> Round:
        return super().step(*arguments)


class AgentsFromTheEnd(PrivateGossip):
    """A loop, and right."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        drawn = super().noise(like, k, noise)
        return torch.stack([drawn[..., agent, :] for agent in range(like.shape[-2])], -2)


class WithoutRows(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        one = super().noise(like[..., 0, :], k, noise)
        return one[..., None, :].expand_as(like)


class OfItsBatch(PrivateGossip):
    """Weighs by how many records were drawn."""

    def step(self, state: Any, k: int, graph: Graph, gradient: Any, noise: Noise) -> Round:
        assert gradient.batch.labels.shape
        return super().step(state, k, graph, gradient, noise)


class NeedsAll(Torch):
    """Takes coordinates by the sizes of its layers."""

    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        first, second = super().noise(like, k, noise).split([SETTING.d - 1, 1], dim=-1)
        return torch.cat([first, second], -1)


class Fails(PrivateGossip):
    def noise(self, like: Tensor, k: int, noise: Noise) -> Tensor:
        raise RuntimeError("for the run to say")


def test_messages_that_are_sent_by_chance_are_refused() -> None:
    with pytest.raises(ConfigError, match="which messages are sent in round"):
        refuse_unless_replayable(SentByChance(), SETTING)


@pytest.mark.parametrize(
    ("defense", "told"),
    [(OfLargeGradients, "is not sent"), (OfManyNumbers, "has another shape")],
)
def test_messages_that_depend_on_gradients_are_refused(defense, told) -> None:
    with pytest.raises(ConfigError, match=f'message "also" of round 1 {told} where gradients'):
        refuse_unless_replayable(defense(), SETTING)


def test_a_message_with_gradients_of_a_later_round_is_one_line() -> None:
    class Later(OfLargeGradients):
        def step(self, state: Any, k: int, *rest: Any) -> Round:
            return (OfLargeGradients if k == 3 else PrivateGossip).step(self, state, k, *rest)

    with pytest.raises(ConfigError, match='message "also" of round 3'):
        judged(Later(), 0)


def test_a_draw_without_rows_is_refused() -> None:
    with pytest.raises(ConfigError, match='noise "gradient" of round 1 is drawn without rows'):
        refuse_unless_replayable(WithoutRows(), SETTING)


OWN_GENERATOR = 'message "x" of round [12] differs .*noise.gaussian'


@pytest.mark.parametrize(
    ("defense", "told"),
    [
        (Torch, OWN_GENERATOR),
        (NumPy, OWN_GENERATOR),
        (LaterOnly, OWN_GENERATOR),
        # what is kept outside of the state
        (Kept, "round 2 (differs|fails) when it is played again from the state"),
        (KeptFromTheThirdOn, "round 3 differs when it is played again from the state"),
        (MadeByStart, "round 2 fails .* in the state: TypeError: .*test_replayable.py, line"),
        (InPlace, "round 2 changes X of the state that it begins from"),
        # trials that are taken for agents: every verdict would be of something else
        (MeanOverTheFirstAxis, 'message "x" of round 1 differs when trials'),
        (AgentByAgent, "round 1 fails when trials .*: IndexError: .*test_replayable.py, line"),
        (MixedByHand, "V of the state of round 1 differs when trials"),
        (NormOfAll, 'message "x" of round 1 differs when trials'),
        # numbers that attacks cannot go on with
        (InSinglePrecision, 'message "x" of round 1 is torch.float32 where the models are torch.f'),
        (OfDoubles, 'message "x" of round 1 is torch.float64 where the models are torch.float32'),
        (InInferenceMode, "is made in inference mode.*expected torch.no_grad"),
        # what real gradients alone have
        (OfItsBatch, r"step asks for gradient.batch, in .*test_replayable.py, line \d+; expected"),
        # at the coordinates that it needs
        (NeedsAll, OWN_GENERATOR),
    ],
)
def test_a_step_that_cannot_be_played_again_is_refused(defense, told) -> None:
    with pytest.raises(ConfigError, match=told):
        refuse_unless_replayable(defense(), SETTING)


def test_a_defense_that_sets_an_attribute_is_told_where() -> None:
    with pytest.raises(ConfigError, match='SetsAnAttribute sets "momentum" on itself.*the state'):
        judged(SetsAnAttribute(), 0)


@pytest.mark.parametrize("defense", [PrivateGossip, Seeded, Fails, AgentsFromTheEnd, OfSigns])
def test_what_cannot_be_played_again_is_left_to_the_audit(defense) -> None:
    refuse_unless_replayable(defense(), SETTING)


@pytest.mark.parametrize("name", ["decor", "dpdl", "muffliato", "paillier-consensus"])
def test_algorithms_with_secrets_and_masks_are_not_refused(name) -> None:
    kind = load_plugin("defenses", name)
    given = {"noise_multiplier": 1.0} if "noise_multiplier" in kind.model_fields else {}
    refuse_unless_replayable(kind(n_rounds=3, batch_size=4, **given), SETTING)


def test_an_audit_of_such_a_step_ends_before_it_begins() -> None:
    with pytest.raises(ConfigError, match="played again"):
        judged(Torch(), 0)


class TwoBatches(PrivateGossip):
    """A second batch that ``batches_per_round`` does not count."""

    def summed(self, gradient: Gradient, X: Tensor) -> Tensor:
        return super().summed(gradient, X) + super().summed(gradient.at_step(1), X)


def test_a_batch_that_no_accounting_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"gradient.at_step\(1\), and batches_per_round is 1"):
        refuse_unless_replayable(TwoBatches(), SETTING)
