"""What a reconstruction is handed: estimates from the whole view beside the papers' observables."""

from pathlib import Path
from typing import Any

import pytest
import torch

from dpaudit.attack import ObservedGradients, Reconstruction, ReconstructionAttack, Task
from dpaudit.attack.victims import window_of
from dpaudit.defense.view import View
from dpaudit.errors import DpauditError
from dpaudit.files.config import AuditConfig
from dpaudit.files.result import AuditResult
from dpaudit.game.estimating.estimate import GradientEstimate, LinearWindow
from dpaudit.pipeline.run import Runtime, run_audit
from dpaudit.progress import OnStep
from dpaudit.registry import load_plugin
from dpaudit.rng import Streams
from tests.small_audits import digits_config, write_images

HANDED: list[ObservedGradients] = []


class Keeps(ReconstructionAttack):
    """Answers with grey images, and keeps what it was handed."""

    def reconstruct(
        self, observed: ObservedGradients, task: Task, streams: Streams, on_step: OnStep
    ) -> Reconstruction:
        HANDED.append(observed)
        m, B = observed.n_secrets, observed.batch_size
        return Reconstruction(
            torch.zeros(m, B, *task.shape), torch.zeros(m, B).long(), torch.zeros(m, 1)
        )


class KeepsEachAlone(ReconstructionAttack):
    """Does not look at ``secrets``."""

    def reconstruct(
        self, observed: ObservedGradients, task: Task, streams: Streams, on_step: OnStep
    ) -> Reconstruction:
        m, B = len(observed.models), observed.batch_size
        return Reconstruction(
            torch.zeros(m, B, *task.shape), torch.zeros(m, B).long(), torch.zeros(m, 1)
        )


def config(message: str, **options: Any) -> AuditConfig:
    return AuditConfig.from_dict(
        {
            "seed": 3,
            "data": {"name": "digits", "n_agents": 4},
            "graph": {"name": "ring"},
            "model": {"name": "logistic"},
            "defense": {
                "name": "dp-dpsgd", "n_rounds": 4, "batch_size": 8, "noise_multiplier": 1.0
            },
            "threat_model": [{"name": "eavesdropper"}],
            "attack": [
                {
                    "name": "tests.attack.test_victims:Keeps", "message": message, "rounds": [3],
                    "targets": 4, "batch_sizes": ["training"], **options,
                }
            ],
        }
    )  # fmt: skip


def handed(message: str, folder: Path, **options: Any) -> list[ObservedGradients]:
    HANDED.clear()
    run_audit(of_images(config(message, **options), folder), folder / "run", Runtime(cores=1))
    return list(HANDED)


def of_images(config: AuditConfig, folder: Path) -> AuditConfig:
    """Of 60 images in the place of 1,438 digits."""
    folder.mkdir(exist_ok=True)
    write_images(folder)
    data = {"path": str(folder / "images.npz"), "n_agents": 4}
    return AuditConfig.from_dict({**config.model_dump(exclude_unset=True), "data": data})


@pytest.mark.slow
def test_the_view_tells_what_the_observable_does_and_its_noise(tmp_path: Path) -> None:
    noisy, bare = handed("view", tmp_path / "view")
    by_hand, _ = handed("noisy-gradient", tmp_path / "by hand")
    assert (by_hand.std, noisy.batch_size, bare.batch_size) == (None, 8, 8)
    torch.testing.assert_close(noisy.gradients, by_hand.gradients, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(noisy.models, by_hand.models, rtol=1e-4, atol=1e-5)
    defense = load_plugin("defenses", "dp-dpsgd")(n_rounds=4, batch_size=8, noise_multiplier=1.0)
    assert noisy.std is not None
    assert noisy.std.tolist() == pytest.approx([defense.clip_norm / 8] * 4, rel=1e-3)
    assert bare.std is not None
    assert float(bare.std.max()) < 1e-3


def test_a_round_of_another_batch_size_ends_with_itself(tmp_path: Path) -> None:
    noisy, _ = handed("view", tmp_path, batch_sizes=[2])
    assert noisy.batch_size == 2
    assert list(window_of("view", 3, 4, True)) == [2, 3]
    assert list(window_of("view", 3, 4, False)) == [2, 3, 4]
    assert list(window_of("view", 1, 1, False)) == [1]


def test_a_message_that_is_not_offered_is_refused() -> None:
    with pytest.raises(DpauditError, match='offers no "veiw" .did you mean "view"'):
        config("veiw")


def test_unmixed_gradients_are_taken_at_the_initial_model(tmp_path: Path) -> None:
    *_, bare = handed("unmixed", tmp_path)
    assert bare.std is not None
    torch.testing.assert_close(bare.models[0], bare.models[-1])
    assert 1 <= len(bare.models) <= 4


ALL = 15  # images that each of four agents holds
DPDL = {"name": "dpdl", "n_rounds": 4, "batch_size": 8, "noise_multiplier": 1.0}


def dpdl(folder: Path, **options: Any) -> AuditResult:
    """Four agents on a ring, each of which the eavesdropper hears answer at three models."""
    HANDED.clear()
    data = config("view", **{"targets": 2, **options}).model_dump(exclude_unset=True)
    attack = data["attack"][0] | data["attack"][0].pop("options", {})
    changed = {"defense": DPDL, "attack": [attack]}
    given = of_images(AuditConfig.from_dict(data | changed), folder)
    return run_audit(given, folder / "run", Runtime(cores=1))


@pytest.mark.slow
def test_gradients_at_the_models_of_neighbours_are_joined(tmp_path: Path) -> None:
    result = dpdl(tmp_path / "links", join="links", rounds=[2, 3])
    noisy = HANDED[0]
    assert noisy.secrets is not None
    assert noisy.n_secrets == 4  # two victims in each of two rounds
    assert noisy.secrets.bincount().tolist() == [3, 3, 3, 3]
    assert noisy.pooled().models.shape == noisy.models.shape  # all models differ
    found = [f for f in result.findings if f.world == "defense" and f.role == "reconstruction"]
    assert [f.rounds for f in found] == [(2,), (3,)]
    assert all(f.metrics["psnr"].n == 2 for f in found)
    assert all("each batch from 3 gradients of its round, joined" in f.notes for f in found)
    dpdl(tmp_path / "apart", rounds=[2, 3])
    assert HANDED[0].secrets is None
    assert len(HANDED[0].models) == 4


def test_equal_initial_models_make_one_average_of_all_links(tmp_path: Path) -> None:
    dpdl(tmp_path, join="links", rounds=[1])
    assert HANDED[0].most_joined > 1
    assert HANDED[0].pooled().most_joined == 1


def test_rounds_are_joined_where_their_batches_are_all_records(tmp_path: Path) -> None:
    result = dpdl(tmp_path, join="rounds", rounds=[2, 3], batch_sizes=[ALL])
    assert HANDED[0].secrets is not None
    assert HANDED[0].secrets.bincount().tolist() == [6, 6]
    found = [f for f in result.findings if f.role == "reconstruction"]
    assert {f.rounds for f in found} == {(2, 3)}
    note = (
        "each batch from 6 gradients of all these rounds, joined; that its records recur is given"
    )
    assert any(text.startswith(note) for text in found[0].notes)


def test_rounds_are_not_joined_where_recurrence_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(
        DpauditError, match=r"attack.join: .* which records of smaller batches recur is not"
    ):
        dpdl(tmp_path, join="rounds", batch_sizes=["training"])
    assert not HANDED


def test_only_gradients_of_a_view_are_joined() -> None:
    with pytest.raises(DpauditError, match='join is for message = "view"'):
        config("noisy-gradient", join="links")


def test_an_attack_that_forgets_what_is_joined_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DpauditError, match="handed back 6 reconstructions of 2 batches"):
        dpdl(tmp_path, join="links", name="tests.attack.test_victims:KeepsEachAlone")


@pytest.mark.slow
def test_gradient_inversion_joins_links_unless_told_otherwise(tmp_path: Path) -> None:
    quick = {"name": "gradient-inversion", "iterations": 1, "rounds": [2], "batch_sizes": [1]}
    for join, joined in ({}, True), ({"join": "nothing"}, False):
        result = dpdl(tmp_path / str(joined), **quick, **join)
        found = [f for f in result.findings if f.world == "defense" and f.role == "reconstruction"]
        assert [any("joined" in note for note in f.notes) for f in found] == [joined]


def test_a_gradient_partly_kept_at_home_is_out_of_reach(tmp_path: Path) -> None:
    """PartPSP sends some layers alone: neither the rest of the gradient nor its model is known."""
    own = {"name": "partpsp", "n_rounds": 3, "batch_size": 4, "share": ["1.bias"]}
    attacks = (
        {"name": "gradient-inversion", "message": "view", "rounds": [2], "batch_sizes": [4]},
        {"name": "membership", "rounds": [2]},
    )
    config = digits_config(*attacks, model="logistic", n_agents=4, defense=own)
    found = run_audit(config.model_copy(update={"claim": ()}), tmp_path, Runtime(cores=1)).findings
    attacked = [f for f in found if f.attack is not None]
    assert {f.attack for f in attacked} == {"gradient-inversion", "membership"}
    for finding in attacked:
        assert not finding.metrics
        assert "only 10 of 650 parameters are sent" in finding.notes[0]


def test_no_more_victims_are_estimated_than_are_attacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, real = list[tuple[int, int]](), LinearWindow.estimates

    def counted(self: LinearWindow, view: View, round: int, agent: int) -> list[GradientEstimate]:
        asked.append((round, agent))
        return real(self, view, round, agent)

    monkeypatch.setattr(LinearWindow, "estimates", counted)
    given = of_images(config("view", rounds=[2], targets=1), tmp_path)
    run_audit(given, tmp_path / "run", Runtime(cores=1))
    assert len(asked) == 2  # one in each world
    assert len(set(asked)) == 1
