"""Claims and attacks that could come to no verdict: one line each, exit code 2, nothing trained."""

import math
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from typer.testing import CliRunner

from dpaudit.commands.cli import app
from dpaudit.defense.claim_accounting import refuse_claims
from dpaudit.defense.contract import Bracket, Setting
from dpaudit.defenses.dpsgd import DPDPSGD
from dpaudit.errors import ConfigError, DpauditError
from dpaudit.files.claim import Claim
from dpaudit.files.threat import ThreatModel
from dpaudit.game.filtering.adversary import Adversary
from dpaudit.game.game import Game
from dpaudit.game.runs import play as distinguish
from dpaudit.graphs.graph import build_graph
from dpaudit.pipeline import run as pipeline
from tests.said import without_help

CONFIG = """\
[data]
name = "digits"
n_agents = 4
[graph]
name = "ring"
[model]
name = "logistic"
[defense]
name = "dp-dpsgd"
n_rounds = 3
noise_multiplier = 1.0
[[claim]]
text = "Theorem 1"
epsilon = 8.0
delta = 1e-5
[[threat_model]]
name = "agent 3"
kind = "curious"
agents = [3]
[[attack]]
name = "likelihood-ratio"
trials = 60
"""
SENSORS = """\
[data]
name = "sensor-fusion"
n_agents = 5
[graph]
name = "star"
[defense]
name = "sensitivity-reduced"
n_rounds = 5
epsilon = 2.0
[[claim]]
text = "Theorem 4.5"
epsilon = 2.0
adjacency = "function"
"""
EVE = ThreatModel(name="eve")
SETTING = Setting(build_graph("ring", 4), (40,) * 4, 1)


def said(folder: Path, text: str) -> tuple[int, list[str]]:
    """Exit code and lines of stderr of the audit command."""
    (folder / "audit.toml").write_text(text)
    audit = ["audit", str(folder / "audit.toml"), "--out", str(folder / "run"), "--workers", "1"]
    done = CliRunner().invoke(app, audit)
    return done.exit_code, without_help(done.stderr).strip().splitlines()


@pytest.mark.parametrize(
    "config, old, new, expected",
    [
        (CONFIG, "delta = 1e-5", "delta = 0.0", 'claim "Theorem 1": Gaussian noise has no epsilon at delta = 0; expected a delta above 0'),
        (CONFIG, "delta = 1e-5", 'delta = 1e-5\nadjacency = "function"', 'claim "Theorem 1": adjacency "function" cannot be realised, for the defense states no gradient_distance'),
        (SENSORS, '"function"', '"add-remove"', 'claim "Theorem 4.5": adjacency "add-remove" cannot be realised, for these agents have no records; expected "function"'),
        (SENSORS, '"function"', '"replace-one"', 'claim "Theorem 4.5": adjacency "replace-one" cannot be realised'),
        (CONFIG, "agents = [3]", "agents = [4]", "threat_model[1].agents: there is no agent 4; with n_agents = 4 they are 0 to 3"),
        (CONFIG, "trials = 60", "trials = 30", "attack[1].trials: 30 trials certify nothing; expected 40 or more"),
        (CONFIG, 'kind = "curious"\nagents = [3]', 'kind = "colluding"\nagents = [0, 1, 2, 3]', 'threat_model "agent 3": no agent is left to attack'),
    ],
)  # fmt: skip
def test_what_cannot_be_judged_is_refused_before_training(
    tmp_path, monkeypatch, config, old, new, expected
) -> None:
    def never(*arguments, **options):
        raise AssertionError("training began")

    monkeypatch.setattr(pipeline, "Workers", never)
    assert old in config
    code, lines = said(tmp_path, config.replace(old, new, 1))
    assert code == 2, lines
    assert len(lines) == 1, lines
    assert expected in lines[0]


def test_two_claims_that_cannot_be_judged_are_two_lines(tmp_path) -> None:
    claim = CONFIG.partition("[[claim]]")[2].partition("[[threat")[0]
    again = f"[[claim]]{claim}".replace("Theorem 1", "Theorem 2")
    text = CONFIG.replace("[[threat_model]]", f"{again}[[threat_model]]")
    code, lines = said(tmp_path, text.replace("delta = 1e-5", "delta = 0.0"))
    assert code == 2
    assert len(lines) == 2, lines


@pytest.mark.parametrize("options", ["clip_norm = 1e90", "clip_norm = 1e60\nlearning_rate = 1e90"])
def test_numbers_that_overflow_are_one_line(tmp_path, options) -> None:
    code, lines = said(tmp_path, CONFIG.replace("n_rounds = 3", f"n_rounds = 3\n{options}"))
    assert code == 2
    assert len(lines) == 1, lines
    assert "numbers exceed what float32 holds" in lines[0]


class Silent(DPDPSGD):
    """Says nothing of what it releases."""

    because: ClassVar[tuple[str, ...]] = ()

    def mechanism(self, setting, threat_model, victim) -> Bracket:
        return Bracket((), (), self.because)


class SilentForAReason(Silent):
    because: ClassVar[tuple[str, ...]] = ("all is encrypted",)


def test_a_claim_on_a_defense_without_releases_is_refused() -> None:
    claim = Claim(text="Theorem 1", epsilon=1.0, delta=1e-5)
    with pytest.raises(ConfigError, match='claim "Theorem 1": the defense declares no release'):
        refuse_claims([claim], [EVE], Silent(noise_multiplier=1.0), SETTING, on_records=True)
    refuse_claims([claim], [EVE], SilentForAReason(noise_multiplier=1.0), SETTING, on_records=True)
    refuse_claims([], [EVE], Silent(noise_multiplier=1.0), SETTING, on_records=True)


def test_claims_that_can_be_judged_pass() -> None:
    gaussian = Claim(text="a", epsilon=1.0, delta=1e-5)
    claims = [
        gaussian,
        gaussian.model_copy(update={"adjacency": "replace-one"}),
        gaussian.model_copy(update={"adjacency": "agent-identity"}),
        Claim(text="b", mu=1.0),
        gaussian.model_copy(update={"delta": 0.0, "threat_model": "another"}),
    ]
    refuse_claims(claims, [EVE], DPDPSGD(noise_multiplier=1.0), SETTING, on_records=True)
    laplace = DPDPSGD(noise_multiplier=1.0, perturb="model")
    refuse_claims([Claim(text="c", epsilon=1.0)], [EVE], laplace, SETTING, on_records=True)


def test_scores_that_are_nan_are_one_line(tmp_path, monkeypatch) -> None:
    whole = distinguish.LogRatios.scores

    def broken(self, in_round):
        scores = whole(self, in_round)
        scores[::2] = math.nan
        return scores

    monkeypatch.setattr(distinguish.LogRatios, "scores", broken)
    code, lines = said(tmp_path, CONFIG)
    assert code == 2, lines
    assert len(lines) == 1, lines
    assert '1000 of 2000 runs played against "agent 3" have NaN as their score' in lines[0]


class Overflowing(DPDPSGD):
    """Its second round is too large for a number."""

    def step(self, state, k, graph, gradient, noise):
        round = super().step(state, k, graph, gradient, noise)
        if k < 2:
            return round
        after = round.state._replace(V=round.state.V * 1e200 * 1e200 + torch.inf)
        return round._replace(state=after)


def test_a_protocol_that_overflows_is_one_line() -> None:
    defense = Overflowing(noise_multiplier=1.0, n_rounds=3, batch_size=8)
    game = Game.of(defense, SETTING, 0, "add-remove", "poisson")
    with pytest.raises(DpauditError, match="round 2: messages or states are not finite"):
        Adversary(game, EVE, 3)


@pytest.mark.parametrize(
    "options",
    [["--device", "cuda"], ["--download"], ["--max-memory", "1GB"], ["--fix-model"]],
    ids=lambda options: options[0],
)
def test_a_program_of_ones_own_is_not_told_where_to_compute(
    tmp_path: Path, options: list[str]
) -> None:
    config = tmp_path / "program.toml"
    config.write_text('[program]\ncommand = ["python", "simulation.py"]\n')
    done = CliRunner().invoke(app, ["audit", str(config), "--dry-run", *options])
    assert done.exit_code == 2
    assert without_help(done.stderr) == (
        f"error: {options[0]}: {config} audits a program, which does as its command says\n"
    )
