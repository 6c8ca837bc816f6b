"""Settings of torch that hold for the whole process, which code of a plug-in must leave alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from dpaudit.errors import PluginError


class Settings(NamedTuple):
    """What is asked of torch where a call does not say it."""

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
