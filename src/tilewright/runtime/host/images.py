"""ImageDecoder, by Pillow: `pip install tilewright[images]`."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.runtime.host.calling import Array, Attributes, Table
from tilewright.support.errors import InputError


def decode(inputs: Sequence[Any], attributes: Attributes) -> Array:
    """The pixels [height, width, channels] of a coded image, uint8. Raises InputError for bytes that are no image, and without Pillow."""
    try:
        from PIL import Image
    except ImportError:
        raise InputError("ImageDecoder needs Pillow, which is not installed", hint="pip install tilewright[images]") from None
    wanted = attributes.get("pixel_format", "RGB")
    try:
        with Image.open(io.BytesIO(inputs[0].tobytes())) as image:
            pixels = np.asarray(image.convert("L" if wanted == "Grayscale" else "RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"ImageDecoder: the bytes are no image: {error}") from None
    if wanted == "Grayscale":
        return pixels[:, :, None]
    return np.ascontiguousarray(pixels[:, :, ::-1]) if wanted == "BGR" else pixels


OPERATORS: Table = {("", "ImageDecoder"): decode}
