"""What an adversary's view and a private quantity were in independent runs, a few columns each.

Vectors of the dimension of a model are projected as soon as they are there, so that memory holds
one block of trials and no more. The projections are principal components fitted to the first
block, without a look at which view belongs to which private value: shuffled trials stay
exchangeable.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import dpaudit.attack as da
import dpaudit.defense as dp
from dpaudit.attack.victims import VIEW, window_of
from dpaudit.defense.transcript import messages_of, tensors_of
from dpaudit.defense.view import seen_links
from dpaudit.game.estimating.estimate import LinearWindow
from dpaudit.information.estimators import varying

Floats = NDArray[np.float64]
ReductionName = Literal["aligned", "pca", "none"]

BLOCK_BYTES = 2**29  # rough limit for the tensors of one block of trials
TENSORS = 8  # tensors as large as all models and messages that a round holds
FEWEST = 16  # trials of a block: fewer fit no components
ROUNDINGS = 4  # a column that varies by no more than so many of them is constant


@dataclass(frozen=True)
class RevealedQuantity:
    """Which message reveals what about whom."""

    message: str  # one of the defense's messages, observables or combinations; or "view"
    private: str
    victim: int
    threat_model: da.ThreatModel
    rounds: tuple[int, ...]
    reduction: ReductionName = "aligned"
    components: int = 1  # components of the private quantity
    view_components: int = 3  # components of the view, at most

    def overhears(self, defense: dp.Defense) -> bool:
        """Whether the gradient is what agents are answered, for the defense names none."""
        return self.private == "gradient" and self.private not in defense.private


class RoundSamples(NamedTuple):
    """One round of all trials; columns that are the same in all of them are left out."""

    private: Floats  # [trials, m]
    view: Floats  # [trials, m']
    reduction: str


class Samples(NamedTuple):
    """Rounds in which there is something to see, and why there is none in others."""

    rounds: dict[int, RoundSamples]
    unseen: dict[int, str]  # round -> what the adversary lacks
    constant: dict[int, str]  # round -> the side that is the same in all trials


def samples(
    question: RevealedQuantity,
    defense: dp.Defense,
    problem: da.TrialProblem,
    setting: dp.Setting,
    streams: da.Streams,
    trials: int,
    on_round: Callable[[], None] = lambda: None,
    checkpoint: da.Checkpoint = da.NO_CHECKPOINT,
) -> Samples:
    """Play ``trials`` independent runs up to the last round asked for, in blocks.

    Raises:
        ConfigError: not even ``FEWEST`` trials fit into memory.
    """
    recorder, every = _Recorder(question, defense, setting), blocks(trials, setting)
    begun, after = recorder.resume(checkpoint.last())
    for i, size in list(enumerate(every))[begun:]:
        own = streams.child("block", i)
        block = problem.for_trials(streams, own, size, question.victim)
        if question.overhears(defense):
            block = GradientListener(block, question.victim)

        def watch(k: int, round: dp.Round, i: int = i, block: da.TrialProblem = block) -> None:
            recorder(k, round, block.answer if isinstance(block, GradientListener) else None)
            checkpoint.keep(lambda: recorder.progress(i, k, round.state._asdict()))
            on_round()

        da.run_trials(
            defense, block, setting, own, size, watch, last_round(question, defense), after
        )
        after = None
        recorder.end_block()
    checkpoint.done(recorder.progress(len(every), 0, {}))
    return recorder.samples()


def first_heard(setting: dp.Setting, threat_model: da.ThreatModel) -> int:
    """The first agent, not the adversary's own, of which it reads a link; else the first honest."""
    honest = [i for i in setting.holders if i not in threat_model.agents]
    graph = setting.network.at(1)
    read = set(graph.senders[seen_links(threat_model, graph.senders, graph.receivers)].tolist())
    return next(iter([*(i for i in honest if i in read), *honest, 0]))


def read_of(name: str, defense: dp.Defense) -> Collection[str]:
    """The messages that are read."""
    if name == VIEW or name in defense.messages:
        return list(defense.messages) if name == VIEW else [name]
    if name in defense.observables:
        return defense.observables[name].needs
    return defense.combinations[name].messages


def heard_rounds(question: RevealedQuantity, defense: dp.Defense) -> int:
    """How many rounds are heard of what a victim does in round 1."""
    return span_of(question.message, defense, 1)[-1]


def span_of(name: str, defense: dp.Defense, k: int) -> range:
    """The rounds whose messages show what is asked of round k; some may lie beyond the run."""
    if name == VIEW:
        return window_of(VIEW, k, defense.n_rounds, False)
    if name in defense.messages:
        return range(k, k + 1)
    if name in defense.observables:
        return range(k + min(map(min, defense.observables[name].needs.values())), k + 1)
    return range(1, k + defense.combinations[name].delay + 1)


def last_round(question: RevealedQuantity, defense: dp.Defense) -> int:
    """The last round that must be played: some messages come after the round that they show."""
    last = max(question.rounds)
    return min(span_of(question.message, defense, last)[-1], defense.n_rounds)


def blocks(trials: int, setting: dp.Setting) -> list[int]:
    """Sizes of blocks of about equal size, bounded in memory."""
    rows = setting.n_agents + setting.network.at(1).n_edges
    each = rows * setting.d * 4 * TENSORS
    fit = BLOCK_BYTES // each
    if fit * 16 < FEWEST:
        raise da.ConfigError(
            "DPA022",
            f"attack: {FEWEST} runs at once of {setting.n_agents} agents with models of "
            f"{setting.d} parameters take {FEWEST * each / 2**30:.0f} GiB; use a smaller model",
        )
    n = -(-trials // max(fit, FEWEST))
    return [trials // n + (i < trials % n) for i in range(n)]


@dataclass(eq=False)
class _Column:
    """Projects one side of one round; fitted to the first block that it meets."""

    m: int
    shift: Tensor | None = None  # [n_rows, d], the first trial: what is common drops out
    kept: Tensor | None = None  # [columns], those that vary by more than roundings
    directions: Tensor | None = None  # [columns kept, m]; None: nothing is projected
    share: float = 1.0  # share of the variance that the directions keep

    def __call__(self, values: Tensor, basis: Tensor | None = None, alike: bool = False) -> Tensor:
        """Rows [trials, n_rows, d], first projected on ``basis`` if given, as [trials, m].

        Components of few columns of different meaning count all of them ``alike``.
        """
        is_first = self.shift is None
        if self.shift is None:
            self.shift = values[0].double()
        moved = values.double() - self.shift
        columns = (moved if basis is None else moved @ basis).flatten(-2)
        if self.kept is None:
            rounding = self.shift.abs().max() * torch.finfo(values.dtype).eps
            spread = columns.amax(dim=0) - columns.amin(dim=0)
            self.kept = ~(spread <= ROUNDINGS * rounding)  # infinite and NaN numbers are kept
        columns = columns[:, self.kept]
        if is_first:
            self._fit(columns, alike)
        return columns if self.directions is None else columns @ self.directions

    @property
    def basis(self) -> Tensor | None:
        """The directions in all columns, [d, m], of a side of one row."""
        if self.directions is None or self.kept is None:
            return None
        whole = self.directions.new_zeros(len(self.kept), self.directions.shape[1])
        whole[self.kept] = self.directions
        return whole

    def _fit(self, columns: Tensor, alike: bool) -> None:
        if columns.shape[-1] <= self.m or not bool(columns.isfinite().all()):
            return
        centred = columns - columns.mean(dim=0)
        scale = centred.square().mean(dim=0).sqrt() if alike else torch.ones_like(centred[0])
        _, size, V = torch.linalg.svd(centred / scale, full_matrices=False)
        self.directions = V[: self.m].mT / scale[:, None]
        self.share = (size[: self.m].square().sum() / size.square().sum()).item()


@dataclass(eq=False)
class _Recorder:
    """Watches rounds and keeps the columns of those asked for."""

    question: RevealedQuantity
    defense: dp.Defense
    setting: dp.Setting
    _messages: dict[int, dp.Messages] = field(default_factory=dict)
    _waiting: dict[int, Tensor] = field(default_factory=dict)
    _private: dict[int, _Column] = field(default_factory=dict)
    _view: dict[int, _Column] = field(default_factory=dict)
    _found: dict[int, list[tuple[Tensor, Tensor]]] = field(default_factory=dict)
    _unseen: dict[int, str] = field(default_factory=dict)
    _names: dict[int, str] = field(default_factory=dict)
    _windows: dict[int, LinearWindow] = field(default_factory=dict)

    def progress(self, block: int, done: int, state: Any) -> da.Progress:
        """All that it has after so many rounds of a block, and the state that they left."""
        sent = {k: tensors_of(messages) for k, messages in self._messages.items()}
        columns = [
            {k: [c.m, c.shift, c.kept, c.directions, c.share] for k, c in own.items()}
            for own in (self._private, self._view)
        ]
        found = {
            k: [torch.cat(side) for side in zip(*several, strict=True)]
            for k, several in self._found.items()
        }
        noted = self._unseen, self._names
        return da.Progress.of(block, done, state, self._waiting, sent, columns, found, *noted)

    def resume(
        self, last: da.Progress | None
    ) -> tuple[int, tuple[int, Mapping[str, Tensor]] | None]:
        """Take that back: the block, and of it how many rounds, and the state they left."""
        if last is None:
            return 0, None
        block, done, state, self._waiting, sent, columns, found, *noted = last.parts
        self._unseen, self._names = noted
        self._messages = {k: messages_of(tensors) for k, tensors in sent.items()}
        self._private, self._view = (
            {k: _Column(*parts) for k, parts in own.items()} for own in columns
        )
        self._found = {k: [(private.cpu(), view.cpu())] for k, (private, view) in found.items()}
        return block, (done, state) if done else None

    def end_block(self) -> None:
        for k in self._waiting:
            self._unseen[k] = f"what shows the {self.question.private} of round {k} is sent later"
        self._messages.clear()
        self._waiting.clear()

    def __call__(self, k: int, round: dp.Round, answer: Tensor | None) -> None:
        """Note a round, in which the victim was first answered that gradient [trials, d]."""
        q = self.question
        names = read_of(q.message, self.defense)
        self._messages[k] = {name: sent for name, sent in round.sent.items() if name in names}
        if k in q.rounds and not q.overhears(self.defense):
            self._waiting[k] = round.private[q.private][..., q.victim, :]
        elif k in q.rounds and answer is not None:
            self._waiting[k] = answer
        elif k in q.rounds:
            self._unseen[k] = f"agent {q.victim} asks for no gradient in round {k}"
        spans = {j: span_of(q.message, self.defense, j) for j in [*self._waiting, k + 1]}
        for j in [j for j in self._waiting if spans[j][-1] == k]:
            private = self._waiting.pop(j)
            try:
                reduced = self._reduced(j, private, self._rows(j))
                self._found.setdefault(j, []).append(reduced)
            except da.NotObservable as error:
                self._unseen[j] = str(error)
            del spans[j]
        first = min(span[0] for span in spans.values())
        for old in [j for j in self._messages if j < first]:
            del self._messages[old]

    def _rows(self, k: int) -> Tensor:
        """All that the adversary has of the victim in round k, [trials, n_rows, d]."""
        q, defense = self.question, self.defense
        view = dp.View.of(q.threat_model, dp.Transcript(self._messages), set(self._messages))
        if q.message == VIEW:
            if k not in self._windows:
                rounds = span_of(VIEW, defense, k)
                self._windows[k] = LinearWindow(defense, self.setting, q.threat_model, rounds)
            return self._windows[k].gradients(view, k, q.victim)
        if q.message in defense.messages:
            return view.all_sent_by(q.message, k, q.victim)
        if q.message in defense.observables:
            return self._derived(view, k, defense.observables[q.message])
        links = self._links(view, k, defense.combinations[q.message].messages[0])
        return defense.combinations[q.message].derive(defense, view, self.setting, links[0])

    def _derived(self, view: dp.View, k: int, observable: dp.Observable) -> Tensor:
        targets = self._links(view, k, observable.links)
        if not observable.differs_by_link:
            targets = targets[:1]
        derived = [observable.derive(self.defense, view, self.setting, t) for t in targets]
        return torch.stack([d.gradient for d in derived], dim=-2)

    def _links(self, view: dp.View, k: int, message: str) -> list[dp.Target]:
        """The links on which it reads the victim. Raises NotObservable if there is none."""
        q = self.question
        links = [link for link in view.edges(message, k) if link[0] == q.victim]
        if not links:
            raise da.NotObservable(
                "DPA054",
                f'{q.threat_model.name} does not see "{message}" of agent {q.victim} in round {k}',
            )
        return [dp.Target(k, q.victim, receiver) for _, receiver in links]

    def _reduced(self, k: int, private: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        q = self.question
        everything = max(private.shape[-1], rows[0].numel())
        most = (everything,) * 2 if q.reduction == "none" else (q.components, q.view_components)
        mine = self._private.setdefault(k, _Column(most[0]))
        theirs = self._view.setdefault(k, _Column(most[1]))
        reduced = mine(private.unsqueeze(-2))
        fits = q.reduction == "aligned" and rows.shape[-1] == private.shape[-1]
        basis = mine.basis if fits else None
        seen = theirs(rows, basis, alike=fits)
        shape = f"{rows.shape[-2]} x {rows.shape[-1]}"
        if basis is not None:
            shape += f" -> {rows.shape[-2]} x {basis.shape[1]} along the same"
        name = f"private {_named(str(private.shape[-1]), mine)}; view {_named(shape, theirs)}"
        self._names.setdefault(k, name)
        return reduced.cpu(), seen.cpu()

    def samples(self) -> Samples:
        rounds: dict[int, RoundSamples] = {}
        constant: dict[int, str] = {}
        for k, parts in sorted(self._found.items()):
            private, view = (torch.cat(side).numpy() for side in zip(*parts, strict=True))
            kept = RoundSamples(
                private[:, varying(private)], view[:, varying(view)], self._names[k]
            )
            if not kept.private.shape[1]:
                constant[k] = "the private quantity"
            elif not kept.view.shape[1]:
                constant[k] = "the view"
            else:
                rounds[k] = kept
        return Samples(rounds, dict(sorted(self._unseen.items())), constant)


def _named(before: str, column: _Column) -> str:
    if column.directions is None:
        return before
    return f"{before} -> PCA {column.directions.shape[1]} ({column.share:.0%} of variance)"


@dataclass(eq=False)
class GradientListener(da.TrialProblem):
    """A problem that notes the first gradient of an agent in the latest round.

    It is the private quantity "gradient" of a defense that names none: the mean over the agent's
    batch, clipped if the defense asks for it clipped.
    """

    problem: da.TrialProblem
    agent: int
    answer: Tensor | None = field(default=None, init=False)  # [trials, d]

    @property
    def differentiates(self) -> bool:
        return self.problem.differentiates

    @property
    def varies(self) -> str:
        return self.problem.varies

    def for_trials(self, shared: da.Streams, own: da.Streams, trials: int, victim: int) -> Self:
        return type(self)(self.problem.for_trials(shared, own, trials, victim), self.agent)

    def initial(self, streams: da.Streams, trials: int | None = None) -> Tensor:
        return self.problem.initial(streams, trials)

    def gradient(
        self,
        streams: da.Streams,
        k: int,
        batch_size: int,
        sampling: str = "fixed",
        trials: int | None = None,
    ) -> dp.Gradient:
        self.answer = None
        asked = self.problem.gradient(streams, k, batch_size, sampling, trials)
        return _Listening(asked, self.agent, self._note)

    def _note(self, answer: Tensor) -> None:
        if self.answer is None:
            self.answer = answer


class _Listening(dp.Gradient):
    def __init__(self, asked: dp.Gradient, agent: int, note: Callable[[Tensor], None]) -> None:
        self.asked, self.agent, self.note = asked, agent, note
        self.batch_size = asked.batch_size

    def __call__(self, X: Tensor, holders: Tensor | None = None) -> Tensor:
        G = self.asked(X, holders)
        self._listen(G, holders, 1)
        return G

    def clipped_sum(
        self, X: Tensor, clip_norm: float, holders: Tensor | None = None, norm: int = 2
    ) -> Tensor:
        S = self.asked.clipped_sum(X, clip_norm, holders, norm)
        self._listen(S, holders, self.batch_size)
        return S

    def per_record(self, X: Tensor, holders: Tensor | None = None, own: bool = False) -> Tensor:
        each = self.asked.per_record(X, holders, own)
        self._listen(each.sum(dim=-2), holders, self.batch_size)
        return each

    def at_step(self, s: int) -> "_Listening":
        return _Listening(self.asked.at_step(s), self.agent, self.note)

    def _listen(self, G: Tensor, holders: Tensor | None, n: int) -> None:
        agents = range(G.shape[-2]) if holders is None else holders.tolist()
        if self.agent in agents:
            self.note(G[..., list(agents).index(self.agent), :] / n)
