"""Mutual information as an attack: known truths, null, unreadable messages, and bad input."""

import math
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import binom
from typer.testing import CliRunner

from dpaudit.attack.contract import AttackContext
from dpaudit.attacks.mutual_information.attack import MutualInformation
from dpaudit.attacks.mutual_information.samples import (
    BLOCK_BYTES,
    RevealedQuantity,
    blocks,
    first_heard,
    samples,
)
from dpaudit.commands.cli import app
from dpaudit.defense.contract import Gradient, Setting
from dpaudit.errors import ConfigError, DataError
from dpaudit.files.config import AuditConfig
from dpaudit.files.threat import ThreatModel
from dpaudit.graphs.graph import build_graph
from dpaudit.information.estimators import gaussian_channel
from dpaudit.papers.xie_table4 import _method
from dpaudit.pipeline.run import Runtime, run_audit
from dpaudit.registry import load_plugin
from dpaudit.rng import Streams
from dpaudit.training.run_directory import RunDirectory
from dpaudit.training.sensor_fusion import SensorFusion
from dpaudit.training.trials import run_trials
from tests.said import without_help
from tests.small_audits import images_audit, write_images

FALSE_FAILURE = 1e-6  # of each statistical check here, over fresh seeds
EVE = ThreatModel(name="eve")
CURIOUS = ThreatModel(name="agent 1", kind="curious", agents=(1,))

CONFIG = (
    images_audit("logistic", "dpdl", 3)
    + """\
[[threat_model]]
name = "eavesdropper"
[[threat_model]]
name = "agent 2"
kind = "curious"
agents = [2]
[[attack]]
name = "mutual-information"
message = "momentum-stripped"
rounds = [1, 3]
trials = 200
n_permutations = 19
n_splits = 5
[[attack]]
name = "mutual-information"
message = "x"
threat_models = ["eavesdropper"]
rounds = [1, 2]
trials = 200
n_permutations = 19
n_splits = 5
"""
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with audit.toml and the 60 + 20 images it names."""
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path, width=4)
    (tmp_path / "audit.toml").write_text(CONFIG)
    return tmp_path


def on_line(defense: str, tmp_path: Path, seed: int = 7, d: int = 1, **options) -> AttackContext:
    """Three linked agents whose gradients are standard normal numbers."""
    line = {name: options.pop(name) for name in ("coarse", "broken") if name in options}
    setting = Setting(build_graph("complete", 3), (50,) * 3, d)
    options = {"n_rounds": 2, "batch_size": 1, **options}
    return context_of(defense, Line(d, **line), setting, tmp_path, seed, **options)


def context_of(
    defense: str, problem, setting, tmp_path: Path, seed: int = 7, **options
) -> AttackContext:
    chosen = load_plugin("defenses", defense)(**options).calibrate(setting)
    return AttackContext(problem, setting, chosen, (), Streams(seed), RunDirectory(tmp_path))


def sensors(n_agents: int = 3, p: int = 1, scale: float = 1.0) -> tuple[SensorFusion, Setting]:
    problem = SensorFusion.draw(Streams(1), n_agents, m=1, p=p, scale=scale)
    return problem, Setting(build_graph("complete", n_agents), (1,) * n_agents, p)


def measured(context: AttackContext, threat_model: ThreatModel, **options) -> list:
    return MutualInformation(**options).measure(context, threat_model, lambda done, total: None)


def by(findings, world: str, column: str):
    return next(f for f in findings if f.world == world and column in f.series)


def test_an_audit_finds_the_leak_and_its_null(folder, report) -> None:
    result = run_audit(
        AuditConfig.from_toml(folder / "audit.toml"), folder / "run", Runtime(cores=1)
    )
    found = [f for f in result.findings if f.kind == "mutual-information"]
    stripped = [f for f in found if f.message == "momentum-stripped"]
    eve = [f for f in stripped if f.threat_model == "eavesdropper"]
    noisy, exact = by(eve, "defense", "round"), by(eve, "no-defense", "round")
    assert noisy.series["round"] == (1, 3)
    assert 0 < noisy.metrics["information"].value < exact.metrics["information"].value
    assert noisy.metrics["p-value"].value == exact.metrics["p-value"].value == 1 / 20
    assert noisy.metrics["information"].n == 200
    assert by(eve, "no-defense", "private").metrics["variance explained"].value > 0.98
    text = " ".join(noisy.notes)
    for said in (
        "random over the 200 runs: the batches of all agents",
        "reduction, in round",
        "PCA 1",
    ):
        assert said in text
    curious = [f for f in stripped if f.threat_model == "agent 2"]
    assert all(not f.metrics for f in curious)
    assert all("not available to this adversary" in f.notes[0] for f in curious)
    model = by([f for f in found if f.message == "x"], "defense", "round")
    assert model.series["round"] == (2,)  # x of round 1 is public, and the same in all runs
    assert any(note.startswith("round 1: the view is the same in all runs") for note in model.notes)
    control = by([f for f in found if f.message == "x"], "no-defense", "round")
    blind = control.metrics["p-value"].value > 0.05
    assert ("not even without noise" in control.notes[0]) == blind
    page = (folder / "run" / "report.html").read_text()
    assert "momentum-stripped, read by eavesdropper" in page
    assert page.count("Best estimates on held-out trials") >= 2


@pytest.mark.parametrize("sigma", [0.5, 2.0])
def test_information_of_a_gaussian_channel_is_the_known_one(tmp_path, sigma) -> None:
    """x of round 1 is a public model less the gradient, N(0, 1), less noise N(0, sigma^2)."""
    context = on_line(
        "dp-dpsgd", tmp_path, noise_multiplier=sigma, clip_norm=1.0, learning_rate=0.1
    )
    findings = measured(context, EVE, message="x", rounds=(1,), trials=2_000, n_permutations=19)
    found = by(findings, "defense", "round").metrics
    truth = gaussian_channel(1.0, sigma**2)
    assert found["information"].low <= truth <= found["information"].high
    assert found["information"].value == pytest.approx(truth, abs=0.12)
    assert found["gaussian"].value == pytest.approx(truth, abs=0.12)
    assert found["correlation"].value == pytest.approx(1 / math.sqrt(1 + sigma**2), abs=0.1)
    assert found["m-nmi"].value == pytest.approx(
        found["information"].value / found["self-information"].value
    )
    guess = by(findings, "defense", "private").metrics["variance explained"]
    assert guess.low <= 1 / (1 + sigma**2) <= guess.high  # no estimate explains more
    copy = by(findings, "no-defense", "round").metrics["m-nmi"]
    assert copy.value == pytest.approx(1, abs=0.01)


def test_what_is_independent_gets_uniform_p_values(tmp_path) -> None:
    """x of round 2 was sent before the gradient of round 2 was drawn."""
    repeats, small = 60, 0
    for seed in range(repeats):
        context = on_line("dgd", tmp_path, seed=seed)
        options = {"trials": 40, "n_permutations": 9, "n_splits": 0}
        found = by(measured(context, EVE, message="x", rounds=(2,), **options), "defense", "round")
        small += found.metrics["p-value"].value <= 0.2
    assert small <= binom.isf(FALSE_FAILURE, repeats, 0.2)
    assert small >= binom.ppf(FALSE_FAILURE, repeats, 0.2)


def test_a_message_that_it_cannot_decrypt_is_not_available(tmp_path) -> None:
    problem, setting = sensors()
    context = context_of("paillier-consensus", problem, setting, tmp_path, n_rounds=2)
    options = {"rounds": (2,), "trials": 60, "n_permutations": 9, "n_splits": 2}
    for threat_model, message in ((EVE, "difference"), (EVE, "state"), (CURIOUS, "state")):
        (finding,) = measured(context, threat_model, message=message, **options)
        assert not finding.metrics
        assert finding.notes[0].startswith("not available to this adversary: ")
    found = by(measured(context, CURIOUS, message="difference", **options), "defense", "round")
    assert found.metrics["information"].n == 60
    assert any("no noise that could be turned off" in note for note in found.notes)
    assert any("victim's measurements" in note for note in found.notes)


def test_an_adversarys_own_gradient_is_no_secret(tmp_path) -> None:
    (finding,) = measured(on_line("dgd", tmp_path), CURIOUS, message="x", victim=1)
    assert "agent 1 is the adversary's own" in finding.notes[0]


def test_a_victim_among_many_is_found_by_each_link(monkeypatch) -> None:
    """Among 10,000 agents a look at every link for every agent took minutes."""
    looks, real = list[tuple[int, int]](), ThreatModel.sees

    def counted(self: ThreatModel, sender: int, receiver: int) -> bool:
        looks.append((sender, receiver))
        return real(self, sender, receiver)

    monkeypatch.setattr(ThreatModel, "sees", counted)
    setting = Setting(build_graph("ring", 100), (1,) * 100, 2)
    one_link = ThreatModel(name="one link", links=((70, 71),))
    assert first_heard(setting, one_link) == 70
    assert first_heard(setting, CURIOUS) == 0  # a neighbour of agent 1
    assert first_heard(setting, ThreatModel(name="far", links=((70, 80),))) == 0  # it reads nobody
    assert len(looks) == 2 * setting.network.at(1).n_edges  # of two adversaries of links


def test_the_victim_is_an_honest_agent_that_the_adversary_hears(tmp_path) -> None:
    links = ThreatModel(name="one link", links=((2, 0),))
    (found, _) = measured(on_line("dgd", tmp_path), links, message="x", rounds=(2,), trials=50)
    assert "agent 2" in found.title


def test_samples_are_those_of_the_rounds_played_one_by_one(tmp_path) -> None:
    """Private quantity and message as a plain loop over rounds gives them, whatever the blocks."""
    problem, setting = sensors(p=2)
    defense = load_plugin("defenses", "dgd")(n_rounds=3, step_size=0.05)
    question = RevealedQuantity("x", "gradient", 0, EVE, (1, 3), reduction="none")
    found = samples(question, defense, problem, setting, Streams(3), 20)
    own = Streams(Streams(3).numpy("block", 0).integers(2**62).item())
    block, graph = problem.for_trials(Streams(3), own, 20, 0), setting.network.at(1)
    X = block.initial(own, 20)
    for k in (1, 2, 3):
        G = block.gradient(own, k)(X)
        if k != 2:
            for kept, true in ((found.rounds[k].private, G), (found.rounds[k].view, X)):
                shifted = true[:, 0] - true[0, 0]  # information knows no origin
                np.testing.assert_allclose(kept, shifted.numpy(), atol=1e-12)
        X = torch.stack([graph.W @ x for x in X]) - 0.05 * G


@pytest.mark.parametrize(
    "name, combination, column",
    [
        ("dgd", "step", 0),
        ("dp-dgd", "step", 0),
        ("dpop", "step", 0),
        ("gradient-tracking", "tracked", 0),
        ("sensitivity-reduced", "(44)-corrected", 2),
    ],
)
def test_a_combination_is_the_gradient_itself_without_noise(name, combination, column) -> None:
    """What a round's gradient did shows in the message after it, once past trackers are undone."""
    problem, setting = sensors(p=2, scale=2.0)
    defense = load_plugin("defenses", name)(n_rounds=5).without_noise()
    question = RevealedQuantity(combination, "gradient", 0, EVE, (1, 4, 5), reduction="none")
    found = samples(question, defense, problem, setting, Streams(3), 20)
    late = (
        {}
        if name == "gradient-tracking"
        else {5: "what shows the gradient of round 5 is sent later"}
    )
    assert found.unseen == late
    assert set(found.rounds) == {1, 4, 5} - set(late)
    for k in found.rounds:
        private, view, _ = found.rounds[k]
        columns = view.reshape(20, -1, 2)[:, column]
        np.testing.assert_allclose(columns, private, rtol=1e-6, atol=1e-6)


def test_a_combination_needs_the_neighbours_and_the_past(tmp_path) -> None:
    context = on_line("sensitivity-reduced", tmp_path, n_rounds=3)
    links = ThreatModel(name="one link", links=((0, 1),))
    options = {"message": "(44)-corrected", "rounds": (2,), "trials": 40, "n_permutations": 3}
    for finding in measured(context, links, **options):
        assert 'not available to this adversary: one link does not see "z"' in finding.notes[0]
    found = by(measured(context, EVE, **options), "defense", "round")
    assert found.metrics["information"].n == 40


def test_the_view_of_44_is_the_one_of_the_reproduction() -> None:
    """Two programs for one set of quantities: the defense's, and the one that prints Table 4."""
    defense, observe = _method("Algorithm 1, epsilon = 10", 4)
    streams, setting = Streams(3), Setting(build_graph("complete", 3), (1, 1, 1), 1)
    problem = SensorFusion.draw(streams, 3, m=1, p=1, scale=10.0)
    own = Streams(streams.numpy("block", 0).integers(2**62).item())
    seen = []
    block = problem.for_trials(streams, own, 30, 0)
    run_trials(defense, block, setting, own, 30, lambda k, round: seen.append(round))
    for name, printed in (("(44)", "(44) as printed"), ("(44)-corrected", "(44) corrected")):
        question = RevealedQuantity(name, "gradient", 0, EVE, (1, 2, 3), reduction="none")
        found = samples(question, defense, problem, setting, streams, 30)
        for k in (1, 2, 3):
            expected = observe(k, seen[k - 1], seen[k])[printed]
            shifted = (expected - expected[0]).numpy()
            np.testing.assert_allclose(found.rounds[k].view, shifted, rtol=1e-6, atol=1e-8)


def test_shares_that_came_back_leave_the_gradient() -> None:
    problem, setting = sensors(p=2, scale=2.0)
    defense = load_plugin("defenses", "correlated-randomness")(n_rounds=4, step_size=0.01)
    question = RevealedQuantity("balance", "gradient", 0, EVE, (1, 4), reduction="none")
    found = samples(question, defense, problem, setting, Streams(3), 20)
    own = Streams(Streams(3).numpy("block", 0).integers(2**62).item())
    states = []
    block = problem.for_trials(Streams(3), own, 20, 0)
    run_trials(defense, block, setting, own, 20, lambda k, round: states.append(round))
    y = states[2].state.Y[:, 0] - states[2].state.Y[0, 0]  # before round 4
    private, view, _ = found.rounds[4]
    np.testing.assert_allclose(view[:, :2], private - y.numpy(), atol=1e-9)
    assert found.rounds[1].view.shape == (20, 2)  # nothing was exchanged yet: lambda_y alone


def test_blocks_of_trials_are_even_and_bounded() -> None:
    graph = build_graph("complete", 4)
    small = Setting(graph, (1,) * 4, 10)
    assert blocks(1_000, small) == [1_000]
    large = Setting(graph, (1,) * 4, 50_000)
    sizes = blocks(1_000, large)
    assert sum(sizes) == 1_000
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) * 16 * 50_000 * 4 <= BLOCK_BYTES
    with pytest.raises(ConfigError, match="use a smaller model"):
        blocks(1_000, Setting(graph, (1,) * 4, 100_000_000))


def test_reduction_loses_information_and_is_named(tmp_path) -> None:
    """d = 6 gradients under equal noise: all columns tell more than the first component does."""
    bits = {}
    for reduction in ("aligned", "pca", "none"):
        context = on_line("dp-dpsgd", tmp_path, d=6, noise_multiplier=0.3, clip_norm=1.0)
        options = {"rounds": (1,), "trials": 600, "n_permutations": 0, "n_splits": 0}
        findings = measured(context, EVE, message="x", reduction=reduction, **options)
        found = by(findings, "defense", "round")
        bits[reduction] = found.metrics["information"].value
        assert "baseline" not in found.metrics
        assert found.metrics["information"].low is None
        assert ("PCA" in found.notes[1]) == (reduction != "none")
    assert bits["none"] > bits["aligned"] > bits["pca"]


def test_components_count_rows_alike_whatever_their_size() -> None:
    """(44) with two unknowns has six columns, and those of the tracker are by far the largest."""
    problem, setting = sensors(p=2, scale=10.0)
    defense = load_plugin("defenses", "sensitivity-reduced")(n_rounds=2).without_noise()
    question = RevealedQuantity(
        "(44)-corrected", "gradient", 0, EVE, (1,), components=2, view_components=2
    )
    found = samples(question, defense, problem, setting, Streams(3), 300)
    private, view, name = found.rounds[1]
    assert "3 x 2 -> PCA 2" in name
    design = np.c_[view, np.ones(300)]
    left = private[:, 0] - design @ np.linalg.lstsq(design, private[:, 0], rcond=None)[0]
    assert left.var() < 0.4 * private[:, 0].var()  # 0.6 where the tracker takes both components


def test_scales_that_defeat_the_estimator_become_notes(tmp_path) -> None:
    context = on_line("dgd", tmp_path, coarse=True)
    options = {"rounds": (2,), "trials": 60, "n_permutations": 3, "n_splits": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = by(measured(context, EVE, message="x", **options), "defense", "round")
    assert any("values of column 0 repeat" in note for note in found.notes)
    assert any('scale="normal-scores"' in note for note in found.notes)


def test_runs_that_diverge_are_one_clear_line(tmp_path) -> None:
    with pytest.raises(DataError, match="private, round 1: 60 of 60 samples hold NaN or infinite"):
        measured(on_line("dgd", tmp_path, broken=True), EVE, message="x", rounds=(2,), trials=60)


@pytest.mark.parametrize(
    "old, new, expected",
    [
        ('"momentum-stripped"', '"momentum-striped"', '22: attack[1].message: dpdl offers no "momentum-striped" (did you mean "momentum-stripped"?)'),
        ('"momentum-stripped"', '"v"\nprivate = "gradients"', '23: attack[1].private: dpdl offers no "gradients" (did you mean "gradient"?)'),
        ("rounds = [1, 3]", "rounds = [1, 4]", "23: attack[1].rounds: round 4 is beyond the run of 3 rounds"),
        ("rounds = [1, 3]", "rounds = [1, 3]\nk = 0", "24: attack[1].k: Input should be greater than 0, got 0"),
        ("rounds = [1, 3]", "rounds = [1, 3]\nk = 150", "20: attack[1]: trials = 200; k = 150 neighbours"),
        ("trials = 200\nn_permutations = 19\nn_splits = 5\n[[", "trials = 3\n[[", "20: attack[1]: trials = 3; k = 3 neighbours"),
        ("rounds = [1, 3]", "rounds = [1, 3]\nvictim = 4", "24: attack[1].victim: there is no agent 4; with n_agents = 4 they are 0 to 3"),
        ("rounds = [1, 3]", 'rounds = "every"', "23: attack[1].rounds: Input should be a valid tuple, got 'every'"),
        ("rounds = [1, 3]", 'rounds = [1, 3]\nreduction = "pac"', "24: attack[1].reduction: Input should be"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_code_2(folder, old, new, expected) -> None:
    assert old in CONFIG
    (folder / "audit.toml").write_text(CONFIG.replace(old, new, 1))
    done = CliRunner().invoke(app, ["audit", "audit.toml", "--out", "run"])
    assert done.exit_code == 2
    (line,) = without_help(done.stderr).strip().splitlines()
    assert line.startswith(f"error: audit.toml:{expected}")


def test_values_that_are_not_finite_end_with_exit_code_2(folder) -> None:
    text = CONFIG.replace("noise_multiplier = 1.0", "noise_multiplier = 1.0\nlearning_rate = 1e38")
    (folder / "audit.toml").write_text(
        text.replace("momentum-stripped", "x").replace("[1, 3]", "[3]")
    )
    done = CliRunner().invoke(app, ["audit", "audit.toml", "--out", "run", "--workers", "1"])
    assert done.exit_code == 2
    (line,) = without_help(done.stderr).strip().splitlines()
    assert "hold NaN or infinite values" in line


class LineGradient(Gradient):
    """The same whatever the model: what was drawn."""

    batch_size = 1

    def __init__(self, G: torch.Tensor) -> None:
        self.G = G

    def __call__(self, X, holders=None):
        return self.G

    def clipped_sum(self, X, clip_norm, holders=None, norm=2):
        return self.G


@dataclass(frozen=True)
class Line:
    """Gradients N(0, 1), independent in each trial, round and agent; models start at 0."""

    d: int = 1
    coarse: bool = False
    broken: bool = False
    differentiates = False
    varies = "the gradients"

    def for_trials(self, shared, own, trials, victim):
        return self

    def initial(self, streams, trials=None):
        return torch.zeros(trials, 3, self.d, dtype=torch.float64)

    def gradient(self, streams, k, batch_size, sampling="fixed", trials=None):
        G = torch.randn(trials, 3, self.d, generator=streams("G", k), dtype=torch.float64)
        return LineGradient(G.round() if self.coarse else G * math.nan if self.broken else G)
