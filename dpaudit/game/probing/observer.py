"""What an adversary observes of a round: messages that it reads, and its own agents' noise."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpaudit.defense import Message, Messages, NotObservable, ThreatModel
from dpaudit.defense.view import View, seen_links
from dpaudit.game.game import Game
from dpaudit.game.step_inputs import ChosenNoise, RequestedNoise

Indices = NDArray[np.int64]


class Observer:
    """The adversary whose view it is.

    Args:
        messages: those that are read; None: all.
    """

    def __init__(
        self, game: Game, threat_model: ThreatModel, messages: frozenset[str] | None = None
    ) -> None:
        self.game, self.threat_model, self._messages = game, threat_model, messages
        self._known_to: dict[int, Mapping[str, Tensor]] = {}
        self._of_links: dict[str, bool] = {}  # on graphs with as many links as agents
        self._visible: dict[tuple[int, str], Tensor] = {}  # rows of payloads, by round and message

    def all_observations(self, k: int, sent: Messages, units: Mapping[str, Tensor]) -> Tensor:
        """Observations [trials, n] of round k, even where only one message of it is read.

        All numbers of each row: a message has a width of its own beside a model of one coordinate.
        """
        draws = {name: RequestedNoise("gaussian", u.shape) for name, u in units.items()}
        columns = [
            _picked(units[name] if is_own else sent[name].payload, rows)
            for name, rows, is_own in self._parts(k, sent, draws)
        ]
        return torch.cat(columns, dim=-1)

    def note_shared_draws(self, k: int, known_to: Mapping[str, Tensor]) -> None:
        """Who knows the rows of the draws of round k that agents share."""
        self._known_to[k] = dict(known_to)

    def _rows(self, k: int, sent: Messages) -> dict[str, Tensor]:
        """The rows of each message's payload that the view holds, the same in all plays of k."""
        read = {m: s for m, s in sent.items() if self._messages is None or m in self._messages}
        for name in read:
            if (k, name) not in self._visible:
                self._visible[k, name] = visible_rows(read[name], self.threat_model)
        return {name: self._visible[k, name] for name in read}

    def senders_of(
        self, k: int, sent: Messages, draws: Mapping[str, RequestedNoise], at_draws: Indices
    ) -> Indices:
        """The agent that each observation comes from, of draws made ``at_draws`` [draws]."""
        found = [np.zeros(0, dtype=np.int64)]
        first = dict(zip(draws, np.cumsum([0, *(d.numbers for d in draws.values())]), strict=False))
        for name, rows, is_own in self._parts(k, sent, draws):
            d = draws[name].shape[-1] if is_own else sent[name].payload.shape[-1]
            if is_own:
                made_by = at_draws[first[name] + d * rows.numpy()]
            else:
                made_by = senders_by_row(sent[name])[rows].numpy()
            found.append(np.repeat(made_by, d))
        return np.concatenate(found)

    def named(
        self, k: int, sent: Messages, draws: Mapping[str, RequestedNoise]
    ) -> list[tuple[str, int]]:
        """What each observation is: message, or draw of the adversary's own, and row."""
        return [
            (f"own noise of {name}" if is_own else name, row)
            for name, rows, is_own in self._parts(k, sent, draws)
            for row in rows.tolist()
            for _ in range(draws[name].shape[-1] if is_own else sent[name].payload.shape[-1])
        ]

    def _parts(
        self, k: int, sent: Messages, draws: Mapping[str, RequestedNoise]
    ) -> list[tuple[str, Tensor, bool]]:
        """What is read, in order: message or draw, which rows of it, whether it is a draw."""
        read = [(name, rows, False) for name, rows in self._rows(k, sent).items()]
        return read + [(name, rows, True) for name, rows in self._own(k, sent, draws).items()]

    def _own(
        self, k: int, sent: Messages, draws: Mapping[str, RequestedNoise]
    ) -> dict[str, Tensor]:
        """The rows of each draw that the adversary's own agents made: by agent, or by sender.

        Of a draw that agents share, those that one of its agents knows.
        """
        agents = torch.tensor(self.threat_model.agents, dtype=torch.long)
        own = {}
        for name, draw in draws.items():
            known_to = self._known_to.get(k, {}).get(name)
            if known_to is not None:
                own[name] = torch.isin(known_to, agents).any(dim=1).nonzero().flatten()
                continue
            makers = self._makers(k, name, draw.shape[-2], sent) if len(agents) else agents
            if len(agents) and draw.shape[-2] == len(makers):
                own[name] = torch.isin(makers, agents).nonzero().flatten()
        return own

    def _makers(self, k: int, name: str, rows: int, sent: Messages) -> Tensor:
        """The agents that draw the rows of this name: one for each, or the senders of links."""
        graph = self.game.setting.network.at(k)
        agents = torch.arange(graph.n_agents)
        if rows != graph.n_agents:
            return graph.senders
        if rows != graph.n_edges or torch.equal(graph.senders, agents):
            return agents
        if name not in self._of_links:
            found = is_of_links(self.game, k, name, sent)
            if found is None:  # a later round may tell
                return agents
            self._of_links[name] = found
        return graph.senders if self._of_links[name] else agents


def is_of_links(game: Game, k: int, name: str, sent: Messages) -> bool | None:
    """Whether the rows of a draw are of links, on a graph that has as many of them as agents.

    A draw named after a message has its rows. Of another a row is its maker's if the maker sends
    what the row moves, in its round or, where it moves nothing there, in the next: the draw is of
    links where that is so of their senders alone. None: that is so of both or of neither, as where
    what the draw moves was lost.
    """
    graph = game.setting.network.at(k)
    if name in sent and sent[name].payload.shape[-2] == graph.n_edges:
        return torch.equal(senders_by_row(sent[name]), graph.senders)
    n, d, silent = graph.n_agents, game.width or 1, game.gradient(torch.zeros(graph.n_agents))
    sizes = 1 + torch.arange(d, dtype=torch.float64)  # a step may take their mean away
    units = {name: torch.eye(n, dtype=torch.float64)[..., None] * sizes}
    states, asked = [game.start(n, coordinates=d)] * 2, [{}, units]
    for round in range(k, min(k + 1, game.defense.n_rounds) + 1):
        at = game.setting.network.at(round)
        played = [
            game.defense.step(state, round, at, silent, ChosenNoise(units))
            for state, units in zip(states, asked, strict=True)
        ]
        links, agents = (
            _are_makers(makers, played[0].sent, played[1].sent)
            for makers in (graph.senders, torch.arange(n))
        )
        if links != agents:
            return links
        states, asked = [one.state for one in played], [{}, {}]
    return None


def _are_makers(makers: Tensor, still: Messages, moved: Messages) -> bool:
    """Whether each row i of a draw that moves a message moves one of its maker's.

    Args:
        makers: [n_agents], of each row.
        moved: the messages [n_agents, ...] where trial i has row i of the draw.
    """
    n = len(makers)
    sends = torch.zeros(n, n)  # how many rows of what agent j sends row i moves
    for message, quiet in still.items():
        changed = (moved[message].payload != quiet.payload).any(-1)
        sends.index_add_(1, quiet.senders, changed[:, quiet.rows].float())  # not of unsent rows
    unsent = (sends == 0).all(1)
    return bool(((sends[torch.arange(n), makers] > 0) | unsent).all())


def recorded_rows(view: View, observed: Sequence[tuple[int, str, int]], none: str) -> Tensor:
    """The payloads of these rows (round, message, row) in a view, [n, ..., d].

    Raises:
        NotObservable: a message was not recorded; or, as ``none`` says, there are no rows.
    """
    rows = []
    for k, name, row in observed:
        sent = view.transcript.rounds.get(k, {}).get(name)
        if sent is None:
            raise NotObservable("DPA053", f'"{name}" of round {k} was not recorded')
        rows.append(sent.payload[..., row, :])
    if not rows:
        raise NotObservable("DPA054", none)
    return torch.stack(rows)


def senders_by_row(sent: Message) -> Tensor:
    """[n_rows], the agent that sends each row of the payload."""
    at = torch.zeros(sent.payload.shape[-2], dtype=torch.long)
    at[sent.rows] = sent.senders
    return at


def _picked(values: Tensor, rows: Tensor) -> Tensor:
    """The numbers [..., m d] of rows, by rising number, of values [..., n_rows, d].

    A range of rows is not copied.
    """
    n = len(rows)
    if n and int(rows[-1]) - int(rows[0]) == n - 1:
        return values[..., int(rows[0]) : int(rows[0]) + n, :].flatten(-2)
    return values.index_select(-2, rows).flatten(-2)


def visible_rows(sent: Message, threat_model: ThreatModel) -> Tensor:
    """Which rows of the payload an adversary can read; encrypted ones only with the key."""
    seen = seen_links(threat_model, sent.senders, sent.receivers)
    if sent.readers is not None:
        seen &= torch.isin(sent.readers, torch.tensor(threat_model.agents, dtype=torch.long))
    return sent.rows[seen].unique()
