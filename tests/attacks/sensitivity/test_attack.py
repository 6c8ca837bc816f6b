"""Planted faults are caught, their correct twins are not, and bounds that are attained are met."""

import warnings
from dataclasses import replace

import pytest
import torch

from dpaudit.attack.contract import AttackContext
from dpaudit.attacks.sensitivity.attack import Sensitivity
from dpaudit.defense.clipping import clip
from dpaudit.defense.contract import Gradient, Setting
from dpaudit.defense.noise import Noise
from dpaudit.defense.transcript import broadcast
from dpaudit.defenses.adp_vrsgp import ADPVRSGP
from dpaudit.defenses.dgd import DGD, DPDGD
from dpaudit.defenses.dpdl import DPDL
from dpaudit.defenses.dpps import DPPS, Protocol
from dpaudit.defenses.dpsgd import DPDPSGD
from dpaudit.defenses.dyn_d2p import DynD2P
from dpaudit.defenses.mapa import MAPA
from dpaudit.defenses.partpsp import PartPSP
from dpaudit.defenses.sensitivity_reduced import SensitivityReduced
from dpaudit.errors import ConfigError
from dpaudit.files.claim import Claim
from dpaudit.files.config import AuditConfig
from dpaudit.files.finding import Finding, Metric, Name, Role
from dpaudit.files.threat import ThreatModel
from dpaudit.files.verdict import Verdict
from dpaudit.graphs.graph import build_graph
from dpaudit.pipeline.run import Runtime, run_audit
from dpaudit.reports.figures.evidence import sensitivity_by_round
from dpaudit.selftest.correct import PrivateGossip
from dpaudit.training.classification import BatchGradient, Classification
from dpaudit.training.sensor_fusion import SensorFusion
from tests.small_audits import images_audit, write_images

ATTACK = Sensitivity(points=2, restarts=2, steps=2)
SLOW = pytest.mark.slow
DEPENDENCE = "Dependence on data beside the values of messages"
SGD = {"n_rounds": 1, "batch_size": 3, "noise_multiplier": 1.0, "clip_norm": 0.1}


@pytest.fixture(scope="module")
def kept():
    """What was measured before in this module: several tests ask for the same."""
    return {}


@pytest.fixture
def measured(setting_of, streams, kept):
    """Findings by message ("" for what depends on data beside), on four agents in a ring."""

    def make(defense, adjacency="add-remove", attack=ATTACK, problem_of=None):
        asked = type(defense), defense.model_dump_json(), adjacency, attack, problem_of
        if asked not in kept:
            kept[asked] = measure(defense, adjacency, attack, problem_of or (lambda p: p))
        return kept[asked]

    def measure(defense, adjacency, attack, problem_of):
        problem, setting = setting_of("ring", 4, "logistic")
        problem = problem_of(problem)
        claims = (Claim(text="a claim", epsilon=1.0, adjacency=adjacency),)
        context = AttackContext(problem, setting, defense.calibrate(setting), claims, streams, None)
        steps = list[tuple[int, int]]()
        findings = attack.measure(
            context, ThreatModel(name="anybody"), lambda *step: steps.append(step)
        )
        assert steps == sorted(steps)
        assert steps[-1] == (steps[0][1], steps[0][1])
        assert all(f.kind == "sensitivity" for f in findings)
        return {f.message or "": f for f in findings if "instead" not in f.title}

    return make


class HalfOfTheNoise(PrivateGossip):
    def noise(self, like: torch.Tensor, k: int, noise: Noise) -> torch.Tensor:
        return super().noise(like, k, noise) / 2


@pytest.mark.parametrize("clip_norm", [0.1, 1e3])
def test_a_record_reaches_a_clip_that_no_gradient_does(setting_of, streams, clip_norm) -> None:
    """Else noise had to move by as much less as gradients of the data are shorter than the clip."""
    problem, setting = setting_of("ring", 4, "logistic")
    claims = (Claim(text="a claim", epsilon=1.0),)
    defense = HalfOfTheNoise(n_rounds=1, clip_norm=clip_norm, learning_rate=1e-3)
    context = AttackContext(problem, setting, defense, claims, streams, None)
    found = ATTACK.measure(context, ThreatModel(name="anybody"), lambda done, total: None)
    (aligned,) = (f for f in found if f.role is Role.ALIGNMENT)
    assert aligned.metrics[Name.MOVED_OVER_DECLARED].value == pytest.approx(2.0, rel=1e-6)


def caught(findings: dict[str, Finding]) -> set[str]:
    return {name for name, f in findings.items() if f.verdict is Verdict.UNSUPPORTED}


class Wrapped(Gradient):
    """An oracle with a mistake in how a defense uses it."""

    def __init__(self, oracle: Gradient) -> None:
        self.oracle, self.batch_size = oracle, oracle.batch_size

    def __call__(self, X, holders=None):
        return self.oracle(X, holders)

    def clipped_sum(self, X, clip_norm, holders=None, norm=2):
        return self.oracle.clipped_sum(X, clip_norm, holders, norm)


class Unclipped(Wrapped):
    def clipped_sum(self, X, clip_norm, holders=None, norm=2):
        return self.oracle.clipped_sum(X, float("inf"), holders, norm)


class ClippedAfterAveraging(Wrapped):
    def clipped_sum(self, X, clip_norm, holders=None, norm=2):
        return self.batch_size * clip(self.oracle(X, holders), clip_norm, norm)


class ClippedInL2(Wrapped):
    def clipped_sum(self, X, clip_norm, holders=None, norm=2):
        return self.oracle.clipped_sum(X, clip_norm, holders, 2)


class DividedByTheRealisedBatchSize(Wrapped):
    def clipped_sum(self, X, clip_norm, holders=None, norm=2):
        weights = self.oracle.batch.weights
        count = torch.full((4,), 3.0) if weights is None else weights.sum(1).clamp(min=1)
        return super().clipped_sum(X, clip_norm, holders, norm) * 3 / count[:, None].to(X)


class FirstRecordTwice(Wrapped):
    """Depends on the order of the batch: its last record is not used, and the first one twice."""

    def clipped_sum(self, X, clip_norm, holders=None, norm=2):
        if not hasattr(self.oracle, "gradients"):
            return super().clipped_sum(X, clip_norm, holders, norm)
        inputs, labels, _ = self.oracle.batch
        index = torch.tensor([0, *range(labels.shape[1] - 1)])
        batch = type(self.oracle.batch)(inputs[:, index], labels[:, index])
        return replace(self.oracle, batch=batch).clipped_sum(X, clip_norm, holders, norm)


def faulty(oracle: type[Wrapped], base: type = DPDPSGD) -> type:
    class Faulty(base):
        def step(self, state, k, graph, gradient, noise):
            return super().step(state, k, graph, oracle(gradient), noise)

    return Faulty


class NoiseOfTheGradientsScale(DPDPSGD):
    def step(self, state, k, graph, gradient, noise):
        size = gradient(state.X).norm(dim=-1, keepdim=True)
        noise.gaussian("other", size, state.X)
        return super().step(state, k, graph, gradient, noise)


class NoNoise(Noise):
    def __init__(self) -> None:
        pass

    def gaussian(self, message, std, like):
        return torch.zeros_like(like)


class SkipsNoiseForAnEmptyBatch(DPDPSGD):
    def step(self, state, k, graph, gradient, noise):
        empty = gradient.batch.weights[0].sum() == 0
        return super().step(state, k, graph, gradient, NoNoise() if empty else noise)


class Beside(DPDPSGD):
    """Sends "flag" beside the model, as this agent's un-noised sums make it."""

    def step(self, state, k, graph, gradient, noise):
        played = super().step(state, k, graph, gradient, noise)
        S = gradient.clipped_sum(state.X, self.clip_norm)
        return played._replace(sent={**played.sent, "flag": broadcast(graph, self.flag(S))})

    def flag(self, S):
        return 0.0 * S


class FinerIfOdd(Beside):
    def flag(self, S):
        odd = int(S.abs().sum().item() * 1e6) % 2
        return torch.zeros_like(S, dtype=torch.float64 if odd else torch.float32)


class ZerosOfTheNoisyModel(Beside):
    """Correct: the signs are those of what is sent anyway."""

    def step(self, state, k, graph, gradient, noise):
        played = DPDPSGD.step(self, state, k, graph, gradient, noise)
        zeros = replace(played.sent["x"], payload=0.0 * played.sent["x"].payload)
        return played._replace(sent={**played.sent, "flag": zeros})


class SendsItsGradientsNorm(DPDPSGD):
    def step(self, state, k, graph, gradient, noise):
        played = super().step(state, k, graph, gradient, noise)
        norm = gradient.clipped_sum(state.X, self.clip_norm).norm(dim=-1, keepdim=True)
        return played._replace(sent={**played.sent, "norm": broadcast(graph, norm)})


class StepOfTheWrongRound(SensitivityReduced):
    """Steps by alpha_(k-1) in round k, under the noise that counts on alpha_k."""

    def step(self, state, k, graph, gradient, noise):
        wrong = self.model_copy(update={"step_size": self.step_size / self.step_decay})
        return SensitivityReduced.step(wrong, state, k, graph, gradient, Scaled(noise, self.nu(k)))


class Scaled(Noise):
    """Noise of one scale, whatever is asked for."""

    def __init__(self, noise: Noise, scale: float) -> None:
        self.noise, self.scale = noise, scale

    def laplace(self, message, scale, like):
        return self.noise.laplace(message, self.scale, like)


L1, POISSON = {"perturb": "model"}, {"sampling": "poisson"}


@pytest.mark.parametrize(
    ("fault", "options", "adjacency"),
    [
        (Unclipped, {}, "add-remove"),
        pytest.param(Unclipped, {}, "replace-one", marks=SLOW),
        pytest.param(ClippedAfterAveraging, {}, "add-remove", marks=SLOW),
        (ClippedAfterAveraging, {}, "replace-one"),
        pytest.param(ClippedInL2, L1, "add-remove", marks=SLOW),
        pytest.param(ClippedInL2, L1, "replace-one", marks=SLOW),
        (DividedByTheRealisedBatchSize, POISSON, "add-remove"),
    ],
)
def test_a_clipping_fault_is_caught_and_its_twin_is_not(
    fault, options, adjacency, measured
) -> None:
    assert caught(measured(DPDPSGD(**SGD, **options), adjacency)) == set()
    found = measured(faulty(fault)(**SGD, **options), adjacency)
    assert caught(found) == {"x"}
    assert found["x"].metrics["measured over stated"].value > 1.2


def test_a_problem_that_divides_by_the_records_drawn_is_caught(measured) -> None:
    class Realised(Classification):
        def gradient(self, streams, k, batch_size, sampling="fixed"):
            drawn = super().gradient(streams, k, batch_size, sampling)
            return replace(drawn, batch_size=int(drawn.batch.weights[1].sum()) + 1)

    def realised(problem):
        problem.__class__ = Realised
        return problem

    found = measured(DPDPSGD(**SGD, sampling="poisson"), problem_of=realised)[""]
    assert found.verdict is Verdict.UNSUPPORTED
    assert "by how many records were drawn" in found.notes[0]


@pytest.mark.parametrize(
    ("defense", "sampling", "said"),
    [
        (faulty(FirstRecordTwice), "fixed", "depends on the order of the records"),
        pytest.param(
            *(NoiseOfTheGradientsScale, "fixed"),
            'scale of the noise on "other" depends on the data',
            marks=SLOW,
        ),
        pytest.param(
            *(SkipsNoiseForAnEmptyBatch, "poisson"),
            "which noise is drawn depends on the data",
            marks=SLOW,
        ),
        pytest.param(
            *(FinerIfOdd, "fixed"),
            "which messages are sent, in which precision, or to whom, depends",
            marks=SLOW,
        ),
        (Beside, "fixed", 'the signs of zeros in "flag" depend on the data'),
    ],
)
def test_what_depends_on_data_beside_the_messages_is_said(
    defense, sampling, said, measured
) -> None:
    found = measured(defense(**SGD, sampling=sampling))[""]
    assert found.title == DEPENDENCE
    assert found.verdict is Verdict.UNSUPPORTED
    assert any(said in note for note in found.notes)


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_messages_that_depend_on_data_are_accused_of_no_more(sampling, measured) -> None:
    assert measured(DPDPSGD(**SGD, sampling=sampling))[""].verdict is None


def test_what_a_network_prints_or_warns_of_is_not_the_steps(measured, monkeypatch) -> None:
    """As torch does at operators that it does not batch; gradients of one world serve another."""
    compute, computed = BatchGradient.clipped_sum, []

    def clipped_sum(self, *given):
        computed.append(given)
        warnings.warn(f"gradient {len(computed)}", stacklevel=2)
        print(len(computed))
        return compute(self, *given)

    monkeypatch.setattr(BatchGradient, "clipped_sum", clipped_sum)
    found = measured(DPDPSGD(**SGD), problem_of=lambda problem: problem)[""]  # measured anew
    assert found.not_examined == ()
    assert computed


def test_signs_of_zeros_after_noise_are_not_accused(measured) -> None:
    assert measured(ZerosOfTheNoisyModel(**SGD))[""].verdict is None


def test_a_message_that_no_noise_hides_is_caught(measured) -> None:
    found = measured(SendsItsGradientsNorm(**SGD))
    assert caught(found) == {"norm"}
    assert any("nothing hides it" in note for note in found["norm"].notes)


@pytest.mark.slow
def test_the_wrong_alpha_is_caught(measured) -> None:
    options = {"n_rounds": 6, "batch_size": 3, "allow_outside_theory": True}
    right = measured(SensitivityReduced(**options), "function")
    wrong = measured(StepOfTheWrongRound(**options), "function")
    assert caught(right) == set()
    assert caught(wrong) == {"z"}
    ratio = wrong["z"].metrics["measured over stated"].value
    assert ratio == pytest.approx(1 / 0.97, rel=1e-9)


@pytest.mark.parametrize(
    ("defense", "adjacency"),
    [
        (DPDL(n_rounds=2, batch_size=3, epsilon=1.0), "add-remove"),
        pytest.param(*(DPDL(n_rounds=2, batch_size=3, epsilon=1.0), "replace-one"), marks=SLOW),
        pytest.param(
            *(DPDPSGD(n_rounds=3, batch_size=3, noise_multiplier=1.0), "add-remove"), marks=SLOW
        ),
        pytest.param(
            *(DPDPSGD(n_rounds=3, batch_size=3, noise_multiplier=1.0), "replace-one"), marks=SLOW
        ),
        (DynD2P(n_rounds=3, epsilon=1.0), "add-remove"),
        pytest.param(*(DynD2P(n_rounds=3, epsilon=1.0), "replace-one"), marks=SLOW),
        (ADPVRSGP(n_rounds=3, batch_size=3, epsilon=1.0, allow_outside_theory=True), "add-remove"),
        pytest.param(
            *(
                ADPVRSGP(n_rounds=3, batch_size=3, epsilon=1.0, allow_outside_theory=True),
                "replace-one",
            ),
            marks=SLOW,
        ),
        (SensitivityReduced(n_rounds=3, batch_size=3, allow_outside_theory=True), "function"),
        pytest.param(DPDGD(n_rounds=6, batch_size=3), "function", marks=SLOW),
        pytest.param(
            *(DPDGD(n_rounds=6, batch_size=3, variant="true-consensus"), "function"), marks=SLOW
        ),
        pytest.param(DPPS(n_rounds=6, batch_size=3), "agent-identity", marks=SLOW),
        (PartPSP(n_rounds=3, batch_size=3), "agent-identity"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_defenses_at_their_defaults_keep_what_they_state(defense, adjacency, measured) -> None:
    found = measured(defense, adjacency)
    assert caught(found) == set()
    assert max(f.metrics["measured"].value for name, f in found.items() if name) > 0


def test_a_clipped_record_attains_its_bound_in_every_round(measured) -> None:
    series = measured(DPDPSGD(**SGD | {"n_rounds": 2}))["x"].series
    assert series["round"] == (1, 2)
    for kind in ("natural", "mislabelled", "optimised", "stated bound"):
        assert series[kind] == pytest.approx([0.05 * 0.1 / 3] * 2, rel=1e-9), kind


def test_an_unclipped_message_is_held_against_nothing(measured) -> None:
    found = measured(DGD(n_rounds=2, batch_size=3))
    assert "stated bound" not in found["x"].metrics
    assert "stated bound" not in found["x"].series
    assert caught(found) == {"x"}  # no noise at all, which no claim survives


class TwiceTheGradientInRound5(DPDGD):
    def step(self, state, k, graph, gradient, noise):
        return super().step(state, k, graph, Twice(gradient) if k == 5 else gradient, noise)


class Twice(Wrapped):
    def __call__(self, X, holders=None):
        return 2 * super().__call__(X, holders)


@pytest.mark.parametrize("defense", [DPDGD, TwiceTheGradientInRound5])
def test_functions_change_in_rounds_that_nobody_asked_for(defense, measured) -> None:
    attack = Sensitivity(rounds=(2,), steps=0)
    found = measured(defense(n_rounds=6, batch_size=3), "function", attack)
    rounds = found[""].metrics[Name.ROUNDS]
    assert (rounds.value, rounds.n) == (6, 6)
    faulty = defense is TwiceTheGradientInRound5
    (message,) = {name for name, one in found.items() if one.adjacency == "function"}
    assert (found[message].verdict is Verdict.UNSUPPORTED) == faulty
    assert found[message].rounds == ((2, 6) if faulty else (2,))


def test_agents_are_compared_in_rounds_that_nobody_asked_for(measured) -> None:
    """Its largest distance is found in any of them."""
    found = measured(DPPS(n_rounds=5, batch_size=3), "agent-identity", Sensitivity(rounds=(2,)))
    rounds = found[""].metrics[Name.ROUNDS]
    assert (rounds.value, rounds.n) == (5, 5)
    (one,) = (one for one in found.values() if one.adjacency == "agent-identity")
    assert one.rounds == (1, 2, 3, 4, 5)


def test_a_linear_change_attains_delta_alpha_in_every_round(measured) -> None:
    defense = SensitivityReduced(n_rounds=4, batch_size=3, allow_outside_theory=True)
    series = measured(defense, "function", Sensitivity(rounds=(2, 4), steps=0))["z"].series
    for kind in ("one coordinate", "all coordinates"):
        assert series[kind] == pytest.approx([defense.alpha(k - 1) for k in (2, 4)], rel=1e-9)


def test_sensors_have_functions_to_change_and_no_records(streams) -> None:
    problem = SensorFusion.draw(streams, 4)
    defense = SensitivityReduced(n_rounds=6, allow_outside_theory=True)
    setting = Setting(build_graph("ring", 4), (1,) * 4, problem.d)
    findings = {}
    for adjacency in ("function", "add-remove"):
        claims = (Claim(text="a claim", epsilon=1.0, adjacency=adjacency),)
        context = AttackContext(problem, setting, defense, claims, streams, None)
        if adjacency == "add-remove":
            with pytest.raises(ConfigError, match="no records"):
                ATTACK.measure(context, ThreatModel(name="anybody"), lambda done, total: None)
        else:
            findings = ATTACK.measure(context, ThreatModel(name="anybody"), lambda *_: None)
    assert findings[0].metrics["measured over stated"].value == pytest.approx(1, rel=1e-9)


def test_the_distance_of_agents_is_that_of_a_slow_reference(setting_of, streams, measured) -> None:
    """H = S + E of every agent, and S_i = 2 C' ||E_i||_1 in rounds 1 and 5, pair by pair."""
    problem, setting = setting_of("ring", 4, "logistic")
    defense = DPPS(n_rounds=5, batch_size=3, protocol=Protocol(sync_interval=4))
    found = measured(defense, "agent-identity")["m"]
    state = defense.start(problem.initial(streams).double(), setting)
    spread, estimate = [], {}
    for k in range(1, 6):
        gradient = problem.gradient(streams, k, 3)
        E = -0.1 * gradient(state.S / state.a)
        H = [state.S[i] + E[i] for i in range(4)]
        spread.append(max((H[i] - H[j]).abs().sum().item() for i in range(4) for j in range(4)))
        estimate[k] = 2 * 0.95 * max(E[i].abs().sum().item() for i in range(4))
        state = defense.step(state, k, setting.network.at(k), gradient, Noise(streams, k)).state
    assert found.series["two agents"] == pytest.approx(spread, rel=1e-12)
    for k in (1, 5):
        assert found.series["stated bound"][k - 1] == pytest.approx(estimate[k], rel=1e-12)


def test_an_estimate_below_the_distance_is_caught(measured) -> None:
    """Right after a restart with C' < 1: the true distance can be 2 ||E||, the estimate is less."""
    small = Protocol(sensitivity_factor=0.3, sync_interval=0)
    found = measured(DPPS(n_rounds=4, batch_size=3, protocol=small), "agent-identity")
    assert caught(found) == {"m"}
    real = Protocol(sensitivity_factor=0.3, sync_interval=0, estimator="real")
    assert not caught(measured(DPPS(n_rounds=4, batch_size=3, protocol=real), "agent-identity"))


def test_dpps_leaks_a_record_through_scale_and_scalar(measured) -> None:
    found = measured(PartPSP(n_rounds=1, batch_size=3))
    assert caught(found) == {"sens", ""}
    assert 'the scale of the noise on "m" depends on the data' in found[""].notes
    assert any("bit-identical in all worlds: a" in note for note in found[""].notes)


@pytest.mark.parametrize("adjacency", ["function", "agent-identity"])
def test_an_adjacency_the_defense_ignores_is_refused(adjacency, measured) -> None:
    with pytest.raises(ConfigError, match=f"claim.adjacency: {adjacency}.*states none"):
        measured(DPDPSGD(**SGD), adjacency)


CONFIG = (
    images_audit("logistic", "dpdl", 2)
    + """\
[[threat_model]]
name = "eavesdropper"
[[threat_model]]
name = "agent 2"
kind = "curious"
agents = [2]
[[attack]]
name = "sensitivity"
points = 2
restarts = 3
steps = 5
"""
)


def test_an_audit_measures_sensitivity_once_and_draws_it(tmp_path, monkeypatch, report) -> None:
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path, width=4)
    (tmp_path / "audit.toml").write_text(CONFIG)
    config = AuditConfig.from_toml(tmp_path / "audit.toml")
    result = run_audit(config, tmp_path / "run", Runtime(cores=1), CONFIG)
    found = [f for f in result.findings if f.kind == "sensitivity"]
    assert [f.message for f in found] == ["cross_gradient", "v", "x_tilde", None, None]
    assert not any(f.verdict for f in found)
    report = (tmp_path / "run" / "report.html").read_text()
    assert report.count("<figcaption>How far ") == 3
    drawn = [sensitivity_by_round(found[0], "a") for _ in range(2)]
    assert drawn[0] == drawn[1]


def test_a_series_without_anything_above_0_has_no_figure() -> None:
    finding = Finding(
        role=Role.SENSITIVITY,
        kind="sensitivity",
        title="nothing",
        metrics={"measured": Metric(value=0.0)},
        series={"round": (1, 2), "natural": (0.0, float("nan"))},
    )
    assert sensitivity_by_round(finding, "a") is None


def test_the_victim_is_the_first_agent_with_data(drawn_setting, streams) -> None:
    """With a server that is not agent 0; and in some rounds it takes no step."""
    problem, setting = drawn_setting("server", 5, "logistic", participation=0.5)
    defense = MAPA(**SGD | {"n_rounds": 2}).calibrate(setting)
    context = AttackContext(problem, setting, defense, (), streams, None)

    def findings(attack: Sensitivity) -> list[Finding]:
        return attack.measure(context, ThreatModel(name="anybody"), lambda done, total: None)

    assert any("agent 1 is the victim" in note for f in findings(ATTACK) for note in f.notes)
    with pytest.raises(ConfigError, match="agent 0 is a server"):
        findings(ATTACK.model_copy(update={"victim": 0}))
