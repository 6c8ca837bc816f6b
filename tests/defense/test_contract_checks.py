"""A defense that breaks its contract gets an error where it does, whoever plays it."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from dpaudit.conformance.case import Case
from dpaudit.conformance.promises import RING
from dpaudit.defense import Bracket, Message, Round, releases
from dpaudit.errors import PluginError
from dpaudit.selftest.correct import PrivateGossip, State
from dpaudit.training.trials import unrecorded

LATE = 4  # beyond the rounds that an audit plays before it begins


def sending(change: Callable[[Tensor], Any]) -> Callable[[Round], Any]:
    """The same messages with other payloads."""
    return lambda round: round._replace(
        sent={name: replace(m, payload=change(m.payload)) for name, m in round.sent.items()}
    )


def linked(**ends: Callable[[Message], Any]) -> Callable[[Round], Any]:
    """The same messages with other senders, receivers or rows."""
    return lambda round: round._replace(
        sent={
            name: replace(m, **{end: change(m) for end, change in ends.items()})
            for name, m in round.sent.items()
        }
    )


def with_state(change: Callable[[Any], Any]) -> Callable[[Round], Any]:
    return lambda round: round._replace(state=change(round.state))


class Other(NamedTuple):
    Y: Tensor


MISTAKES: dict[str, tuple[Callable[[Round], Any], str]] = {
    "complex": (sending(lambda p: p + 0j), 'message "x" as a torch.complex'),
    "int64": (sending(lambda p: p.long()), 'message "x" as a torch.int64 tensor'),
    "int8": (sending(lambda p: p.to(torch.int8)), 'message "x" as a torch.int8 tensor'),
    "bool": (sending(lambda p: p > 0), 'message "x" as a torch.bool tensor'),
    "float16": (sending(lambda p: p.half()), 'message "x" as a torch.float16 tensor'),
    "sparse": (sending(lambda p: p.to_sparse()), "torch.sparse_coo"),
    "numpy": (sending(lambda p: p.numpy()), "with a ndarray as payload"),
    "a list": (sending(lambda p: p.tolist()), "with a list as payload"),
    "no width": (sending(lambda p: p[..., :0]), "which has no number"),
    "no axis of agents": (sending(lambda p: p.flatten()), r"\[144\]; expected \[..., rows, d\]"),
    "no rows": (sending(lambda p: p[..., :0, :]), r"names a row that its payload \[0\] has not"),
    "a row too few": (sending(lambda p: p[..., 1:, :]), r"that its payload \[7\] has not"),
    "no messages": (lambda r: r._replace(sent={}), "sends no message"),
    "None as messages": (lambda r: r._replace(sent=None), "gives None as its messages"),
    "a list of messages": (lambda r: r._replace(sent=[*r.sent.values()]), "gives a list as its"),
    "a tensor as a message": (
        lambda r: r._replace(sent={"x": r.sent["x"].payload}),
        'message "x" as a Tensor; expected a Message',
    ),
    "a number as a name": (lambda r: r._replace(sent={1: r.sent["x"]}), "names a message 1"),
    "senders in a list": (linked(senders=lambda m: m.senders.tolist()), "a list as its senders"),
    "rows that are no integers": (linked(rows=lambda m: m.rows / 2), "float32 tensor"),
    "a sender too few": (linked(senders=lambda m: m.senders[1:]), "of different lengths"),
    "agents that there are not": (linked(receivers=lambda m: m.receivers + 8), "with receivers"),
    "None": (lambda r: None, "returns None; expected Round"),
    "a tuple": (lambda r: (r.state, r.sent), "returns a tuple; expected Round"),
    "a state alone": (lambda r: r.state, "returns a State; expected Round"),
    "None as the state": (with_state(lambda s: None), "gives None as the state, not a NamedTuple"),
    "a dict as the state": (with_state(lambda s: s._asdict()), "gives a dict as the state"),
    "a bare tuple as the state": (with_state(tuple), "gives a tuple as the state"),
    "a number in the state": (with_state(lambda s: s._replace(X=1.0)), "no tensor but a float"),
    "another state": (with_state(lambda s: Other(s.X)), "fields Y; expected those of start: X, V"),
    "a number in private": (lambda r: r._replace(private={"g": 1}), "gives an int as private"),
    "None as private": (lambda r: r._replace(private=None), "gives None as private"),
}
CHANGES = {
    "wider": (sending(lambda p: torch.cat([p, p], -1)), r"as \[rows, 36\] of torch.float64, and"),
    "narrower": (sending(lambda p: p[..., :1]), r"as \[rows, 1\] of torch.float64, and as \[rows,"),
    "coarser": (sending(lambda p: p.float()), r"of torch.float32, and as \[rows, 18\] of torch.f"),
    "with an axis in front": (sending(lambda p: p[None]), r"as \[1, rows, 18\]"),
}


class Mistaken(PrivateGossip):
    """Spoils what a correct step gives back, from one round on."""

    change: Any
    since: int = 1

    def step(self, state, k, graph, gradient, noise):
        played = super().step(state, k, graph, gradient, noise)
        return self.change(played) if k >= self.since else played


def played(defense: PrivateGossip) -> list[Round]:
    with unrecorded(True):
        return Case.of(defense, RING, torch.device("cpu"), frozenset(), frozenset()).play()


def refusal(defense: PrivateGossip) -> str:
    with pytest.raises(PluginError) as refused:
        played(defense)
    [line] = str(refused.value).splitlines()
    assert line.startswith(f'defense "{type(defense).__module__}:{type(defense).__qualname__}": ')
    return line.partition('": ')[2]


@pytest.mark.parametrize("since", [1, LATE])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_step_that_breaks_the_contract_is_one_line(mistake: str, since: int) -> None:
    change, expected = MISTAKES[mistake]
    line = refusal(Mistaken(change=change, since=since))
    assert line.startswith(f"step of round {since} ")
    assert re.search(expected, line), line


@pytest.mark.parametrize("mistake", CHANGES)
def test_a_message_keeps_its_width_and_precision(mistake: str) -> None:
    change, expected = CHANGES[mistake]
    played(Mistaken(change=change, since=LATE + 100))
    line = refusal(Mistaken(change=change, since=LATE))
    assert re.search(expected, line), line


LEGAL: dict[str, Callable[[Round], Round]] = {
    "whole numbers": sending(lambda p: p.round()),
    "zeros": sending(lambda p: 0 * p),
    "half of the coordinates": sending(lambda p: p[..., :9]),
    "a message beside it": lambda r: r._replace(sent={**r.sent, "y": r.sent["x"]}),
    "edges as int32": linked(
        senders=lambda m: m.senders.int(), receivers=lambda m: m.receivers.int()
    ),
    "no link": linked(
        senders=lambda m: m.senders[:0],
        receivers=lambda m: m.receivers[:0],
        rows=lambda m: m.rows[:0],
    ),
}


@pytest.mark.parametrize("odd", LEGAL)
def test_odd_messages_that_the_contract_allows_pass(odd: str) -> None:
    assert len(played(Mistaken(change=LEGAL[odd]))) == 5


def test_a_message_may_stay_away_in_some_rounds() -> None:
    renamed = Mistaken(change=lambda r: r._replace(sent={"y": r.sent["x"]}), since=LATE)
    assert [*played(renamed)[-1].sent] == ["y"]


class Repaired(Mistaken):
    """The step of the class above it is wrong, its own is right."""

    def step(self, state, k, graph, gradient, noise):
        wrong = super().step(state, k, graph, gradient, noise)
        x = wrong.sent["x"]
        return wrong._replace(sent={"x": replace(x, payload=x.payload.to(state.X))})


def test_only_the_last_word_of_a_method_counts() -> None:
    assert played(Repaired(change=sending(lambda p: p.long())))
    assert played(Repaired(change=sending(lambda p: p.half())))


class SetsTheDefault(PrivateGossip):
    dtype: Any = torch.float64

    def step(self, state, k, graph, gradient, noise):
        torch.set_default_dtype(self.dtype)
        return super().step(state, k, graph, gradient, noise)


class SetsTheDefaultDevice(PrivateGossip):
    def start(self, X, setting):
        torch.set_default_device("meta")
        return super().start(X, setting)


class SwitchesGradientsOn(PrivateGossip):
    def models(self, state):
        torch.set_grad_enabled(True)
        return super().models(state)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_the_default_dtype_stays_what_it_was(dtype: torch.dtype) -> None:
    line = refusal(SetsTheDefault(dtype=dtype))
    assert line.startswith(f"step of round 1 calls torch.set_default_dtype({dtype})")
    assert torch.get_default_dtype() is torch.float32


def test_other_settings_of_torch_stay_what_they_were() -> None:
    assert refusal(SetsTheDefaultDevice()).startswith("start calls torch.set_default_device(meta)")
    assert torch.get_default_device().type == "cpu"
    with torch.no_grad():
        with pytest.raises(PluginError, match=r"models calls torch.set_grad_enabled\(True\)"):
            SwitchesGradientsOn().models(State(torch.zeros(2, 2), torch.zeros(2, 2)))
        assert not torch.is_grad_enabled()


class Answers(PrivateGossip):
    """Gives back whatever it is given."""

    answer: Any = None

    def start(self, X, setting):
        return self.answer

    def models(self, state):
        return self.answer

    def evaluated(self, state):
        return self.answer

    def calibrate(self, setting):
        return self.answer

    def without_noise(self):
        return self.answer

    def mechanism(self, setting, threat_model, victim):
        return self.answer

    def sensitivity(self, k, setting, adjacency, victim, sent):
        return self.answer


def test_the_ends_of_a_bracket_may_be_lists() -> None:
    bracket = Bracket([*releases([1.0], "none", 1.0)], [], ())  # type: ignore[arg-type]
    assert Answers(answer=bracket).mechanism(None, None, 0) is bracket


ANSWERS = {
    "start": (None, {}, torch.zeros(3, 2)),
    "models": (None, 3, torch.zeros(3), torch.zeros(3, 2).long()),
    "evaluated": (None, torch.zeros(3)),
    "calibrate": (None, {}),
    "without_noise": (None, 0.0),
    "mechanism": (None, (1, 2), Bracket(None, (), ()), Bracket((), (1.0,), ())),  # type: ignore[arg-type]
    "sensitivity": (None, 1.0, {"x": 1.0}),
}


@pytest.mark.parametrize(
    "method, answer", [(method, answer) for method, some in ANSWERS.items() for answer in some]
)
def test_what_no_method_may_return_is_one_line(method: str, answer: Any) -> None:
    asked = Answers(answer=answer)
    arguments = {"start": 2, "models": 1, "evaluated": 1, "calibrate": 1, "mechanism": 3}
    with pytest.raises(PluginError, match=f'": {method} (returns|gives) .*; expected ') as refused:
        getattr(asked, method)(*[None] * arguments.get(method, 5 * (method == "sensitivity")))
    assert len(str(refused.value).splitlines()) == 1
