"""Handwritten digits: the network, images it was not trained on, and a picture of its answers for a terminal.

    shown = samples()
    probabilities = run_somehow(model_bytes(), network_input(shown.images))
    print(render(shown.images, probabilities, shown.labels))

`tools/train_demo.py` made the files; NOTICE says where the data come from.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from tilewright.support.errors import InputError

MODEL_FILE = "digits.onnx"
SAMPLES_FILE = "digits.npz"

LEVELS = 16
"""Pixels of the data are counts from 0, white, to 16, black."""

SHADES = " ░▒▓█"
PER_ROW = 4
GAP = "   "


@dataclass(frozen=True, slots=True)
class Samples:
    """Held-out images: `images` uint8 [n, 8, 8] with values 0 to 16, `labels` uint8 [n]."""

    images: NDArray[np.uint8]
    labels: NDArray[np.uint8]


def model_bytes() -> bytes:
    """The network as an ONNX file: image [batch, 1, 8, 8] float32 in 0..1 -> probabilities [batch, 10] float32.

    Its metadata holds `test_accuracy` on the `test_images` images of the data that it was not trained on.
    """
    return resources.files("tilewright.demo").joinpath(MODEL_FILE).read_bytes()


def samples() -> Samples:
    """The shipped images with their labels, in random order."""
    with resources.files("tilewright.demo").joinpath(SAMPLES_FILE).open("rb") as file, np.load(file) as arrays:
        return Samples(arrays["images"], arrays["labels"])


def network_input(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """uint8 [n, 8, 8] in 0..16 -> float32 [n, 1, 8, 8] in 0..1."""
    return np.asarray(images[:, np.newaxis] / np.float32(LEVELS), dtype=np.float32)


def accuracy(probabilities: NDArray[np.float32], labels: NDArray[np.uint8]) -> float:
    """The share of rows of [n, 10] whose largest entry is at the label."""
    return float((probabilities.argmax(axis=1) == labels).mean())


def render(images: NDArray[np.uint8], probabilities: NDArray[np.float32], labels: NDArray[np.uint8], count: int = 8) -> str:
    """The first `count` images in shades, four side by side, each over its predicted digit and confidence; a last line counts all of them.

    images uint8 [n, 8, 8] in 0..16, probabilities float32 [n, 10], labels uint8 [n]. At most 73 columns wide; no trailing line end. Raises
    `InputError` when the three do not fit each other.
    """
    if probabilities.shape != (len(images), 10) or labels.shape != (len(images),):
        raise InputError(
            f"probabilities of shape {probabilities.shape} and labels of shape {labels.shape} do not fit {len(images)} images",
            hint="one row of ten probabilities and one label for each image",
        )
    shown = min(count, len(images))
    panels = [panel(images[i], probabilities[i], int(labels[i])) for i in range(shown)]
    rows = [side_by_side(panels[start : start + PER_ROW]) for start in range(0, shown, PER_ROW)]
    right = int((probabilities.argmax(axis=1) == labels).sum())
    total = f"{right} of {len(images)} digits right ({right / max(1, len(images)):.1%})"
    return "\n\n".join([*rows, total])


def panel(image: NDArray[np.uint8], probabilities: NDArray[np.float32], label: int) -> list[str]:
    """Lines of one image: two characters a pixel, since a character is twice as high as wide, and the caption."""
    steps = len(SHADES) - 1
    levels = (image.astype(int) * steps + LEVELS // 2) // LEVELS
    digit = int(probabilities.argmax())
    verdict = "✓" if digit == label else f"✗ is {label}"
    return ["".join(SHADES[level] * 2 for level in row) for row in levels] + [f"{digit}  {probabilities[digit]:.1%}  {verdict}"]


def side_by_side(panels: list[list[str]]) -> str:
    """Panels of equal height next to each other, without spaces at line ends."""
    width = max(len(line) for lines in panels for line in lines)
    return "\n".join(GAP.join(line.ljust(width) for line in lines).rstrip() for lines in zip(*panels, strict=True))
