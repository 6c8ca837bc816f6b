"""What weather leaves of noise that cancels between agents: a table of one's own, of no paper.

Each method promises two things: its noise hides a record from an adversary, and it cancels in the
mean over agents, so that the mean model is less noisy than under independent noise that hides as
much. Both are computed from the method's own step by linear algebra, under each of some draws of
the weather, with one coordinate and no records but the one that is attacked. Settings:

    defense     as in an audit file, and ``n_rounds``, which are all played
    graph       as in an audit file, with its weather
    n_agents, draws
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpaudit.defense import Defense, Setting, ThreatModel
from dpaudit.errors import ConfigError
from dpaudit.files.options import graph_options
from dpaudit.game.filtering.adversary import Adversary, leak_by_agent
from dpaudit.game.game import Game
from dpaudit.game.step_inputs import ChosenNoise
from dpaudit.graphs.graph import Network, build_graph
from dpaudit.pipeline.link_coverage import refuse_waiting
from dpaudit.registry import load_plugin
from dpaudit.rng import Streams

from .experiment import CellContext, MeasuredNumber, Settings

LINKS = ThreatModel(name="every link")
ONE = ThreatModel(name="one agent", kind="curious", agents=(0,))
RECORDS = 32  # that each agent holds, of which a batch takes all: they change no number here
INDEPENDENT = {"name": "dp-dpsgd"}


def cancelled_noise(
    settings: Settings, seed: int, context: CellContext
) -> Iterator[MeasuredNumber]:
    """mu to who reads every link and to agent 0, and the noise of the mean model; medians.

    The noise is a multiple of that of independent noise with the same mu against an adversary of
    every link without weather.
    """
    options = _table(settings, "defense")
    options |= {"n_rounds": settings["n_rounds"], "batch_size": RECORDS, "noise_multiplier": 1.0}
    defense: Defense = load_plugin("defenses", options.pop("name")).model_validate(options)
    networks = list(_networks(settings, seed, defense))
    found = []
    for i, network in enumerate(networks):
        found.append(_measured(defense, network))
        context.on_step(i + 1, len(networks))
    calm = _measured(defense, networks[0].calm)
    same: Any = load_plugin("defenses", INDEPENDENT["name"])
    options = {"n_rounds": defense.n_rounds, "batch_size": RECORDS, "noise_multiplier": 1.0}
    independent = _measured(same.model_validate(options), networks[0].calm)
    unit = independent["noise"] * independent["links"] / calm["links"]
    for quantity, key, divided in (
        ("mu to who reads every link", "links", 1.0),
        ("mu to one agent, of the record it learns most of", "near", 1.0),
        ("mu to one agent, of the record it learns least of", "far", 1.0),
        ("noise of the mean model, over independent noise", "noise", unit),
    ):
        values = np.sort([one[key] / divided for one in found])
        n = len(values)
        middle = float(values[(n - 1) // 2])
        yield MeasuredNumber(quantity, middle, low=float(values[0]), high=float(values[-1]), n=n)


def _table(settings: Settings, name: str) -> dict[str, Any]:
    """The settings of an audit file's table."""
    start = f"{name}."
    return {key.removeprefix(start): v for key, v in settings.items() if key.startswith(start)}


def _networks(settings: Settings, seed: int, defense: Defense) -> Iterator[Network]:
    """Draws of the weather on one graph; one where there is none.

    Raises:
        ConfigError: the method does not run under it.
    """
    table, n, T = _table(settings, "graph"), settings["n_agents"], settings["n_rounds"]
    options, streams = graph_options(table.pop("name"), **table), Streams(seed)
    for i in range(settings["draws"] if options.has_weather else 1):
        weather = streams.numpy("weather", i)
        try:
            network = build_graph(options, n, streams.numpy("graph"), T, weather)
        except ConfigError as error:
            if error.code != "DPA038":
                raise
            continue  # in so few rounds some weathers connect no two parts
        refuse_waiting(options, network, defense)
        yield network


def _measured(defense: Defense, network: Network) -> Mapping[str, float]:
    """mu of a record in the worst round, of the worst agent and of the best hidden; and noise."""
    setting = Setting(network, (RECORDS,) * network.n_agents, 1)
    defense = defense.calibrate(setting)
    game = Game.of(defense, setting, 1, "add-remove", "poisson")
    game = replace(game, sampling_rate=1.0, in_one_round=True)
    to_one = _mu(game, ONE)[1:]
    return {
        "links": float(_mu(game, LINKS).max()),
        "near": float(to_one.max()),
        "far": float(to_one.min()),
        "noise": _noise_of_mean(game),
    }


def _mu(game: Game, threat_model: ThreatModel) -> Tensor:
    """mu of each agent's record, used in the worst round, [n_agents]; 0 for own agents."""
    victims = [i for i in game.setting.holders if i not in threat_model.agents]
    adversary = Adversary(game, threat_model, game.defense.n_rounds)
    rounds = torch.arange(1, game.defense.n_rounds + 1)
    H, noiseless = leak_by_agent(adversary, victims, rounds)
    mu = torch.zeros(game.setting.n_agents, dtype=torch.float64)
    mu[victims] = H.diagonal(dim1=1, dim2=2).amax(1).clamp(min=0).sqrt()
    mu[list(noiseless)] = torch.inf
    return mu


def _noise_of_mean(game: Game) -> float:
    """The standard deviation of the mean over agents of the models after all rounds.

    Trial j has a unit of draw j alone, of all draws of all rounds.
    """
    n_rounds = game.defense.n_rounds
    asked = [ChosenNoise() for _ in range(n_rounds)]
    state = game.start(1)
    for k, tape in enumerate(asked, start=1):
        state = game.step(state, k, game.silent(), tape).state
    trials = 1 + sum(tape.n_draws for tape in asked)
    state, first = game.start(trials), 1
    for k, tape in enumerate(asked, start=1):
        units = tape.one_of_each(trials, first)
        first += tape.n_draws
        state = game.step(state, k, game.silent(trials), ChosenNoise(units)).state
    means = game.defense.models(state).mean(dim=-2).flatten()
    return float((means[1:] - means[0]).norm())
