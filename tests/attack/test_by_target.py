"""A row for each target: the means of a finding are of them, and a search ends where it scored."""

import dataclasses

import pytest
import torch

from dpaudit.attack import ObservedGradients, Reconstruction, ReconstructionAttack, Task, Trace
from dpaudit.attack.image_metrics import score
from dpaudit.attack.scenario import course, restarts
from dpaudit.files.finding import Column, Finding, Name, Role, restart_column
from dpaudit.files.threat import ThreatModel
from dpaudit.progress import OnStep
from dpaudit.rng import Streams

from .test_reach import context

RANGE = (-1.0, 1.0)


class Fades(ReconstructionAttack):
    """Guesses noise that gets darker, as if it had searched."""

    def reconstruct(
        self, observed: ObservedGradients, task: Task, streams: Streams, on_step: OnStep
    ) -> Reconstruction:
        m = len(observed.gradients)
        noise = torch.rand(
            (m, 1, observed.batch_size, *task.shape), generator=torch.Generator().manual_seed(0)
        )
        images = noise * torch.tensor([1.0, 0.5, -1.0]).view(1, 3, 1, 1, 1, 1)
        losses = torch.arange(2.0 * m).view(m, 2).flip(1) + 1
        trace = Trace(
            (0, 3, 9), torch.stack([3 * losses[:, 1], losses[:, 0], losses[:, 1]], 1), images
        )
        labels = torch.zeros(m, observed.batch_size, dtype=torch.long)
        return Reconstruction(images[:, -1], labels, losses, trace=trace)


@pytest.fixture
def findings(tmp_path) -> list[Finding]:
    on, _, nosy = context(tmp_path)
    attack = Fades(message=nosy.message, rounds=(2,), targets=4, batch_sizes=("training",))
    found = attack.measure(on, ThreatModel(name="eve"), lambda done, total: None)
    return [finding for finding in found if finding.role is Role.RECONSTRUCTION]


def test_each_mean_is_that_of_a_row_for_each_target(findings: list[Finding]) -> None:
    for finding in findings:
        n = len(finding.series[Column.VICTIM])
        assert n == 4
        names = [name for name in finding.metrics if name in finding.series]
        assert {Name.MSE, Name.PSNR, Name.SSIM} <= set(names)
        for name in names:
            assert finding.metrics[name].value == pytest.approx(sum(finding.series[name]) / n)
            assert finding.metrics[name].n == n


def test_the_search_ends_at_the_scores_of_the_finding(findings: list[Finding]) -> None:
    own, *blind = findings
    assert own.trace[Column.ITERATION] == (0, 3, 9)
    assert own.trace[Name.PSNR][-1] == pytest.approx(own.metrics[Name.PSNR].value)
    assert own.trace[Name.LOSS][-1] == pytest.approx(own.metrics[Name.LOSS].value)
    assert len(set(own.trace[Name.PSNR])) == 3
    assert all(other.trace == {} for other in blind)


def test_every_restart_has_its_loss_and_the_least_is_chosen(
    findings: list[Finding],
) -> None:
    series = findings[0].series
    rows = zip(series[restart_column(1)], series[restart_column(2)], strict=True)
    assert [row.index(min(row)) + 1 for row in rows] == list(series[Column.CHOSEN_RESTART])
    assert series[Name.LOSS] == series[restart_column(2)]
    assert list(restarts(torch.ones(3, 1))) == [Name.LOSS]


def test_victims_without_a_search_are_not_in_its_course() -> None:
    truth = torch.rand(3, 2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    images = torch.stack([truth.flip(1), 0 * truth], dim=1)  # in another order, then grey
    losses = torch.tensor([[1.0, 2.0], [torch.nan, torch.nan], [3.0, torch.inf]])
    found = course(Trace((0, 1), losses, images), truth, RANGE)
    assert found[Name.LOSS] == (2.0, torch.inf)
    expected = score(truth[[0, 2]], 0 * truth[[0, 2]], RANGE).psnr.mean()
    assert found[Name.PSNR] == pytest.approx((60.0, expected))
    none = dataclasses.replace(Trace((0, 1), losses, images), losses=losses * torch.nan)
    assert course(none, truth, RANGE) == course(None, truth, RANGE) == {}
