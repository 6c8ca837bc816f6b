"""Reference runs and attacked runs of one defense, many at once on stacked tensors.

Each run deals the records anew: those of the training set and those of a half of the test set
change places at random within their class, so that every agent keeps its number of records of each
class, whatever the partition; labels at positions are no class. The real training set is one such
draw. The other half of the test
set is public: it is in no run. Records of the adversary's own agents stay where they are.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import dpaudit.attack as da
import dpaudit.defense as dp
from dpaudit.accounting.privacy_loss import Array
from dpaudit.defense.view import seen_links

from .scores import Mask

Indices = NDArray[np.int64]
AT_ONCE = 2**28  # bytes of the models of runs that are trained together, at most


class RecordAssignment(NamedTuple):
    """Which records the agents of each run hold."""

    held: Tensor  # [n_runs, n_agents, most], places as ``Classification.held`` has them
    records: Indices  # [n_records], those that change places, of training and test set in one list
    included: Mask  # [n_runs, n_records]
    public: Indices  # [n_public], records that are in no run

    def part(self, runs: slice) -> "RecordAssignment":
        return self._replace(held=self.held[runs], included=self.included[runs])


class RecordStatistics(NamedTuple):
    """What an adversary sees of records in each run: F statistics after each round."""

    records: Array  # [n_runs, n_records, n_rounds, F]
    public: Array  # [n_runs, n_public, n_rounds, F]


def deal(
    problem: da.Classification, n_runs: int, own: tuple[int, ...], rng: np.random.Generator
) -> RecordAssignment:
    """Records for each run; those of the agents ``own`` stay where they are."""
    data, (held, there) = problem.dataset, problem.held
    n, m = len(data.x), len(data.x_test)
    mixed = rng.permutation(m)
    left_out, public = np.sort(mixed[: m // 2]) + n, np.sort(mixed[m // 2 :]) + n
    agents = np.array([i for i in range(len(held)) if i not in own], dtype=np.int64)
    dealt_out = np.zeros(held.shape, dtype=bool)
    dealt_out[agents] = there.numpy()[agents]
    places = np.concatenate([held.numpy()[dealt_out], left_out])  # record at each place
    labels = torch.cat([data.y, data.y_test]).numpy()[places]
    if data.n_positions:  # sequences have no class to partition by
        labels = np.zeros(len(places), dtype=np.int64)
    by_class = np.argsort(labels, kind="stable")
    runs = held.expand(n_runs, *held.shape).clone()
    included = np.zeros((n_runs, len(places)), dtype=bool)
    n_held = int(dealt_out.sum())
    for t in range(n_runs):
        order = np.lexsort((rng.random(len(places)), labels))  # by class, in random order within it
        come = np.empty(len(places), dtype=np.int64)
        come[by_class] = order
        included[t, come[:n_held]] = True
        runs[t][torch.from_numpy(dealt_out)] = torch.from_numpy(places[come[:n_held]])
    return RecordAssignment(runs, places, included, public)


def models_seen(
    defense: dp.Defense, threat_model: da.ThreatModel, message: str, k: int, played: dp.Round
) -> Tensor | None:
    """The model [n_runs, d] that the adversary sees in round k; None: it sees none.

    Of several messages that it reads it is the mean, as is the mean of all agents' models.
    """
    if threat_model.has_final_model:
        if k < defense.n_rounds:
            return None
        X = defense.models(played.state)
        return X.mean(dim=-2) if threat_model.model_of is None else X[:, threat_model.model_of]
    sent = played.sent.get(message)
    if sent is None:
        return None
    seen = seen_links(threat_model, sent.senders, sent.receivers)
    agents = torch.tensor(threat_model.agents, dtype=torch.long, device=sent.senders.device)
    seen &= ~torch.isin(sent.senders, agents)
    if sent.readers is not None:
        seen &= torch.isin(sent.readers, agents)
    rows = sent.rows[seen].unique()
    return sent.payload[:, rows].mean(dim=1) if len(rows) else None


def statistics(
    problem: da.Classification, X: Tensor, records: Indices, with_gradients: bool
) -> Array:
    """[n_models, n, F] of records at models X [n_models, d]: log odds of their labels.

    ``with_gradients``: and the log of the norm of their gradient, which needs the parameters.
    """
    data = problem.dataset
    chosen = torch.from_numpy(records)
    inputs, labels = (
        torch.cat([one, other])[chosen].to(X.device)[None]
        for one, other in ((data.x, data.x_test), (data.y, data.y_test))
    )
    holders = torch.zeros(len(X), dtype=torch.long, device=X.device)
    found = [problem.gradients.log_odds(X, inputs, labels, holders)]
    if with_gradients:
        norms = problem.gradients.norms(X, inputs, labels, holders=holders)
        found.append(norms.clamp(min=torch.finfo(norms.dtype).tiny).log())
    return torch.stack(found, dim=-1).double().cpu().numpy()


def train_shadows(
    context: da.AttackContext,
    defense: dp.Defense,
    dealt: RecordAssignment,
    rounds: tuple[int, ...],
    watched: Callable[[int, dp.Round], Tensor | None],
    with_gradients: bool,
    on_step: da.OnStep,
) -> RecordStatistics | None:
    """Train all runs from the real initial model, which is public; None: no model is seen.

    Args:
        rounds: after which statistics are taken, where ``watched`` gives models.
    """
    problem, setting, streams = context.problem, context.setting, context.streams
    assert isinstance(problem, da.Classification)  # the others were refused
    of_run = da.Streams(context.seed, streams.device)
    n_runs, size = len(dealt.held), _runs_at_once(setting)
    blocks = [slice(start, start + size) for start in range(0, n_runs, size)]
    parts: list[RecordStatistics] = []
    for b, block in enumerate(blocks):
        own, some = streams.child("shadows", b), dealt.part(block)
        fixed = problem.for_trials(of_run, own, len(some.held), 0).holding(some.held)
        seen, after = _so_far(saved := context.checkpoint.stage(b))

        def watch(
            k: int, played: dp.Round, b: int = b, seen: list[RecordStatistics] = seen,
            saved: da.Checkpoint = saved,
        ) -> None:  # fmt: skip
            X = watched(k, played) if k in rounds else None
            if X is not None:
                each = (
                    statistics(problem, X.float(), which, with_gradients)
                    for which in (dealt.records, dealt.public)
                )
                seen.append(RecordStatistics(*each))
            now = partial(_progress, k, played.state, seen)
            (saved.done(now()) if k == defense.n_rounds else saved.keep(now))
            on_step(b * defense.n_rounds + k, len(blocks) * defense.n_rounds)

        da.run_trials(defense, fixed, setting, own, len(some.held), watch, after=after)
        if not seen:
            return None
        parts.append(
            RecordStatistics(*(np.stack(each, axis=2) for each in zip(*seen, strict=True)))
        )
    return RecordStatistics(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def _progress(k: int, state: NamedTuple, seen: list[RecordStatistics]) -> da.Progress:
    """Progress of runs that have played k rounds."""
    tensors = [[torch.from_numpy(each) for each in one] for one in seen]
    return da.Progress.of(k, state._asdict(), tensors)


def _so_far(
    saved: da.Checkpoint,
) -> tuple[list[RecordStatistics], tuple[int, dict[str, Tensor]] | None]:
    """What was seen of runs that were interrupted, and after which round with which state."""
    if (last := saved.last()) is None:
        return [], None
    k, state, seen = last.parts
    return [RecordStatistics(*(each.numpy() for each in one)) for one in seen], (k, state)


def _runs_at_once(setting: dp.Setting) -> int:
    return max(1, AT_ONCE // (4 * setting.n_agents * setting.d))
