"""The clip norm of each round, as a defense states it and as a reconstruction uses it."""

from pathlib import Path

import pytest

from dpaudit.attacks.gradient_inversion.attack import GradientInversion
from dpaudit.defense.contract import Gradient
from dpaudit.defense.noise import Noise
from dpaudit.files.config import AuditConfig
from dpaudit.pipeline.run import Runtime, run_audit
from dpaudit.registry import load_plugin


class Spy(Gradient):
    """Notes the norms that it is asked to clip to."""

    def __init__(self, gradient: Gradient) -> None:
        self.gradient, self.batch_size = gradient, gradient.batch_size
        self.asked: list[float] = []

    def __call__(self, X, holders=None):
        return self.gradient(X, holders)

    def clipped_sum(self, X, clip_norm, holders=None, norm=2):
        self.asked += [clip_norm] if norm == 2 else []
        return self.gradient.clipped_sum(X, clip_norm, holders, norm)


DEFENSES = [
    ("dp-dpsgd", {"clip_norm": 0.7, "noise_multiplier": 1.0}),
    ("dp-dpsgd", {"clip_norm": 0.7, "noise_multiplier": 1.0, "perturb": "model"}),
    ("dpdl", {"clip_norm": 0.7, "noise_multiplier": 1.0}),
    ("d-psgd", {}),
    *(("dyn-d2p", {"schedule": schedule, "noise_multiplier": 1.0}) for schedule in ("dyn", "const")),
    ("adp-vrsgp", {"clip_decay": 0.5, "noise_multipliers": (1.0,)}),
    ("adp2sgd", {"noise_multiplier": 1.0}),
    ("mapa", {"noise_multiplier": 1.0, "stage_lengths": [1, 2], "learning_rates": [0.2, 0.1]}),
    ("adp-vrsgp", {"clip_decay": 0.5, "noise_multipliers": (1.0,), "clip": "batch"}),
]  # fmt: skip


@pytest.mark.parametrize("name, options", DEFENSES)
def test_a_defense_states_its_clip_norm_in_each_round(setting_of, streams, name, options) -> None:
    problem, setting = setting_of("complete", 4, "logistic")
    defense = load_plugin("defenses", name)(n_rounds=4, batch_size=3, **options)
    state = defense.start(problem.initial(streams).double(), setting)
    for k in range(1, 5):
        spy = Spy(problem.gradient(streams, k, 3))
        state = defense.step(state, k, setting.network.at(k), spy, Noise(streams, k)).state
        stated = defense.clip_norm_in(k)
        assert spy.asked == ([] if stated is None else [stated])


AUDIT = {
    "data": {"name": "digits", "n_agents": 4},
    "graph": {"name": "complete"},
    "model": {"name": "logistic"},
    "attack": [
        {
            "name": "gradient-inversion",
            "message": "noisy-gradient",
            "rounds": [4, 2],
            "targets": 2,
            "batch_sizes": [1],
            "restarts": 1,
            "iterations": 2,
        }
    ],
}


@pytest.mark.usefixtures("no_report")
@pytest.mark.parametrize(
    "defense, norms",
    [
        ({"name": "dyn-d2p", "clip_norm": 8.0, "clip_decay": 4.0, "noise_multiplier": 0.1},
         [(8.0 * 4 ** (-1 / 4), 2), (8.0 * 4 ** (-3 / 4), 2)]),
        pytest.param({"name": "dp-dpsgd", "clip_norm": 8.0, "noise_multiplier": 0.1}, [(8.0, 4)],
                     marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_rounds_of_one_clip_norm_are_inverted_together(
    tmp_path: Path, monkeypatch, defense, norms
) -> None:
    seen: list[tuple[float, int]] = []
    reconstruct = GradientInversion.reconstruct

    def spy(self, observed, task, streams, on_step):
        seen.append((observed.clip_norm, len(observed.models)))
        return reconstruct(self, observed, task, streams, on_step)

    monkeypatch.setattr(GradientInversion, "reconstruct", spy)
    options = {**defense, "n_rounds": 4, "batch_size": 4}
    config = AuditConfig.from_dict({**AUDIT, "defense": options})
    result = run_audit(config, tmp_path / "run", Runtime(cores=1))
    assert seen[: len(norms)] == [(pytest.approx(norm), n) for norm, n in norms]
    assert len(seen) == 2 * len(norms)  # with noise and without
    attacked = [f for f in result.findings if f.kind == "reconstruction" and f.metrics]
    assert [f.rounds for f in attacked if f.world == "no-defense"] == [(2,), (4,)]
