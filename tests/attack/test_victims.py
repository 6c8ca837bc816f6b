"""What a reconstruction is handed: estimates from the whole view beside the papers' observables."""

from pathlib import Path
from typing import Any

import pytest
import torch

from dpaudit.attack import Observed, Reconstruction, ReconstructionAttack, Task
from dpaudit.attack.victims import window_of
from dpaudit.errors import DpauditError
from dpaudit.files.config import AuditConfig
from dpaudit.pipeline.run import Runtime, run_audit
from dpaudit.progress import OnStep
from dpaudit.registry import load_plugin
from dpaudit.rng import Streams

HANDED: list[Observed] = []


class Keeps(ReconstructionAttack):
    """Answers with grey images, and keeps what it was handed."""

    def reconstruct(
        self, observed: Observed, task: Task, streams: Streams, on_step: OnStep
    ) -> Reconstruction:
        HANDED.append(observed)
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


def handed(message: str, folder: Path, **options: Any) -> list[Observed]:
    HANDED.clear()
    run_audit(config(message, **options), folder, Runtime(cores=1))
    return list(HANDED)


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


def test_a_round_played_for_another_batch_size_is_read_without_the_next_one(tmp_path: Path) -> None:
    noisy, _ = handed("view", tmp_path, batch_sizes=[2])
    assert noisy.batch_size == 2
    assert list(window_of("view", 3, 4, True)) == [2, 3]
    assert list(window_of("view", 3, 4, False)) == [2, 3, 4]
    assert list(window_of("view", 1, 1, False)) == [1]


def test_a_message_that_is_not_offered_is_refused_with_the_view_among_what_is() -> None:
    with pytest.raises(DpauditError, match='offers no "veiw" .did you mean "view"'):
        config("veiw")


def test_unmixed_gradients_are_taken_at_the_initial_model(tmp_path: Path) -> None:
    *_, bare = handed("unmixed", tmp_path)
    assert bare.std is not None
    torch.testing.assert_close(bare.models[0], bare.models[-1])
    assert 1 <= len(bare.models) <= 4
