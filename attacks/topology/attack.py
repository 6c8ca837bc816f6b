"""Topology: which agents share a link, from what they send, without seeing to whom."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np
from pydantic import PositiveInt

import dpaudit.attack as da
import dpaudit.defense as dp
from dpaudit.accounting.privacy_loss import Array

from .observer_view import ObservedModels, known, linked, overhear
from .ranking import RELABELLED, edge_metrics
from .scores import by_cosine, by_regression, by_simplex, by_times, fitted

READ = 50  # rounds, if the option names no number
MOST = 512  # agents, every pair of which is scored
ALIKE = 100  # times the rounding of models: what lies within it is no difference
_UNKNOWN_GRAPH = (
    "this adversary is not told the graph, unlike that of the other attacks: it reads what each "
    "agent sends and when, not to whom"
)


class Topology(da.Attack):
    """Ranks pairs of agents by how likely they share a link, from models without receivers.

    Each agent's model is regressed on all models of the step before, which estimates the mixing
    matrix of linear gossip: by weights in units of their standard errors, and by weights that are
    >= 0 and sum to 1. Beside these stand the cosine of models and, where agents do not send in
    every step, the correlation of when they send. An agent that listens knows its own links, and
    pairs that it knows are not scored. It bears on no claim.

    Source: the threat is that of Feng et al. 2025, arXiv:2501.03119, who compare models.
    """

    chooses: ClassVar[da.Chooses] = {"message": ("messages",)}

    message: str | None = None  # name of the message with models; None: "x"
    n_rounds: PositiveInt | None = None  # the first ones, that are read; None: 50, or all of fewer

    def validate_options(self, n_rounds: int, n_agents: int) -> Iterator[da.InvalidOption]:
        yield from da.too_long(self.n_rounds, n_rounds)
        if len(self._rounds(n_rounds)) < 2:
            yield "n_rounds", "one round has no step from a model to the next; expected 2 or more"

    def _rounds(self, n_rounds: int) -> range:
        return range(1, min(n_rounds, self.n_rounds or READ) + 1)

    def refuse(self, learned: da.LoadedProblem, setting: dp.Setting) -> None:
        """Raises ConfigError: there is no pair to tell apart, or a server is one end of each."""
        n = setting.n_agents
        if not 3 <= n <= MOST:
            said = f"topology: {n} agents; expected 3 to {MOST}, every pair of which is scored"
            raise da.ConfigError("DPA022" if n > MOST else "DPA052", said)
        if setting.network.server is not None:
            raise da.ConfigError(
                "DPA052",
                "topology: all links are those of the server, which everybody knows; expected a "
                "graph without a server",
            )

    def refuse_too_large(self, context: da.AttackContext, threat_model: da.ThreatModel) -> None:
        """Raises ConfigError: no such message, or all agents are linked, so no pair is not."""
        messages, rounds = context.defense.messages, self._rounds(context.defense.n_rounds)
        if self._message not in messages:
            raise da.ConfigError(
                "DPA052",
                f'attack topology: no message is called "{self._message}"; expected message = the '
                f"one that carries models, of {', '.join(messages)}",
            )
        everybody = tuple(range(context.setting.n_agents))
        links = linked(context.setting, everybody, rounds)
        if links.sum() == links.size - len(links):
            raise da.ConfigError(
                "DPA052",
                f"topology: all pairs of the {len(links)} agents share a link in the "
                f"{len(rounds)} rounds that are read; expected a graph that is not complete",
            )

    @property
    def _message(self) -> str:
        return self.message or "x"

    def recording(self, defense: dp.Defense) -> da.Recording:
        names = frozenset({self._message})
        return da.Recording({k: names for k in self._rounds(defense.n_rounds)}, {})

    def parts(self, defense: dp.Defense) -> tuple[da.Part, ...]:
        return tuple(da.Part(world) for world in da.WORLDS)

    def measure(
        self, context: da.AttackContext, threat_model: da.ThreatModel, on_step: da.OnStep
    ) -> list[da.Finding]:
        rounds, streams = self._rounds(context.defense.n_rounds), context.streams
        transcript = context.run.transcript(context.part.world, streams.device)
        drawn = streams.numpy("coordinates", threat_model.name)
        heard = overhear(threat_model, transcript, self._message, rounds, drawn)
        if heard is None:
            return [self._empty(context, threat_model, "it reads fewer than two other agents")]
        links = linked(context.setting, heard.agents, rounds)
        scored = ~known(threat_model, heard.agents) & ~np.eye(len(links), dtype=bool)
        n_links, n_pairs = (int(np.triu(some, 1).sum()) for some in (links & scored, scored))
        if n_links in (0, n_pairs):
            lacks = "none of which are linked" if not n_links else "all of which are linked"
            lacks = f"of the agents that it reads it can score {n_pairs} pairs, {lacks}"
            return [self._empty(context, threat_model, lacks)]
        notes = (
            _UNKNOWN_GRAPH,
            f"{n_links} linked pairs against {n_pairs - n_links} others, of {len(links)} agents in "
            f"{len(rounds)} rounds; by {heard.models.shape[2]:,} coordinates",
            f"the interval of the AUC is a jackknife over agents; chance is {RELABELLED} random "
            "relabellings of the agents, the null control, in 95% of which the AUC is within its "
            "interval",
        )
        found = []
        for title, scores, about in _scored(heard):
            rng = streams.numpy("relabelled", threat_model.name, context.part.world)
            metrics = edge_metrics(scores, links, scored, rng)
            found.append(self._finding(context, threat_model, title, (*about, *notes), metrics))
        on_step(1, 1)
        return found or [
            self._empty(context, threat_model, "all models are the same up to rounding")
        ]

    def _empty(
        self, context: da.AttackContext, threat_model: da.ThreatModel, lacks: str
    ) -> da.Finding:
        note = f"not available to this adversary: {lacks}"
        return self._finding(context, threat_model, "links", (note, _UNKNOWN_GRAPH), {})

    def _finding(
        self,
        context: da.AttackContext,
        threat_model: da.ThreatModel,
        title: str,
        notes: tuple[str, ...],
        metrics: Mapping[str, da.Metric],
    ) -> da.Finding:
        return da.Finding(
            role=da.Role.TOPOLOGY,
            kind="topology",
            title=title,
            attack=context.name,
            threat_model=threat_model.name,
            message=self._message,
            rounds=tuple(self._rounds(context.defense.n_rounds)),
            world=context.part.world,
            metrics=dict(metrics),
            notes=notes,
        )


def _scored(heard: ObservedModels) -> Iterator[tuple[str, Array, tuple[str, ...]]]:
    """The scores of each method, with its name and notes; nothing of models that are all alike."""
    times = by_times(heard.sends.cpu().numpy())
    if times is not None:
        yield "links by the times of messages", times, ()
    models = heard.models
    spread = (models - models.mean(dim=1, keepdim=True)).norm()
    if float(spread) <= ALIKE * heard.rounding * float(models.norm()):
        return
    regression = fitted(models, heard.rounding)
    chosen = (f"errors AR(1) with coefficient {regression.rho:g}, chosen by the attacker's loss",)
    yield "links by regression", by_regression(regression), chosen
    yield "links by sparse regression", by_simplex(regression), chosen
    yield "links by the cosine of models", by_cosine(models), ()
