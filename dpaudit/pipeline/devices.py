"""Where to compute: the device that a caller names, if there is one."""

import torch

from dpaudit.errors import ConfigError


def torch_device(name: str | torch.device, option: str) -> torch.device:
    """The device of this name.

    Args:
        option: how the caller asked for it, as the first words of the error.

    Raises:
        ConfigError: it is a CUDA device, and this torch sees none.
    """
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("DPA024", f"{option}: this torch sees no CUDA device")
    return device
