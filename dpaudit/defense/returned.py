"""What the methods of a defense give back, held against the contract.

A plug-in's mistake would otherwise be an exception in code that is not its own, or pass unseen.
Each function gives what is wrong and what was expected, as the rest of a sentence; None: nothing.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dpaudit.graphs.graph import Graph

from .transcript import Message

PRECISIONS = (torch.float32, torch.float64)  # in which attacks play
INDICES = (torch.int64, torch.int32)
NARROW = "attacks also play models of one coordinate, where a message may not become empty"


def wrong_state(state: Any) -> str | None:
    """Of the state before or after a round: it is a NamedTuple of tensors, as checkpoints keep."""
    fields = _fields(state)
    if fields is None:
        return f"gives {kind(state)} as the state, not a NamedTuple; expected one of tensors"
    for name in fields:
        value = getattr(state, name)
        if not isinstance(value, Tensor):
            return (
                f"gives a state that no checkpoint keeps: {name} of the state is no tensor but "
                f"{kind(value)}; expected a NamedTuple of tensors"
            )
    return None


def other_state(state: Any, before: Any) -> str | None:
    """Of the state after a round: it has the fields of the state that the round began from."""
    wrong, found, expected = wrong_state(state), _fields(state), _fields(before)
    if wrong is not None or found is None or expected is None or found == expected:
        return wrong
    names = (", ".join(some) for some in (found, expected))
    return "gives a state with the fields {}; expected those of start: {}".format(*names)


def _fields(state: Any) -> tuple[str, ...] | None:
    """The names of a NamedTuple; None: it is none."""
    fields = getattr(state, "_fields", None)
    return fields if isinstance(state, tuple) and isinstance(fields, tuple) else None


def wrong_models(models: Any) -> str | None:
    """Of the models that would be used: they are numbers [..., n_agents, d]."""
    if not isinstance(models, Tensor):
        return f"returns {kind(models)}; expected a tensor [..., n_agents, d]"
    if models.dtype not in PRECISIONS or models.ndim < 2:
        return f"returns {_form(models)}; expected a float32 or float64 tensor [..., n_agents, d]"
    return None


def wrong_messages(sent: Any, graph: Graph) -> str | None:
    """Of all messages of a round."""
    if not isinstance(sent, Mapping):
        return f"gives {kind(sent)} as its messages; expected a mapping from names to Message"
    if not sent:
        return (
            "sends no message; expected at least one in every round: where there is nothing new, "
            "agents send what they sent before, or zeros"
        )
    for name, message in sent.items():
        if not isinstance(name, str):
            return f"names a message {name!r}, which is {kind(name)}; expected a text"
        if (wrong := _wrong_message(message, graph)) is not None:
            return f'sends message "{name}" {wrong}'
    return None


def _wrong_message(message: Any, graph: Graph) -> str | None:
    if not isinstance(message, Message):
        return f"as {kind(message)}; expected a Message, as broadcast and unicast make it"
    payload = message.payload
    if not isinstance(payload, Tensor):
        return f"with {kind(payload)} as payload; expected a tensor [..., rows, d]"
    if payload.layout is not torch.strided or payload.dtype not in PRECISIONS:
        return f"as {_form(payload)}; expected a dense tensor of float32 or float64, as models are"
    if payload.ndim < 2:
        return f"as {_form(payload)}; expected [..., rows, d], a row for each agent or link"
    if payload.shape[-1] == 0:
        return f"as {_form(payload)}, which has no number; expected a width of at least 1: {NARROW}"
    return _wrong_links(message, graph)


def _wrong_links(message: Message, graph: Graph) -> str | None:
    """Of which agents send which rows to whom."""
    n, n_rows = graph.n_agents, message.payload.shape[-2]
    ends = {"senders": message.senders, "receivers": message.receivers, "rows": message.rows}
    for what, values in ends.items():
        below = n_rows if what == "rows" else n
        if not isinstance(values, Tensor) or values.dtype not in INDICES or values.ndim != 1:
            return f"with {_form(values)} as its {what}; expected an int64 tensor [n_edges]"
        known = below >= n and (values is graph.senders or values is graph.receivers)
        if not known and _beyond(values, below):
            if what == "rows":
                return f"wrongly: a link names a row that its payload [{n_rows}] has not"
            return f"with {what} that there are not; expected agents from 0 to {n - 1}"
    if len({len(values) for values in ends.values()}) > 1:
        return "with senders, receivers and rows of different lengths; expected one of each a link"
    return None


def _beyond(values: Tensor, below: int) -> bool:
    """Whether an index is negative, or not below this number."""
    numbers = values.numpy(force=True)
    return bool(numbers.size) and not 0 <= numbers.min() <= numbers.max() < below


def changed_form(sent: Mapping[str, Message], forms: dict[str, str]) -> str | None:
    """Of messages in another form than in the rounds before; ``forms`` takes those of this round.

    A message keeps its width and precision from round to round; how many agents send it may vary,
    and it may stay away.
    """
    for name, message in sent.items():
        *trials, _, width = message.payload.shape
        size = ", ".join(map(str, [*trials, "rows", width]))
        form = f"[{size}] of {message.payload.dtype}"
        if forms.setdefault(name, form) != form:
            return (
                f'sends message "{name}" as {form}, and as {forms[name]} in a round before; '
                "expected the same width and precision in all rounds: pad it with zeros"
            )
    return None


def kind(value: Any) -> str:
    """What a value is, with an article."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[:1] in 'aeiouAEIOU' else 'a'} {name}"


def _form(value: Any) -> str:
    """What a tensor is; what else it is."""
    if not isinstance(value, Tensor):
        return kind(value)
    layout = "" if value.layout is torch.strided else f" ({value.layout})"
    return f"a {value.dtype} tensor {list(value.shape)}{layout}"
