"""Rounds of the real problem, played with noise, without, and with parts of either.

From one state a round is played many times with the same gradients. What the messages with noise
have over those without is the noise that is really sent; whatever a defense keeps cancels. Noise
that a message first carries in the round after is heard there. So is the noise of a message that
gradients reach only in the round after: the noise of that round is what hides them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dpaudit.defense.contract import Defense, Gradient, Setting
from dpaudit.defense.noise import Noise
from dpaudit.defense.transcript import Message, Messages, refuse_other_messages
from dpaudit.errors import is_out_of_memory
from dpaudit.files.threat import ThreatModel
from dpaudit.rng import Streams

from .loaded_problem import Problem
from .partial_inputs import (
    PLAYED,
    SILENT,
    PartialNoise,
    RepeatedGradients,
    RoundMode,
    SharedDraws,
    global_randomness,
)

ENTRIES = 4_500_000  # entries of all messages held at once for one play
ROWS = 64  # rows of a message that are examined
FEWEST = 3  # streams of noise: what is the same under all of them is no chance
LEAST = 9  # streams times rounds: fewer numbers of a coordinate could look alike
PLAYS = 192  # streams times rounds at most
MOST = 64  # streams of noise
CLOSELY = 5  # rounds that are examined, of which one is for directions of large messages
PLAYED_WAYS = 48  # plays of a round that are held at once, with what is computed from them
FRESH = 50_000_000  # numbers that a round's messages and states under fresh noise are at most
SEED_AFTER = 1_000_003  # added to the generators' seed in the next round
CROWD = 1024  # agents of whom rounds are played whatever the size of their models
MOST_NUMBERS = 10**8  # numbers in the models of more agents than that, under all streams
NEARLY_SILENT = 2.0**-10  # times the noise, where a step without any divides by 0
LATE = " one round later"  # suffix of a message's name, within this module
LOUD = 1e4  # times the noise, or the gradients: what that does not move, nothing does
LOUDNESSES = (LOUD, 100.0, 4.0, 1.0, 0.0625)  # the first at which messages are finite is taken
Payloads = dict[str, Tensor]  # name -> [streams, rows, d]


class RealRounds:
    """Plays rounds of a run under several streams of noise.

    Args:
        rounds: in order; one that does not follow the one before it is played from the state that
            it leaves all the same, in which the noise of a round is no other.
    """

    def __init__(
        self,
        defense: Defense,
        problem: Problem,
        setting: Setting,
        seed: Streams,
        own: Streams,
        adversaries: tuple[ThreatModel, ...],
        rounds: tuple[int, ...],
    ) -> None:
        self._defense, self._setting = defense, setting
        self.own, self.adversaries = own, adversaries
        self.other = own.child("other")
        self.streams = streams_of(setting, len(rounds))
        self.rounds, self.draws = rounds, SharedDraws()
        X = problem.initial(seed)
        self._start = X.expand(self.streams, *X.shape).clone()
        self._oracle = lambda k: RepeatedGradients(
            problem.gradient(seed, k, defense.batch_size, defense.drawing)
        )

    def play(self, on_round: Callable[[int], None]) -> Iterator["RealRound"]:
        """The rounds, each from the state that the one before it leaves."""
        state: Any = self._defense.start(self._start, self._setting)
        following: RepeatedGradients | None = None
        heard = frozenset[str]()  # messages of this round, with the round before it
        for i, k in enumerate(self.rounds):
            follows = i > 0 and self.rounds[i - 1] == k - 1
            oracle = following if following is not None and follows else self._oracle(k)
            self.draws.forget()
            after = self.step(state, k, oracle.again(), PartialNoise(self.own, k)).state
            following = None
            if k < self._defense.n_rounds:
                following = self._oracle(k + 1)
                self.step(after, k + 1, following.again(), PartialNoise(self.own, k + 1))
            round = RealRound(self, state, k, oracle, following, heard if follows else frozenset())
            yield round
            state, heard = after, frozenset(round.hidden_later)
            on_round(i + 1)

    def step(self, state: Any, k: int, oracle: Gradient, noise: Noise) -> Any:
        graph = self._setting.network.at(k)
        return self._defense.step(state, k, graph, oracle, noise)


class RealRound:
    """One round from one state, played in as many ways as are asked for, each of them once.

    Args:
        heard: messages that were heard with the round before, which are not heard again.
    """

    def __init__(
        self,
        run: RealRounds,
        state: Any,
        k: int,
        oracle: RepeatedGradients,
        following: RepeatedGradients | None,
        heard: frozenset[str],
    ) -> None:
        self.run, self._state, self.k = run, state, k
        self._oracle, self._following, self._heard = oracle, following, heard
        self._later_too = False  # whether the round after it is played, too
        self.hidden_later = set[str]()  # noise now, gradients in the next round
        self._least = 0.0  # weight of noise that is none, or as good as none
        self._seen: dict[str, SeenRows] = {}
        self._sent: dict[str, Message] = {}
        self._later: Messages | None = None  # messages of the next round
        self._played: dict[RoundMode, Payloads] = {}
        self._first: dict[RoundMode, Payloads] = {}
        self._fresh: dict[RoundMode, tuple[Payloads, Any]] = {}
        self._room = FRESH
        self.draws = set[str]()  # names of the draws of noise that it asks for

    def messages(self) -> list["RoundMessage"]:
        """Messages that the round's gradients move, in this round or else in the next."""
        if not all(map(_is_finite, self.play(SILENT).values())):
            self._least = NEARLY_SILENT
            self._played.clear()
        silent, noisy = (
            self.play(SILENT),
            [self.play(way) for way in (PLAYED, RoundMode(weight=LOUD))],
        )
        idle = self._unmoved(self._sent, silent, noisy + self._moved())
        noise_alone = self._unmoved(self._sent, silent, self._moved()) - idle
        if (idle or noise_alone) and self._following is not None:
            self._later_too, self.hidden_later = True, noise_alone
            self._played.clear()
            late = {n for n in noise_alone if n + LATE in self.play(SILENT)}
            still = self._unmoved({n + LATE for n in late}, self.play(SILENT), self._moved())
            self.hidden_later = {n for n in late if n + LATE not in still}
        later = {n + LATE for n in idle | self.hidden_later}
        now = (n for n in self._sent if n + LATE not in later and n not in self._heard)
        names = (*now, *(n + LATE for n in self._sent if n + LATE in later))
        found = (RoundMessage(self, n) for n in names if n in self.play(SILENT))
        return [message for message in found if message.play(SILENT).numel()]

    def _moved(self) -> list[Payloads]:
        """Played without noise, with gradients moved by two patterns."""
        return [self.play(RoundMode(weight=0.0, move=LOUD, pattern=i)) for i in (0, 1)]

    @staticmethod
    def _unmoved(names: Iterable[str], silent: Payloads, others: list[Payloads]) -> set[str]:
        """Messages among ``names`` that are equal in all these plays."""
        return {n for n in names if all(torch.equal(silent[n], m[n]) for m in others if n in m)}

    def play(self, way: RoundMode) -> Payloads:
        """All messages, [streams, rows, d] each; none where a step does not stand the noise."""
        if way not in self._played:
            try:
                self._played[way] = self.play_once(way)
            except (ArithmeticError, RuntimeError, ValueError) as error:
                if way in (SILENT, PLAYED) or is_out_of_memory(error):
                    raise
                self._played[way] = {}
        return self._played[way]

    def play_once(self, way: RoundMode, shift: Tensor | None = None) -> Payloads:
        """The same without keeping it, and with a shift [rows, d] of all draws."""
        messages, state = self._step(way, shift)
        if not self._later_too:
            return messages
        return messages | self._following_step(way, state) | self._hidden_step(way, shift)

    def play_first(self, way: RoundMode) -> Payloads:
        """The same of the first stream, [1, rows, d] each, which is all that is kept."""
        if way not in self._first:
            try:
                self._first[way] = {name: m[:1].clone() for name, m in self.play_once(way).items()}
            except (ArithmeticError, RuntimeError, ValueError) as error:
                if is_out_of_memory(error):
                    raise
                self._first[way] = {}
        return self._first[way]

    def play_fresh(self, way: RoundMode, later: bool) -> Payloads:
        """The same of this round, or of the round after it, for one message after another.

        What this round makes of a way is kept as long as there is room for it.
        """
        if way not in self._fresh:
            messages, state = played = self._step(way)
            size = sum(tensor.numel() for tensor in (*messages.values(), *state))
            if size <= self._room:
                self._room -= size
                self._fresh[way] = played
        else:
            messages, state = self._fresh[way]
        if not later:
            return messages
        return self._following_step(way, state) | self._hidden_step(way)

    def _step(self, way: RoundMode, shift: Tensor | None = None) -> tuple[Payloads, Any]:
        """The messages of the round, and the state that it leaves."""
        run, k = self.run, self.k
        noise = self._noise(way, k, shift)
        oracle = self._oracle.again(way)
        with global_randomness(way.seed):
            round = run.step(self._state, k, oracle, noise)
        self.draws |= noise.names.keys()
        messages = self._read(round.sent)
        refuse_other_messages(k, self._sent, round.sent)
        return messages, round.state

    def _following_step(self, way: RoundMode, state: Any) -> Payloads:
        """The messages of the round after it, which has no noise of its own here."""
        silence = PartialNoise(self.run.own, self.k + 1, RoundMode(weight=self._least))
        sent = self._after(way, state, silence)
        return {n: x for n, x in sent.items() if n.removesuffix(LATE) not in self.hidden_later}

    def _hidden_step(self, way: RoundMode, shift: Tensor | None = None) -> Payloads:
        """Messages of the round after it that have noise of their own and gradients of this one.

        This round's gradients and that round's noise are as the way has them; its own noise is off.
        """
        if not self.hidden_later:
            return {}
        quiet = way._replace(weight=0.0, other=0.0, fresh=0, signs=None, added=0.0)
        _, state = self._step(quiet)
        noise = self._noise(way, self.k + 1, shift)
        sent = self._after(way, state, noise)
        self.draws |= noise.names.keys()
        return {n: x for n, x in sent.items() if n.removesuffix(LATE) in self.hidden_later}

    def _noise(self, way: RoundMode, k: int, shift: Tensor | None) -> PartialNoise:
        """The noise of a round in some way."""
        run, way = self.run, way._replace(weight=way.weight or self._least)
        if way.fresh:  # only plays of this mode need fresh noise
            return PartialNoise(run.own.child("fresh", way.fresh), k, way, run.other, shift)
        return PartialNoise(run.own, k, way, run.other, shift, run.draws)

    def _after(self, way: RoundMode, state: Any, noise: PartialNoise) -> Payloads:
        """The messages of the round after it, from the state that this one leaves."""
        run, k = self.run, self.k + 1
        assert self._following is not None
        with global_randomness(way.seed + SEED_AFTER):
            sent = run.step(state, k, self._following.again(), noise).sent
        self._later = self._later or sent
        refuse_other_messages(k, self._later, sent)
        return {name + LATE: payload for name, payload in self._read(sent).items()}

    @property
    def looks_closely(self) -> bool:
        """Whether the directions of large messages are examined: each fifth round, and the last."""
        return self.k in self.run.rounds[::CLOSELY] or self.k == self.run.rounds[-1]

    @property
    def size(self) -> float:
        """Size of gradients, which is the unit of their moves."""
        return self._oracle.size

    def sent(self, name: str) -> tuple[Message, "SeenRows"]:
        """A message as it was sent first, and which of its rows are looked at."""
        return self._sent[name], self._seen[name]

    def _read(self, sent: Mapping[str, Message]) -> Payloads:
        if not self._sent:
            self._sent = dict(sent)
            self._seen = {name: _seen(s, self.run) for name, s in sent.items()}
        return {
            name: _of_rows(s.payload, self._seen[name].rows)
            .expand(self.run.streams, -1, s.payload.shape[-1])
            .cpu()
            for name, s in sent.items()
            if name in self._sent and s.payload.shape == self._sent[name].payload.shape
        }


class RoundMessage:
    """One message of a round, [streams, rows, d] in each way that the round is played.

    Args:
        key: what the round calls it.
    """

    def __init__(self, round: RealRound, key: str) -> None:
        self._key, self.real, self._is_late = key, round, key.endswith(LATE)
        self.name, self.round = key.removesuffix(LATE), round.k + self._is_late
        message, self.seen = round.sent(self.name)
        self.n_rows = message.payload.shape[-2]  # rows of the whole payload

    def play(self, way: RoundMode) -> Tensor:
        return self.real.play(way)[self._key]

    def play_first(self, way: RoundMode) -> Tensor | None:
        """The same of the first stream, [rows, d]; None if it is not of finite numbers."""
        first = self.real.play_first(way).get(self._key)
        return None if first is None or not first.isfinite().all() else first[0]

    def play_fresh(self, way: RoundMode) -> Tensor:
        """The same in a way that the other messages of the round are played in, too."""
        return self.real.play_fresh(way, self._is_late)[self._key]

    def play_shifted(self, way: RoundMode, shift: Tensor | None) -> Tensor:
        """The same without keeping it, with a shift [rows, d] of all draws."""
        return self.real.play_once(way, shift)[self._key]

    def is_finite(self, *ways: RoundMode) -> bool:
        """Whether it is sent, and of finite numbers, in all of these ways."""
        plays = [self.real.play(way) for way in ways]
        return all(self._key in m and _is_finite(m[self._key]) for m in plays)

    def loudest(self, ways: Callable[[float], tuple[RoundMode, ...]]) -> float | None:
        """How loud noise or gradients may be for it to be finite; None: not at all."""
        return next((x for x in LOUDNESSES if self.is_finite(*ways(x))), None)


def left_out(setting: Setting, n_rounds: int) -> str | None:
    """Why rounds of so many agents and of so large a model are not played; None: they are."""
    numbers = streams_of(setting, n_rounds) * setting.n_agents * setting.d
    if setting.n_agents <= CROWD or numbers <= MOST_NUMBERS:
        return None
    return (
        f"{setting.n_agents} agents' models under {streams_of(setting, n_rounds)} streams of noise "
        f"are {numbers:.2g} numbers, which are held in {PLAYED_WAYS} ways; expected "
        f"{MOST_NUMBERS:.2g} at most of more than {CROWD} agents"
    )


def streams_of(setting: Setting, n_rounds: int) -> int:
    """Under how many streams of noise each of so many rounds is played."""
    links = len(setting.network.at(1).senders) + setting.n_agents
    numbers = n_rounds * links * setting.d
    return max(FEWEST, -(-LEAST // n_rounds), min(MOST, PLAYS // n_rounds, ENTRIES // numbers))


def kept_rows(streams: int, d: int, n_rounds: int) -> int:
    """How many rows of a message are kept at most."""
    return max(2, min(ROWS, 4 * ENTRIES // (streams * d * n_rounds)))


def _is_finite(numbers: Tensor) -> bool:
    """Whether all are; a finite sum, which takes a fraction of the time, has finite terms alone."""
    return bool(numbers.sum().isfinite()) or bool(numbers.isfinite().all())


def _of_rows(payload: Tensor, rows: Tensor) -> Tensor:
    """Rows of a payload, that are in order; all of them are the payload itself."""
    if len(rows) == payload.shape[-2]:
        return payload
    return payload.index_select(-2, rows.to(payload.device))


class SeenRows(NamedTuple):
    """Rows of a payload that are looked at: of those that an adversary reads, as many as fit."""

    rows: Tensor
    left_out: int  # rows that an adversary reads and that are not looked at
    links: tuple[tuple[int, int | None], ...]  # sender of each, and receiver if it is one alone
    adversaries: tuple[frozenset[str], ...]  # names of those who read each


def _seen(sent: Message, run: RealRounds) -> SeenRows:
    by_edge = _adversaries_of(sent, run.adversaries)
    read = sent.rows[torch.tensor(list(map(bool, by_edge)), dtype=torch.bool)].unique()
    room = kept_rows(run.streams, sent.payload.shape[-1], len(run.rounds))
    rows = read[torch.linspace(0, len(read) - 1, min(room, len(read))).long()]
    alone = len(sent.rows.unique()) == len(sent.rows)
    edges = [(sent.rows == row).nonzero().flatten().tolist() for row in rows]
    links = ((int(sent.senders[e]), int(sent.receivers[e]) if alone else None) for e, *_ in edges)
    names = (frozenset[str]().union(*(by_edge[e] for e in own)) for own in edges)
    return SeenRows(rows, len(read) - len(rows), tuple(links), tuple(names))


def _adversaries_of(sent: Message, adversaries: tuple[ThreatModel, ...]) -> list[set[str]]:
    """Names of those who read each edge; what an adversary's own agents send hides from others."""
    keys = [None] * len(sent.rows) if sent.readers is None else sent.readers.tolist()
    edges = zip(sent.senders.tolist(), sent.receivers.tolist(), keys, strict=True)

    def reads(adversary: ThreatModel, j: int, i: int, key: int | None) -> bool:
        return (
            adversary.sees(j, i)
            and j not in adversary.agents
            and (key is None or key in adversary.agents)
        )

    return [
        {adversary.name for adversary in adversaries if reads(adversary, *edge)} for edge in edges
    ]
