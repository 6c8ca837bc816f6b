"""The images and labels of a program's batches, as reconstructions are scored by."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dpaudit.errors import RunError


class Batch(NamedTuple):
    """The records that one step was computed on."""

    images: Tensor  # [b, channels, height, width]
    labels: Tensor  # [b]


def batch_in(parts: Sequence[Tensor]) -> Batch | None:
    """Its first floating-point part is the images, its first of integers the labels.

    None: it is no batch of images.
    """
    images = next((part for part in parts if part.is_floating_point()), None)
    labels = next((p for p in parts if not p.is_floating_point() and p.ndim == 1), None)
    if images is None or labels is None or images.ndim not in (3, 4):
        return None
    return Batch((images[:, None] if images.ndim == 3 else images).float(), labels.long())


def batch_of(parts: Sequence[Tensor], key: tuple[int, int]) -> Batch:
    """The same of an agent's 1st, 2nd, ... batch. Raises RunError if it is none of images."""
    batch = batch_in(parts)
    if batch is None:
        found = ", ".join(f"{part.dtype} {list(part.shape)}" for part in parts) or "nothing"
        raise RunError(
            "DPA033",
            f"batch {key[1]} of agent {key[0]} has {found}; gradient inversion needs images "
            "[n, channels, height, width] of floating point, and integer labels [n]",
        )
    return batch


def others(batches: Iterable[Batch], attacked: Sequence[Batch], who: str) -> Batch:
    """Every record that is in no attacked batch, once for each time that it was taken."""
    hidden = {image.numpy().tobytes() for batch in attacked for image in batch.images}
    shape = attacked[0].images.shape[1:]
    rows = [
        (image, label)
        for batch in batches
        for image, label in zip(batch.images, batch.labels, strict=True)
        if image.shape == shape and image.numpy().tobytes() not in hidden
    ]
    if len({int(label) for _, label in rows}) < 2:
        raise RunError(
            "DPA033",
            f"{who}: the blind guess beside gradient inversion needs records of two classes in "
            "batches that are not attacked; expected a run of more rounds or agents",
        )
    images, labels = zip(*rows, strict=True)
    return Batch(torch.stack(images), torch.stack(labels))
