"""A row for each target: the means of a finding are of them, and a search ends where it scored."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import t

from dpaudit.attack import ObservedGradients, Reconstruction, ReconstructionAttack, Task, Trace
from dpaudit.attack.image_metrics import score
from dpaudit.attack.scenario import Truth, course, restarts, scored
from dpaudit.data.datasets import Dataset
from dpaudit.defense import Target
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
    found = course(Trace((0, 1), losses, images), truth, RANGE, range(3))
    assert found[Name.LOSS] == (2.0, torch.inf)
    expected = score(truth[[0, 2]], 0 * truth[[0, 2]], RANGE).psnr.mean()
    assert found[Name.PSNR] == pytest.approx((60.0, expected))
    none = dataclasses.replace(Trace((0, 1), losses, images), losses=losses * torch.nan)
    assert course(none, truth, RANGE, range(3)) == course(None, truth, RANGE, range(3)) == {}


@pytest.mark.parametrize("links", [1, 3])
def test_a_batch_of_several_gradients_counts_once(links: int) -> None:
    """Means and intervals are those of four batches, however many links reveal each of them."""
    rng = torch.Generator().manual_seed(3)
    x = 2 * torch.rand(12, 1, 8, 8, generator=rng) - 1
    data = Dataset("mine", x, torch.arange(12) % 2, x, torch.arange(12) % 2, ("a", "b"), RANGE)
    victims = list(range(4)) * links
    images = 2 * torch.rand(4 * links, 1, 1, 8, 8, generator=rng) - 1
    scenario: Any = SimpleNamespace(
        attack_name="fades", message="m", threat_model=SimpleNamespace(name="eve"), name="one",
        world="defense", batch_size=1,
    )  # fmt: skip
    run: Any = SimpleNamespace(write=lambda path, content: None)
    losses, labels = torch.rand(4 * links, 1, generator=rng), torch.zeros(4 * links, 1).long()
    targets = [Target(2, victim, i) for i, victim in enumerate(victims)]
    truth = Truth((2,), targets, x[victims][:, None], data.y[victims][:, None])
    own, *blind = scored(
        scenario, Reconstruction(images, labels, losses), truth, data, Streams(0), run
    )
    for finding in (own, *blind):
        assert len(finding.series[Column.VICTIM]) == 4 * links
        for name in finding.metrics:
            means = np.reshape(finding.series[name], (links, 4)).mean(axis=0)
            low, high = t.interval(0.95, 3, means.mean(), means.std(ddof=1) / 2)
            metric = finding.metrics[name]
            assert (metric.value, metric.n) == (pytest.approx(means.mean()), 4)
            if name in (Name.MSE, Name.SSIM, Name.LOSS):
                assert (metric.low, metric.high) == (pytest.approx(low), pytest.approx(high))
    assert any("12 gradients of 4 batches" in note for note in own.notes) is (links == 3)
