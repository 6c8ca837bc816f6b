"""Rows of small images as PNG files."""

import numpy as np
from numpy.typing import NDArray

from dpaudit.files.artifact_file import STRIP_GAP


def strip(images: NDArray[np.floating], value_range: tuple[float, float]) -> bytes:
    """A PNG of images [n, channels, height, width] side by side, one pixel to a pixel.

    One channel is grey, three are colour, of any other number the first is shown; values outside
    the range are cut to it.
    """
    import imageio.v3

    low, high = value_range
    scaled = np.clip((np.nan_to_num(images) - low) / (high - low), 0, 1)
    pixels = (scaled * 255).round().astype(np.uint8)
    pixels = np.moveaxis(pixels if pixels.shape[1] == 3 else pixels[:, :1], 1, -1)
    padded = np.pad(pixels, ((0, 0), (0, 0), (0, STRIP_GAP), (0, 0)), constant_values=255)
    row = np.concatenate(list(padded), axis=1)[:, :-STRIP_GAP]
    return imageio.v3.imwrite(
        "<bytes>", row.squeeze(-1) if row.shape[-1] == 1 else row, extension=".png"
    )
