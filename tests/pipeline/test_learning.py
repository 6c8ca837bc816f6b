"""Runs that diverge or stand still: refused where numbers end, and said where they do not."""

import math

import pytest
import torch

from dpaudit.data.datasets import Dataset
from dpaudit.errors import RunError
from dpaudit.files.config import AuditConfig
from dpaudit.files.result import AuditResult, Curve
from dpaudit.files.verdict import Verdict
from dpaudit.pipeline.notes import learning_notes, problem_notes
from dpaudit.pipeline.run import Runtime, run_audit
from dpaudit.training.loaded_problem import LoadedProblem


def audited(tmp_path, attacks: tuple[dict[str, object], ...] = (), **options: float) -> AuditResult:
    config = {
        "data": {"name": "digits", "n_agents": 4},
        "graph": {"name": "ring"},
        "model": {"name": "logistic"},
        "defense": {"name": "dp-dpsgd", "n_rounds": 2, "noise_multiplier": 3.0} | options,
        "claim": [{"text": "Theorem 1", "epsilon": 8.0, "delta": 1e-5}],
        "attack": attacks,
    }
    return run_audit(AuditConfig.from_dict(config), tmp_path / "run", Runtime(cores=1))


def of_training(result: AuditResult) -> list[str]:
    """The notes on whether it learned, of all that a result has."""
    return [note for note in result.notes if note.startswith("Training of ")]


@pytest.mark.parametrize("learning_rate", [1e38, 1e90])
def test_a_run_whose_numbers_end_is_one_line_and_no_verdict(tmp_path, learning_rate) -> None:
    """A correct mechanism was called unsupported: its messages, infinite, moved infinitely far."""
    sensitivity = {"name": "sensitivity", "points": 2, "restarts": 1, "steps": 1}
    with pytest.raises(RunError, match='training, defense: round . has a message "x" that is inf'):
        audited(tmp_path, (sensitivity,), learning_rate=learning_rate)


def test_a_run_that_diverges_in_finite_numbers_is_said_to(tmp_path, report) -> None:
    result = audited(tmp_path, learning_rate=1e10)
    assert result.verdict is Verdict.SUPPORTED
    assert [note.split(":")[0] for note in of_training(result)] == [
        'Training of "defense" diverged',
        'Training of "no-defense" diverged',
    ]
    report = (tmp_path / "run" / "report.html").read_text()
    assert "diverged: its test loss went from" in report


@pytest.mark.slow
def test_a_run_in_which_nothing_moves_is_said_to(tmp_path) -> None:
    result = audited(tmp_path, clip_norm=1e-40)
    assert 'Training of "defense" changed nothing' in of_training(result)[0]


@pytest.mark.slow
def test_a_run_that_learns_has_no_warning(tmp_path) -> None:
    assert of_training(audited(tmp_path)) == []


@pytest.mark.parametrize(
    "last, word", [(math.nan, "diverged"), (3000.0, "diverged"), (1500.0, ""), (1.5, "")]
)
def test_a_loss_that_is_no_number_is_divergence(last, word) -> None:
    curve = Curve(
        rounds=(1,),
        loss=((last, last),),
        accuracy=(),
        consensus_distance=(0.0,),
        initial_loss=(2.0, 2.0),
    )
    said = list(learning_notes({"defense": curve}))
    assert len(said) == bool(word)
    assert all(word in note.text for note in said)
    assert not list(learning_notes({"defense": curve.model_copy(update={"initial_loss": ()})}))


@pytest.mark.parametrize("distinct, warned", [(3, True), (10, True), (11, False), (20, False)])
def test_records_that_are_mostly_copies_are_said_to_be(distinct, warned) -> None:
    x = torch.arange(20).clamp(max=distinct - 1).float()[:, None].expand(20, 3)
    y = torch.arange(20) % 2
    learned = LoadedProblem(None, Dataset("own", x, y, x, y, ("a", "b")), "own", "", (), 20, 3, ())
    said = list(problem_notes(learned))
    assert len(said) == warned
    assert all(f"Of 20 records {distinct} are distinct" in note.text for note in said)
    assert not list(problem_notes(learned._replace(dataset=None)))
