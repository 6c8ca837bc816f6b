"""Columns of a finding: what each target gave away, and how the search for it went."""

from collections.abc import Sequence

from torch import Tensor

from dpaudit.defense.contract import Target
from dpaudit.files.finding import Column, Name, restart_column

from .image_metrics import Scores, psnr_alone
from .observed import Trace

Columns = dict[str, tuple[float, ...]]


def scored_targets(targets: Sequence[Target], scores: Scores) -> Columns:
    """One row for each target, in the order of the strips: whose batch it is, and the scores."""
    return {
        Column.VICTIM: tuple(target.victim for target in targets),
        Name.MSE: tuple(scores.mse.tolist()),
        Name.PSNR: tuple(scores.psnr.tolist()),
        Name.SSIM: tuple(scores.ssim.tolist()),
    }


def restarts(losses: Tensor) -> Columns:
    """The attacker's loss of each restart [m, n_restarts], and which was chosen by it."""
    chosen = losses.argmin(dim=1)
    columns: Columns = {Name.LOSS: tuple(losses.amin(dim=1).tolist())}
    if losses.shape[1] == 1:
        return columns
    columns |= {restart_column(i + 1): tuple(row.tolist()) for i, row in enumerate(losses.T)}
    return columns | {Column.CHOSEN_RESTART: tuple((chosen + 1).tolist())}


def course(trace: Trace | None, truth: Tensor, value_range: tuple[float, float]) -> Columns:
    """Means over the targets that a search was made for, by iteration; none: no columns.

    The PSNR, against ``truth`` [m, batch_size, ...], is the scorer's alone: the attacker cannot
    see it.
    """
    if trace is None:
        return {}
    losses = trace.losses.double()
    searched = ~losses.isnan().any(dim=1)
    if not searched.any():
        return {}
    images, true = trace.images[searched], truth[searched]
    psnr = [float(psnr_alone(true, now, value_range).mean()) for now in images.unbind(1)]
    return {
        Column.ITERATION: tuple(float(k) for k in trace.iterations),
        Name.LOSS: tuple(losses[searched].mean(dim=0).tolist()),
        Name.PSNR: tuple(psnr),
    }
