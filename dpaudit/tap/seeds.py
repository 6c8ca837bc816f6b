"""The generators of a program, as a world begins."""

import random

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Those that programs use without asking for one of their own."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  what programs use
    torch.manual_seed(seed)
