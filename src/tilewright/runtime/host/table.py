"""Every host operator, and what is known of the results of those that ONNX does not know."""

from __future__ import annotations

from tilewright.runtime.host import images, labels, movement, sequences, text
from tilewright.runtime.host.calling import Table

OPERATORS: Table = {**movement.OPERATORS, **sequences.OPERATORS, **text.OPERATORS, **labels.OPERATORS, **images.OPERATORS}
ADDED_AXES = text.ADDED_AXES
