"""What the methods of a defense give back and leave alone, held against the contract.

A plug-in's mistake would otherwise be an exception in code that is not its own, or pass unseen.
Each function gives what is wrong and what was expected, as the rest of a sentence; None: nothing.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dpaudit.errors import PluginError
from dpaudit.graphs.graph import Graph

from .transcript import Message

PRECISIONS = (torch.float32, torch.float64)  # attacks play in these
INDICES = (torch.int64, torch.int32)
NARROW = "attacks also play models of one coordinate, where a message may not become empty"


def wrong_state(state: Any) -> str | None:
    """What is wrong with a state, which checkpoints need to be a NamedTuple of tensors."""
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
    """What is wrong with the state after a round: it needs the fields of the one before."""
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
    """What is wrong with the models, which are expected as numbers [..., n_agents, d]."""
    if not isinstance(models, Tensor):
        return f"returns {kind(models)}; expected a tensor [..., n_agents, d]"
    if models.dtype not in PRECISIONS or models.ndim < 2:
        return f"returns {_form(models)}; expected a float32 or float64 tensor [..., n_agents, d]"
    return None


def wrong_messages(sent: Any, graph: Graph) -> str | None:
    """What is wrong with the messages of a round."""
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
    """What is wrong with the senders, receivers and rows of a message."""
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


class Settings(NamedTuple):
    """What is asked of torch where a call does not say it: it holds for the whole process."""

    default_dtype: torch.dtype
    default_device: torch.device
    grad_enabled: bool

    @classmethod
    def now(cls) -> "Settings":
        return cls(torch.get_default_dtype(), _default_device(), torch.is_grad_enabled())

    def restore(self) -> None:
        torch.set_default_dtype(self.default_dtype)
        torch.set_default_device(None if self.default_device.type == "cpu" else self.default_device)
        torch.set_grad_enabled(self.grad_enabled)


def _default_device() -> torch.device:
    try:
        return torch.empty(0).device  # a tenth of the time of torch.get_default_device()
    except (RuntimeError, AssertionError):  # there is no such device here
        return torch.get_default_device()


@contextmanager
def unchanged_settings(by: str) -> Iterator[None]:
    """Whatever is called inside leaves the settings of torch as they were.

    Raises:
        PluginError: it does not, with ``by`` at the beginning; all is put back.
    """
    before = Settings.now()
    try:
        yield
    finally:
        after = Settings.now()
        if after != before:
            before.restore()
    for name, was, value in zip(Settings._fields, before, after, strict=True):
        if was != value:
            raise PluginError(
                "DPA043",
                f"{by} calls torch.set_{name}({value}), which changes all other code; expected "
                f"torch's setting to stay {was}: give each tensor its dtype and device, as "
                "torch.zeros_like(X) has them, and use torch.no_grad() or torch.enable_grad() as "
                "with-blocks",
            )
